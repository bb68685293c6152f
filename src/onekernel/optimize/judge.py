"""Proof that kernels and a spliced model compute what they should, and how fast, by running them.

It compares and times; what follows from a verdict is decided elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from onekernel.device.cuda.gpu import GpuDevice
from onekernel.device.cuda.graph import seconds_in_graph
from onekernel.fusion.chain import Chain
from onekernel.fusion.kernel import ChainKernel
from onekernel.fusion.naming import launchable
from onekernel.fusion.oracle import run_chain
from onekernel.splice.engine import cpu_session
from onekernel.splice.loop import Step
from onekernel.splice.model import FusedModel
from onekernel.splice.onnxruntime import splice
from onekernel.splice.segments import reseeded
from onekernel.splice.signature import Array
from onekernel.targets import Target
from onekernel.verify import Limit, Plan, Speed, Subject, Verdict, compare
from onekernel.verify.limits import find, find_for_model
from onekernel.verify.sides.place import Place
from onekernel.verify.speed import Timing, measure

See = Callable[[int, Sequence[Array], Sequence[Array]], None]


def watch_chains(model: FusedModel, inputs: dict[str, Array], see: See) -> None:
    """Run once and show of each chain (by index) the operands that it read and the results that it wrote."""

    def watch(step: Step, read: Sequence[Any], written: Sequence[Any]) -> None:
        if step.chain is not None:
            see(step.chain, model.engine.download(read), model.engine.download(written))

    model(inputs, watch=watch)


def judge_kernels(model: FusedModel, inputs: dict[str, Array], limits: Sequence[Limit]) -> tuple[Verdict, ...]:
    """Judge each chain's kernel on what it reads in one real run; verdicts are in the order of the chains."""
    verdicts: dict[int, Verdict] = {}

    def see(index: int, operands: Sequence[Array], results: Sequence[Array]) -> None:
        verdicts[index] = judge_kernel(model.chains[index], operands, results, limits)

    watch_chains(model, inputs, see)
    return tuple(verdicts[index] for index in range(len(model.chains)))


def time_kernels(model: FusedModel, inputs: dict[str, Array], device: GpuDevice) -> tuple[Timing, ...]:
    """Time each chain's kernel alone on a GPU, in a CUDA graph, on what it reads in one real run."""
    timings: dict[int, Timing] = {}

    def see(index: int, operands: Sequence[Array], _: Sequence[Array]) -> None:
        kernel = ChainKernel(launchable(model.chains[index]), device)
        there = [device.upload(array) for array in operands]
        results = kernel(there)
        samples = seconds_in_graph(device, lambda stream: kernel(there, results, stream))
        timings[index] = Timing(samples, "events around a CUDA graph")

    watch_chains(model, inputs, see)
    return tuple(timings[index] for index in range(len(model.chains)))


_TIMING = Plan(rounds=0, seconds=2.0)  # the user's inputs alone; seconds for each proposal


def time_models(before: FusedModel, after: FusedModel, target: Target, limits: Sequence[Limit], place: Place) -> Speed:
    """Time two models on the same engine in turn, inputs and outputs on the host."""
    return measure(Subject(before), Subject(after), target.inputs, _TIMING, limits, place)


def judge_kernel(chain: Chain, operands: Sequence[Array], results: Sequence[Array], limits: Sequence[Limit]) -> Verdict:
    """Compare what a kernel wrote with what its chain means, in float64."""
    expected = run_chain(chain, operands)
    return Verdict(
        tuple(
            compare(f"{chain.name} {item.name}", got, reference, find(limits, "kernel", item.dtype))
            for item, got, reference in zip(chain.results, results, expected, strict=True)
        )
    )


def judge_model(target: Target, model: FusedModel, limits: Sequence[Limit]) -> Verdict:
    """Compare a spliced model with the original; doubt a difference that the original shows to itself.

    A model that draws random numbers is compared in a copy where both sides draw the same ones.
    """
    seeded = reseeded(target.model, 0.0)
    if seeded is not target.model:
        model = splice(seeded, model.chains, model.engine, model.constants)
    expected = splice(seeded, (), model.engine)(target.inputs)
    dtypes = {value.dtype for value in target.graph.values.values()}
    rows = {name: find_for_model(limits, array.dtype.name, dtypes) for name, array in expected.items()}
    doubts = () if any(array.size for array in expected.values()) else ("every output of these inputs is empty",)

    def judge(got: Mapping[str, Array]) -> Verdict:
        pairs = ((name, got[name], expected[name], row) for name, row in rows.items())
        return Verdict(tuple(compare(*pair, dtype=pair[2].dtype.name) for pair in pairs), doubts=doubts)

    verdict = judge(model(target.inputs))
    if verdict.decision != "reject":
        return verdict
    session = cpu_session(reseeded(target.model, 1.0).SerializeToString(), optimize=False)
    floor = judge(dict(zip(rows, session.run(list(rows), target.inputs), strict=True)))
    off, moody = ({item.name for item in side.numbers if not item.passed} for side in (verdict, floor))
    if not off <= moody:
        return verdict
    draws = "" if seeded is target.model else ", drawing other random numbers"
    doubt = f"{verdict.worst}; but the original differs from itself without optimisations{draws} ({floor.worst})"
    return replace(verdict, doubts=(doubt,))

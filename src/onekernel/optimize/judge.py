"""Proof that a kernel and a spliced model compute what they should, by running both and comparing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from onekernel.fusion.chain import Chain
from onekernel.fusion.oracle import run_chain
from onekernel.splice.engine import cpu_session
from onekernel.splice.model import FusedModel
from onekernel.splice.segments import reseeded
from onekernel.splice.signature import Array
from onekernel.targets import Target
from onekernel.verify import Limit, Verdict, compare, find


def judge_kernels(
    model: FusedModel, inputs: dict[str, Array], limits: Sequence[Limit]
) -> tuple[Verdict, ...]:
    """Judge each chain's kernel on what it reads in one real run; verdicts are in the order of the chains."""
    verdicts: dict[int, Verdict] = {}

    def watch(step: Any, read: Sequence[Any], written: Sequence[Any]) -> None:
        if step.chain is not None:
            operands, results = model.engine.download(read), model.engine.download(written)
            verdicts[step.chain] = judge_kernel(model.chains[step.chain], operands, results, limits)

    model(inputs, watch=watch)
    return tuple(verdicts[index] for index in range(len(model.chains)))


def judge_kernel(
    chain: Chain, operands: Sequence[Array], results: Sequence[Array], limits: Sequence[Limit]
) -> Verdict:
    """Compare what a kernel wrote with what its chain means, in float64."""
    expected = run_chain(chain, operands)
    return Verdict(
        tuple(
            compare(f"{chain.name} {item.name}", got, reference, find(limits, "kernel", item.dtype))
            for item, got, reference in zip(chain.results, results, expected, strict=True)
        )
    )


def judge_model(target: Target, model: FusedModel, limits: Sequence[Limit]) -> Verdict:
    """Compare a spliced model with the original; doubt a difference that the original shows to itself."""
    names = [spec.name for spec in model.outputs]

    def original(onnx_model: Any, *, optimize: bool) -> list[Array]:
        session = cpu_session(onnx_model.SerializeToString(), optimize=optimize)
        return list(session.run(names, target.inputs))

    expected = original(target.model, optimize=True)
    rows = [find(limits, "model", array.dtype.name) for array in expected]

    def judge(got: Sequence[Array]) -> Verdict:
        return Verdict(tuple(map(compare, names, got, expected, rows)))

    outputs = model(target.inputs)
    verdict = judge([outputs[name] for name in names])
    if verdict.decision != "reject":
        return verdict
    floor = judge(original(reseeded(target.model, 1.0), optimize=False))
    if floor.decision != "reject":
        return verdict
    doubt = f"the original differs from itself with other random seeds and no optimisations ({floor.worst})"
    return replace(verdict, doubts=(doubt,))

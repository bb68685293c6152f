"""The story on one page: read, find chains, predict, build, splice, verify, keep or undo, save.

It calls the rooms in order and keeps what they say; how anything is done is theirs.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from onekernel.device import Device, get
from onekernel.device.cuda.gpu import GpuDevice
from onekernel.device.parts import REFERENCE, Part, find, part_of
from onekernel.errors import CompileError, InvalidInput
from onekernel.fusion.chain import Chain
from onekernel.fusion.cost import predict
from onekernel.fusion.kernel import Build, compile_all
from onekernel.fusion.naming import launchable
from onekernel.fusion.rules import normal_form
from onekernel.fusion.search import find_chains
from onekernel.optimize.judge import judge_kernels, judge_model, time_kernels, time_model
from onekernel.optimize.outcome import Candidate, Optimization
from onekernel.splice.engine import Engine, engine_for
from onekernel.splice.folder import check_writable
from onekernel.splice.model import FusedModel
from onekernel.splice.onnxruntime import splice
from onekernel.splice.signature import Inputs
from onekernel.targets import Target, open_target
from onekernel.verify import LIMITS, Limit, Verdict

INTO = ("auto", "onnxruntime")
log = logging.getLogger("onekernel")


def optimize(
    target: str | Path | Any,
    inputs: Inputs | str | Path | None = None,
    *,
    gpu: str | None = None,
    into: str = "auto",
    out: str | Path | None = None,
    limits: Sequence[Limit] = LIMITS,
) -> Optimization:
    """Fuse the chains of an ONNX model that pay, and prove that the result is the same.

    `inputs`: one call's arrays (mapping or sequence), an .npz path, "auto", or None when all shapes are
    fixed. `gpu`: the GPU to build and predict for (default: the one present). `out` is written unless the
    verdict is reject. Raises InvalidInput for anything of the user's that cannot be used.
    """
    if into not in INTO:
        raise InvalidInput(expected=f"into one of {', '.join(INTO)}", got=repr(into), todo="leave it out")
    part, device = _place(gpu)
    if out is not None:
        check_writable(Path(out))
    log.info("reading the model")
    opened = open_target(target, inputs)
    search = find_chains(normal_form(opened.graph))
    candidates = [Candidate(chain, predict(chain, part)) for chain in search.chains]
    candidates = _build(candidates, part)
    bench = Bench(opened, engine_for(device, "block"), device, limits)  # what is judged must be the kernels
    log.info("checking kernels on the device %s", device.name)
    candidates = bench.without_wrong(candidates)
    log.info("comparing with the original")
    model = bench.splice(candidates)
    verdict = bench.judge(model)
    candidates = bench.timed(candidates, model)
    if verdict.decision == "reject":
        candidates = [replace(item, undone=item.undone or "undone with the whole") for item in candidates]
        model = bench.splice(candidates)
    notes = (speed_note(part, device, verdict),)
    return _save(Optimization(opened.name, part, model, verdict, tuple(candidates), search.left, notes), out)


@dataclass(frozen=True)
class Bench:
    """Where candidates are tried: one target, one way to run it, one table of limits."""

    target: Target
    engine: Engine
    device: Device
    limits: Sequence[Limit]

    def splice(self, candidates: Sequence[Candidate]) -> FusedModel:
        """Put the chains that are still wanted into the model."""
        chains, values = _kept(candidates), self.target.graph.values
        read = {operand.name for chain in chains for operand in chain.operands}
        fixed = {name: array for name in sorted(read) if (array := values[name].constant) is not None}
        return splice(self.target.model, chains, self.engine, fixed)

    def without_wrong(self, candidates: Sequence[Candidate]) -> list[Candidate]:
        """Judge every kernel on what it reads in a real run; undo those that are off."""
        model = self.splice(candidates)
        known = dict(zip(model.chains, judge_kernels(model, self.target.inputs, self.limits), strict=True))
        return [_judged(item, known[item.chain]) if not item.undone else item for item in candidates]

    def judge(self, model: FusedModel) -> Verdict:
        """Judge the whole: its numbers, and its speed where values stay on a GPU."""
        verdict = judge_model(self.target, model, self.limits)
        return replace(verdict, speed=time_model(self.target, model)) if self.engine.resident else verdict

    def timed(self, candidates: Sequence[Candidate], model: FusedModel) -> list[Candidate]:
        """Time every kernel alone; the emulated device has no time worth knowing."""
        if not isinstance(self.device, GpuDevice):
            return list(candidates)
        timings = time_kernels(model, self.target.inputs, self.device)
        known = dict(zip(model.chains, timings, strict=True))
        return [replace(item, timing=known.get(item.chain)) for item in candidates]


def _kept(candidates: Sequence[Candidate]) -> list[Chain]:
    return [item.chain for item in candidates if not item.undone]


def _judged(item: Candidate, verdict: Verdict) -> Candidate:
    return replace(item, verdict=verdict, undone="" if verdict.decision == "keep" else verdict.reason)


def _place(gpu: str | None) -> tuple[Part, Device]:
    """Choose the GPU to build for and the device to run on; the emulated device plays the former."""
    device = get()
    if not device.emulated:
        return find(gpu) if gpu else part_of(device.name, device.arch), device
    from onekernel.device.emulated import EmulatedDevice

    part = find(gpu or REFERENCE)
    return part, EmulatedDevice(part.arch)


def _build(candidates: Sequence[Candidate], part: Part) -> list[Candidate]:
    """Compile the chains that pay; undo those that do not, and those that do not compile."""

    def report(done: int, total: int) -> None:
        log.info("compiling kernels for %s", part.arch, extra={"done": done, "total": total})

    paying = [item.chain for item in candidates if item.saving.seconds > 0]
    built = dict(zip(paying, compile_all(list(map(launchable, paying)), part, report), strict=True))

    def outcome(item: Candidate) -> Candidate:
        build = built.get(item.chain)
        if build is None:
            return replace(item, undone=f"it would save nothing on {part.name}")
        if isinstance(build, CompileError):
            return replace(item, undone=str(build).splitlines()[0])
        return replace(item, build=build)

    return list(map(outcome, candidates))


def speed_note(part: Part, device: Device, verdict: Verdict) -> str:
    """Say how the speed is known."""
    if device.emulated:
        return f"speed is predicted for {part.name}, not measured: there is no GPU here"
    if verdict.speed is None:
        return f"kernels were timed alone on {device.name}: this ONNX Runtime has no CUDA provider for the rest"
    before, after = verdict.speed.before.median * 1e3, verdict.speed.after.median * 1e3
    return f"measured on {device.name}: {before:.3g} -> {after:.3g} ms a call ({verdict.speed.gain:.2f}x)"


def _save(result: Optimization, out: str | Path | None) -> Optimization:
    """Attach the kernels to the model; write the folder, unless the whole was rejected."""
    builds: dict[Any, Build] = {item.build.request: item.build for item in result.kept if item.build}
    model = replace(result.model, builds=tuple(builds.values()))
    result = replace(result, model=model, out=None if out is None else Path(out))
    if result.out is None or result.verdict.decision == "reject":
        return replace(result, out=None)
    log.info("writing %s", result.out)
    replace(model, record=result.record()).save(result.out)
    return result

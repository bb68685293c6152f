"""The story on one page: read, find chains, predict, build, splice, verify, keep or undo, save.

It calls the rooms in order and keeps what they say; how anything is done is theirs.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from onekernel.device import Device, get
from onekernel.device.parts import REFERENCE, Part, find
from onekernel.errors import CompileError, InvalidInput
from onekernel.fusion.chain import Chain
from onekernel.fusion.cost import predict
from onekernel.fusion.kernel import Build, compile_for
from onekernel.fusion.rules import normal_form
from onekernel.fusion.search import find_chains
from onekernel.optimize.judge import judge_kernels, judge_model
from onekernel.optimize.outcome import Candidate, Optimization
from onekernel.splice.engine import Engine, engine_for, launchable
from onekernel.splice.folder import check_writable
from onekernel.splice.model import FusedModel
from onekernel.splice.onnxruntime import splice
from onekernel.splice.signature import Inputs
from onekernel.targets import Target, open_target
from onekernel.verify import LIMITS, Limit

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
    log.info("compiling %d chains for %s", len(search.chains), part.arch)
    candidates = [_build(Candidate(chain, predict(chain, part)), part) for chain in search.chains]
    engine = engine_for(device)
    log.info("checking kernels on the device %s", device.name)
    model = _splice(opened, candidates, engine)
    candidates = _undo_wrong(candidates, model, opened, limits)
    if len(_kept(candidates)) < len(model.chains):
        model = _splice(opened, candidates, engine)
    log.info("comparing with the original")
    verdict = judge_model(opened, model, limits)
    if verdict.decision == "reject":
        candidates = [replace(item, undone=item.undone or "undone with the whole") for item in candidates]
        model = _splice(opened, candidates, engine)
    notes = _notes(part, device)
    result = Optimization(opened.name, part, model, verdict, tuple(candidates), search.left, notes)
    return _save(result, out)


def _place(gpu: str | None) -> tuple[Part, Device]:
    """Choose the GPU to build for and the device to run on; the emulated device plays the former."""
    device = get()
    if not device.emulated:
        return find(gpu or device.arch), device
    from onekernel.device.emulated import EmulatedDevice

    part = find(gpu or REFERENCE)
    return part, EmulatedDevice(part.arch)


def _build(item: Candidate, part: Part) -> Candidate:
    """Compile a chain that pays; undo one that does not, or that does not compile."""
    if item.saving.seconds <= 0:
        return replace(item, undone=f"it would save nothing on {part.name}")
    try:
        return replace(item, build=compile_for(launchable(item.chain), part))
    except CompileError as error:
        return replace(item, undone=str(error).splitlines()[0])


def _kept(candidates: Sequence[Candidate]) -> list[Chain]:
    return [item.chain for item in candidates if not item.undone]


def _splice(opened: Target, candidates: Sequence[Candidate], engine: Engine) -> FusedModel:
    chains, values = _kept(candidates), opened.graph.values
    read = {operand.name for chain in chains for operand in chain.operands}
    fixed = {name: array for name in sorted(read) if (array := values[name].constant) is not None}
    return splice(opened.model, chains, engine, fixed)


def _undo_wrong(
    candidates: Sequence[Candidate], model: FusedModel, opened: Target, limits: Sequence[Limit]
) -> list[Candidate]:
    verdicts = dict(zip(model.chains, judge_kernels(model, opened.inputs, limits), strict=True))
    judged = [replace(item, verdict=verdicts.get(item.chain)) for item in candidates]
    return [
        replace(item, undone=item.verdict.reason)
        if item.verdict is not None and item.verdict.decision != "keep"
        else item
        for item in judged
    ]


def _notes(part: Part, device: Device) -> tuple[str, ...]:
    if device.emulated:
        return (f"speed is predicted for {part.name}, not measured: there is no GPU here",)
    return ("speed is predicted, not measured yet",)


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

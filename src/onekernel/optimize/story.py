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
from onekernel.device.parts import REFERENCE, Part, find, part_of
from onekernel.errors import CompileError, InvalidInput
from onekernel.fusion.cost import predict
from onekernel.fusion.kernel import Build, compile_all
from onekernel.fusion.naming import launchable
from onekernel.fusion.rules import normal_form
from onekernel.fusion.search import find_chains
from onekernel.optimize.bench import Bench
from onekernel.optimize.outcome import Candidate, Optimization
from onekernel.optimize.proposals import keep_or_undo
from onekernel.splice.engine import engine_for
from onekernel.splice.folder import check_writable
from onekernel.splice.signature import Inputs
from onekernel.targets import open_target
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
    decided = keep_or_undo(bench, candidates)
    model, verdict = decided.model, decided.verdict
    candidates = bench.timed(decided.candidates, model)
    notes = (speed_note(part, device, verdict),)
    return _save(Optimization(opened.name, part, model, verdict, tuple(candidates), search.left, notes), out)


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

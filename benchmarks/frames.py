"""Frames of Qwen3-TTS in one launch: are they the reference's, and how fast? Random weights at released sizes.

A frame has a talker step, its head, sixteen passes of the predictor, and sixteen draws; keys and values are kept in
bfloat16. The floor is the time in which the GPU reads the weights of a frame once, at the speed at which it reads a
large tensor in the same run. What is compared: benchmarks/frames_parity.py.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from statistics import median, quantiles
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from benchmarks.frames_parity import PROMPT, SEED, Row, Speech, parity, reference, repeats, rounding, rows_of
from benchmarks.official import released
from benchmarks.peer import kernels_of
from benchmarks.timing import back_to_back
from onekernel import device
from onekernel.jit import Kernel
from onekernel.megakernel.decoder import speech_decoder
from onekernel.megakernel.generate import kernel_request
from onekernel.megakernel.interpret import rotations
from onekernel.megakernel.layout import Layout, Schedule
from onekernel.megakernel.program import Program, Project
from onekernel.megakernel.schedule import schedule_for
from onekernel.megakernel.unroll import condition_holds, counted, unrolled
from onekernel.speech.config import SpeechConfig, read_speech
from onekernel.speech.lm.frames import FrameKernel
from onekernel.speech.lm.model import LanguageModel
from onekernel.speech.lm.program import ProgramWeights, speech_shape
from onekernel.speech.lm.sampling import by_counter
from onekernel.speech.request import Sampling

POSITIONS, AT_ONCE, LAUNCHES = (100, 1000), (1, 8), 200  # of speed
FAR = 32_000  # positions, of speed alone
EAGER_FRAMES = 5


def prepare(
    config: SpeechConfig, tensors: dict[str, Tensor], on: Any, kept: str = "bfloat16", schedule: Schedule | None = None
) -> Speech:
    """Compile the kernel of a checkpoint, and pack its weights where they are; it keeps keys and values as `kept`."""
    shape, weights = speech_shape(config, kept), ProgramWeights(config, tensors)
    program = speech_decoder(shape)
    layout = Layout(program, schedule or schedule_for(program, on.multiprocessors, on.arch))
    start = time.perf_counter()
    built = Kernel(kernel_request(layout, on.arch), on)
    seconds = time.perf_counter() - start
    kernel = FrameKernel(built, layout, shape, max(POSITIONS) + max(AT_ONCE) + 1)
    kernel.load(weights, weights.table, weights.sub_table)
    return Speech(config, tensors, layout, kernel, seconds)


def speed(speech: Speech) -> Iterator[Row]:
    """Time launches of one and of several frames, on the GPU, at the contexts of `POSITIONS`."""
    read = read_bandwidth()
    floor = read_bytes(speech.layout.program) / read * 1e3
    text = rows_of(speech, 3, 2)
    yield {"what": "seconds to compile", "measured": speech.seconds}
    yield {"what": "read bandwidth, TB/s", "measured": read / 1e12}
    for position in POSITIONS:
        for frames in AT_ONCE:
            times = launches(speech, text, position, frames)
            most = {"p99": quantiles(times, n=100)[98], "max": max(times), "floor": floor}
            what = f"ms a frame at {position} positions, {frames} a launch"
            yield {"what": what, "measured": median(times), **most, "of floor": floor / median(times)}
    times = launches(with_room_for(speech, FAR + 1), text, FAR, 1)
    yield {"what": f"ms a frame at {FAR} positions, 1 a launch", "measured": median(times), "max": max(times)}
    yield {"what": "ms a frame, reference engine in eager torch", "measured": eager(speech, text)}


def with_room_for(speech: Speech, positions: int) -> Speech:
    """Return the same kernel, whose requests have room for other positions."""
    one, talker = speech.kernel, speech.kernel.shape.talker
    other = FrameKernel(one.kernel, speech.layout, one.shape, positions)
    weights, vectors, _ = one.operands
    rotation = torch.from_numpy(rotations(positions, talker.head_dim, talker.theta)).to(weights.device)
    other.operands, other.tables = (weights, vectors, rotation), one.tables
    return replace(speech, kernel=other)


def traced(speech: Speech, count: int = 50) -> Row:
    """Count the kernels in a trace of some frames. Comes last: what looks may slow what follows."""
    request, text = speech.kernel.request(Sampling(), SEED), rows_of(speech, 3, 2)
    request.say(rows_of(speech, PROMPT, 1), text, 1)
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        request.say(None, text, count)
        torch.cuda.synchronize()
    return {"what": f"kernels in a trace of {count} frames", "measured": kernels_of(profiler), "least": 1, "most": 1}


def launches(speech: Speech, text: Tensor, position: int, frames: int) -> list[float]:
    """Return milliseconds a frame of each launch, draws and all; each begins at the same position."""
    request = speech.kernel.request(Sampling(), SEED)
    request.cache.normal_()
    request.position = position
    request.say(rows_of(speech, 1, 3), text, frames)
    stream = torch.cuda.current_stream()

    def again() -> None:
        request.position = position
        request.say(None, text, frames, stream.cuda_stream)

    return [time / frames for time in back_to_back(again, LAUNCHES)]


def eager(speech: Speech, text: Tensor) -> float:
    """Return milliseconds a frame of the reference engine in bfloat16."""
    model, prompt = LanguageModel(speech.config, speech.tensors), rows_of(speech, PROMPT, 1).bfloat16()
    frames = reference(model, Sampling(), by_counter(SEED), prompt, text.bfloat16(), EAGER_FRAMES + 1)
    times = list[float]()
    next(frames)
    for _ in range(EAGER_FRAMES):
        start = time.perf_counter()
        next(frames)
        torch.cuda.synchronize()
        times.append(1e3 * (time.perf_counter() - start))
    return median(times)


def read_bytes(program: Program) -> int:
    """Count the bytes of weights that one step reads: every matrix each time that it is used."""
    phases = unrolled(program.body, counted, partial(condition_holds, speaks=True))
    return sum(2 * it.matrix.rows * it.matrix.columns for it, _ in phases if isinstance(it, Project))


def read_bandwidth() -> float:
    """Return the bytes a second at which the GPU adds up a tensor of 4 GiB: the best of ten."""
    large, best = torch.zeros(1 << 30, dtype=torch.float32, device="cuda"), float("inf")
    for _ in range(10):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        large.sum()
        end.record()
        end.synchronize()
        best = min(best, start.elapsed_time(end) / 1e3)
    return large.nbytes / best


def _rows(config: SpeechConfig, tensors: dict[str, Tensor]) -> Iterator[Row]:
    on = device.get("cuda")
    exact, speech = prepare(config, tensors, on, "float32"), prepare(config, tensors, on)
    yield from parity(exact)
    yield from rounding(exact, speech)
    del exact
    yield from repeats(speech)
    yield from speed(speech)
    yield traced(speech)


def run(say: Callable[[str], None]) -> list[Row]:
    """Compare and time each size; returns rows with the name of the model."""
    rows: list[Row] = []
    for name, folder in released(say):
        tensors = load_file(folder / "model.safetensors", device="cuda")
        with torch.inference_mode():
            for row in _rows(read_speech(folder), tensors):
                rows.append({"model": name, **row})
                say(f"{row}")
    return rows


def failed(rows: list[Row]) -> bool:
    """Say whether codes differ, or logits too much; speed alone fails nothing."""
    inf = float("inf")
    return any(not row.get("least", -inf) <= row["measured"] <= row.get("most", inf) for row in rows)

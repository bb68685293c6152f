"""Many sessions in one launch: does each say what it says alone, and what does a frame of all of them take?

Frames of Qwen3-TTS with random weights at released sizes. Sessions have prompts, seeds, texts and positions of their
own; codes and what is remembered are compared bit by bit with launches of one session. Times are of launches of one
frame back to back, all sessions at the same position.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from statistics import median, quantiles
from typing import Any

import torch
from safetensors.torch import load_file

from benchmarks import frames
from benchmarks.frames_parity import SEED, Row, Speech, rows_of
from benchmarks.official import released
from benchmarks.timing import back_to_back
from onekernel import device
from onekernel.jit import Binary, Kernel, KernelRequest, compile_request
from onekernel.megakernel.decoder import speech_decoder
from onekernel.megakernel.sessions.layout import SESSIONS, SessionsLayout, sessions_layout
from onekernel.megakernel.sessions.text import sessions_request
from onekernel.speech.config import read_speech
from onekernel.speech.lm.frames import FrameRequest
from onekernel.speech.lm.program import ProgramWeights
from onekernel.speech.lm.sessions import SessionsKernel
from onekernel.speech.request import Sampling

COMPARED, LAUNCHES = 20, 100  # frames; launches that are timed
LONGEST = 140  # positions of a prompt: some are far


def compiled(one: Speech, on: Any) -> Iterator[tuple[SessionsLayout, KernelRequest, Binary, float]]:
    """Compile the kernels of all numbers of sessions, next to each other; yields them with the seconds of each."""

    def compile_one(layout: SessionsLayout) -> tuple[SessionsLayout, KernelRequest, Binary, float]:
        request, start = sessions_request(layout, on.arch), time.perf_counter()
        return layout, request, compile_request(request), time.perf_counter() - start

    program = speech_decoder(one.kernel.shape, paired=False)
    layouts = [sessions_layout(program, one.layout.schedule, sessions, on.arch) for sessions in SESSIONS]
    with ThreadPoolExecutor(len(layouts)) as pool:
        yield from pool.map(compile_one, layouts)


def beside(one: Speech, layout: SessionsLayout, kernel: Kernel) -> SessionsKernel:
    """Return a kernel for many sessions with the weights of one for a single session."""
    many = SessionsKernel(kernel, layout, one.kernel)
    weights = ProgramWeights(one.config, one.tensors)
    many.load(weights, weights.table, weights.sub_table)
    return many


def begun(one: Speech, count: int) -> tuple[list[FrameRequest], list[torch.Tensor]]:
    """Begin requests of different lengths, each with a first frame."""
    requests, texts = [], []
    for number in range(count):
        request = one.kernel.request(Sampling(do_sample=number % 4 != 3), SEED + number)
        texts.append(rows_of(one, 3 + number % 5, 100 + number))
        request.say(rows_of(one, 1 + LONGEST * number // count, 200 + number), texts[-1], 1)
        requests.append(request)
    return requests, texts


def parity(one: Speech, many: SessionsKernel, count: int = COMPARED) -> Iterator[Row]:
    """Compare sessions with themselves alone; one place stays empty."""
    present = many.layout.sessions - 1
    (apart, texts), (together, _) = begun(one, present), begun(one, present)
    said = torch.cat([many.say(together, texts, frames) for frames in (1, count - 1)], 1).tolist()
    right = [request.say(None, text, count).tolist() for request, text in zip(apart, texts, strict=True)]
    many.check()
    same = sum(found == expected for found, expected in zip(said, right, strict=True))
    kept = sum(
        torch.equal(its.memory, other.memory) and torch.equal(its.cache.nan_to_num(), other.cache.nan_to_num())
        for its, other in zip(apart, together, strict=True)
    )
    yield {"what": f"{present} sessions: as alone for {count} frames", "measured": same, "least": present}
    yield {"what": f"{present} sessions: keys and memory as alone", "measured": kept, "least": present}


def speed(one: Speech, many: SessionsKernel) -> Iterator[Row]:
    """Time frames of all sessions beside those of one."""
    sessions, text = many.layout.sessions, rows_of(one, 3, 2)
    for position in frames.POSITIONS:
        alone = median(frames.launches(one, text, position, 1))
        requests, texts = begun(one, sessions)
        for request in requests:
            request.cache.normal_()
        times = launches(many, requests, texts, position)
        name = f"{sessions} sessions at {position} positions"
        most = {"p99": quantiles(times, n=100)[98], "max": max(times)}
        yield {"what": f"{name}: ms a frame", "measured": median(times), **most}
        yield {"what": f"{name}: times one session", "measured": median(times) / alone}
        yield {"what": f"{name}: frames a second", "measured": 1e3 * sessions / median(times)}


def launches(
    many: SessionsKernel, requests: list[FrameRequest], texts: list[torch.Tensor], position: int
) -> list[float]:
    """Return milliseconds of each launch of a frame; each begins at the same position."""
    stream = torch.cuda.current_stream()
    say = many.prepare(requests, texts, 1, position=position)
    say(stream.cuda_stream)
    times = back_to_back(partial(say, stream.cuda_stream), LAUNCHES)
    many.check()
    return times


def run(say: Callable[[str], None]) -> list[Row]:
    """Compare and time each size with each number of sessions; returns rows with the name of the model."""
    rows: list[Row] = []

    def add(model: str, row: Row) -> None:
        rows.append({"model": model, **row})
        say(f"{row}")

    with torch.inference_mode():
        for name, folder in released(say):
            tensors, on = load_file(folder / "model.safetensors", device="cuda"), device.get("cuda")
            one = frames.prepare(read_speech(folder), tensors, on)
            for layout, request, binary, seconds in compiled(one, on):
                many = beside(one, layout, Kernel(request, on, binary=binary))
                add(name, {"what": f"{layout.sessions} sessions: seconds to compile", "measured": seconds})
                for part in (parity, speed):
                    for row in part(one, many):
                        add(name, row)
    return rows


failed = frames.failed

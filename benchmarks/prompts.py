"""Prompts of speech read by one launch: are keys and values those of position by position, and how fast?

Random weights at released sizes. The floor is the time in which the GPU reads the weights of the talker's layers once,
at the speed at which it reads a large tensor in the same run. What is read position by position says a frame behind the
last one, in the same launch.
"""

from __future__ import annotations

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
from onekernel.jit import Kernel, compile_request
from onekernel.megakernel.decoder import speech_decoder
from onekernel.megakernel.sessions.prompt import POSITIONS, prompt_layout
from onekernel.megakernel.sessions.prompt_text import prompt_request
from onekernel.speech.config import read_speech
from onekernel.speech.lm.frames import FrameRequest
from onekernel.speech.lm.program import ProgramWeights
from onekernel.speech.lm.prompts import PromptKernel
from onekernel.speech.request import Sampling

LENGTHS, COMPARED, LAUNCHES = (10, 30, 64, 100, 500), (9, 64, 199), 50
STEPWISE = (10, 30)


def readers(one: Speech, on: Any) -> Iterator[PromptKernel]:
    """Compile the kernels of all numbers of positions in a step, next to each other."""
    program = speech_decoder(one.kernel.shape)
    layouts = [prompt_layout(program, one.layout.schedule, positions, on.arch) for positions in POSITIONS]
    requests = [prompt_request(layout, on.arch) for layout in layouts]
    with ThreadPoolExecutor(len(layouts)) as pool:
        binaries = list(pool.map(compile_request, requests))
    for layout, request, binary in zip(layouts, requests, binaries, strict=True):
        kernel = PromptKernel(Kernel(request, on, binary=binary), layout, one.kernel)
        kernel.load(ProgramWeights(one.config, one.tensors))
        yield kernel


def parity(one: Speech, kernel: PromptKernel) -> Iterator[Row]:
    """Compare what a prompt leaves, and the frames said behind it, with position by position."""
    text, equal = rows_of(one, 3, 2), 0
    for length in COMPARED:
        prompt = rows_of(one, length + 1, 300 + length)
        slow, fast = (one.kernel.request(Sampling(), SEED) for _ in range(2))
        kernel.read(fast, prompt[:-1])
        said, right = fast.say(prompt[-1:], text, 4), slow.say(prompt, text, 4)
        same = torch.equal(fast.cache.nan_to_num(), slow.cache.nan_to_num()) and torch.equal(said, right)
        equal += int(same and torch.equal(fast.memory, slow.memory))
    kernel.check()
    what = f"{kernel.layout.sessions} at a time: prompts with all bits of position by position"
    yield {"what": what, "measured": equal, "least": len(COMPARED)}


def speed(one: Speech, kernel: PromptKernel, floor: float) -> Iterator[Row]:
    """Time launches back to back, each of a whole prompt from the first position on."""
    request, stream = one.kernel.request(Sampling(), SEED), torch.cuda.current_stream()
    for length in LENGTHS:
        prompt = rows_of(one, length, 4)
        times = timed(request, partial(kernel.read, request, prompt, stream.cuda_stream))
        most = {"p99": quantiles(times, n=100)[98], "max": max(times), "floor": floor}
        what = f"{kernel.layout.sessions} at a time: ms of {length} positions"
        yield {"what": what, "measured": median(times), **most, "of floor": floor / median(times)}


def stepwise(one: Speech) -> Iterator[Row]:
    """Time the same position by position, and a frame behind it."""
    text = rows_of(one, 3, 2)
    for length in STEPWISE:
        prompt = rows_of(one, length, 4)
        request = one.kernel.request(Sampling(), SEED)
        say = partial(request.say, prompt, text, 1, torch.cuda.current_stream().cuda_stream)
        yield {"what": f"ms of {length} positions one by one, and a frame", "measured": median(timed(request, say))}


def timed(request: FrameRequest, launch: Callable[[], Any]) -> list[float]:
    """Return milliseconds of each of many launches, from the first position on."""

    def again() -> None:
        request.position = 0
        launch()

    launch()  # what comes first takes longer
    return back_to_back(again, LAUNCHES)


def _rows(one: Speech, on: Any) -> Iterator[Row]:
    read = frames.read_bandwidth()
    yield {"what": "read bandwidth, TB/s", "measured": read / 1e12}
    for kernel in readers(one, on):
        yield from parity(one, kernel)
        yield from speed(one, kernel, frames.read_bytes(kernel.layout.program) / read * 1e3)
    yield from stepwise(one)


def run(say: Callable[[str], None]) -> list[Row]:
    """Compare and time each size with each number of positions; returns rows with the name of the model."""
    rows: list[Row] = []
    with torch.inference_mode():
        for name, folder in released(say):
            tensors, on = load_file(folder / "model.safetensors", device="cuda"), device.get("cuda")
            for row in _rows(frames.prepare(read_speech(folder), tensors, on), on):
                rows.append({"model": name, **row})
                say(f"{row}")
    return rows


failed = frames.failed

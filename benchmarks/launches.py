"""One launch, and a launch for each phase: do they say the same, and how fast is each?

Frames of Qwen3-TTS with random weights at released sizes, and tokens of SmolLM2-135M where SMOLLM2 names its folder. A
step of launches is a CUDA graph in which each begins while its predecessor ends. Codes and the last logits are compared
bit by bit: both builds read the same packed weights, and add up in one order.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from statistics import median, quantiles
from typing import Any, cast

import torch
from safetensors.torch import load_file

from benchmarks import frames, text
from benchmarks.frames_parity import DRAWN, FRAMES, GREEDY, PROMPT, SEED, Row, Speech, rows_of
from benchmarks.official import released
from onekernel import device
from onekernel.megakernel.layout import Layout
from onekernel.speech.config import read_speech
from onekernel.speech.lm.frames import FrameKernel
from onekernel.speech.lm.launches import FrameLaunches
from onekernel.text.launches import TokenLaunches
from onekernel.text.tokens import TokenKernel
from onekernel.text.weights import TextWeights


def beside(speech: Speech, on: Any) -> Speech:
    """Return the same as launches, with the same weights."""
    start = time.perf_counter()
    one, layout = speech.kernel, Layout(speech.layout.program, replace(speech.layout.schedule, slots=0))
    many = FrameLaunches(layout, on, one.shape, one.positions)
    many.operands, many.tables = one.operands, one.tables
    return replace(speech, layout=layout, kernel=cast("FrameKernel", many), seconds=time.perf_counter() - start)


def parity(one: Speech, many: Speech, count: int = FRAMES, prompted: int = PROMPT) -> Iterator[Row]:
    """Compare what both say, and the logits of the last code."""
    prompt, rows = rows_of(one, prompted, 1), rows_of(one, 3, 2)
    for name, asked in (("greedy", GREEDY), ("drawn", DRAWN)):
        requests = [speech.kernel.request(asked, SEED) for speech in (one, many)]
        right, found = (request.say(prompt, rows, count).tolist() for request in requests)
        same = next((number for number in range(count) if found[number] != right[number]), count)
        yield {"what": f"{name}: frames of launches equal to those of one", "measured": same, "least": count}
        left, other = (request.mailbox.exchange("sub_logits") for request in requests)
        apart = float((left - other).abs().max() / left.abs().max())
        yield {"what": f"{name}: last logits apart, of the largest", "measured": apart, "most": 0.0}


def speed(one: Speech, many: Speech) -> Iterator[Row]:
    """Time both at the contexts of `frames.POSITIONS`, and the ratio."""
    floor = frames.read_bytes(one.layout.program) / frames.read_bandwidth() * 1e3
    rows = rows_of(one, 3, 2)
    yield {"what": "seconds to compile one kernel", "measured": one.seconds}
    yield {"what": "seconds to compile all launches", "measured": many.seconds}
    for position in frames.POSITIONS:
        for count in frames.AT_ONCE:
            for name, speech in (("one launch", one), ("launches", many)):
                times = frames.launches(speech, rows, position, count)
                most = {"p99": quantiles(times, n=100)[98], "max": max(times), "floor": floor}
                what = f"ms a frame at {position} positions, {count} at once: {name}"
                yield {"what": what, "measured": median(times), **most, "of floor": floor / median(times)}


def tokens(model: text.Model, on: Any) -> Iterator[Row]:
    """Compare and time both builds of a text decoder."""
    shape = model.config.shape
    weights = TextWeights(model.config, model.tensors, "cuda")
    many = TokenLaunches(shape, Layout(model.kernel.layout.program, replace(model.kernel.layout.schedule, slots=0)),
                         weights, on)  # fmt: skip
    prompt = model.tokenizer.encode(text.PROMPTS[0])
    right, found = (it.begin(prompt, len(prompt) + text.TOKENS).say(text.TOKENS) for it in (model.kernel, many))
    same = next(
        (number for number, pair in enumerate(zip(right, found, strict=True)) if pair[0] != pair[1]), text.TOKENS
    )
    yield {"what": "tokens of launches equal to those of one", "measured": same, "least": text.TOKENS}
    floor = frames.read_bytes(model.kernel.layout.program) / frames.read_bandwidth() * 1e3
    for position in text.POSITIONS:
        for count in text.AT_ONCE:
            for name, its in (("one launch", model), ("launches", replace(model, kernel=cast("TokenKernel", many)))):
                what = f"ms a token at {position} positions, {count} at once: {name}"
                yield text.timed(what, text.launches(its, position, count), floor)


def run(say: Callable[[str], None]) -> list[Row]:
    """Compare and time each size; returns rows with the name of the model."""
    rows: list[Row] = []
    with torch.inference_mode():
        for name, folder in released(say):
            tensors, on = load_file(folder / "model.safetensors", device="cuda"), device.get("cuda")
            one = frames.prepare(read_speech(folder), tensors, on)
            many = beside(one, on)
            for part in (parity, speed):
                for row in part(one, many):
                    rows.append({"model": name, **row})
                    say(f"{row}")
        if (folder := os.environ.get("SMOLLM2")) is not None:
            on = device.get("cuda")
            for row in tokens(text.prepare(Path(folder), on, "cuda"), on):
                rows.append({"model": "SmolLM2-135M", **row})
                say(f"{row}")
    return rows


failed = frames.failed

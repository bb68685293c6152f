"""100,000 frames while blocks are late at random: the kernel says what it says in time, and nobody waits in vain.

Each warp lets some time pass before each phase, up to 8,000 cycles in one of sixteen, so that every wait is met by the
late and by the early. Random weights at the size of the 0.6B; what is compared are the codes of all frames, and all
that blocks gave each other last.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, cast

import torch
from safetensors.torch import load_file

from benchmarks import frames
from benchmarks.frames_parity import DRAWN, PROMPT, SEED, Row, Speech, rows_of
from benchmarks.official import NAMES, released
from onekernel import device
from onekernel.jit import Kernel
from onekernel.megakernel.generate import kernel_request
from onekernel.speech.config import read_speech
from onekernel.speech.lm.frames import FrameKernel

FRAMES, OF_REQUEST, AT_ONCE, REQUESTS = 100_000, 1_000, 50, 4
LATE = """{
  const unsigned random = (clock_ticks() ^ blockIdx.x * 2654435761u ^ threadIdx.x / 32 * 40503u) * 2246822519u;
  if (random >> 28 == 0) let_pass(clock_ticks(), random >> 15 & 8191u);
}"""


def delayed(speech: Speech, on: Any) -> Speech:
    """Return the same kernel with delays, on the same weights."""
    request = kernel_request(speech.layout, on.arch)
    mark = "forget(mail.words);"
    body = tuple(replace(line, text=line.text.replace(mark, f"{mark} {LATE}")) for line in request.body)
    one = speech.kernel
    late = FrameKernel(Kernel(replace(request, body=body), on), speech.layout, one.shape, one.positions)
    late.operands, late.tables = one.operands, one.tables
    return replace(speech, kernel=cast("FrameKernel", late))


def spoken(speech: Speech, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Say a request, frames in launches of some; returns the codes, and what blocks gave each other last."""
    prompt, text = rows_of(speech, PROMPT, 1), rows_of(speech, 3, 2)
    request = speech.kernel.request(DRAWN, seed)
    launches = range(OF_REQUEST // AT_ONCE)
    said = [request.say(prompt if number == 0 else None, text, AT_ONCE) for number in launches]
    request.mailbox.check()
    return torch.cat(said), request.mailbox.words


def rows(in_time: Speech, late: Speech, say: Callable[[str], None]) -> Iterator[Row]:
    """Compare request by request; there are a few of them, again and again."""
    right = [spoken(in_time, SEED + number) for number in range(REQUESTS)]
    same, count = 0, FRAMES // OF_REQUEST
    for number in range(count):
        found = spoken(late, SEED + number % REQUESTS)
        same += OF_REQUEST if all(map(torch.equal, found, right[number % REQUESTS])) else 0
        if number % 10 == 9:
            say(f"{same} of {(number + 1) * OF_REQUEST} frames are the same")
    yield {"what": "frames equal while blocks are late", "measured": same, "least": FRAMES}


def run(say: Callable[[str], None]) -> list[Row]:
    """Compare; returns rows with the name of the model."""
    found, on = list[Row](), device.get("cuda")
    with torch.inference_mode():
        for name, folder in released(say, NAMES[:1]):
            tensors = load_file(folder / "model.safetensors", device="cuda")
            speech = frames.prepare(read_speech(folder), tensors, on)
            found += [{"model": name, **row} for row in rows(speech, delayed(speech, on), say)]
    return found


failed = frames.failed

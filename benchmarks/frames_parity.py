"""Are the frames of one launch those of the reference engine? Its weights are the same bfloat16, the rest is float32.

The kernel that is compared keeps keys and values in float32, too: rounded to bfloat16, they part any two computations.
Two float32 sums of different order, 1e-7 apart, part by 1e-3 of the largest logit within a layer or two, for a number
that is rounded up here and down there changes by 2^-8. What that rounding does is told, and has no limit.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from onekernel.megakernel.layout import Layout
from onekernel.speech.config import SpeechConfig
from onekernel.speech.lm.frames import FrameKernel, FrameRequest
from onekernel.speech.lm.model import LanguageModel, begin
from onekernel.speech.lm.philox import exponentials
from onekernel.speech.lm.sampling import Draw
from onekernel.speech.request import Sampling

SEED, PROMPT, FRAMES, REPEATS = 7, 10, 150, 1000  # frames enough to attend to near and to far positions
GREEDY, DRAWN = Sampling(do_sample=False, sub_do_sample=False), Sampling()
SURE = Sampling(temperature=1, top_k=0, sub_temperature=1, sub_top_k=0)  # to draw the likeliest is to be greedy
APART = 1e-4  # of the largest logit: products are right to 2^-18, and what is wrong grows from layer to layer
Row = dict[str, Any]
Frames = list[list[int]]


@dataclass(frozen=True)
class Speech:
    """A checkpoint's language model as the reference engine, and as one kernel."""

    config: SpeechConfig
    tensors: dict[str, Tensor]
    layout: Layout
    kernel: FrameKernel
    seconds: float  # to compile


def rows_of(speech: Speech, number: int, seed: int) -> Tensor:
    """Make rows of a prompt or of text, [number, hidden]."""
    like = speech.tensors["talker.codec_head.weight"]
    random = torch.Generator().manual_seed(seed)
    return torch.randn(number, speech.config.talker.decoder.hidden, generator=random).to(like.device)


@dataclass
class Watch:
    """Draws as the reference does, and remembers how sure it was, and the logits of the last code."""

    greedy: bool
    gaps: dict[tuple[int, int], float] = field(default_factory=dict)  # of logarithms, between the best and the next
    last: list[Tensor] = field(default_factory=list)  # by frame: log probabilities of the last code

    def __call__(self, probabilities: Tensor, frame: int, codebook: int) -> int:
        """Choose an entry of probabilities [vocab]."""
        race = probabilities
        if not self.greedy:
            race = probabilities / torch.from_numpy(exponentials(SEED, frame, codebook, len(race))).to(race.device)
        best, place = race.topk(2)
        self.gaps[frame, codebook] = float((best[0] / best[1]).log())
        if codebook == 15:
            self.last.append(probabilities.log())
        return int(place[0])


def parity(speech: Speech, frames: int = FRAMES, prompted: int = PROMPT) -> Iterator[Row]:
    """Compare all codes with those of the reference; and the kernel with itself, in one launch and frame by frame."""
    wide = LanguageModel(speech.config, {name: tensor.float() for name, tensor in speech.tensors.items()})
    prompt, text = rows_of(speech, prompted, 1), rows_of(speech, 3, 2)
    for name, asked, told in (("greedy", GREEDY, SURE), ("drawn", DRAWN, DRAWN)):
        watch = Watch(greedy=not asked.do_sample)
        right = list(reference(wide, told, watch, prompt, text, frames))
        found = speech.kernel.request(asked, SEED).say(prompt, text, len(right)).tolist()
        yield {"what": f"{name}: frames equal to the reference", **compared(found, right, watch)}
        request = speech.kernel.request(asked, SEED)
        apart, logits = one_by_one(request, prompt, text, len(right))
        same = sum(a == b for a, b in zip(apart, found, strict=True))
        yield {"what": f"{name}: frames equal in one launch and one by one", "measured": same, "least": len(right)}
        if asked is GREEDY:
            so_far = next(
                (i for i, pair in enumerate(zip(found, right, strict=True)) if pair[0] != pair[1]), len(right)
            )
            most = max(differences(logits[:so_far], watch.last))
            yield {"what": "logits of the last code apart, of the largest", "measured": most, "most": APART}


def repeats(speech: Speech, count: int = REPEATS) -> Iterator[Row]:
    """Say one request again and again: codes and last logits keep their bits."""
    prompt, text = rows_of(speech, PROMPT, 1), rows_of(speech, 3, 2)
    right: list[Tensor] = []
    same = torch.zeros((), dtype=torch.int32, device=prompt.device)
    for _ in range(count):
        request = speech.kernel.request(DRAWN, SEED)
        found = [request.say(prompt, text, 2), request.mailbox.exchange("sub_logits").view(torch.int32)]
        right = right or found
        same += torch.stack([(one == other).all() for one, other in zip(found, right, strict=True)]).all()
    yield {"what": "requests with the same codes and logits again", "measured": int(same), "least": count}


def rounding(exact: Speech, speech: Speech, frames: int = FRAMES) -> Iterator[Row]:
    """Tell what keys and values in bfloat16 change, until codes differ; and compare that kernel with itself."""
    prompt, text = rows_of(speech, PROMPT, 1), rows_of(speech, 3, 2)
    (codes, right), (rounded, found) = (
        one_by_one(it.kernel.request(GREEDY, SEED), prompt, text, frames) for it in (exact, speech)
    )
    equal, _ = first_difference(rounded, codes)
    yield {"what": "keys in bfloat16: frames equal to those of float32", "measured": equal}
    logs = [logits.log_softmax(-1) for logits in right]
    most = max(differences(found[: max(equal, 1)], logs))
    yield {"what": "keys in bfloat16: logits of the last code apart, of the largest", "measured": most}
    whole = speech.kernel.request(GREEDY, SEED).say(prompt, text, frames).tolist()
    same = sum(a == b for a, b in zip(rounded, whole, strict=True))
    yield {"what": "keys in bfloat16: frames equal in one launch and one by one", "measured": same, "least": frames}


def one_by_one(
    request: FrameRequest, prompt: Tensor, text: Tensor, frames: int
) -> tuple[list[list[int]], list[Tensor]]:
    """Say frames in a launch each; returns them, and of each the logits of its last code."""
    said, logits = list[list[int]](), list[Tensor]()
    for number in range(frames):
        said += request.say(prompt if number == 0 else None, text, 1).tolist()
        logits.append(request.mailbox.exchange("sub_logits"))
    return said, logits


def differences(logits: list[Tensor], right: list[Tensor]) -> Iterator[float]:
    """Yield how far logits are from log probabilities, of the largest logit, for each frame."""
    for found, expected in zip(logits, right, strict=False):
        yield float((found.log_softmax(-1) - expected).abs().max() / found.abs().max())


def first_difference(found: Frames, right: Frames) -> tuple[int, int]:
    """Return the frame and the code of the first difference, or the number of frames if there is none."""
    both = enumerate(zip(found, right, strict=True))
    places = ((i, j) for i, (ours, theirs) in both for j, code in enumerate(theirs) if ours[j] != code)
    return next(places, (len(right), 0))


def compared(found: Frames, right: Frames, watch: Watch) -> Row:
    """Count frames until the first difference, which may come where the reference was not sure."""
    first = first_difference(found, right)
    if first[0] == len(right):
        return {"measured": first[0], "least": first[0]}
    gap, largest = watch.gaps[first], float(watch.last[0].abs().max())
    return {"measured": first[0], "least": 0 if gap < 2 * APART * largest else len(right), "gap": gap}


def reference(
    model: LanguageModel, asked: Sampling, draw: Draw, prompt: Tensor, text: Tensor, frames: int
) -> Iterator[list[int]]:
    """Yield the frames that the reference engine says."""
    generation = begin(model, prompt, asked, draw, most_frames=frames)
    while (frame := generation.next_frame()) is not None:
        yield frame
        generation.advance(frame, text[min(generation.frames, len(text)) - 1])

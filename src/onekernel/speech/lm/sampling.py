"""From logits to a code: penalty, suppression, temperature, top-k, top-p, a draw; in float32, in the official order."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Protocol

import torch
from torch import Tensor

from onekernel.speech.lm.philox import exponentials


class Draw(Protocol):
    """Chooses an entry of a distribution [vocab] for a code of a frame."""

    def __call__(self, probabilities: Tensor, frame: int, codebook: int) -> int: ...


def by_counter(seed: int) -> Draw:
    """Draw by a counter-based generator (lm.philox): equal for equal seeds, whatever else is going on.

    The entry of the largest p / q, q exponential: its distribution is p (the exponential race, as torch.multinomial's).
    """

    def draw(probabilities: Tensor, frame: int, codebook: int) -> int:
        race = torch.from_numpy(exponentials(seed, frame, codebook, len(probabilities))).to(probabilities.device)
        return int(torch.argmax(probabilities / race))

    return draw


def by_generator(generator: torch.Generator | None = None) -> Draw:
    """Draw as the official package does, from torch's generator (None: the global one)."""

    def draw(probabilities: Tensor, frame: int, codebook: int) -> int:
        del frame, codebook
        return int(torch.multinomial(probabilities, 1, generator=generator))

    return draw


def suppress(scores: Tensor, allowed: int, end: int, *, end_allowed: bool) -> Tensor:
    """Leave the first `allowed` entries and the end of speech, and that only where it may come."""
    scores[allowed:end] = -torch.inf
    scores[end + 1 :] = -torch.inf
    if not end_allowed:
        scores[end] = -torch.inf
    return scores


def penalise(scores: Tensor, seen: Collection[int], penalty: float) -> Tensor:
    """Make every entry that was chosen before less likely, once (Keskar et al., CTRL, 2019)."""
    if seen and penalty != 1.0:
        places = torch.tensor(sorted(seen), device=scores.device)
        chosen = scores[places]
        scores[places] = torch.where(chosen < 0, chosen * penalty, chosen / penalty)
    return scores


def warp(scores: Tensor, temperature: float, top_k: int, top_p: float) -> Tensor:
    """Sharpen, and cut off what is unlikely: ties with the k-th stay."""
    scores = scores / temperature
    if 0 < top_k < len(scores):
        scores = scores.masked_fill(scores < torch.topk(scores, top_k)[0][-1], -torch.inf)
    if top_p < 1.0:
        ordered, places = torch.sort(scores)
        out = ordered.softmax(-1).cumsum(-1) <= 1 - top_p
        out[-1] = False
        scores = scores.masked_fill(torch.zeros_like(out).scatter(0, places, out), -torch.inf)
    return scores


def choose(scores: Tensor, draw: Callable[[Tensor], int] | None, temperature: float, top_k: int, top_p: float) -> int:
    """Choose an entry: the likeliest without a draw."""
    if draw is None:
        return int(torch.argmax(scores))
    return draw(warp(scores, temperature, top_k, top_p).softmax(-1))

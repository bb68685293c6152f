"""How much evidence is gathered, and what is asked besides the usual."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from onekernel.errors import InvalidInput


@dataclass(frozen=True)
class Plan:
    """What a verification does. Raises InvalidInput for a number out of range.

    fresh: makes one more call's inputs from a generator; None: values are drawn from those of the user's inputs.
    """

    rounds: int = 4  # comparisons on fresh inputs, besides the user's
    repeats: int = 1000  # runs on equal inputs, to see what is not the same every time; as many as fit in `seconds`
    seconds: float = 10.0  # for timing; 0 = do not time
    energy: float = 5.0  # seconds of each window in which energy is read; 0 = do not
    rate: float | None = None  # requests per second that arrive at random; None = closed loop only
    streams: tuple[int, ...] = ()  # how many callers at a time throughput is measured with
    expect: str = ""  # the part that is predicted to take less time
    distribution: bool = False  # the results are random: compare how they are distributed
    confidence: float = 0.999
    seed: int = 0
    fresh: Callable[[np.random.Generator], Any] | None = None

    def __post_init__(self) -> None:
        ranges = (
            ("rounds", self.rounds >= 0),
            ("repeats", self.repeats >= 0),
            ("seconds", self.seconds >= 0),
            ("energy", self.energy >= 0),
            ("rate", self.rate is None or self.rate > 0),
            ("streams", all(count > 0 for count in self.streams)),
            ("confidence", 0.5 <= self.confidence < 1),
        )
        for name, right in ranges:
            if not right:
                got, todo = f"{name} = {getattr(self, name)}", "correct it, or leave it out"
                expected = "counts, seconds and rates above 0, and a confidence from 0.5 to below 1"
                raise InvalidInput(expected=expected, got=got, todo=todo)

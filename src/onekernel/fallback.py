"""Several builds of one thing, the best first: which one fits the device, and why those before it do not.

It knows neither what is built nor where.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeVar

from onekernel.errors import DoesNotFit

log = logging.getLogger("onekernel")
Built = TypeVar("Built")


@dataclass(frozen=True)
class Refusal:
    """A build that was not taken. `reason`: what it expects of the device, and what it got."""

    name: str
    reason: str


def first_that_fits(builders: Mapping[str, Callable[[], Built]]) -> tuple[Built, tuple[Refusal, ...]]:
    """Return what the first builder makes that does not raise DoesNotFit, with the refusals of those before it.

    Each refusal is logged. Any other error is raised at once, and so is what the last builder raises.
    """
    refusals: list[Refusal] = []
    names = list(builders)
    for name, following in pairwise(names):
        try:
            return builders[name](), tuple(refusals)
        except DoesNotFit as error:
            refusals.append(Refusal(name, f"expected {error.expected}, got {error.got}"))
            log.info("%s instead of %s: %s", following, name, refusals[-1].reason)
    return builders[names[-1]](), tuple(refusals)

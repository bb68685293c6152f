"""Which engine says the tokens: the one that is named, or the best that fits the device."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Protocol

from torch import Tensor

from onekernel.device import Device
from onekernel.errors import DoesNotFit
from onekernel.fallback import Refusal, first_that_fits
from onekernel.megakernel.decoder import DecoderShape
from onekernel.text.config import TextConfig
from onekernel.text.launches import TokenLaunches
from onekernel.text.reference import Reference, TextDecoder
from onekernel.text.tokens import TokenKernel, layout_for
from onekernel.text.weights import TextWeights

ENGINES = ("auto", "reference", "launches", "megakernel")
KERNELS: dict[str, type[TokenKernel] | type[TokenLaunches]] = {"megakernel": TokenKernel, "launches": TokenLaunches}


class Request(Protocol):
    """A text on its way in an engine."""

    def say(self, most: int) -> list[int]:
        """Return the next tokens, from 1 to `most`."""


class Engine(Protocol):
    """What says tokens; it knows no end of a text."""

    name: str

    def begin(self, prompt: Sequence[int], positions: int) -> Request:
        """Begin behind a prompt, with room for `positions` tokens in all."""


def build_engine(
    engine: str, config: TextConfig, tensors: Mapping[str, Tensor], on: Device | None, place: str
) -> tuple[Engine, tuple[Refusal, ...]]:
    """Build an engine, of ENGINES; returns with it why "auto" did not take those before it.

    `on`: where kernels run, None for a CPU; `place`: where torch has its tensors. Raises DoesNotFit, which says what
    would fit, for an engine that is named and does not; CompileError.
    """
    builders: dict[str, Callable[[], Engine]] = {}
    if on is not None:
        weights = TextWeights(config, tensors, place)
        builders = {name: partial(_kernels, name, config.shape, weights, on) for name in KERNELS}
    builders["reference"] = lambda: Reference(TextDecoder(config, tensors, place))
    if engine == "auto":
        return first_that_fits(builders)
    try:
        return builders[engine](), ()
    except DoesNotFit as error:
        assert on is not None
        todo = f"use the engine {_instead(engine, config.shape, on)}"
        raise DoesNotFit(expected=error.expected, got=error.got, todo=todo) from error


def _kernels(name: str, shape: DecoderShape, weights: TextWeights, on: Device) -> Engine:
    return KERNELS[name](shape, layout_for(shape, on, launches=name == "launches"), weights, on)


def _instead(engine: str, shape: DecoderShape, on: Device) -> str:
    """Name the engine that fits where one does not; nothing is compiled to find out."""
    if engine == "launches":
        return "reference"
    try:
        layout_for(shape, on, launches=True)
    except DoesNotFit:
        return "reference"
    return "launches"

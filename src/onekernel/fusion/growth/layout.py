"""Knows how values lie in the memory of a chain, and which kind of operand a value is there.

The frame is the shape [.., hidden, ..] in which full operands and results are contiguous. A value has a
layout: its axis i is axis layout[i] of the frame. A transpose inside a chain changes the layout and moves no
data. It refuses to know nodes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from onekernel.fusion.chain import Kind
from onekernel.graph.model import Value

Layout = tuple[int, ...]


@dataclass(frozen=True)
class Frame:
    """The memory order of a chain: the shape and which axis is normalised."""

    shape: tuple[int, ...]
    axis: int

    @property
    def identity(self) -> Layout:
        """The layout of what is contiguous in the frame."""
        return tuple(range(len(self.shape)))

    def shape_in(self, layout: Layout) -> tuple[int, ...]:
        """Shape of a full value in some layout."""
        return tuple(self.shape[axis] for axis in layout)


def frames(shape: tuple[int, ...], axis: int) -> Iterator[tuple[Frame, Layout]]:
    """Every frame that differs from a value's own order by the place of its normalised axis, own order first.

    Yields the frame and the layout of the value in it.
    """
    rank = len(shape)
    for place in (axis, *(item for item in range(rank) if item != axis)):
        rest = [item for item in range(rank) if item != axis]
        order = [*rest[:place], axis, *rest[place:]]
        yield Frame(tuple(shape[item] for item in order), place), tuple(order.index(i) for i in range(rank))


def before_transpose(layout: Layout, perm: tuple[int, ...]) -> Layout:
    """Layout of a transpose's input, given that of its output."""
    return tuple(layout[perm.index(axis)] for axis in range(len(perm)))


def after_transpose(layout: Layout, perm: tuple[int, ...]) -> Layout:
    """Layout of a transpose's output, given that of its input."""
    return tuple(layout[axis] for axis in perm)


def kind_of(value: Value, frame: Frame, layout: Layout) -> Kind | None:
    """What a value is to an operator whose output has `layout`; None when no kind fits.

    Sizes of 1 are ambiguous on one sample. A computed value of the full rank is taken at its word (a mask
    of a sentence of one token is still a row); a constant is taken as the smallest kind that fits.
    """
    rank = len(layout)
    if len(value.shape) > rank:
        return None
    padded = (1,) * (rank - len(value.shape)) + value.shape
    across = tuple(1 if axis == frame.axis else size for axis, size in enumerate(frame.shape))
    channel = tuple(size if axis == frame.axis else 1 for axis, size in enumerate(frame.shape))
    fits: dict[Kind, bool] = {
        "full": len(value.shape) == rank and padded == frame.shape_in(layout),
        "row": len(value.shape) == rank
        and padded == tuple(across[axis] for axis in layout)
        and _keeps_order(layout, frame),
        "scalar": all(size == 1 for size in padded),
        "channel": padded == tuple(channel[axis] for axis in layout),
    }
    order: tuple[Kind, ...] = ("scalar", "channel", "row", "full")
    if value.constant is None:
        order = ("full", "row", "scalar", "channel")
    return next((kind for kind in order if fits[kind]), None)


def _keeps_order(layout: Layout, frame: Frame) -> bool:
    """Whether the axes other than the normalised one lie in the frame's order."""
    rest = [axis for axis in layout if axis != frame.axis]
    return rest == sorted(rest)

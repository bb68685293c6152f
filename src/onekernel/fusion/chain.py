"""A chain: the part of a graph that becomes one launch, in terms that a schedule can place.

Every full operand and result has one shape, [outer, hidden, inner] in row-major order, where `hidden` is the
normalised axis: the last axis is inner = 1 ("rows"), any other is inner > 1 ("columns"). `outer` and `inner`
may differ from call to call; `hidden` is a constant of the chain.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Kind = Literal["full", "channel", "row", "scalar"]


@dataclass(frozen=True)
class Operand:
    """An input of the chain.

    kind: full = [outer, hidden, inner]; channel = [hidden]; row = [outer, 1, inner]; scalar = one element
    that is only known at run time (a constant scalar is a literal of the steps, not an operand).
    """

    name: str  # value of the original model
    kind: Kind
    dtype: str
    shape: tuple[int, ...] | None = field(default=None, compare=False)  # on the sample, where it is known


@dataclass(frozen=True)
class Result:
    """An output of the chain: always full. `value` is the step output that is stored there."""

    name: str  # value of the original model
    value: str
    dtype: str


@dataclass(frozen=True)
class Step:
    """One elementwise operator of `ops.ELEMENTWISE`; inputs are operand names, step outputs or floats."""

    op: str
    inputs: tuple[str | float, ...]
    output: str
    source: tuple[str, ...]  # nodes of the original model


@dataclass(frozen=True)
class Chain:
    """prologue steps -> standardize(`normal_input`) = `normal_output` -> epilogue steps.

    `standardize` is (x - mean) / sqrt(var + epsilon) over `axis`. A full operand read by both halves is read
    twice. `source` names every node of the original model that the chain replaces.
    """

    name: str
    axis: int  # of the full operands, non-negative
    rank: int  # of the full operands
    hidden: int
    epsilon: float
    operands: tuple[Operand, ...]
    results: tuple[Result, ...]
    prologue: tuple[Step, ...]
    normal_input: str
    normal_output: str
    normal_source: tuple[str, ...]
    epilogue: tuple[Step, ...]
    source: tuple[str, ...]
    sample_shape: tuple[int, ...]  # of the full operands, for cost and warm-up

    @property
    def layout(self) -> Literal["rows", "columns"]:
        """rows when the normalised axis is the contiguous one."""
        return "rows" if self.axis == self.rank - 1 else "columns"

    def operand(self, kind: Kind) -> Operand:
        """The first operand of a kind."""
        return next(item for item in self.operands if item.kind == kind)

    @property
    def launches_before(self) -> int:
        """Kernels that the chain replaces: one for each node of the original model."""
        return len(self.source)


@dataclass(frozen=True)
class Left:
    """A candidate that was not fused and why, in words a user can act on."""

    source: tuple[str, ...]
    reason: str


@dataclass(frozen=True)
class Search:
    """What a search over a graph found."""

    chains: tuple[Chain, ...]
    left: tuple[Left, ...]

"""A decoder as a program: a nest of phases. All blocks of a GPU run it in step, each on its share of every phase.

Between phases blocks give each other vectors through exchanges. What is in no exchange, every block has for itself: the
residual stream, the position, the token. The text of a program grows with the kinds of its phases, never with layers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Exchange:
    """A vector of floats that all blocks give to each other; a width of 0 depends on the schedule."""

    name: str
    width: int


@dataclass(frozen=True)
class Matrix:
    """Weights [rows, columns], one for each iteration of the loops that `per` names."""

    name: str
    rows: int
    columns: int
    per: tuple[str, ...] = ()


@dataclass(frozen=True)
class Vector:
    """Weights [width] of a norm, one for each iteration of the loops that `per` names."""

    name: str
    width: int
    per: tuple[str, ...] = ()


@dataclass(frozen=True)
class Heads:
    """The heads of an attention; `normed`: queries and keys have a norm of their own, with weights."""

    heads: int
    kv_heads: int
    head_dim: int
    normed: bool = False


@dataclass(frozen=True)
class Plain:
    """Multiply a vector as other blocks made it."""

    exchange: str


@dataclass(frozen=True)
class Merged:
    """Multiply the result of an attention, merged of its parts."""

    exchange: str


@dataclass(frozen=True)
class Normed:
    """Add to the residual stream what it is owed, then multiply it under an RMSNorm."""

    weight: Vector
    owed: str
    epsilon: float


@dataclass(frozen=True)
class Embed:
    """Begin the residual stream with the row of the token."""

    rows: int
    width: int


@dataclass(frozen=True)
class Project:
    """Multiply by a matrix. `finish`: "publish" its rows, "gate" pairs of them by SwiGLU, or "consider" them as tokens.

    `owe`: what is published is owed to the residual stream.
    """

    matrix: Matrix
    source: Plain | Merged | Normed
    finish: str
    into: str = ""
    owe: bool = False


@dataclass(frozen=True)
class Attend:
    """Attend to all positions: queries, key and value come by one exchange, parts of the result go into another."""

    heads: Heads
    queries: str
    into: str
    norms: tuple[Vector, Vector] | None
    epsilon: float


@dataclass(frozen=True)
class Choose:
    """Let the best candidate of all blocks be the next token."""

    exchange: str


Phase = Embed | Project | Attend | Choose


@dataclass(frozen=True)
class Repeat:
    """Run a body `count` times; the count may be a name, which is then known at the launch."""

    count: int | str
    index: str
    body: tuple[Phase | Repeat, ...]


@dataclass(frozen=True)
class Program:
    """The whole: its exchanges, its nest, and the width of its residual stream."""

    name: str
    width: int
    exchanges: tuple[Exchange, ...]
    body: tuple[Phase | Repeat, ...]

    def exchange(self, name: str) -> Exchange:
        """Return an exchange by its name."""
        return next(exchange for exchange in self.exchanges if exchange.name == name)

    def phases(self) -> Iterator[tuple[Phase, tuple[Repeat, ...]]]:
        """Yield every phase once, with the loops around it, the outermost first."""
        yield from _walk(self.body, ())


def _walk(body: tuple[Phase | Repeat, ...], loops: tuple[Repeat, ...]) -> Iterator[tuple[Phase, tuple[Repeat, ...]]]:
    for item in body:
        if isinstance(item, Repeat):
            yield from _walk(item.body, (*loops, item))
        else:
            yield item, loops

"""A decoder as a program: a nest of phases. All blocks of a GPU run it in step, each on its share of every phase.

Between phases blocks give each other vectors through exchanges. What is in no exchange, every block has for itself: the
residual streams, the position, the codes. The text of a program grows with the kinds of its phases, never with layers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Exchange:
    """A vector of floats that blocks give to each other; a width of 0 depends on the schedule."""

    name: str
    width: int


@dataclass(frozen=True)
class Matrix:
    """Weights [rows, columns], one for each iteration of the loops that `per` names.

    `kind`: of a weight, "bfloat16" or "float16".
    """

    name: str
    rows: int
    columns: int
    per: tuple[str, ...] = ()
    kind: str = "bfloat16"


@dataclass(frozen=True)
class Vector:
    """Weights [width] of a norm, one for each iteration of the loops that `per` names."""

    name: str
    width: int
    per: tuple[str, ...] = ()


@dataclass(frozen=True)
class Heads:
    """The heads of an attention; `normed`: queries and keys have a norm of their own, with weights.

    `kept`: how keys and values are kept, "bfloat16" or "float32".
    """

    heads: int
    kv_heads: int
    head_dim: int
    normed: bool = False
    kept: str = "bfloat16"


@dataclass(frozen=True)
class Plain:
    """Multiply a vector as other blocks made it."""

    exchange: str


@dataclass(frozen=True)
class Normed:
    """Add to a residual stream what it is owed by an exchange, then multiply it under an RMSNorm."""

    stream: str
    weight: Vector
    owed: str
    epsilon: float


@dataclass(frozen=True)
class TokenRow:
    """The row of the token: of the prompt, or chosen last."""

    rows: int


@dataclass(frozen=True)
class FrameSum:
    """A row of the prompt; behind it, the rows of all codes of the last frame, and a row of text."""

    rows: tuple[int, ...]  # of the table of each code


@dataclass(frozen=True)
class CodeRow:
    """The row of the code drawn last, of the table of its place."""

    rows: tuple[int, ...]


@dataclass(frozen=True)
class Given:
    """What an exchange holds."""

    exchange: str


@dataclass(frozen=True)
class Begin:
    """Begin a residual stream; from `Normed`: with another one under its norm. What `owed` still owes it is dropped.

    `vector`: 1 begins the second vector of the stream, that of the position before.
    """

    stream: str
    source: TokenRow | FrameSum | CodeRow | Given | Normed
    owed: str
    vector: int = 0


@dataclass(frozen=True)
class Project:
    """Multiply by a matrix. `finish`: "publish" its rows, "gate" pairs of them by SwiGLU, or "consider" them as tokens.

    `owe`: the residual stream to which what is published is owed. `bias`: added to what is published. `vectors`: so
    many go through one reading of the matrix, each that of the position before the last one. `silent`: where all these
    conditions hold nobody needs the result, which a stream is owed.
    """

    matrix: Matrix
    source: Plain | Normed
    finish: str
    into: str = ""
    owe: str = ""
    bias: Vector | None = None
    vectors: int = 1
    silent: tuple[str, ...] = ()


@dataclass(frozen=True)
class Attend:
    """Attend to all positions: queries, key and value come by one exchange, the result goes into another.

    `layer`: the loop over the layers of a cache. `position`: the loop over positions, which are few, of which a cache
    begins anew with each of the loop's runs; "" is that of the launch, whose cache goes on. That one is shared out over
    blocks, and the result comes in parts, for `Merge`; or, if it is known that there are at most `near` positions, each
    block looks at all of them. `vectors`: as in `Project`.
    """

    heads: Heads
    queries: str
    into: str
    norms: tuple[Vector, Vector] | None
    epsilon: float
    layer: str = "layer"
    position: str = ""
    near: int = 0
    vectors: int = 1

    @property
    def parted(self) -> bool:
        """Whether the result comes in parts."""
        return not (self.position or self.near)


@dataclass(frozen=True)
class Merge:
    """Merge the parts of an attention's result."""

    heads: Heads
    parts: str
    into: str


@dataclass(frozen=True)
class Choose:
    """Let the best candidate of all blocks be the next token."""

    exchange: str


@dataclass(frozen=True)
class Sample:
    """Draw the code of a place from logits. The first has rules: entries that are codes, one that ends, a penalty."""

    exchange: str
    vocab: int
    place: str = ""  # the loop that counts places; "" is the first place
    codes: int = 0
    end: int = 0


Phase = Begin | Project | Attend | Merge | Choose | Sample


@dataclass(frozen=True)
class Repeat:
    """Run a body `count` times; the count may be a name, which is then known at the launch."""

    count: int | str
    index: str
    body: tuple[Phase | Repeat | When, ...]


@dataclass(frozen=True)
class When:
    """Run a body where a condition holds for all blocks: "speaks", behind the prompt, or "NAME > 0" of a loop.

    "position" is the name of the position of a step.
    """

    condition: str
    body: tuple[Phase | Repeat | When, ...]


Item = Phase | Repeat | When


@dataclass(frozen=True)
class Program:
    """The whole: its residual streams and their widths, its exchanges, its nest."""

    name: str
    streams: tuple[tuple[str, int], ...]
    exchanges: tuple[Exchange, ...]
    body: tuple[Item, ...]

    def exchange(self, name: str) -> Exchange:
        """Return an exchange by its name."""
        return next(exchange for exchange in self.exchanges if exchange.name == name)

    def width(self, stream: str) -> int:
        """Return the width of a residual stream."""
        return dict(self.streams)[stream]

    def vectors(self, name: str) -> int:
        """Return how many vectors a stream has, or an exchange: the most that a phase brings to it."""
        phases = [phase for phase, _ in self.phases() if isinstance(phase, Project | Attend)]
        return max((it.vectors for it in phases if name in (it.into, getattr(it, "owe", ""))), default=1)

    @property
    def attends(self) -> tuple[Attend, ...]:
        """Return the attentions, of those that share memory the one of the most vectors."""
        every = [phase for phase, _ in self.phases() if isinstance(phase, Attend)]
        by_vectors = sorted(every, key=lambda attend: attend.vectors)
        return tuple({(attend.layer, attend.near): attend for attend in by_vectors}.values())

    def phases(self) -> Iterator[tuple[Phase, tuple[Repeat, ...]]]:
        """Yield every phase once, with the loops around it, the outermost first."""
        yield from _walk(self.body, ())


def has_weights(item: Item) -> bool:
    """Say whether a phase, or any phase in a nest, multiplies by a matrix."""
    return any(map(has_weights, item.body)) if isinstance(item, Repeat | When) else isinstance(item, Project)


def _walk(body: tuple[Item, ...], loops: tuple[Repeat, ...]) -> Iterator[tuple[Phase, tuple[Repeat, ...]]]:
    for item in body:
        if isinstance(item, Repeat):
            yield from _walk(item.body, (*loops, item))
        elif isinstance(item, When):
            yield from _walk(item.body, loops)
        else:
            yield item, loops

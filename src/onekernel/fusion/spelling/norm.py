"""Knows the one pattern of a normalisation, and says why a candidate is not one.

    mean = reduce_mean(x);  centred = sub(x, mean);  variance = reduce_mean(square(centred))
    out = mul(centred, rsqrt(add(variance, epsilon)))

Casts and transposes that move nothing may stand anywhere between. It refuses to know other spellings: those
are the business of the rules.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from onekernel.graph.draft import Draft
from onekernel.graph.model import Node


@dataclass(frozen=True)
class Norm:
    """A match: standardize(x) over one axis; `nodes` are what it consists of, readers first."""

    x: str
    axis: int
    epsilon: float
    nodes: tuple[Node, ...]


@dataclass
class Trail:
    """Walks from a value to its producer, through nodes that change nothing, and keeps what it met."""

    draft: Draft
    nodes: dict[str, Node] = field(default_factory=dict)

    def up(self, name: str, *ops: str) -> Node | None:
        """The producer of a value if it is one of `ops`; what was met on the way is kept on success."""
        met: dict[str, Node] = {}
        while (node := self.draft.producer(name)) is not None:
            met[node.outputs[0]] = node
            if node.op in ops:
                self.nodes |= met
                return node
            if not is_same(node):
                return None
            name = node.inputs[0]
        return None

    def across(self, name: str, stop: str) -> None:
        """Keep the nodes that change nothing between a value and `stop`, if they lead there."""
        met: dict[str, Node] = {}
        while name != stop and (node := self.draft.producer(name)) is not None and is_same(node):
            met[name] = node
            name = node.inputs[0]
        if name == stop:
            self.nodes |= met


def is_same(node: Node) -> bool:
    """Whether a node gives back its input: a cast, or a transpose that moves no axis."""
    perm = node.attributes.get("perm", ())
    return node.op == "cast" or (node.op == "transpose" and tuple(perm) == tuple(range(len(perm))))


def origin(draft: Draft, name: str) -> str:
    """The value behind casts and transposes that move nothing."""
    while (node := draft.producer(name)) is not None and is_same(node):
        name = node.inputs[0]
    return name


def equal(draft: Draft, one: str, other: str, known: dict[tuple[str, str], bool] | None = None) -> bool:
    """Whether two values are the same computation, written once or twice; `known` are pairs already compared."""
    one, other = origin(draft, one), origin(draft, other)
    known = {} if known is None else known
    if one == other or (one, other) in known:
        return known.get((one, other), True)
    a, b = draft.producer(one), draft.producer(other)
    known[one, other] = (
        a is not None
        and b is not None
        and a.op == b.op
        and a.op in ("sub", "reduce_mean", "square")
        and dict(a.attributes) == dict(b.attributes)
        and all(equal(draft, left, right, known) for left, right in zip(a.inputs, b.inputs, strict=True))
    )
    return known[one, other]


def is_centred(draft: Draft, name: str) -> bool:
    """Whether a value is some x minus a mean of that x."""
    node = draft.made_by(origin(draft, name), "sub")
    mean = node and draft.made_by(origin(draft, node.inputs[1]), "reduce_mean")
    return node is not None and mean is not None and equal(draft, mean.inputs[0], node.inputs[0])


def match(draft: Draft, product: Node) -> Norm | str | None:
    """Match the pattern at its last node: a Norm, the reason why not, or None where nothing hints at one."""
    for centred, root in (product.inputs, product.inputs[::-1]):
        trail = Trail(draft)
        node = trail.up(root, "rsqrt")
        if node is not None and variance_below(trail, node.inputs[0]) is not None:
            return _match(trail, product, centred, node)
    return None


def _match(trail: Trail, product: Node, centred: str, root: Node) -> Norm | str:
    variance = variance_below(trail, root.inputs[0])
    epsilon = _epsilon(trail, root.inputs[0])
    if isinstance(epsilon, str):
        return epsilon
    if variance is None or len(variance.attributes["axes"]) != 1:
        return "it normalises over several axes at once"
    square = trail.up(variance.inputs[0], "square")
    minus = trail.up(centred, "sub")
    if square is None or minus is None:
        return "no mean is subtracted (a root-mean-square normalisation)"
    if (twin := trail.up(square.inputs[0], "sub")) is not None:
        trail.up(twin.inputs[1], "reduce_mean")
    if not equal(trail.draft, square.inputs[0], centred):
        return "the variance is not that of the value it scales"
    values = trail.draft.values
    if values[product.outputs[0]].shape != values[minus.inputs[0]].shape:
        return "its result has more axes than its input"
    reason = _mean_fault(trail, minus, variance) or _used_elsewhere(trail, product)
    if reason:
        return reason
    axis = int(variance.attributes["axes"][0])
    nodes = tuple(trail.nodes.values())
    return Norm(minus.inputs[0], axis, epsilon, nodes)


def variance_below(trail: Trail, name: str) -> Node | None:
    """The mean of a square below an addition or a maximum, if there is one."""
    mean = trail.up(name, "reduce_mean")
    if mean is not None:
        return mean if trail.up(mean.inputs[0], "square") else None
    below = trail.up(name, "add", "maximum")
    found = (variance_below(trail, item) for item in (below.inputs if below else ()))
    return next((item for item in found if item is not None), None)


def _epsilon(trail: Trail, name: str) -> float | str:
    """The constant that is added to the variance, or why it is not usable."""
    node = trail.draft.producer(origin(trail.draft, name))
    if node is None or node.op == "reduce_mean":
        return 0.0
    numbers = [number for item in node.inputs if (number := trail.draft.scalar(item)) is not None]
    if node.op == "maximum":
        return "epsilon is a floor under the variance, not added to it"
    if not numbers:
        return "epsilon is not a constant"
    return numbers[0] if numbers[0] >= 0 else f"epsilon is negative ({numbers[0]:g})"


def _mean_fault(trail: Trail, minus: Node, variance: Node) -> str:
    """Why the subtracted value is not the mean that belongs to this variance; "" when it is."""
    mean = trail.up(minus.inputs[1], "reduce_mean")
    if mean is None or not equal(trail.draft, mean.inputs[0], minus.inputs[0]):
        return "the subtracted value is not the mean of the same input"
    trail.across(mean.inputs[0], minus.inputs[0])
    ours, theirs = mean.attributes["axes"], variance.attributes["axes"]
    if ours != theirs:
        return f"the mean is over axes {list(ours)}, the variance over axes {list(theirs)}"
    if mean.attributes["keepdims"] and variance.attributes["keepdims"]:
        return ""
    return "a reduced axis is dropped and not put back"


def _used_elsewhere(trail: Trail, product: Node) -> str:
    """Which intermediate somebody else reads; "" when nobody does."""
    inside = {node.outputs[0] for node in trail.nodes.values()} | {product.outputs[0]}
    for name, node in trail.nodes.items():
        if trail.draft.is_output(name):
            return f"{_WORDS.get(node.op, node.op)} {name!r} is an output of the model"
        for user in trail.draft.users(name):
            if user.outputs[0] not in inside:
                who = user.source[0] if user.source else user.op
                return f"{_WORDS.get(node.op, node.op)} {name!r} is also used by {who!r}"
    return ""


_WORDS = {
    "reduce_mean": "the mean",
    "sub": "the centred value",
    "square": "the square",
    "add": "the variance",
}

"""A program run with arrays, phase by phase, as one block that has everything: the oracle of the kernel."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onekernel.megakernel.program import Attend, Choose, Embed, Normed, Phase, Program, Project, Repeat, Vector

Array = NDArray[np.float64]
Weights = Callable[[str, tuple[int, ...]], Array]  # a matrix or vector by its name and iteration


@dataclass
class State:
    """What blocks know: the residual stream, what was exchanged last, keys and values, and what was said."""

    prompt: list[int]
    first: int = 0
    residual: Array = field(default_factory=lambda: np.zeros(0))
    exchanges: dict[str, Array] = field(default_factory=dict)
    cache: dict[tuple[int, int], tuple[Array, Array]] = field(default_factory=dict)  # by layer and position
    candidates: Array = field(default_factory=lambda: np.zeros(0))
    said: list[int] = field(default_factory=list)


class Interpreter:
    """Runs a program on weights, with rotation[position] = cos, then sin, of half a head.

    `keep` rounds keys and values as the cache does. `seen` is called with each phase and the state behind it.
    """

    def __init__(
        self,
        program: Program,
        weights: Weights,
        rotation: Array,
        *,
        keep: Callable[[Array], Array] = lambda array: array,
        seen: Callable[[Phase, dict[str, int], State], None] | None = None,
    ) -> None:
        self.program, self.weights, self.rotation, self.keep, self.seen = program, weights, rotation, keep, seen

    def run(self, state: State, steps: int) -> State:
        """Run so many steps."""
        for phase, at in _unrolled(self.program.body, {}, {"steps": steps}):
            self._phase(phase, at, state)
            if self.seen is not None:
                self.seen(phase, at, state)
        return state

    def _phase(self, phase: Phase, at: dict[str, int], state: State) -> None:
        if isinstance(phase, Embed):
            said = state.said[-1] if at["step"] >= len(state.prompt) else state.prompt[at["step"]]
            state.residual = self.weights("table", ())[said].copy()
        elif isinstance(phase, Project):
            self._project(phase, at, state)
        elif isinstance(phase, Attend):
            self._attend(phase, at, state)
        elif isinstance(phase, Choose):
            state.said.append(int(np.argmax(state.candidates)))

    def _project(self, phase: Project, at: dict[str, int], state: State) -> None:
        if isinstance(phase.source, Normed):
            state.residual = state.residual + state.exchanges.pop(phase.source.owed, 0.0)
            x = norm(state.residual, self._vector(phase.source.weight, at), phase.source.epsilon)
        else:
            x = state.exchanges[phase.source.exchange]
        y = self.weights(phase.matrix.name, tuple(at[name] for name in phase.matrix.per)) @ x
        if phase.finish == "consider":
            state.candidates = y
        elif phase.finish == "gate":
            state.exchanges[phase.into] = y[0::2] / (1 + np.exp(-y[0::2])) * y[1::2]
        else:
            state.exchanges[phase.into] = y

    def _attend(self, phase: Attend, at: dict[str, int], state: State) -> None:
        h, position, layer = phase.heads, state.first + at["step"], at["layer"]
        heads = state.exchanges[phase.queries].reshape(-1, h.head_dim)
        query, key, value = np.split(heads, [h.heads, h.heads + h.kv_heads])
        if phase.norms:
            query, key = (
                norm(x, self._vector(weight, at), phase.epsilon)
                for x, weight in zip((query, key), phase.norms, strict=True)
            )
        query, key = (rotate(x, self.rotation[position]) for x in (query, key))
        state.cache[layer, position] = self.keep(key), self.keep(value)
        keys, values = (np.stack([state.cache[layer, p][part] for p in range(position + 1)]) for part in (0, 1))
        grouped = query.reshape(h.kv_heads, -1, h.head_dim)
        scores = np.einsum("ghd,pgd->ghp", grouped, keys) * h.head_dim**-0.5
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        state.exchanges[phase.into] = np.einsum("ghp,pgd->ghd", weights, values).ravel()

    def _vector(self, vector: Vector, at: dict[str, int]) -> Array:
        return self.weights(vector.name, tuple(at[name] for name in vector.per))


def norm(x: Array, weight: Array, epsilon: float) -> Array:
    """Divide by the root of the mean square of the last axis, times a weight (Zhang 2019, arXiv:1910.07467)."""
    normed: Array = x / np.sqrt(np.square(x).mean(-1, keepdims=True) + epsilon) * weight
    return normed


def rotate(x: Array, rotation: Array) -> Array:
    """Rotate pairs (i, i + half) of the last axis (Su 2021, arXiv:2104.09864)."""
    cos, sin = np.split(rotation, 2)
    one, two = np.split(x, 2, axis=-1)
    return np.concatenate([one * cos - two * sin, two * cos + one * sin], -1)


def rotations(positions: int, head_dim: int, theta: float) -> Any:
    """Return cos, then sin, of half a head for each position, float32 [positions, head_dim]; angles as in torch."""
    powers = (np.arange(0, head_dim, 2, dtype=np.float32) / np.float32(head_dim)).astype(np.float32)
    angles = np.arange(positions, dtype=np.float32)[:, None] * (np.float32(1) / np.float32(theta) ** powers)
    wide = angles.astype(np.float64)
    return np.concatenate([np.cos(wide), np.sin(wide)], 1).astype(np.float32)


def _unrolled(
    body: tuple[Phase | Repeat, ...], at: dict[str, int], counts: dict[str, int]
) -> Iterator[tuple[Phase, dict[str, int]]]:
    """Yield every phase as often as it runs, with the numbers of the iterations around it."""
    for item in body:
        if isinstance(item, Repeat):
            count = item.count if isinstance(item.count, int) else counts[item.count]
            for number in range(count):
                yield from _unrolled(item.body, {**at, item.index: number}, counts)
        else:
            yield item, at

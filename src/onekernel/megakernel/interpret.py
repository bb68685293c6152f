"""A program run with arrays, phase by phase, as one block that has everything: the oracle of the kernel."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onekernel.megakernel.program import (
    Attend,
    Begin,
    Choose,
    CodeRow,
    FrameSum,
    Given,
    Merge,
    Normed,
    Phase,
    Plain,
    Program,
    Project,
    TokenRow,
    Vector,
)
from onekernel.megakernel.unroll import condition_holds, counted, unrolled

Array = NDArray[np.float64]
Weights = Callable[[str, tuple[int, ...]], Array]  # a matrix or vector by its name and iteration


@dataclass
class State:
    """What blocks know: the residual streams, what was exchanged last, keys and values, and what was said.

    `prompt` holds tokens, or for speech rows; `text` the rows that go with later frames, the last again and again.
    """

    prompt: list[Any]
    first: int = 0
    text: list[Array] = field(default_factory=list)
    streams: dict[str, Array] = field(default_factory=dict)
    exchanges: dict[str, Array] = field(default_factory=dict)
    cache: dict[tuple[str, int, int], tuple[Array, Array]] = field(default_factory=dict)  # by loop, layer, position
    candidates: Array = field(default_factory=lambda: np.zeros(0))
    codes: list[int] = field(default_factory=list)  # of the frame that is on, or of the last one
    frames: list[list[int]] = field(default_factory=list)
    said: list[int] = field(default_factory=list)


_BEFORE = "'"  # behind the name of a stream or an exchange: its second vector, of the position before

Choice = Callable[[Array, int, int, list[int]], int]  # of logits, for a frame and place, after the first codes said


class Interpreter:
    """Runs a program on weights, with rotation[position] = cos, then sin, of half a head.

    `keep` rounds keys and values as the cache does, `choose` draws codes. `seen` is called with each phase and the
    state behind it.
    """

    def __init__(
        self,
        program: Program,
        weights: Weights,
        rotation: Array,
        *,
        keep: Callable[[Array], Array] = lambda array: array,
        choose: Choice = lambda logits, *_: int(np.argmax(logits)),
        seen: Callable[[Phase, dict[str, int], State], None] | None = None,
    ) -> None:
        self.program, self.weights, self.rotation = program, weights, rotation
        self.keep, self.choose, self.seen = keep, choose, seen

    def run(self, state: State, steps: int) -> State:
        """Run so many steps."""
        turns = partial(counted, steps=steps, first=state.first)
        spoken = len(state.prompt) - 1  # the first step that speaks
        holds = lambda condition, at: condition_holds(condition, at, speaks=at["step"] >= spoken)  # noqa: E731
        for phase, at in unrolled(self.program.body, turns, holds):
            self._phase(phase, at, state)
            if self.seen is not None:
                self.seen(phase, at, state)
        return state

    def _phase(self, phase: Phase, at: dict[str, int], state: State) -> None:
        vectors = phase.vectors if isinstance(phase, Project | Attend) else 1
        both = [_BEFORE * number for number in reversed(range(vectors))]
        if isinstance(phase, Begin):
            state.exchanges.pop(phase.owed + _BEFORE * phase.vector, None)
            state.streams[phase.stream + _BEFORE * phase.vector] = self._begin(phase, at, state)
        elif isinstance(phase, Project):
            for vector in both:
                self._project(phase, vector, at, state)
        elif isinstance(phase, Attend):
            for vector in both:
                self._attend(phase, vector, at, state)
        elif isinstance(phase, Merge):
            state.exchanges[phase.into] = state.exchanges.pop(phase.parts)
        elif isinstance(phase, Choose):
            state.said.append(int(np.argmax(state.candidates)))
        else:
            place = at[phase.place] if phase.place else 0
            if place == 0:
                state.codes = []
                state.frames.append(state.codes)
            before = [frame[0] for frame in state.frames[:-1]]
            state.codes.append(self.choose(state.exchanges[phase.exchange], len(state.frames) - 1, place, before))

    def _begin(self, phase: Begin, at: dict[str, int], state: State) -> Array:
        source = phase.source
        if isinstance(source, TokenRow):
            said = state.said[-1] if at["step"] >= len(state.prompt) else state.prompt[at["step"]]
            row: Array = self.weights("table", ())[said]
            return row
        if isinstance(source, FrameSum):
            if at["step"] < len(state.prompt):
                return np.asarray(state.prompt[at["step"]], np.float64)
            rows = [self.weights("code_table", (place,))[code] for place, code in enumerate(state.codes)]
            total: Array = np.sum(rows, axis=0) + state.text[min(len(state.frames), len(state.text)) - 1]
            return total
        if isinstance(source, CodeRow):
            place = len(state.codes) - 1
            code_row: Array = self.weights("sub_table", (place,))[state.codes[-1]]
            return code_row
        if isinstance(source, Given):
            return state.exchanges.pop(source.exchange)
        return self._source(source, "", at, state)

    def _source(self, source: Plain | Normed, vector: str, at: dict[str, int], state: State) -> Array:
        if not isinstance(source, Normed):
            return state.exchanges[source.exchange + vector]
        stream = source.stream + vector
        state.streams[stream] = state.streams[stream] + state.exchanges.pop(source.owed + vector, 0.0)
        return norm(state.streams[stream], self._vector(source.weight, at), source.epsilon)

    def _project(self, phase: Project, vector: str, at: dict[str, int], state: State) -> None:
        x = self._source(phase.source, vector, at, state)
        y = self.weights(phase.matrix.name, tuple(at[name] for name in phase.matrix.per)) @ x
        if phase.bias is not None:
            y = y + self._vector(phase.bias, at)
        if phase.finish == "consider":
            state.candidates = y
        elif phase.finish == "gate":
            state.exchanges[phase.into + vector] = y[0::2] / (1 + np.exp(-y[0::2])) * y[1::2]
        else:
            state.exchanges[phase.into + vector] = y

    def _attend(self, phase: Attend, vector: str, at: dict[str, int], state: State) -> None:
        h, layer = phase.heads, at[phase.layer]
        position = at[phase.position or "position"] - len(vector)
        heads = state.exchanges[phase.queries + vector].reshape(-1, h.head_dim)
        query, key, value = np.split(heads, [h.heads, h.heads + h.kv_heads])
        if phase.norms:
            query, key = (
                norm(x, self._vector(weight, at), phase.epsilon)
                for x, weight in zip((query, key), phase.norms, strict=True)
            )
        query, key = (rotate(x, self.rotation[position]) for x in (query, key))
        state.cache[phase.layer, layer, position] = self.keep(key), self.keep(value)
        pairs = [state.cache[phase.layer, layer, p] for p in range(position + 1)]
        keys, values = (np.stack([pair[part] for pair in pairs]) for part in (0, 1))
        grouped = query.reshape(h.kv_heads, -1, h.head_dim)
        scores = np.einsum("ghd,pgd->ghp", grouped, keys) * h.head_dim**-0.5
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        state.exchanges[phase.into + vector] = np.einsum("ghp,pgd->ghd", weights, values).ravel()

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

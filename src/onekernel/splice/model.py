"""A model whose chains run as single kernels: called like a function, asked what it is, saved.

It knows the steps of the loop and the chains behind them; how a session or a kernel runs is the business of
the steps.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from onekernel.errors import InvalidInput
from onekernel.fusion.chain import Chain
from onekernel.fusion.kernel import Build
from onekernel.jit.warmup import Progress
from onekernel.splice.engine import Engine
from onekernel.splice.loop import Loop, Watch
from onekernel.splice.signature import Array, Inputs, Spec, bind


@dataclass(frozen=True)
class Stats:
    """What one call does."""

    segments: int  # sessions that run
    launches: int  # fused kernels launched
    replaced: int  # operators of the original model that those kernels stand for


@dataclass(frozen=True)
class Part:
    """What a saved folder needs of one segment or launch."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    segment: bytes | None = None  # a serialized ONNX model
    chain: int | None = None
    unfused: bytes | None = None  # what the chain was, for when its kernel is not there


@dataclass(frozen=True)
class FusedModel:
    """A drop-in for the original: `model(inputs)` gives a mapping from output name to array.

    `inputs` is one call's inputs: a mapping by name or a sequence by position; a bare array is refused.
    """

    inputs: tuple[Spec, ...]
    outputs: tuple[Spec, ...]
    chains: tuple[Chain, ...]
    constants: Mapping[str, Array]
    parts: tuple[Part, ...]
    loop: Loop
    fixed: Mapping[str, Any]  # the constants as the loop's values
    engine: Engine
    original: Any = None  # the ONNX model it was made from; None after load
    builds: tuple[Build, ...] = ()  # compiled kernels to save with it
    counts: Counter[str] = field(default_factory=Counter)  # chain runs so far: "fused" and "unfused"
    record: Mapping[str, Any] = field(default_factory=dict)  # what was found out about it, as JSON

    def __call__(self, inputs: Inputs, *, watch: Watch | None = None) -> dict[str, Array]:
        """Run once. `watch` sees every step with its operands. Raises InvalidInput for unusable inputs."""
        given = bind(self.inputs, inputs)
        values = dict(zip(given, self.engine.upload(list(given.values())), strict=True))
        results = self.loop.run({**self.fixed, **values}, watch)
        return dict(zip(results, self.engine.download(list(results.values())), strict=True))

    def warm_up(self, calls: Sequence[Inputs], *, progress: Progress | None = None) -> None:
        """Build and load the kernels that these calls need, in worker processes, so that they wait for nothing later.

        The calls run once on the way, unfused. `progress(done, total)` is told of every kernel. Under the policy
        `never` what is there is loaded. Raises what building and loading raise, an ExceptionGroup where several fail,
        and InvalidInput for a model that was saved without its unfused operators.
        """
        supply = self.engine.supply
        if supply is None or any(part.chain is not None and part.unfused is None for part in self.parts):
            raise InvalidInput(
                expected="a model that can run unfused, on a device",
                got="one without the operators that its kernels replace",
                todo="optimize and save it again, or warm it up by calling it",
            )
        with supply.asking() as wanted:
            for inputs in calls:
                self(inputs)
        supply.warm_up(wanted, progress=progress)

    @property
    def stats(self) -> Stats:
        """Count sessions, launches and replaced operators of one call."""
        launches = sum(part.chain is not None for part in self.parts)
        replaced = sum(chain.launches_before for chain in self.chains)
        return Stats(len(self.parts) - launches, launches, replaced)

    def explain(self) -> str:
        """Describe in a plain table what runs as one kernel and what it replaced."""
        rows = [("kernel", "layout", "count", "operators", "launches")]
        rows += [
            (name, f"{layout} of {hidden}", str(count), f"{before}", f"{before * count} -> {count}")
            for (name, layout, hidden, before), count in Counter(map(_describe, self.chains)).items()
        ]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows]
        stats = self.stats
        summary = f"{stats.launches} kernels replace {stats.replaced} operators, between {stats.segments} sessions"
        return "\n".join([*lines, f"{summary}, on {self.engine.name}"])

    def save(self, folder: str | Path) -> Path:
        """Write a folder that `onekernel.load` reads; see splice.folder."""
        from onekernel.splice.folder import save

        return save(self, Path(folder))


def _describe(chain: Chain) -> tuple[str, str, int, int]:
    return chain.name, chain.layout, chain.hidden, chain.launches_before

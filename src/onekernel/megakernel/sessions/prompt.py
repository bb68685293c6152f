"""A prompt, read by one launch: its positions are the vectors of each step, which share the reading of the weights."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from onekernel.megakernel.layout import KEPT_BYTES, Schedule, divide_up
from onekernel.megakernel.program import Attend, Begin, Heads, Program, Project, Repeat
from onekernel.megakernel.sessions.layout import SessionsLayout, fitted, without_positions

POSITIONS = (8, 16, 32, 64)  # of a step


def for_prompts(program: Program) -> Program:
    """Keep of a program what fills the cache: its first stream, behind rows of the prompt, and the layers."""
    (steps,) = (item for item in program.body if isinstance(item, Repeat))
    begin = next(item for item in steps.body if isinstance(item, Begin))
    layers = next(item for item in steps.body if isinstance(item, Repeat))
    *body, last = without_positions(layers.body)
    assert isinstance(last, Project)
    body.append(replace(last, silent=(f"{layers.index} == {int(layers.count) - 1}",)))  # nobody reads the stream then
    reads = replace(steps, body=(begin, replace(layers, body=tuple(body))))
    used = {name for phase in body for name in (getattr(phase, "into", ""), getattr(phase, "queries", ""))}
    return replace(
        program,
        name=f"{program.name}_prompt",
        streams=tuple(one for one in program.streams if one[0] == begin.stream),
        exchanges=tuple(one for one in program.exchanges if one.name in used | {begin.owed}),
        body=(reads,),
    )


class PromptLayout(SessionsLayout):
    """The addresses of a program that reads prompts; raises InvalidInput for one that cannot be read so."""

    counts_of_vectors = POSITIONS

    def parts(self, heads: Heads) -> int:
        """Return how many blocks share the positions of a head of keys."""
        return min(self.schedule.blocks // heads.kv_heads, self.sessions)

    def attended(self, attend: Attend, *, far: bool) -> Iterator[tuple[int, int, range]]:  # noqa: ARG002 (the same then)
        """Yield what blocks attend to: each has all heads that share keys, for some of the positions."""
        h, parts = attend.heads, self.parts(attend.heads)
        share = h.heads // h.kv_heads
        for block in range(h.kv_heads * parts):
            yield block, block // parts, range(block // parts * share, (block // parts + 1) * share)

    def _unit_bytes(self, attend: Attend) -> int:
        h = attend.heads
        own = divide_up(self.sessions, self.parts(h)) * h.heads // h.kv_heads  # queries
        return super()._unit_bytes(attend) + own * h.head_dim * KEPT_BYTES["float32"]


def prompt_layout(program: Program, alone: Schedule, positions: int, arch: str) -> PromptLayout:
    """Lay out what reads prompts, so many positions in a step, in as many blocks as a single session has.

    So it leaves the same bits in the cache. Raises DoesNotFit where shared memory does not suffice.
    """
    return fitted(lambda schedule: PromptLayout(for_prompts(program), schedule, positions), alone, arch)

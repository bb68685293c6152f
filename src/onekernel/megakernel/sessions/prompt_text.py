"""A program that reads prompts -> the request for its kernel."""

from __future__ import annotations

from collections.abc import Iterator

from onekernel.jit.request import KernelRequest, Line, Parameter
from onekernel.megakernel.generate import WORKERS
from onekernel.megakernel.phase_text import KEPT, heads_name, heads_type
from onekernel.megakernel.program import Attend, Begin, Heads, Phase, Project, Repeat
from onekernel.megakernel.sessions.check import check
from onekernel.megakernel.sessions.phase_text import SessionsPhaseText
from onekernel.megakernel.sessions.prompt import PromptLayout
from onekernel.megakernel.sessions.text import SessionsText

_PARAMETERS = (
    Parameter("weights", "const unsigned char*", alignment=16),
    Parameter("vectors", "const float*", alignment=16),
    Parameter("rotation", "const float*", alignment=16),
    Parameter("exchanged", "int*", alignment=16),
    Parameter("prompt", "const float*", alignment=16),  # rows
    Parameter("first", "int"),  # position
    Parameter("length", "int"),  # rows
    Parameter("steps", "int"),
    Parameter("capacity", "int"),
)


def prompt_request(layout: PromptLayout, arch: str, *, traced: bool = False) -> KernelRequest:
    """Write the kernel that reads prompts. Raises InvalidInput for a program that `check` refuses.

    `traced`: as `kernel_request` has it; laps go behind the exchanges.
    """
    check(layout)
    (attend,) = layout.program.attends
    cache = Parameter("cache", f"{KEPT[attend.heads.kept]}*", alignment=16)
    return KernelRequest(
        layout.program.name, arch, (*_PARAMETERS, cache), WORKERS + (32 if layout.schedule.slots else 0),
        headers=("phases/sessions/prompt.cuh",),
        constants=(("kBlocks", layout.schedule.blocks), ("kSessions", layout.sessions)),
        body=tuple(Line(text) for text in _PromptText(layout, _PhaseText(layout), traced).lines()),
        cooperative=True, shared=layout.shared_bytes, min_blocks=1,
    )  # fmt: skip


class _PhaseText(SessionsPhaseText):
    """Writes the lines of a phase."""

    def _rows_of(self, phase: Begin) -> Iterator[str]:
        width = self.program.width(phase.stream)
        yield f"return session < rows.count ? row_of<{width}>(prompt, rows.last - first - session)[row] : 0.0f;"

    def _attend(self, phase: Attend) -> Iterator[str]:
        heads, matrix = heads_name(phase.heads), self._taken(phase.into)
        to = f"ToContext<{heads}, {self.vectors_of(matrix)}, {matrix.kind}>"
        cache = f"cache + {phase.layer} * Cache<{heads}>::elements(capacity), capacity"
        yield "{"
        yield f"  const HeadOperands<float> operands{{{self.operands(phase, 'rows.last')}}};"
        yield f"  const int kv_head = static_cast<int>(blockIdx.x) / {self.layout.parts(phase.heads)};"
        yield f"  const Cache<{heads}> kept{{{cache}, kv_head}};"
        given = f"memory.seen.prompt, patience, {phase.queries}, operands, kept, rows.count"
        yield f"  attend_prompt<{heads}Alone, kSessions, {self.schedule.patience}>({given},"
        yield f"      [&](const Unit& unit) {{ return {to}{{{phase.into}, unit}}; }});"
        yield "}"


class _PromptText(SessionsText):
    """Writes the lines of a body."""

    layout: PromptLayout

    def __init__(self, layout: PromptLayout, text: SessionsPhaseText, traced: bool) -> None:
        super().__init__(layout, text, traced)
        self.laps_of = f"(exchanged + {layout.exchange_floats})"

    def more_heads(self, heads: Heads) -> Iterator[str]:
        yield f"  {heads_type(heads, 1, 'Alone')}"

    def seen(self) -> Iterator[str]:
        (attend,) = self.program.attends
        name = heads_name(attend.heads)
        yield f"PromptMemory<{name}, {name}Alone, {attend.near}, kSessions, {self.layout.parts(attend.heads)}> prompt;"

    def remembered(self) -> Iterator[str]:
        yield from ()

    def recall(self) -> Iterator[str]:
        yield from ()

    def recall_draws(self) -> Iterator[str]:
        yield from ()

    def positions(self, steps: Repeat) -> Iterator[str]:
        yield f"  const PromptRows rows(first, length, {steps.index}, kSessions);"

    def put(self, phase: Phase) -> Iterator[str]:
        if isinstance(phase, Project):
            yield from super().put(phase)

    def end(self) -> Iterator[str]:
        yield "  mail.report();"
        yield "  if (blockIdx.x == 0 && threadIdx.x == 0) *exchanged = static_cast<int>(~mail.parities);"
        yield from self.tell_laps()

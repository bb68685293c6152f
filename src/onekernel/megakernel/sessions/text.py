"""A program for many sessions -> the request for its kernel."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from onekernel.jit.request import KernelRequest, Line, Parameter
from onekernel.megakernel.generate import WORKERS, KernelText
from onekernel.megakernel.phase_text import heads_name, heads_type, type_name
from onekernel.megakernel.program import Attend, Heads, Phase, Project, Repeat
from onekernel.megakernel.sessions.check import check
from onekernel.megakernel.sessions.layout import SessionsLayout
from onekernel.megakernel.sessions.phase_text import SessionsPhaseText

_PARAMETERS = (
    Parameter("weights", "const unsigned char*", alignment=16),
    Parameter("vectors", "const float*", alignment=16),
    Parameter("rotation", "const float*", alignment=16),
    Parameter("exchanged", "int*", alignment=16),
    Parameter("tables", "const bfloat16*", alignment=16),  # as for one session
    Parameter("sub_tables", "const float*", alignment=16),
    Parameter("few", "unsigned char*", alignment=16),  # keys and values of the predictor
    Parameter("table", "const long long*", alignment=16),  # `Session` of each place
    Parameter("steps", "int"),
    Parameter("capacity", "int"),
)


def sessions_request(layout: SessionsLayout, arch: str, *, traced: bool = False) -> KernelRequest:
    """Write the kernel of a program for many sessions. Raises InvalidInput for a program that `check` refuses.

    `traced`: as `kernel_request` has it; the first session says it.
    """
    check(layout)
    rows = next(phase.matrix.kind for phase, _ in layout.program.phases() if isinstance(phase, Project))
    parameters = (replace(one, type=f"const {rows}*") if one.name == "tables" else one for one in _PARAMETERS)
    return KernelRequest(
        layout.program.name, arch, tuple(parameters), WORKERS + (32 if layout.schedule.slots else 0),
        headers=("phases/sessions/attend.cuh", "phases/sample.cuh"),
        constants=(("kBlocks", layout.schedule.blocks), ("kSessions", layout.sessions)),
        body=tuple(Line(text) for text in SessionsText(layout, SessionsPhaseText(layout), traced).lines()),
        cooperative=True, shared=layout.shared_bytes, min_blocks=1,
    )  # fmt: skip


class SessionsText(KernelText):
    """Writes the lines of a body."""

    layout: SessionsLayout
    text: SessionsPhaseText
    laps_of = "sessions[0].said"

    def types(self) -> Iterator[str]:
        for matrix in self.layout.matrices:
            tiles = self.layout.tiling(matrix).tiles
            sizes = f"{matrix.rows}, {matrix.columns}, kBlocks, {matrix.kind}, {tiles}"
            yield f"  using {type_name(matrix.name)} = Matrix<{sizes}>;"
        for heads in dict.fromkeys(replace(attend.heads, normed=False) for attend in self.program.attends):
            yield f"  {heads_type(heads, self.layout.members(heads))}"
            yield from self.more_heads(heads)
        yield "  struct Memory {"
        if self.schedule.slots:
            yield f"    Ring<{self.schedule.slots}> ring;"
        yield f"    SessionsMemory<kSessions, {self.layout.result_floats}> shared;"
        lands = self.layout.landing_quads > 0
        seen = f"struct {{ {' '.join(self.seen())} }} seen;"
        landing = f"LandingMemory<{self.layout.landing_quads}> landing;" if lands else "NoLanding landing;"
        yield f"    union {{ {landing} {seen} }};" if lands else f"    {landing} {seen}"
        for stream, _ in self.program.streams:
            yield f"    KeptRows<{type_name(self.layout.owner(stream).name)}, kSessions> {stream};"
        yield from self.remembered()
        yield from self.laps()
        yield "  };"
        yield f'  static_assert(sizeof(Memory) <= {self.layout.shared_bytes}, "the shared memory of the launch");'

    def more_heads(self, heads: Heads) -> Iterator[str]:
        """Write the types of heads as parts have them, and as one block has them alone."""
        yield f"  {heads_type(heads, self.layout.parts(heads), 'Unit')}"
        yield f"  {heads_type(heads, 1, 'Alone')}"

    def seen(self) -> Iterator[str]:
        """Declare what attention needs."""
        for attend in self.program.attends:
            name = heads_name(attend.heads)
            if attend.position:
                yield f"NearMemory<{name}Unit, {self.layout.counts[attend.position]}> few;"
            else:
                yield f"UnitMemory<{name}, {name}Unit, {attend.near}> unit;"

    def remembered(self) -> Iterator[str]:
        """Declare what is known of sessions and of their draws."""
        yield f"    SampleMemory<{max(s.vocab for s in self.text.samples)}> draw;"
        yield "    Session sessions[kSessions];"
        yield "    SpokenMemory<kSessions> spoken;"

    def positions(self, steps: Repeat) -> Iterator[str]:  # noqa: ARG002 (sessions have their own)
        """Declare nothing: sessions have positions of their own."""
        yield from ()

    def begin(self) -> Iterator[str]:
        yield "  auto& memory = *dynamic_storage<Memory>();"
        yield from self.recall()
        yield f"  const unsigned char* stream = weights + blockIdx.x * {self.layout.stream_bytes}ll;"
        if self.schedule.slots:
            yield from self.writer()
            yield f"  RingWindow<{self.schedule.slots}> reader{{memory.ring}};"
        else:
            yield "  DirectWindow reader;"
        yield from self.mail()
        yield from self.patience()
        yield "  Turns turns;"
        yield from self.recall_draws()

    def recall(self) -> Iterator[str]:
        """Write how the table of sessions comes into shared memory, before anything else."""
        yield "  const Session* sessions = memory.sessions;"
        yield "  for (int i = threadIdx.x; i < 8 * kSessions; i += kWorkers)"
        yield "    reinterpret_cast<long long*>(memory.sessions)[i] = table[i];"

    def recall_draws(self) -> Iterator[str]:
        yield "  int frames = 0;"
        yield "  workers_barrier();"
        yield "  memory.spoken.load(sessions);"
        yield "  if (static_cast<int>(blockIdx.x) < kSessions) {"
        yield "    memory.draw.load(sessions[blockIdx.x].request, sessions[blockIdx.x].options);"
        yield "    frames = sessions[blockIdx.x].request[2];"
        yield "  }"
        yield "  workers_barrier();"

    def put(self, phase: Phase) -> Iterator[str]:
        if isinstance(phase, Project):
            yield f"copy_of<{type_name(phase.matrix.name)}>()"
        elif isinstance(phase, Attend) and not phase.position:
            unit = f"{heads_name(phase.heads)}Unit"
            yield f"for_units<{unit}, kSessions, kBlocks>([&](const Unit& unit) {{"
            yield "  const int at = sessions[unit.session].position_at(step);"
            yield f"  {self.text.unit_cache(phase)}"
            yield f"  if (sessions[unit.session].present != 0 && at < {phase.near}) prefetch_near(kept, at);"
            yield "});"

    def end(self) -> Iterator[str]:
        yield "  mail.report();"
        yield "  if (blockIdx.x == 0 && threadIdx.x == 0) *exchanged = static_cast<int>(~mail.parities);"
        yield "  if (static_cast<int>(blockIdx.x) < kSessions) {"
        yield "    memory.draw.store(sessions[blockIdx.x].request);"
        yield "    if (threadIdx.x == 0) sessions[blockIdx.x].request[2] = frames;"
        yield "  }"
        yield from self.tell_laps()

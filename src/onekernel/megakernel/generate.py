"""Program + schedule -> one persistent kernel: a line for each phase, calls of functions in kernels/phases."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import groupby

from onekernel.jit.request import KernelRequest, Line, Parameter
from onekernel.megakernel.check import check
from onekernel.megakernel.layout import REQUEST_HEAD, WARPS, Layout
from onekernel.megakernel.phase_text import KEPT, PhaseText, attend_memory, heads_type, matrix_type, type_name
from onekernel.megakernel.program import Attend, Item, Merge, Phase, Program, Project, Repeat, Sample, When, has_weights

WORKERS = 32 * WARPS  # threads that compute; 32 more copy weights, where there is a ring
TRACED = 256  # counters of a traced kernel, behind 4096 numbers of what it says

_ALL = (
    Parameter("weights", "const unsigned char*", alignment=16),
    Parameter("vectors", "const float*", alignment=16),
    Parameter("rotation", "const float*", alignment=16),
    Parameter("cache", "bfloat16*", alignment=16),
    Parameter("exchanged", "int*", alignment=16),
    Parameter("said", "int*"),
    Parameter("prompt_length", "int"),
    Parameter("first", "int"),
    Parameter("steps", "int"),
    Parameter("capacity", "int"),
)
_TEXT = (Parameter("table", "const bfloat16*", alignment=16), Parameter("prompt", "const int*"))
_SPEECH = (
    Parameter("tables", "const bfloat16*", alignment=16),  # of all places, one behind the other
    Parameter("sub_tables", "const float*", alignment=16),  # the same for the other stream, but for the last place
    Parameter("prompt", "const float*", alignment=16),  # rows
    Parameter("text", "const float*", alignment=16),  # rows, the last again and again
    Parameter("text_rows", "int"),
    Parameter("options", "const float*"),  # draws, temperature, top_k, penalty; then the first three of other places
    Parameter("request", "int*"),  # seed low and high, frames said, 13 unused; codes of the last frame; what was said
)


def parameters(program: Program) -> tuple[Parameter, ...]:
    """Return the parameters of a program's kernel."""
    phases = [phase for phase, _ in program.phases()]
    kept = next(KEPT[phase.heads.kept] for phase in phases if isinstance(phase, Attend) and not phase.position)
    rows = next(phase.matrix.kind for phase in phases if isinstance(phase, Project))
    kinds = {"cache": f"{kept}*", "table": f"const {rows}*", "tables": f"const {rows}*"}
    every = _ALL + (_SPEECH if any(isinstance(phase, Sample) for phase in phases) else _TEXT)
    return tuple(replace(one, type=kinds.get(one.name, one.type)) for one in every)


def kernel_request(layout: Layout, arch: str, *, traced: bool = False) -> KernelRequest:
    """Write the kernel of a program for an architecture. Raises InvalidInput for a program that `check` refuses.

    `traced`: the kernel also counts the cycles of every part of a phase.
    """
    check(layout)
    return KernelRequest(
        layout.program.name, arch, parameters(layout.program), WORKERS + (32 if layout.schedule.slots else 0),
        headers=("phases/attend.cuh", "phases/attend_alone.cuh", "phases/choose.cuh", "phases/sample.cuh"),
        constants=(("kBlocks", layout.schedule.blocks),),
        body=tuple(Line(text) for text in KernelText(layout, PhaseText(layout), traced).lines()),
        cooperative=True, shared=layout.shared_bytes, min_blocks=1,
    )  # fmt: skip


class KernelText:
    """Writes the lines of a body; with many sessions (sessions/text.py) some of them are others."""

    laps_of = "said"  # what a traced kernel counts goes behind this

    def __init__(self, layout: Layout, text: PhaseText, traced: bool) -> None:
        self.layout, self.program, self.schedule, self.traced = layout, layout.program, layout.schedule, traced
        self.number = 0  # of traced phases so far
        self.text = text

    def lines(self) -> Iterator[str]:
        yield from self.types()
        yield from self.begin()
        for line in self._nest(self.program.body, self._phase, "reader.begin({});"):
            yield f"  {line}"
        yield from self.end()

    def types(self) -> Iterator[str]:
        for matrix in self.layout.matrices:
            yield f"  {matrix_type(matrix)}"
        for heads in dict.fromkeys(replace(attend.heads, normed=False) for attend in self.program.attends):
            yield f"  {heads_type(heads, self.layout.members(heads))}"
        yield "  struct Memory {"
        if self.schedule.slots:
            yield f"    Ring<{self.schedule.slots}> ring;"
        vectors = max(self.program.vectors(stream) for stream, _ in self.program.streams)
        yield f"    ProjectMemory<{self.layout.finished}, {self.layout.parts_bytes}, {vectors}> project;"
        for attend in self.program.attends:
            yield f"    {self.text.storage(attend)} {attend_memory(attend)};"
        yield (
            f"    SampleMemory<{max(s.vocab for s in self.text.samples)}> draw;"
            if self.text.samples
            else "    ChooseMemory choose;"
        )
        yield from self.laps()
        yield "  };"
        if self.text.samples:
            yield f'  static_assert(kRequestHead == {REQUEST_HEAD}, "where the codes of a request begin");'
        yield f'  static_assert(sizeof(Memory) <= {self.layout.shared_bytes}, "the shared memory of the launch");'

    def begin(self) -> Iterator[str]:
        yield "  auto& memory = *dynamic_storage<Memory>();"
        yield f"  const unsigned char* stream = weights + blockIdx.x * {self.layout.stream_bytes}ll;"
        if self.schedule.slots:
            yield from self.writer()
            yield f"  RingReader<{self.schedule.slots}> reader{{memory.ring}};"
        else:
            yield "  DirectReader reader;"
        yield from self.mail()
        for stream, width in self.program.streams:
            yield f"  Residual<{width}, {self.program.vectors(stream)}> {stream};"
        yield from self.patience()
        yield "  int turn = 0, chosen = 0;"
        if self.text.samples:
            yield "  int frames = request[2];"
            yield "  memory.draw.load(request, options);"
            yield "  workers_barrier();"

    def mail(self) -> Iterator[str]:
        yield "  Mail mail{reinterpret_cast<unsigned*>(exchanged), ~static_cast<unsigned>(*exchanged)};"
        for number, exchange in enumerate(self.program.exchanges):
            yield f"  const Exchange {exchange.name}{{mail, {self.layout.exchanges[exchange.name]}, {number}}};"

    def writer(self) -> Iterator[str]:
        ahead = min(self.schedule.ahead, self.schedule.slots)
        paced = f"{self.schedule.slots}, {ahead}, {self.schedule.piece}, {self.schedule.pace}"
        yield "  memory.ring.open();"
        yield "  block_barrier();"
        yield "  if (warp_index() == kWarps) {"
        yield "    if (lane_index() != 0) return;"
        yield f"    Writer<{paced}> writer{{memory.ring}};"
        yield "    const unsigned char* from = stream;"
        for line in _looped(self._nest(self.program.body, self.put, "from = {};")):
            yield f"    {line}"
        yield "    return;"
        yield "  }"

    def end(self) -> Iterator[str]:
        """Keep what the next launch goes on with; by now every block has read what this one began with."""
        yield "  mail.report();"
        yield "  if (blockIdx.x == 0 && threadIdx.x == 0) {"
        yield "    *exchanged = static_cast<int>(~mail.parities);"
        if self.text.samples:
            yield "    request[2] = frames;"
        yield "  }"
        if self.text.samples:
            yield "  if (blockIdx.x == 0) memory.draw.store(request);"
        yield from self.tell_laps()

    def laps(self) -> Iterator[str]:
        if self.traced:
            yield f"    unsigned laps[{TRACED}];"

    def patience(self) -> Iterator[str]:
        if not self.traced:
            yield "  Patience patience;"
            return
        yield f"  for (int i = threadIdx.x; i < {TRACED}; i += kWorkers) memory.laps[i] = 0;"
        yield "  workers_barrier();"
        yield "  TracedPatience patience{memory.laps};"
        yield "  patience.last = clock_ticks();"

    def tell_laps(self) -> Iterator[str]:
        if self.traced:
            yield "  if (threadIdx.x == TracedPatience::kTracedThread)"
            place = f"{self.laps_of}[4096 + blockIdx.x * {TRACED} + i]"
            yield f"    for (int i = 0; i < {TRACED}; ++i) {place} = memory.laps[i];"

    def _nest(self, body: tuple[Item, ...], write: Callable[[Phase], Iterator[str]], begin: str) -> Iterator[str]:
        """Write a body and the loops in it; `begin` says where a section of the stream begins."""
        section = None
        for item in body:
            if isinstance(item, Repeat | When):
                inner = [f"  {line}" for line in self._nest(item.body, write, begin)]
                if inner:  # some loops have no weights
                    section = None if has_weights(item) else section
                    yield _opening(item)
                    if isinstance(item, Repeat) and not self.schedule.slots:
                        yield f"  forget({item.index});  // else what depends on it alone is kept in registers"
                    if isinstance(item, Repeat) and isinstance(item.count, str):
                        yield from self.positions(item)
                    yield from inner
                    yield "}"
                continue
            if isinstance(item, Project) and self.layout.section_of(item.matrix) is not section:
                section = self.layout.section_of(item.matrix)
                index = self.text.index(section.per)
                yield begin.format(f"stream + {section.start}ll" + (f" + {index} * {section.bytes}ll" if index else ""))
            yield from write(item)

    def positions(self, steps: Repeat) -> Iterator[str]:
        """Declare the position of a step, the same for all blocks."""
        yield f"  const int position = first + {steps.index};"

    def put(self, phase: Phase) -> Iterator[str]:
        if isinstance(phase, Project):
            yield f"copy_of<{type_name(phase.matrix.name)}>()"
        elif isinstance(phase, Attend) and not phase.position:
            cache = self.text.cache(phase)
            if phase.near:
                yield f"{cache}.prefetch(position);"
            else:
                yield "fence_copies();  // what was kept steps ago"
                yield f"writer.put({cache}.own(), {cache}.copy(position));"

    def _phase(self, phase: Phase) -> Iterator[str]:
        if self.traced and isinstance(phase, Project | Attend | Merge | Sample) and self.number < TRACED // 8:
            yield f"patience.base = {8 * self.number};"
            self.number += 1
        yield "forget(mail.words);"
        yield from self.text.lines(phase)


def _looped(lines: Iterable[str]) -> Iterator[str]:
    """Copy matrices that follow each other in one loop: the text of each by itself would crowd out that of phases."""
    for copies, group in groupby(lines, lambda line: "copy_of<" in line):
        if not copies:
            yield from group
            continue
        values = [line.strip() for line in group]
        choice = "".join(f"i == {i} ? {value} : " for i, value in enumerate(values[:-1])) + values[-1]
        yield "#pragma unroll 1"
        yield f"for (int i = 0; i < {len(values)}; ++i) from = writer.put(from, {choice});"


def _opening(item: Repeat | When) -> str:
    if isinstance(item, Repeat):
        return f"for (int {item.index} = 0; {item.index} < {item.count}; ++{item.index}) {{"
    return f"if ({'step >= prompt_length - 1' if item.condition == 'speaks' else item.condition}) {{"

"""Program + schedule -> one persistent kernel: a line for each phase, calls of functions in kernels/phases."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from onekernel.jit.generate import float_literal
from onekernel.jit.request import KernelRequest, Line, Parameter
from onekernel.megakernel.check import check
from onekernel.megakernel.layout import Layout
from onekernel.megakernel.program import (
    Attend,
    Begin,
    Choose,
    CodeRow,
    FrameSum,
    Given,
    Item,
    Merged,
    Normed,
    Phase,
    Program,
    Project,
    Repeat,
    Sample,
    TokenRow,
    Vector,
    When,
)

WORKERS = 256  # threads that compute; 32 more copy weights, where there is a ring
TRACED = 64  # counters of a traced kernel, behind 4096 numbers of what it says

_ALL = (
    Parameter("weights", "const unsigned char*", alignment=128),
    Parameter("vectors", "const float*", alignment=16),
    Parameter("rotation", "const float*", alignment=16),
    Parameter("cache", "bfloat16*", alignment=16),
    Parameter("mail", "int*", alignment=128),
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
REQUEST_HEAD = 16  # ints of a request before its codes


def parameters(program: Program) -> tuple[Parameter, ...]:
    """Return the parameters of a program's kernel."""
    speaks = any(isinstance(phase, Sample) for phase, _ in program.phases())
    return _ALL + (_SPEECH if speaks else _TEXT)


def kernel_request(layout: Layout, arch: str, *, traced: bool = False) -> KernelRequest:
    """Write the kernel of a program for an architecture. Raises InvalidInput for a program that `check` refuses.

    `traced`: the kernel also counts the cycles of every part of a phase.
    """
    check(layout)
    return KernelRequest(
        layout.program.name, arch, parameters(layout.program), WORKERS + (32 if layout.schedule.slots else 0),
        headers=("phases/attend.cuh", "phases/choose.cuh", "phases/sample.cuh"),
        constants=(("kBlocks", layout.schedule.blocks),),
        body=tuple(Line(text) for text in _Text(layout, traced).lines()),
        cooperative=True, shared=layout.shared_bytes, min_blocks=1,
    )  # fmt: skip


class _Text:
    """Writes the lines of a body."""

    def __init__(self, layout: Layout, traced: bool) -> None:
        self.layout, self.program, self.schedule, self.traced = layout, layout.program, layout.schedule, traced
        self.number = 0  # of traced phases so far
        phases = [phase for phase, _ in self.program.phases()]
        self.attends = [phase for phase in phases if isinstance(phase, Attend)]
        self.samples = [phase for phase in phases if isinstance(phase, Sample)]

    def lines(self) -> Iterator[str]:
        yield from self._types()
        yield from self._begin()
        for line in self._nest(self.program.body, self._phase, "reader.begin({});"):
            yield f"  {line}"
        yield from self._end()

    def _types(self) -> Iterator[str]:
        for matrix in self.layout.matrices:
            yield f"  using {_type(matrix.name)} = Matrix<{matrix.rows}, {matrix.columns}, kBlocks>;"
        for attend in self.attends:
            h = attend.heads
            yield f"  using {_heads(attend)} = Heads<{h.heads}, {h.kv_heads}, {h.head_dim}, {self.schedule.members}>;"
        rows = max(8 * self.layout.tiling(matrix).tiles for matrix in self.layout.matrices)
        columns = max(matrix.columns for matrix in self.layout.matrices)
        yield "  struct Memory {"
        if self.schedule.slots:
            yield f"    Ring<{self.schedule.slots}> ring;"
        yield f"    ProjectMemory<{rows}, {columns}> project;"
        for attend in self.attends:
            yield f"    AttendMemory<{_heads(attend)}, bfloat16> {attend.into};"
        yield (
            f"    SampleMemory<{max(s.vocab for s in self.samples)}> draw;"
            if self.samples
            else "    ChooseMemory choose;"
        )
        if self.traced:
            yield f"    unsigned laps[{TRACED}];"
        yield "  };"
        yield f'  static_assert(sizeof(Memory) <= {self.layout.shared_bytes}, "the shared memory of the launch");'

    def _begin(self) -> Iterator[str]:
        yield "  auto& memory = *dynamic_storage<Memory>();"
        yield f"  const unsigned char* stream = weights + blockIdx.x * {self.layout.stream_bytes}ll;"
        if self.schedule.slots:
            yield from self._writer()
            yield f"  RingReader<{self.schedule.slots}> reader{{memory.ring}};"
        else:
            yield "  DirectReader reader;"
        yield "  auto* words = reinterpret_cast<unsigned*>(mail);"
        for number, exchange in enumerate(self.program.exchanges):
            place = self.layout.exchanges[exchange.name]
            yield f"  Exchange {exchange.name}{{words + {place}, ~words[{number}] & 1u}};"
        for stream, width in self.program.streams:
            yield f"  Residual<{width}> {stream};"
        if self.traced:
            yield f"  for (int i = threadIdx.x; i < {TRACED}; i += kWorkers) memory.laps[i] = 0;"
            yield "  workers_barrier();"
            yield "  TracedPatience patience{memory.laps};"
            yield "  patience.last = clock_ticks();"
        else:
            yield "  Patience patience;"
        yield "  int turn = 0, chosen = 0;"
        if self.samples:
            yield "  int frames = request[2];"
            yield f"  memory.draw.load(request + {REQUEST_HEAD});"
            yield "  workers_barrier();"

    def _writer(self) -> Iterator[str]:
        paced = f"{self.schedule.slots}, {self.schedule.ahead}, {self.schedule.piece}, {self.schedule.pace}"
        yield "  memory.ring.open();"
        yield "  block_barrier();"
        yield "  if (warp_index() == kWarps) {"
        yield "    if (lane_index() != 0) return;"
        yield f"    Writer<{paced}> writer{{memory.ring}};"
        yield "    const unsigned char* from = stream;"
        for line in self._nest(self.program.body, self._put, "from = {};"):
            yield f"    {line}"
        yield "    return;"
        yield "  }"

    def _end(self) -> Iterator[str]:
        """Keep what the next launch goes on with; by now every block has read what this one began with."""
        yield "  if (blockIdx.x == 0 && threadIdx.x == 0) {"
        for number, exchange in enumerate(self.program.exchanges):
            yield f"    words[{number}] = ~{exchange.name}.parity;"
        if self.samples:
            yield "    request[2] = frames;"
        yield "  }"
        if self.samples:
            yield f"  if (blockIdx.x == 0) memory.draw.store(request + {REQUEST_HEAD});"
        if self.traced:
            yield "  if (threadIdx.x == TracedPatience::kTracedThread)"
            yield f"    for (int i = 0; i < {TRACED}; ++i) said[4096 + blockIdx.x * {TRACED} + i] = memory.laps[i];"

    def _nest(self, body: tuple[Item, ...], write: Callable[[Phase], Iterator[str]], begin: str) -> Iterator[str]:
        """Write a body and the loops in it; `begin` says where a section of the stream begins."""
        section = None
        for item in body:
            if isinstance(item, Repeat | When):
                inner = [f"  {line}" for line in self._nest(item.body, write, begin)]
                if inner:  # some loops have no weights
                    section = None
                    yield _opening(item)
                    yield from inner
                    yield "}"
                continue
            if isinstance(item, Project) and self.layout.section_of(item.matrix) is not section:
                section = self.layout.section_of(item.matrix)
                index = self._index(section.per)
                yield begin.format(f"stream + {section.start}ll" + (f" + {index} * {section.bytes}ll" if index else ""))
            yield from write(item)

    def _put(self, phase: Phase) -> Iterator[str]:
        if isinstance(phase, Project):
            yield f"from = writer.put<{_type(phase.matrix.name)}>(from);"

    def _phase(self, phase: Phase) -> Iterator[str]:
        if self.traced and isinstance(phase, Project | Attend) and self.number < TRACED // 8:
            yield f"patience.base = {8 * self.number};"
            self.number += 1
        if isinstance(phase, Begin):
            yield from self._begin_stream(phase)
        elif isinstance(phase, Project):
            yield from self._project(phase)
        elif isinstance(phase, Attend):
            yield from self._attend(phase)
        elif isinstance(phase, Choose):
            yield f"chosen = choose<kBlocks>(memory.choose, {phase.exchange}, best_candidate);"
            yield "if (blockIdx.x == 0 && threadIdx.x == 0) said[step] = chosen;"
        else:
            yield from self._sample(phase)

    def _begin_stream(self, phase: Begin) -> Iterator[str]:
        stream, source, width = phase.stream, phase.source, self.program.width(phase.stream)
        if isinstance(source, Normed):
            yield f"carry(memory.project, turn, {stream}, {self._normed(source)});"
            return
        yield f"if ({stream}.owed) {stream}.add({phase.owed});"
        if isinstance(source, TokenRow):
            yield f"{stream}.load(table + 1ll * (step < prompt_length ? prompt[step] : chosen) * {width});"
        elif isinstance(source, FrameSum):
            first, other = source.rows[0], source.rows[-1]
            row = f"(code == 0 ? 0 : {first} + (code - 1) * {other}) + memory.draw.codes[code]"
            add = f"{stream}.add_row(tables + 1ll * ({row}) * {width});"
            yield "if (step < prompt_length) {"
            yield f"  {stream}.load(prompt + 1ll * step * {width});"
            yield "} else {"
            yield f"  {stream}.clear();"
            yield f"  for (int code = 0; code < {len(source.rows)}; ++code) {add}"
            yield f"  {stream}.add_row(text + 1ll * ((frames < text_rows ? frames : text_rows) - 1) * {width});"
            yield "}"
        elif isinstance(source, CodeRow):
            first, other = source.rows[0], source.rows[-1]
            row = f"(place == 1 ? 0 : {first} + (place - 2) * {other}) + chosen"
            yield f"{stream}.load(sub_tables + 1ll * ({row}) * {width});"
        elif isinstance(source, Given):
            yield f"{stream}.clear();"
            yield f"{stream}.add({source.exchange});"

    def _project(self, phase: Project) -> Iterator[str]:
        matrix = _type(phase.matrix.name)
        if isinstance(phase.source, Normed):
            source = self._normed(phase.source)
        elif isinstance(phase.source, Merged):
            attend = next(attend for attend in self.attends if attend.into == phase.source.exchange)
            source = f"Merged<{_heads(attend)}>{{{phase.source.exchange}}}"
        else:
            source = f"Plain<{matrix}::kColumns>{{{phase.source.exchange}}}"
        finish = {"publish": f"Publish{{{phase.into}}}", "gate": f"PublishGated{{{phase.into}}}",
                  "consider": "Consider{best_candidate}"}[phase.finish]  # fmt: skip
        if phase.bias is not None:
            finish = f"PublishBiased{{{phase.into}, {self._vector(phase.bias)}}}"
        if phase.finish == "consider":
            yield "Candidate best_candidate;"
        ticks = self.schedule.patience
        yield f"project<{ticks}, {matrix}>(memory.project, turn, patience, reader, {source}, {finish});"
        if phase.owe:
            yield f"{phase.owe}.owed = true;"

    def _normed(self, source: Normed) -> str:
        weight, width = self._vector(source.weight), self.program.width(source.stream)
        return f"Normed<{width}, float>({source.stream}, {source.owed}, {weight}, {float_literal(source.epsilon)})"

    def _attend(self, phase: Attend) -> Iterator[str]:
        heads = _heads(phase)
        norms = [self._vector(vector) for vector in phase.norms] if phase.norms else ["nullptr", "nullptr"]
        position, capacity = phase.position or "(first + step)", self._capacity(phase)
        before = [
            f"{self._cached(other)} * {self._capacity(other)}" for other in self.attends[: self.attends.index(phase)]
        ]
        layer = f"1ll * {phase.layer} * {self._cached(phase) // self.layout.counts[phase.layer]} * {capacity}"
        cache = " + ".join(["cache", *(f"1ll * {size}" for size in before), layer])
        yield (
            f"const AttendOperands<{heads}, float, bfloat16> {phase.into}_operands{{{norms[0]}, {norms[1]}, "
            f"rotation + {position} * {heads}::kHeadDim, {cache}, {capacity}, {position}, "
            f"{float_literal(phase.epsilon)}}};"
        )
        operands = f"{phase.queries}, {phase.into}, {phase.into}_operands"
        yield f"attend<{heads}, {self.schedule.patience}>(memory.{phase.into}, patience, {operands});"

    def _capacity(self, attend: Attend) -> str:
        return str(self.layout.counts[attend.position]) if attend.position else "capacity"

    def _cached(self, attend: Attend) -> int:
        """Return the elements of a cache for one position."""
        h = attend.heads
        return self.layout.counts[attend.layer] * h.kv_heads * 2 * h.head_dim

    def _sample(self, phase: Sample) -> Iterator[str]:
        place = phase.place or "0"
        option = 4 if phase.place else 0
        draw = f"Draw{{unsigned(request[0]), unsigned(request[1]), frames, {place}, options[{option}] != 0.0f, "
        draw += f"options[{option + 1}], int(options[{option + 2}])}}"
        rules = "NoRules{}" if phase.place else f"FirstRules{{{phase.codes}, {phase.end}, frames >= 2, options[3]}}"
        yield f"chosen = sample<{phase.vocab}>(memory.draw, {phase.exchange}, {draw}, {rules});"
        if not phase.place:
            yield "remember(memory.draw, chosen);"
            yield f"if (chosen == {phase.end}) chosen = 0;  // said all the same, and nobody listens"
        last = f"{phase.place} == {self.layout.counts[phase.place] - 1}" if phase.place else ""
        yield f"if (threadIdx.x == 0) memory.draw.codes[{place}] = chosen;"
        row = f"(frames - request[2]) * 16 + {place}"
        yield f"if (blockIdx.x == 0 && threadIdx.x == 0) said[{row}] = chosen;"
        yield "workers_barrier();"
        if last:
            yield f"if ({last}) ++frames;"

    def _vector(self, vector: Vector) -> str:
        index = self._index(vector.per)
        return f"vectors + {self.layout.vectors[vector]}" + (f" + {index} * {vector.width}" if index else "")

    def _index(self, per: tuple[str, ...]) -> str:
        """Spell the number of an iteration of these loops."""
        text = ""
        for name in per:
            text = f"({text} * {self.layout.counts[name]} + {name})" if text else name
        return text


def _opening(item: Repeat | When) -> str:
    if isinstance(item, Repeat):
        return f"for (int {item.index} = 0; {item.index} < {item.count}; ++{item.index}) {{"
    return f"if ({'step >= prompt_length - 1' if item.condition == 'speaks' else item.condition}) {{"


def _type(name: str) -> str:
    return "".join(part.capitalize() for part in name.split("_"))


def _heads(attend: Attend) -> str:
    return f"{_type(attend.into)}Heads"

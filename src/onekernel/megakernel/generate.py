"""Program + schedule -> one persistent kernel: a line for each phase, calls of functions in kernels/phases."""

from __future__ import annotations

from collections.abc import Iterator

from onekernel.jit.generate import float_literal
from onekernel.jit.request import KernelRequest, Line, Parameter
from onekernel.megakernel.check import check
from onekernel.megakernel.layout import Layout
from onekernel.megakernel.program import Attend, Choose, Embed, Merged, Normed, Phase, Project, Repeat, Vector

WORKERS = 256  # threads that compute; 32 more copy weights, where there is a ring

PARAMETERS = (
    Parameter("weights", "const unsigned char*", alignment=128),
    Parameter("vectors", "const float*", alignment=16),
    Parameter("table", "const bfloat16*", alignment=16),
    Parameter("rotation", "const float*", alignment=16),
    Parameter("cache", "bfloat16*", alignment=16),
    Parameter("mail", "int*", alignment=128),
    Parameter("prompt", "const int*"),
    Parameter("said", "int*"),
    Parameter("prompt_length", "int"),
    Parameter("first", "int"),
    Parameter("steps", "int"),
    Parameter("capacity", "int"),
    Parameter("steps_before", "int"),
)


def kernel_request(layout: Layout, arch: str, *, traced: bool = False) -> KernelRequest:
    """Write the kernel of a program for an architecture. Raises InvalidInput for a program that `check` refuses.

    `traced`: the kernel also counts the cycles of every part of a phase, behind what it says.
    """
    check(layout)
    return KernelRequest(
        layout.program.name, arch, PARAMETERS, WORKERS + (32 if layout.schedule.slots else 0),
        headers=("phases/attend.cuh", "phases/choose.cuh"),
        constants=(("kBlocks", layout.schedule.blocks), ("kWidth", layout.program.width)),
        body=tuple(Line(text) for text in _Text(layout, traced).lines()),
        cooperative=True, shared=layout.shared_bytes, min_blocks=1,
    )  # fmt: skip


class _Text:
    """Writes the lines of a body."""

    def __init__(self, layout: Layout, traced: bool) -> None:
        self.layout, self.program, self.schedule, self.traced = layout, layout.program, layout.schedule, traced
        self.number = 0
        self.attends = [phase for phase, _ in self.program.phases() if isinstance(phase, Attend)]

    def lines(self) -> Iterator[str]:
        yield from self._types()
        yield from self._begin()
        for line in self._nest(self.program.body, self._phase, "reader.begin({});"):
            yield f"  {line}"
        if self.traced:
            yield "  if (threadIdx.x == TracedPatience::kTracedThread)"
            yield "    for (int i = 0; i < 64; ++i) said[4096 + blockIdx.x * 64 + i] = memory.laps[i];"

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
        yield "    ChooseMemory choose;"
        if self.traced:
            yield "    unsigned laps[64];"
        yield "  };"
        yield f'  static_assert(sizeof(Memory) <= {self.layout.shared_bytes}, "the shared memory of the launch");'

    def _begin(self) -> Iterator[str]:
        yield "  auto& memory = *dynamic_storage<Memory>();"
        yield f"  const unsigned char* stream = weights + blockIdx.x * {self.layout.stream_bytes}ll;"
        if self.schedule.slots:
            slots = self.schedule.slots
            paced = f"{slots}, {self.schedule.ahead}, {self.schedule.piece}, {self.schedule.pace}"
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
            yield f"  RingReader<{slots}> reader{{memory.ring}};"
        else:
            yield "  DirectReader reader;"
        yield "  auto* words = reinterpret_cast<unsigned*>(mail);"
        for exchange in self.program.exchanges:
            uses = self._uses(exchange.name)
            place = self.layout.exchanges[exchange.name]
            yield f"  Exchange {exchange.name}{{words + {place}, steps_before * {uses}u & 1u}};"
        yield "  Residual<kWidth> residual;"
        if self.traced:
            yield "  for (int i = threadIdx.x; i < 64; i += kWorkers) memory.laps[i] = 0;"
            yield "  workers_barrier();"
            yield "  TracedPatience patience{memory.laps};"
            yield "  patience.last = clock_ticks();"
        else:
            yield "  Patience patience;"
        yield "  int turn = 0, chosen = 0;"

    def _uses(self, name: str) -> int:
        """Count how often an exchange is used in a step."""
        uses = 0
        for phase, loops in self.program.phases():
            if name in (getattr(phase, "into", ""), getattr(phase, "exchange", "")):
                count = 1
                for loop in loops:
                    count *= loop.count if isinstance(loop.count, int) else 1
                uses += count
        return uses

    def _nest(self, body: tuple[Phase | Repeat, ...], write: object, begin: str) -> Iterator[str]:
        """Write a body and the loops in it; `begin` says where a section of the stream begins."""
        section = None
        for item in body:
            if isinstance(item, Repeat):
                section = None
                yield f"for (int {item.index} = 0; {item.index} < {item.count}; ++{item.index}) {{"
                for line in self._nest(item.body, write, begin):
                    yield f"  {line}"
                yield "}"
                continue
            if isinstance(item, Project) and self.layout.section_of(item.matrix) is not section:
                section = self.layout.section_of(item.matrix)
                index = self._index(section.per)
                yield begin.format(f"stream + {section.start}ll" + (f" + {index} * {section.bytes}ll" if index else ""))
            yield from write(item)  # type: ignore[operator]

    def _put(self, phase: Phase) -> Iterator[str]:
        if isinstance(phase, Project):
            yield f"from = writer.put<{_type(phase.matrix.name)}>(from);"

    def _phase(self, phase: Phase) -> Iterator[str]:
        if self.traced and isinstance(phase, Project | Attend):
            yield f"patience.base = {8 * self.number};"
            self.number += 1
        if isinstance(phase, Embed):
            yield "const int position = first + step, token = step < prompt_length ? prompt[step] : chosen;"
            yield "residual.load(table + 1ll * token * kWidth);"
        elif isinstance(phase, Project):
            yield from self._project(phase)
        elif isinstance(phase, Attend):
            yield from self._attend(phase)
        elif isinstance(phase, Choose):
            yield f"chosen = choose<kBlocks>(memory.choose, {phase.exchange}, best_candidate);"
            yield "if (blockIdx.x == 0 && threadIdx.x == 0) said[step] = chosen;"

    def _project(self, phase: Project) -> Iterator[str]:
        matrix = _type(phase.matrix.name)
        if isinstance(phase.source, Normed):
            weight = self._vector(phase.source.weight)
            source = (
                f"Normed<kWidth, float>(residual, {phase.source.owed}, {weight}, {float_literal(phase.source.epsilon)})"
            )
        elif isinstance(phase.source, Merged):
            attend = next(attend for attend in self.attends if attend.into == phase.source.exchange)
            source = f"Merged<{_heads(attend)}>{{{phase.source.exchange}}}"
        else:
            source = f"Plain<{matrix}::kColumns>{{{phase.source.exchange}}}"
        finish = {"publish": f"Publish{{{phase.into}}}", "gate": f"PublishGated{{{phase.into}}}",
                  "consider": "Consider{best_candidate}"}[phase.finish]  # fmt: skip
        if phase.finish == "consider":
            yield "Candidate best_candidate;"
        ticks = self.schedule.patience
        yield f"project<{ticks}, {matrix}>(memory.project, turn, patience, reader, {source}, {finish});"
        if phase.owe:
            yield "residual.owed = true;"

    def _attend(self, phase: Attend) -> Iterator[str]:
        heads, h = _heads(phase), phase.heads
        norms = [self._vector(vector) for vector in phase.norms] if phase.norms else ["nullptr", "nullptr"]
        layer = f"1ll * {h.kv_heads * 2 * h.head_dim} * capacity"
        yield (
            f"const AttendOperands<{heads}, float, bfloat16> {phase.into}_operands{{{norms[0]}, {norms[1]}, "
            f"rotation + position * {heads}::kHeadDim, cache + layer * {layer}, capacity, position, "
            f"{float_literal(phase.epsilon)}}};"
        )
        operands = f"{phase.queries}, {phase.into}, {phase.into}_operands"
        yield f"attend<{heads}, {self.schedule.patience}>(memory.{phase.into}, patience, {operands});"

    def _vector(self, vector: Vector) -> str:
        index = self._index(vector.per)
        return f"vectors + {self.layout.vectors[vector]}" + (f" + {index} * {vector.width}" if index else "")

    def _index(self, per: tuple[str, ...]) -> str:
        """Spell the number of an iteration of these loops."""
        text = ""
        for name in per:
            text = f"({text} * {self.layout.counts[name]} + {name})" if text else name
        return text


def _type(name: str) -> str:
    return "".join(part.capitalize() for part in name.split("_"))


def _heads(attend: Attend) -> str:
    return f"{_type(attend.into)}Heads"

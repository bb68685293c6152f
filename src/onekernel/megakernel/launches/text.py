"""A piece of a program -> the request for its kernel: the same calls as in one kernel, around them what lies where."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from onekernel.device.parts import arch_number
from onekernel.jit.request import KernelRequest, Line, Parameter
from onekernel.megakernel.generate import WORKERS, parameters
from onekernel.megakernel.launches.plan import Piece, blocks_of
from onekernel.megakernel.layout import REQUEST_HEAD, STEP, SUM_STRIDE, WARPS, Layout, divide_up
from onekernel.megakernel.phase_text import PhaseText, attend_memory, heads_name, heads_type, matrix_type
from onekernel.megakernel.program import Attend, Begin, Choose, Merge, Normed, Phase, Program, Project, Sample

STATE_INTS = 8  # of `Step` in kernels/phases/launch.cuh, at least
FIRST_OVERLAP = 90  # sm_90: a launch may begin before its predecessor has ended
_ALIGN = 32  # floats between residual streams
_SLACK = 1024  # bytes of shared memory for what is small

_OWN = (
    Parameter("state", "int*", alignment=16),
    Parameter("streams", "float*", alignment=16),
    Parameter("few", "unsigned char*", alignment=16),
)
_LAST = Parameter("last", "int")  # whether to count the step
_OF_STEP = ("prompt_length", "first", "steps", "text_rows")  # which lie in the state
_FROM_STATE = {"step": "now.number", "prompt_length": "now.prompt_length", "text_rows": "now.text_rows"}


def piece_request(layout: Layout, piece: Piece, arch: str) -> KernelRequest:
    """Write the kernel of a piece for an architecture."""
    text = _Lines(layout, piece)
    body = list(text.lines())
    numbers = [Parameter(index, "int") for index in layout.counts]
    every = [one for one in parameters(layout.program) if one.name not in _OF_STEP]
    used = [one for one in (*every, *_OWN, *numbers, _LAST) if _names(body, one.name)]
    overlaps = arch_number(arch) >= FIRST_OVERLAP
    alone = not overlaps or (isinstance(piece.phase, Project) and piece.phase.finish == "consider")  # long, and once
    return KernelRequest(
        text.name, arch, tuple(used), WORKERS, headers=("phases/launch.cuh",),
        constants=(("kBlocks", layout.schedule.blocks),), body=tuple(Line(line) for line in body),
        overlap=overlaps, shared=text.shared, min_blocks=1 if alone else 2,  # beside its predecessor
    )  # fmt: skip


def begin_request(arch: str) -> KernelRequest:
    """Write the kernel that comes before some steps: by one thread, it says where they begin."""
    numbers = tuple(Parameter(name, "int") for name in ("first", "prompt_length", "text_rows"))
    line = "  reinterpret_cast<Step*>(state)->begin(first, prompt_length, text_rows);"
    return KernelRequest("begin_steps", arch, (_OWN[0], *numbers), 1, ("phases/launch.cuh",), body=(Line(line),))


def stream_places(program: Program) -> dict[str, tuple[int, int]]:
    """Return where both copies of each residual stream begin, in floats."""
    found, start = dict[str, tuple[int, int]](), 0
    for stream, width in program.streams:
        size = divide_up(program.vectors(stream) * width, _ALIGN) * _ALIGN
        found[stream] = start, start + size
        start += 2 * size
    return found


def stream_floats(program: Program) -> int:
    """Return the floats of all copies."""
    vectors = program.vectors
    return sum(2 * divide_up(vectors(stream) * width, _ALIGN) * _ALIGN for stream, width in program.streams)


def few_places(layout: Layout) -> dict[str, int]:
    """Return where each attention to few positions keeps keys and values of all blocks, in bytes."""
    found, start = dict[str, int](), 0
    for phase, _ in layout.program.phases():
        if isinstance(phase, Attend) and phase.position:
            found[attend_memory(phase)] = start
            start += blocks_of(layout, phase) * layout.few_bytes(phase)
    return found


def few_bytes(layout: Layout) -> int:
    """Return the bytes of all of them."""
    few = [phase for phase, _ in layout.program.phases() if isinstance(phase, Attend) and phase.position]
    return sum(blocks_of(layout, phase) * layout.few_bytes(phase) for phase in few)


def shared_bytes(layout: Layout, phase: Phase) -> int:
    """Return the dynamic shared memory of a phase's launch, in bytes: at least what is used."""
    if isinstance(phase, Project):
        rows, parts, _ = _project_sizes(layout, phase)
        return 2 * rows * SUM_STRIDE * 4 + WARPS * parts + _SLACK
    if isinstance(phase, Attend):
        return layout.attend_bytes(phase) + _SLACK
    return _vocab(layout) // 8 + _SLACK if isinstance(phase, Sample) else 0


def _project_sizes(layout: Layout, phase: Project) -> tuple[int, int, int]:
    """Return the rows that are finished together, the bytes of a warp's columns, and how many vectors."""
    tiling, vectors = layout.tiling(phase.matrix), phase.vectors
    return vectors * 8 * tiling.tiles, vectors * 4 * STEP * tiling.steps, vectors


def _vocab(layout: Layout) -> int:
    return max(phase.vocab for phase, _ in layout.program.phases() if isinstance(phase, Sample))


def _names(lines: list[str], name: str) -> bool:
    word = re.compile(rf"(?<![\w.]){name}\b")
    return any(word.search(line) for line in lines)


class _Phases(PhaseText):
    """The lines of phases; what they say of streams, codes and the request is that of launches."""

    code = f"request[{REQUEST_HEAD} + code]"
    said_frame = "now.number - (now.prompt_length > 0 ? now.prompt_length - 1 : 0)"

    def __init__(self, layout: Layout, piece: Piece) -> None:
        super().__init__(layout)
        self.piece, self.places = piece, stream_places(layout.program)

    def source(self, phase: Project) -> str:
        spelled = super().source(phase)
        return f"around({spelled}, take, put)" if self.piece.held else spelled

    def streams(self) -> Iterator[str]:
        """Write what is done with residual streams before what they are owed is added, and after."""
        if not self.piece.held:
            return
        yield "const auto take = [&] {"
        for held in self.piece.held:
            if held.taken is not None:
                place = self.places[held.stream][held.taken]
                yield f"  take_up<{held.vectors}>({held.stream}, streams + {place}, {str(held.owed).lower()});"
        for begin in self.piece.phases[:-1]:
            assert isinstance(begin, Begin)
            yield from (f"  {line}" for line in self._begun(begin))
        yield "};"
        yield "const auto put = [&] {"
        for held in self.piece.held:
            if held.put is not None:
                yield f"  put_down<{held.vectors}>({held.stream}, streams + {self.places[held.stream][held.put]});"
        yield "};"

    def _begun(self, begin: Begin) -> list[str]:
        """Write how a stream begins, with what it needs of the state."""
        if isinstance(begin.source, Normed):
            return [self.carried(begin, begin.source)]
        lines = list(self.rows(begin))
        chosen = f"request[{REQUEST_HEAD - 1} + place]" if self.samples else "now.chosen"
        local = {**_FROM_STATE, "frames": "request[2]", "chosen": chosen}
        return [f"const int {name} = {value};" for name, value in local.items() if _names(lines, name)] + lines

    def owe(self, _: str) -> Iterator[str]:
        yield from ()

    def few(self, heads: str, attend: Attend) -> str:
        return f"AloneMemory<{heads}, {self.layout.counts[attend.position]}, {attend.vectors}>"

    def kept(self, _: Attend) -> str:
        return "kept"

    def behind_near(self, _: Attend) -> Iterator[str]:
        yield from ()

    def drawn_before(self, _: Project) -> Iterator[str]:
        yield from ()


class _Lines:
    """Writes the lines of a kernel's body."""

    def __init__(self, layout: Layout, piece: Piece) -> None:
        self.layout, self.program, self.piece, self.phase = layout, layout.program, piece, piece.phase
        self.text = _Phases(layout, piece)

    @property
    def name(self) -> str:
        phase = self.phase
        parts = ["begin"] * (len(self.piece.phases) - 1)
        parts.append(phase.matrix.name if isinstance(phase, Project) else type(phase).__name__.lower())
        if isinstance(phase, Attend):
            parts.append(phase.layer if phase.parted else f"{phase.layer}_alone")
        return "_".join([self.program.name, *parts])

    @property
    def shared(self) -> int:
        """Return the bytes of dynamic shared memory, at least as many as are used."""
        return shared_bytes(self.layout, self.phase)

    def lines(self) -> Iterator[str]:
        body = [f"  {line}" for line in self._body()]
        yield from self._types()
        yield f"  Predecessor<{str(self.piece.settles).lower()}> patience;"
        yield "  auto& now = *reinterpret_cast<Step*>(state);"
        if any(_names(body, exchange.name) for exchange in self.program.exchanges):
            yield "  Mail mail{reinterpret_cast<unsigned*>(exchanged), 0u};"
        for number, exchange in enumerate(self.program.exchanges):
            if _names(body, exchange.name):
                yield f"  const Exchange {exchange.name}{{mail, {self.layout.exchanges[exchange.name]}, {number}}};"
        for held in self.piece.held:
            sizes = f"{self.program.width(held.stream)}, {self.program.vectors(held.stream)}"
            yield f"  Residual<{sizes}> {held.stream};"
        yield from body
        yield "  if (last != 0 && blockIdx.x == 0 && threadIdx.x == 0) now.advance();"

    def _types(self) -> Iterator[str]:
        phase, members = self.phase, list[str]()
        if isinstance(phase, Project):
            yield f"  {matrix_type(phase.matrix)}"
            members.append(f"ProjectMemory<{', '.join(map(str, _project_sizes(self.layout, phase)))}> project;")
            members += ["ChooseMemory choose;"] if phase.finish == "consider" else []
        elif isinstance(phase, Attend | Merge):
            heads = replace(phase.heads, normed=False)
            yield f"  {heads_type(heads, self.layout.members(heads))}"
            members += [f"{self.text.storage(phase)} {attend_memory(phase)};"] if isinstance(phase, Attend) else []
        elif isinstance(phase, Sample):
            members.append(f"SampleMemory<{_vocab(self.layout)}> draw;")
        if members:
            yield f"  struct Memory {{ {' '.join(members)} }};"
            yield f'  static_assert(sizeof(Memory) <= {self.shared}, "the shared memory of the launch");'
            yield "  auto& memory = *dynamic_storage<Memory>();"

    def _body(self) -> Iterator[str]:
        phase = self.phase
        if isinstance(phase, Project):
            yield from self._project(phase)
        elif isinstance(phase, Attend):
            yield from self._attend(phase)
        elif isinstance(phase, Sample):
            yield from self._sample(phase)
        elif isinstance(phase, Choose):
            yield from self._choose(phase)
        else:
            yield from self.text.lines(phase)

    def _project(self, phase: Project) -> Iterator[str]:
        section = self.layout.section_of(phase.matrix)
        place = section.start
        for matrix in section.matrices[: section.matrices.index(phase.matrix)]:
            place += self.layout.tiling(matrix).bytes
        index = self.text.index(section.per)
        iteration = f" + {index} * {section.bytes}ll" if index else ""
        yield "DirectReader reader;"
        yield f"reader.begin(weights + blockIdx.x * {self.layout.stream_bytes}ll + {place}ll{iteration});"
        yield "int turn = 0;"
        yield from self.text.streams()
        yield from self.text.lines(phase)
        if phase.finish == "consider":
            best = next(it.exchange for it, _ in self.program.phases() if isinstance(it, Choose))
            yield "gather_best(memory.choose, best_candidate);"
            yield f"if (warp_index() == 0) publish_best(memory.choose, {best}, best_candidate);"

    def _attend(self, phase: Attend) -> Iterator[str]:
        if phase.position:
            heads, counts = heads_name(phase.heads), self.layout.counts
            kept = f"FewKept<{heads}, {counts[phase.layer]}, {counts[phase.position]}>"
            yield f'static_assert(sizeof({kept}) == {self.layout.few_bytes(phase)}, "what a block keeps");'
            start = few_places(self.layout)[attend_memory(phase)]
            yield f"auto& kept = reinterpret_cast<{kept}*>(few + {start})[blockIdx.x];"
        else:
            yield "const int position = early(&now.position);"
            yield "DirectReader reader;"
        yield from self.text.lines(phase)

    def _sample(self, phase: Sample) -> Iterator[str]:
        yield "recall(memory.draw, request, options);"
        yield "int frames = early(request + 2), chosen = 0;"
        yield "workers_barrier();"
        yield self.text.entries(phase)
        yield from self.text.lines(phase)
        yield "if (threadIdx.x == 0) request[2] = frames;"
        yield "memory.draw.store(request);"

    def _choose(self, phase: Choose) -> Iterator[str]:
        considered = (it for it, _ in self.program.phases() if isinstance(it, Project) and it.finish == "consider")
        project = next(considered)
        yield "patience.wait();"
        yield "if (warp_index() != 0) return;"
        yield "Candidate all;"
        yield f"await_best<{blocks_of(self.layout, project)}>({phase.exchange}, all);"
        chosen = f"all.token < {project.matrix.rows} ? all.token : 0"
        yield f"if (threadIdx.x == 0) said[now.number] = now.chosen = {chosen};"

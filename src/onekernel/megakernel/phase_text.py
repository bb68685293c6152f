"""The lines of a phase: calls of functions in kernels/phases, with operands spelled out."""

from __future__ import annotations

from collections.abc import Iterator

from onekernel.jit.generate import float_literal
from onekernel.megakernel.layout import KEPT_BYTES, Layout, divide_up
from onekernel.megakernel.program import (
    Attend,
    Begin,
    Choose,
    CodeRow,
    FrameSum,
    Given,
    Heads,
    Matrix,
    Merge,
    Normed,
    Phase,
    Project,
    Sample,
    TokenRow,
    Vector,
)

KEPT = {"bfloat16": "bfloat16", "float32": "float"}  # in CUDA, by how keys and values are kept


class PhaseText:
    """Writes the lines of the phases of a program, as one kernel; what else they may be (launches) overrides a few."""

    code = "memory.draw.codes[code]"  # of the last frame
    said_frame = "frames - request[2]"  # its place among the frames said

    def __init__(self, layout: Layout) -> None:
        self.layout, self.program, self.schedule = layout, layout.program, layout.schedule
        self.samples = [phase for phase, _ in self.program.phases() if isinstance(phase, Sample)]

    def lines(self, phase: Phase) -> Iterator[str]:
        """Write a phase."""
        if isinstance(phase, Begin):
            yield from self._begin(phase)
        elif isinstance(phase, Project):
            yield from self._project(phase)
        elif isinstance(phase, Attend):
            yield from self._attend(phase)
        elif isinstance(phase, Merge):
            yield f"merge<{heads_name(phase.heads)}, {self.schedule.patience}>(patience, {phase.parts}, {phase.into});"
        elif isinstance(phase, Sample):
            yield from self._sample(phase)
        else:
            yield from self._choose(phase)

    def index(self, per: tuple[str, ...]) -> str:
        """Spell the number of an iteration of these loops."""
        text = ""
        for name in per:
            text = f"({text} * {self.layout.counts[name]} + {name})" if text else name
        return text

    def _begin(self, phase: Begin) -> Iterator[str]:
        stream, source = phase.stream, phase.source
        if isinstance(source, Normed):
            yield self.carried(phase, source)
            return
        if isinstance(source, TokenRow | FrameSum) and any(attend.near for attend in self.program.attends):
            yield "fence();  // what others kept is seen from here on"
        yield f"if ({stream}.owed) {stream}.add({phase.owed});"
        yield from self.rows(phase)

    def rows(self, phase: Begin) -> Iterator[str]:
        """Write how a stream begins with rows, or with what an exchange holds."""
        stream, source, width = phase.stream, phase.source, self.program.width(phase.stream)
        if isinstance(source, TokenRow):
            yield f"{stream}.load(row_of<{width}>(table, step < prompt_length ? prompt[step] : chosen));"
        elif isinstance(source, FrameSum):
            yield "if (step < prompt_length) {"
            yield f"  {stream}.load(row_of<{width}>(prompt, step));"
            yield "} else {"
            yield f"  {stream}.clear();"
            row = f"row_of<{width}>(tables, {_table('code', source.rows)} + {self.code})"
            yield f"  {stream}.add_rows<{len(source.rows)}>([&](int code) {{ return {row}; }});"
            yield f"  {stream}.add_row(row_of<{width}>(text, (frames < text_rows ? frames : text_rows) - 1));"
            yield "}"
        elif isinstance(source, CodeRow):
            row = f"row_of<{width}>(sub_tables, {_table('(place - 1)', source.rows)} + chosen)"
            yield f"{stream}.load({row}, {phase.vector});"
        elif isinstance(source, Given):
            yield f"{stream}.clear({phase.vector});"
            yield f"{stream}.add({source.exchange}, {phase.vector});"

    def carried(self, phase: Begin, source: Normed) -> str:
        """Write how a stream begins with another one."""
        return f"carry(memory.project, turn, {phase.stream}, {phase.vector}, {self._normed(source)});"

    def drawn_before(self, phase: Project) -> Iterator[str]:
        """Write what is drawn for the entries that a product makes: it waits for nothing."""
        yield from (self.entries(sample) for sample in self.samples if sample.exchange == phase.into)

    def entries(self, phase: Sample) -> str:
        """Write the entries of a draw: of first codes only those that may be said."""
        count = phase.vocab if phase.place else 4 * divide_up(max(phase.codes, phase.end + 1), 4)
        return f"Entries<{count}> {phase.exchange}_entries(memory.draw.draw(frames, {phase.place or 0}));"

    def source(self, phase: Project) -> str:
        """Spell what is multiplied."""
        if isinstance(phase.source, Normed):
            return self._normed(phase.source, phase.vectors)
        return f"Plain<{type_name(phase.matrix.name)}::kColumns, {phase.vectors}>{{{phase.source.exchange}}}"

    def _project(self, phase: Project) -> Iterator[str]:
        matrix, source = type_name(phase.matrix.name), self.source(phase)
        finish = {"publish": f"Publish{{{phase.into}}}", "gate": f"PublishGated{{{phase.into}}}",
                  "consider": "Consider{best_candidate}"}[phase.finish]  # fmt: skip
        if phase.bias is not None:
            finish = f"PublishBiased{{{phase.into}, {self._vector(phase.bias)}}}"
        if phase.finish == "consider":
            yield "Candidate best_candidate;"
        yield from self.drawn_before(phase)
        given = f"memory.project, turn, patience, reader, {source}, {finish}"
        yield f"project<{self.schedule.patience}, {matrix}, {phase.vectors}>({given});"
        if phase.owe:
            yield from self.owe(phase.owe)

    def owe(self, stream: str) -> Iterator[str]:
        """Write that what was published is owed to a stream."""
        yield f"{stream}.owed = true;"

    def _normed(self, source: Normed, vectors: int = 1) -> str:
        weight, width = self._vector(source.weight), self.program.width(source.stream)
        sizes = f"{width}, float, {vectors}, {self.program.vectors(source.stream)}"
        return f"Normed<{sizes}>({source.stream}, {source.owed}, {weight}, {float_literal(source.epsilon)})"

    def _attend(self, phase: Attend) -> Iterator[str]:
        heads = heads_name(phase.heads)
        norms = [self._vector(vector) for vector in phase.norms] if phase.norms else ["nullptr", "nullptr"]
        position = phase.position or "position"
        rotation = f"rotation + {position} * {heads}::kHeadDim"
        operands = f"HeadOperands<float>{{{norms[0]}, {norms[1]}, {rotation}, {position}, "
        operands += f"{float_literal(phase.epsilon)}}}"
        memory, given = attend_memory(phase), phase.layer if phase.position else self.cache(phase)
        kind = "_few" if phase.position else "_near" if phase.near else ""
        vectors = f", {phase.vectors}" if phase.position else ""
        call = f"attend{kind}<{heads}, {self.schedule.patience}{vectors}>"
        reader = "reader, " if phase.parted else ""
        where = f"memory.{memory}, {self.kept(phase)}" if phase.position else f"memory.{memory}"
        yield f"{call}({where}, patience, {reader}{phase.queries}, {phase.into}, {operands}, {given});"
        if phase.near:
            yield from self.behind_near(phase)

    def storage(self, attend: Attend) -> str:
        """Spell the type of what an attention keeps in shared memory."""
        heads = heads_name(attend.heads)
        if attend.position:
            return self.few(heads, attend)
        return f"NearMemory<{heads}, {attend.near}>" if attend.near else f"AttendMemory<{heads}>"

    def few(self, heads: str, attend: Attend) -> str:
        """Spell the same for few positions."""
        counts = self.layout.counts
        return f"FewMemory<{heads}, {counts[attend.layer]}, {counts[attend.position]}, {attend.vectors}>"

    def kept(self, attend: Attend) -> str:
        """Spell where keys and values of few positions are kept."""
        return f"memory.{attend_memory(attend)}"

    def behind_near(self, attend: Attend) -> Iterator[str]:
        """Write what makes keys and values known to other members."""
        yield f"if ({attend.layer} == 0) fence();"

    def cache(self, attend: Attend) -> str:
        """Spell the cache of a layer."""
        heads = heads_name(attend.heads)
        return f"Cache<{heads}>{{cache + {attend.layer} * Cache<{heads}>::elements(capacity), capacity}}"

    def _sample(self, phase: Sample) -> Iterator[str]:
        place, rules = phase.place or "0", "NoRules{}"
        if not phase.place:
            rules = f"memory.draw.rules({phase.codes}, {phase.end}, frames >= 2)"
        given = f"{phase.exchange}, {phase.exchange}_entries, memory.draw.draw(frames, {place}), {rules}"
        yield f"chosen = sample(memory.draw, patience, {given});"
        if not phase.place:
            yield "remember(memory.draw, chosen);"
            yield f"if (chosen == {phase.end}) chosen = 0;  // said all the same, and nobody listens"
        last = f"{phase.place} == {self.layout.counts[phase.place] - 1}" if phase.place else ""
        yield f"if (threadIdx.x == 0) memory.draw.codes[{place}] = chosen;"
        row = f"({self.said_frame}) * 16 + {place}"
        yield f"if (blockIdx.x == 0 && threadIdx.x == 0) said[{row}] = chosen;"
        yield "workers_barrier();"
        if last:
            yield f"if ({last}) ++frames;"

    def _choose(self, phase: Choose) -> Iterator[str]:
        considered = (it.matrix.rows for it, _ in self.program.phases() if isinstance(it, Project) and not it.into)
        yield f"chosen = choose<kBlocks, {next(considered)}>(memory.choose, {phase.exchange}, best_candidate);"
        yield "if (blockIdx.x == 0 && threadIdx.x == 0) said[step] = chosen;"

    def _vector(self, vector: Vector) -> str:
        index = self.index(vector.per)
        return f"vectors + {self.layout.vectors[vector]}" + (f" + {index} * {vector.width}" if index else "")


def _table(number: str, rows: tuple[int, ...]) -> str:
    """Spell in which row a table begins: the first may be longer than the others, which are equal."""
    return f"({number} == 0 ? 0 : {rows[0]} + ({number} - 1) * {rows[-1]})"


def matrix_type(matrix: Matrix) -> str:
    """Write the type of a matrix."""
    return f"using {type_name(matrix.name)} = Matrix<{matrix.rows}, {matrix.columns}, kBlocks, {matrix.kind}>;"


def heads_type(heads: Heads, members: int, suffix: str = "") -> str:
    """Write the type of heads, whose name may have a suffix."""
    sizes = heads.heads, heads.kv_heads, heads.head_dim, members, KEPT[heads.kept]
    return f"using {heads_name(heads)}{suffix} = Heads<{', '.join(map(str, sizes))}>;"


def type_name(name: str) -> str:
    """Spell a name as a type."""
    return "".join(part.capitalize() for part in name.split("_"))


def heads_name(heads: Heads) -> str:
    """Name the type of heads."""
    bits = 8 * KEPT_BYTES[heads.kept]
    return f"Heads{heads.heads}By{heads.kv_heads}Of{heads.head_dim}In{bits}"


def attend_memory(attend: Attend) -> str:
    """Name the shared memory of an attention."""
    return f"{'near' if attend.near else 'attend'}_{attend.layer}"

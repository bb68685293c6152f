"""A phase of a program for many sessions -> calls of functions in kernels/phases/sessions."""

from __future__ import annotations

from collections.abc import Iterator

from onekernel.jit.generate import float_literal
from onekernel.megakernel.phase_text import KEPT, PhaseText, heads_name, type_name
from onekernel.megakernel.program import (
    Attend,
    Begin,
    CodeRow,
    FrameSum,
    Given,
    Matrix,
    Normed,
    Phase,
    Project,
    Sample,
)  # fmt: skip
from onekernel.megakernel.sessions.layout import CHOSEN, SessionsLayout


class SessionsPhaseText(PhaseText):
    """Writes the lines of a phase."""

    layout: SessionsLayout

    def vectors_of(self, matrix: Matrix) -> str:
        """Spell the geometry of the vectors that a matrix multiplies."""
        return f"Operands<{matrix.columns}, kSessions>"

    def _taken(self, exchange: str) -> Matrix:
        """Return a matrix that multiplies what an exchange holds; they all cut its columns alike."""
        projects = [phase for phase, _ in self.program.phases() if isinstance(phase, Project)]
        return next(it.matrix for it in projects if exchange in (getattr(it.source, name, "") for name in _NAMES))

    def _next_norm(self, exchange: str, *, begins: bool) -> str:
        """Spell the weights under which the next reader of a stream wants it."""
        projects = [phase for phase, _ in self.program.phases() if isinstance(phase, Project)]
        sources = [it.source for it in projects]
        weights = [source.weight for source in sources if isinstance(source, Normed) and source.owed == exchange]
        each = next(weight for weight in weights if weight.per)
        behind = next((weight for weight in weights if not weight.per), None)
        if begins:
            return f"vectors + {self.layout.vectors[each]}"
        reader = next(at for at, source in enumerate(sources) if isinstance(source, Normed) and source.weight == each)
        if reader > next(at for at, it in enumerate(projects) if it.owe and it.into == exchange):
            return self._vector(each)
        (layer,) = each.per
        later = f"vectors + {self.layout.vectors[each]} + ({layer} + 1) * {each.width}"
        if behind is None:  # nobody hears of the last layer
            return later
        return f"({layer} == {self.layout.counts[layer] - 1} ? {self._vector(behind)} : {later})"

    def _begin(self, phase: Begin) -> Iterator[str]:
        stream, owner = phase.stream, self.layout.owner(phase.stream)
        vectors = self.vectors_of(self._taken(phase.owed))
        given = f"memory.{stream}, {phase.owed}, {self._next_norm(phase.owed, begins=True)}"
        names = f"{type_name(owner.name)}, {vectors}, {owner.kind}"
        yield f"begin_stream<{names}>({given}, [&](int session, int of_block, int row) {{"
        yield from (f"  {line}" for line in self._rows_of(phase))
        yield "});"
        if isinstance(phase.source, Given):
            yield f"{phase.source.exchange}.end_use();"

    def _rows_of(self, phase: Begin) -> Iterator[str]:
        """Write how a row of a stream is made."""
        source, width = phase.source, self.program.width(phase.stream)
        if isinstance(source, FrameSum):
            first, rest = source.rows[0], source.rows[-1]
            yield "float sum = 0.0f;"
            yield "#pragma unroll"
            yield f"for (int code = 0; code < {len(source.rows)}; ++code) {{"
            place = f"(code == 0 ? 0 : {first} + (code - 1) * {rest}) + memory.spoken.codes[session][code]"
            yield f"  sum += to_float(row_of<{width}>(tables, {place})[row]);"
            yield "}"
            yield "const int frame = memory.spoken.frames[session] + step;"
            yield "const int rows = static_cast<int>(sessions[session].text_rows);"
            yield f"return sum + row_of<{width}>(sessions[session].text, (frame < rows ? frame : rows) - 1)[row];"
        elif isinstance(source, CodeRow):
            place = f"(place == 1 ? 0 : {source.rows[0]} + (place - 2) * {source.rows[-1]})"
            yield f"return row_of<{width}>(sub_tables, {place} + memory.spoken.codes[session][place - 1])[row];"
        elif isinstance(source, Given):
            yield f"return await_one({source.exchange}, session * {width} + row);"
        elif isinstance(source, Normed):
            yield f"const float normed = rounded_product(memory.{source.stream}.at[session][of_block], "
            yield f"    ({self._vector(source.weight)})[row]);"
            yield "return rounded_product(normed, memory.shared.factors[turns.factors ^ 1][session]);"

    def _project(self, phase: Project) -> Iterator[str]:
        matrix, source, kind = type_name(phase.matrix.name), phase.source, phase.matrix.kind
        normed = "true" if isinstance(source, Normed) else "false"
        everywhere = "true" if phase.matrix in self.layout.everywhere else "false"
        names = f"{self.schedule.patience}, {matrix}, {self.vectors_of(phase.matrix)}, {normed}, {everywhere}"
        ends = "true" if self.layout.reread.get(phase.matrix, True) else "false"
        source_name = source.owed if isinstance(source, Normed) else source.exchange
        epsilon = float_literal(source.epsilon) if isinstance(source, Normed) else "0.0f"
        given = f"memory.shared, memory.landing, turns, patience, reader, {source_name}, {ends}, {epsilon}"
        yield f"project_sessions<{names}>({given}, {self._finish(phase, kind)});"

    def _finish(self, phase: Project, kind: str) -> str:
        if phase.owe:
            owner = type_name(self.layout.owner(phase.owe).name)
            vectors = self.vectors_of(self._taken(phase.into))
            names = f"{type_name(phase.matrix.name)}, {vectors}, {kind}, KeptRows<{owner}, kSessions>"
            silent = " && ".join(phase.silent) or "false"
            given = f"{phase.into}, memory.{phase.owe}, {self._next_norm(phase.into, begins=False)}, !({silent})"
            return f"AddToStream<{names}>{{{given}}}"
        if phase.finish == "gate":
            return f"PublishGates<{self.vectors_of(self._taken(phase.into))}, {kind}>{{{phase.into}}}"
        bias = self._vector(phase.bias) if phase.bias is not None else "nullptr"
        return f"PublishRows<{phase.matrix.rows}>{{{phase.into}, {bias}}}"

    def _attend(self, phase: Attend) -> Iterator[str]:
        heads, matrix = heads_name(phase.heads), self._taken(phase.into)
        unit, ticks = f"{heads}Unit", self.schedule.patience
        yield f"attend_units<{unit}, kSessions, kBlocks>({phase.queries}, [&](const Unit& unit, const Exchange& its) {{"
        yield f"  const int at = {phase.position or 'sessions[unit.session].position_at(step)'};"
        yield f"  const HeadOperands<float> operands{{{self.operands(phase, 'at')}}};"
        to = f"ToContext<{heads}, {self.vectors_of(matrix)}, {matrix.kind}>"
        yield f"  const {to} to{{{phase.into}, unit}};"
        yield f"  if (sessions[unit.session].present == 0) return skip_unit<{unit}>(unit, to);"
        given, seen = "patience, its, operands, kept, unit, to", "memory.seen"
        if phase.position:
            layers, positions = self.layout.counts[phase.layer], self.layout.counts[phase.position]
            number = f"(unit.session * {unit}::kKvHeads + unit.kv_head) * {unit}::kMembers + unit.part"
            start = f"(({number}) * {layers} + {phase.layer}) * {2 * positions} * {unit}::kHeadDim"
            start = f"reinterpret_cast<{KEPT[phase.heads.kept]}*>(few) + {start}"
            yield f"  const FewOfUnit<{unit}, {positions}> kept{{{start}}};"
            yield f"  attend_unit_near<{heads}, {unit}, {positions}, {ticks}>({seen}.few, {given});"
        else:
            yield f"  {self.unit_cache(phase)}"
            yield f"  if (at < {phase.near})"
            yield f"    attend_unit_near<{heads}, {unit}, {phase.near}, {ticks}>({seen}.unit.near, {given});"
            yield "  else"
            yield f"    attend_unit_far<{heads}, {heads}Alone, {ticks}>({seen}.unit.far, {given});"
        yield "});"
        yield "patience.lap(2);"
        yield "patience.since = clock_ticks();"

    def operands(self, phase: Attend, position: str) -> str:
        """Spell what queries and keys of a position go through."""
        norms = [self._vector(vector) for vector in phase.norms] if phase.norms else ["nullptr", "nullptr"]
        rotation = f"rotation + {position} * {heads_name(phase.heads)}::kHeadDim"
        return f"{norms[0]}, {norms[1]}, {rotation}, {position}, {float_literal(phase.epsilon)}"

    def unit_cache(self, phase: Attend) -> str:
        """Declare the keys and values of a unit in a layer."""
        heads = heads_name(phase.heads)
        cache = f"static_cast<{KEPT[phase.heads.kept]}*>(sessions[unit.session].cache)"
        start = f"{cache} + {phase.layer} * Cache<{heads}>::elements(capacity)"
        return f"const Cache<{heads}> kept{{{start}, capacity, unit.kv_head}};"

    def _sample(self, phase: Sample) -> Iterator[str]:
        place, rules = phase.place or "0", "NoRules{}"
        draw = f"memory.draw.draw(frames, {place})"
        yield "int code = 0;"
        yield "if (static_cast<int>(blockIdx.x) < kSessions) {"
        start = f"{phase.exchange}.start + static_cast<int>(blockIdx.x) * {phase.vocab}"
        yield f"  const Exchange its{{mail, {start}, {phase.exchange}.number}};"
        yield f"  {self.entries(phase)}"
        if not phase.place:
            rules = f"memory.draw.rules({phase.codes}, {phase.end}, frames >= 2)"
        yield f"  code = sample(memory.draw, patience, its, {phase.exchange}_entries, {draw}, {rules});"
        if not phase.place:
            yield "  remember(memory.draw, code);"
            yield f"  if (code == {phase.end}) code = 0;  // said all the same, and nobody listens"
        yield "  if (threadIdx.x == 0) {"
        yield f"    memory.draw.codes[{place}] = code;"
        yield f"    sessions[blockIdx.x].said[step * 16 + {place}] = code;"
        yield "  }"
        yield "} else {"
        yield f"  {phase.exchange}.end_use();"
        yield "}"
        yield f"tell_codes(memory.spoken, {CHOSEN}, {place}, code);"
        yield "patience.lap(3);"
        if phase.place:
            yield f"if ({phase.place} == {self.layout.counts[phase.place] - 1}) ++frames;"

    def lines(self, phase: Phase) -> Iterator[str]:
        """Write a phase; what is declared in it, ends with it."""
        if isinstance(phase, Sample):
            yield "{"
            yield from (f"  {line}" for line in super().lines(phase))
            yield "}"
        else:
            yield from super().lines(phase)


_NAMES = ("exchange", "owed")  # of a source

"""Chain + Schedule -> KernelRequest: one line of CUDA for each step, load and store."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from onekernel.device.parts import arch_number
from onekernel.fusion.chain import Chain, Operand, Result, Step
from onekernel.fusion.schedule import Schedule
from onekernel.jit import KernelRequest, Line, Parameter
from onekernel.jit.generate import float_literal
from onekernel.jit.request import ELEMENTS

_LOADS = {"full": "load", "channel": "load_channel", "row": "load_row", "scalar": "load_scalar"}


def chain_request(chain: Chain, schedule: Schedule, arch: str) -> KernelRequest:
    """Make the request for a canonical chain (operands in0.., results out0..)."""
    overlap = schedule.overlap and arch_number(arch) >= 90
    return KernelRequest(
        name=chain.name,
        arch=arch,
        parameters=tuple(_parameters(chain)),
        threads=schedule.threads,
        headers=("rows/normalise.cuh",),
        constants=(("hidden", chain.hidden),),
        body=tuple(_body(chain, schedule, overlap)),
        min_blocks=schedule.min_blocks,
        cluster=schedule.blocks,
        overlap=overlap,
    )


def _parameters(chain: Chain) -> Iterator[Parameter]:
    for operand in chain.operands:
        yield Parameter(operand.name, f"const {ELEMENTS[operand.dtype]}*")
    for result in chain.results:
        yield Parameter(result.name, f"{ELEMENTS[result.dtype]}*")
    yield Parameter("outer", "int")
    yield Parameter("inner", "int")


def _body(chain: Chain, schedule: Schedule, overlap: bool) -> Iterator[Line]:
    if overlap:
        yield Line("  start_successor();")
    yield Line(f"  const {schedule.type} place(outer, hidden, inner);")
    if overlap:
        yield Line("  await_predecessor();")
    yield from _held(chain, schedule.early) if schedule.held else _looped(chain)
    yield Line("  place.finish();")


def _held(chain: Chain, fetch_early: bool) -> Iterator[Line]:
    """hold -> standardize -> transform, each followed by the store of what it made."""
    half = _Half(chain, known=set())
    early = _made_before(chain)
    yield Line("  auto row = hold(place, [&](auto at) {")
    yield from half.define(chain.normal_input)
    yield from half.stores(result for result in early if result.value != chain.normal_input)
    yield Line(f"    return {half.spell(chain.normal_input)};")
    yield Line("  });")
    yield from _store_row(early, chain.normal_input)
    late = [result for result in chain.results if result not in early]
    last = late[-1].value
    half = _Half(chain, known={chain.normal_output})
    if fetch_early:
        needed = _Half(chain, known={chain.normal_output}).walk(result.value for result in late)
        yield from half.fetch(item for item in chain.operands if item.name in needed and item.kind != "scalar")
    yield Line(f"  standardize(place, row, {float_literal(chain.epsilon)});")
    if last != chain.normal_output:
        yield Line(f"  transform(place, row, [&](auto at, auto {chain.normal_output}) {{")
        for result in late:
            yield from half.define(result.value)
        yield from half.stores(result for result in late if result.value != last)
        yield Line(f"    return {half.spell(last)};")
        yield Line("  });")
    yield from _store_row(late, last)


def _store_row(results: Iterable[Result], value: str) -> Iterator[Line]:
    for result in results:
        if result.value == value:
            yield Line(f"  store(place, {result.name}, row);")


def _looped(chain: Chain) -> Iterator[Line]:
    """One call with two functions, which store what they make."""
    half = _Half(chain, known=set())
    early = _made_before(chain)
    yield Line(f"  normalise_looped(place, {float_literal(chain.epsilon)}, [&](auto at) {{")
    yield from half.define(chain.normal_input)
    yield from half.stores(early)
    yield Line(f"    return {half.spell(chain.normal_input)};")
    yield Line(f"  }}, [&](auto at, auto {chain.normal_output}) {{")
    half = _Half(chain, known={chain.normal_output})
    for result in chain.results:
        if result not in early:
            yield from half.define(result.value)
            yield from half.stores([result])
    yield Line("  });")


def _made_before(chain: Chain) -> list[Result]:
    """Return the results that are made on the way to the values that are normalised."""
    met = _Half(chain, known=set()).walk([chain.normal_input])
    return [result for result in chain.results if result.value in met]


class _Half:
    """Writes the lines that define values, each once, in the order they are needed."""

    def __init__(self, chain: Chain, known: set[str]) -> None:
        self.known = known
        self._steps = {step.output: step for step in (*chain.prologue, *chain.epilogue)}
        self._operands = {operand.name: operand for operand in chain.operands}
        self._loaded = {operand.name: f"x{index}" for index, operand in enumerate(chain.operands)}

    def define(self, value: str) -> Iterator[Line]:
        if value in self.known:
            return
        self.known.add(value)
        if value in self._operands:
            yield self._load(self._operands[value])
            return
        step = self._steps[value]
        for needed in step.inputs:
            if isinstance(needed, str):
                yield from self.define(needed)
        yield self._compute(step)

    def walk(self, values: Iterable[str]) -> set[str]:
        """Return every operand and step output that the values are made of, themselves included."""
        for value in values:
            for _ in self.define(value):
                pass
        return self.known

    def fetch(self, operands: Iterable[Operand]) -> Iterator[Line]:
        """Hold operands for the whole row; the lines that use them come later."""
        for operand in operands:
            name = self._loaded[operand.name]
            load = f"at.{_LOADS[operand.kind]}({operand.name})"
            yield Line(f"  const auto {name} = hold(place, [&](auto at) {{ return {load}; }});")
            self._loaded[operand.name] = f"{name}[at]"
            self.known.add(operand.name)

    def stores(self, results: Iterable[Result]) -> Iterator[Line]:
        for result in results:
            yield Line(f"    at.store({result.name}, {self.spell(result.value)});")

    def spell(self, value: str | float) -> str:
        if isinstance(value, float | int):
            return float_literal(float(value))
        return self._loaded.get(value, value)

    def _load(self, operand: Operand) -> Line:
        return Line(f"    const auto {self.spell(operand.name)} = at.{_LOADS[operand.kind]}({operand.name});")

    def _compute(self, step: Step) -> Line:
        arguments = ", ".join(map(self.spell, step.inputs))
        text = f"    const auto {step.output} = each<op::{step.op}>({arguments});"
        return Line(text, origin=f"chain:{step.source[0]}" if step.source else "")

"""Chain + Schedule -> KernelRequest: one line of CUDA for each step, load and store."""

from __future__ import annotations

from collections.abc import Iterator

from onekernel.fusion.chain import Chain, Operand, Result, Step
from onekernel.fusion.schedule import Schedule
from onekernel.jit import KernelRequest, Line, Parameter
from onekernel.jit.generate import float_literal
from onekernel.jit.request import ELEMENTS

_LOADS = {"full": "load", "channel": "load_channel", "row": "load_row", "scalar": "load_scalar"}


def chain_request(chain: Chain, schedule: Schedule, arch: str) -> KernelRequest:
    """Make the request for a canonical chain (operands in0.., results out0..)."""
    return KernelRequest(
        name=chain.name,
        arch=arch,
        parameters=tuple(_parameters(chain)),
        threads=schedule.threads,
        headers=("rows/normalise.cuh",),
        constants=(("hidden", chain.hidden),),
        body=tuple(_body(chain, schedule)),
        min_blocks=schedule.min_blocks,
        cluster=schedule.blocks,
    )


def _parameters(chain: Chain) -> Iterator[Parameter]:
    for operand in chain.operands:
        yield Parameter(operand.name, f"const {ELEMENTS[operand.dtype]}*")
    for result in chain.results:
        yield Parameter(result.name, f"{ELEMENTS[result.dtype]}*")
    yield Parameter("outer", "int")
    yield Parameter("inner", "int")


def _body(chain: Chain, schedule: Schedule) -> Iterator[Line]:
    function = "normalise" if schedule.held else "normalise_looped"
    yield Line(f"  const {schedule.type} place(outer, hidden, inner);")
    yield Line(f"  {function}(place, {float_literal(chain.epsilon)},")
    yield Line("    [&](auto at) {")
    prologue = _Half(chain, known=set())
    yield from prologue.define(chain.normal_input)
    in_prologue = [result for result in chain.results if result.value in prologue.known]
    yield from prologue.stores(in_prologue)
    yield Line(f"      return {prologue.spell(chain.normal_input)};")
    yield Line("    },")
    yield Line(f"    [&](auto at, auto {chain.normal_output}) {{")
    epilogue = _Half(chain, known={chain.normal_output})
    for result in chain.results:
        if result not in in_prologue:
            yield from epilogue.define(result.value)
            yield from epilogue.stores([result])
    yield Line("    });")


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

    def stores(self, results: list[Result]) -> Iterator[Line]:
        for result in results:
            yield Line(f"      at.store({result.name}, {self.spell(result.value)});")

    def spell(self, value: str | float) -> str:
        if isinstance(value, float | int):
            return float_literal(float(value))
        return self._loaded.get(value, value)

    def _load(self, operand: Operand) -> Line:
        return Line(f"      const auto {self.spell(operand.name)} = at.{_LOADS[operand.kind]}({operand.name});")

    def _compute(self, step: Step) -> Line:
        arguments = ", ".join(map(self.spell, step.inputs))
        text = f"      const auto {step.output} = each<op::{step.op}>({arguments});"
        return Line(text, origin=f"chain:{step.source[0]}" if step.source else "")

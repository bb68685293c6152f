"""Models that a runtime executes, as Subjects: an ONNX model on ONNX Runtime's CPU provider, and a fused model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from onekernel.device.cuda.gpu import GpuDevice
from onekernel.graph import onnx_reader
from onekernel.graph.onnx_session import cpu_session
from onekernel.graph.onnx_trace import dtype_name
from onekernel.splice import FusedModel, load
from onekernel.splice.loop import Step
from onekernel.splice.signature import Array, Inputs, bind, inputs_of
from onekernel.targets.draws import repeated, repeated_in
from onekernel.targets.inputs import table_rows
from onekernel.targets.onnx_model import name_of
from onekernel.targets.opened import Opened
from onekernel.verify import Subject
from onekernel.verify.sides.subject import See


def open_onnx(target: str | Path | Any, *, random: bool) -> Opened:
    """Open an ONNX model, a path or a ModelProto. `random`: its draws of random numbers are left to chance."""
    model = onnx_reader.load(target)
    specs, tables = inputs_of(model), table_rows(model)
    model = model if random else repeated(model)
    runner = _Runner(model)
    inside = tuple(sorted(_dtypes(model)))
    subject = Subject(runner, name_of(target), values=runner.values, reopen=lambda: _Runner(model), inside=inside)
    return Opened(subject, specs=specs, tables=tables)


class _Runner:
    """Answers requests in one session, and shows all values in another, which is made when it is first needed."""

    def __init__(self, model: Any) -> None:
        self._model, self._specs = model, inputs_of(model)
        self._session = cpu_session(model.SerializeToString())
        self._outputs = [item.name for item in self._session.get_outputs()]

    def __call__(self, inputs: Inputs) -> dict[str, Any]:
        return self._answer(self._session, self._outputs, inputs)

    def values(self, inputs: Inputs) -> dict[str, Array]:
        """Return what every node wrote, in the order of the nodes, as far as numpy has its type."""
        probe = self._probe
        kinds = {item.name: item.type for item in probe.get_outputs()}
        named = [name for name, kind in kinds.items() if kind.startswith("tensor(") and kind != "tensor(bfloat16)"]
        return self._answer(probe, named, inputs)

    @cached_property
    def _probe(self) -> Any:
        from onnx import ModelProto, ValueInfoProto

        probe = ModelProto()
        probe.CopyFrom(self._model)
        del probe.graph.output[:]
        names = dict.fromkeys(name for node in self._model.graph.node for name in node.output if name)
        probe.graph.output.extend(ValueInfoProto(name=name) for name in names)
        return cpu_session(probe.SerializeToString(), optimize=False)

    def _answer(self, session: Any, outputs: Sequence[str], inputs: Inputs) -> dict[str, Any]:
        return dict(zip(outputs, session.run(outputs, bind(self._specs, inputs)), strict=True))


def _dtypes(model: Any) -> set[str]:
    """Name the dtypes that a model shows without being run: of weights, declared values, constants and casts."""
    graph = model.graph
    elements = {item.data_type for item in graph.initializer}
    elements |= {value.type.tensor_type.elem_type for value in (*graph.input, *graph.output, *graph.value_info)}
    for node in graph.node:
        elements |= {item.i for item in node.attribute if node.op_type == "Cast" and item.name == "to"}
        elements |= {item.t.data_type for item in node.attribute if node.op_type == "Constant"}
    return {dtype_name(element) for element in elements - {0}}


def open_folder(folder: Path, *, random: bool) -> Opened:
    """Open what `onekernel optimize` wrote; its kernels are built before they are judged."""

    def model() -> FusedModel:
        return load(folder, compile="block")

    return open_fused(model(), folder.name, random=random, again=model)


def open_fused(
    model: FusedModel, name: str = "fused", *, random: bool, again: Callable[[], FusedModel] | None = None
) -> Opened:
    """Take a fused model; `again` opens it anew."""
    ready = model if random else repeated_in(model)
    dtypes = {spec.dtype for spec in (*model.inputs, *model.outputs)}
    for chain in model.chains:
        dtypes |= {item.dtype for item in chain.operands} | {item.dtype for item in chain.results}
    device = model.engine.supply.device if model.engine.supply else None
    subject = Subject(
        ready,
        name,
        watch=lambda inputs, see: _watch(ready, inputs, see),
        values=lambda inputs: _values(ready, inputs),
        reopen=None if again is None else lambda: again() if random else repeated_in(again()),
        inside=tuple(sorted(dtypes)),
        gpu=device.ordinal if isinstance(device, GpuDevice) else None,
    )
    return Opened(subject, specs=model.inputs)


def _watch(model: FusedModel, inputs: Inputs, see: See) -> dict[str, Array]:
    """Show each step: a kernel by the name of its chain, a session by what it writes."""

    def watch(step: Step, read: Sequence[Any], written: Sequence[Any]) -> None:
        del read
        see(_name(model, step), dict(zip(step.outputs, written, strict=True)))

    return model(inputs, watch=watch)


def _name(model: FusedModel, step: Step) -> str:
    if step.chain is not None:
        return model.chains[step.chain].name
    first, *more = step.outputs
    return f"{first} and {len(more)} more" if more else first


def _values(model: FusedModel, inputs: Inputs) -> dict[str, Array]:
    """Return what every step wrote."""
    seen: dict[str, Array] = {}

    def watch(step: Step, read: Sequence[Any], written: Sequence[Any]) -> None:
        del read
        seen.update(zip(step.outputs, model.engine.download(written), strict=True))

    model(inputs, watch=watch)
    return seen

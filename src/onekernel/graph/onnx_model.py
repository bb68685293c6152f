"""Knows what an ONNX file must be to be read: opset, operators, inlined functions, a name for every node.

It refuses to know what the operators mean, and what shapes they have.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onekernel.errors import InvalidInput, MissingExtra

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, NodeProto

OPSETS = range(11, 21)
STANDARD = ("", "ai.onnx")


def load(source: str | Path | ModelProto) -> ModelProto:
    """Return a usable model: weights in memory, functions inlined, every node named.

    A `ModelProto` is named in place. Raises InvalidInput for anything that cannot be read.
    """
    try:
        from onnx import inliner
    except ModuleNotFoundError as error:
        raise MissingExtra("onnx", "onnx") from error
    model = _parse(Path(source)) if isinstance(source, (str, Path)) else source
    _check_kind(model)
    _check_opset(model)
    if model.functions:
        model = inliner.inline_local_functions(model)
    _check_operators(model)
    _free_negative_sizes(model)
    return name_nodes(model)


def _free_negative_sizes(model: ModelProto) -> None:
    """Clear negative sizes of inputs and outputs, in place: some exporters write a free size so."""
    for value in (*model.graph.input, *model.graph.output):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_value < 0:
                dim.ClearField("dim_value")


def name_nodes(model: ModelProto) -> ModelProto:
    """Give every node of the main graph a unique name, in place; a unique name stays as it is."""
    taken = {node.name for node in model.graph.node}
    seen: set[str] = set()
    for node in model.graph.node:
        if not node.name or node.name in seen:
            node.name = _fresh(node.name or node.op_type, taken)
        seen.add(node.name)
    return model


def captured(node: NodeProto) -> tuple[str, ...]:
    """Names of outer values that the bodies of a control-flow node read."""
    bodies = [body for item in node.attribute for body in ([item.g] if item.HasField("g") else item.graphs)]
    return tuple(dict.fromkeys(name for body in bodies for name in _free_names(body)))


def _free_names(graph: GraphProto) -> Iterator[str]:
    own = {value.name for value in (*graph.input, *graph.initializer)}
    for node in graph.node:
        yield from (name for name in (*node.input, *captured(node)) if name and name not in own)
        own.update(node.output)
    yield from (value.name for value in graph.output if value.name not in own)


def _fresh(stem: str, taken: set[str]) -> str:
    number = 0
    while (name := f"{stem}_{number}") in taken:
        number += 1
    taken.add(name)
    return name


def _parse(path: Path) -> ModelProto:
    import onnx
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

    hint = "give the path of an .onnx file"
    if not path.is_file():
        got = "a folder" if path.is_dir() else "no such file"
        raise InvalidInput(expected=f"an ONNX model at {path}", got=got, todo=hint)
    try:
        model = onnx.load(str(path), format="protobuf")
    except DecodeError as error:
        raise InvalidInput(expected=f"an ONNX model at {path}", got="another format", todo=hint) from error
    except (OSError, ValueError, onnx.checker.ValidationError) as error:
        reason = str(error).splitlines()[0]
        todo = "put the external data files beside the model"
        raise InvalidInput(expected=f"the whole of {path}", got=reason, todo=todo) from error
    if not model.opset_import or not model.graph.node:
        got = "another format" if path.stat().st_size else "an empty file"
        raise InvalidInput(expected=f"an ONNX model at {path}", got=got, todo=hint)
    return model


def _check_kind(model: Any) -> None:
    from onnx import ModelProto, external_data_helper

    if not isinstance(model, ModelProto):
        todo = "give the path of an .onnx file, or what onnx.load returns"
        raise InvalidInput(expected="an ONNX model", got=type(model).__name__, todo=todo)
    outside = next(filter(external_data_helper.uses_external_data, model.graph.initializer), None)
    if outside is not None:
        todo = "read it with onnx.load, which reads the external data too"
        raise InvalidInput(expected="a model with its weights", got=f"{outside.name!r} in another file", todo=todo)
    if model.graph.sparse_initializer:
        name = model.graph.sparse_initializer[0].values.name
        raise InvalidInput(expected="dense weights", got=f"the sparse {name!r}", todo="export the weights as dense")


def _check_opset(model: ModelProto) -> None:
    opset = standard_opset(model)
    if opset not in OPSETS:
        raise InvalidInput(
            expected=f"ONNX opset {OPSETS[0]} to {OPSETS[-1]}",
            got=f"opset {opset}",
            todo="export the model again, or use onnx.version_converter",
        )


def standard_opset(model: ModelProto) -> int:
    """Version of the standard operators that the model imports; 0 when it imports none."""
    return next((int(item.version) for item in model.opset_import if item.domain in STANDARD), 0)


def _check_operators(model: ModelProto) -> None:
    versions = {item.domain: int(item.version) for item in model.opset_import}
    versions.update(dict.fromkeys(STANDARD, standard_opset(model)))
    for node in _every_node(model.graph):
        if node.domain != "com.microsoft" and not _is_defined(node, versions.get(node.domain, 0)):
            raise InvalidInput(
                expected=f"operators of ONNX opset {versions['']} or of com.microsoft",
                got=f"{node.domain + '.' if node.domain else ''}{node.op_type} (node {node.name!r})",
                todo="export the model without custom operators",
            )


def _every_node(graph: GraphProto) -> Iterator[NodeProto]:
    for node in graph.node:
        yield node
        for item in node.attribute:
            for body in [item.g] if item.HasField("g") else item.graphs:
                yield from _every_node(body)


def _is_defined(node: NodeProto, version: int) -> bool:
    from onnx import defs

    domain = "" if node.domain in STANDARD else node.domain
    try:
        defs.get_schema(node.op_type, version, domain)
    except defs.SchemaError:
        return False
    return True

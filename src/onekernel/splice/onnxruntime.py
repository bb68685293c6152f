"""Back into ONNX Runtime: a model cut at its chains becomes sessions with kernels between them.

It joins a plan, the segments' models and an engine into one FusedModel. It searches for nothing and compiles
nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from onekernel.errors import InvalidInput, InvalidOperand, NotReady
from onekernel.fusion.chain import Chain
from onekernel.splice import segments
from onekernel.splice.engine import Engine
from onekernel.splice.loop import Call, Step, make_loop
from onekernel.splice.model import FusedModel, Part
from onekernel.splice.plan import Launch, Segment, cut, unfused
from onekernel.splice.signature import Array, Spec, inputs_of, outputs_of

Shape = tuple[int, ...]


def splice(
    model: Any, chains: Sequence[Chain], engine: Engine, constants: Mapping[str, Array] | None = None
) -> FusedModel:
    """Cut an ONNX model with named nodes at the chains and join the pieces into a callable.

    `constants` holds operands whose content is known. Raises InvalidInput for chains that do not belong to
    the model or are entered again by a path that leaves them.
    """
    read = {operand.name for chain in chains for operand in chain.operands}
    known = {name: array for name, array in (constants or {}).items() if name in read}
    steps = cut(model, chains, known)
    originals = [unfused(model, chain) for chain in chains]
    pieces = [step for step in (*steps, *originals) if isinstance(step, Segment)]
    types = segments.value_types(model, (name for piece in pieces for name in (*piece.inputs, *piece.outputs)))
    return assemble(
        [_part(model, step, types, originals) for step in steps],
        chains,
        engine,
        signature=(inputs_of(model), outputs_of(model)),
        constants=known,
        original=model,
    )


def _part(model: Any, step: Segment | Launch, types: Mapping[str, Any], originals: Sequence[Segment | None]) -> Part:
    if isinstance(step, Segment):
        return Part(step.inputs, step.outputs, segments.build(model, step, types).SerializeToString())
    original = originals[step.chain]
    before = None if original is None else segments.build(model, original, types).SerializeToString()
    return Part(step.inputs, step.outputs, chain=step.chain, unfused=before)


def assemble(
    parts: Sequence[Part],
    chains: Sequence[Chain],
    engine: Engine,
    *,
    signature: tuple[tuple[Spec, ...], tuple[Spec, ...]],
    constants: Mapping[str, Array],
    original: Any = None,
) -> FusedModel:
    """Turn parts into the steps of a loop: what `splice` cut, or what a folder holds."""
    counts = Counter[str]()
    steps = [Step(_call(part, chains, engine, counts), part.inputs, part.outputs, part.chain) for part in parts]
    inputs, outputs = signature
    return FusedModel(
        inputs=inputs,
        outputs=outputs,
        chains=tuple(chains),
        constants=constants,
        parts=tuple(parts),
        loop=make_loop(steps, [spec.name for spec in outputs]),
        fixed=dict(zip(constants, engine.upload(list(constants.values())), strict=True)),
        engine=engine,
        original=original,
        counts=counts,
    )


def _call(part: Part, chains: Sequence[Chain], engine: Engine, counts: Counter[str]) -> Any:
    if part.chain is not None:
        return _either(_checked(engine.kernel(chains[part.chain]), chains[part.chain]), part, engine, counts)
    assert part.segment is not None
    return engine.session(part.segment, part.inputs, part.outputs)


def _either(fused: Call, part: Part, engine: Engine, counts: Counter[str]) -> Call:
    """Run a chain's kernel where there is one, else the operators that it stands for."""

    @cache
    def original() -> Call:  # most calls never need it
        assert part.unfused is not None
        return engine.session(part.unfused, tuple(dict.fromkeys(part.inputs)), part.outputs)

    def call(values: Sequence[Any]) -> Sequence[Any]:
        try:
            results = fused(values)
            counts["fused"] += 1
        except NotReady as refusal:
            if part.unfused is None or engine.supply is None:
                raise
            engine.supply.concede(refusal)
            results = original()(list(dict(zip(part.inputs, values, strict=True)).values()))
            counts["unfused"] += 1
        return results

    return call


def _checked(kernel: Call, chain: Chain) -> Call:
    """Refuse operands that are not broadcast as in the sample, naming values of the model, not kernel parameters."""

    def call(values: Sequence[Any]) -> Sequence[Any]:
        shapes = list(map(_shape, values))
        if not _broadcast_as_in_sample(chain, shapes):
            raise _refusal(chain, shapes)
        try:
            return kernel(values)
        except InvalidOperand as error:
            raise _refusal(chain, shapes) from error

    return call


def _broadcast_as_in_sample(chain: Chain, shapes: Sequence[Shape]) -> bool:
    """Say whether small operands lie along the axes that the chain knows; a kernel sees their sizes only."""
    full = next(shape for item, shape in zip(chain.operands, shapes, strict=True) if item.kind == "full")
    across = full[: chain.axis] + full[chain.axis + 1 :]
    for item, shape in zip(chain.operands, shapes, strict=True):
        if item.kind == "channel" and item.shape not in (None, shape):
            return False
        if item.kind == "row" and across not in (
            shape[:i] + shape[i + 1 :] for i, size in enumerate(shape) if size == 1
        ):
            return False
    return True


def _refusal(chain: Chain, shapes: Sequence[Shape]) -> InvalidInput:
    sample = f"the sample's {list(chain.sample_shape)}"
    return InvalidInput(
        expected=f"values of {chain.name!r} with sizes that relate to each other as in {sample}",
        got=", ".join(f"{item.name!r} {list(shape)}" for item, shape in zip(chain.operands, shapes, strict=True)),
        todo="optimize the model again with inputs of the new sizes",
    )


def _shape(value: Any) -> Shape:
    return tuple(value.shape() if callable(value.shape) else value.shape)  # an OrtValue's is a method

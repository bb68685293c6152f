"""Back into ONNX Runtime: a model cut at its chains becomes sessions with kernels between them.

It joins a plan, the segments' models and an engine into one FusedModel. It searches for nothing and compiles
nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from onekernel.errors import InvalidInput, InvalidOperand
from onekernel.fusion.chain import Chain
from onekernel.splice import segments
from onekernel.splice.engine import Engine
from onekernel.splice.loop import Call, Step, make_loop
from onekernel.splice.model import FusedModel, Part
from onekernel.splice.plan import Segment, cut
from onekernel.splice.signature import Array, Spec, inputs_of, outputs_of


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
    pieces = [step for step in steps if isinstance(step, Segment)]
    types = segments.value_types(model, (name for piece in pieces for name in (*piece.inputs, *piece.outputs)))
    return assemble(
        [_part(model, step, types) for step in steps],
        chains,
        engine,
        signature=(inputs_of(model), outputs_of(model)),
        constants=known,
        original=model,
    )


def _part(model: Any, step: Any, types: Mapping[str, Any]) -> Part:
    if not isinstance(step, Segment):
        return Part(step.inputs, step.outputs, chain=step.chain)
    return Part(step.inputs, step.outputs, segments.build(model, step, types).SerializeToString())


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
    steps = [Step(_call(part, chains, engine), part.inputs, part.outputs, part.chain) for part in parts]
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
    )


def _call(part: Part, chains: Sequence[Chain], engine: Engine) -> Any:
    if part.chain is not None:
        return _in_words_of_the_model(engine.kernel(chains[part.chain]), chains[part.chain])
    assert part.segment is not None
    return engine.session(part.segment, part.inputs, part.outputs)


def _in_words_of_the_model(kernel: Call, chain: Chain) -> Call:
    """Refuse what a kernel refuses, naming values of the model instead of parameters of the kernel."""

    def call(values: Sequence[Any]) -> Sequence[Any]:
        try:
            return kernel(values)
        except InvalidOperand as error:
            shapes = (f"{item.name!r} {_shape(value)}" for item, value in zip(chain.operands, values, strict=True))
            sample = f"the sample's {list(chain.sample_shape)}"
            raise InvalidInput(
                expected=f"values of {chain.name!r} with sizes that relate to each other as in {sample}",
                got=", ".join(shapes),
                todo="optimize the model again with inputs of the new sizes",
            ) from error

    return call


def _shape(value: Any) -> list[int]:
    return list(value.shape() if callable(value.shape) else value.shape)  # an OrtValue's is a method

"""Knows how a chain is called: a slug a person can read, and a key that equal kernels share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from onekernel.fusion.chain import Chain, Kind, Operand, Result, Step


def slug(chain: Chain) -> str:
    """A name like "add_layer_norm_gelu": what a person would call the chain; not unique."""
    kinds = {operand.name: operand.kind for operand in chain.operands}
    before = [word for step in chain.prologue if (word := _word(step, kinds))]
    after = [word for step in chain.epilogue if (word := _word(step, kinds))]
    norm = ["norm"]
    if after[:2] == ["scale", "shift"]:
        norm, after = ["layer", "norm"], after[2:]
    words = [*before, *norm, *after]
    return "_".join(words if len(words) > 1 else ["plain", *words])  # CUDA has a function `norm` of its own


_NAMES = {("mul", "channel"): "scale", ("add", "channel"): "shift", ("mul", "row"): "mask"}
_ACTIVATIONS = {"erf": "gelu"}
_WITH_NUMBERS = ("leaky_relu", "clip", "maximum", "minimum")


def _word(step: Step, kinds: Mapping[str, Kind]) -> str:
    """What a step is called, "" for the arithmetic inside a spelled-out activation."""
    outer = [kinds[item] for item in step.inputs if isinstance(item, str) and item in kinds]
    if step.op == "cast" or (len(step.inputs) > 1 and not outer and step.op not in _WITH_NUMBERS):
        return ""
    if outer:
        return _NAMES.get((step.op, next((kind for kind in outer if kind != "full"), "full")), step.op)
    return _ACTIVATIONS.get(step.op, step.op)


def canonical(chain: Chain) -> Chain:
    """The chain without its names, sources, rank and sample shape: equal for chains that are one kernel.

    It is a key. Operands become in0.., step outputs v0.., results out0..; a schedule needs the real chain.
    """
    steps = (*chain.prologue, *chain.epilogue)
    names = {operand.name: f"in{index}" for index, operand in enumerate(chain.operands)}
    names |= {step.output: f"v{index}" for index, step in enumerate(steps)} | {chain.normal_output: "n"}
    columns = chain.layout == "columns"
    return replace(
        chain,
        name="",
        axis=1,
        rank=3 if columns else 2,
        operands=tuple(Operand(names[item.name], item.kind, item.dtype) for item in chain.operands),
        results=tuple(Result(f"out{index}", names[item.value], item.dtype) for index, item in enumerate(chain.results)),
        prologue=tuple(_renamed(step, names) for step in chain.prologue),
        normal_input=names[chain.normal_input],
        normal_output="n",
        normal_source=(),
        epilogue=tuple(_renamed(step, names) for step in chain.epilogue),
        source=(),
        sample_shape=(),
    )


def launchable(chain: Chain) -> Chain:
    """The chain with its operands and values named like kernel parameters; what depends on the shape stays."""
    bare = canonical(chain)
    return replace(bare, name=chain.name, axis=chain.axis, rank=chain.rank, sample_shape=chain.sample_shape)


def _renamed(step: Step, names: dict[str, str]) -> Step:
    inputs = tuple(names[item] if isinstance(item, str) else item for item in step.inputs)
    return Step(step.op, inputs, names[step.output], ())

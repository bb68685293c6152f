"""A torch module as a Subject: its submodules are its parts, a float64 copy of it is the oracle."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import cache
from typing import Any

from onekernel.errors import InvalidInput
from onekernel.verify.numbers.values import map_leaves
from onekernel.verify.sides.subject import Inputs, See, Subject, spread


def subject_of_module(module: Any, name: str) -> Subject:
    """Run a module without gradients. Raises InvalidInput for one in training mode, whose answers are random."""
    import torch

    if part := next((path or name for path, child in module.named_modules() if child.training), None):
        todo = "call model.eval() first"
        raise InvalidInput(expected="a module in evaluation mode", got=f"{part} in training mode", todo=todo)
    tensors = [*module.parameters(), *module.buffers()]
    device = next((tensor.device for tensor in tensors), torch.device("cpu"))
    floats = {str(tensor.dtype).removeprefix("torch.") for tensor in tensors if tensor.dtype.is_floating_point}
    return Subject(
        _without_gradients(spread(module)),
        type(module).__name__,
        oracle=_in_float64(module),
        watch=lambda inputs, see: _watch(module, inputs, see),
        inside=tuple(sorted(floats)),
        gpu=(device.index or 0) if device.type == "cuda" else None,
    )


def _without_gradients(call: Callable[[Inputs], Any]) -> Callable[[Inputs], Any]:
    import torch

    def run(inputs: Inputs) -> Any:
        with torch.no_grad():
            return call(inputs)

    return run


def _in_float64(module: Any) -> Callable[[Inputs], Any]:
    """Answer with a copy of the module in float64, which is made when it is first asked."""
    wide = cache(lambda: copy.deepcopy(module).double())
    return _without_gradients(lambda inputs: spread(wide())(map_leaves(inputs, _widen)))


def _widen(leaf: Any) -> Any:
    return leaf.double() if getattr(leaf, "is_floating_point", bool)() else leaf


def _watch(module: Any, inputs: Inputs, see: See) -> Any:
    """Run once; every submodule without children shows its result, by its path."""
    parts = [(path, child) for path, child in module.named_modules() if path and not any(child.children())]

    def hook(path: str) -> Callable[..., None]:
        return lambda _module, _given, result: see(path, result)

    handles = [child.register_forward_hook(hook(path)) for path, child in parts]
    try:
        return _without_gradients(spread(module))(inputs)
    finally:
        for handle in handles:
            handle.remove()

"""Inputs and results as named arrays, whatever holds them: numpy, torch, our buffers, DLPack, numbers, text.

A leaf is one tensor of a nested result. It is read into numpy, copied, or overwritten in place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from onekernel.device.buffer import View, numpy_dtype, view
from onekernel.errors import InvalidInput

Array = npt.NDArray[Any]


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Name every leaf of a result: `logits`, `past[0].key`; a result that is one leaf is `output`.

    Raises InvalidInput for a result that is nothing at all.
    """
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from leaves(item, f"{path}.{key}" if path else str(key))
    elif isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
        for index, item in enumerate(value):
            yield from leaves(item, f"{path or 'output'}[{index}]")
    elif value is not None:
        yield path or "output", value
    elif not path:
        todo = "return what was computed, also where it is written in place"
        raise InvalidInput(expected="a result to compare", got="None", todo=todo)


def arrays_of(result: Any) -> dict[str, Array]:
    """Copy every leaf of a result to the host."""
    return {name: to_numpy(leaf) for name, leaf in leaves(result)}


def to_numpy(leaf: Any) -> Array:
    """Copy a leaf into a numpy array; text becomes its bytes. Raises InvalidInput for a type that holds no numbers."""
    if isinstance(leaf, (str, bytes)):
        return np.frombuffer(leaf.encode() if isinstance(leaf, str) else leaf, np.uint8).copy()
    if hasattr(leaf, "detach"):
        return _torch_to_numpy(leaf.detach().cpu())
    if callable(getattr(leaf, "numpy", None)):
        return np.array(leaf.numpy())
    if hasattr(leaf, "__dlpack__") and not isinstance(leaf, np.ndarray):
        return np.array(np.from_dlpack(leaf))
    array = np.array(leaf)
    if array.dtype.hasobject:
        todo = "return tensors, arrays, numbers or text"
        raise InvalidInput(expected="a result that can be compared", got=type(leaf).__name__, todo=todo)
    return array


def _torch_to_numpy(tensor: Any) -> Array:
    name = str(tensor.dtype).removeprefix("torch.")
    if name == "bfloat16":  # numpy has no such type: every value of it is a float32
        return np.array(tensor.float().numpy()).astype(numpy_dtype(name))
    return np.array(tensor.resolve_neg().numpy())


def map_leaves(inputs: Any, change: Callable[[Any], Any]) -> Any:
    """Rebuild one call's inputs with every tensor changed; anything else stays as it is."""
    if isinstance(inputs, Mapping):
        return {key: map_leaves(item, change) for key, item in inputs.items()}
    if isinstance(inputs, (list, tuple)):
        return type(inputs)(map_leaves(item, change) for item in inputs)
    return change(inputs) if is_tensor(inputs) else inputs


def is_tensor(value: Any) -> bool:
    """Say whether a value is a numpy array or a torch tensor: what inputs are made of."""
    return isinstance(value, np.ndarray) or hasattr(value, "detach")


def copied(inputs: Any) -> Any:
    """Copy one call's inputs, so that a call which writes into them spoils nobody else's."""
    return map_leaves(inputs, lambda leaf: leaf.copy() if isinstance(leaf, np.ndarray) else leaf.detach().clone())


def place_of(leaf: Any) -> View | None:
    """Return where a leaf lies; None for what has no memory of its own."""
    if isinstance(leaf, np.ndarray) or hasattr(leaf, "detach"):
        return view(leaf)
    return None


def overwrite(leaf: Any, values: Array | None = None) -> bool:
    """Write into a leaf in place: poison (NaN, or the smallest integer) or `values`. False where it cannot be written.

    A call that does not write all of its result then shows it, whoever gets this memory next.
    """
    if isinstance(leaf, np.ndarray):
        if not leaf.flags.writeable:
            return False
        leaf[...] = _poison(leaf.dtype) if values is None else values
        return True
    if not hasattr(leaf, "detach") or any(n > 1 and s == 0 for n, s in zip(leaf.shape, leaf.stride(), strict=True)):
        return False
    there = leaf.detach()
    if values is not None:
        there.copy_(there.new_tensor(values.astype(np.float32) if values.dtype.name == "bfloat16" else values))
    elif there.dtype.is_floating_point or there.dtype.is_complex:
        there.fill_(float("nan"))
    else:
        there.fill_(_poison(np.dtype(str(there.dtype).removeprefix("torch."))))
    return True


def poisoned(array: Array) -> bool:
    """Say whether every element is what `overwrite` writes as poison."""
    if array.dtype.kind in "fcV":
        return bool(np.isnan(array.astype(np.float64)).all())
    return bool((array == _poison(array.dtype)).all())


def _poison(dtype: np.dtype[Any]) -> Any:
    if dtype.kind in "iu":
        return np.iinfo(dtype).max if dtype.kind == "u" else np.iinfo(dtype).min
    return dtype.kind == "b" or (dtype.type() if dtype.kind in "SU" else np.nan)

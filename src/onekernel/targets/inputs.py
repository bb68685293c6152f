"""One call's inputs: read from a file, or made up.

Inputs that are made up ("auto"): an axis of varying length is 1 where it is the first, else 64, and equal
names get equal lengths. Floats are uniform in [0, 1), booleans are true, integers are 1, except that integers
which index a table are random rows of it. The same model always gets the same inputs.
"""

from __future__ import annotations

import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from onekernel.errors import InvalidInput
from onekernel.splice.signature import Array, Inputs, Spec
from onekernel.verify.numbers.values import to_numpy

FIRST_AXIS, OTHER_AXIS = 1, 64
FROM_FILE = "give --inputs FILE.npz with one array for each input"
TODO = f"{FROM_FILE}, or --inputs auto"
_HINT = "write one with numpy.savez(FILE, name=array, ...)"


def find_inputs(
    given: Inputs | str | Path | None, specs: Sequence[Spec] = (), tables: Mapping[str, int] | None = None
) -> Inputs:
    """Return what was given, read it from an .npz file, or make it up: for "auto", and for None where sizes are fixed.

    Raises InvalidInput for a file that cannot be read, and for None where a size may vary.
    """
    if given is None:
        if dynamic := [spec for spec in specs if spec.dynamic]:
            got = "no inputs for " + "; ".join(map(str, dynamic))
            raise InvalidInput(expected="inputs of a fixed size", got=got, todo=TODO)
        given = "auto"
    if isinstance(given, (str, Path)):
        return make_up(specs, tables) if str(given) == "auto" else read_arrays(Path(given))
    return given


def read_arrays(path: Path) -> dict[str, Array]:
    """Read the named arrays of an .npz file."""
    found = read_numpy(path)
    if isinstance(found, dict):
        return found
    raise InvalidInput(expected=f"an .npz file at {path}", got="a single array", todo=_HINT)


def read_numpy(path: Path) -> dict[str, Array] | Array:
    """Read an .npz file as a mapping, an .npy file as one array. Raises InvalidInput for anything else."""
    try:
        content = np.load(path, allow_pickle=False)
        if not isinstance(content, np.lib.npyio.NpzFile):
            return np.asarray(content)
        with content:
            return dict(content)
    except FileNotFoundError as error:
        raise InvalidInput(expected=f"an .npz file at {path}", got="no such file", todo=_HINT) from error
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise InvalidInput(expected=f"an .npz file at {path}", got="another format", todo=_HINT) from error


def write_arrays(path: Path, inputs: Inputs) -> None:
    """Write one call's inputs as an .npz file; positional ones are arr_0, arr_1, ... as numpy names them."""
    named = inputs if isinstance(inputs, Mapping) else {f"arr_{index}": item for index, item in enumerate(inputs)}
    with zipfile.ZipFile(path, "w") as archive:  # numpy.savez has argument names that no array can have
        for name, item in named.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                np.lib.format.write_array(file, to_numpy(item), allow_pickle=False)


def make_up(specs: Sequence[Spec], tables: Mapping[str, int] | None = None) -> dict[str, Array]:
    """Invent inputs by dtype and shape (the rules are at the top of this module); `tables` is of `table_rows`."""
    rows, random = tables or {}, np.random.default_rng(0)
    lengths: dict[str, int] = {}
    return {spec.name: _invent(spec, _shape(spec, lengths), rows.get(spec.name), random) for spec in specs}


def _shape(spec: Spec, lengths: dict[str, int]) -> list[int]:
    if spec.shape is None or spec.dtype in ("string", "unknown"):
        raise InvalidInput(expected="an input of known rank and numeric type", got=str(spec), todo=FROM_FILE)
    return [_length(size, axis, lengths) for axis, size in enumerate(spec.shape)]


def _length(size: int | str, axis: int, lengths: dict[str, int]) -> int:
    default = OTHER_AXIS if axis else FIRST_AXIS
    if isinstance(size, int):
        return size
    return default if size == "?" else lengths.setdefault(size, default)


def _invent(spec: Spec, shape: list[int], rows: int | None, random: np.random.Generator) -> Array:
    dtype = np.dtype(spec.dtype)
    if dtype.kind == "f":
        return random.random(shape).astype(dtype)
    if dtype.kind in "iu" and rows:
        return random.integers(0, rows, shape).astype(dtype)
    return np.ones(shape, dtype)


def table_rows(model: Any) -> dict[str, int]:
    """Find for each name that indexes a constant table of an ONNX model how many rows the table has."""
    sizes = {item.name: item.dims[0] for item in model.graph.initializer if item.dims}
    for node in model.graph.node:
        if node.op_type == "Constant" and node.attribute and node.attribute[0].t.dims:
            sizes[node.output[0]] = node.attribute[0].t.dims[0]
    return {
        node.input[1]: int(sizes[node.input[0]])
        for node in model.graph.node
        if node.op_type == "Gather"
        and node.input[0] in sizes
        and not any(a.name == "axis" and a.i for a in node.attribute)
    }

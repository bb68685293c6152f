"""A fused model on disk, and back.

    OUT/manifest.json                 versions, signature, chains, steps, verdict: everything but bytes
        segments/00.onnx ...          the sessions, in the order of their run
        constants.npz                 operands of the kernels that the model fixes
        kernels/<name>.<key>/         an entry as in the cache (jit.cache.entry)

The folder is written beside its place and renamed: a reader sees all of it or none. It knows the layout
only; how a part is run is the engine's business.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from onekernel._version import __version__
from onekernel.device import Device, get
from onekernel.device.buffer import numpy_dtype
from onekernel.errors import InvalidInput, OneKernelError
from onekernel.fusion.chain import Chain, Operand, Result, Step
from onekernel.splice import kernels
from onekernel.splice.engine import Engine, engine_for
from onekernel.splice.model import FusedModel, Part
from onekernel.splice.onnxruntime import assemble
from onekernel.splice.signature import Array, Spec

FORMAT = 1
MANIFEST = "manifest.json"


def save(model: FusedModel, folder: Path) -> Path:
    """Write a fused model; a folder written before is replaced, any other that is not empty is refused.

    A link is followed. Raises InvalidInput when the place cannot be written.
    """
    check_writable(folder)
    place = Path(os.path.realpath(folder))
    temporary = Path(tempfile.mkdtemp(prefix=f".{place.name}.", dir=place.parent))
    old = temporary.with_name(f"{temporary.name}.old")
    try:
        temporary.chmod(0o755)
        _write(model, temporary)
        if place.exists():
            place.rename(old)
        temporary.rename(place)
        shutil.rmtree(old, ignore_errors=True)
    except OSError as error:
        if old.exists():
            old.rename(place)
        raise _unwritable(folder, error.strerror or str(error)) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return folder


def check_writable(folder: Path) -> None:
    """Find out before any work whether `save` can write there; creates missing parents.

    Raises InvalidInput if not.
    """
    if folder.is_dir() and any(folder.iterdir()) and not _is_ours(folder):
        raise _unwritable(folder, "a folder with other files")
    if folder.exists() and not folder.is_dir():
        raise _unwritable(folder, "a file")
    try:
        place = Path(os.path.realpath(folder))
        place.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{place.name}.", dir=place.parent):
            pass
    except OSError as error:
        raise _unwritable(folder, error.strerror or str(error)) from error


def load(
    folder: str | Path,
    *,
    device: Device | str | None = None,
    engine: Engine | None = None,
    compile: str | None = None,
) -> FusedModel:
    """Read what `save` wrote and make it callable on a device (None: the GPU when there is one).

    `compile` says when kernels are built: "block", "background" or "never" (jit.policy; None: the setting
    ONEKERNEL_COMPILE). Stored cubins are used where they were built by this compiler, under "never" whichever built
    them; a folder of an earlier version has no unfused operators to run in the meantime. `engine` overrides how parts
    run. Raises InvalidInput when it is not such a folder.
    """
    folder = Path(folder)
    manifest = _read_manifest(folder)
    if engine is None:
        engine = engine_for(get(device) if device is None or isinstance(device, str) else device, compile)
    kernels.adopt(folder / "kernels")
    try:
        return _assembled(folder, manifest, engine)
    except OneKernelError:
        raise
    except Exception as error:  # what the readers of JSON, npz and ONNX raise has no root in common
        reason = f"a damaged one ({type(error).__name__}: {error})"
        todo = "write it again with `onekernel optimize MODEL -o FOLDER`"
        raise InvalidInput(expected=f"a whole saved model at {folder}", got=reason, todo=todo) from error


def _assembled(folder: Path, manifest: Mapping[str, Any], engine: Engine) -> FusedModel:
    model = assemble(
        [_part(folder, item) for item in manifest["steps"]],
        [_chain(item) for item in manifest["chains"]],
        engine,
        signature=(_specs(manifest["inputs"]), _specs(manifest["outputs"])),
        constants=_constants(folder, manifest),
    )
    return replace(model, record=manifest["verdict"])


def _write(model: FusedModel, folder: Path) -> None:
    (folder / "segments").mkdir()
    steps: list[dict[str, Any]] = []
    for number, part in enumerate(model.parts):
        step: dict[str, Any] = {"inputs": part.inputs, "outputs": part.outputs}
        if part.segment is None:
            steps.append({**step, "chain": part.chain})
            if part.unfused is not None:
                steps[-1]["unfused"] = f"segments/{number:02d}.unfused.onnx"
                (folder / steps[-1]["unfused"]).write_bytes(part.unfused)
            continue
        name = f"segments/{number:02d}.onnx"
        (folder / name).write_bytes(part.segment)
        steps.append({**step, "segment": name})
    np.savez(folder / "constants.npz", *map(_plain, model.constants.values()))
    kernels.write(folder / "kernels", model.builds)
    manifest = {
        "format": FORMAT,
        "onekernel": __version__,
        "inputs": [asdict(spec) for spec in model.inputs],
        "outputs": [asdict(spec) for spec in model.outputs],
        "targets": sorted({build.request.arch for build in model.builds}),
        "verdict": model.record,
        "constants": {name: array.dtype.name for name, array in model.constants.items()},
        "chains": [asdict(chain) for chain in model.chains],
        "steps": steps,
    }
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")


def _read_manifest(folder: Path) -> dict[str, Any]:
    todo = "give a folder that `onekernel optimize MODEL -o FOLDER` wrote"
    try:
        manifest: dict[str, Any] = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        got = "no such folder" if not folder.exists() else f"no readable {MANIFEST} in it"
        raise InvalidInput(expected=f"a saved model at {folder}", got=got, todo=todo) from error
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise InvalidInput(expected=f"a saved model of format {FORMAT}", got=f"another at {folder}", todo=todo)
    return manifest


def _is_ours(folder: Path) -> bool:
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(manifest, dict) and "onekernel" in manifest


def _unwritable(folder: Path, got: str) -> InvalidInput:
    return InvalidInput(expected=f"a place to write at {folder}", got=got, todo="give another folder with -o")


def _plain(array: Array) -> Array:
    """Store bfloat16 as its bits: the .npz format knows numpy's own types only."""
    return array.view(np.uint16) if array.dtype.name == "bfloat16" else array


def _constants(folder: Path, manifest: Mapping[str, Any]) -> dict[str, Array]:
    with np.load(folder / "constants.npz", allow_pickle=False) as archive:
        stored = [archive[f"arr_{i}"] for i in range(len(manifest["constants"]))]
    pairs = zip(manifest["constants"].items(), stored, strict=True)
    return {name: a.view(numpy_dtype(dtype)) if dtype == "bfloat16" else a for (name, dtype), a in pairs}


def _part(folder: Path, item: Mapping[str, Any]) -> Part:
    inputs, outputs = tuple(item["inputs"]), tuple(item["outputs"])
    if "segment" in item:
        return Part(inputs, outputs, segment=(folder / item["segment"]).read_bytes())
    before = (folder / item["unfused"]).read_bytes() if "unfused" in item else None
    return Part(inputs, outputs, chain=item["chain"], unfused=before)


def _specs(items: Sequence[Mapping[str, Any]]) -> tuple[Spec, ...]:
    return tuple(Spec(**{key: _tuple(value) for key, value in item.items()}) for item in items)


def _chain(item: Mapping[str, Any]) -> Chain:
    return Chain(
        **{
            **{key: _tuple(value) for key, value in item.items()},
            "operands": tuple(Operand(**{k: _tuple(v) for k, v in operand.items()}) for operand in item["operands"]),
            "results": tuple(Result(**result) for result in item["results"]),
            "prologue": _steps(item["prologue"]),
            "epilogue": _steps(item["epilogue"]),
        }
    )


def _steps(items: Sequence[Mapping[str, Any]]) -> tuple[Step, ...]:
    return tuple(Step(**{key: _tuple(value) for key, value in item.items()}) for item in items)


def _tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value

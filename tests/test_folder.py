"""Saving and loading: what comes back is what was saved, and nothing of the user's is ever damaged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto

import onekernel
from onekernel import jit
from onekernel.errors import InvalidInput
from onekernel.jit.compile import nvrtc
from onekernel.splice import folder, kernels
from small_models import HIDDEN, two_norms


@pytest.fixture
def model() -> ModelProto:
    """Two chains with a residual, weights in initializers and in Constant nodes."""
    return two_norms()


@pytest.fixture(autouse=True)
def emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    """These tests are about files: run kernels where there is no GPU."""
    monkeypatch.setenv("ONEKERNEL_DEVICE", "emulated")


@pytest.fixture
def saved(model: ModelProto, tmp_path: Path) -> onekernel.Optimization:
    """Optimise the model into tmp_path/out."""
    result = onekernel.optimize(model, "auto", gpu="h200", out=tmp_path / "out")
    assert len(result.chains) == 2
    return result


def inputs(rows: int = 5) -> dict[str, Any]:
    return {"x": np.random.default_rng(1).standard_normal((rows, HIDDEN)).astype(np.float32)}


def test_what_is_loaded_is_what_was_saved(saved: onekernel.Optimization, tmp_path: Path) -> None:
    loaded = onekernel.load(tmp_path / "out", device="emulated")
    assert loaded.chains == saved.chains
    assert loaded.inputs == saved.model.inputs
    assert loaded.outputs == saved.model.outputs
    assert loaded.explain() == saved.model.explain()
    assert loaded.record["decision"] == "keep"
    before, after = saved.model(inputs()), loaded(inputs())
    assert list(before) == list(after)
    for name in before:
        np.testing.assert_array_equal(after[name], before[name])


def test_the_folder_can_be_read_without_us(saved: onekernel.Optimization, tmp_path: Path) -> None:
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert manifest["targets"] == ["sm_90"]
    assert manifest["verdict"]["gpu"] == "NVIDIA H200"
    entries = sorted((tmp_path / "out" / "kernels").iterdir())
    assert len(entries) == len(saved.builds)
    for entry in entries:
        assert (entry / "kernel.bin").read_bytes()[:4] == b"\x7fELF"
        assert "__global__" in (entry / "kernel.cu").read_text()
        assert json.loads((entry / "build.json").read_text())["resources"]["spill_bytes"] == 0
    for step in manifest["steps"]:
        if "segment" in step:
            ModelProto.FromString((tmp_path / "out" / step["segment"]).read_bytes())


def test_stored_cubins_are_used_instead_of_the_compiler(
    saved: onekernel.Optimization, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> jit.Binary:
        raise AssertionError("compiled again")

    monkeypatch.setenv("ONEKERNEL_CACHE", str(tmp_path / "fresh"))
    monkeypatch.setattr(nvrtc, "compile_cubin", refuse)
    with pytest.raises(AssertionError, match="compiled again"):
        jit.compile_request(saved.builds[0].request)
    assert kernels.adopt(tmp_path / "out" / "kernels") == len(saved.builds)
    for build in saved.builds:
        assert jit.compile_request(build.request).data == build.binary.data


@pytest.mark.parametrize("damage", ["cubin", "record", "absent"])
def test_a_damaged_cubin_is_not_used(
    saved: onekernel.Optimization, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    monkeypatch.setenv("ONEKERNEL_CACHE", str(tmp_path / "fresh"))
    entry = min((tmp_path / "out" / "kernels").iterdir())
    cubin = entry / "kernel.bin"
    if damage == "cubin":
        cubin.write_bytes(cubin.read_bytes()[:-1] + b"!")
    elif damage == "record":
        (entry / "build.json").write_text("{")
    else:
        cubin.unlink()
    assert kernels.adopt(tmp_path / "out" / "kernels") == len(saved.builds) - 1


def test_a_saved_model_is_replaced_and_other_files_are_not(saved: onekernel.Optimization, tmp_path: Path) -> None:
    (tmp_path / "out" / "stale").touch()
    saved.model.save(tmp_path / "out")
    assert not (tmp_path / "out" / "stale").exists()
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "one.png").touch()
    with pytest.raises(InvalidInput, match="a folder with other files"):
        saved.model.save(tmp_path / "photos")
    assert (tmp_path / "photos" / "one.png").exists()
    (tmp_path / "empty").mkdir()
    saved.model.save(tmp_path / "empty")
    assert onekernel.load(tmp_path / "empty").chains == saved.chains


@pytest.mark.parametrize("content", ["5", '"onekernel"', '["onekernel"]'])
def test_a_manifest_of_somebody_else_is_not_ours(tmp_path: Path, content: str) -> None:
    (tmp_path / folder.MANIFEST).write_text(content)
    with pytest.raises(InvalidInput, match="a folder with other files"):
        folder.check_writable(tmp_path)


def test_a_link_is_followed_and_the_working_folder_can_be_written(
    saved: onekernel.Optimization, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "place").mkdir()
    (tmp_path / "link").symlink_to("place")
    saved.model.save(tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "place" / folder.MANIFEST).exists()
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    saved.model.save(Path("."))
    assert onekernel.load(tmp_path / "here").chains == saved.chains
    assert sorted(path.name for path in tmp_path.iterdir()) == ["here", "link", "out", "place"]


@pytest.mark.usefixtures("saved")
@pytest.mark.parametrize("name", ["segments/00.onnx", "constants.npz"])
@pytest.mark.parametrize("content", [None, b"x"])
def test_a_damaged_folder_is_refused_in_one_line(tmp_path: Path, name: str, content: bytes | None) -> None:
    path = tmp_path / "out" / name
    path.unlink() if content is None else path.write_bytes(content)
    with pytest.raises(InvalidInput, match="a damaged one"):
        onekernel.load(tmp_path / "out")


def test_a_failed_save_leaves_the_old_one_and_no_litter(
    saved: onekernel.Optimization, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(kernels, "write", full)
    with pytest.raises(InvalidInput, match="No space left"):
        saved.model.save(tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert onekernel.load(tmp_path / "out").chains == saved.chains


def test_a_failed_swap_puts_the_old_one_back(
    saved: onekernel.Optimization, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rename = Path.rename

    def only_old(self: Path, target: Path) -> Path:
        if target == tmp_path / "out" and not self.name.endswith(".old"):
            raise OSError(13, "Permission denied")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", only_old)
    with pytest.raises(InvalidInput, match="Permission denied"):
        saved.model.save(tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert onekernel.load(tmp_path / "out").chains == saved.chains


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "no such folder"),
        ('{"format": 1}', "damaged"),
        ("", "no readable manifest"),
        ("[]", "another"),
        ('{"format": 99}', "another"),
    ],
)
def test_what_is_not_a_saved_model_is_refused(tmp_path: Path, content: str | None, words: str) -> None:
    if content is not None:
        (tmp_path / "x").mkdir()
        (tmp_path / "x" / folder.MANIFEST).write_text(content)
    with pytest.raises(InvalidInput, match=words):
        onekernel.load(tmp_path / "x")


@pytest.mark.usefixtures("saved")
def test_constants_of_a_type_that_numpy_lacks(tmp_path: Path) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    weight = np.arange(HIDDEN).astype(ml_dtypes.bfloat16)
    model = onekernel.load(tmp_path / "out")
    changed = type(model)(**{**vars(model), "constants": {**model.constants, "bits": weight}})
    changed.save(tmp_path / "again")
    stored = onekernel.load(tmp_path / "again").constants["bits"]
    assert stored.dtype == weight.dtype
    np.testing.assert_array_equal(stored, weight)

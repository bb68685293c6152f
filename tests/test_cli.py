"""The command line as a user meets it: tables or JSON on stdout, one line on stderr, four exit codes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from rich.console import Console

from onekernel.cli import main
from onekernel.cli.console import table
from onekernel.optimize import judge
from small_models import HIDDEN, Builder

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a command line in this process on the emulated device: exit code, stdout, stderr."""
    monkeypatch.setenv("ONEKERNEL_DEVICE", "emulated")

    def run(*arguments: object) -> tuple[int, str, str]:
        code = main([str(item) for item in arguments])
        out, err = capsys.readouterr()
        return code, out, err

    return run


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Write a model with two chains of one kind and inputs of varying length."""
    b = Builder()
    first, _ = b.norm(b.node("MatMul", "x", b.weight(HIDDEN, HIDDEN)))
    second, _ = b.norm(b.node("MatMul", first, b.weight(HIDDEN, HIDDEN)))
    path = tmp_path / "model.onnx"
    onnx.save(b.model(["x"], [b.node("MatMul", second, b.weight(HIDDEN, HIDDEN))]), path)
    return path


def test_tables(run: Run, model: Path, tmp_path: Path) -> None:
    code, out, err = run("optimize", model, "--inputs", "auto", "--gpu", "t4", "-o", tmp_path / "out")
    assert (code, err) == (0, "")
    assert "18 -> 2" in out
    assert "sm_75" in out
    assert "numbers  keep" in out
    assert "predicted for Tesla T4, not measured" in out
    assert (tmp_path / "out" / "manifest.json").is_file()


def test_json(run: Run, model: Path) -> None:
    code, out, _ = run("optimize", model, "--inputs", "auto", "--gpu", "h200", "--json")
    record = json.loads(out)
    assert code == 0
    assert record["launches"] == [18, 2]
    assert record["decision"] == "keep"
    assert len(record["numbers"]) == 3
    assert all(item["passed"] for item in record["numbers"])
    assert all(item["arch"] == "sm_90" and item["spill_bytes"] == 0 for item in record["kernels"])


def test_inputs_from_a_file(run: Run, model: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "in.npz", x=np.ones((2, HIDDEN), np.float32))
    assert run("optimize", model, "--inputs", tmp_path / "in.npz")[0] == 0


@pytest.fixture
def touchy(tmp_path: Path) -> Path:
    """Write a model that blows the last bit of a norm up to a large error."""
    b = Builder()
    output, _ = b.norm("x")
    mixed = b.node("MatMul", output, b.weight(HIDDEN, HIDDEN))
    sine = b.node("Sin", b.node("Mul", mixed, b.weight(1, value=1e7)))
    onnx.save(b.model(["x"], [sine]), tmp_path / "touchy.onnx")
    return tmp_path / "touchy.onnx"


def test_a_difference_is_a_no(run: Run, touchy: Path, tmp_path: Path) -> None:
    code, out, _ = run("optimize", touchy, "--inputs", "auto", "-o", tmp_path / "out")
    assert code == 1
    assert "numbers  reject" in out
    assert "undone   layer_norm: Sin_11_out: error" in out
    assert "written  nothing" in out
    assert not (tmp_path / "out").exists()


def test_a_difference_that_the_original_has_too_decides_nothing(
    run: Run, touchy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Moody:
        def run(self, *_: object) -> list[np.ndarray]:
            return [np.zeros((1, HIDDEN), np.float32)]

    monkeypatch.setattr(judge, "cpu_session", lambda *_, **__: Moody())
    code, out, _ = run("optimize", touchy, "--inputs", "auto")
    assert code == 3
    assert "limit 0.0001; first at" in out
    assert "but the original differs from itself" in out


def bad_models(folder: Path) -> dict[str, Path]:
    """Write one file for each kind of model that cannot be used."""
    text, empty = folder / "text.onnx", folder / "empty.onnx"
    text.write_text("this is not a model\n" * 20)
    empty.write_bytes(b"")
    tensor = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 2]) for name in "xy"]
    written = {"text": text, "empty": empty, "missing": folder / "none.onnx", "folder": folder}
    for kind, op, domain, opset in (
        ("op", "Frobnicate", "", 17),
        ("domain", "Relu", "elsewhere", 17),
        ("old", "Relu", "", 8),
        ("new", "Relu", "", 99),
    ):
        graph = helper.make_graph(
            [helper.make_node(op, ["x"], ["y"], name="n", domain=domain)], "g", tensor[:1], tensor[1:]
        )
        opsets = [helper.make_opsetid("", opset), helper.make_opsetid("elsewhere", 1)]
        written[kind] = folder / f"{kind}.onnx"
        onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), written[kind])
    return written


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("text", "ONNX"),
        ("empty", "ONNX"),
        ("missing", "no such file"),
        ("folder", "folder"),
        ("op", "Frobnicate"),
        ("domain", "elsewhere.Relu"),
        ("old", "opset 8"),
        ("new", "opset 99"),
    ],
)
def test_bad_models_are_one_line(run: Run, tmp_path: Path, kind: str, words: str) -> None:
    refused(run("optimize", bad_models(tmp_path)[kind], "--inputs", "auto"), words)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "x float32[rows,6]"),
        (["--inputs", "absent.npz"], "no such file"),
        (["--inputs", "text.npz"], "another format"),
        (["--inputs", "single.npy"], "a single array"),
        (["--inputs", "wrong_name.npz"], "names y"),
        (["--inputs", "wrong_type.npz"], "float64[3,6]"),
        (["--inputs", "auto", "--gpu", "voodoo2"], "h200"),
        (["--inputs", "auto", "--into", "toaster"], "onnxruntime"),
        (["--inputs", "auto", "-o", "taken"], "a folder with other files"),
        (["--inputs", "auto", "-o", "text.npz"], "a file"),
        (["--inputs", "auto", "-o", "text.npz/below"], "place to write"),
        (["--inputs", "auto", "-o", "/proc/onekernel/out"], "place to write"),
        (["--nonsense"], "--nonsense"),
    ],
)
def test_bad_options_are_one_line(
    run: Run, model: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], words: str
) -> None:
    monkeypatch.chdir(model.parent)
    Path("taken").mkdir()
    Path("taken/precious.txt").write_text("keep me")
    Path("text.npz").write_text("not an archive")
    np.save("single.npy", np.zeros(3))
    np.savez("wrong_name.npz", y=np.zeros((3, HIDDEN), np.float32))
    np.savez("wrong_type.npz", x=np.zeros((3, HIDDEN)))
    refused(run("optimize", model, *arguments), words)
    assert Path("taken/precious.txt").read_text() == "keep me"


def refused(result: tuple[int, str, str], words: str) -> None:
    code, out, err = result
    assert code == 2
    assert out == ""
    assert err.count("\n") == 1
    assert err.startswith("onekernel: ")
    assert words in err


def test_help_names_every_verb_and_an_unknown_verb_is_refused(run: Run) -> None:
    code, out, _ = run("--help")
    assert code == 0
    assert "optimize" in out
    refused(run("optimise"), "optimise")


def test_python_dash_m_without_a_traceback() -> None:
    command = [sys.executable, "-m", "onekernel", "optimize", "none.onnx"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


def test_what_is_said_often_is_said_once_and_nothing_found_has_no_tables(run: Run, tmp_path: Path) -> None:
    b = Builder()
    weights = b.weight(HIDDEN), b.weight(HIDDEN)
    x = "x"
    for _ in range(3):
        x = b.node("LayerNormalization", b.node("MatMul", x, b.weight(HIDDEN, HIDDEN)), *weights)
    onnx.save(b.model(["x"], [x]), tmp_path / "m.onnx")
    code, out, _ = run("optimize", tmp_path / "m.onnx", "--inputs", "auto", "--gpu", "h200")
    assert code == 0
    assert "m: no chain was fused" in out
    assert "it would save nothing on NVIDIA H200 (3 times)" in out
    assert out.count("undone") == 1
    assert "registers" not in out


def test_names_of_kernels_are_whole_on_a_narrow_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    drawn = table(
        "t", ("chain", "normalises", ">bytes saved"), [("layer_norm_gelu_add_mask", "columns of 192", "1 kB")]
    )
    Console(width=45).print(drawn)
    assert "layer_norm_gelu_add_mask" in capsys.readouterr().out

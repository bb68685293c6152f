"""What the documents say is true: links lead somewhere, commands exist, code runs, versions agree."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest

from onekernel._version import __version__

ROOT = Path(__file__).parents[1]
DOCUMENTS = sorted(path for pattern in ("*.md", "docs/**/*.md", "examples/**/*.md") for path in ROOT.glob(pattern))
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.S | re.M)
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
SPEED = re.compile(r"\d\s*(µs|us|ms|GB/s|TB/s|x faster)\b|\d\s*[x×]\s*\|")  # noqa: RUF001


def name(path: Path) -> str:
    """Show a document's path in the test's name."""
    return str(path.relative_to(ROOT))


def blocks(path: Path, language: str) -> list[str]:
    """List the fenced blocks of a language."""
    return [text for kind, text in FENCE.findall(path.read_text("utf-8")) if kind == language]


def broken_links(path: Path) -> list[str]:
    """List relative links that lead to no file. A plain web address is not followed."""
    text = FENCE.sub("", path.read_text("utf-8"))
    local = [link.split("#")[0] for link in LINK.findall(text) if "://" not in link]
    return [link for link in local if link and not (path.parent / link).exists()]


def unproven_speeds(text: str) -> list[str]:
    """List table rows that state a speed without a link to the results it was copied from."""
    rows = [line for line in FENCE.sub("", text).splitlines() if line.startswith("|")]
    return [row for row in rows if SPEED.search(row) and "(benchmarks/results/" not in row]


@pytest.mark.parametrize("path", DOCUMENTS, ids=name)
def test_links_lead_somewhere(path: Path) -> None:
    assert broken_links(path) == []


@pytest.mark.parametrize("path", DOCUMENTS, ids=name)
def test_every_block_says_its_language(path: Path) -> None:
    assert {kind for kind, _ in FENCE.findall(path.read_text("utf-8"))} <= {"bash", "python", "text"}


def test_planted_faults_are_caught(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("[a](gone.md) [b](page.md#part) [c](https://example.org)\n```text\n[d](gone.md)\n```\n")
    assert broken_links(page) == ["gone.md"]
    assert unproven_speeds("| norm | 3.1 us |\n| norm | 1.4x |\n| norm | 2 rows |\n3 ms in prose") == [
        "| norm | 3.1 us |",
        "| norm | 1.4x |",
    ]
    assert unproven_speeds("| norm | [3.1 us](benchmarks/results/rows.json) |") == []


def test_readme_speeds_come_from_results() -> None:
    assert unproven_speeds((ROOT / "README.md").read_text("utf-8")) == []


def test_versions_agree() -> None:
    versions = re.findall(r"^## \[([^\]]+)\]", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.M)
    released = [version for version in versions if version != "Unreleased"]
    assert released[0] == __version__


@pytest.mark.parametrize("document", ["README.md", "CONTRIBUTING.md", "examples/piper_voice/README.md"])
def test_make_targets_exist(document: str) -> None:
    makefile = (ROOT / "Makefile").read_text("utf-8")
    targets = set(re.findall(r"\bmake ([a-z][a-z-]*)", (ROOT / document).read_text("utf-8")))
    assert targets
    assert [target for target in targets if not re.search(rf"^{target}:", makefile, re.M)] == []


def test_readme_extras_exist() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = re.findall(r"pip install '\.\[(\w+)\]'", (ROOT / "README.md").read_text("utf-8"))
    assert extras
    assert set(extras) <= set(project["optional-dependencies"])


def test_readme_is_one_screen() -> None:
    assert len((ROOT / "README.md").read_text("utf-8").splitlines()) <= 80


def model_with_a_norm(path: Path) -> dict[str, np.ndarray]:
    """Write the smallest model that has a chain, and return inputs for it."""
    onnx = pytest.importorskip("onnx")
    helper, numpy_helper = onnx.helper, onnx.numpy_helper
    scale = numpy_helper.from_array(np.linspace(0.5, 1.5, 32, dtype=np.float32), "scale")
    bias = numpy_helper.from_array(np.linspace(-1.0, 1.0, 32, dtype=np.float32), "bias")
    node = helper.make_node("LayerNormalization", ["x", "scale", "bias"], ["y"], epsilon=1e-5)
    tensors = [helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, [4, 32]) for n in "xy"]
    graph = helper.make_graph([node], "norm", tensors[:1], tensors[1:], [scale, bias])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(model, path)
    return {"x": np.random.default_rng(0).normal(size=(4, 32)).astype(np.float32)}


def test_readme_python_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = model_with_a_norm(tmp_path / "model.onnx")
    monkeypatch.chdir(tmp_path)
    space: dict[str, object] = {"inputs": inputs}
    for block in blocks(ROOT / "README.md", "python"):
        exec(compile(block, "README.md", "exec"), space)
    x = inputs["x"].astype(np.float64)
    norm = (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-5)
    expected = norm * np.linspace(0.5, 1.5, 32) + np.linspace(-1.0, 1.0, 32)
    outputs = space["outputs"]
    assert isinstance(outputs, dict)
    np.testing.assert_allclose(outputs["y"], expected, rtol=1e-4, atol=1e-5)


def test_readme_commands_run(tmp_path: Path) -> None:
    """Each `onekernel` line of the README runs as written; `make` lines are checked to be targets."""
    model_with_a_norm(tmp_path / "model.onnx")
    lines = [line for block in blocks(ROOT / "README.md", "bash") for line in block.splitlines()]
    commands = [shlex.split(line, comments=True) for line in lines if line.startswith("onekernel ")]
    assert commands
    for command in commands:
        done = subprocess.run([sys.executable, "-m", *command], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr

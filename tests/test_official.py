"""The golden files are what the official package says: made again by it, and compared. `make test-official`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import speech_checkpoint

HERE = Path(__file__).parent
GOLDEN = HERE / "golden" / "speech"
SCRIPTS = sorted((HERE / "official").glob("*_golden.py"))
CLOSE = 1e-5  # float32 on another processor


@pytest.mark.official
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_golden_files_are_the_official_answers(script: Path, tmp_path: Path) -> None:
    checkpoints, out = tmp_path / "checkpoints", tmp_path / "golden"
    out.mkdir()
    write = [sys.executable, str(HERE / "speech_checkpoint.py"), str(checkpoints)]
    subprocess.run(write, check=True, env={**os.environ, "PYTHONPATH": str(HERE.parent / "src")})
    official = os.environ["OFFICIAL_PYTHON"]
    subprocess.run([official, str(script), str(checkpoints), str(out)], check=True, cwd=HERE.parent)
    made = sorted(out.iterdir())
    assert made
    for path in made:
        _compare(path, GOLDEN / path.name)


@pytest.mark.official
@pytest.mark.parametrize("name", ["base_0b6", "custom_voice_1b7"])
def test_both_say_the_same_side_by_side(name: str, tmp_path: Path) -> None:
    """As `benchmarks official` on a GPU at released sizes: all of it, here on a small checkpoint."""
    from benchmarks import official, parity

    kind, _, size = name.rpartition("_")
    folder, kept = speech_checkpoint.write(tmp_path / name, kind, size), tmp_path / "official.npz"
    script = HERE / "official" / "full_size.py"
    subprocess.run([os.environ["OFFICIAL_PYTHON"], str(script), str(folder), str(kept)], check=True)
    rows = list(parity.compare(folder, dict(np.load(kept)), "cpu"))
    assert not official.failed(rows), [row for row in rows if official.failed([row])]
    assert sum(row["limit"] is not None for row in rows) >= 30


def _compare(made: Path, kept: Path) -> None:
    if made.suffix == ".json":
        assert json.loads(made.read_text("utf-8")) == json.loads(kept.read_text("utf-8")), made.name
        return
    one, two = np.load(made), np.load(kept)
    assert set(one) == set(two), made.name
    for name in one:
        if one[name].dtype.kind == "f":
            assert np.abs(one[name] - two[name]).max(initial=0) <= CLOSE, f"{made.name} {name}"
        else:
            assert (one[name] == two[name]).all(), f"{made.name} {name}"

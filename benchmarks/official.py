"""Is it the same? Ours beside the official package, on checkpoints of released size with random weights.

`OFFICIAL_PYTHON` names an interpreter that has `qwen-tts==0.1.1`; both sides run on this machine, one after the other.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import torch

from benchmarks import parity
from benchmarks.conditions import ROOT

NAMES = ("Qwen3-TTS-12Hz-0.6B-Base", "Qwen3-TTS-12Hz-1.7B-CustomVoice")


def released(say: Callable[[str], None], names: Sequence[str] = NAMES) -> Iterator[tuple[str, Path]]:
    """Write checkpoints with random weights, each when its turn comes; yields its name and its folder."""
    sys.path.insert(0, str(ROOT / "tests"))
    import speech_checkpoint

    with tempfile.TemporaryDirectory() as place:
        for name in names:
            say(f"{name}: writing random weights")
            yield name, speech_checkpoint.write_released(Path(place) / name, name)


def run(say: Callable[[str], None]) -> list[parity.Row]:
    """Compare each model; returns the rows of benchmarks/parity.py with the name of the model."""
    if "OFFICIAL_PYTHON" not in os.environ:
        sys.exit(
            "benchmarks: expected OFFICIAL_PYTHON to name a Python with qwen-tts==0.1.1; `make test-official` has one"
        )
    rows: list[parity.Row] = []
    for name, folder in released(say):
        kept = folder.with_name(f"{name}.npz")
        say(f"{name}: asking the official package")
        script = ROOT / "tests" / "official" / "full_size.py"
        subprocess.run([os.environ["OFFICIAL_PYTHON"], script, folder, kept], check=True, stdout=sys.stderr)
        device = "cuda" if torch.cuda.is_available() else "cpu"
        with torch.inference_mode():
            for row in parity.compare(folder, dict(np.load(kept)), device):
                rows.append({"model": name, **row})
                say(f"{row}")
    return rows


def failed(rows: list[parity.Row]) -> bool:
    """Say whether a row is over its limit."""
    return any(row["limit"] is not None and not row["measured"] <= row["limit"] for row in rows)

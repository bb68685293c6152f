"""Under what conditions numbers were taken: they are worth nothing without."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import onekernel
from onekernel import device
from onekernel.jit.compile import nvrtc

ROOT = Path(__file__).parent.parent
LIBRARIES = ("torch", "triton", "cuda-bindings", "cuda-core", "numpy")


def conditions(commit: str | None) -> dict[str, Any]:
    """Collect GPU, driver, host, versions, commit, command and time; `commit` for a tree that came without git."""
    return {
        "gpu": device.get("cuda").name if device.gpu_count() else "no GPU",
        "driver": _driver(),
        "host": f"{_processor()}, {os.cpu_count()} cores, Python {platform.python_version()}",
        **{name: version for name in LIBRARIES if (version := _version(name))},
        "nvrtc": nvrtc.compiler_id(),
        "onekernel": onekernel.__version__,
        "commit": commit or _commit(),
        "command": "python -m benchmarks " + " ".join(_without_places(sys.argv[1:])),
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
    }


def _without_places(words: list[str]) -> list[str]:
    """Leave out where the results were written: that is nobody's business."""
    return ["FOLDER" if before == "--out" else word for before, word in zip(["", *words], words, strict=False)]


def _driver() -> str:
    if shutil.which("nvidia-smi") is None:
        return "the stub driver of the tests" if device.gpu_count() else "none"
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    return subprocess.run(query, capture_output=True, text=True, check=False).stdout.strip().split("\n")[0]


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown CPU")


def _version(library: str) -> str | None:
    try:
        return metadata.version(library)
    except metadata.PackageNotFoundError:
        return None


def _commit() -> str:
    """Refuse a dirty tree: its numbers could not be made again."""
    status = subprocess.run(["git", "status", "--porcelain"], cwd=ROOT, capture_output=True, text=True, check=True)
    if status.stdout.strip():
        sys.exit("benchmarks: expected a clean git tree, got uncommitted changes; commit them or pass --commit")
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True)
    return head.stdout.strip()

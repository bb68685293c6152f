"""Under what conditions numbers were taken: they are worth nothing without."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
import triton

import onekernel
from onekernel.jit.compile import nvrtc

ROOT = Path(__file__).parent.parent


def conditions(commit: str | None) -> dict[str, Any]:
    """Collect GPU, driver, versions, commit, command and time; `commit` for a tree that came without git."""
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    driver = subprocess.run(query, capture_output=True, text=True, check=False).stdout.strip().split("\n")[0]
    return {
        "gpu": torch.cuda.get_device_name(),
        "driver": driver,
        "torch": torch.__version__,
        "triton": triton.__version__,
        "nvrtc": nvrtc.compiler_id(),
        "onekernel": onekernel.__version__,
        "commit": commit or _commit(),
        "command": "python -m benchmarks " + " ".join(sys.argv[1:]),
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
    }


def _commit() -> str:
    """Refuse a dirty tree: its numbers could not be made again."""
    status = subprocess.run(["git", "status", "--porcelain"], cwd=ROOT, capture_output=True, text=True, check=True)
    if status.stdout.strip():
        sys.exit("benchmarks: expected a clean git tree, got uncommitted changes; commit them or pass --commit")
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True)
    return head.stdout.strip()

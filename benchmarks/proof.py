"""That the kernels are right on this GPU: the parity tests, then compute-sanitizer over every case."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from typing import Any

from benchmarks.conditions import ROOT

SANITIZERS = ("memcheck", "racecheck", "synccheck")
PARITY = ("test_kernels", "test_ops", "test_primitives_gpu", "test_launch")


def run() -> dict[str, Any]:
    """Run everything and return the counts; `clean` is true when nothing failed and nothing was found."""
    parity = _output(["-m", "pytest", "-m", "gpu", *(f"tests/{name}.py" for name in PARITY)])
    passed, failed, broken = (_number(rf"(\d+) {word}", parity) for word in ("passed", "failed", "error"))
    failed += broken
    record: dict[str, Any] = {"parity_tests_passed": passed, "parity_tests_failed": failed}
    for tool in SANITIZERS:
        prefix = ["compute-sanitizer", "--tool", tool]
        text = _output(["tests/sanitize.py"], prefix)
        found = _number(r"SUMMARY: (\d+)", text, missing=1)
        cases = _number(r"(\d+) cases, 0 wrong", text)
        text = _output(["-m", "pytest", "-m", "gpu", "-p", "no:cacheprovider", "tests/test_primitives_gpu.py"], prefix)
        primitives = 0 if _number(r"(\d+) failed", text) else _number(r"(\d+) passed", text)
        found += _number(r"SUMMARY: (\d+)", text, missing=1)
        record[tool] = {"cases": cases, "primitives": primitives, "findings": found}
    record["clean"] = (
        bool(passed)
        and not failed
        and all(
            record[tool]["findings"] == 0 and record[tool]["cases"] and record[tool]["primitives"]
            for tool in SANITIZERS
        )
    )
    return record


def _output(arguments: list[str], prefix: list[str] | None = None) -> str:
    path = os.pathsep.join(str(ROOT / name) for name in ("src", "tests"))
    command = [*(prefix or []), sys.executable, *arguments]
    environment = {**os.environ, "PYTHONPATH": path}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False).stdout


def _number(pattern: str, text: str, *, missing: int = 0) -> int:
    found = re.search(pattern, text)
    return int(found[1]) if found else missing

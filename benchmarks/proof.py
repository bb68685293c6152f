"""That the kernels are right on this GPU: the parity tests, then compute-sanitizer over every case."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from typing import Any

from benchmarks.conditions import ROOT

SANITIZERS = ("memcheck", "racecheck", "synccheck")


def run() -> dict[str, Any]:
    """Run everything and return the counts; `clean` is true when nothing failed and nothing was found."""
    parity = _output(["-m", "pytest", "-m", "gpu", "tests/test_kernels.py", "tests/test_ops.py"])
    passed, failed, broken = (_number(rf"(\d+) {word}", parity) for word in ("passed", "failed", "error"))
    failed += broken
    record: dict[str, Any] = {"parity_tests_passed": passed, "parity_tests_failed": failed}
    for tool in SANITIZERS:
        prefix = ["compute-sanitizer", "--tool", tool]
        text = _output(["tests/sanitize.py"], prefix)
        found = _number(r"SUMMARY: (\d+)", text, missing=-1)
        cases = _number(r"(\d+) cases, 0 wrong", text)
        record[tool] = {"cases": cases, "findings": found}
    record["clean"] = (
        bool(passed)
        and not failed
        and all(record[tool]["findings"] == 0 and record[tool]["cases"] for tool in SANITIZERS)
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

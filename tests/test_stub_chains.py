"""Whole chains through the real path of a launch without a GPU: GpuDevice and cuda-bindings on the stub driver."""

from __future__ import annotations

import re
from pathlib import Path

import stub_driver

TESTS = Path(__file__).parent / "test_kernels.py"
# Rows of several widths, columns, shifted tensors, every dtype; and graphs of overlapping launches.
CASES = (
    "17x64-float32", "5x384-bfloat16", "2x4096-float16", "1x16384-float32", "2x192x37-float32", "2x192x37-float16",
    "5x256-shifted-float16", "2x64x8-shifted-float32",
)  # fmt: skip
NODES = [
    *(f"{TESTS}::test_results_are_within_the_limit[{case}-cuda]" for case in CASES),
    f"{TESTS}::test_a_far_mean_costs_no_accuracy[cuda]",
    f"{TESTS}::test_overlapping_launches_wait_for_each_other[(1, 192, 109)]",
]


def test_chains_compute_on_the_stub() -> None:
    """Each is compared with the float64 oracle there; none may be skipped or missing."""
    result = stub_driver.python(
        "-m", "pytest", "-p", "stub_driver.emulate", "-p", "no:cacheprovider", "-q", "-rA", *NODES
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert len(re.findall(r"^PASSED ", result.stdout, re.MULTILINE)) == len(NODES), result.stdout

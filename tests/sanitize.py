"""Run every kernel case once on the GPU, for compute-sanitizer: no framework, only our own launches.

compute-sanitizer --tool memcheck|racecheck|synccheck --error-exitcode 9 python tests/sanitize.py
"""

from __future__ import annotations

import sys

from kernel_cases import CASES, check, cuda, residual_gelu


def main() -> int:
    """Check the shapes in two dtypes; the exit code is 1 when a result is wrong."""
    machine, failed = cuda(), 0
    for case in CASES:
        for dtype in ("float32", "float16"):
            chain = residual_gelu(case.shape[1], axis=1, rank=len(case.shape), dtype=dtype)
            _, comparisons = check(chain, case, machine)
            failed += sum(not item.passed for item in comparisons)
    print(f"{2 * len(CASES)} cases, {failed} wrong results")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

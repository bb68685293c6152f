"""One instruction set and one thread for torch on every host: golden files hold only where sums have one order.

Imported before torch. `python tests/arithmetic.py` prints NAME=value of each, for scripts of another environment.
"""

from __future__ import annotations

import os

SAME_EVERYWHERE = {
    "ATEN_CPU_CAPABILITY": "avx2",
    "MKL_CBWR": "AVX2",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "OMP_NUM_THREADS": "1",  # tiny products are slower on more, and tests share the processors
}

os.environ.update(SAME_EVERYWHERE)

if __name__ == "__main__":
    print(*(f"{name}={value}" for name, value in SAME_EVERYWHERE.items()))

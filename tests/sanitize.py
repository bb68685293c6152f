"""Run every kernel case once on the GPU, for compute-sanitizer: no framework, only our own launches.

compute-sanitizer --tool memcheck|racecheck|synccheck --error-exitcode 9 python tests/sanitize.py [decoders|barriers]

With "decoders", small decoders in one launch instead, against the interpreter; torch packs their weights on the CPU.
With "barriers", kernels that a barrier of each kind keeps from racing: what a tool reports of them, it does not know.
"""

from __future__ import annotations

import sys

from kernel_cases import CASES, check, cuda, residual_gelu


def decoders() -> int:
    """Check decoders; the exit code is 1 when a token is wrong."""
    from decoders import SHAPES, Model, Run
    from onekernel import device
    from onekernel.megakernel.layout import Schedule

    prompt, steps, failed = [5, 17, 70], 12, 0
    for name, shape in SHAPES.items():
        model = Model(shape)
        right = model.interpret(prompt, steps).said
        for slots in (0, 3):  # weights by the warps themselves, and through a ring
            run = Run(model, Schedule(6, slots=slots), on=device.get("cuda"))
            failed += run.run(prompt, steps) != right
            run.mailbox.check()
            print(f"{name}: {steps} steps, {slots} slots")
    print(f"{2 * len(SHAPES)} decoders, {failed} wrong results")
    return 1 if failed else 0


BARRIERS = {
    "of the block": "block_barrier();",
    "named, of all threads": "named_barrier(1, 256);",
    "named, of some threads": "if (threadIdx.x < 128) named_barrier(1, 128); else named_barrier(2, 128);",
}


def barriers() -> int:
    """Swap numbers over shared memory; the exit code is 1 when one is wrong."""
    import numpy as np

    import onekernel
    from onekernel import device

    on, failed = device.get("cuda"), 0
    for kind, barrier in BARRIERS.items():
        body = f"""#include "primitives.cuh"
#include "primitives/wait.cuh"
extern "C" __global__ void swap(int* y) {{
  int* words = dynamic_storage<int>();
  for (int round = 0; round < 4; ++round) {{
    int* half = words + round % 2 * 256;
    half[threadIdx.x] = threadIdx.x + round;
    {barrier}
    y[threadIdx.x] = half[threadIdx.x ^ 33];
  }}
}}
"""
        kernel = onekernel.kernel(body, entry="swap", parameters=[("y", "int*")], device=on, threads=256, shared=2048)
        y = on.upload(np.zeros(256, np.int32))
        kernel.launch(y, grid=1)
        on.synchronize()
        failed += bool((y.numpy() != (np.arange(256) ^ 33) + 3).any())
        print(f"a barrier {kind}")
    return 1 if failed else 0


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
    sys.exit({"decoders": decoders, "barriers": barriers}.get("".join(sys.argv[1:]), main)())

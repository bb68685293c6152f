"""Run every kernel case once on the GPU, for compute-sanitizer: no framework, only our own launches.

compute-sanitizer --tool memcheck|racecheck|synccheck --error-exitcode 9 python tests/sanitize.py [decoders]

With "decoders", small decoders in one launch instead, against the interpreter; torch packs their weights on the CPU.
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
    sys.exit(decoders() if sys.argv[1:] == ["decoders"] else main())

"""What `verify` says where the answer is known, and of our own kernel, alone and in a model.

itself   the same against itself, twenty times: every verdict must be inconclusive
planted  3 % more and less work, and a kernel that is faster where nobody waits for it (GPU)
chain    the normalisation chain, nine operators against one launch (GPU)
model    a torch model against the same with the launch spliced in by hand (GPU)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from onekernel import Plan, device, verify

RUNS = 20
BRIEF = Plan(seconds=2.0, repeats=10, rounds=1, energy=0, confidence=0.999)


def run(report: Callable[[str], None], out: Path | None = None) -> dict[str, Any]:
    """Verify; every verdict is written whole, and drawn into `out`."""
    record: dict[str, Any] = {"itself": {"host": _itself(report, "host", _host_call, [_rows()])}}
    if device.gpu_count():
        from benchmarks import verdicts_gpu

        call, inputs = verdicts_gpu.chain_call()
        record["itself"]["GPU"] = _itself(report, "GPU", call, inputs)
        for name, (before, after, given, plan) in verdicts_gpu.cases().items():
            report(f"verifying: {name}")
            verdict = verify(before, after, given, plan=plan)
            record[name] = verdict.record()
            report(f"{name}: {verdict.decision} ({verdict.rule}): {verdict.reason}")
            if out is not None and name in ("chain", "model"):
                verdict.save_picture(out / f"{name}.svg")
    return record


def _rows() -> Any:
    return np.random.default_rng(0).standard_normal((256, 256)).astype(np.float32)


def _host_call(x: Any) -> Any:
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt(np.square(centred).mean(-1, keepdims=True) + 1e-5)


def _itself(report: Callable[[str], None], where: str, call: Callable[..., Any], inputs: Any) -> dict[str, Any]:
    decisions, worst = Counter[str](), 0.0
    for number in range(RUNS):
        verdict = verify(call, call, inputs, plan=Plan(**{**vars(BRIEF), "seed": number}))
        decisions[f"{verdict.decision}: {verdict.rule}"] += 1
        assert verdict.speed is not None
        worst = max(worst, abs(verdict.speed.whole[0].ratio - 1))
        report(f"against itself on the {where}, {number + 1} of {RUNS}: {verdict.decision} ({verdict.reason})")
    return {"runs": RUNS, "confidence": BRIEF.confidence, "verdicts": dict(decisions), "largest_difference": worst}

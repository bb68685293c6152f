"""A verdict as JSON values: everything that decided, and what it rests on."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from onekernel.verify.compare import Comparison
from onekernel.verify.speed import Change, Speed, Timing

if TYPE_CHECKING:
    from onekernel.verify.verdict import Verdict

_PERCENTILES = (1, 5, 25, 50, 75, 95, 99)


def record(verdict: Verdict) -> dict[str, Any]:
    """Return decision, rule and reason, then the three dimensions; numbers that are not finite are written as text."""
    written = {
        "decision": verdict.decision,
        "rule": verdict.rule,
        "reason": verdict.reason,
        "numbers": [_comparison(item) for item in verdict.numbers],
        "divergence": None if verdict.divergence is None else _comparison(verdict.divergence),
        "speed": None if verdict.speed is None else _speed(verdict.speed),
        "footprint": None
        if verdict.footprint is None
        else {"costs": list(map(_change, verdict.footprint.costs)), "gpu": verdict.footprint.state},
        "doubts": list(verdict.doubts),
        "notes": list(verdict.notes),
    }
    return _plain(written)  # type: ignore[no-any-return]


def _comparison(item: Comparison) -> dict[str, Any]:
    first = None if item.first is None else asdict(item.first)
    limit = {"limit": item.limit.limit, "limit_reason": item.limit.reason}
    return {"name": item.name, "passed": item.passed, "error": item.error, **limit, "problem": item.problem,
            "detail": item.detail, "first": first}  # fmt: skip


def _speed(speed: Speed) -> dict[str, Any]:
    return {
        "gain": speed.gain,
        "floor": speed.floor,
        "before": _timing(speed.before),
        "after": _timing(speed.after),
        **{
            name: list(map(_change, getattr(speed, name))) for name in ("whole", "noise", "kernels", "service", "parts")
        },
        "first": None if speed.first is None else _change(speed.first),
    }


def _timing(timing: Timing) -> dict[str, Any]:
    import numpy as np

    values = np.percentile(timing.samples, _PERCENTILES).tolist()
    percentiles = {f"P{p}": value for p, value in zip(_PERCENTILES, values, strict=True)}
    return {"clock": timing.clock, "requests": len(timing.samples), "seconds": percentiles}


def _change(change: Change) -> dict[str, Any]:
    return {**asdict(change), "ratio": change.ratio}


def _plain(value: Any) -> Any:
    """Replace what JSON has no number for."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value.item() if hasattr(value, "item") else value

"""The story of a verification of what was named: both sides and their inputs are opened, and the room `verify` judges.

That room takes callables and opens no files; see docs/decisions/0012-verify-opens-no-files.md.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from onekernel.device.counters import counts, since
from onekernel.targets import Opened, inputs_for, open_subject
from onekernel.verify import LIMITS, Limit, Metric, Plan, Verdict
from onekernel.verify import verify as judge
from onekernel.verify.sides.subject import Inputs

log = logging.getLogger("onekernel")


def verify(
    before: Any,
    after: Any,
    inputs: Inputs | str | Path | None = None,
    *,
    limits: Sequence[Limit] = LIMITS,
    metrics: Sequence[Metric] = (),
    plan: Plan | None = None,
) -> Verdict:
    """Prove that `after` computes what `before` does, faster, and at what cost.

    Each side: a callable, a torch module, a Subject, a FusedModel, an ONNX model, or a path or text (targets.subjects).
    `inputs`: one call's, the path of an .npz file, "auto" (made up), or None: what a side brings, before's first, or
    made-up ones where all sizes are fixed. Models draw equal random numbers, unless the plan compares distributions.
    Raises InvalidInput for anything of the user's that cannot be used.
    """
    plan = plan or Plan()
    log.info("opening both sides")
    one, two = (_open(side, name, plan) for name, side in (("before", before), ("after", after)))
    found = inputs_for(inputs, one, two)
    return judge(one.subject, two.subject, found, limits=limits, metrics=metrics, plan=plan)


def _open(named: Any, side: str, plan: Plan) -> Opened:
    """Open a side, and note what OneKernel built for it."""
    start = counts()
    opened = open_subject(named, side, random=plan.distribution)
    return replace(opened, subject=replace(opened.subject, opening=since(start)))

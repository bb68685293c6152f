"""Which proposals stay: each is kept or undone by what it does to the whole model, one at a time, the largest first.

A model that cannot be timed here is tried with all of them at once: its kernels were judged one by one before, and if
the whole is right with all, nothing is to be undone.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace

from onekernel.optimize.bench import Bench
from onekernel.optimize.outcome import Candidate
from onekernel.splice.model import FusedModel
from onekernel.verify import Verdict

log = logging.getLogger("onekernel")
_NOT_YET = "not tried yet"


@dataclass(frozen=True)
class Decided:
    """What became of each proposal, and the model with those that stayed, judged as a whole."""

    candidates: list[Candidate]
    model: FusedModel
    verdict: Verdict


def keep_or_undo(bench: Bench, candidates: Sequence[Candidate]) -> Decided:
    """Undo what the verdict rejects. What noise leaves open stays: the whole decides about it.

    Where nothing stays, the verdict is that of all together.
    """
    model = bench.splice(candidates)
    verdict = bench.judge(model)
    if verdict.decision != "reject" and not bench.times:
        return Decided(list(candidates), model, verdict)
    decided, model = _one_by_one(bench, candidates)
    if all(item.undone for item in decided):
        return Decided(decided, model, verdict)
    return Decided(decided, model, bench.judge(model))


def _one_by_one(bench: Bench, candidates: Sequence[Candidate]) -> tuple[list[Candidate], FusedModel]:
    order = [place for place, item in enumerate(candidates) if not item.undone]
    order.sort(key=lambda place: candidates[place].saving.seconds, reverse=True)
    decided = [replace(item, undone=item.undone or _NOT_YET) for item in candidates]
    before = bench.original
    for done, place in enumerate(order):
        log.info("judging one proposal at a time", extra={"done": done, "total": len(order)})
        proposed = [*decided[:place], candidates[place], *decided[place + 1 :]]
        model = bench.splice(proposed)
        verdict = bench.judge(model, before)
        if verdict.decision == "reject":
            decided[place] = replace(candidates[place], undone=verdict.reason)
        else:
            decided, before = proposed, model
    return decided, before

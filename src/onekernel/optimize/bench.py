"""Where candidates are tried: one target, one way to run it, one table of limits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from onekernel.device import Device
from onekernel.device.cuda.gpu import GpuDevice
from onekernel.optimize.judge import judge_kernels, judge_model, time_kernels, time_models
from onekernel.optimize.outcome import Candidate
from onekernel.splice.engine import Engine
from onekernel.splice.model import FusedModel
from onekernel.splice.onnxruntime import splice
from onekernel.targets import Target
from onekernel.verify import Limit, Verdict
from onekernel.verify.sides.place import Place


@dataclass(frozen=True)
class Bench:
    """Splices candidates into the target, judges and times them."""

    target: Target
    engine: Engine
    device: Device
    limits: Sequence[Limit]

    def splice(self, candidates: Sequence[Candidate]) -> FusedModel:
        """Put the chains that are still wanted into the model."""
        chains = [item.chain for item in candidates if not item.undone]
        values = self.target.graph.values
        read = {operand.name for chain in chains for operand in chain.operands}
        fixed = {name: array for name in sorted(read) if (array := values[name].constant) is not None}
        return splice(self.target.model, chains, self.engine, fixed)

    def without_wrong(self, candidates: Sequence[Candidate]) -> list[Candidate]:
        """Judge every kernel on what it reads in a real run; undo those that are off."""
        model = self.splice(candidates)
        known = dict(zip(model.chains, judge_kernels(model, self.target.inputs, self.limits), strict=True))
        return [_judged(item, known[item.chain]) if not item.undone else item for item in candidates]

    @property
    def times(self) -> bool:
        """Whether whole models can be timed: values stay on a GPU between the steps."""
        return self.engine.resident

    @cached_property
    def original(self) -> FusedModel:
        """The target with nothing fused."""
        return self.splice(())

    def judge(self, model: FusedModel, before: FusedModel | None = None) -> Verdict:
        """Judge a model: its numbers against the original; where models can be timed, its speed against `before`.

        Without one, its speed is that against the original, too.
        """
        verdict = judge_model(self.target, model, self.limits)
        if not self.times or verdict.decision != "keep":
            return verdict
        place = Place(self.device if isinstance(self.device, GpuDevice) else None)
        return replace(verdict, speed=time_models(before or self.original, model, self.target, self.limits, place))

    def timed(self, candidates: Sequence[Candidate], model: FusedModel) -> list[Candidate]:
        """Time every kernel alone; the emulated device has no time worth knowing."""
        if not isinstance(self.device, GpuDevice):
            return list(candidates)
        timings = time_kernels(model, self.target.inputs, self.device)
        known = dict(zip(model.chains, timings, strict=True))
        return [replace(item, timing=known.get(item.chain)) for item in candidates]


def _judged(item: Candidate, verdict: Verdict) -> Candidate:
    return replace(item, verdict=verdict, undone="" if verdict.decision == "keep" else verdict.reason)

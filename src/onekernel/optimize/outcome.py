"""What `optimize` hands back: records only. They decide nothing; they add up and write themselves down."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from onekernel.device.parts import Part
from onekernel.fusion.chain import Chain, Left
from onekernel.fusion.cost import Saving
from onekernel.fusion.kernel import Build
from onekernel.splice.model import FusedModel
from onekernel.verify import Comparison, Verdict
from onekernel.verify.speed import Timing


@dataclass(frozen=True)
class Candidate:
    """A chain, what it should save, and what became of it; `undone` is empty where it was kept."""

    chain: Chain
    saving: Saving
    build: Build | None = None
    verdict: Verdict | None = None  # its kernel against float64, on the operands of a real run
    timing: Timing | None = None  # its kernel alone, on the GPU of this machine
    undone: str = ""


@dataclass(frozen=True)
class Optimization:
    """What was found, built, proven and written."""

    name: str
    part: Part  # the GPU that kernels were built and savings predicted for
    model: FusedModel
    verdict: Verdict  # the whole model against the original
    candidates: tuple[Candidate, ...] = field(repr=False)
    left: tuple[Left, ...] = ()
    notes: tuple[str, ...] = ()
    out: Path | None = None

    @property
    def chains(self) -> tuple[Chain, ...]:
        """The chains that run as one kernel each."""
        return self.model.chains

    @property
    def builds(self) -> tuple[Build, ...]:
        """The distinct kernels compiled for the target GPU."""
        return self.model.builds

    @property
    def kept(self) -> tuple[Candidate, ...]:
        """The candidates behind `chains`, in the same order."""
        return tuple(item for item in self.candidates if not item.undone)

    @property
    def verdicts(self) -> tuple[Verdict, ...]:
        """The verdict of the whole, then that of each kernel."""
        return (self.verdict, *(item.verdict for item in self.candidates if item.verdict is not None))

    @property
    def saving(self) -> float:
        """Predicted seconds that one call saves on the target GPU."""
        return sum(item.saving.seconds for item in self.kept)

    @property
    def worst_kernel(self) -> Comparison | None:
        """The comparison of a kernel that is closest to its limit, or furthest beyond it."""
        numbers = tuple(item for verdict in self.verdicts[1:] for item in verdict.numbers)
        return Verdict(numbers).worst

    @property
    def launches(self) -> tuple[int, int]:
        """Launches for the kept chains, before and after."""
        return sum(item.saving.launches_before for item in self.kept), len(self.kept)

    @property
    def kernel_seconds(self) -> float | None:
        """Measured seconds of all kernels, each timed alone; None where there is no GPU."""
        timings = [item.timing.median for item in self.kept if item.timing is not None]
        return sum(timings) if timings else None

    def record(self) -> dict[str, Any]:
        """Summarise as JSON values, for the saved folder and for --json."""
        return {
            "model": self.name,
            "gpu": self.part.name,
            "decision": self.verdict.decision,
            "reason": self.verdict.reason,
            "chains": len(self.chains),
            "launches": list(self.launches),
            "bytes": [
                sum(item.saving.bytes_before for item in self.kept),
                sum(item.saving.bytes_after for item in self.kept),
            ],
            "predicted_seconds_saved": self.saving,
            "measured_kernel_seconds": self.kernel_seconds,
            "measured_gain": None if self.verdict.speed is None else self.verdict.speed.gain,
            "numbers": [_number(item) for verdict in self.verdicts for item in verdict.numbers],
            "kernels": [_kernel(build) for build in self.builds],
            "undone": [[item.chain.name, item.undone] for item in self.candidates if item.undone],
            "left": [[list(item.source), item.reason] for item in self.left],
            "notes": list(self.notes),
            "out": None if self.out is None else str(self.out),
        }


def _number(item: Any) -> dict[str, Any]:
    return {"name": item.name, "error": item.error, "limit": item.limit.limit, "passed": item.passed}


def _kernel(build: Build) -> dict[str, Any]:
    used = build.binary.resources
    return {
        "name": build.request.name,
        "arch": build.request.arch,
        "registers": used.registers,
        "spill_bytes": used.spill_bytes,
        "seconds": build.binary.seconds,
    }

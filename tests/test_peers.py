"""The benchmark beside the public runtimes, without them: what it asks for, what it counts, and its rows."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from benchmarks import peer, peers
from onekernel.errors import InvalidInput


class Loop:
    """A runtime's loop over frames."""

    def predict(self, code: int) -> int:
        """Say what comes after a code."""
        return code + 1

    def speak(self, frames: int) -> int:
        """Say that many."""
        code = 0
        for _ in range(frames):
            code = self.predict(code)
        return code


def test_a_frame_begins_where_its_method_is_called() -> None:
    loop, begun = Loop(), list[int]()
    runtime = peer.Runtime("a loop", None, loop.speak).watch(loop, "predict")
    runtime.begin = lambda: begun.append(1)
    assert runtime.speak(5) == 5
    assert len(begun) == 5


def test_kernels_are_counted_and_copies_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    profiler = torch.profiler.profile()
    trace = '{"traceEvents": [{"cat": "kernel"}, {"cat": "gpu_memcpy"}, {"ph": "M"}, {"cat": "kernel"}]}'
    monkeypatch.setattr(profiler, "export_chrome_trace", lambda path: Path(path).write_text(trace, encoding="utf-8"))
    assert peer.kernels_of(profiler) == 2


def test_turns_alternate_and_rows_hold_all_of_them() -> None:
    asked = list[str]()

    def contender(name: str, milliseconds: float) -> peers.Turn:
        def turn() -> list[float]:
            asked.append(name)
            return [milliseconds, milliseconds + asked.count(name)]

        return turn

    taken = peers.take_turns({"ours": contender("ours", 2), "theirs": contender("theirs", 20)}, turns=2)
    assert asked == ["ours", "theirs", "ours", "theirs"]
    ours, theirs = peers.rows(taken, floor=1)
    assert (ours["measured"], ours["max"], ours["of floor"], ours["turns"]) == (2.5, 4, 0.4, [2.5, 3])
    assert (theirs["measured"], theirs["times ours"], theirs["frames"]) == (20.5, 8.2, 4)
    assert not peers.failed([ours, theirs])


@pytest.mark.parametrize(("folder", "got"), [(None, "no such variable"), ("/nowhere", "'/nowhere'")])
def test_packages_that_are_missing_are_told(folder: str | None, got: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if folder is None:
        monkeypatch.delenv("FASTER_SITE", raising=False)
    else:
        monkeypatch.setenv("FASTER_SITE", folder)
    with pytest.raises(InvalidInput, match=f"FASTER_SITE, got {got}"):
        peers.sites()

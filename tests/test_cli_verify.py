"""The verb `verify`: its tables, its JSON, its options and its four exit codes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evidence import change, speed, verdict
from onekernel import Plan, proof
from onekernel.cli import main
from onekernel.verify import Verdict

Run = Callable[..., tuple[int, str, str]]
SIDES = """
import numpy as np
X = [np.arange(1.0, 7.0)]
def double(): return (lambda x: x * 2), X
def added(): return lambda x: x + x
def wrong(): return lambda x: x * 2 + (x == 3)
def moody(): return (lambda x: x + np.random.random()), X
def boom(): raise RuntimeError("no weights")
"""


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run the verb in this process, in a folder with sides.py: exit code, stdout, stderr."""
    monkeypatch.chdir(tmp_path)
    Path("sides.py").write_text(SIDES)

    def run(*arguments: str) -> tuple[int, str, str]:
        sides = [f"sides.py:{item}" if item.isidentifier() else item for item in arguments[:2]]
        code = main(["verify", *sides, *arguments[2:]])
        out, err = capsys.readouterr()
        return code, out, err

    return run


@pytest.mark.parametrize(
    ("after", "code", "words"),
    [
        ("added", 0, ["keep: equal numbers", "output", "0.00e+00", "0.0001"]),
        ("wrong", 1, ["reject: wrong numbers", "[2]: expected 6.0, got 7.0", "the user's inputs"]),
    ],
)
def test_numbers(run: Run, after: str, code: int, words: list[str]) -> None:
    got, out, err = run("double", after, "--seconds", "0", "--repeats", "4")
    assert (got, err) == (code, "")
    for word in words:
        assert word in out
    assert "speed" not in out


def test_no_reference_is_not_enough_evidence(run: Run) -> None:
    code, out, _ = run("moody", "added", "--seconds", "0")
    assert code == 3
    assert out.startswith("inconclusive: no reference\n")
    assert "doubt  the original answers the same input differently" in out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["boom", "double"], "no weights"),
        (["double", "nonsense!"], "command line"),
        (["added", "added"], "neither side says what it takes"),
        (["double", "added", "--confidence", "2"], "confidence = 2.0"),
        (["double", "added", "--streams", "1,x"], "such as 1,4"),
        (["double", "added", "--streams", "0"], "streams = (0,)"),
        (["double", "added", "--inputs", "gone.npz"], "no such file"),
        (["cat gone", "echo a"], "exit code 1"),
        (["double"], "AFTER"),
    ],
)
def test_what_cannot_be_used_is_one_line(run: Run, arguments: list[str], words: str) -> None:
    code, out, err = run(*arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("onekernel: ")
    assert words in err


def test_json(run: Run) -> None:
    code, out, _ = run("double", "wrong", "--seconds", "0", "--json")
    record = json.loads(out)
    assert code == 1
    assert (record["decision"], record["rule"], record["speed"]) == ("reject", "wrong numbers", None)
    assert record["numbers"][0]["first"] == {"index": [2], "expected": 6.0, "got": 7.0}


def test_a_short_run_from_end_to_end(run: Run) -> None:
    np.savez("in.npz", x=np.ones(8))
    code, out, _ = run("double", "added", "--seconds", "0.1", "--inputs", "in.npz", "--streams", "2", "--repeats", "4")
    assert code in (0, 1, 3)
    for row in ("P50", "P95", "first call", "per request, 2 callers", "host memory", "modules loaded", "note   energy"):
        assert row in out


Proven = Callable[[Verdict], list[dict[str, Any]]]


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch) -> Proven:
    """Have every verification end with a verdict; returns what each was asked."""

    def stub(result: Verdict) -> list[dict[str, Any]]:
        asked: list[dict[str, Any]] = []

        def verify(before: Any, after: Any, inputs: Any, *, plan: Plan) -> Verdict:
            asked.append({"sides": (before, after), "inputs": inputs, "plan": plan})
            return result

        monkeypatch.setattr(proof, "verify", verify)
        return asked

    return stub


def test_options_are_the_plan(run: Run, stub: Proven) -> None:
    asked = stub(verdict(None))
    run("a b", "c d")
    words = (
        "--rounds 1 --repeats 2 --seconds 3 --energy 4 --rate 5 --streams 6,7 --expect norm --confidence .9 --seed 8"
    )
    run("a b", "c d", *words.split(), "--distribution", "--inputs", "auto")
    assert asked[0] == {"sides": ("a b", "c d"), "inputs": None, "plan": Plan()}
    assert asked[1]["inputs"] == "auto"
    assert asked[1]["plan"] == Plan(1, 2, 3.0, 4.0, 5.0, (6, 7), "norm", True, 0.9, 8)


def test_everything_that_was_measured_has_a_row(run: Run, stub: Proven) -> None:
    measured = speed(
        0.002, 0.001,
        kernels=(change("kernels, L2 warm", 4e-6, 2e-6),),
        service=(change("at 10 requests/s P50", 0.003, 0.002),),
        parts=(change("layer[norm]", 5e-4, 2e-4, samples=60),),
        first=change("first call", 1.5, 1.25, samples=3, enough=False),
    )  # fmt: skip
    cost = change("host memory", 2e7, 1e7)
    stub(verdict(measured, type(cost)(**{**vars(cost), "unit": "B"}), notes=("said [once]",)))
    code, out, _ = run("double", "added")
    assert code == 0
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert lines[:2] == ["keep: faster", "a request takes 0.5x as long (2.00 times as fast)"]
    for line in (
        "speed (made up; noise 2.0%)",
        "P50 2 ms 1 ms 0.500 0.499 to 0.501 6000",
        "kernels, L2 warm 4 us 2 us 0.500 0.499 to 0.501 6000",
        "at 10 requests/s P50 3 ms 2 ms 0.667 0.666 to 0.668 6000",
        "first call 1.5 s 1.25 s 0.833 0.832 to 0.834 3, too few",
        "layer[norm] 500 us 200 us 0.400 0.399 to 0.401 60",
        "host memory 20 MB 10 MB 0.500 0.499 to 0.501 6000",
        "note said [once]",
    ):
        assert line in lines


def test_a_picture_is_drawn(run: Run, stub: Proven, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[str] = []
    monkeypatch.setattr(Verdict, "save_picture", lambda _, path: drawn.append(path))
    stub(verdict(None))
    assert run("double", "added", "--picture", "proof.svg")[0] == 0
    assert drawn == ["proof.svg"]

"""The launch checker under random calls, and proof that the fuzzer notices a checker that errs."""

from __future__ import annotations

import struct

import pytest

import fuzz_launch
from onekernel.jit import operands


def test_a_hundred_thousand_launches_are_judged_rightly() -> None:
    accepted, refused = fuzz_launch.run(100_000)
    assert accepted > 10_000
    assert refused > 10_000


CAUGHT = (AssertionError, TypeError, struct.error, RuntimeWarning)  # a wrong judgement, or a crash


@pytest.mark.parametrize(
    ("text", "old", "new"),
    [
        ("_BUFFER", " and {0}.traits in {0}_traits", ""),
        ("_TENSOR", " and {0}.dtype is {0}_dtype", ""),
        ("_TENSOR", " and {0}.device == {0}_device", ""),
        ("_TENSOR", " and {0}.is_contiguous()", ""),
        ("_TENSOR", " and not {0}_address % {0}_unit", ""),
        ("float", "type({0}) is float and ", "type({0}) is not str and "),
        ("float", "-1e38 < {0} < 1e38", "True"),
        ("int", "type({0}) is int and ", ""),
        ("int", f"{{0}} < {2**31}", f"{{0}} <= {2**31}"),
        ("long long", f"{{0}} < {2**63}", f"{{0}} <= {2**63}"),
    ],
)
def test_an_erring_checker_is_found(monkeypatch: pytest.MonkeyPatch, text: str, old: str, new: str) -> None:
    right = operands._SHORT[text] if text in operands._SHORT else getattr(operands, text)
    assert old in right
    if text in operands._SHORT:
        monkeypatch.setitem(operands._SHORT, text, right.replace(old, new))
    else:
        monkeypatch.setattr(operands, text, right.replace(old, new))
    with pytest.raises(CAUGHT):
        fuzz_launch.run(20_000)


@pytest.mark.parametrize("name", ["count", "alignment_of"])
def test_a_checker_that_forgets_a_demand_is_found(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    if name == "count":
        monkeypatch.setattr(operands.Parameter, "count", lambda *_: "")
    else:
        monkeypatch.setattr(operands, name, lambda _: 1)
    with pytest.raises(CAUGHT):
        fuzz_launch.run(20_000)

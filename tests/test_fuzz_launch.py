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
    ("kind", "old", "new"),
    [
        ("pointer", " and {0}.traits in {0}_traits", ""),
        ("pointer", " and {0}.dtype is {0}_dtype", ""),
        ("pointer", " and {0}.device == {0}_device", ""),
        ("pointer", " and {0}.is_contiguous()", ""),
        ("pointer", " and not {0}_address % {0}_unit", ""),
        ("float", "type({0}) is float and ", "type({0}) is not str and "),
        ("float", "-1e38 < {0} < 1e38", "True"),
        ("int", "type({0}) is int and ", ""),
        ("int", f"{{0}} < {2**31}", f"{{0}} <= {2**31}"),
        ("long long", f"{{0}} < {2**63}", f"{{0}} <= {2**63}"),
    ],
)
def test_an_erring_checker_is_found(monkeypatch: pytest.MonkeyPatch, kind: str, old: str, new: str) -> None:
    assert old in operands._SHORT[kind]
    monkeypatch.setitem(operands._SHORT, kind, operands._SHORT[kind].replace(old, new))
    with pytest.raises(CAUGHT):
        fuzz_launch.run(10_000)

"""From evidence to a decision: each rule at its threshold, and in its place among the others."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest

from evidence import change, comparison, speed, verdict
from onekernel.verify import Limit, Verdict, rules
from onekernel.verify.limits import LIMITS
from onekernel.verify.rules import RULES
from onekernel.verify.speed import Change

FASTER = speed(1e-3, 5e-4)


def outcome(item: Verdict) -> tuple[str, str]:
    return item.decision, item.rule


def test_a_verdict_has_three_values_and_no_truth() -> None:
    good, bad = comparison(), comparison(1.0)
    assert outcome(Verdict((good,))) == ("keep", "equal numbers")
    assert outcome(Verdict((good, bad))) == ("reject", "wrong numbers")
    assert Verdict((good, bad)).worst is bad
    assert outcome(Verdict(())) == ("inconclusive", "no reference")
    assert outcome(Verdict((bad,), doubts=("the original is random",))) == ("inconclusive", "no reference")
    with pytest.raises(TypeError, match="three values"):
        bool(Verdict((good,)))


@pytest.mark.parametrize(
    ("after", "half", "expected"),
    [
        (0.5, 0.001, ("keep", "faster")),
        (0.978, 0.001, ("keep", "faster")),
        (0.978, 0.003, ("inconclusive", "too noisy")),
        (0.99, 0.001, ("inconclusive", "no difference")),
        (1.0, 0.001, ("inconclusive", "no difference")),
        (1.0, 0.5, ("inconclusive", "too noisy")),
        (1.022, 0.003, ("inconclusive", "too noisy")),
        (1.022, 0.001, ("reject", "slower")),
    ],
)
def test_a_change_counts_when_its_whole_interval_is_beyond_the_floor(
    after: float, half: float, expected: tuple[str, str]
) -> None:
    assert outcome(verdict(speed(1.0, after, half))) == expected


def test_more_requests_are_asked_for_where_they_would_decide() -> None:
    """The interval shrinks with the root of the number: 0.03 wide must become 0.01."""
    reason = verdict(speed(1.0, 0.97, 0.03)).reason
    assert "about 9 times as many requests would" in reason


@pytest.mark.parametrize(
    ("fields", "costs", "expected"),
    [
        ({"doubts": ("the ratio drifted",)}, (), ("inconclusive", "unsteady machine")),
        ({"whole": (change("P50", 1, 0.5), change("P95", 1, 1.06))}, (), ("reject", "worse tail")),
        ({"whole": (change("P50", 1, 0.5), change("P95", 1, 1.04, 0.02))}, (), ("inconclusive", "unsure tail")),
        ({"whole": (change("P50", 1, 0.5), change("P99", 1, 2, enough=False))}, (), ("keep", "faster")),
        ({"service": (change("at 9 requests/s P95", 1, 1.2),)}, (), ("reject", "worse tail")),
        ({}, (change("host memory", 1e8, 2e8, 0),), ("reject", "more memory")),
        ({}, (change("device memory held", 1e8, 1.1e8, 0),), ("reject", "more memory")),
        ({}, (change("host memory", 1e6, 2e6, 0),), ("keep", "faster")),
        ({}, (change("host memory", 1e9, 1.01e9, 0),), ("keep", "faster")),
        ({}, (change("energy per request", 1, 1.1),), ("reject", "more energy")),
        ({}, (change("energy per request", 1, 1.1, 0.2),), ("keep", "faster")),
        ({}, (change("mean power", 1, 1.5),), ("keep", "faster")),
    ],
)
def test_guards_of_a_gain(fields: dict[str, Any], costs: tuple[Change, ...], expected: tuple[str, str]) -> None:
    assert outcome(verdict(speed(1e-3, 5e-4, **fields), *costs)) == expected


def test_a_tail_is_no_surer_than_the_original_knows_its_own() -> None:
    noise = change("P50", 1, 1), change("P95", 1, 1, 0.2)
    worse = speed(1e-3, 5e-4, whole=(change("P50", 1, 0.5), change("P95", 1, 1.3)), noise=noise)
    assert outcome(verdict(worse)) == ("keep", "faster")


KERNEL = change("kernels, L2 warm", 1e-4, 5e-5)


@pytest.mark.parametrize(
    ("after", "fields", "expected"),
    [
        (1.0, {"kernels": (KERNEL,)}, ("reject", "globally void")),
        (1.0, {"parts": (change("norm", 1, 0.5), change("rest", 1, 1.5))}, ("reject", "globally void")),
        (1.0, {"parts": (change("norm", 0.01, 0.005), change("rest", 1, 1))}, ("inconclusive", "no difference")),
        (1.0, {"first": change("first call", 1, 0.1)}, ("reject", "first call only")),
        (0.5, {"kernels": (KERNEL,), "first": change("first call", 1, 0.1)}, ("keep", "faster")),
        (1.2, {"kernels": (KERNEL,)}, ("reject", "slower")),
    ],
)
def test_what_is_faster_only_somewhere(after: float, fields: dict[str, Any], expected: tuple[str, str]) -> None:
    assert outcome(verdict(speed(1.0, after, **fields))) == expected


def test_wrong_is_rejected_however_fast() -> None:
    wrong = Verdict((comparison(1.0),), FASTER)
    assert outcome(wrong) == ("reject", "wrong numbers")
    assert "first at [0]" in wrong.reason


@pytest.mark.parametrize(("expect", "rule"), [("norm", "faster"), ("gemm", "unexplained gain"), ("", "faster")])
def test_a_gain_is_where_it_was_predicted(expect: str, rule: str) -> None:
    parts = change("norm", 1.0, 0.5), change("gemm", 1.0, 1.0)
    assert verdict(speed(1e-3, 5e-4, parts=parts), expect=expect).rule == rule


def test_limits_of_the_user_decide() -> None:
    strict = (Limit("change", "energy", 0.0, "a battery"), *LIMITS)
    cost = change("energy per request", 1, 1.03)
    assert verdict(FASTER, cost).decision == "keep"
    assert verdict(FASTER, cost, limits=strict).decision == "reject"


DECIDED_BY = {
    "doubtful": Verdict((comparison(),), doubts=("the original is random",)),
    "wrong": Verdict((comparison(1.0),), FASTER),
    "numbers_only": Verdict((comparison(),)),
    "unsteady": verdict(speed(1e-3, 5e-4, doubts=("the ratio drifted",))),
    "slower": verdict(speed(1.0, 1.1)),
    "void": verdict(speed(1.0, 1.0, kernels=(KERNEL,))),
    "worse_tail": verdict(speed(1e-3, 5e-4, service=(change("at 9 requests/s P95", 1, 1.2),))),
    "more_memory": verdict(FASTER, change("host memory", 1e8, 2e8, 0)),
    "more_energy": verdict(FASTER, change("energy per request", 1, 1.1)),
    "elsewhere": verdict(speed(1e-3, 5e-4, parts=(change("gemm", 1, 1),)), expect="gemm"),
    "faster": verdict(FASTER),
    "no_difference": verdict(speed(1.0, 1.0)),
}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_without_a_rule_its_case_is_decided_otherwise(rule: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    case = DECIDED_BY[rule.__name__]
    known = outcome(replace(case))
    monkeypatch.setattr(rules, "RULES", tuple(item for item in RULES if item is not rule))
    assert _decided(replace(case)) != known


def _decided(case: Verdict) -> tuple[str, str] | None:
    try:
        return outcome(case)
    except (AssertionError, StopIteration):  # no rule is left, or one that needs what this one sees to
        return None


def test_a_record_is_json_and_complete() -> None:
    item = verdict(
        speed(1e-3, 2e-3, service=(Change("at 9 requests/s", "s", 0.0, 1.0, math.inf, math.inf),)),
        change("launches", 9, 1),
    )
    read = json.loads(json.dumps(item.record(), allow_nan=False))
    assert read["decision"] == "reject"
    assert read["rule"] == "slower"
    assert read["speed"]["whole"][0]["what"] == "P50"
    assert read["footprint"]["costs"][0]["after"] == 1
    assert read["numbers"][0]["limit_reason"]

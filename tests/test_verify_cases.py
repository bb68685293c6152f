"""Planted cases: each is refused or accepted as it should be, and for the right reason.

Time is simulated (tests/simulated.py); memory, values and threads are real.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from onekernel.errors import InvalidInput
from onekernel.verify import Metric, Plan, Subject, Verdict, verify
from onekernel.verify.footprint.memory import peaks
from onekernel.verify.sides.place import Place
from onekernel.verify.speed import parts as parts_module
from onekernel.verify.speed.statistics import median_change
from simulated import Clock, simulated

X = np.random.default_rng(0).standard_normal((64, 32)).astype(np.float32)
NUMBERS = Plan(seconds=0, repeats=0)
QUICK = Plan(seconds=2.0, repeats=20)


@pytest.fixture
def clock() -> Iterator[Clock]:
    with simulated() as clock:
        yield clock


def softmax(x: Any) -> Any:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def lasting(clock: Clock, seconds: float, noise: float = 0.002) -> Callable[[Any], Any]:
    """Compute the right result in a known time."""

    def call(x: Any) -> Any:
        clock.spend(seconds, noise)
        return softmax(x)

    return call


def outcome(verdict: Verdict) -> tuple[str, str]:
    return verdict.decision, verdict.rule


# --- numbers


def test_one_element_of_a_million_is_wrong_by_a_hundredth() -> None:
    def wrong(x: Any) -> Any:
        y = x * 2
        y[400, 321] += 1e-2
        return y

    x = np.random.default_rng(1).standard_normal((1000, 1000)).astype(np.float32)
    verdict = verify(lambda x: x * 2, wrong, [x], plan=NUMBERS)
    assert outcome(verdict) == ("reject", "wrong numbers")
    assert "first at [400, 321]" in verdict.reason


@pytest.mark.parametrize("lasts", [True, False], ids=["in a buffer of its own", "in memory that was freed"])
def test_an_unwritten_row_holds_the_old_answer(lasts: bool) -> None:
    kept = np.empty_like(X)

    def forgetful(x: Any) -> Any:
        out = kept if lasts else np.empty_like(X)
        out[:-1] = softmax(x)[:-1]
        if not out[-1].any():  # the first time only
            out[-1] = softmax(x)[-1]
        return out

    kept[:] = 0
    verdict = verify(softmax, forgetful, [X], plan=NUMBERS)
    assert outcome(verdict) == ("reject", "wrong numbers")
    assert verdict.worst is not None
    assert verdict.worst.first is not None
    assert verdict.worst.first.index[0] == len(X) - 1


def test_an_unwritten_row_that_is_right_by_chance_is_found() -> None:
    """Padding is zero for every input, and so is memory that nobody has written."""
    kept = np.zeros((80, 32), np.float32)

    def padded(x: Any) -> Any:
        return np.concatenate([softmax(x), np.zeros((16, 32), np.float32)])

    def forgetful(x: Any) -> Any:
        kept[:64] = softmax(x)
        return kept

    verdict = verify(padded, forgetful, [X], plan=NUMBERS)
    assert outcome(verdict) == ("reject", "wrong numbers")
    assert verdict.worst is not None
    assert verdict.worst.first is not None
    assert verdict.worst.first.index == (64, 0)
    assert (kept[64:] == 0).all()


def test_a_nan_in_a_padded_row_is_found() -> None:
    def padded(x: Any, value: float) -> Any:
        y = np.full((80, 32), value, np.float32)
        y[:64] = softmax(x)
        return y

    verdict = verify(lambda x: padded(x, 0.0), lambda x: padded(x, float("nan")), [X], plan=NUMBERS)
    assert outcome(verdict) == ("reject", "wrong numbers")
    assert verdict.worst is not None
    assert verdict.worst.problem == "nonfinite"
    assert verdict.worst.first is not None
    assert verdict.worst.first.index == (64, 0)


def test_a_race_that_shows_in_one_of_200_runs_is_caught() -> None:
    random = np.random.default_rng(7)

    def racing(x: Any) -> Any:
        y = softmax(x)
        if random.random() < 1 / 200:
            y[3] = 0
        return y

    verdict = verify(softmax, racing, [X], plan=Plan(seconds=0, repeats=2000, rounds=0))
    assert outcome(verdict) == ("reject", "wrong numbers")
    assert verdict.worst is not None
    assert verdict.worst.problem == "unstable"


@pytest.mark.parametrize("key", ["object", "content"])
def test_a_remembered_answer_is_no_answer(clock: Clock, key: str) -> None:
    """By object it is wrong; by content it is right, and as slow as before on requests that are never the same."""
    known: dict[Any, Any] = {}

    def remembering(x: Any) -> Any:
        name = id(x) if key == "object" else x.tobytes()
        if name not in known:
            clock.spend(1e-4)
            known[name] = softmax(x)
            if key == "object":
                known[id(x), "alive"] = x
        return known[name].copy()

    verdict = verify(lasting(clock, 1e-4), remembering, [X], plan=QUICK)
    assert (
        outcome(verdict)
        == {
            "object": ("reject", "wrong numbers"),
            "content": ("inconclusive", "no difference"),
        }[key]
    )


def test_writing_into_an_input_is_a_fault() -> None:
    def in_place(x: Any) -> Any:
        x -= x.max(-1, keepdims=True)
        return softmax(x)

    verdict = verify(softmax, in_place, [X], plan=NUMBERS)
    assert outcome(verdict) == ("reject", "wrong numbers")
    assert "wrote into its input" in verdict.reason


@pytest.mark.parametrize(
    ("after", "words"),
    [
        (lambda x: softmax(x).astype(np.float64), "dtype differs"),
        (lambda x: softmax(x)[None], "shape differs"),
        (lambda x: {"probabilities": softmax(x)}, "not among the results"),
        (lambda x: x[99], "IndexError"),
    ],
)
def test_another_kind_of_result_is_refused(after: Callable[[Any], Any], words: str) -> None:
    verdict = verify(softmax, after, [X], plan=NUMBERS)
    assert outcome(verdict) == ("reject", "wrong numbers")
    assert words in verdict.reason


def test_integers_must_be_equal() -> None:
    ids = np.arange(1000)
    assert verify(lambda i: i + 1, lambda i: i + 1, [ids], plan=NUMBERS).decision == "keep"
    verdict = verify(lambda i: i + 1, lambda i: np.where(i == 500, i, i + 1), [ids], plan=NUMBERS)
    assert outcome(verdict) == ("reject", "wrong numbers")


def test_the_original_is_judged_by_its_own_oracle() -> None:
    """A coarse original is no reference for a limit that it does not keep itself."""
    coarse = Subject(
        lambda i: softmax(i[0]).astype(np.float16).astype(np.float32), oracle=lambda i: softmax(i[0] + 0.0)
    )
    verdict = verify(coarse, softmax, [X], plan=NUMBERS)
    assert outcome(verdict) == ("inconclusive", "no reference")
    assert "the original itself is off" in verdict.reason


def test_an_original_that_changes_its_mind_is_no_reference() -> None:
    random = np.random.default_rng(0)

    def moody(x: Any) -> Any:
        return softmax(x) + random.random()

    verdict = verify(moody, softmax, [X], plan=NUMBERS)
    assert outcome(verdict) == ("inconclusive", "no reference")
    assert "answers the same input differently" in verdict.reason


@pytest.mark.parametrize(("scale", "decision"), [(1.0, "keep"), (1.5, "reject")])
def test_random_results_are_compared_as_distributions(scale: float, decision: str) -> None:
    random = np.random.default_rng(0)

    def draw(x: Any, scale: float = 1.0) -> Any:
        return x + scale * random.standard_normal(x.shape)

    plan = Plan(seconds=0, repeats=0, distribution=True)
    assert verify(draw, lambda x: draw(x, scale), [X[:4]], plan=plan).decision == decision


def test_the_first_part_that_is_off_is_named() -> None:
    def watch(off: float) -> Callable[[Any, Any], Any]:
        def run(inputs: Any, see: Any) -> Any:
            hidden = inputs[0] * 2
            see("double", hidden)
            hidden = np.tanh(hidden) + off
            see("tanh", hidden)
            see("sum", hidden.sum(-1))
            return hidden.sum(-1)

        return run

    def side(off: float) -> Subject:
        return Subject(lambda inputs: watch(off)(inputs, lambda *_: None), watch=watch(off))

    verdict = verify(side(0.0), side(1e-2), [X], plan=NUMBERS)
    assert verdict.divergence is not None
    assert verdict.divergence.name == "tanh"
    assert "the first part that is off is tanh" in verdict.reason


def test_metrics_of_the_caller_count() -> None:
    def flips(expected: Any, got: Any) -> float:
        return float((expected["output"].argmax(-1) != got["output"].argmax(-1)).mean())

    nudged = lambda x: softmax(x + np.float32(1e-6))  # noqa: E731
    good = verify(softmax, nudged, [X], metrics=[Metric("top-1 changes", flips, 0.0)], plan=NUMBERS)
    assert good.decision == "keep"
    strict = Metric("never", lambda *_: 1.0, 0.5)
    assert "never" in verify(softmax, nudged, [X], metrics=[strict], plan=NUMBERS).reason


def test_memory_that_a_side_keeps_is_as_it_was_found() -> None:
    weight, buffer = np.ones(8, np.float32), np.zeros((64, 32), np.float32)

    def call(x: Any) -> Any:
        buffer[:] = softmax(x)
        return {"output": buffer, "weight": weight}

    verdict = verify(lambda x: {"output": softmax(x), "weight": np.ones(8, np.float32)}, call, [X], plan=NUMBERS)
    assert (weight == 1).all()
    assert np.isfinite(buffer).all()
    assert verdict.decision == "keep"


def test_a_result_that_nothing_writes_is_no_constant() -> None:
    """The buffer holds the answer to the user's inputs, and to no others."""
    buffer = softmax(X)
    verdict = verify(softmax, lambda _: buffer, [X], plan=NUMBERS)
    assert outcome(verdict) == ("reject", "wrong numbers")
    assert "fresh inputs" in verdict.reason
    assert (buffer == softmax(X)).all()


def test_an_original_that_takes_no_made_up_inputs_is_judged_on_the_users(clock: Clock) -> None:
    def picky(x: Any) -> Any:
        if (np.diff(x) <= 0).any():
            raise ValueError("not sorted")
        clock.spend(1e-4)
        return x * 2

    def fast(x: Any) -> Any:
        clock.spend(5e-5)
        return x * 2

    verdict = verify(picky, fast, [np.arange(100.0)], plan=Plan(seconds=1, repeats=4))
    assert outcome(verdict) == ("keep", "faster")
    assert any("the original refuses them (ValueError)" in note for note in verdict.notes)


def test_unusable_sides_and_inputs_are_refused() -> None:
    with pytest.raises(InvalidInput, match="a bare ndarray"):
        verify(softmax, softmax, X)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="something to call"):
        verify(softmax, 3, [X])  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="inputs that softmax answers"):
        verify(softmax, softmax, [X, X])
    with pytest.raises(InvalidInput, match="a result to compare"):
        verify(lambda *_: None, softmax, [X])
    with pytest.raises(InvalidInput, match="confidence = 1"):
        Plan(confidence=1)


@pytest.mark.parametrize(("side", "after"), [("after", 60), ("after", 400), ("before", 400)])
def test_who_fails_late_is_told(clock: Clock, side: str, after: int) -> None:
    """While it is run again and again, and while it is timed."""
    calls = iter(range(after))

    def failing(x: Any) -> Any:
        if next(calls, None) is None:
            raise MemoryError("no room")
        return lasting(clock, 1e-4)(x)

    plan = Plan(seconds=1, repeats=100, rounds=1)
    if side == "before":
        with pytest.raises(InvalidInput, match="an original that answers while it is timed, got MemoryError: no room"):
            verify(failing, lasting(clock, 1e-4), [X], plan=plan)
        return
    verdict = verify(lasting(clock, 1e-4), failing, [X], plan=plan)
    assert outcome(verdict) == ("reject", "wrong numbers")
    assert f"MemoryError: no room ({'in run' if after == 60 else 'while it was timed'}" in verdict.reason


def test_random_results_of_random_shape_are_refused() -> None:
    random = np.random.default_rng(0)
    with pytest.raises(InvalidInput, match="random results of one shape"):
        verify(lambda x: x[: random.integers(1, 9)], lambda x: x, [X], plan=Plan(seconds=0, distribution=True))


# --- speed


def test_faster_is_kept(clock: Clock) -> None:
    verdict = verify(lasting(clock, 1e-4), lasting(clock, 5e-5), [X], plan=QUICK)
    assert outcome(verdict) == ("keep", "faster")
    assert verdict.speed is not None
    assert verdict.speed.gain == pytest.approx(2, rel=0.01)


def test_right_but_slower(clock: Clock) -> None:
    assert outcome(verify(lasting(clock, 1e-4), lasting(clock, 1.1e-4), [X], plan=QUICK)) == ("reject", "slower")


def test_the_same_against_itself_is_inconclusive(clock: Clock) -> None:
    side = lasting(clock, 1e-4, noise=0.1)
    assert outcome(verify(side, side, [X], plan=QUICK)) == ("inconclusive", "no difference")


def test_noise_larger_than_the_gain(clock: Clock) -> None:
    sides = (lasting(clock, seconds, noise=20) for seconds in (1e-4, 0.9e-4))
    verdict = verify(*sides, [X], plan=Plan(seconds=0.2, repeats=2))
    assert outcome(verdict) == ("inconclusive", "too noisy")
    assert verdict.speed is not None
    noise = verdict.speed.noise[0]
    assert verdict.speed.floor == noise.high - noise.low > 0.1


def test_a_faster_median_with_a_worse_p99(clock: Clock) -> None:
    def uneven(x: Any) -> Any:
        clock.spend(1e-3 if clock.random.random() < 0.03 else 8e-5)
        return softmax(x)

    verdict = verify(lasting(clock, 1e-4), uneven, [X], plan=QUICK)
    assert outcome(verdict) == ("reject", "worse tail")
    assert "P99" in verdict.reason


def test_too_few_requests_for_a_percentile_are_said(clock: Clock) -> None:
    verdict = verify(lasting(clock, 1e-2), lasting(clock, 5e-3), [X], plan=Plan(seconds=1, repeats=2))
    assert verdict.decision == "keep"
    assert any("P99 rests on" in note and "not judged" in note for note in verdict.notes)


def drifting(clock: Clock, seconds: float, by: float) -> Callable[[Any], Any]:
    """Take longer and longer: after a second, `by` times as much more."""
    start = clock.now
    return lambda x: (clock.spend(seconds * (1 + by * (clock.now - start))), softmax(x))[1]


def test_a_machine_that_drifts_does_so_for_both(clock: Clock) -> None:
    verdict = verify(drifting(clock, 1e-4, 1), drifting(clock, 5e-5, 1), [X], plan=QUICK)
    assert outcome(verdict) == ("keep", "faster")
    assert verdict.speed is not None
    assert verdict.speed.gain == pytest.approx(2, rel=0.01)
    assert any("the machine drifted: the original took +" in note for note in verdict.notes)


def test_a_gain_that_fades_proves_nothing(clock: Clock) -> None:
    verdict = verify(lasting(clock, 1e-4), drifting(clock, 5e-5, 0.5), [X], plan=QUICK)
    assert outcome(verdict) == ("inconclusive", "unsteady machine")
    assert "the ratio drifted from 0." in verdict.reason


def test_a_machine_of_two_speeds_widens_no_interval(clock: Clock) -> None:
    """Slow and fast spells last for many requests: both sides of a block meet the same."""

    def moody(seconds: float) -> Callable[[Any], Any]:
        return lambda x: (clock.spend(seconds * (1.7 if int(clock.now * 20) % 2 else 1)), softmax(x))[1]

    verdict = verify(moody(1e-4), moody(0.97e-4), [X], plan=QUICK)
    assert outcome(verdict) == ("keep", "faster")


def pipeline(clock: Clock, **parts: float) -> Subject:
    """Make a subject whose named parts take known times."""

    def watch(inputs: Any, see: Any) -> Any:
        for name, seconds in parts.items():
            clock.spend(seconds)
            see(name, None)
        return softmax(inputs[0])

    return Subject(lambda inputs: watch(inputs, lambda *_: None), watch=watch)


def test_a_faster_kernel_with_an_equal_end_to_end(clock: Clock) -> None:
    """The host waits for a fixed moment: what the kernel saves is waited for."""
    sides = pipeline(clock, kernel=5e-5, wait=1e-4), pipeline(clock, kernel=2e-5, wait=1.3e-4)
    verdict = verify(*sides, [X], plan=QUICK)
    assert outcome(verdict) == ("reject", "globally void")
    assert "locally good, globally void: kernel takes 0.4x" in verdict.reason


def test_a_faster_kernel_whose_consumer_became_slower_is_named(clock: Clock) -> None:
    sides = pipeline(clock, norm=5e-5, matmul=1e-4), pipeline(clock, norm=2e-5, matmul=1.6e-4)
    verdict = verify(*sides, [X], plan=QUICK)
    assert outcome(verdict) == ("reject", "slower")
    assert "slower now: matmul (1.6x" in verdict.reason


@pytest.mark.parametrize(
    ("expect", "expected"), [("norm", "keep"), ("matmul", "inconclusive"), ("nothing", "inconclusive")]
)
def test_the_part_predicted_to_shrink_must_be_the_one_that_shrank(clock: Clock, expect: str, expected: str) -> None:
    sides = pipeline(clock, norm=5e-5, matmul=1e-4), pipeline(clock, norm=2e-5, matmul=1e-4)
    verdict = verify(*sides, [X], plan=Plan(seconds=2, repeats=2, expect=expect))
    assert verdict.decision == expected
    if expected != "keep":
        assert verdict.rule == "unexplained gain"
        assert "but norm does" in verdict.reason


def opened(clock: Clock, first: float) -> Subject:
    """Make a subject whose first call takes longer by `first` seconds."""

    def reopen() -> Callable[[Any], Any]:
        calls = iter([first])

        def call(inputs: Any) -> Any:
            clock.spend(1e-4 + next(calls, 0.0))
            return softmax(inputs[0])

        return call

    return Subject(reopen(), reopen=reopen)


def test_a_gain_of_the_first_call_alone(clock: Clock) -> None:
    verdict = verify(opened(clock, 0.1), opened(clock, 1e-3), [X], plan=QUICK)
    assert outcome(verdict) == ("reject", "first call only")
    assert verdict.speed is not None
    assert verdict.speed.first is not None
    assert verdict.speed.first.ratio == pytest.approx(0.011, rel=0.05)


def test_under_load_a_request_pays_for_those_before_it(clock: Clock) -> None:
    """A faster median whose rare stall holds up the queue."""

    def stalling(x: Any) -> Any:
        clock.spend(5e-3 if clock.random.random() < 0.004 else 9e-5)
        return softmax(x)

    plan = Plan(seconds=4, repeats=2, rate=6000)
    verdict = verify(lasting(clock, 1e-4), stalling, [X], plan=plan)
    assert outcome(verdict) == ("reject", "worse tail")
    assert verdict.speed is not None
    served = {item.what: item for item in verdict.speed.service}
    assert served["at 6000 requests/s P95"].after > 5 * verdict.speed.whole[1].after


def test_the_more_parts_the_surer_each_must_be(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four intervals of 99.975 % are all right in 99.9 % of the cases (Bonferroni)."""
    asked: list[float] = []

    def change(name: str, before: Any, after: Any, confidence: float) -> Any:
        asked.append(confidence)
        return median_change(name, before, after, confidence)

    monkeypatch.setattr(parts_module, "median_change", change)
    side = pipeline(clock, one=1e-5, two=1e-5, three=1e-5)
    found = parts_module.parts(side, side, [X], Place(), 0.999)
    assert {item.what for item in found} == {"one", "two", "three", "(rest)"}
    assert asked == pytest.approx([1 - 0.001 / 4] * 4)


# --- footprint


def test_memory_that_the_heap_keeps_is_counted_every_time() -> None:
    """Pieces too small to be given back by themselves: a second request would find them there."""

    def call() -> int:
        return len([bytes(60_000) for _ in range(500)])

    call()
    for _ in range(2):
        assert peaks(call, Place())["host memory"] > 20e6


def test_faster_with_twice_the_memory(clock: Clock) -> None:
    def hungry(seconds: float, megabytes: int) -> Callable[[Any], Any]:
        def call(x: Any) -> Any:
            clock.spend(seconds)
            scratch = np.ones(megabytes * 2**20, np.uint8)
            return softmax(x) * np.float32(scratch[-1])

        return call

    verdict = verify(hungry(1e-3, 32), hungry(5e-4, 64), [X], plan=Plan(seconds=1, repeats=2))
    assert outcome(verdict) == ("reject", "more memory")
    assert "host memory" in verdict.reason
    assert verify(hungry(1e-3, 64), hungry(5e-4, 32), [X], plan=Plan(seconds=1, repeats=2)).decision == "keep"

"""The proof itself: each planted fault must be seen, each equal pair must pass."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onekernel.errors import InvalidInput
from onekernel.verify import LIMITS, Limit, compare
from onekernel.verify.compare import PEAK, relative_error
from onekernel.verify.limits import allowed, find

F32 = find(LIMITS, "kernel", "float32")


def wave(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape)


def test_rounding_to_float32_is_within_the_limit() -> None:
    reference = wave(5, 70)
    result = compare("y", reference.astype(np.float32), reference, F32)
    assert result.passed
    assert 0 < result.error < 1e-7


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_one_wrong_element_is_found_and_placed(dtype: str) -> None:
    reference = wave(8, 64)
    got = reference.astype(dtype)
    got[5, 17] += 1
    result = compare("y", got, reference, find(LIMITS, "kernel", dtype))
    assert result.problem == "error"
    assert result.first is not None
    assert result.first.index == (5, 17)
    assert result.first.expected == reference[5, 17]
    assert result.first.got == pytest.approx(reference[5, 17] + 1, abs=1e-3)


def test_a_small_error_everywhere_fails_and_still_names_an_element() -> None:
    reference = wave(100)
    result = compare("y", (reference * (1 + 2e-5)).astype(np.float32), reference, F32)
    assert result.problem == "error"
    assert result.error == pytest.approx(2e-5, rel=0.01)
    assert result.first is not None


@pytest.mark.parametrize("planted", [np.nan, np.inf, -np.inf])
def test_a_value_that_is_not_finite_fails(planted: float) -> None:
    reference = wave(3, 4)
    got = reference.astype(np.float32)
    got[2, 1] = planted
    result = compare("y", got, reference, F32)
    assert result.problem == "nonfinite"
    assert result.error == math.inf
    assert result.first is not None
    assert result.first.index == (2, 1)


def test_the_same_infinities_and_nans_in_the_same_places_are_equal() -> None:
    reference = np.array([1.0, np.inf, -np.inf, np.nan])
    assert relative_error(reference.astype(np.float32), reference) == 0.0
    assert relative_error(np.array([1.0, -np.inf, -np.inf, np.nan]), reference) == math.inf
    assert compare("y", reference[[0, 2, 2, 3]].astype(np.float32), reference, F32).first is not None


def test_shape_and_dtype_are_part_of_equality() -> None:
    reference = wave(3, 4)
    assert compare("y", reference.astype(np.float32).T, reference, F32).problem == "shape"
    assert compare("y", reference.astype(np.float16), reference, F32).problem == "dtype"
    assert compare("y", reference, reference, F32).problem == "dtype"


def test_a_zero_reference() -> None:
    zero, tiny = np.zeros(4), np.array([0, 0, 1e-30, 0])
    assert relative_error(zero, zero) == 0.0
    assert relative_error(tiny, zero) == math.inf
    assert relative_error(np.zeros((0, 7)), np.zeros((0, 7))) == 0.0
    result = compare("y", tiny.astype(np.float32), zero, F32)
    assert result.first is not None
    assert result.first.index == (2,)


def test_integers_are_compared_exactly() -> None:
    exact = find(LIMITS, "model", "int64")
    reference = np.arange(12).reshape(3, 4)
    assert compare("ids", reference.copy(), reference, exact).passed
    got = reference.copy()
    got[1, 2] += 1
    result = compare("ids", got, reference, exact)
    assert not result.passed
    assert result.first is not None
    assert (result.first.index, result.first.expected, result.first.got) == ((1, 2), 6, 7)
    assert compare("ids", reference.astype(np.int32), reference, exact).problem == "dtype"


@given(st.floats(1e-300, 1e300), st.integers(1, 50))
def test_the_error_does_not_depend_on_scale(scale: float, count: int) -> None:
    reference = np.linspace(1, 2, count)
    got = reference * 1.5
    assert relative_error(got * scale, reference * scale) == pytest.approx(0.5)


def test_every_floating_dtype_has_one_row_and_the_others_are_exact() -> None:
    keys = [(row.scope, row.what) for row in LIMITS]
    assert len(keys) == len(set(keys))
    assert all(row.reason for row in LIMITS)
    assert find(LIMITS, "model", "bool").limit == 0.0
    with pytest.raises(InvalidInput, match="a limit for float64"):
        find(LIMITS, "kernel", "float64")


def test_one_wrong_element_of_a_million_does_not_hide_in_the_norm() -> None:
    reference = wave(1000, 1000)
    got = reference.astype(np.float32)
    got[123, 456] += 1e-2
    off = got.astype(np.float64) - reference
    assert np.linalg.norm(off) / np.linalg.norm(reference) < 1.1e-5
    result = compare("y", got, reference, find(LIMITS, "model", "float32"))
    assert result.problem == "error"
    assert result.first is not None
    assert result.first.index == (123, 456)


def test_an_element_near_zero_does_not_decide() -> None:
    reference = wave(1000)
    reference[7] = 1e-12
    got = reference.astype(np.float32)
    got[7] = 3e-7
    assert compare("y", got, reference, F32).passed


@given(st.integers(0, 999), st.floats(1e-3, 1e3))
def test_an_element_is_measured_by_itself_or_by_the_typical_one(place: int, size: float) -> None:
    reference = wave(1000)
    reference[place] *= size
    got = reference.copy()
    got[place] += 0.01 * max(abs(reference[place]), np.sqrt(np.mean(reference**2)))
    assert relative_error(got, reference) >= 0.01 / PEAK * (1 - 1e-9)


def test_rows_of_the_user_come_before_ours_and_ours_fill_the_gaps() -> None:
    mine = (Limit("change", "time", 0.3, "a noisy machine"),)
    assert allowed(mine, "change", "time") == 0.3
    assert allowed(mine, "change", "tail") == allowed(LIMITS, "change", "tail")

"""What a verdict's picture says is read back from the .svg; its waterfall must add up."""

from __future__ import annotations

import math
import re
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onekernel.errors import InvalidInput, MissingExtra
from onekernel.verify import LIMITS, Comparison, Speed, Verdict
from onekernel.verify.footprint import Footprint
from onekernel.verify.limits import find
from onekernel.verify.picture import waterfall
from onekernel.verify.speed import Change, Timing

LIMIT = find(LIMITS, "model", "float32")
EQUAL = (Comparison("logits", 1.2e-5, LIMIT),)
LONG = "/encoder/layers.7/attention/output/LayerNorm/Add_1_output_0"


def change(what: str, before: float, after: float, unit: str = "s", **more: Any) -> Change:
    ratio = after / before if before else math.inf if after else 1.0
    return Change(what, unit, before, after, ratio * 0.999, ratio * 1.001, 2000, **more)


def speed(before: float, after: float, **more: Any) -> Speed:
    """Make requests whose times are spread a little; their P99 rests on too few."""
    spread = np.random.default_rng(0).lognormal(0, 0.1, 2000)
    one, two = (Timing(tuple(side * spread), "host clock") for side in (before, after))
    tails = {"P50": 1.0, "P95": 1.18, "P99": 1.26}
    whole = tuple(change(name, before * q, after * q, enough=name != "P99") for name, q in tails.items())
    return Speed(one, two, whole, tuple(change(name, q, q) for name, q in tails.items()), 0.02, **more)


def texts(verdict: Verdict, folder: Path) -> list[str]:
    """Save an .svg and return every text in it."""
    root = ElementTree.parse(verdict.save_picture(folder / "picture.svg")).getroot()
    return ["".join(node.itertext()).strip() for node in root.iter("{http://www.w3.org/2000/svg}text")]


PARTS = (change("encode", 6e-4, 7.5e-4), change("decode", 3e-4, 2.6e-4), change("embed", 1e-4, 1.001e-4))
SLOWER = Verdict(EQUAL, speed(1e-3, 1.11e-3, parts=PARTS))


def test_decision_rule_and_reason_are_words(tmp_path: Path) -> None:
    found = texts(SLOWER, tmp_path)
    assert "REJECT: slower" in found
    assert "a request takes 1.11x as long; slower now: encode (1.25x as long)" in found
    assert "numbers: logits: error 1.20e-05, limit 0.0001" in found


def test_quantiles_are_marked_with_their_values(tmp_path: Path) -> None:
    found = texts(SLOWER, tmp_path)
    for mark in ("P50 1.00 ms", "P50 1.11 ms", "P95 1.18 ms", "P95 1.31 ms", "P99 1.26 ms, too few"):
        assert mark in found
    assert "time of a request, ms (host clock)" in found
    assert found.count("noise floor: 2.0%") == 2


def test_parts_are_named_with_what_they_changed(tmp_path: Path) -> None:
    found = texts(SLOWER, tmp_path)
    rows = ("before", "encode", "decode", "others (1)", "after")
    values = ("1.00 ms", "+150 us (+15.0%)", "-40.0 us (-4.0%)", "+0.100 us (+0.0%)", "1.11 ms")
    assert {*rows, *values} <= set(found)


def test_without_parts_kernels_and_the_rest_are_told_apart(tmp_path: Path) -> None:
    measured = speed(9e-4, 6e-4, kernels=(change("kernels, L2 warm", 3e-4, 2e-4),))
    found = texts(Verdict(EQUAL, measured), tmp_path)
    assert {"KEEP: faster", "host and gaps", "-200 us (-22.2%)", "-100 us (-11.1%)"} <= set(found)
    assert "Where the time went" not in texts(Verdict(EQUAL, speed(9e-4, 6e-4)), tmp_path)


def test_every_ratio_is_drawn_and_what_has_none_is_named(tmp_path: Path) -> None:
    costs = (
        change("device memory", 5.2e8, 5.2e8, "B"),
        change("launches", 180, 4, ""),
        change("energy per request", 0.83, 0.55, "J"),
        change("mean power", 210, 200, "W"),
        change("modules loaded", 0, 3, ""),
        change("host memory held", 0, 0, "B"),
    )
    service = (change("at 100 requests/s P95", 2e-3, 1e-3),)
    measured = speed(1e-3, 5e-4, first=change("first call", 0.8, 0.4), service=service)
    found = texts(Verdict(EQUAL, measured, Footprint(costs)), tmp_path)
    rows = {
        "request, P50": "0.500x   1.00 ms to 500 us",
        "request, P99": "0.500x   1.26 ms to 630 us, too few",
        "first call": "0.500x   800 ms to 400 ms",
        "at 100 requests/s P95": "0.500x   2.00 ms to 1.00 ms",
        "device memory": "1.000x   520 MB to 520 MB",
        "launches": "0.022x   180 to 4",
        "energy per request": "0.663x   830 mJ to 550 mJ",
        "mean power": "0.952x   210 W to 200 W",
    }
    assert {*rows, *rows.values()} <= set(found)
    assert "after / before; without a ratio: modules loaded (0 before, now 3)" in found
    assert "host memory held" not in found


def test_without_times_results_stand_against_their_limits(tmp_path: Path) -> None:
    shape = Comparison("mel", math.inf, LIMIT, "shape", "expected [1, 2], got [2, 1]")
    tokens = Comparison("tokens", 0.0, find(LIMITS, "model", "int64"))
    found = texts(Verdict((*EQUAL, shape, tokens)), tmp_path)
    assert "REJECT: wrong numbers" in found
    assert [row for row in found if row in ("mel", "logits", "tokens")] == ["mel", "logits", "tokens"]
    told = ["FAILED (shape): error inf, limit 0.0001", "error 1.2e-05, limit 0.0001", "equal"]
    assert [row for row in found if row in told] == told


def test_many_results_are_the_closest_to_their_limits(tmp_path: Path) -> None:
    found = texts(Verdict(tuple(Comparison(f"y{number}", number * 1e-6, LIMIT) for number in range(1, 41))), tmp_path)
    assert "Results against their limits, 24 of 40" in found
    assert "y40" in found
    assert "y16" not in found


def test_nothing_compared_is_said_in_as_many_lines_as_it_takes(tmp_path: Path) -> None:
    found = texts(Verdict((), doubts=("the original differs from itself " * 10,)), tmp_path)
    assert found[0] == "INCONCLUSIVE: no reference"
    assert len(found) > 2
    assert " ".join(found[1:]) == ("the original differs from itself " * 10).strip()


def test_names_are_shortened_and_drawn_as_they_are(tmp_path: Path) -> None:
    """A dollar starts no formula, and what XML forbids is left out."""
    parts = (change(LONG, 5e-4, 4e-4), change("$x_1$ \x1b[0m<&>", 5e-4, 3e-4))
    found = texts(Verdict(EQUAL, speed(1e-3, 7e-4, parts=parts)), tmp_path)
    assert "$x_1$  [0m<&>" in found
    (name,) = (text for text in found if "…" in text)
    assert len(name) == 36
    assert LONG.startswith(name.split("…")[0])
    assert LONG.endswith(name.split("…")[1])


def test_text_is_large_enough(tmp_path: Path) -> None:
    svg = SLOWER.save_picture(tmp_path / "picture.svg").read_text(encoding="utf-8")
    sizes = [float(size) for size in re.findall(r"font(?:-size)?: [^;']*?([\d.]+)px", svg)]
    assert sizes
    assert min(sizes) >= 9


def test_times_that_are_all_the_same_can_be_drawn(tmp_path: Path) -> None:
    whole = tuple(change(name, 1e-3, 1e-3) for name in ("P50", "P95", "P99"))
    steady = Timing((1e-3,) * 3, "host clock")
    assert texts(Verdict(EQUAL, Speed(steady, steady, whole, whole, 0.02)), tmp_path).count("P50 1.00 ms") == 2


@pytest.mark.parametrize("extension", ["svg", "png", "pdf"])
def test_one_verdict_gives_one_file_whatever_the_settings(tmp_path: Path, extension: str) -> None:
    import matplotlib

    first = SLOWER.save_picture(tmp_path / f"one.{extension}")
    with matplotlib.rc_context({"font.size": 30, "axes.facecolor": "black"}):
        settings = dict(matplotlib.rcParams)
        second = SLOWER.save_picture(str(tmp_path / f"two.{extension.upper()}"))
        assert dict(matplotlib.rcParams) == settings
    assert first.read_bytes() == second.read_bytes()
    assert first.read_bytes().startswith({"svg": b"<?xml", "png": b"\x89PNG", "pdf": b"%PDF"}[extension])


@pytest.mark.parametrize("name", ["picture.jpg", "picture"])
def test_another_extension_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidInput, match=r"expected a name that ends in \.svg, \.png or \.pdf, got .*picture"):
        SLOWER.save_picture(tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_without_matplotlib_its_extra_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtra, match=r"onekernel\[report\]"):
        SLOWER.save_picture(tmp_path / "picture.svg")


# --- the waterfall

SECONDS = st.floats(0, 10, allow_subnormal=False)


@given(st.lists(st.tuples(SECONDS, SECONDS), min_size=1, max_size=30))
def test_a_waterfall_adds_up(sides: list[tuple[float, float]]) -> None:
    parts = [change(f"part {number}", *side) for number, side in enumerate(sides)]
    before, after = (math.fsum(side) for side in zip(*sides, strict=True))
    first, *steps, last = waterfall(parts)
    assert (first.start, first.end, last.start, last.end) == (0, before, 0, after)
    for one, two in zip([first, *steps], steps, strict=False):
        assert two.start == one.end
    assert math.fsum(step.end - step.start for step in steps) == pytest.approx(after - before, abs=1e-12)
    assert len(steps) <= 10


@given(st.lists(st.tuples(SECONDS, SECONDS), min_size=1, max_size=30))
def test_a_waterfall_names_the_largest_changes_and_counts_the_others(sides: list[tuple[float, float]]) -> None:
    parts = {f"part {number}": change(f"part {number}", *side) for number, side in enumerate(sides)}
    bars = waterfall(list(parts.values()))
    named = [parts.pop(bar.name) for bar in bars if bar.name in parts]
    sizes = [abs(part.after - part.before) for part in named]
    assert sizes == sorted(sizes, reverse=True)
    assert all(size >= 0.01 * bars[0].end for size in sizes)
    assert all(abs(part.after - part.before) <= min(sizes, default=math.inf) for part in parts.values())
    assert [bar.name for bar in bars if "others" in bar.name] == ([f"others ({len(parts)})"] if parts else [])

"""A verdict as one picture: the decision, the time of a request, where the time went, and every ratio.

It draws what was found and decides nothing. Only matplotlib's objects are used, without pyplot, and its settings are
as before afterwards. Colours are safe for the colour-blind, and each says what a word or a sign says too.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from onekernel.errors import InvalidInput, MissingExtra
from onekernel.verify.rules import closeness
from onekernel.verify.speed.statistics import Change

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from onekernel.verify.compare import Comparison
    from onekernel.verify.speed import Speed
    from onekernel.verify.verdict import Verdict

    Panel = tuple[float, Callable[[Axes], None]]  # inches, and what draws it

_UNDATED = {".svg": {"Date": None}, ".png": {}, ".pdf": {"CreationDate": None}}  # what says when, by extension
_STYLE = {"svg.fonttype": "none", "svg.hashsalt": "onekernel", "text.parse_math": False, "font.size": 9.5,
          "axes.titlesize": 11, "axes.titleweight": "bold", "axes.titlelocation": "left", "axes.spines.top": False,
          "axes.spines.right": False, "legend.frameon": False, "legend.fontsize": 9.5}  # fmt: skip
_WIDTH, _DPI = 11.0, 200  # in inches; seen at half its size, 1100 pixels
_LINE, _CHARACTERS, _LINES = 0.19, 135, 8  # of the reason: inches, and how much of it at most
_FRAME, _ROW, _NAME = 1.0, 0.25, 36  # of a panel: inches around its rows and of a row, characters of its name
_BEFORE, _AFTER, _LESS, _MORE, _SAME = "#6b6b6b", "#0072b2", "#009e73", "#d55e00", "#8a8a8a"
_BAND, _HINT = "#ececec", "#444444"
_DECISIONS = {"keep": "#00795a", "reject": "#b84a00", "inconclusive": "#5a5a5a"}
_UNITS = {"s": (("us", 1e-6), ("ms", 1e-3), ("s", 1.0)), "J": (("mJ", 1e-3), ("J", 1.0)),
          "B": (("B", 1.0), ("kB", 1e3), ("MB", 1e6), ("GB", 1e9))}  # fmt: skip
_WIDE = 5.0  # the largest over the smallest from which an axis is logarithmic
_STEPS, _SMALL = 10, 0.01  # of a waterfall: how many, and the share of the whole from which one is drawn
_EDGES = (0.02, 50.0)  # ratios beyond are drawn there, as arrows
_ERRORS, _COMPARISONS = (1e-6, 1e3), 24  # errors over limits: what is in sight, and of how many


class Bar(NamedTuple):
    """One bar of a waterfall, in seconds: before, each step from where the one above ended, after."""

    name: str
    start: float
    end: float


def save(verdict: Verdict, path: Path) -> Path:
    """Draw into a .svg, .png or .pdf; one verdict gives the same bytes each time.

    Raises InvalidInput for another extension and MissingExtra without matplotlib.
    """
    extension = path.suffix.lower()
    if extension not in _UNDATED:
        raise InvalidInput(expected="a name that ends in .svg, .png or .pdf", got=str(path), todo="choose one of these")
    try:
        import matplotlib
    except ModuleNotFoundError as error:
        raise MissingExtra("matplotlib", "report") from error
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_STYLE)  # type: ignore[arg-type]
        _figure(verdict).savefig(path, format=extension[1:], dpi=_DPI, metadata=_UNDATED[extension])
    return path


def waterfall(parts: Sequence[Change]) -> list[Bar]:
    """Lead from the sum of the parts before to that after, by the largest changes first and the others in one."""
    before, after = (math.fsum(getattr(part, side) for part in parts) for side in ("before", "after"))
    ranked = sorted(parts, key=lambda part: -abs(part.after - part.before))
    large = [part for part in ranked if abs(part.after - part.before) >= _SMALL * before]
    shown = large if len(large) == len(parts) <= _STEPS else large[: _STEPS - 1]
    steps = [(part.what, part.after - part.before) for part in shown]
    if others := ranked[len(shown) :]:
        steps.append((f"others ({len(others)})", math.fsum(part.after - part.before for part in others)))
    bars = [Bar("before", 0.0, before)]
    for name, change in steps:
        bars.append(Bar(name, bars[-1].end, bars[-1].end + change))
    return [*bars, Bar("after", 0.0, after)]


def _figure(verdict: Verdict) -> Figure:
    """Put the panels below each other and the decision above them."""
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    lines = _wrapped(verdict.reason, _LINES)
    lines += _wrapped(f"numbers: {verdict.worst}", 1) if verdict.speed and verdict.worst else []
    panels = _panels(verdict)
    head = 0.75 + _LINE * len(lines)
    height = head + sum(inches for inches, _ in panels)
    layout = ConstrainedLayoutEngine(rect=(0, 0, 1, 1 - head / height), w_pad=0.12, h_pad=0.08)
    figure = Figure((_WIDTH, height), layout=layout)
    title, color = f"{verdict.decision.upper()}: {verdict.rule}", _DECISIONS[verdict.decision]
    figure.text(0.012, 1 - 0.38 / height, title, color=color, fontsize=18, weight="bold", va="center")
    figure.text(0.012, 1 - 0.63 / height, "\n".join(lines), fontsize=10, va="top", linespacing=1.25)
    if panels:
        rows = figure.subplots(len(panels), squeeze=False, height_ratios=[inches for inches, _ in panels])[:, 0]
        for axes, (_, draw) in zip(rows, panels, strict=True):
            draw(axes)
    return figure


def _panels(verdict: Verdict) -> list[Panel]:
    """Choose what is drawn, as far as it was measured."""
    speed = verdict.speed
    if speed is None:
        ranked = sorted(verdict.numbers, key=closeness, reverse=True)
        shown = ranked[:_COMPARISONS]
        return [(_FRAME + _ROW * len(shown), partial(_numbers, shown, len(ranked)))] if shown else []
    panels: list[Panel] = [(3.6, partial(_distribution, speed))]
    if parts := speed.parts or _kernels_and_rest(speed):
        bars = waterfall(parts)
        panels.append((_FRAME + _ROW * len(bars), partial(_waterfall, bars)))
    requests = [replace(change, what=f"request, {change.what}") for change in speed.whole]
    costs = verdict.footprint.costs if verdict.footprint else ()
    changes = [*requests, *speed.kernels, *([speed.first] if speed.first else []), *speed.service, *costs]
    ratios = [change for change in changes if change.before and math.isfinite(change.ratio)]
    new = [change for change in changes if change.after and not change.before]
    return [*panels, (_FRAME + _ROW * len(ratios), partial(_ratios, ratios, new, speed.floor))]


def _kernels_and_rest(speed: Speed) -> list[Change]:
    """Split a request in two where it shows no parts of itself."""
    if (kernels := next((item for item in speed.kernels if item.what == "kernels, L2 warm"), None)) is None:
        return []
    before, after = (getattr(speed.whole[0], side) - getattr(kernels, side) for side in ("before", "after"))
    return [kernels, Change("host and gaps", "s", before, after, 1, 1)]


def _distribution(speed: Speed, axes: Axes) -> None:
    """Show how many requests were answered within a time; the scale of the share gives the slowest ones room."""
    sides = (("before", speed.before, _BEFORE), ("after", speed.after, _AFTER))
    top = min(3.0, max(2.0, math.log10(len(speed.after.samples))))  # up to P99 at least, and P99.9 at most
    heights = np.linspace(0, top, 400)
    curves = [np.quantile(timing.samples, 1 - 10**-heights) for _, timing, _ in sides]
    for (name, timing, color), curve in zip(sides, curves, strict=True):
        axes.plot(curve, heights, color=color, linewidth=2, label=f"{name}: {len(timing.samples)} requests")
    _band(axes, speed.whole[0].before, speed.floor)
    for change in speed.whole:
        _mark(axes, change)
    _span(axes, min(curve[0] for curve in curves), max(curve[-1] for curve in curves), 0.16)
    axes.set_xlabel(f"time of a request, {_write_ticks(axes, 's')} ({speed.before.clock})")
    shares = (0, 0.5, 0.9, 0.95, 0.99, 0.999)
    axes.set_yticks([-math.log10(1 - share) for share in shares], [f"{share * 100:g} %" for share in shares])
    axes.set_ylim(0, top + 0.12)
    axes.set_title("Requests answered within a time")
    axes.legend(loc="lower left", bbox_to_anchor=(1, 0), borderpad=0)


def _mark(axes: Axes, change: Change) -> None:
    """Mark a quantile on both curves; the text goes to the side where neither curve is."""
    height = -math.log10(1 - float(change.what.removeprefix("P")) / 100)
    for value, other, color in ((change.before, change.after, _BEFORE), (change.after, change.before, _AFTER)):
        left = value < other or (value == other and color == _AFTER)
        axes.vlines(value, 0, height, color=color, linewidth=1, linestyle=":")
        axes.plot([value], [height], "o", color=color, markerfacecolor=color if change.enough else "white", zorder=3)
        text = f"{change.what} {_tell(value, 's')}" + ("" if change.enough else ", too few")
        away, ha, va = ((-6, 2), "right", "bottom") if left else ((6, -2), "left", "top")
        box = {"facecolor": "white", "edgecolor": "none", "pad": 0.5, "alpha": 0.85}
        axes.annotate(text, (value, height), away, textcoords="offset points", color=color, ha=ha, va=va, bbox=box)


def _waterfall(bars: Sequence[Bar], axes: Axes) -> None:
    """Show where the time went: what was saved and what was added, from the sum before to the sum after."""
    whole = bars[0].end
    colors = [_BEFORE, *(_LESS if bar.end < bar.start else _MORE for bar in bars[1:-1]), _AFTER]
    for row, (bar, color) in enumerate(zip(bars, colors, strict=True)):
        change, step = bar.end - bar.start, 0 < row < len(bars) - 1
        axes.barh(row, change, left=bar.start, color=color, height=0.68)
        if row:
            axes.vlines(bars[row - 1].end, row - 0.66, row - 0.34, color=_HINT, linewidth=1)
        text = _tell(change, "s", "+" if step else "") + (f" ({change / whole:+.1%})" if step and whole else "")
        axes.text(max(bar.start, bar.end), row, f" {text}", va="center")
    ends = [bar.end for bar in bars]
    axes.set_xlim(min(0.0, *ends), (max(ends) or 1) * 1.16)
    _name_rows(axes, [bar.name for bar in bars])
    scale = f"sum of the parts, {_write_ticks(axes, 's')} (green: less, orange: more)"
    axes.set(title="Where the time went", xlabel=scale)


def _ratios(changes: Sequence[Change], new: Sequence[Change], floor: float, axes: Axes) -> None:
    """Show after / before with its interval; what is new, and so has no ratio, is named."""
    _band(axes, 1, floor)
    axes.axvline(1, color=_HINT, linewidth=1, zorder=1)
    ends = [1 - floor, 1 + floor]
    for row, change in enumerate(changes):
        low, middle, high = np.clip([change.low, change.ratio, change.high], *_EDGES)
        ends += [low, middle, high]
        color = _LESS if change.fell(floor) else _MORE if change.rose(floor) else _SAME
        marker = "o" if middle == change.ratio else "<" if middle > change.ratio else ">"
        axes.plot([low, high], [row, row], color=color, linewidth=2.5, marker="|", markersize=7)
        axes.plot([middle], [row], marker, color=color, markerfacecolor=color if change.enough else "white", zorder=3)
        text = f"{change.ratio:.3f}x   {_tell(change.before, change.unit)} to {_tell(change.after, change.unit)}"
        _beside(axes, row, text + ("" if change.enough else ", too few"), _HINT)
    _span(axes, min(ends), max(ends), 0.04)
    _write_ticks(axes)
    _name_rows(axes, [change.what for change in changes])
    told = ", ".join(f"{change.what} (0 before, now {_tell(change.after, change.unit)})" for change in new)
    scale = "\n".join(_wrapped(f"after / before; without a ratio: {told}" if told else "after / before", 3))
    axes.set(title="After over before, with intervals", xlabel=scale)
    axes.legend(loc="lower right", bbox_to_anchor=(1, 1), borderpad=0)


def _numbers(comparisons: Sequence[Comparison], of: int, axes: Axes) -> None:
    """Show how close each result is to its limit, or how far beyond it."""
    low, high = _ERRORS
    for row, item in enumerate(comparisons):
        limit, color = item.limit.limit, _LESS if item.passed else _MORE
        error = item.error / limit if limit else math.inf if item.error else 0.0
        axes.barh(row, np.clip(error, low, high) - low, left=low, color=color, height=0.68)
        text = f"error {item.error:.2g}, limit {limit:.2g}"
        if item.passed:
            _beside(axes, row, text if item.error else "equal", _HINT)
        else:
            _beside(axes, row, f"FAILED ({item.problem}): {text}", _DECISIONS["reject"])
    axes.axvline(1, color=_HINT, linewidth=1.5)
    axes.set(xscale="log", xlim=_ERRORS)
    _write_ticks(axes)
    _name_rows(axes, [item.name for item in comparisons])
    some = f", {len(comparisons)} of {of}" if of > len(comparisons) else ""
    axes.set(title=f"Results against their limits{some}", xlabel="error / limit; beyond 1 is wrong")


def _band(axes: Axes, middle: float, floor: float) -> None:
    label = f"noise floor: {floor:.1%}"
    axes.axvspan(middle * (1 - floor), middle * (1 + floor), color=_BAND, label=label, zorder=0)


def _span(axes: Axes, low: float, high: float, room: float) -> None:
    """Show low to high with some room at both ends, on a logarithmic axis where the range is wide."""
    from matplotlib.ticker import LogLocator

    if 0 < _WIDE * low < high:
        factor = (high / low) ** room
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.set_xlim(low / factor, high * factor)
    else:
        more = (high - low or abs(high) or 1) * room
        axes.set_xlim(low - more, high + more)


def _write_ticks(axes: Axes, kind: str = "") -> str:
    """Write the numbers of the axis in one unit, and return its name."""
    from matplotlib.ticker import FuncFormatter, NullFormatter

    unit, size = _unit(axes.get_xlim()[1], kind)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value / size:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    return unit


def _name_rows(axes: Axes, names: Sequence[str]) -> None:
    """Name the rows, the first on top."""
    axes.set_yticks(range(len(names)), [_short(name) for name in names])
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)


def _beside(axes: Axes, row: int, text: str, color: str) -> None:
    axes.text(1.01, row, text, transform=axes.get_yaxis_transform(), va="center", color=color)


def _unit(value: float, kind: str) -> tuple[str, float]:
    """Choose the unit in which a value has up to three digits before the point."""
    units = _UNITS.get(kind, ((kind, 1.0),))
    return next((unit for unit in units if abs(value) < 999.5 * unit[1]), units[-1])


def _tell(value: float, kind: str, sign: str = "") -> str:
    """Write a value for reading: 501 us, 12.5 MB."""
    unit, size = _unit(value, kind)
    return f"{value / size:{sign}#.3g}".rstrip(".") + f" {unit}" if unit else f"{value:{sign}.4g}"


def _short(name: str) -> str:
    """Keep the ends of a long name: paths differ there."""
    name = _printable(name)
    return name if len(name) <= _NAME else f"{name[: _NAME // 3]}…{name[-(_NAME - _NAME // 3 - 1) :]}"


def _wrapped(text: str, lines: int) -> list[str]:
    return textwrap.wrap(_printable(text), _CHARACTERS, max_lines=lines, placeholder=" …")


def _printable(text: str) -> str:
    """Drop what a font, or the XML of an .svg, has no sign for."""
    return "".join(sign if sign.isprintable() else " " for sign in text)

"""The verb `verify`: one decision and what it rests on, as tables, as JSON, or as a picture too."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import click
from rich.markup import escape

from onekernel.cli.console import CODES, duration, progress, size, table, terminal

if TYPE_CHECKING:
    from onekernel.verify import Comparison, Speed, Verdict
    from onekernel.verify.speed import Change

NUMBERS = ("output", ">error", ">limit", "first mismatch, or what is wrong")
CHANGES = ("what", ">before", ">after", ">ratio", ">interval", ">samples")
UNITS = {"s": lambda value, _: duration(value), "B": lambda value, _: size(value)}


def _counts(_: click.Context, __: click.Parameter, text: str | None) -> tuple[int, ...] | None:
    try:
        return None if text is None else tuple(map(int, text.split(",")))
    except ValueError as error:
        raise click.BadParameter("give whole numbers with commas between them, such as 1,4") from error


@click.command(name="verify")
@click.argument("before")
@click.argument("after")
@click.option("--inputs", metavar="FILE.npz|auto", help="One call's inputs; auto makes them up.")
@click.option("--seconds", type=float, help="Time for timing; 0 compares numbers only.")
@click.option("--rounds", type=int, help="Comparisons on fresh inputs.")
@click.option("--repeats", type=int, help="Runs on equal inputs, to see what is not the same every time.")
@click.option("--confidence", type=float, help="Of every interval, such as 0.999.")
@click.option("--rate", type=float, help="Requests per second that arrive at random.")
@click.option("--streams", callback=_counts, metavar="1,4", help="Callers at a time, to measure throughput.")
@click.option("--energy", type=float, help="Seconds of each window in which energy is read; 0 does not.")
@click.option("--expect", metavar="PART", help="The part that is predicted to take less time.")
@click.option("--distribution", is_flag=True, default=None, help="Results are random: compare distributions.")
@click.option("--seed", type=int, help="Of fresh inputs and of the order of samples.")
@click.option("--picture", metavar="FILE.svg", help="Draw it, too.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of tables.")
def command(before: str, after: str, inputs: str | None, picture: str | None, as_json: bool, **plan: Any) -> int:
    """Prove that AFTER computes what BEFORE does, faster, and at what cost.

    Each is MODEL.onnx, a folder of `onekernel optimize`, package.module:factory, file.py:factory, or a command line in
    quotes, in which {inputs} and {outputs} become files. Exit code 0: keep, 1: reject, 3: not enough evidence.
    """
    import onekernel

    chosen = onekernel.Plan(**{name: value for name, value in plan.items() if value is not None})
    with progress("starting"):
        verdict = onekernel.verify(before, after, inputs, plan=chosen)
        if picture:
            verdict.save_picture(picture)
    if as_json:
        click.echo(json.dumps(verdict.record(), indent=1))
    else:
        _show(verdict)
    return CODES[verdict.decision]


def _show(verdict: Verdict) -> None:
    screen = terminal()
    screen.print(f"{verdict.decision}: {verdict.rule}", style="bold", markup=False)
    screen.print(verdict.reason, soft_wrap=True, markup=False)
    for title, heads, rows in _tables(verdict):
        if rows:
            screen.print(table(f"\n{title}", heads, ([escape(cell) for cell in row] for row in rows)))
    screen.print()
    for kind, lines in (("doubt", verdict.doubts), ("note ", verdict.notes)):
        for line in lines:
            screen.print(f"{kind}  {line}", soft_wrap=True, markup=False)


def _tables(verdict: Verdict) -> Iterator[tuple[str, tuple[str, ...], list[tuple[str, ...]]]]:
    yield "numbers", NUMBERS, list(map(_number, verdict.numbers))
    if speed := verdict.speed:
        yield f"speed ({speed.before.clock}; noise {speed.floor:.1%})", CHANGES, _rows(_speed(speed))
        yield "parts", CHANGES, _rows(speed.parts)
    if verdict.footprint:
        yield "costs", CHANGES, _rows(verdict.footprint.costs)


def _number(item: Comparison) -> tuple[str, ...]:
    first = f"{list(item.first.index)}: expected {item.first.expected}, got {item.first.got}" if item.first else ""
    return item.name, f"{item.error:.2e}", f"{item.limit.limit:.2g}", "; ".join(filter(None, (first, item.detail)))


def _speed(speed: Speed) -> Iterator[Change]:
    yield from (*speed.whole, *speed.kernels, *speed.service)
    if speed.first:
        yield speed.first


def _rows(changes: Iterable[Change]) -> list[tuple[str, ...]]:
    return [
        (
            item.what,
            *(UNITS.get(item.unit, "{:.3g} {}".format)(value, item.unit) for value in (item.before, item.after)),
            f"{item.ratio:.3f}",
            f"{item.low:.3f} to {item.high:.3f}" if item.low < item.high else "",
            f"{item.samples}" if item.enough else f"{item.samples}, too few",
        )
        for item in changes
    ]

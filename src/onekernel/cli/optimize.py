"""The verb `optimize`: what was found, built, proven and predicted, as tables or as JSON."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from itertools import groupby
from typing import TYPE_CHECKING, Any

import click

from onekernel.cli.console import CODES, duration, progress, size, table, terminal

if TYPE_CHECKING:
    from onekernel.optimize import Candidate, Optimization

CHAINS = ("chain", "normalises", ">count", ">operators", ">launches", ">bytes saved", ">predicted")
KERNELS = ("kernel", "arch", ">registers", ">spilled bytes", ">compiled in")


@click.command(name="optimize")
@click.argument("model")
@click.option("--inputs", metavar="FILE.npz|auto", help="One call's inputs; auto makes them up.")
@click.option("--gpu", metavar="h200|rtx5090|t4|sm_NN", help="Build and predict for this GPU.")
@click.option("--into", default="auto", show_default=True, metavar="onnxruntime|auto", help="Runtime.")
@click.option("-o", "--out", metavar="OUT/", help="Write the result here; onekernel.load reads it.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of tables.")
def command(model: str, as_json: bool, **options: Any) -> int:
    """Fuse the chains of MODEL.onnx that pay, and prove that the result is the same."""
    import onekernel

    with progress("starting"):
        result = onekernel.optimize(model, **options)
    if as_json:
        click.echo(json.dumps(result.record(), indent=1))
    else:
        _show(result)
    return CODES[result.verdict.decision]


def _show(result: Optimization) -> None:
    screen = terminal()
    if result.kept:
        screen.print(table(f"{result.name}: chains fused", CHAINS, _chains(result)))
        screen.print(table("\nkernels built", KERNELS, _kernels(result)))
    else:
        screen.print(f"{result.name}: no chain was fused", style="bold", markup=False)
    for line, times in Counter(_closing(result)).items():
        screen.print(line if times == 1 else f"{line} ({times} times)", soft_wrap=True, markup=False)


def _chains(result: Optimization) -> Iterator[tuple[str, ...]]:
    """Give one row for each kind of chain."""
    for (name, axis, before), same in groupby(sorted(result.kept, key=_kind), key=_kind):
        savings = [item.saving for item in same]
        launches = f"{before * len(savings)} -> {len(savings)}"
        moved = size(sum(item.bytes_before - item.bytes_after for item in savings))
        seconds = duration(sum(item.seconds for item in savings))
        yield name, axis, str(len(savings)), str(before), launches, moved, seconds


def _kind(item: Candidate) -> tuple[str, str, int]:
    return item.chain.name, f"{item.chain.layout} of {item.chain.hidden}", item.saving.launches_before


def _kernels(result: Optimization) -> Iterator[tuple[str, ...]]:
    for build in result.builds:
        used, seconds = build.binary.resources, duration(build.binary.seconds)
        yield build.request.name, build.request.arch, str(used.registers), str(used.spill_bytes), seconds


def _closing(result: Optimization) -> Iterator[str]:
    yield ""
    yield from (f"undone   {item.chain.name}: {item.undone}" for item in result.candidates if item.undone)
    yield from (f"left     {item.source[0]}: {item.reason}" for item in result.left)
    if worst := result.worst_kernel:
        yield f"kernels  {len(result.verdicts) - 1} checked against float64; the worst is {worst}"
    yield f"numbers  {result.verdict.decision}: {result.verdict.reason}"
    launches = "{} launches -> {}".format(*result.launches)
    yield f"saving   {launches}, predicted {duration(result.saving)} a call on {result.part.name}"
    if result.kernel_seconds is not None:
        yield f"timed    {duration(result.kernel_seconds)} in the kernels, each alone, on this machine's GPU"
    yield from (f"note     {note}" for note in result.notes)
    yield f"written  {result.out or 'nothing'}"

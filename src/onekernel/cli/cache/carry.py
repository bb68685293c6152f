"""`cache pack` and `cache load`: kernels in one file, for a container image or another machine."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

import click

from onekernel.cli.cache.place import place
from onekernel.cli.console import NO, YES, size
from onekernel.errors import InvalidInput

if TYPE_CHECKING:
    from onekernel.jit.cache.bundle import Report

MOST_LINES = 20


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.argument("keys", nargs=-1, metavar="[KEY]...")
def pack(file: Path, keys: tuple[str, ...]) -> int:
    """Write the kernels whose keys begin with KEY, or all, into FILE; compressed if it ends in .gz or .tgz."""
    from onekernel.jit.cache import bundle
    from onekernel.jit.cache.listing import select

    folder, _ = place()
    slots = select(folder, keys)
    if not slots:
        todo = "build some first, with `onekernel optimize` for example"
        raise InvalidInput(expected=f"kernels to pack in {folder}", got="none", todo=todo)
    try:
        report = bundle.pack(file, [slot.path for slot in slots])
        packed = size(file.stat().st_size)
    except OSError as error:
        got = error.strerror or str(error)
        raise InvalidInput(expected=f"a place to write at {file}", got=got, todo="name another file") from error
    click.echo(f"packed   {len(report.done)} kernels into {file}, {packed}")
    return _refused(report)


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
def load(file: Path) -> int:
    """Put the kernels of FILE into the cache. A kernel is code: load only what you would run."""
    from onekernel.jit.cache import bundle

    folder, limit = place()
    report = bundle.load(file, folder, limit)
    click.echo(f"loaded   {len(report.done)} kernels into {folder}")
    click.echo(f"present  {len(report.present)} that were there")
    if lost := sum(not (folder / label.folder).exists() for label in report.done):
        click.echo(f"dropped  {lost} of them again: over the limit of {size(limit or 0)} (ONEKERNEL_CACHE_LIMIT)")
    if note := _for_others(report):
        click.echo(f"note     {note}")
    return _refused(report)


def _refused(report: Report) -> int:
    for name, reason in report.refused[:MOST_LINES]:
        click.echo(f"refused  {name!a}: {reason}")
    if more := report.refused[MOST_LINES:]:
        click.echo(f"refused  {len(more)} more")
    return NO if report.refused else YES


def _for_others(report: Report) -> str | None:
    """Say so when no kernel for a GPU can be used here, as far as that can be told."""
    from onekernel._version import __version__
    from onekernel.jit.compile import nvrtc

    labels = [label for label in (*report.done, *report.present) if label.target.startswith(("sm_", "compute_"))]
    with contextlib.suppress(Exception):  # without NVRTC nothing is known of the keys here
        here = (nvrtc.compiler_id(), __version__)
        if labels and all((label.compiler, label.onekernel) != here for label in labels):
            theirs = f"{labels[0].compiler.split(' --')[0]}, onekernel {labels[0].onekernel}"
            return f"built by {theirs}; here is {here[0].split(' --')[0]}, onekernel {here[1]}: none will be used"
    return None

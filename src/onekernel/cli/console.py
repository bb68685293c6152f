"""What every verb shares: the group, one line for an error, progress, tables. It knows no verb's meaning."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Literal

import click
from rich.console import Console
from rich.status import Status
from rich.table import Table

from onekernel._version import __version__
from onekernel.errors import InvalidInput, OneKernelError

YES, NO, INPUT, UNDECIDED = 0, 1, 2, 3
CODES = {"keep": YES, "reject": NO, "inconclusive": UNDECIDED}
VERBS = ("optimize", "verify", "speak", "voices", "doctor", "cache")


class _Verbs(click.Group):
    """Loads a verb's module, `cli/<verb>.py`, when the verb is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Name the verbs."""
        del ctx
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import one."""
        del ctx
        if cmd_name not in VERBS:
            return None
        command: click.Command = import_module(f"onekernel.cli.{cmd_name}").command
        return command


@click.group(cls=_Verbs, name="onekernel")
@click.version_option(__version__, prog_name="onekernel")
def group() -> None:
    """Find the wall of small kernels in a model, melt it into one launch, and prove the gain."""


def run(arguments: Sequence[str] | None) -> int:
    """Run a command line; whatever the user can mend is one line on stderr and exit code 2."""
    try:
        code = group.main(arguments, prog_name="onekernel", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message())
        return INPUT
    except click.ClickException as error:
        return _fail(error.format_message(), INPUT)
    except click.Abort:
        return _fail("interrupted", UNDECIDED)
    except InvalidInput as error:
        return _fail(str(error), INPUT)
    except OneKernelError as error:
        return _fail(str(error), UNDECIDED)
    return int(code or YES)


def _fail(message: str, code: int) -> int:
    click.echo("onekernel: " + " ".join(message.split()), err=True)
    return code


def terminal() -> Console:
    """Make a console on stdout; a pipe gets lines that are wide enough for the tables."""
    return Console(width=None if sys.stdout.isatty() else 120, highlight=False)


def table(title: str, heads: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    """Lay out rows of text; a head that starts with ">" is aligned to the right. The first column is never cut."""
    drawn = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False)
    for place, head in enumerate(heads):
        side: Literal["left", "right"] = "right" if head.startswith(">") else "left"
        drawn.add_column(head.removeprefix(">"), justify=side, no_wrap=place == 0)
    for row in rows:
        drawn.add_row(*row)
    return drawn


_BAR = 24  # characters


class _Follow(logging.Handler):
    """Shows the newest log record as the status."""

    def __init__(self, status: Status) -> None:
        super().__init__(logging.INFO)
        self._status = status

    def emit(self, record: logging.LogRecord) -> None:
        """Replace the text beside the spinner; a record of countable work has a bar."""
        done, total = getattr(record, "done", 0), getattr(record, "total", 0)
        filled = _BAR * done // total if total else 0
        bar = f"  {'━' * filled}{'╌' * (_BAR - filled)} {done}/{total}" if total else ""
        self._status.update(record.getMessage() + bar)


@contextmanager
def progress(first: str) -> Iterator[None]:
    """Show on stderr what the library says it is doing; nothing where stderr is not a terminal."""
    log = logging.getLogger("onekernel")
    with Console(stderr=True).status(first) as status:
        follow, level = _Follow(status), log.level
        log.addHandler(follow)
        log.setLevel(logging.INFO)
        try:
            yield
        finally:
            log.removeHandler(follow)
            log.setLevel(level)


def size(count: float) -> str:
    """Write a number of bytes for reading: 15.2 MB."""
    for unit in ("B", "kB", "MB"):
        if abs(count) < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} GB"


def duration(seconds: float) -> str:
    """Write a time for reading: 501 us."""
    for unit, scale in (("s", 1.0), ("ms", 1e3)):
        if seconds * scale >= 1:
            return f"{seconds * scale:.3g} {unit}"
    return f"{seconds * 1e6:.3g} us"

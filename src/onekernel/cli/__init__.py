"""The command line: one file per verb, loaded when it is named. It parses, calls a public name, and prints.

Exit codes: 0 yes, 1 no, 2 the user's input cannot be used, 3 not enough evidence.
"""

from __future__ import annotations

from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line (default: the process's own) and return its exit code."""
    from onekernel.cli.console import run

    return run(arguments)

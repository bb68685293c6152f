"""Run the benchmarks: `python -m benchmarks [TABLE ...] [--out FOLDER] [--commit HASH]`.

rows, columns, proof need a GPU; launch takes the stub driver when there is none; compile needs neither; verdicts
verifies on the host, and on a GPU where there is one. Run only when they are named: official, which compares
speech with the official package that OFFICIAL_PYTHON has, frames and text, which make speech and text in one launch
on a GPU, launches, which compares that with a launch for each phase, sessions, which lets many share a launch, prompts,
which reads them by one launch, soak, which lets blocks be late, and peers, which times frames beside the public
runtimes, whose packages the folders FASTER_SITE and OFFICIAL_SITE hold; text reads the folder SMOLLM2
(examples/smollm2).
"""

from __future__ import annotations

import argparse
import json
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks import show, stub
from onekernel import device

TABLES = ("rows", "columns", "proof", "launch", "compile", "verdicts")
NAMED = ("official", "frames", "launches", "peers", "prompts", "sessions", "soak", "text")  # run when they are named
NEED_GPU = ("rows", "columns", "proof", "frames", "launches", "peers", "prompts", "sessions", "soak", "text")


def main() -> int:
    """Measure, print the tables, write one JSON file each."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "tables", nargs="*", metavar="|".join(TABLES + NAMED), help="what to run (default: all but the last eight)"
    )
    parser.add_argument("--out", type=Path, help="write numbers and conditions into this folder")
    parser.add_argument("--commit", help="the commit of this tree, when it came without git")
    options = parser.parse_args()
    wanted = options.tables or TABLES
    if unknown := set(wanted) - set(TABLES + NAMED):
        parser.error(f"expected one of {', '.join(TABLES + NAMED)}, got {', '.join(sorted(unknown))}")
    if not device.gpu_count():
        if refused := set(wanted) & set(NEED_GPU):
            print(
                f"benchmarks: {', '.join(sorted(refused))} need a GPU; run this on a machine with one", file=sys.stderr
            )
            return 2
        if "launch" in wanted:
            return stub.run_again()
    from benchmarks.conditions import conditions

    told = conditions(options.commit)
    if options.out:
        options.out.mkdir(parents=True, exist_ok=True)
    failed = False
    for name in wanted:
        record: dict[str, Any] = {**told, name: _measure(name, Console(stderr=True), options.out)}
        failed |= _failed(name, record[name])
        show.table(Console(width=160), name, record)
        if options.out:
            (options.out / f"{name}.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return 1 if failed else 0


def _failed(name: str, result: Any) -> bool:
    """Say whether what was compared is not the same; speed alone fails nothing."""
    if name in NAMED:
        return bool(import_module(f"benchmarks.{name}").failed(result))
    return name == "proof" and not result["clean"]


def _measure(name: str, progress: Console, out: Path | None) -> Any:
    def say(what: str) -> None:
        progress.print(what, style="dim")

    def report(row: dict[str, Any]) -> None:
        say(f"measured {row['shape']} {row['dtype']}")

    if name in ("launch", "compile"):
        from benchmarks import compile, launch

        return (launch if name == "launch" else compile).run(say)
    if name == "verdicts":
        from benchmarks import verdicts

        return verdicts.run(say, out)
    if name in NAMED:
        return import_module(f"benchmarks.{name}").run(say)
    from benchmarks import chains, problems, proof

    if name == "proof":
        return proof.run()
    if name == "rows":
        return chains.run(problems.ROWS, ["float16", "float32"], report)
    return chains.run(problems.COLUMNS, ["float32"], report)


if __name__ == "__main__":
    sys.exit(main())

"""Run the benchmarks: `python -m benchmarks [rows|columns|proof ...] [--out FOLDER] [--commit HASH]`. Needs a GPU."""

from __future__ import annotations

import argparse
import json
import sys
from math import prod
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from onekernel import device

TABLES = ("rows", "columns", "proof")
TIMES = ["eager", "torch.compile", "F.layer_norm", "ours"]


def main() -> int:
    """Measure, print the tables, write one JSON file each."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("tables", nargs="*", metavar="|".join(TABLES), help="what to run (default: all)")
    parser.add_argument("--out", type=Path, help="write numbers and conditions into this folder")
    parser.add_argument("--commit", help="the commit of this tree, when it came without git")
    options = parser.parse_args()
    if unknown := set(options.tables) - set(TABLES):
        parser.error(f"expected one of {', '.join(TABLES)}, got {', '.join(sorted(unknown))}")
    if not device.gpu_count():
        print("benchmarks: expected a GPU, got none; run this on a machine with one", file=sys.stderr)
        return 2
    from benchmarks.conditions import conditions

    told = conditions(options.commit)
    failed = False
    for name in options.tables or TABLES:
        record: dict[str, Any] = {**told, name: _measure(name, Console(stderr=True))}
        failed |= name == "proof" and not record[name]["clean"]
        _print(Console(width=160), name, record)
        if options.out:
            options.out.mkdir(parents=True, exist_ok=True)
            (options.out / f"{name}.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return 1 if failed else 0


def _measure(name: str, progress: Console) -> Any:
    from benchmarks import chains, problems, proof

    def report(row: dict[str, Any]) -> None:
        progress.print(f"measured {row['shape']} {row['dtype']}", style="dim")

    if name == "proof":
        return proof.run()
    if name == "rows":
        return chains.run(problems.ROWS, ["float16", "float32"], report)
    return chains.run(problems.COLUMNS, ["float32"], report)


def _print(console: Console, name: str, record: dict[str, Any]) -> None:
    rows = record[name]
    if name == "proof":
        console.print_json(data=rows)
        return
    title = f"{name}: microseconds a call in a CUDA graph, {record['gpu']}, {record['commit'][:10]}"
    heads = ("copy floor", "of copy", "vs compile", "apart", "length", "count")
    table = Table("shape", "dtype", *TIMES, *heads, title=title)
    for row in rows:
        times = [f"{row['microseconds'][name][0]:.2f}" for name in TIMES]
        folding = [f"{row[key]:+.1%}" for key in ("folding_row_length", "folding_row_count")]
        shape = "x".join(map(str, row["shape"]))
        gains = [f"{row[key]:.2f}x" for key in ("against_compile", "against_compile_apart")]
        share = [f"{row['copy_floor']:.2f}", f"{row['share_of_copy']:.2f}"]
        table.add_row(shape, row["dtype"], *times, *share, *gains, *folding)
    console.print(table)
    for key, words in (("against_compile", "as launched"), ("against_compile_apart", "launches apart")):
        mean = prod(row[key] for row in rows) ** (1 / len(rows))
        console.print(f"geometric mean against torch.compile, {words}: {mean:.2f}x")
    console.print("apart: our launches do not overlap. length, count: what folding each as a constant saves")


if __name__ == "__main__":
    sys.exit(main())

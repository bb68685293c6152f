"""Run the benchmarks: `python -m benchmarks [--out FILE.json] [--commit HASH]` (`make bench`). Needs a GPU."""

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

COLUMNS = ["eager", "torch.compile", "F.layer_norm", "ours"]


def main() -> int:
    """Measure, print the table, write the JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--out", type=Path, help="write the numbers and their conditions to this file")
    parser.add_argument("--commit", help="the commit of this tree, when it came without git")
    options = parser.parse_args()
    if not device.gpu_count():
        print("benchmarks: expected a GPU, got none; run this on a machine with one", file=sys.stderr)
        return 2
    from benchmarks import conditions, rows

    record: dict[str, Any] = conditions.conditions(options.commit)
    console = Console(width=160)
    record["rows"] = rows.run(lambda row: console.print(f"measured {row['shape']} {row['dtype']}", style="dim"))
    _print(console, record)
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return 0


def _print(console: Console, record: dict[str, Any]) -> None:
    title = f"LayerNorm chain, microseconds a call in a CUDA graph, {record['gpu']}, {record['commit'][:10]}"
    table = Table("shape", "dtype", *COLUMNS, "copy floor", "of copy", "vs compile", "length", "count", title=title)
    for row in record["rows"]:
        times = [f"{row['microseconds'][name][0]:.2f}" for name in COLUMNS]
        folding = [f"{row[key]:+.1%}" for key in ("folding_row_length", "folding_row_count")]
        shape = "x".join(map(str, row["shape"]))
        share = [f"{row['copy_floor']:.2f}", f"{row['share_of_copy']:.2f}", f"{row['against_compile']:.2f}x"]
        table.add_row(shape, row["dtype"], *times, *share, *folding)
    console.print(table)
    mean = prod(row["against_compile"] for row in record["rows"]) ** (1 / len(record["rows"]))
    console.print(f"geometric mean against torch.compile: {mean:.2f}x. length, count: what folding saves")


if __name__ == "__main__":
    sys.exit(main())

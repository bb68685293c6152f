"""Measured numbers as tables for reading."""

from __future__ import annotations

from math import prod
from typing import Any

from rich.console import Console
from rich.table import Table

TIMES = ["eager", "torch.compile", "F.layer_norm", "ours"]


# Titles of what one launch does, and what else the tables have in columns.
_LAUNCHED = {
    "frames": ("frames of speech in one launch",),
    "launches": ("frames of speech in one launch and in many",),
    "peers": ("frames of speech beside the public runtimes", "times ours"),
    "prompts": ("prompts of speech read by one launch",),
    "sessions": ("frames of many requests in one launch",),
    "soak": ("frames of speech while blocks are late",),
    "text": ("tokens of text in one launch", "tokens a second", "gap"),
}


def table(console: Console, name: str, record: dict[str, Any]) -> None:
    """Print one measured table with the conditions that matter."""
    place = f"{record['gpu']}, {record['commit'][:10]}"
    if name == "proof":
        console.print_json(data=record[name])
    elif name == "verdicts":
        _verdicts(console, record[name], f"verdicts: {place}")
    elif name == "official":
        _official(console, record[name], f"official: differences from the official package, {place}")
    elif name in _LAUNCHED:
        title, *columns = _LAUNCHED[name]
        _launched(console, record[name], f"{title}, {place}", *columns)
    elif name == "launch":
        _launches(console, record[name], f"launch: microseconds of the calling thread, {place}")
    elif name == "compile":
        _values(console, record[name], f"compile: on {record['host']}, {record['commit'][:10]}")
    else:
        _chains(console, record[name], f"{name}: microseconds a call in a CUDA graph, {place}")


def _launches(console: Console, rows: dict[str, Any], title: str) -> None:
    drawn = Table("way to launch", "median", "spread", "of raw", title=title)
    raw = next(iter(rows.values()))["median"]
    for name, sample in rows.items():
        drawn.add_row(name, f"{sample['median']:.2f}", f"{sample['spread']:.2f}", f"{sample['median'] / raw:.2f}x")
    console.print(drawn)


def _verdicts(console: Console, rows: dict[str, Any], title: str) -> None:
    drawn = Table("case", "decision", "rule", "reason", title=title)
    for where, row in rows["itself"].items():
        verdicts = ", ".join(f"{count} x {name}" for name, count in row["verdicts"].items())
        drawn.add_row(f"itself, {where}", verdicts, "", f"P50 apart by {row['largest_difference']:.2%} at most")
    for name, row in rows.items():
        if name != "itself":
            drawn.add_row(name, row["decision"], row["rule"], row["reason"])
    console.print(drawn)


def _official(console: Console, rows: list[dict[str, Any]], title: str) -> None:
    drawn = Table("model", "type", "asked", "what", "measured", "limit", "", title=title)
    for row in rows:
        limit = row["limit"]
        verdict = "" if limit is None else "same" if row["measured"] <= limit else "OFF"
        more = {key: value for key, value in row.items() if key in ("codes", "differing", "official", "frames")}
        measured = f"{row['measured']:.3g}" + "".join(f", {key} {value:.3g}" for key, value in more.items())
        where = row["model"].removeprefix("Qwen3-TTS-12Hz-"), row.get("dtype", ""), row.get("asked", "")
        drawn.add_row(*where, row["what"], measured, "" if limit is None else f"{limit:.2g}", verdict)
    console.print(drawn)


def _launched(console: Console, rows: list[dict[str, Any]], title: str, *more: str) -> None:
    drawn = Table("model", "what", "median", "P99", "max", "floor", "of floor", *more, title=title)
    for row in rows:
        keys = "p99", "max", "floor", "of floor", *more
        values = [f"{row[key]:.3f}" if key in row else "" for key in keys]
        found = f"{row['measured']} of {row['least']}" if "least" in row else f"{row['measured']:.3f}"
        drawn.add_row(row["model"].removeprefix("Qwen3-TTS-12Hz-"), row["what"], found, *values)
    console.print(drawn)


def _values(console: Console, rows: dict[str, Any], title: str) -> None:
    drawn = Table("what", "value", title=title)
    for name, sample in rows.items():
        drawn.add_row(name, ", ".join(f"{key} {value:.3g}" for key, value in sample.items()))
    console.print(drawn)


def _chains(console: Console, rows: list[dict[str, Any]], title: str) -> None:
    heads = ("copy floor", "of copy", "vs compile", "apart", "length", "count")
    drawn = Table("shape", "dtype", *TIMES, *heads, title=title)
    for row in rows:
        times = [f"{row['microseconds'][name][0]:.2f}" for name in TIMES]
        folding = [f"{row[key]:+.1%}" for key in ("folding_row_length", "folding_row_count")]
        shape = "x".join(map(str, row["shape"]))
        gains = [f"{row[key]:.2f}x" for key in ("against_compile", "against_compile_apart")]
        share = [f"{row['copy_floor']:.2f}", f"{row['share_of_copy']:.2f}"]
        drawn.add_row(shape, row["dtype"], *times, *share, *gains, *folding)
    console.print(drawn)
    for key, words in (("against_compile", "as launched"), ("against_compile_apart", "launches apart")):
        mean = prod(row[key] for row in rows) ** (1 / len(rows))
        console.print(f"geometric mean against torch.compile, {words}: {mean:.2f}x")
    console.print("apart: our launches do not overlap. length, count: what folding each as a constant saves")

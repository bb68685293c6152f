"""`cache list`, `cache show` and `cache clear`."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from onekernel.cli.cache.place import place
from onekernel.cli.console import duration, size, table, terminal
from onekernel.errors import InvalidInput

if TYPE_CHECKING:
    from onekernel.jit.cache.files import Slot

HEADS = ("key", "name", "target", ">size", ">registers", ">spilled", ">compiled in", "last used")


@click.command(name="list")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of a table.")
def list_(as_json: bool) -> None:
    """List the kernels that are kept, the newest use first."""
    from onekernel.jit.cache.listing import select

    folder, limit = place()
    records = [_record(slot) for slot in reversed(select(folder))]
    total = sum(record["bytes"] for record in records)
    if as_json:
        listing = {"folder": str(folder), "bytes": total, "limit": limit, "kernels": records}
        click.echo(json.dumps(listing, indent=1))
        return
    screen = terminal()
    if records:
        screen.print(table("kernels", HEADS, map(_row, records)))
    most = "no limit" if limit is None else f"limit {size(limit)}"
    screen.print(f"{len(records)} kernels, {size(total)}, {most}, in {folder}", soft_wrap=True, markup=False)


@click.command()
@click.argument("key")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--text", is_flag=True, help="Print the CUDA text.")
def show(key: str, as_json: bool, text: bool) -> None:
    """Show the kernel whose key begins with KEY: what it is, where it is, and the compiler's log."""
    from onekernel.jit.cache.listing import select

    (slot,) = select(place()[0], [key])
    record = _record(slot)
    if "damaged" in record:
        todo = f"it is built again when it is needed; remove it with: onekernel cache clear {slot.key[:12]}"
        raise InvalidInput(expected=f"an intact kernel in {slot.path}", got=record["damaged"], todo=todo)
    if text:
        click.echo((slot.path / record["text"]).read_text(encoding="utf-8"), nl=False)
    elif as_json:
        click.echo(json.dumps(record, indent=1))
    else:
        log = record.pop("log").rstrip()
        facts = {
            **record,
            "bytes": size(record["bytes"]),
            "seconds": duration(record["seconds"]),
            **record["resources"],
        }
        del facts["resources"]
        click.echo("\n".join([*(f"{name:<14} {value}" for name, value in facts.items()), "", log]).rstrip())


@click.command()
@click.argument("keys", nargs=-1, metavar="[KEY]...")
@click.option("--yes", is_flag=True, help="Do not ask.")
def clear(keys: tuple[str, ...], yes: bool) -> None:
    """Remove the kernels whose keys begin with KEY, or all; on a terminal, it asks before it removes all."""
    from onekernel.jit.cache.files import discard
    from onekernel.jit.cache.folder import remove_dead_locks
    from onekernel.jit.cache.listing import select

    folder, _ = place()
    slots = select(folder, keys)
    if slots and not keys and not yes and sys.stdin.isatty():
        click.confirm(f"Remove all {len(slots)} kernels in {folder}?", abort=True)
    for slot in slots:
        discard(slot.path)
    remove_dead_locks(folder)
    left = [slot for slot in slots if slot.path.exists()]
    removed = sum(slot.bytes for slot in slots) - sum(slot.bytes for slot in left)
    click.echo(f"removed  {len(slots) - len(left)} kernels, {size(removed)}, from {folder}")
    if left:
        todo = "see who owns them"
        raise InvalidInput(expected=f"kernels that can be removed in {folder}", got=f"{len(left)} others", todo=todo)


def _record(slot: Slot) -> dict[str, Any]:
    """Say of an entry what its record says, or why it is damaged."""
    from onekernel.jit.cache import Damaged, read
    from onekernel.jit.cache.trust import trusted

    used = datetime.fromtimestamp(slot.used).astimezone().isoformat(" ", "seconds")
    found: dict[str, Any] = {"key": slot.key, "name": slot.path.stem, "bytes": slot.bytes, "used": used}
    try:
        entry = read(slot.path, trusted)
    except Damaged as damage:
        return {**found, "damaged": str(damage)}
    binary = entry.binary
    built = {"resources": asdict(binary.resources), "seconds": binary.seconds, "log": binary.log}
    return {**found, **asdict(entry.label), **built, "text": str(slot.path / "kernel.cu")}


def _row(record: dict[str, Any]) -> tuple[str, ...]:
    start, used = (record["key"][:12], record["name"]), record["used"][:16]
    if "damaged" in record:
        return *start, f"damaged: {record['damaged']}", size(record["bytes"]), "", "", "", used
    resources = record["resources"]
    numbers = str(resources["registers"]), size(resources["spill_bytes"]), duration(record["seconds"])
    return *start, record["target"], size(record["bytes"]), *numbers, used

"""Fuzz the readers of the cache: `python -m tests.fuzz_cache --cases 100000 --seed 1`.

Entries and bundles are damaged at random: bytes, records, kinds of files. An oracle that only compares bytes says
whether an entry may be taken. Anything else is an error: a crash, a wrong refusal, a wrong acceptance.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import stat
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from onekernel.errors import InvalidInput
from onekernel.jit.cache import Entry, KernelCache, Label, bundle, digest
from onekernel.jit.cache.entry import encode
from onekernel.jit.cache.files import discard
from onekernel.jit.cache.folder import KernelFolder
from onekernel.jit.compile.binary import Binary, Resources

RECORD = "build.json"
STRANGE = ["", None, True, -1, 2**64, 10**400, 0.5, float("nan"), [], {}, "é\0", "../..", ["x"] * 9, {"a": {"b": []}}]


def stored(number: int) -> Entry:
    """Make an entry of a size of its own."""
    binary = Binary(bytes(Random(number).randbytes(number**3)), Resources(number, 0, 8), number / 7, "ptxas\n" * number)
    return Entry(Label(digest(str(number)), f"kernel_{number}", "sm_90", "nvrtc"), f"// {number}\n" * number, binary)


ENTRIES = [stored(number) for number in range(1, 6)]
FILES = [encode(entry) for entry in ENTRIES]


# ---- damage to bytes


def damaged(chance: Random, content: bytes, other: bytes) -> bytes:
    """Change some bytes; now and then none."""
    data, start = bytearray(content), chance.randrange(len(content) + 1)
    stop = min(len(content), start + chance.choice([1, 2, 8, 64, 10**6]))
    match chance.randrange(9):
        case 0 if data:
            data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        case 1 if data:
            data[chance.randrange(len(data))] = chance.choice(b'\0\xff 0"{}[],\n')
        case 2:
            del data[start:stop]
        case 3:
            data[start:start] = content[start:stop]
        case 4:
            data[start:start] = chance.choice([b"[" * 5000, b"9" * 5000, b"\0", b"NaN", b"\xff\xfe", b'"a": 1, '])
        case 5:
            data[start:stop] = other[start:stop]
        case 6:
            data[start:stop] = bytes(stop - start)
        case 7:
            data = bytearray(other)
    return bytes(data)


def altered(chance: Random, content: bytes) -> bytes:
    """Change a field of a record and seal it again, as another version of this software might have written it."""
    record: dict[str, Any] = json.loads(content)
    del record["sha256"]
    inside = chance.choice([record, record["resources"], record["files"], record["files"]["kernel.bin"]])
    name = chance.choice([*inside, "new"])
    if chance.random() < 0.2:
        inside.pop(name, None)
    else:
        inside[name] = chance.choice(STRANGE)
    body = json.dumps(record, indent=chance.choice([1, 1, None])).removesuffix("\n}").encode()
    return body + f',\n "sha256": "{hashlib.sha256(body).hexdigest()}"\n}}\n'.encode()


# ---- damage to files


def another_kind(chance: Random, path: Path) -> None:
    """Put something that is no ordinary file, or nothing, in the place of a file."""
    kinds: list[Callable[[], object]] = [
        lambda: path.mkdir(),
        lambda: os.mkfifo(path),
        lambda: path.symlink_to(path.name),
        lambda: path.symlink_to(path.parent.parent / FOLDERS[0] / path.name),
        lambda: path.symlink_to("/dev/zero"),
        lambda: path.write_bytes(b"x") and os.truncate(path, 1 << 40),
        lambda: None,
    ]
    path.unlink()
    chance.choice(kinds)()


FOLDERS = [entry.label.folder for entry in ENTRIES]


def spoil(chance: Random, root: Path, number: int) -> bool:
    """Damage one entry on disk once to three times; tell whether its record was sealed again."""
    folder, sealed_again = root / FOLDERS[number], False
    if chance.random() < 0.02:
        discard(folder)
        shutil.copytree(root / chance.choice(FOLDERS[:number] or FOLDERS[1:]), folder)
    for _ in range(chance.choice([1, 1, 1, 2, 3])):
        name = chance.choice([*FILES[0], RECORD])
        path, what = folder / name, chance.random()
        if not path.is_file() or path.is_symlink() or path.stat().st_size > 10**6:
            continue
        if what < 0.6:
            path.write_bytes(damaged(chance, path.read_bytes(), chance.choice(FILES)[name]))
        elif what < 0.8 and name == RECORD and path.read_bytes() == FILES[number][RECORD]:
            path.write_bytes(altered(chance, FILES[number][RECORD]))
            sealed_again = True
        elif what < 0.95:
            another_kind(chance, path)
        else:
            path.chmod(chance.choice([0o666, 0o602, 0o640, 0o600]))
    return sealed_again


def intact(folder: Path, number: int) -> bool:
    """Say by comparing bytes alone whether the entry is as it was stored, and nobody else may write it."""
    for name, content in FILES[number].items():
        path = folder / name
        if not path.is_file() or path.stat().st_mode & stat.S_IWOTH or path.stat().st_size != len(content):
            return False
        if not os.access(path, os.R_OK) or path.read_bytes() != content:
            return False
    return True


def check_entry(chance: Random, root: Path) -> str:
    """Damage an entry, read it, and put it back; return what became of it."""
    number = chance.randrange(len(ENTRIES))
    entry, folder = ENTRIES[number], root / FOLDERS[number]
    sealed_again = spoil(chance, root, number)
    expected, read = intact(folder, number), KernelFolder(root).read(entry.label)
    if sealed_again and read is not None:
        assert (read.text, read.binary.data, read.label.folder) == (entry.text, entry.binary.data, FOLDERS[number])
        assert [type(value) for value in vars(read.binary.resources).values()] == [int] * 4
        assert [type(value) for value in vars(read.label).values()] == [str] * 5
    else:
        assert read == (entry if expected else None), f"{folder}: {'refused' if expected else 'accepted'} wrongly"
    if chance.random() < 0.02:
        rebuild(root, entry, read)
    put_back(root, number)
    return "refused" if read is None else "sealed again" if sealed_again else "accepted"


def rebuild(root: Path, entry: Entry, read: Entry | None) -> None:
    """Get a kernel through the cache: it is built if and only if it was not read, and then it is there."""
    built: list[Entry] = []

    def build() -> Binary:
        built.append(entry)
        return entry.binary

    assert KernelCache(root).get(entry.label, entry.text, build) == (read or entry).binary
    assert bool(built) == (read is None)
    assert KernelFolder(root).read(entry.label) == (read or entry)


def put_back(root: Path, number: int) -> None:
    """Store an entry as it was, without syncing."""
    folder = root / FOLDERS[number]
    discard(folder)
    folder.mkdir(mode=0o700)
    for name, content in FILES[number].items():
        (folder / name).write_bytes(content)


def check_bundle(chance: Random, root: Path, whole: bytes) -> str:
    """Damage a bundle and load it: what gets in is what was packed, and nothing lands elsewhere."""
    file, into = root / "damaged.tar", root / "into"
    file.write_bytes(damaged(chance, whole, chance.choice(list(FILES[0].values()))))
    try:
        report = bundle.load(file, into)
        outcome = "bundle loaded in part" if report.refused else "bundle loaded"
        loaded = {label.folder for label in report.done}
    except InvalidInput:
        outcome, loaded = "no bundle", set()
    there = {path.name for path in into.iterdir()} if into.exists() else set()
    assert loaded <= there <= set(FOLDERS), f"{there} in the folder"
    for name in there:
        assert KernelFolder(into).read(ENTRIES[FOLDERS.index(name)].label) == ENTRIES[FOLDERS.index(name)]
    shutil.rmtree(into, ignore_errors=True)
    return outcome


def run(cases: int, seed: int = 1) -> Counter[str]:
    """Run cases, a twentieth of them bundles. Raises AssertionError for a wrong judgement, or what a crash raised."""
    chance, outcomes = Random(seed), Counter[str]()
    with tempfile.TemporaryDirectory() as name:
        root = Path(name) / "cache"
        root.mkdir(mode=0o700)
        for number in range(len(ENTRIES)):
            put_back(root, number)
        bundle.pack(root.with_name("bundle.tar"), [root / folder for folder in FOLDERS[:2]])
        whole = root.with_name("bundle.tar").read_bytes().rstrip(b"\0") + bytes(1024)
        for case in range(cases):
            try:
                is_bundle = chance.random() < 0.05
                outcomes[check_bundle(chance, Path(name), whole) if is_bundle else check_entry(chance, root)] += 1
            except BaseException as error:
                error.add_note(f"case {case} of seed {seed}")
                raise
    return outcomes


def main() -> None:
    """Run from the command line; the exit code is 0 when every case was judged rightly."""
    parser = argparse.ArgumentParser(description="Fuzz the readers of the kernel cache.")
    parser.add_argument("--cases", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    outcomes = run(asked.cases, asked.seed)
    print(f"{outcomes.total()} cases of seed {asked.seed}, all judged rightly")
    for outcome, count in outcomes.most_common():
        print(f"{count:>10}  {outcome}")


if __name__ == "__main__":
    main()

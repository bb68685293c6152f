"""One kernel as three files that a person can open; the cache, bundles and saved models all keep kernels this way.

    <name>.<key>/kernel.cu    the text
                 kernel.bin   the cubin, or the shared library of the emulated device
                 build.json   what it is, who built it, what it uses, and the sizes and hashes of the other two

The last field of build.json is the hash of all its text before that field, and nothing is parsed before this seal is
checked. Hence a changed byte in any file, a file of another entry, or an entry under another name is never taken
for a kernel. The seal finds accidents; against people, see trust.py.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

from onekernel._version import __version__
from onekernel.jit.compile.binary import Binary, Resources

Value = TypeVar("Value")

FORMAT = 2
TEXT, BINARY, RECORD = "kernel.cu", "kernel.bin", "build.json"
LARGEST = {TEXT: 16 << 20, BINARY: 256 << 20, RECORD: 16 << 20}  # bytes; in the order of writing: the record is last

_FOLDER = re.compile(r"[^\W\d]\w{0,59}\.[0-9a-f]{32}")
_SEAL = re.compile(rb',\n "sha256": "([0-9a-f]{64})"\n}\n')
_SEAL_BYTES = 82


class Damaged(Exception):
    """Files that are not an intact kernel; the message says what is wrong with them."""


def digest(*parts: str) -> str:
    """Hash parts so that no two different lists of parts collide: the form of a key."""
    return hashlib.sha256(json.dumps([FORMAT, *parts]).encode()).hexdigest()[:32]


def is_folder_name(name: str) -> bool:
    """Tell whether a folder of this name can be a kernel's; nothing else is ever listed or removed."""
    return _FOLDER.fullmatch(name) is not None


@dataclass(frozen=True)
class Label:
    """Which kernel it is: the key says what went in, the rest is for people.

    `target` is what it runs on ("sm_90", "emulated sm_90"), `compiler` the build that made it, with its options.
    """

    key: str
    name: str
    target: str
    compiler: str
    onekernel: str = __version__

    @property
    def folder(self) -> str:
        """The name of the kernel's folder."""
        return f"{self.name[:48]}.{self.key}"


@dataclass(frozen=True)
class Entry:
    """A kernel with everything that is kept of it."""

    label: Label
    text: str
    binary: Binary


def encode(entry: Entry) -> dict[str, bytes]:
    """Return the content of each file, in the order in which they are written."""
    files = {TEXT: entry.text.encode(), BINARY: entry.binary.data}
    record = {
        "format": FORMAT,
        **asdict(entry.label),
        "resources": asdict(entry.binary.resources),
        "seconds": float(entry.binary.seconds),
        "log": entry.binary.log,
        "files": {name: _print(content) for name, content in files.items()},
    }
    body = json.dumps(record, indent=1, allow_nan=False).removesuffix("\n}").encode()
    return {**files, RECORD: body + f',\n "sha256": "{hashlib.sha256(body).hexdigest()}"\n}}\n'.encode()}


def decode(folder: str, files: Mapping[str, bytes]) -> Entry:
    """Make an entry of the files that lay in a folder of this name. Raises Damaged, and nothing else."""
    record = _unseal(files.get(RECORD, b""))
    try:
        if record["format"] != FORMAT:
            raise Damaged(f"format {record['format']}, not {FORMAT}")
        for name in (TEXT, BINARY):
            if name not in files or _print(files[name]) != record["files"][name]:
                raise Damaged(f"{name} is not the one that was built")
        label = Label(**{name: _expect(str, record[name]) for name in Label.__dataclass_fields__})
        resources = Resources(**{name: _expect(int, value) for name, value in record["resources"].items()})
        seconds, log = _expect(float, record["seconds"]), _expect(str, record["log"])
        entry = Entry(label, files[TEXT].decode(), Binary(files[BINARY], resources, seconds, log))
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise Damaged(f"{RECORD} has other fields: {error}") from error
    if label.folder != folder or not is_folder_name(folder):
        raise Damaged(f"it is {label.folder}")
    return entry


def _expect(kind: type[Value], value: Any) -> Value:
    if type(value) is not kind:
        raise TypeError(f"{value!r} is no {kind.__name__}")
    return value


def _print(content: bytes) -> dict[str, Any]:
    return {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}


def _unseal(content: bytes) -> dict[str, Any]:
    body, seal = content[:-_SEAL_BYTES], _SEAL.fullmatch(content[-_SEAL_BYTES:])
    if seal is None or hashlib.sha256(body).hexdigest().encode() != seal[1]:
        raise Damaged(f"{RECORD} is not as it was written")
    try:
        record: dict[str, Any] = json.loads(body + b"\n}")
    except (ValueError, RecursionError) as error:
        raise Damaged(f"{RECORD} cannot be read: {error}") from error
    return record

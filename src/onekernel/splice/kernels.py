"""Built kernels of a saved model: one folder each, with the text, the report and the cubin.

A cubin is used again only under the same key, which covers text, headers, options, architecture and compiler;
anything else is compiled from the chain. It knows files and keys, no model.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

from onekernel import jit
from onekernel.fusion.kernel import Build


def write(folder: Path, builds: Iterable[Build]) -> None:
    """Write one folder for each build."""
    folder.mkdir()
    for build in builds:
        key = jit.key_of(build.request)
        entry = folder / f"{build.request.name[:60]}.{key}"
        entry.mkdir(exist_ok=True)
        (entry / "kernel.cu").write_text(str(build.request), encoding="utf-8")
        (entry / f"{build.request.arch}.cubin").write_bytes(build.binary.data)
        record = {
            "key": key,
            "arch": build.request.arch,
            "sha256": hashlib.sha256(build.binary.data).hexdigest(),
            "resources": asdict(build.binary.resources),
            "schedule": asdict(build.schedule),
            "seconds": build.binary.seconds,
            "log": build.binary.log,
        }
        (entry / "build.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def adopt(folder: Path) -> int:
    """Offer every intact cubin of a folder to the compiler's cache; returns how many."""
    adopted = 0
    for path in sorted(folder.glob("*/build.json")):
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
            data = (path.parent / f"{record['arch']}.cubin").read_bytes()
            if hashlib.sha256(data).hexdigest() == record["sha256"]:
                resources = jit.Resources(**record["resources"])
                jit.adopt(record["key"], jit.Binary(data, resources, record["seconds"], record["log"]))
                adopted += 1
        except (OSError, ValueError, KeyError, TypeError):
            continue  # damaged: it is compiled again
    return adopted

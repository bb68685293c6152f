"""A checkpoint: where it lies, downloaded if need be, and its tensors by name. It knows no model.

Files are safetensors, one or in shards; a layout says by name and shape which tensors there must be, and no others.
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

from onekernel import settings
from onekernel.errors import InvalidInput, MissingExtra

if TYPE_CHECKING:
    import torch

Progress = Callable[[int, int], None]  # bytes that are done, of how many known so far

log = logging.getLogger("onekernel")
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)
_FILES = ["*.json", "*.txt", "*.safetensors"]  # in folders below too
_TOLD = 5  # names in a message
_AGAIN = "download the checkpoint again, or give another"


def locate(name: str | Path, *, progress: Progress | None = None) -> Path:
    """Return the folder of a checkpoint: as it is, or downloaded where the name is a hub id and no folder.

    A download that was interrupted goes on where it stopped, and one that is complete needs no network. How far it is,
    is told to the log and to `progress` (ModelScope shows a bar of its own). Raises InvalidInput when there is no such
    folder or repository, or when it cannot be had now, and MissingExtra without huggingface_hub.
    """
    folder = Path(os.path.expanduser(name))
    if os.path.isdir(folder) and str(name):
        return folder
    if isinstance(name, Path) or not _HUB_ID.fullmatch(name):
        raise InvalidInput(
            expected="the folder of a checkpoint, or a hub id such as Qwen/Qwen3-TTS-12Hz-0.6B-Base",
            got=f"{str(name)!r}, " + ("a file" if os.path.isfile(folder) else "which is neither"),
            todo="correct the name",
        )
    if (hub := settings.load().hub) not in _HUBS:
        todo = "correct it, or unset it for huggingface"
        raise InvalidInput(expected=f"ONEKERNEL_HUB as one of {', '.join(_HUBS)}", got=repr(hub), todo=todo)
    download = _HUBS[hub](_Told(name, progress))
    log.info("looking for %s at %s", name, hub)
    try:
        return Path(download(name, allow_patterns=_FILES))
    except Exception as error:  # three generations of a library, on three libraries for HTTP
        raise _unavailable(name, hub, error) from error


def _huggingface(told: _Told) -> Callable[..., str]:
    try:
        from huggingface_hub import snapshot_download
        from huggingface_hub.utils.tqdm import tqdm
    except ImportError as error:
        raise MissingExtra("huggingface_hub", "speech") from error

    class Bar(tqdm):  # type: ignore[type-arg,unused-ignore]
        """Draws nothing, and tells what a bar of bytes would show."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **{**kwargs, "disable": True})  # type: ignore[no-untyped-call,unused-ignore]
            self.counts_bytes = kwargs.get("unit") == "B"

        def update(self, n: float | None = 1) -> None:
            if self.counts_bytes:
                self.n = told.add(self, n or 0, self.total or 0)

    def download(name: str, **options: Any) -> str:
        return str(snapshot_download(name, tqdm_class=Bar, **options))

    return download


def _modelscope(_told: _Told) -> Callable[..., str]:
    try:
        from modelscope.hub.snapshot_download import (  # type: ignore[import-not-found,import-untyped,unused-ignore]
            snapshot_download,
        )
    except ImportError as error:
        raise InvalidInput(
            expected="the library 'modelscope', as ONEKERNEL_HUB=modelscope asks",
            got="no such module",
            todo="install it with: pip install modelscope",
        ) from error
    found: Callable[..., str] = snapshot_download
    return found


_HUBS: dict[str, Callable[[_Told], Callable[..., str]]] = {"huggingface": _huggingface, "modelscope": _modelscope}


class _Told:
    """What a download tells: the bar that is ahead of the others, as some libraries count what they fetch and write."""

    def __init__(self, name: str, progress: Progress | None) -> None:
        self._name, self._progress, self._lock = name, progress, Lock()
        self._bars: dict[int, float] = {}
        self._done = 0

    def add(self, bar: object, count: float, total: float) -> float:
        """Add to a bar, which any thread may do, and return what it then has."""
        with self._lock:
            now = self._bars[id(bar)] = self._bars.get(id(bar), 0) + count
            if self._done < now <= total:
                self._done = int(now)
                log.info("downloading %s", self._name, extra={"done": int(100 * now / total), "total": 100})
                if self._progress is not None:
                    self._progress(self._done, int(total))
            return now


def _unavailable(name: str, hub: str, error: Exception) -> InvalidInput:
    """Say in one line why a download failed, and what to do."""
    kind, words = type(error).__name__, str(error).strip() or "no reason given"
    got = f"{kind}: {words.splitlines()[0]}"
    if "No space left" in words:
        todo = "free some space, or keep checkpoints elsewhere (HF_HOME, or MODELSCOPE_CACHE)"
    elif re.search("RepositoryNotFound|Gated|NotExist|HFValidation", kind):
        got = f"no folder, and no repository that may be read ({got})"
        todo = "correct the name; where a repository is private or gated, log in with: hf auth login"
    else:
        todo = "look at the network and try again: what is complete is kept; or give a folder, or set ONEKERNEL_HUB"
    return InvalidInput(expected=f"{name} as a folder, in the cache, or from {hub}", got=got, todo=todo)


def read_tensors(
    file: Path, layout: Mapping[str, tuple[int, ...]], *, dtypes: Collection[str], spare: Collection[str] = ()
) -> dict[str, torch.Tensor]:
    """Map the tensors of a safetensors file, or of the shards that FILE.index.json names, in the order of the layout.

    Nothing is copied: pages are read when they are used, and the file must stay as it is for as long. `dtypes` are
    those allowed, as the format spells them ("BF16"); tensors named in `spare` may be there and are not read. Raises
    InvalidInput, naming what is missing, what is too much and what has another shape or dtype, or what is wrong with a
    file; and MissingExtra without safetensors.
    """
    tensors: dict[str, torch.Tensor] = {}
    missing, extra, wrong = set(layout), list[str](), list[str]()
    for part in _parts(file):
        for name, dtype, shape, view in _open(part):
            if name not in missing:
                extra += [name] if name not in spare else []
                continue
            missing.remove(name)
            if shape == layout[name] and dtype in dtypes:
                tensors[name] = view()
            else:
                wrong.append(f"{name} as {dtype} {list(shape)} instead of {'|'.join(dtypes)} {list(layout[name])}")
    if faults := [_list(*fault) for fault in (("missing", missing), ("extra", extra), ("wrong", wrong)) if fault[1]]:
        raise InvalidInput(
            expected=f"the {len(layout)} tensors that the config implies in {file}",
            got="; ".join(faults),
            todo=f"use the config and the weights of one checkpoint, or {_AGAIN}",
        )
    return {name: tensors[name] for name in layout}


def _list(what: str, names: Collection[str]) -> str:
    first = sorted(names)[:_TOLD]
    return f"{len(names)} {what} ({', '.join(first)}{', ...' if len(names) > _TOLD else ''})"


def _open(file: Path) -> Iterator[tuple[str, str, tuple[int, ...], Callable[[], torch.Tensor]]]:
    """Yield name, dtype and shape of each tensor in a file, and how to map it."""
    try:
        from safetensors import SafetensorError, safe_open
    except ImportError as error:
        raise MissingExtra("safetensors", "speech") from error
    try:
        with safe_open(file, framework="pt") as opened:
            for name in opened.keys():  # noqa: SIM118 (it is no dict)
                piece = opened.get_slice(name)
                yield name, piece.get_dtype(), tuple(piece.get_shape()), partial(opened.get_tensor, name)
    except (OSError, SafetensorError) as error:
        got = "no such file" if isinstance(error, FileNotFoundError) else f"one that cannot be read: {error}"
        raise InvalidInput(expected=f"a safetensors file at {file}", got=got, todo=_AGAIN) from error


def _parts(file: Path) -> list[Path]:
    """List the files that hold the tensors: one, or the shards of an index beside it."""
    index = file.with_name(f"{file.name}.index.json")
    if file.exists() or not index.exists():
        return [file]
    try:
        names = sorted(set(json.loads(index.read_text("utf-8"))["weight_map"].values()))
        if not all(name and Path(name).name == name for name in names):
            raise ValueError("a shard lies in another folder")
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        got = f"{type(error).__name__}: {error}"
        raise InvalidInput(expected=f"an index of shards at {index}", got=got, todo=_AGAIN) from error
    return [file.with_name(name) for name in names]

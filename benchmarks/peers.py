"""Ours beside the two public runtimes of Qwen3-TTS: how long is a frame? Random weights at released sizes.

FASTER_SITE and OFFICIAL_SITE name folders of packages that hold `faster-qwen3-tts==0.5.4` and `qwen-tts==0.1.1`, each
with its transformers: no process can have both. All read the same checkpoint in bfloat16, at batch 1, and draw by
default. They take turns, for the host's speed drifts, and the peers wait for their host: for each code of the talker in
both, for each of 7000 kernels in the official one. Ours is timed as launches one after the other, and once more with a
host that reads each frame before it asks for the next. Ours attends to 100 positions, the peers to 81 and then to one
more for each frame, 100 in the middle, the faster one masked in a cache of 2048.

A frame is what the language model does: a talker step, the predictor's fifteen codes, all sixteen draws; no codec. The
floor is the time in which the GPU reads the weights of a frame once (benchmarks/frames.py). Both peers are asked for
whole answers; of each, the first frames are not counted (benchmarks/peer.py).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from itertools import chain
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from benchmarks import frames
from benchmarks.conditions import ROOT
from benchmarks.frames_parity import SEED, Row, Speech, rows_of
from benchmarks.official import released
from benchmarks.peer import SETTLED, kernels_of
from onekernel import device
from onekernel.errors import InvalidInput
from onekernel.speech.config import read_speech
from onekernel.speech.request import Sampling

SITES = {"faster": "FASTER_SITE", "official": "OFFICIAL_SITE"}
PACKAGES = {"faster": "faster-qwen3-tts==0.5.4 transformers==5.16.1", "official": "qwen-tts==0.1.1"}
POSITION, TURNS, FRAMES, COUNTED = 100, 3, 40, 3  # frames of a peer's turn, and those in which kernels are counted
OURS = "ours, in one launch"
Turn = Callable[[], list[float]]  # milliseconds of frames


class Peer:
    """A runtime in a process of its own, which loads a checkpoint and then answers."""

    def __init__(self, kind: str, site: str, folder: Path) -> None:
        path = os.pathsep.join(filter(None, (site, os.environ.get("PYTHONPATH"))))
        quiet = {"HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1", "TRANSFORMERS_VERBOSITY": "error"}
        self._kind, self._process = kind, subprocess.Popen(
            [sys.executable, "-P", ROOT / "benchmarks" / "peer.py", kind, folder],
            env={**os.environ, "PYTHONPATH": path, **quiet}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def ask(self, question: str) -> Any:
        """Return its answer."""
        assert self._process.stdin
        print(question, file=self._process.stdin, flush=True)
        return self.answer()

    def answer(self) -> Any:
        """Return the next line that it says; the first is about itself."""
        assert self._process.stdout
        if not (line := self._process.stdout.readline()):
            raise RuntimeError(f"the {self._kind} peer ended with {self._process.wait()}; see above why")
        return json.loads(line)


def sites() -> dict[str, str]:
    """Return the folders of packages. Raises InvalidInput if one is missing."""
    for kind, name in SITES.items():
        if not Path(folder := os.environ.get(name, "")).is_dir() or not folder:
            todo = f"pip install --target FOLDER {PACKAGES[kind]}, then {name}=FOLDER"
            got = f"{folder!r}" if folder else "no such variable"
            raise InvalidInput(expected=f"a folder of packages in {name}", got=got, todo=todo)
    return {kind: os.environ[name] for kind, name in SITES.items()}


def read_by_host(speech: Speech, text: Tensor) -> list[float]:
    """Return milliseconds of the host for each frame: asked for, said, and read."""
    request, spans = speech.kernel.request(Sampling(), SEED), list[float]()
    request.cache.normal_()
    request.position = POSITION
    request.say(rows_of(speech, 1, 3), text, 1).tolist()
    for _ in range(SETTLED + frames.LAUNCHES):
        request.position = POSITION
        start = time.perf_counter()
        request.say(None, text, 1).tolist()
        spans.append(1e3 * (time.perf_counter() - start))
    return spans[SETTLED:]


def own_kernels(speech: Speech, text: Tensor) -> float:
    """Count the kernels of a frame of ours."""
    request = speech.kernel.request(Sampling(), SEED)
    request.say(rows_of(speech, 1, 3), text, 1)
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        for _ in range(COUNTED):
            request.say(None, text, 1)
        torch.cuda.synchronize()
    return kernels_of(profiler) / COUNTED


def take_turns(contenders: dict[str, Turn], turns: int = TURNS) -> dict[str, list[list[float]]]:
    """Ask all of them, again and again; returns the milliseconds of each one's turns."""
    taken: dict[str, list[list[float]]] = {name: [] for name in contenders}
    for _ in range(turns):
        for name, turn in contenders.items():
            taken[name].append(turn())
    return taken


def rows(taken: dict[str, list[list[float]]], floor: float) -> Iterator[Row]:
    """Make a row of each contender: all its turns together, beside the floor and beside the first contender."""
    ours = median(chain(*next(iter(taken.values()))))
    for name, turns in taken.items():
        together = list(chain(*turns))
        found = median(together)
        most = {"p99": quantiles(together, n=100)[98], "max": max(together), "floor": floor, "of floor": floor / found}
        tell = {"times ours": found / ours, "turns": [median(turn) for turn in turns], "frames": len(together)}
        yield {"what": f"ms a frame: {name}", "measured": found, **most, **tell}


def beside(speech: Speech, peers: list[Peer]) -> Iterator[Row]:
    """Time all, then count kernels: what counts them may slow what comes after it."""
    told = [peer.answer() for peer in peers]
    text = rows_of(speech, 3, 2)
    contenders: dict[str, Turn] = {
        OURS: lambda: frames.launches(speech, text, POSITION, 1),
        f"{OURS}, each read by the host": lambda: read_by_host(speech, text),
    }
    for who, peer in zip(told, peers, strict=True):
        contenders[who["name"]] = partial(peer.ask, f"times {FRAMES}")
    floor = frames.read_bytes(speech.layout.program) / frames.read_bandwidth() * 1e3
    about = {who["name"]: who for who in told}
    for row in rows(take_turns(contenders), floor):
        yield {**row, **about.get(row["what"].removeprefix("ms a frame: "), {})}
    yield {"what": f"kernels a frame: {OURS}", "measured": own_kernels(speech, text)}
    for who, peer in zip(told, peers, strict=True):
        yield {"what": f"kernels a frame: {who['name']}", "measured": peer.ask(f"kernels {COUNTED}")}


def run(say: Callable[[str], None]) -> list[Row]:
    """Time each size; returns rows with the name of the model."""
    where = sites()
    found: list[Row] = []
    with torch.inference_mode():
        for name, folder in released(say):
            with ExitStack() as processes:  # they load while our kernel is compiled
                peers = [processes.enter_context(Peer(kind, site, folder)) for kind, site in where.items()]
                tensors = load_file(folder / "model.safetensors", device="cuda")
                for row in beside(frames.prepare(read_speech(folder), tensors, device.get("cuda")), peers):
                    found.append({"model": name, **row})
                    say(f"{row}")
    return found


failed = frames.failed

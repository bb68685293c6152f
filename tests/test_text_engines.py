"""Which engine is taken where the best does not fit, and that it says why; one that is named is never replaced."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import onekernel
import stub_driver
from onekernel.device import emulated, get
from onekernel.errors import DoesNotFit, InvalidInput
from onekernel.fallback import Refusal, first_that_fits
from onekernel.text import engines, tokens
from onekernel.text.config import read_text
from test_text import PROMPT, QWEN3, write

COUNT = 6
NARROW = QWEN3 | {"hidden_size": 64, "intermediate_size": 64, "head_dim": 32, "vocab_size": 64}  # quickly built
HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("engines") / "narrow", NARROW)


# ---- the first that fits


def refused(got: str) -> Callable[[], str]:
    def build() -> str:
        raise DoesNotFit(expected="room", got=got, todo="make some")

    return build


def test_the_first_that_fits_is_taken_and_those_before_it_say_why(caplog: pytest.LogCaptureFixture) -> None:
    builders = {"a": refused("1"), "b": refused("2"), "c": lambda: "c", "d": lambda: "d"}
    with caplog.at_level(logging.INFO, "onekernel"):
        built, refusals = first_that_fits(builders)
    assert (built, refusals) == ("c", (Refusal("a", "expected room, got 1"), Refusal("b", "expected room, got 2")))
    assert caplog.messages == ["b instead of a: expected room, got 1", "c instead of b: expected room, got 2"]


def test_where_nothing_fits_the_last_says_so() -> None:
    with pytest.raises(DoesNotFit, match="got 2; make some"):
        first_that_fits({"a": refused("1"), "b": refused("2")})


def test_what_another_build_would_not_mend_is_raised_at_once() -> None:
    def build() -> str:
        raise InvalidInput(expected="a compiler", got="none", todo="install one")

    with pytest.raises(InvalidInput, match="a compiler"):
        first_that_fits({"a": build, "b": lambda: "b"})


# ---- what a GPU is refused for before anything is built

CASES = {  # arch, multiprocessors, inner width: the engine that fits, words of the refusals
    "it fits": ("sm_90", 40, 160, "megakernel", ()),
    "on the oldest": ("sm_75", 40, 160, "megakernel", ()),
    "a slice with few multiprocessors": ("sm_90", 1, 160, "launches", ("2 heads of keys for 1 blocks",)),
    "more blocks than work": ("sm_90", 132, 160, "megakernel", ()),
    "shared memory": ("sm_75", 40, 12000, "launches", ("bytes of shared memory, there are 65536",)),
    "shared memory of a launch": ("sm_75", 40, 2**15, "reference", ("there are 65536", "there are 65536")),
    "the same elsewhere": ("sm_90", 40, 2**15, "megakernel", ()),
    "too old": ("sm_70", 40, 160, "reference", ("expected a GPU from sm_75 on, got sm_70",) * 2),
}


@pytest.fixture
def unbuilt(monkeypatch: pytest.MonkeyPatch) -> None:
    """Engines of which only the name is there."""
    for name in engines.KERNELS:
        monkeypatch.setitem(engines.KERNELS, name, lambda *_, name=name: SimpleNamespace(name=name))  # type: ignore[misc]
    monkeypatch.setattr(engines, "TextDecoder", lambda *_: None)


@pytest.mark.usefixtures("unbuilt")
@pytest.mark.parametrize("case", CASES)
def test_a_gpu_gets_what_fits_it(case: str, tmp_path: Path) -> None:
    arch, multiprocessors, inner, taken, words = CASES[case]
    (tmp_path / "config.json").write_text(json.dumps(QWEN3))
    config = read_text(tmp_path)
    config = replace(config, shape=replace(config.shape, inner=inner))
    gpu: Any = SimpleNamespace(arch=arch, multiprocessors=multiprocessors)
    engine, refusals = engines.build_engine("auto", config, {}, gpu, "cpu")
    assert engine.name == taken
    assert [refusal.name for refusal in refusals] == ["megakernel", "launches"][: len(words)]
    assert all(word in refusal.reason for word, refusal in zip(words, refusals, strict=True))
    for refusal in refusals:  # one that is named is not replaced, but told
        with pytest.raises(DoesNotFit) as caught:
            engines.build_engine(refusal.name, config, {}, gpu, "cpu")
        assert f"expected {caught.value.expected}, got {caught.value.got}" == refusal.reason
        assert caught.value.todo == f"use the engine {taken}"


# ---- what is taken instead says the same


def short_of_heads(patch: pytest.MonkeyPatch) -> str:
    patch.setattr(tokens, "EMULATED_BLOCKS", 1)
    return "expected a program for 1 blocks of sm_90, got greedy_decoder: 2 heads of keys for 1 blocks"


def short_of_room(patch: pytest.MonkeyPatch) -> str:
    patch.setattr(tokens, "EMULATED_BLOCKS", 2)
    patch.setattr(emulated, "RESIDENT_THREADS", 512)
    return "expected a cooperative launch of at most 512 threads"


@pytest.mark.parametrize("short", [short_of_heads, short_of_room])
def test_launches_say_the_same_where_one_kernel_does_not_fit(
    short: Callable[[pytest.MonkeyPatch], str],
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    words = short(monkeypatch)
    with caplog.at_level(logging.INFO, "onekernel"):
        model = onekernel.load_text(folder, device="emulated")
    assert model.engine.name == "launches"
    (refusal,) = model.refusals
    assert refusal.name == "megakernel"
    assert words in refusal.reason
    assert caplog.messages == [f"launches instead of megakernel: {refusal.reason}"]
    right = onekernel.load_text(folder, device="cpu")
    assert (right.engine.name, right.refusals) == ("reference", ())
    assert model.generate(PROMPT[:1], max_tokens=COUNT) == right.generate(PROMPT[:1], max_tokens=COUNT)
    with pytest.raises(InvalidInput, match="use the engine launches"):
        onekernel.load_text(folder, device="emulated", engine="megakernel")


# ---- what the driver says

ON_STUB = """
import json, sys
from pathlib import Path
from types import SimpleNamespace
import stub_driver.emulate
from onekernel.device import get
from onekernel.text import engines
from onekernel.text.config import read_text
from onekernel.text.weights import read_weights
folder, place = Path(sys.argv[1]), get("cuda")
config = read_text(folder)
engines.KERNELS["launches"] = lambda *_: SimpleNamespace(name="launches")
engine, refusals = engines.build_engine("auto", config, read_weights(folder, config), place, "cpu")
print(json.dumps([engine.name, *([refusal.name, refusal.reason] for refusal in refusals)]))
"""


@pytest.mark.parametrize("room", [True, False])
def test_blocks_that_the_driver_has_no_room_for_are_launches(room: bool, folder: Path) -> None:
    """Only what is asked of the driver counts: torch has no memory of the stub's."""
    options = {} if room else {"resident": 0}
    result = stub_driver.python("-c", ON_STUB, str(folder), multiprocessors=2, **options)
    assert result.returncode == 0, result.stderr
    taken, *refusals = json.loads(result.stdout)
    if room:
        assert (taken, refusals) == ("megakernel", [])
        return
    ((name, reason),) = refusals
    assert (taken, name) == ("launches", "megakernel")
    assert "expected at most 0 blocks, which is what fits on Stub GPU at once" in reason


# ---- beside another process

BUSY = """
import time, torch
a = torch.randn(8192, 8192, dtype=torch.bfloat16, device="cuda")
end = None
while end is None or time.monotonic() < end:
    for _ in range(20):
        a @ a
    torch.cuda.synchronize()
    if end is None:
        end = time.monotonic() + 5
        print("busy", flush=True)
"""

BESIDE = """
import json, subprocess, sys
import onekernel
model = onekernel.load_text(sys.argv[1], device="cuda", engine="megakernel")
def say():
    return model.generate([5, 17, 70], max_tokens=200).tokens
alone = say()
busy = subprocess.Popen([sys.executable, "-c", sys.argv[2]], stdout=subprocess.PIPE, text=True)
assert busy.stdout.readline() == "busy\\n"
same = []
while busy.poll() is None:
    same.append(say() == alone)
print(json.dumps([len(set(alone)), same, busy.returncode]))
"""


@pytest.mark.gpu
def test_one_kernel_waits_for_its_blocks_beside_a_process_that_keeps_the_gpu_busy(tmp_path: Path) -> None:
    """The GPU takes turns between processes: all blocks of a cooperative launch go and come back together."""
    wide = {"hidden_size": 512, "intermediate_size": 1024, "num_attention_heads": 8, "num_key_value_heads": 4}
    long = {"vocab_size": 2048, "max_position_embeddings": 512}
    folder = write(tmp_path / "model", QWEN3 | wide | long)
    path = os.pathsep.join([str(HERE.parent / "src"), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-c", BESIDE, str(folder), BUSY]
    environment = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    different, same, status = json.loads(done.stdout)
    assert different > 50
    assert same  # each was begun while the other was busy
    assert all(same)
    assert status == 0


@pytest.mark.gpu
def test_a_gpu_without_shares_has_all_its_multiprocessors() -> None:
    place: Any = get("cuda")
    assert place.multiprocessors == torch.cuda.get_device_properties(0).multi_processor_count

"""The stub driver keeps the driver's rules: it answers as an H200 did (stub_driver/rules.py)."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import stub_driver

HERE = Path(__file__).parent
RECORDED: dict[str, list[int]] = json.loads((HERE / "golden" / "driver_h200.json").read_text())
CODES = re.findall(r"^ +X\((\d+),", (HERE / "stub_driver" / "errors.hpp").read_text(), re.MULTILINE)
RULES = ("-m", "stub_driver.rules", *CODES)


def answers(result: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """Read what the conversations printed."""
    assert result.returncode == 0, result.stderr
    read: dict[str, Any] = json.loads(result.stdout)
    return read


@pytest.fixture(scope="module")
def stub_answers() -> dict[str, Any]:
    """What the stub says; it plays the H200 that was recorded."""
    return answers(stub_driver.python(*RULES, arch=90))


@pytest.mark.parametrize("conversation", RECORDED)
def test_the_stub_answers_as_an_h200_did(conversation: str, stub_answers: dict[str, Any]) -> None:
    assert stub_answers[conversation] == RECORDED[conversation]


def test_nothing_is_said_that_was_not_recorded(stub_answers: dict[str, Any]) -> None:
    assert stub_answers.keys() - {"words"} == RECORDED.keys()
    assert len(CODES) == len(stub_answers["words"]) > 30


@pytest.mark.gpu
def test_a_gpu_answers_as_the_stub_does(stub_answers: dict[str, Any]) -> None:
    """The words of the errors too. Holds for sm_90: what a cluster may be differs elsewhere."""
    path = os.pathsep.join([str(HERE), str(HERE.parent / "src"), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path}
    command = [sys.executable, *RULES]
    assert answers(subprocess.run(command, env=environment, capture_output=True, text=True)) == stub_answers


LOST = """
import ctypes, json, sys
import stub_driver.emulate
from test_launch import COUNT, GRID, Kernel, get, numbers, request
from onekernel.device.cuda.driver import call, driver
cuda, place, what = driver(), get("cuda"), sys.argv[1]
add = Kernel(request(), place)
x, y = numbers(1.0, 0.0)
theirs = get("cuda:1").upload(y.numpy())
bound = add.bind(x, y, 1.0, COUNT, grid=GRID)
first = ctypes.c_void_p.from_address(bound.arguments.pointers).value
with place.current():
    if what == "freed":
        call(cuda.cuMemFree, x.address)
    if what == "of another GPU":
        ctypes.c_void_p.from_address(first).value = theirs.address
    bound.launch(0)
    print(json.dumps([int(cuda.cuCtxSynchronize()[0]) for _ in range(2)]))
"""


@pytest.mark.parametrize(("what", "status"), [("fine", 0), ("freed", 700), ("of another GPU", 700)])
def test_a_launch_on_memory_that_the_gpu_lacks_is_lost(what: str, status: int) -> None:
    """Whoever waits next is told, and from then on everyone."""
    result = stub_driver.python("-c", LOST, what, gpus=2)
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout) == [status] * 2

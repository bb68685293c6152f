"""`onekernel doctor` on machines that lack something: it names it, says what to do, and its exit code is right."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import onekernel
import stub_driver
from onekernel.jit.compile import nvrtc

RUN = """
import sys
class Hide:
    def find_spec(self, name, path=None, target=None):
        if name in HIDDEN:
            raise ModuleNotFoundError(f"no module named {name}", name=name)
sys.meta_path.insert(0, Hide())
EMULATE
from onekernel.cli import main
sys.exit(main(["doctor", "--json"]))
"""


def examine(
    environment: dict[str, str] | None = None, *, hidden: tuple[str, ...] = (), emulate: bool = False
) -> tuple[dict[str, Any], int]:
    """Return the record and exit code of the command in a process of its own; `emulate`: kernels on the stub run."""
    code = RUN.replace("HIDDEN", repr(hidden)).replace("EMULATE", "import stub_driver.emulate" if emulate else "")
    result = subprocess.run(
        [sys.executable, "-c", code], env=environment or dict(os.environ), capture_output=True, text=True, check=False
    )
    assert "Traceback" not in result.stderr, result.stderr
    return json.loads(result.stdout), result.returncode


def check(record: dict[str, Any], name: str) -> dict[str, str]:
    """Return the first check of a name that is not well, or the first of that name."""
    named = [item for item in record["checks"] if item["name"] == name]
    found: dict[str, str] = next((item for item in named if item["state"] != "ok"), named[0])
    return found


def without_compiler(environment: dict[str, str], folder: Path) -> dict[str, str]:
    return {**environment, "PATH": str(folder)}


def test_no_driver() -> None:
    record, code = examine()
    assert "no libcuda.so.1" in check(record, "driver")["found"]
    assert "install NVIDIA's driver" in check(record, "driver")["advice"]
    assert check(record, "run emulated")["state"] == "ok"
    assert (code, record["usable"]) == (0, True)


def test_a_driver_and_a_gpu() -> None:
    record, code = examine(stub_driver.environment(name="NVIDIA H200"), emulate=True)
    assert check(record, "GPU 0")["found"].startswith("NVIDIA H200, sm_90, 64 GiB: cubins")
    assert check(record, "run on a GPU")["state"] == "ok"
    assert code == 0


def test_a_kernel_that_computes_nothing_is_noticed() -> None:
    """The stub does not run real cubins: the result is not there."""
    record, _ = examine(stub_driver.environment())
    assert "wrong result" in check(record, "run on a GPU")["found"]


def test_driver_only(tmp_path: Path) -> None:
    """A GPU, but nothing that compiles: not usable."""
    environment = without_compiler(stub_driver.environment(), tmp_path)
    record, code = examine(environment, hidden=("cuda.bindings.nvrtc",))
    assert check(record, "driver")["state"] == "ok"
    assert "pip install 'nvidia-cuda-nvrtc" in check(record, "NVRTC")["advice"]
    assert check(record, "run on a GPU")["state"] == "problem"
    assert (code, record["usable"]) == (1, False)


def test_a_driver_without_a_gpu() -> None:
    record, code = examine(stub_driver.environment(gpus=0))
    assert "cuInit answers 100" in check(record, "driver")["found"]
    assert "CUDA_VISIBLE_DEVICES" in check(record, "driver")["advice"]
    assert code == 0, "emulated kernels run"


@pytest.mark.parametrize(("older", "state", "advice"), [(0, "note", "error 222"), (1, "problem", "update the driver")])
def test_nvrtc_newer_than_the_driver(older: int, state: str, advice: str) -> None:
    major, minor = nvrtc.version()
    assert minor > 0, "the test needs an NVRTC that a driver of its major version can be older than"
    record, code = examine(stub_driver.environment(driver_version=(major - older) * 1000), emulate=True)
    # The stub runs emulated kernels whatever NVRTC is: only the advice is looked at.
    found = check(record, "NVRTC")
    assert (found["state"], advice in found["advice"]) == (state, True)
    assert "is newer than the driver" in found["found"]
    assert code == 0


def test_no_nvrtc() -> None:
    record, code = examine(hidden=("cuda.bindings.nvrtc",))
    assert check(record, "NVRTC")["state"] == "problem"
    assert "pip install 'nvidia-cuda-nvrtc" in check(record, "NVRTC")["advice"]
    assert code == 0, "emulated kernels need none"


def test_no_compiler_and_no_gpu(tmp_path: Path) -> None:
    record, code = examine(without_compiler(dict(os.environ), tmp_path))
    assert "apt-get install g++" in check(record, "g++")["advice"]
    assert check(record, "run emulated")["state"] == "note"
    assert (code, record["usable"]) == (1, False)


def test_a_home_that_cannot_be_written(tmp_path: Path) -> None:
    """A file stands where the home should be: even root cannot write below it."""
    (tmp_path / "home").write_text("")
    environment = {name: value for name, value in os.environ.items() if name != "ONEKERNEL_CACHE"}
    record, code = examine({**environment, "HOME": str(tmp_path / "home")})
    assert check(record, "cache")["state"] == "note"
    assert "set ONEKERNEL_CACHE to a folder that can be written" in check(record, "cache")["advice"]
    assert code == 0


def test_a_gpu_that_nvrtc_has_dropped() -> None:
    record, _ = examine(stub_driver.environment(arch=70))
    assert "sm_70" in check(record, "GPU 0")["found"]
    assert "12.9" in check(record, "GPU 0")["advice"]


def test_a_check_that_fails_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def _broken() -> Any:
        raise OSError("no such thing")

    from onekernel import doctor as function

    monkeypatch.setitem(function.__globals__, "_LOOKS", {"broken": _broken})
    health = onekernel.doctor()
    assert health.checks[0].name == "broken"
    assert "no such thing" in str(health)


def test_the_table_is_for_people() -> None:
    result = subprocess.run([sys.executable, "-m", "onekernel", "doctor"], capture_output=True, text=True, check=False)
    assert "NVRTC" in result.stdout
    assert result.stdout.splitlines()[-1].startswith("usable")

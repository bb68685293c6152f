"""What `doctor` says of mismatches: each part alone, told of a machine that is not this one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stub_driver
from onekernel.device import host_compiler
from onekernel.device.cuda import driver
from onekernel.device.cuda.facts import EXCLUSIVE, PROHIBITED, Facts
from onekernel.doctor import compilers, gpus, host
from onekernel.jit.compile import nvrtc
from test_doctor import check, examine


@pytest.mark.parametrize(
    ("status", "advice"),
    [
        (34, "out of LD_LIBRARY_PATH"),
        (46, "compute mode"),
        (100, "CUDA_VISIBLE_DEVICES"),
        (802, "fabric manager"),
        (803, "reboot, or reload the module"),
        (804, "remove it from LD_LIBRARY_PATH"),
        (999, "nvidia_uvm"),
        (12345, "nvidia-smi"),
    ],
)
def test_a_driver_that_does_not_start(monkeypatch: pytest.MonkeyPatch, status: int, advice: str) -> None:
    monkeypatch.setattr(driver, "init_status", lambda: status)
    monkeypatch.setattr(driver, "version", lambda: (13, 0))
    (found,) = gpus.examine_driver()
    assert (found.state, f"cuInit answers {status}" in found.found) == ("problem", True)
    assert advice in found.advice


@pytest.fixture(scope="module")
def no_driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library of the driver's name with nothing of a driver in it: what a driver from before CUDA 12 is to us."""
    folder = tmp_path_factory.mktemp("no-driver")
    command = [host_compiler.compiler(), "-shared", "-fPIC", "-xc++", "-", "-o", str(folder / "libcuda.so.1")]
    subprocess.run(command, input="int nothing() { return 0; }", text=True, check=True)
    return folder


@pytest.mark.parametrize("kind", ["no library at all", "a library without a driver"])
def test_a_libcuda_that_is_no_use(no_driver: Path, tmp_path: Path, kind: str) -> None:
    """It is told as what it is, other checks go on, and the emulated device is what is chosen."""
    (tmp_path / "libcuda.so.1").write_text(kind)
    folder = no_driver if kind == "a library without a driver" else tmp_path
    record, code = examine({**os.environ, "LD_LIBRARY_PATH": str(folder)})
    found = check(record, "driver")
    assert (found["state"], found["found"].startswith("libcuda.so.1 is no use: ")) == ("problem", True)
    assert "branch 580 or newer" in found["advice"]
    assert "should not fail" not in json.dumps(record)
    assert check(record, "device")["found"] == "emulated"
    assert (check(record, "NVRTC")["state"], code) == ("ok", 0)


def test_a_container_without_its_driver(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    module = tmp_path / "version"
    module.write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.95.05  Tue Sep 23 2025")
    monkeypatch.setattr(gpus, "_MODULE", module)
    monkeypatch.setattr(driver, "init_status", lambda: None)
    missing = "libcuda.so.1: cannot open shared object file: No such file or directory"
    monkeypatch.setattr(driver, "refusal", lambda: missing)
    (found,) = gpus.examine_driver()
    assert (found.state, found.found) == ("problem", "no libcuda.so.1, kernel module 580.95.05")
    assert "--gpus all" in found.advice


def test_wsl_has_its_driver_from_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "wsl", lambda: True)
    monkeypatch.setattr(driver, "init_status", lambda: None)
    assert "Windows" in next(gpus.examine_driver()).advice
    monkeypatch.setattr(driver, "init_status", lambda: 0)
    monkeypatch.setattr(host, "loaded", lambda _: ["/usr/lib/x86_64-linux-gnu/libcuda.so.1"])
    assert "use the one in /usr/lib/wsl/lib" in [found.advice for found in gpus.examine_driver()]
    monkeypatch.setattr(host, "loaded", lambda _: ["/usr/lib/wsl/lib/libcuda.so.1"])
    assert {found.state for found in gpus.examine_driver()} == {"ok"}


@pytest.mark.parametrize(
    ("text", "release"),
    [
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.120  Fri Sep 13 2024\nGCC version: 12.2.0", "550.120"),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build", "580.95.05"),
        ("", ""),
    ],
)
def test_the_release_is_found_in_what_the_module_says(text: str, release: str) -> None:
    assert gpus.release_of(text) == release


def gpu(name: str = "NVIDIA H200", arch: str = "sm_90", mode: int = 0, mps: bool = False) -> Any:
    return gpus._gpu("GPU 0", Facts(name, arch, 140 << 30, mode, mps))


def test_gpus_of_all_kinds() -> None:
    assert (gpu().state, gpu().found) == ("ok", "NVIDIA H200, sm_90, 140 GiB: cubins")
    assert "a MIG slice" in gpu("NVIDIA H200 MIG 1g.18gb").found
    assert "shared through MPS" in gpu(mps=True).found
    assert (gpu(mode=PROHIBITED).state, gpu(mode=PROHIBITED).advice) == (
        "problem",
        "open it with: nvidia-smi -c DEFAULT",
    )
    assert (gpu(mode=EXCLUSIVE).state, "start MPS" in gpu(mode=EXCLUSIVE).advice) == ("note", True)
    assert gpu(mode=EXCLUSIVE, mps=True).state == "ok"
    newest = nvrtc.supported_archs()[-1].removeprefix("sm_")
    assert f"PTX of compute_{newest}, finished by the driver" in gpu(arch="sm_199").found
    assert gpu(arch="sm_70").state == "problem"


def test_the_facts_of_a_gpu_need_no_context() -> None:
    code = "from onekernel.device.cuda.facts import facts; import stub_driver.emulate as e; print(facts(1)); "
    code += "print(e.calls('cuDevicePrimaryCtxRetain'))"
    result = stub_driver.python("-c", code, gpus=2, arch=121, name="Stub MIG 1g")
    assert result.stdout.splitlines() == [str(Facts("Stub MIG 1g", "sm_121", 64 << 30, 0, False)), "0"], result.stderr


def fake_torch(folder: Path, version: str, cuda: str) -> None:
    """Lay out an installed torch that must not be imported."""
    (folder / "torch").mkdir()
    (folder / "torch" / "__init__.py").write_text("raise RuntimeError('imported')")
    (folder / "torch" / "version.py").write_text(f"__version__ = '{version}'\ncuda: Optional[str] = {cuda}\nhip = None")
    (folder / f"torch-{version}.dist-info").mkdir()
    (folder / f"torch-{version}.dist-info" / "METADATA").write_text(f"Name: torch\nVersion: {version}\n")


@pytest.mark.parametrize(
    ("cuda", "newest", "state", "words"),
    [
        ("'12.8'", (13, 0), "ok", "2.9.0, CUDA 12.8"),
        ("'13.0'", None, "ok", "CUDA 13.0"),
        ("'13.0'", (12, 8), "note", "newer than the driver"),
        ("None", (13, 0), "note", "without CUDA"),
        ("None", None, "ok", "without CUDA"),
    ],
)
def test_the_cuda_of_torch_is_read_and_not_imported(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cuda: str, newest: tuple[int, int] | None, state: str, words: str
) -> None:
    fake_torch(tmp_path, "2.9.0", cuda)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(driver, "version", lambda: newest)
    (found,) = compilers.examine_torch()
    assert (found.state, words in found.found) == (state, True)
    assert bool(found.advice) == (state == "note")


def test_another_nvrtc_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """One that torch has loaded into this process, and one that lies among the wheels."""
    other = "/opt/torch/lib/libnvrtc.so.12"
    monkeypatch.setattr(host, "loaded", lambda _: [str(nvrtc.library()), other])
    (tmp_path / "nvidia_cuda_nvrtc_cu12-12.8.93.dist-info").mkdir()
    metadata = tmp_path / "nvidia_cuda_nvrtc_cu12-12.8.93.dist-info" / "METADATA"
    metadata.write_text("Name: nvidia-cuda-nvrtc-cu12\nVersion: 12.8.93\n")
    monkeypatch.syspath_prepend(tmp_path)
    process, wheels = [found for found in compilers.examine_nvrtc() if found.state == "note"]
    assert other in process.found
    assert "import onekernel before" in process.advice
    assert "nvidia-cuda-nvrtc-cu12 12.8.93" in wheels.found


def test_this_process_has_what_it_has_loaded() -> None:
    nvrtc.version()
    assert host.loaded("libnvrtc.so") == [str(nvrtc.library())]
    assert host.loaded("libno-such") == []


def environment_without(folder: Path, left_out: str) -> Path:
    """Make a Python that has this one's packages except for files of the NVRTC wheel; return its interpreter."""
    venv.create(folder, symlinks=True)
    library = nvrtc.library()
    assert library is not None
    packages = Path(np.__file__).parents[1]
    here = folder / packages.relative_to(sys.prefix)
    for path in packages.iterdir():
        if path.name != "nvidia" and not (here / path.name).exists():
            (here / path.name).symlink_to(path)
    beside = here / "nvidia" / "cu13" / "lib"
    beside.mkdir(parents=True)
    for path in library.parent.iterdir():
        if not path.name.startswith(left_out):
            (beside / path.name).symlink_to(path)
    return folder / "bin" / "python"


@pytest.mark.parametrize(
    ("left_out", "words", "advice"),
    [
        ("libnvrtc", "expected the library NVRTC", "pip install 'nvidia-cuda-nvrtc>=13,<14'"),
        (
            "libnvrtc-builtins",
            "does not compile two lines",
            "pip install --force-reinstall 'nvidia-cuda-nvrtc>=13,<14'",
        ),
        ("nothing", "sm_75", ""),
    ],
)
def test_a_wheel_that_is_not_whole(tmp_path: Path, left_out: str, words: str, advice: str) -> None:
    """The last case shows that the others lack only what was left out."""
    command = [str(environment_without(tmp_path, left_out)), "-m", "onekernel", "doctor", "--json"]
    source = str(Path(__file__).parents[1] / "src")
    environment = {**os.environ, "PYTHONPATH": source}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert "Traceback" not in result.stderr, result.stderr
    named = [found for found in json.loads(result.stdout)["checks"] if found["name"] == "NVRTC"]
    told = [found for found in named if words in found["found"]]
    assert told, named
    assert (advice in told[0]["advice"], told[0]["state"] == "problem") == (True, bool(advice))


def test_a_setting_that_is_wrong_is_told_and_is_no_traceback() -> None:
    record, code = examine({**os.environ, "ONEKERNEL_CACHE_LIMIT": "much"})
    assert "ONEKERNEL_CACHE_LIMIT" in check(record, "cache")["found"]
    assert (check(record, "cache")["state"], code) == ("problem", 1)


def test_a_device_that_does_not_exist_is_told_with_where_it_was_named() -> None:
    record, _ = examine({**os.environ, "ONEKERNEL_DEVICE": "cuda:7"})
    found = check(record, "device")
    assert (found["state"], "cuda:7" in found["found"], "ONEKERNEL_DEVICE" in found["advice"]) == (
        "problem",
        True,
        True,
    )


def test_the_device_is_the_one_that_the_setting_asks_for() -> None:
    environment = stub_driver.environment(gpus=2, name="NVIDIA H200")
    record, _ = examine(environment, emulate=True)
    assert check(record, "device")["found"] == "NVIDIA H200"
    record, _ = examine({**environment, "ONEKERNEL_DEVICE": "emulated"}, emulate=True)
    assert check(record, "device")["found"] == "emulated, as ONEKERNEL_DEVICE=emulated asks"


def test_an_installation_that_is_not_whole() -> None:
    record, code = examine(stub_driver.environment(), hidden=("cuda.bindings",))
    assert "reinstall onekernel" in check(record, "driver")["advice"]
    assert code == 0, "emulated kernels run"


def test_what_the_cache_holds_proves_no_compiler(tmp_path: Path) -> None:
    """A machine that was well, and whose g++ no longer works: the kernel of the first time must not be taken."""
    environment = {**os.environ, "ONEKERNEL_CACHE": str(tmp_path / "cache")}
    record, code = examine(environment)
    assert (check(record, "run emulated")["state"], code) == ("ok", 0)
    broken = tmp_path / "bin" / "g++"
    broken.parent.mkdir()
    version = subprocess.run(["g++", "--version"], capture_output=True, text=True, check=True).stdout.split("\n")[0]
    broken.write_text(f'#!/bin/sh\n[ "$1" = --version ] && echo "{version}" && exit 0\necho "no as" >&2; exit 1\n')
    broken.chmod(0o755)
    record, code = examine({**environment, "PATH": f"{broken.parent}{os.pathsep}{os.environ['PATH']}"})
    assert (check(record, "run emulated")["state"], code) == ("problem", 1)

"""What is built for which GPU, with which NVRTC, for which driver."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import stub_driver
from onekernel.device import host_compiler
from onekernel.errors import InvalidInput
from onekernel.jit.compile import nvrtc
from onekernel.jit.compile.build_id import build_id
from onekernel.jit.compile.target import target_for

KNOWN = ("sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120")
VERSIONS = st.tuples(st.integers(12, 14), st.integers(0, 9))


SPELLED = (*KNOWN, "sm_90a", "sm_100a", "sm_100f", "sm_120a", "sm_120f")


@given(st.sampled_from(SPELLED), VERSIONS, st.none() | VERSIONS)
def test_a_known_architecture_gets_a_cubin_of_exactly_itself(
    arch: str, version: tuple[int, int], driver: tuple[int, int] | None
) -> None:
    """Whatever the driver: a driver older than NVRTC still runs its cubins."""
    target = target_for(arch, known=KNOWN, nvrtc=version, driver=driver)
    assert (target.kind, target.option) == ("cubin", arch)


@pytest.mark.parametrize(
    "arch",
    ["", "90", "sm_", "banana", "sm_9x", "sm_90aa", "sm_80a", "sm_90f", "SM_90", "sm_090", "compute_90", "sm_9\u0660"],
)
def test_what_is_no_architecture_is_refused_before_the_compiler_sees_it(arch: str) -> None:
    with pytest.raises(InvalidInput, match="an architecture such as sm_90"):
        target_for(arch, known=KNOWN, nvrtc=(13, 5), driver=None)


@given(st.integers(121, 200), VERSIONS, st.none() | VERSIONS)
def test_a_newer_architecture_gets_ptx_if_the_driver_can_read_it(
    number: int, version: tuple[int, int], driver: tuple[int, int] | None
) -> None:
    if driver is not None and driver < version:
        with pytest.raises(InvalidInput, match="update the driver"):
            target_for(f"sm_{number}", known=KNOWN, nvrtc=version, driver=driver)
    else:
        target = target_for(f"sm_{number}", known=KNOWN, nvrtc=version, driver=driver)
        assert (target.kind, target.option) == ("ptx", "compute_120")


@pytest.mark.parametrize(
    ("arch", "words"), [("sm_70", "12.9"), ("sm_35", "11.8"), ("sm_30", "10.2"), ("sm_89", "a newer nvidia-")]
)
def test_any_other_architecture_is_refused_with_what_would_do(arch: str, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        target_for(arch, known=KNOWN, nvrtc=(13, 5), driver=(13, 5))


def test_ptx_is_what_nvrtc_makes_for_a_gpu_that_it_does_not_know() -> None:
    binary = nvrtc.compile_cubin("k", 'extern "C" __global__ void k() {}', "sm_199")
    newest = nvrtc.supported_archs()[-1]
    assert f".target {newest}".encode() in binary.data
    assert binary.data.endswith(b"\0")


def test_the_build_is_part_of_the_compilers_name() -> None:
    library = nvrtc.library()
    assert library is not None
    assert nvrtc.build() == (build_id(library) or "")[:32]
    assert nvrtc.build() in nvrtc.compiler_id()


def test_a_library_without_an_identifier_is_told_by_size_and_time(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    library, builds = tmp_path / "libnvrtc.so.13", set()
    monkeypatch.setattr(nvrtc, "library", lambda: library)
    for size, time in ((4, 0), (5, 0), (4, 1)):
        library.write_bytes(b"x" * size)
        os.utime(library, ns=(time, time))
        builds.add(nvrtc.build.__wrapped__())
    assert len(builds) == 3


def linked(folder: Path, identifier: str) -> Path:
    """Link a shared library; its build identifier is the linker's option."""
    library = folder / f"lib{identifier}.so"
    command = [host_compiler.compiler(), "-shared", "-fPIC", "-xc++", "-", f"-Wl,--build-id={identifier}"]
    subprocess.run([*command, "-o", str(library)], input="int f() { return 1; }", text=True, check=True)
    return library


@pytest.mark.parametrize("identifier", ["0x01", "0x0123456789abcdef", "0x" + "5a" * 20])
def test_the_identifier_is_the_one_that_the_linker_was_given(tmp_path: Path, identifier: str) -> None:
    assert build_id(linked(tmp_path, identifier)) == identifier.removeprefix("0x")


def test_two_builds_of_one_layout_differ(tmp_path: Path) -> None:
    """Equal in size and headers, as two builds of a large library can be: only the identifier tells them apart."""
    first, second = (linked(tmp_path, "0x" + byte * 20) for byte in ("11", "22"))
    headers = slice(0, 64 + 4 * 56)
    assert first.stat().st_size == second.stat().st_size
    assert first.read_bytes()[headers] == second.read_bytes()[headers]
    assert build_id(first) != build_id(second)


def test_a_library_without_one_has_none(tmp_path: Path) -> None:
    assert build_id(linked(tmp_path, "none")) is None


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return linked(tmp_path_factory.mktemp("library"), "sha1")


@given(st.integers(0, 1200) | st.none(), st.lists(st.tuples(st.integers(0, 1200), st.integers(0, 255)), max_size=20))
@settings(max_examples=300)
def test_a_damaged_library_has_an_identifier_or_none(
    library: Path, length: int | None, changes: list[tuple[int, int]]
) -> None:
    data, damaged = bytearray(library.read_bytes()[:length]), library.with_name("damaged.so")
    for at, value in changes:
        data[at : at + 1] = bytes([value])
    damaged.write_bytes(data)
    found = build_id(damaged)
    assert found is None or bytes.fromhex(found)


ON_A_GPU = """
import sys
from onekernel import kernel
from onekernel.device import get
from onekernel.errors import OneKernelError
try:
    kernel('extern "C" __global__ void k(float* x) {}', entry="k", parameters=[("x", "float*")], device=get("cuda"))
    print("runs")
except OneKernelError as error:
    print(error)
"""


def on_a_gpu(arch: int, driver: tuple[int, int]) -> str:
    result = stub_driver.python("-c", ON_A_GPU, arch=arch, driver_version=driver[0] * 1000 + driver[1] * 10)
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


def test_an_old_driver_runs_the_cubins_of_a_new_nvrtc() -> None:
    major, _ = nvrtc.version()
    assert on_a_gpu(90, (major, 0)) == "runs"


def test_a_gpu_of_the_future_runs_ptx_on_a_driver_that_is_new_enough() -> None:
    assert on_a_gpu(199, nvrtc.version()) == "runs"


def test_a_gpu_of_the_future_is_refused_on_an_old_driver() -> None:
    major, minor = nvrtc.version()
    if minor == 0:
        major, minor = major - 1, 9
    else:
        minor -= 1
    assert "update the driver" in on_a_gpu(199, (major, minor))


PTX = """
from onekernel.device import get
from onekernel.errors import DeviceError
from onekernel.jit.compile import nvrtc
from onekernel.jit.compile.target import Target
nvrtc.check_arch = lambda arch: Target(arch, "ptx", "compute_90")
binary = nvrtc.compile_cubin("k", 'extern "C" __global__ void k(float* x) {}', "sm_90")
try:
    get("cuda").load(binary.data, "k")
except DeviceError as error:
    print(error.code, error)
"""


def test_ptx_that_is_too_new_is_refused_with_advice() -> None:
    """Error 222, as measured with NVRTC 13.5 on a driver for CUDA 13.0."""
    result = stub_driver.python("-c", PTX, driver_version=12000)
    assert result.stdout.startswith("222 "), result.stderr
    assert "update the driver, or install an nvidia-cuda-nvrtc that is not newer" in result.stdout

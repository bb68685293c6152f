"""What is built for which GPU, with which NVRTC, for which driver."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import stub_driver
from onekernel.errors import InvalidInput
from onekernel.jit.compile import nvrtc
from onekernel.jit.compile.target import target_for

KNOWN = ("sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120")
VERSIONS = st.tuples(st.integers(12, 14), st.integers(0, 9))


@given(st.sampled_from(KNOWN), st.sampled_from(["", "a", "f"]), VERSIONS, st.none() | VERSIONS)
def test_a_known_architecture_gets_a_cubin_of_exactly_itself(
    arch: str, suffix: str, version: tuple[int, int], driver: tuple[int, int] | None
) -> None:
    """Whatever the driver: a driver older than NVRTC still runs its cubins."""
    target = target_for(arch + suffix, known=KNOWN, nvrtc=version, driver=driver)
    assert (target.kind, target.option) == ("cubin", arch + suffix)


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


@pytest.mark.parametrize(("arch", "words"), [("sm_70", "12.9"), ("sm_35", "11.8"), ("sm_89", "a newer nvidia-cuda-")])
def test_any_other_architecture_is_refused_with_what_would_do(arch: str, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        target_for(arch, known=KNOWN, nvrtc=(13, 5), driver=(13, 5))


def test_ptx_is_what_nvrtc_makes_for_a_gpu_that_it_does_not_know() -> None:
    binary = nvrtc.compile_cubin("k", 'extern "C" __global__ void k() {}', "sm_199")
    newest = nvrtc.supported_archs()[-1]
    assert f".target {newest}".encode() in binary.data
    assert binary.data.endswith(b"\0")


def test_the_build_is_part_of_the_compilers_name() -> None:
    assert nvrtc.build() in nvrtc.compiler_id()
    assert nvrtc.build() != "unknown"


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

"""The machine that runs emulated kernels: built once a host, taken from the cache by every later process."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

CODE = """
    import sys
    import numpy as np
    from onekernel.device import host_compiler
    from onekernel.device.emulated import EmulatedDevice
    from onekernel.jit import kernel
    builds, build = [], host_compiler.build
    host_compiler.build = lambda *args, **named: builds.append(named["name"]) or build(*args, **named)
    text = '#include "primitives.cuh"\\nextern "C" __global__ void one(int* y) { y[0] = 1; }'
    y = np.zeros(1, np.int32)
    kernel(text, entry="one", parameters=[("y", "int*")], device=EmulatedDevice()).launch(y, grid=1, block=1)
    assert y == 1
    print(*builds)
"""


def builds(cache: str) -> list[str]:
    """Run a kernel in a fresh process; return what was compiled there."""
    command = [sys.executable, "-W", "ignore", "-c", textwrap.dedent(CODE)]
    environment = {**os.environ, "ONEKERNEL_CACHE": cache}
    return subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout.split()


def test_the_machine_is_built_once_a_host(tmp_path: Path) -> None:
    assert builds(str(tmp_path)) == ["runtime", "one"]
    assert builds(str(tmp_path)) == []


def test_a_damaged_machine_is_built_again(tmp_path: Path) -> None:
    assert builds(str(tmp_path)) == ["runtime", "one"]
    (binary,) = (tmp_path / ".machine").glob("machine.*/kernel.bin")
    content = bytearray(binary.read_bytes())
    content[len(content) // 2] ^= 1
    binary.write_bytes(content)
    assert builds(str(tmp_path)) == ["runtime"]
    assert builds(str(tmp_path)) == []


def test_without_a_cache_it_is_built_in_each_process() -> None:
    assert builds("") == ["runtime", "one"]


PORTABLE = """
    import numpy as np
    from onekernel.device import machine
    from onekernel.device.emulated import EmulatedDevice
    from onekernel.errors import EmulationFault
    from onekernel.jit import kernel
    text = machine.text()
    machine.text = lambda: "#define ONEKERNEL_PORTABLE_FIBRES\\n" + text
    source = '''#include "primitives.cuh"
    extern "C" __global__ void one(float* y) {
      y[threadIdx.x] = shuffle_xor(static_cast<float>(threadIdx.x), 1);
      if (y[64] == 1.0f) return;
      block_barrier();
      if (threadIdx.x == 0) y[64] = 1.0f;
      if (threadIdx.x < 5) block_barrier();
    }'''
    y = np.zeros(65, np.float32)
    one = kernel(source, entry="one", parameters=[("y", "float*")], device=EmulatedDevice(sanitize=True))
    try:
        one.launch(y, grid=1, block=64)
    except EmulationFault as fault:
        assert "threads 0-4 wait at a block barrier (5 of 64 have arrived) at source:7" in str(fault), fault
        one.launch(y, grid=1, block=64)
        assert y[:64].tolist() == [i ^ 1 for i in range(64)]
        print("done")
"""


def test_hosts_of_other_architectures_switch_fibres_by_the_c_library() -> None:
    command = [sys.executable, "-c", textwrap.dedent(PORTABLE)]
    environment = {**os.environ, "ONEKERNEL_CACHE": ""}
    result = subprocess.run(command, check=False, capture_output=True, text=True, env=environment)
    assert result.stdout.split() == ["done"], result.stderr

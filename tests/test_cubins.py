"""Cubins for every supported architecture, built without a GPU: no spills, and accesses as wide as the machine has."""

from __future__ import annotations

import os
import re
import subprocess
from importlib.util import find_spec
from pathlib import Path

import pytest

from kernel_cases import layer_norm, residual_gelu
from onekernel.device.parts import arch_number, find
from onekernel.errors import InvalidInput
from onekernel.fusion.kernel import Build, compile_for
from onekernel.jit.compile import nvrtc

ARCHS = ["sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120"]
SHAPES = [
    (4096, 64), (4096, 192), (4096, 256), (16, 1024), (8192, 1024), (32768, 4096), (8, 16384), (8, 65536),
    (1000, 1001), (1000, 32766), (16, 30001), (1, 192, 97), (1, 192, 4096), (2, 512, 300), (1, 4096, 64),
]  # fmt: skip


def build(arch: str, shape: tuple[int, ...], dtype: str, make: object) -> Build:
    from dataclasses import replace

    chain = make(shape[1], axis=1, rank=len(shape), dtype=dtype)  # type: ignore[operator]
    return compile_for(replace(chain, sample_shape=shape), find(arch))


def disassembly(cubin: bytes, folder: Path) -> str:
    spec = find_spec("nvidia.cu13")
    assert spec is not None
    assert spec.submodule_search_locations, "the dev extra brings cuobjdump"
    tools = Path(next(iter(spec.submodule_search_locations))) / "bin"
    (folder / "kernel.cubin").write_bytes(cubin)
    path = f"{tools}{os.pathsep}{os.environ['PATH']}"  # cuobjdump calls nvdisasm
    command = [str(tools / "cuobjdump"), "-sass", str(folder / "kernel.cubin")]
    return subprocess.run(command, capture_output=True, text=True, check=True, env={"PATH": path}).stdout


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("make", [layer_norm, residual_gelu])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_nothing_spills(arch: str, make: object, dtype: str) -> None:
    for shape in SHAPES:
        used = build(arch, shape, dtype, make).binary.resources
        assert (used.spill_bytes, used.stack_bytes) == (0, 0), f"{shape}: {used}"
        assert 0 < used.registers <= 255


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("shape", [(4096, 256), (32768, 4096)], ids=str)
def test_full_tensors_move_in_the_widest_accesses(
    arch: str, dtype: str, shape: tuple[int, ...], tmp_path: Path
) -> None:
    built = build(arch, shape, dtype, layer_norm)
    text = disassembly(built.binary.data, tmp_path)
    loads, stores = (re.findall(rf"{name}\.E[.\w]*?\.(128|256)", text) for name in ("LDG", "STG"))
    wide = "256" if arch_number(arch) >= 100 else "128"
    items = built.schedule.items
    assert loads.count(wide) == 3 * items, "x, scale and shift: one access a pack each"
    assert stores.count(wide) == items
    assert len(re.findall(r"\bLDG\b", text)) == 3 * items, "no narrow load beside them"
    assert not re.search(r"\b(LDL|STL)\b", text)


@pytest.mark.parametrize("arch", ["sm_90", "sm_100", "sm_120"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_memory_is_touched_only_after_the_predecessor_ended(arch: str, shape: tuple[int, ...], tmp_path: Path) -> None:
    """A kernel may start while the one before it still writes; ACQBULK is where it waits for that one."""
    built = build(arch, shape, "float32", residual_gelu)
    text = disassembly(built.binary.data, tmp_path)
    assert text.count("ACQBULK") == text.count("PREEXIT") == int(built.request.overlap)
    if built.request.overlap:
        access = re.search(r"\b(LD|ST|LDG|STG|ATOM\w*|RED)\b[^;]*desc", text)
        assert access is not None
        assert text.index("PREEXIT") < text.index("ACQBULK") < access.start()


def test_small_blocks_overlap() -> None:
    assert build("sm_90", (4096, 256), "float32", layer_norm).request.overlap
    assert not build("sm_90", (8, 65536), "float32", layer_norm).request.overlap


def test_older_architectures_do_not_overlap(tmp_path: Path) -> None:
    built = build("sm_89", (4096, 256), "float32", layer_norm)
    assert not built.request.overlap
    assert "ACQBULK" not in disassembly(built.binary.data, tmp_path)


def test_a_mangled_pack_width_would_be_seen(tmp_path: Path) -> None:
    """The check above, on a row length that allows only 8-byte accesses."""
    text = disassembly(build("sm_90", (64, 258), "float32", layer_norm).binary.data, tmp_path)
    assert "LDG.E.64" in text
    assert "LDG.E.128" not in text


def test_unknown_architectures_are_refused() -> None:
    with pytest.raises(InvalidInput, match="sm_70"):
        nvrtc.check_arch("sm_70")

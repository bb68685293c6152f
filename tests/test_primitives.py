"""The primitives on both sides: one set of names and signatures, and the instructions that each was written for."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from onekernel.device.machine import KERNELS
from onekernel.device.parts import arch_number
from onekernel.errors import CompileError
from onekernel.jit.compile.nvrtc import compile_cubin
from test_cubins import disassembly

FILES = sorted(path.relative_to(KERNELS / "cuda").as_posix() for path in (KERNELS / "cuda").rglob("*.cuh"))
ARCHS = ["sm_75", "sm_80", "sm_89", "sm_90", "sm_100", "sm_120"]

# ---- names and signatures

_HELPERS = re.compile(r"^namespace \w+ \{$.*?^\}  // namespace \w+$", re.DOTALL | re.MULTILINE)
_FUNCTION = re.compile(
    r"^(?:template <(?P<template>.*)>\n)?ONEKERNEL_(?:DEVICE|PRIMITIVE) (?P<result>[\w<>, &*]+?) ?(?P<name>\w+)\("
    r"(?P<parameters>[^{;]*?)\) \{",
    re.MULTILINE,
)
_PLAIN = re.compile(r"^(?:template <.*>\n)?(?:struct|enum class|constexpr) [^;]*?(?:;|\n};)", re.MULTILINE)
_NO_TWIN = {"rsqrtf"}  # CUDA has it built in


def signatures(text: str) -> list[str]:
    """List everything that a header offers outside its helper namespaces, in one spelling."""
    text = _HELPERS.sub("", text).replace("[[maybe_unused]] ", "")
    found = [
        f"{m['template'] or ''} | {m['result']} {m['name']}({' '.join(m['parameters'].split())})"
        for m in _FUNCTION.finditer(text)
        if m["name"] not in _NO_TWIN
    ]
    plain = [" ".join(match[0].split()) for match in _PLAIN.finditer(text)]
    return sorted(found + [item for item in plain if not re.search(r"kArchitecture =|kAccessBytes|kSpin|kFree", item)])


def test_there_are_headers_and_functions() -> None:
    assert len(FILES) >= 6
    assert sum(len(signatures((KERNELS / "cuda" / name).read_text())) for name in FILES) > 50


@pytest.mark.parametrize("name", FILES)
def test_both_roots_offer_the_same(name: str) -> None:
    cuda, emulated = ((KERNELS / root / name).read_text() for root in ("cuda", "emulated"))
    assert signatures(cuda) == signatures(emulated)


def test_a_twin_that_differs_would_be_seen() -> None:
    text = (KERNELS / "cuda/primitives/warp.cuh").read_text()
    changes = [
        ("int distance", "unsigned distance"),
        ("shuffle_up(", "shuffle_upwards("),
        ("bool warp_all", "int warp_all"),
    ]
    for old, new in changes:
        assert old in text
        assert signatures(text.replace(old, new)) != signatures(text)


# ---- instructions

FRAGMENTS = (
    "auto& a = *reinterpret_cast<MatrixA<T>*>(y); auto& b = *reinterpret_cast<MatrixB<T>*>(y);"
    "MatrixD d{}; multiply_add(d, a, b); y[0] = d.at[0];"
)

# name -> (header, body, pattern of machine code, first architecture that compiles it, first one that has the pattern).
# Values differ from lane to lane: to shuffle equal ones is no work, and the compiler knows it.
USES: dict[str, tuple[str, str, str, int, int]] = {
    "shuffle_xor": ("warp", "y[0] = shuffle_xor(y[i], 5);", r"SHFL\.BFLY", 75, 75),
    "shuffle_up": ("warp", "y[0] = shuffle_up(y[i], 5);", r"SHFL\.UP", 75, 75),
    "shuffle_down": ("warp", "y[0] = shuffle_down(y[i], 5);", r"SHFL\.DOWN", 75, 75),
    "shuffle_index": ("warp", "y[0] = shuffle_index(y[i], y[2]);", r"SHFL\.IDX", 75, 75),
    "shuffle 64": ("warp", "const auto v = shuffle_xor(1ll * y[i] * y[2], 1); y[0] = v; y[1] = v >> 32;",
                   r"SHFL\.BFLY[\s\S]*SHFL\.BFLY", 75, 75),
    "shuffle mask": ("warp", "if (y[5]) y[0] = shuffle_xor(y[i] * 0.5f, 1, 0xffu) > 1;", r"SHFL\.BFLY", 75, 75),
    "warp_largest": ("warp", "y[0] = warp_largest(y[i]);", r"REDUX\.MAX|CREDUX\.MAX", 75, 80),
    "warp_smallest": ("warp", "y[0] = warp_smallest(y[i]);", r"REDUX\.MIN|CREDUX\.MIN", 75, 80),
    "warp_total": ("warp", "y[0] = warp_total(y[i]);", r"REDUX\.SUM", 75, 80),
    "ballot": ("warp", "y[0] = warp_ballot(y[1] > 2);", r"VOTE", 75, 75),
    "any": ("warp", "y[0] = warp_any(y[i] > 2);", r"VOTE", 75, 75),
    "all": ("warp", "y[0] = warp_all(y[i] > 2);", r"VOTE", 75, 75),
    "warp_barrier": ("warp", "y[i] = 1; warp_barrier(0xffu); y[1] = y[2];", r"WARPSYNC|NOP", 75, 75),
    "lane_index": ("warp", "y[0] = lane_index();", r"SR_LANEID", 75, 75),
    "named_barrier": ("wait", "named_barrier(3, 64);", r"BAR\.SYNC\S* 0x3, 0x40", 75, 75),
    "named_barrier_arrive": ("wait", "named_barrier_arrive(3, 64);", r"BAR\.ARV\S* 0x3, 0x40", 75, 75),
    "clock_ticks": ("wait", "y[0] = clock_ticks();", r"SR_CLOCKLO", 75, 75),
    "let_pass": ("wait", "let_pass(y[0], 400);", r"SR_CLOCKLO", 75, 75),
    "spin_until": ("wait", 'spin_until([&] { return atomicAdd(y, 0) > 3; }, "three");', r"SR_GLOBALTIMER", 75, 75),
    "spin_together": ("wait", 'spin_together([&] { return atomicAdd(y, 0) > 3; }, "three");', r"VOTE", 75, 75),
    "spin_together that gives up": (
        "wait", 'spin_together([&] { return atomicAdd(y, 0) > 3; }, "three", 9u, [&] { y[1] = 1; });', r"VOTE", 75, 75
    ),
    "trap": ("wait", 'spin_until([&] { return atomicAdd(y, 0) > 3; }, "three");', r"BPT\.TRAP", 75, 75),
    "atomic_add": ("atomic", "atomic_add(y, 3); y[1] = atomic_add(y, 3);", r"RED[\s\S]*ATOM", 75, 75),
    "atomic_add float": ("atomic", "atomic_add(reinterpret_cast<float*>(y), 0.5f);", r"RED.*F32", 75, 75),
    "atomic_add shared": ("atomic", "atomic_add(&shared_storage<int>(), y[1]);", r"ATOMS", 75, 75),
    "atomic_min": ("atomic", "atomic_min(y, y[1]);", r"RED.*MIN", 75, 75),
    "atomic_max": ("atomic", "atomic_max(y, y[1]);", r"RED.*MAX", 75, 75),
    "atomic_exchange": ("atomic", "y[1] = atomic_exchange(y, 2);", r"ATOMG.*EXCH", 75, 75),
    "atomic_compare_exchange": ("atomic", "y[1] = atomic_compare_exchange(y, 2, 3);", r"ATOMG.*CAS", 75, 75),
    "load_acquire": ("atomic", "y[1] = load_acquire(y);", r"LD\S*\.STRONG\.GPU", 75, 75),
    "load_acquire block": ("atomic", "y[1] = load_acquire<Scope::block>(y);", r"LD\S*\.STRONG\.(SM|CTA)", 75, 75),
    "store_release": ("atomic", "store_release(y, 1);", r"MEMBAR\S*GPU[\s\S]*ST\S*\.STRONG\.GPU", 75, 75),
    "store_release block": ("atomic", "store_release<Scope::block>(y, 1);", r"ST\S*\.STRONG\.(SM|CTA)", 75, 75),
    "add_release": ("atomic", "add_release(y, 1);", r"MEMBAR\S*GPU[\s\S]*(RED|ATOM)\S*\.STRONG\.GPU", 75, 75),
    "load_relaxed": ("atomic", "const auto w = load_relaxed<4>(reinterpret_cast<unsigned*>(y)); "
                     "y[9] = w.at[0] + w.at[1] + w.at[2] + w.at[3];", r"LDG\S*\.128\S*\.STRONG\.GPU", 75, 75),
    "fence": ("atomic", "y[i] = 1; fence(); y[1] = y[2];", r"MEMBAR\S*GPU", 75, 75),
    "store_relaxed": ("atomic", "Vector<unsigned, 2> w; w.at[0] = i; w.at[1] = y[1]; "
                      "store_relaxed(reinterpret_cast<unsigned*>(y), w);", r"ST\S*\.64\S*\.STRONG\.GPU", 75, 75),
    "words of 64 bits": ("atomic", "auto* w = reinterpret_cast<long long*>(y); "
                         "store_release(w, load_acquire(w) + add_release(w + 1, 2ll));",
                         r"LD\S*\.64\.STRONG\.GPU", 75, 75),
    "grid_barrier": ("../grid_barrier", "grid_barrier(y);", r"BAR\.SYNC[\s\S]*STRONG\.GPU[\s\S]*BAR\.SYNC", 75, 75),
    "dynamic_storage": ("warp", "s[i] = y[1];", r"\bSTS\b", 75, 75),
    "copy_async 16": ("copy", "copy_async<16>(s, y);", r"LDGSTS\.E\.\S*128", 75, 80),
    "copy_async 8": ("copy", "copy_async<8>(s, y);", r"LDGSTS\.E\.64", 75, 80),
    "copy_async 4": ("copy", "copy_async<4>(s, y);", r"LDGSTS\.E\b", 75, 80),
    "copy_wait": ("copy", "copy_async<4>(s, y); copy_commit(); copy_wait<2>();",
                  r"LDGDEPBAR[\s\S]*DEPBAR\.LE SB0, 0x2", 75, 80),
    "mbarrier": ("copy", "auto& b = shared_storage<Mbarrier>(); "
                 "mbarrier_init(b, 3); mbarrier_arrive(b); mbarrier_wait(b, 1);",
                 r"SYNCS\.EXCH[\s\S]*SYNCS\.ARRIVE[\s\S]*SYNCS\.PHASECHK\S*TRYWAIT", 90, 90),
    "copy_bulk": ("copy", "auto& b = shared_storage<Mbarrier>(); "
                  "mbarrier_arrive_expecting(b, 64); copy_bulk(s, y, 64, b);", r"UBLKCP", 90, 90),
    "mbarrier_wait_together": ("copy", "auto& b = shared_storage<Mbarrier>(); mbarrier_wait_together(b, 1);",
                               r"SYNCS\.PHASECHK\S*TRYWAIT[\s\S]*VOTE", 90, 90),
    "copy_bulk_hinted": ("copy", "auto& b = shared_storage<Mbarrier>(); "
                         "copy_bulk_hinted(s, y, 64, b, evict_first());", r"UBLKCP\S* .*desc", 90, 90),
    "fence_copies": ("copy", "y[i] = 1; fence_copies();", r"FENCE\.VIEW\.ASYNC", 90, 90),
    "prefetch_bulk": ("copy", "prefetch_bulk(y, 256);", r"UBLKPF", 90, 90),
    "evict_first": ("copy", "y[0] = evict_first() >> 32;", r"0x12f00000|0x120\b", 90, 90),
    "multiply_add": ("tensor_core", FRAGMENTS.replace("T>", "float16>"), r"HMMA\.16816\.F32", 75, 80),
    "multiply_add sm_75": ("tensor_core", FRAGMENTS.replace("T>", "float16>"), r"HMMA\.(1688|16816)\.F32", 75, 75),
    "multiply_add bfloat16": ("tensor_core", FRAGMENTS.replace("T>", "bfloat16>"), r"HMMA\.16816\.F32\.BF16", 80, 80),
    "load_matrices": ("tensor_core", "unsigned r[4]; load_matrices(r, s + 4 * i); y[0] = r[0] + r[3];",
                      r"LDSM\.16\.M88\.4", 75, 75),
    "load_matrices transposed": ("tensor_core", "unsigned r[2]; load_matrices<2, true>(r, s + 4 * i);"
                                 " y[0] = r[0] + r[1];",
                                 r"LDSM\.16\.MT88\.2", 75, 75),
}  # fmt: skip


def text_of(uses: Iterable[str]) -> str:
    """Write one text with a kernel for each use, named use_N by its place in the table."""
    names, numbers = list(uses), {use: number for number, use in enumerate(USES)}
    headers = {f"primitives/{USES[use][0]}.cuh".replace("primitives/../", "") for use in names}
    includes = [f'#include "{header}"' for header in ("primitives.cuh", *sorted(headers))]
    start = "const int i = threadIdx.x; auto* s = dynamic_storage<int>();"
    kernels = [f'extern "C" __global__ void use_{numbers[use]}(int* y) {{ {start} {USES[use][1]} }}' for use in names]
    return "\n".join([*includes, *kernels, ""])


@cache
def machine_code(arch: str) -> dict[str, str]:
    """Return the machine code of every use that an architecture compiles."""
    uses = [use for use, (*_, compiles, _) in USES.items() if arch_number(arch) >= compiles]
    with TemporaryDirectory() as folder:
        code = disassembly(compile_cubin("use", text_of(uses), arch).data, Path(folder))
    parts = re.split(r"Function : use_(\d+)\n", code)[1:]
    return {list(USES)[int(number)]: part for number, part in zip(parts[::2], parts[1::2], strict=True)}


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("use", USES)
def test_the_instruction_is_there(use: str, arch: str) -> None:
    _, _, pattern, compiles, has = USES[use]
    if arch_number(arch) < compiles:
        with pytest.raises(CompileError, match=rf"needs? sm_{compiles}; use "):
            compile_cubin("use", text_of([use]), arch)
    else:
        code = machine_code(arch)[use]
        assert bool(re.search(pattern, code)) == (arch_number(arch) >= has), code


def test_every_primitive_is_used() -> None:
    everything = " ".join(body for _, body, *_ in USES.values())
    for name in FILES:
        if name == "primitives.cuh":
            continue  # the kernels of the package use those
        for item in signatures((KERNELS / "cuda" / name).read_text()):
            function = re.search(r"\| .*?(\w+)\(", item)
            assert function is None or function[1] in everything, item

"""What `EmulatedDevice(sanitize=True)` finds in accesses that look innocent, and that it is silent on right kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from emulation import ORDERS, orders, small_kernel
from kernel_cases import CASES, Case, Machine, check, residual_gelu
from onekernel.device.emulated import EmulatedDevice, Order
from onekernel.errors import EmulationFault


def run(body: str, *, block: int = 64, grid: int = 1, parameters: str = "int* y", **asked: Any) -> np.ndarray[Any, Any]:
    """Run a kernel with one or two arrays of 64 numbers under the sanitizer; the body begins at source:2."""
    arrays = [np.arange(64, dtype=np.int32) for _ in parameters.split(",")]
    small_kernel(body, parameters, sanitize=True, **asked).launch(*arrays, grid=grid, block=block)
    return arrays[0]


def fault_of(body: str, **asked: Any) -> str:
    with pytest.raises(EmulationFault) as caught:
        run(body, **asked)
    return str(caught.value)


def has(message: str, *pieces: str) -> bool:
    assert [piece for piece in pieces if piece not in message] == [], message
    return True


SHARED = (
    "struct Shared { int at[64]; };\nauto& s = shared_storage<Shared>().at;\nconst int i = threadIdx.x;\n"  # 3 lines
)


# ---- addresses


def test_one_row_too_many() -> None:
    message = fault_of("const int i = threadIdx.x;\ny[i] = y[i + 1];")
    assert has(message, "4-byte read out of bounds (operand 0 at +256 of 256 bytes) at source:3 (block 0, thread 63)")


def test_a_vector_that_reaches_over_the_end() -> None:
    message = fault_of("y[0] = load_vector<4>(y + 60 + 4 * threadIdx.x).at[0];", block=2)
    assert has(message, "out of bounds (operand 0 at +256 of 256 bytes) at source:2 (block 0, thread 1)")


def test_a_write_before_the_array() -> None:
    message = fault_of("y[static_cast<int>(threadIdx.x) - 1] = 0;", order=Order.DESCENDING)
    assert has(message, "4-byte write out of bounds (operand 0 at -4 of 256 bytes) at source:2 (block 0, thread 0)")


def test_an_address_that_is_nothing() -> None:
    assert has(fault_of("y[0] = *reinterpret_cast<int*>(64);"), "read out of bounds (address 0x40, no operand)")


def test_an_array_that_nobody_may_write() -> None:
    y = np.zeros(4, np.int32)
    y.flags.writeable = False
    kernel = small_kernel("const_cast<int*>(y)[1] = 1;", "const int* y", sanitize=True)
    with pytest.raises(EmulationFault, match=r"write to read-only memory \(operand 0 at \+4 of 16 bytes\) at source:2"):
        kernel.launch(y, grid=1, block=1)


def test_shared_memory_past_its_end() -> None:
    message = fault_of(SHARED + "s[i + 1] = i;")
    assert has(
        message, "outside of what the block has: shared memory + 256 of block 0 at source:5 (block 0, thread 63)"
    )
    assert has(
        fault_of("dynamic_storage<int>()[threadIdx.x] = 1;", shared=64), "dynamic shared memory + 64", "thread 16"
    )


def test_a_cast_that_breaks_the_alignment() -> None:
    """No primitive is called here: g++ itself checks what the type asks for."""
    body = "using Four = Vector<int, 4>;\n*reinterpret_cast<Four*>(y) = *reinterpret_cast<const Four*>(y + 1);"
    message = fault_of(body, block=1)
    assert has(message, "misaligned access, 16 bytes of alignment are expected (operand 0 at +4 of 256", "at source:3")


def test_a_plain_access_before_the_predecessor_ended() -> None:
    message = fault_of("const int first = y[0];\nawait_predecessor();\ny[1] = first;", overlap=True)
    assert has(message, "memory access before await_predecessor at source:2")
    run("const int i = threadIdx.x;\nawait_predecessor();\ny[i] = i;", overlap=True)


# ---- races on shared memory


@pytest.mark.parametrize("order", ORDERS)
def test_a_missing_barrier_is_a_race_in_every_order(order: Order) -> None:
    message = fault_of(SHARED + "s[i] = i;\ny[i] = s[i ^ 32];", order=order)
    lines = ("race on shared memory + ", "write by thread", "no barrier between", "source:5", "source:6")
    assert has(message, *(lines if "race" in message else ("read of what nobody wrote", "source:6")))


def test_both_lines_of_a_race_are_named() -> None:
    message = fault_of(SHARED + "s[i] = i;\nblock_barrier();\ny[i] = s[i ^ 1];\ns[i] = 2;")
    assert has(
        message, "write by thread 32 at source:8 and, with no barrier between, read at source:7 (block 0, thread 33"
    )
    assert has(message, "source:7: y[i] = s[i ^ 1];", "source:8: s[i] = 2;", "race on shared memory + 128 of block 0")


def test_a_word_that_all_threads_change() -> None:
    body = SHARED + "if (i == 0) s[0] = 0;\nblock_barrier();\ns[0] += i;"
    assert has(fault_of(body), "write by thread 63 at source:7 and, with no barrier between, read at source:7")


def test_an_atomic_operation_does_not_order_others() -> None:
    body = SHARED + "s[i] = 0;\nblock_barrier();\natomic_add(&s[0], 1);\ny[i] = s[0];"
    assert has(fault_of(body), "read by thread 63 at source:8 and, with no barrier between, write at source:7")


def test_a_shuffle_orders_no_memory_but_a_warp_barrier_does() -> None:
    body = SHARED + "s[i] = i;\n{}\ny[i] = s[i ^ 1];"
    message = fault_of(body.replace("{}", "shuffle_xor(i, 1);"))
    assert has(message, "race on shared memory", "at source:5", "read at source:7")
    for order, seed in orders():
        result = run(body.replace("{}", "warp_barrier();"), order=order, seed=seed)
        np.testing.assert_array_equal(result, np.arange(64) ^ 1)


def test_a_warp_barrier_orders_no_other_warp() -> None:
    assert has(fault_of(SHARED + "s[i] = i;\nwarp_barrier();\ny[i] = s[i ^ 32];", order=Order.DESCENDING), "source:7")


def test_named_barriers_order_those_that_meet() -> None:
    pairs = "const int pair = i / 64;\ns[i % 64] = i;\nnamed_barrier(1 + pair, 64);\ny[i % 64] = s[(i ^ 63) % 64];"
    result = run(SHARED + pairs, block=64)
    np.testing.assert_array_equal(result, np.arange(64) ^ 63)
    assert has(fault_of(SHARED + pairs, block=128), "race on shared memory", "source:6")


PASS_ON = """
if (i == 0) { flag = 0; }
block_barrier();
if (i == 0) { s[0] = 7; {release} }
if (i == 32) { spin_until([&] { return {look} == 1; }, "the flag"); y[0] = s[0]; }"""
FLAG = "struct Flag { int at; };\nint& flag = shared_storage<Flag>().at;\n"


def passed_on(release: str, look: str) -> str:
    return SHARED + FLAG + PASS_ON.replace("{release}", release).replace("{look}", look)


@pytest.mark.parametrize("scope", ["<Scope::block>", ""])
def test_release_and_acquire_order_memory(scope: str) -> None:
    for order, seed in orders():
        body = passed_on(f"store_release{scope}(&flag, 1);", f"load_acquire{scope}(&flag)")
        assert run(body, order=order, seed=seed)[0] == 7


def test_relaxed_words_do_not() -> None:
    message = fault_of(passed_on("atomic_exchange(&flag, 1);", "load_acquire(&flag)"))
    assert has(message, "race on shared memory + 0 of block 0: write by thread 0 at source:10", "read at source:11")
    message = fault_of(passed_on("store_release(&flag, 1);", "atomic_add(&flag, 0)"))
    assert has(message, "race on shared memory + 0 of block 0: write by thread 0 at source:10", "read at source:11")
    assert has(fault_of(passed_on("flag = 1;", "load_acquire(&flag)")), "race on shared memory + 256 of block 0")


def test_a_cluster_barrier_orders_blocks() -> None:
    body = """struct Shared { float at[64]; };
    auto& s = shared_storage<Shared>().at;
    const int i = threadIdx.x, other = 1 - cluster_rank();
    s[i] = static_cast<float>(i + 100 * cluster_rank());
    cluster_barrier();
    const float seen = load_remote(s + i, other);
    {}
    s[i] = 0.0f;
    y[i] = static_cast<int>(seen);
    cluster_barrier();"""
    run(body.replace("{}", "cluster_barrier();"), grid=2, cluster=2)
    message = fault_of(body.replace("{}", ""), grid=2, cluster=2)
    assert has(message, "race on shared memory", "read from another block", "at source:7", "at source:9")
    message = fault_of(body.replace("{}", "").replace("cluster_barrier();", "", 1), grid=2, cluster=2)
    assert has(message, "at source:7")


def test_a_read_of_what_nobody_wrote() -> None:
    assert has(fault_of(SHARED + "y[i] = s[i];"), "4-byte read of what nobody wrote: shared memory + 0 of block 0")


def test_a_grid_barrier_is_no_race() -> None:
    body = SHARED + "for (int n = 0; n < 3; ++n) {\ns[i] = n;\ngrid_barrier(y);\nz[i] = s[i ^ 63];\ngrid_barrier(y);\n}"
    for order, seed in orders():
        arrays = [np.zeros(64, np.int32) for _ in range(2)]
        kernel = small_kernel(body, "int* y, int* z", sanitize=True, order=order, seed=seed, cooperative=True)
        kernel.launch(*arrays, grid=3, block=64)


# ---- no false alarm


def small_cases() -> list[Case]:
    return [case for case in CASES if np.prod(case.shape) <= 20_000]


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_every_kernel_is_clean(order: Order, dtype: str) -> None:
    machine = Machine(EmulatedDevice(order=order, seed=5, sanitize=True))
    for case in small_cases():
        chain = residual_gelu(case.shape[1], axis=1, rank=len(case.shape), dtype=dtype)
        _, comparisons = check(chain, case, machine)
        assert all(item.passed for item in comparisons), "\n".join(map(str, comparisons))


@pytest.mark.parametrize("order", ORDERS)
def test_rows_of_several_blocks_are_clean(order: Order) -> None:
    machine = Machine(EmulatedDevice(order=order, seed=5, sanitize=True))
    for shape in ((1, 20000), (1, 65535), (1, 256, 1700)):
        chain = residual_gelu(shape[1], axis=1, rank=len(shape))
        _, comparisons = check(chain, Case(shape), machine)
        assert all(item.passed for item in comparisons), "\n".join(map(str, comparisons))


def test_other_architectures_are_clean() -> None:
    for arch in ("sm_75", "sm_120"):
        machine = Machine(EmulatedDevice(arch, sanitize=True))
        for shape in ((3, 192), (1, 4096), (2, 192, 37)):
            check(residual_gelu(shape[1], axis=1, rank=len(shape), dtype="float16"), Case(shape), machine)

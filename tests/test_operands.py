"""What a launch takes for a tensor: numpy, DLPack and `__cuda_array_interface__`, read as they are or refused."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kernel_cases import emulated, layer_norm, residual_gelu
from onekernel import kernel
from onekernel.device import buffer, machine
from onekernel.device.emulated import EmulatedDevice
from onekernel.errors import CompileError, InvalidInput, InvalidOperand
from onekernel.fusion.kernel import ChainKernel
from onekernel.fusion.oracle import run_chain
from onekernel.jit import KernelRequest, Parameter, compile_request

RANDOM = np.random.default_rng(5)


def operands(rows: int = 4) -> list[Any]:
    return [RANDOM.standard_normal(size).astype(np.float32) for size in ((rows, 64), (64,), (64,))]


def norm() -> ChainKernel:
    return ChainKernel(layer_norm(64, axis=1, rank=2), EmulatedDevice())


@dataclass
class Dlpack:
    """An object that shows nothing but the DLPack protocol."""

    array: Any

    def __dlpack__(self) -> Any:
        return self.array.__dlpack__()


class Interface:
    """An object that shows nothing but `__cuda_array_interface__`."""

    def __init__(self, **interface: Any) -> None:
        self.__cuda_array_interface__ = {"version": 3, "data": (4096, False), "strides": None, **interface}


# ---- layout


@pytest.mark.parametrize(
    ("array", "dense"),
    [
        (np.zeros((3, 1), np.float32).T, True),  # strides of axes of length 1 mean nothing
        (np.zeros((4, 3, 6), np.float32)[:1].transpose(1, 0, 2), True),
        (np.zeros((0, 8), np.float32)[:, ::2], True),
        (np.zeros((), np.float32), True),
        (np.zeros((4, 6), np.float32).T, False),
        (np.zeros((4, 6), np.float32)[:, :1], False),
        (np.zeros((4, 6), np.float32)[::-1], False),
        (np.broadcast_to(np.zeros(6, np.float32), (4, 6)).copy()[::2], False),
    ],
)
def test_every_protocol_agrees_with_numpy_on_what_is_dense(array: Any, dense: bool) -> None:
    shown = Interface(shape=array.shape, typestr=array.dtype.str, strides=array.strides)
    assert {buffer.view(item).contiguous for item in (array, Dlpack(array), shown)} == {dense}
    assert buffer.view(Dlpack(array)).address == array.ctypes.data  # in place, not a copy


def test_dtypes_are_read_by_every_protocol() -> None:
    for name in set(buffer.ITEM_BYTES) - {"bfloat16"}:
        array = np.zeros(3, name)
        shown = Interface(shape=(3,), typestr=array.dtype.str)
        assert {buffer.view(item).dtype for item in (array, Dlpack(array), shown)} == {name}


# ---- what would be read or written wrongly is refused


def foreign_order(x: Any) -> Any:
    return x.astype(x.dtype.newbyteorder())


def off_by_a_byte(x: Any) -> Any:
    memory = np.zeros(x.nbytes + 1, np.uint8)
    return memory[1:].view(x.dtype).reshape(x.shape)


@pytest.mark.parametrize(("spoil", "says"), [(foreign_order, "dtype float32"), (off_by_a_byte, "multiple of 4 bytes")])
def test_memory_that_no_kernel_can_read_is_refused(spoil: Any, says: str) -> None:
    x, scale, shift = operands()
    with pytest.raises(InvalidOperand, match=f"{says}.* for parameter 'in0'"):
        norm()([spoil(x), scale, shift])


def test_read_only_memory_is_read_and_never_written() -> None:
    given = operands()
    result = np.zeros((4, 64), np.float32)
    for array in (*given, result):
        array.flags.writeable = False
    (computed,) = norm()(given)
    assert np.isfinite(computed.numpy()).all()
    with pytest.raises(InvalidOperand, match="writable memory for parameter 'out0'"):
        norm()(given, outputs=[result])
    assert not result.any()
    assert not buffer.view(Interface(shape=(3,), typestr="<f4", data=(4096, True))).writable


def test_a_producer_that_refuses_is_quoted() -> None:
    array = np.zeros(3, np.float32)
    array.flags.writeable = False
    with pytest.raises(InvalidInput, match="readonly"):
        buffer.view(Dlpack(array))


@pytest.mark.parametrize("shape", [(3, 64), (64, 4), (256,), (4, 64, 1), (5, 64), (0, 64)])
def test_results_of_another_shape_are_refused(shape: tuple[int, ...]) -> None:
    """A result that is too small would be written beyond its end."""
    whole = np.zeros(512, np.float32)
    with pytest.raises(InvalidOperand, match="result 'out0'"):
        norm()(operands(), outputs=[whole[: int(np.prod(shape))].reshape(shape)])
    assert not whole.any()


@pytest.mark.parametrize("count", [0, 2])
def test_results_are_counted(count: int) -> None:
    with pytest.raises(InvalidOperand, match=f"1 outputs of layer_norm, got {count}"):
        norm()(operands(), outputs=[np.zeros((4, 64), np.float32)] * count)


def test_a_result_in_the_memory_of_an_operand_is_refused() -> None:
    """In place, the epilogue of a residual chain would read what its prologue has written."""
    memory = np.zeros(1024, np.float32)
    x, scale, shift = operands()
    inside = memory[:256].reshape(4, 64)
    inside[...] = x
    for given, result in [
        ([inside, scale, shift], inside),
        ([inside, scale, shift], memory[64:320].reshape(4, 64)),  # one row further
        ([x, memory[255:319], shift], inside),  # one element of the scale
    ]:
        with pytest.raises(InvalidOperand, match="memory of its own for the result 'out0'"):
            norm()(given, outputs=[result])
    assert np.array_equal(inside, x)
    norm()([inside, scale, shift], outputs=[memory[256:512].reshape(4, 64)])  # neighbours do not overlap


def test_two_results_in_the_same_memory_are_refused() -> None:
    chain = residual_gelu(64, axis=1, rank=2)
    machine = emulated()
    sizes = {"full": (4, 64), "row": (4, 1), "channel": (64,), "scalar": (1,)}
    given = [machine.put(np.ones(sizes[item.kind]), item.dtype, 0) for item in chain.operands]
    result = np.zeros((4, 64), np.float32)
    with pytest.raises(InvalidOperand, match="memory of its own for the result 'out1'"):
        ChainKernel(chain, machine.device)(given, outputs=[result, result])


# ---- numbers and sizes

SCALE = """
#include "primitives.cuh"
extern "C" __global__ void scale(const float* x, float* y, float factor, int count) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) y[i] = factor * x[i];
}
"""
PARAMETERS = [("x", "const float*"), ("y", "float*"), ("factor", "float"), ("count", "int")]


def scale(**launch: Any) -> Any:
    x, y = np.arange(64, dtype=np.float32), np.zeros(64, np.float32)
    factor, count = launch.pop("factor", 2.0), launch.pop("count", 64)
    built = kernel(SCALE, entry="scale", parameters=PARAMETERS, device=EmulatedDevice())
    built.launch(x, y, factor, count, **{"grid": 2, "block": 32, **launch})
    return y


@pytest.mark.parametrize(
    "launch",
    [
        {"count": np.int64(64)},
        {"factor": np.float32(2)},
        {"factor": np.int32(2)},
        {"grid": np.int64(2)},
        {"grid": [2], "block": (np.int32(32), 1)},
    ],
)
def test_numpy_numbers_are_numbers(launch: dict[str, Any]) -> None:
    assert np.array_equal(scale(**launch), 2 * np.arange(64))


@pytest.mark.parametrize(
    "launch",
    [
        {"factor": 1e300},
        {"factor": 10**400},
        {"factor": np.bool_(True)},
        {"count": np.int64(2**40)},
        {"grid": 1.0},
        {"grid": "2"},
        {"grid": None},
        {"grid": ()},
        {"grid": (1, 1, 1, 1)},
        {"grid": (2.5, 1)},
        {"block": (1, 1, 128)},
        {"stream": "fast"},
    ],
)
def test_numbers_that_do_not_fit_are_refused(launch: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        scale(**launch)


# ---- devices


@pytest.mark.parametrize("dtype", sorted(buffer.ITEM_BYTES))
@pytest.mark.parametrize("shape", [(), (0,), (2, 0), (3, 5)])
def test_empty_makes_every_dtype_and_shape(dtype: str, shape: tuple[int, ...]) -> None:
    made = EmulatedDevice().empty(shape, dtype)
    assert (made.shape, made.dtype, made.numpy().dtype.name) == (shape, dtype, dtype)
    assert set(made.numpy().tobytes()) <= {0xFF}


def test_upload_keeps_the_shape_of_a_scalar() -> None:
    assert EmulatedDevice().upload(np.float32(3) * np.ones(())).shape == ()


def test_threads_share_one_chain_kernel() -> None:
    """Several threads ask for a variant that nobody has built yet; each gets its own results."""
    built = norm()

    def right(seed: int) -> bool:
        random = np.random.default_rng(seed)
        given = [random.standard_normal(size).astype(np.float32) for size in ((3 + seed, 64), (64,), (64,))]
        expected = run_chain(built.chain, given)[0]
        return all(np.allclose(built(given)[0].numpy(), expected, atol=1e-5) for _ in range(5))

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(right, range(4)))
    assert len(built.builds) == 1


def test_no_thread_opens_half_a_library(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    typed = tuple(Parameter(*item) for item in PARAMETERS)
    binary = compile_request(KernelRequest("scale", "sm_90", typed, 64, source=SCALE), emulate=True).data
    whole = Path.write_bytes

    def slowly(path: Path, data: bytes) -> int:
        whole(path, data[:100])
        time.sleep(0.05)
        return whole(path, data)

    monkeypatch.setattr(Path, "write_bytes", slowly)
    monkeypatch.setattr(machine, "_scratch", lambda: tmp_path)
    with ThreadPoolExecutor(4) as pool:
        handles = list(pool.map(lambda _: EmulatedDevice().load(binary, "scale"), range(4)))
    assert all(handles)


# ---- hand-written kernels


@pytest.mark.parametrize("emulate", [False, True], ids=["nvrtc", "g++"])
@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"parameters": PARAMETERS[:2]}, "scale"),  # it would read two arguments that nobody gave
        ({"parameters": [("x", "float*"), *PARAMETERS[1:]]}, "scale"),
        ({"entry": "other"}, "other"),
        ({"source": SCALE.replace('extern "C" ', "")}, "scale"),
    ],
)
def test_a_kernel_must_have_the_parameters_that_are_named(change: dict[str, Any], says: str, emulate: bool) -> None:
    given = {"entry": "scale", "parameters": PARAMETERS, "source": SCALE, **change}
    typed = tuple(Parameter(*item) for item in given["parameters"])
    request = KernelRequest(given["entry"], "sm_90", typed, 64, source=given["source"])
    with pytest.raises(CompileError, match=says) as caught:
        compile_request(request, emulate=emulate)
    assert caught.value.origin.startswith("parameters:")


@pytest.mark.parametrize("constants", [{"N": True}, {"N": "3"}, {"N": np.int64(3)}, {"not a name": 3}])
def test_constants_that_no_text_can_hold_are_refused(constants: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match="constants"):
        kernel(SCALE, entry="scale", parameters=PARAMETERS, constants=constants, device=EmulatedDevice())


def test_large_constants_keep_their_value() -> None:
    source = SCALE.replace("factor * x[i]", "kMany == 3000000000 ? kSmall : 0.0f")
    constants = {"kMany": 3_000_000_000, "kSmall": 0.1}
    built = kernel(source, entry="scale", parameters=PARAMETERS, constants=constants, device=EmulatedDevice())
    y = np.zeros(4, np.float32)
    built.launch(np.ones(4, np.float32), y, 1.0, 4, grid=1, block=32)
    assert (y == np.float32(0.1)).all()

"""Sessions on ONNX Runtime's CUDA provider: values stay on the GPU, everything is issued on one stream.

Not executed yet: no machine in reach has an ONNX Runtime with this provider. It follows the documented I/O
binding and `user_compute_stream` interfaces. Sessions and kernels share a stream, so that no step waits for
another on the host; the one wait is in `download`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from onekernel.device import Buffer, View
from onekernel.device.cuda.driver import call, driver
from onekernel.fusion.chain import Chain
from onekernel.fusion.kernel import ChainKernel
from onekernel.graph.onnx_trace import dtype_name
from onekernel.jit import Supply
from onekernel.splice.engine import kernels_on
from onekernel.splice.loop import Call
from onekernel.splice.signature import Array

_PROVIDER = "CUDAExecutionProvider"


def available() -> bool:
    """Say whether this ONNX Runtime was built with the CUDA provider."""
    import onnxruntime

    return _PROVIDER in onnxruntime.get_available_providers()


@dataclass(frozen=True)
class CudaEngine:
    """The loop's values are OrtValues on one GPU; sessions and kernels share `stream`, a driver handle."""

    device: Any  # GpuDevice
    stream: int
    make: Callable[[Chain], ChainKernel]
    name: str = "onnxruntime cuda"
    resident: bool = True
    supply: Supply | None = None

    def session(self, model: bytes, inputs: Sequence[str], outputs: Sequence[str]) -> Call:
        """Load a segment; its outputs are allocated on the GPU by ONNX Runtime, whatever their shape."""
        import onnxruntime

        place = {"device_id": str(self.device.ordinal), "user_compute_stream": str(self.stream)}
        session = onnxruntime.InferenceSession(model, providers=[(_PROVIDER, place), "CPUExecutionProvider"])
        options = onnxruntime.RunOptions()
        options.add_run_config_entry("disable_synchronize_execution_providers", "1")

        def run(values: Sequence[Any]) -> Sequence[Any]:
            binding = session.io_binding()
            for name, value in zip(inputs, values, strict=True):
                binding.bind_ortvalue_input(name, value)
            for name in outputs:
                binding.bind_output(name, "cuda", self.device.ordinal)
            session.run_with_iobinding(binding, options)
            return list(binding.get_outputs())

        return run

    def kernel(self, chain: Chain) -> Call:
        """Launch the chain's kernel on the shared stream, into values that ONNX Runtime allocates."""
        kernel = self.make(chain)
        first = next(i for i, operand in enumerate(chain.operands) if operand.kind == "full")

        def run(values: Sequence[Any]) -> Sequence[Any]:
            results = [self._empty(values[first].shape(), item.dtype) for item in chain.results]
            kernel(list(map(self._view, values)), list(map(self._view, results)), self.stream)
            return results

        return run

    def upload(self, arrays: Sequence[Array]) -> Sequence[Any]:
        """Copy arrays to the GPU."""
        import onnxruntime

        place = ("cuda", self.device.ordinal)
        return [onnxruntime.OrtValue.ortvalue_from_numpy(array, *place) for array in arrays]

    def download(self, values: Sequence[Any]) -> Sequence[Array]:
        """Wait for the stream, then copy values to the host."""
        call(driver().cuStreamSynchronize, self.stream)
        return [value.numpy() for value in values]

    def _empty(self, shape: Sequence[int], dtype: str) -> Any:
        import onnxruntime
        from onnx import TensorProto

        element = TensorProto.DataType.Value({"float32": "FLOAT"}.get(dtype, dtype.upper()))
        place = ("cuda", self.device.ordinal)
        return onnxruntime.OrtValue.ortvalue_from_shape_and_type(list(shape), element, *place)

    def _view(self, value: Any) -> Buffer:
        dtype, shape = dtype_name(value.element_type()), tuple(value.shape())
        place = f"cuda:{self.device.ordinal}"
        where = View(value.data_ptr(), dtype, shape, contiguous=True, device=place, owner=value)
        return Buffer(where, read=lambda _: value.numpy())


def cuda_engine(device: Any, supply: Supply) -> CudaEngine:
    """Make an engine with a stream of its own on a GPU."""
    nonblocking = driver().CUstream_flags.CU_STREAM_NON_BLOCKING.value
    with device.current():
        stream = int(call(driver().cuStreamCreate, nonblocking))
    return CudaEngine(device, stream, kernels_on(device, supply), supply=supply)

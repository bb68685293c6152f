"""Who runs the parts of a fused model: sessions, kernels, and how values travel between them.

An engine turns a serialized segment and a chain into callables for the loop. `HostEngine` runs sessions on
ONNX Runtime's CPU provider with numpy arrays; the kernel is whatever callable the caller hands in, so that a
splice can be tested against any meaning of a chain.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from onekernel.device import Device
from onekernel.errors import InvalidInput
from onekernel.fusion.chain import Chain
from onekernel.fusion.kernel import ChainKernel
from onekernel.fusion.naming import launchable
from onekernel.graph.onnx_session import cpu_session
from onekernel.jit import Supply
from onekernel.splice.loop import Call
from onekernel.splice.signature import Array

__all__ = ["Engine", "HostEngine", "cpu_session", "engine_for", "kernels_on"]


class Engine(Protocol):
    """What the splicer asks of a runtime; `resident`: values stay on a GPU between steps."""

    @property
    def name(self) -> str: ...
    @property
    def resident(self) -> bool: ...
    @property
    def supply(self) -> Supply | None: ...
    def session(self, model: bytes, inputs: Sequence[str], outputs: Sequence[str]) -> Call: ...
    def kernel(self, chain: Chain) -> Call: ...
    def upload(self, arrays: Sequence[Array]) -> Sequence[Any]: ...
    def download(self, values: Sequence[Any]) -> Sequence[Array]: ...


@dataclass(frozen=True)
class HostEngine:
    """Sessions on the CPU provider; `kernel_of` gives a chain's callable from arrays to arrays."""

    kernel_of: Callable[[Chain], Call]
    name: str = "cpu"
    resident: bool = False
    supply: Supply | None = None

    def session(self, model: bytes, inputs: Sequence[str], outputs: Sequence[str]) -> Call:
        """Load a segment; a run gives exactly `outputs`, in order. Raises InvalidInput for what it cannot run on."""
        from onnxruntime.capi import onnxruntime_pybind11_state as state

        session, wanted = cpu_session(model), list(outputs)

        def run(values: Sequence[Any]) -> Sequence[Any]:
            try:
                return list(session.run(wanted, dict(zip(inputs, values, strict=True))))
            except (state.Fail, state.InvalidArgument, state.RuntimeException) as error:
                reason, todo = " ".join(str(error).split()), "check that the original model runs on these inputs"
                raise InvalidInput(expected="inputs that the model can run on", got=reason, todo=todo) from error
            except RuntimeError as error:  # it has no array for bfloat16
                if "Numpy type" not in str(error):
                    raise
                expected = "outputs and values beside a chain that ONNX Runtime can give as arrays on a CPU"
                todo = "cast them to float32, or use the CUDA provider"
                raise InvalidInput(expected=expected, got=str(error), todo=todo) from error

        return run

    def kernel(self, chain: Chain) -> Call:
        """Hand the chain to the callable given at construction."""
        return self.kernel_of(chain)

    def upload(self, arrays: Sequence[Array]) -> Sequence[Array]:
        """Keep arrays where they are."""
        return arrays

    def download(self, values: Sequence[Any]) -> Sequence[Array]:
        """Make everything an array; ONNX Runtime gives scalars as numpy scalars."""
        return [np.asarray(value) for value in values]


def engine_for(device: Device, compile: str | None = None) -> Engine:
    """Choose the engine for a device: the CUDA provider on a GPU if it is there, else the CPU provider.

    `compile` is the policy of jit.policy. Raises InvalidInput for one that does not exist.
    """
    supply = Supply(device, compile)
    if not device.emulated:
        from onekernel.splice import onnxruntime_cuda

        if onnxruntime_cuda.available():
            return onnxruntime_cuda.cuda_engine(device, supply)
    return HostEngine(_with_copies(device, supply), f"onnxruntime cpu, kernels {device.name}", supply=supply)


def kernels_on(device: Device, supply: Supply | None = None) -> Callable[[Chain], ChainKernel]:
    """Make kernels on a device; chains that differ in names and sample shape alone share one."""
    shared: dict[Chain, ChainKernel] = {}

    def kernel_of(chain: Chain) -> ChainKernel:
        key = replace(launchable(chain), sample_shape=())
        return shared.setdefault(key, ChainKernel(key, device, supply=supply))

    return kernel_of


def _with_copies(device: Device, supply: Supply) -> Callable[[Chain], Call]:
    """Execute chains on a device with copies to and from it."""
    make = kernels_on(device, supply)

    def call_of(chain: Chain) -> Call:
        kernel = make(chain)
        return lambda values: [r.numpy() for r in kernel([device.upload(np.asarray(v)) for v in values])]

    return call_of

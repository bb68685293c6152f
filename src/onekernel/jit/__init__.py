"""HOW a kernel comes to be: KernelRequest -> text -> compile -> cache -> launch. Knows no chain and no framework."""

from onekernel.jit.build import adopt, compile_request
from onekernel.jit.compile.binary import Binary
from onekernel.jit.kernel import Kernel, kernel
from onekernel.jit.policy import Supply
from onekernel.jit.request import KernelRequest, Line, Parameter
from onekernel.jit.warmup import warm_up

__all__ = [
    "Binary",
    "Kernel",
    "KernelRequest",
    "Line",
    "Parameter",
    "Supply",
    "adopt",
    "compile_request",
    "kernel",
    "warm_up",
]

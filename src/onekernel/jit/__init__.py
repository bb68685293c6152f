"""HOW a kernel comes to be: KernelRequest -> text -> compile -> cache -> launch. Knows no chain and no framework."""

from onekernel.jit.build import adopt, compile_request, key_of
from onekernel.jit.compile.binary import Binary, Resources
from onekernel.jit.kernel import Kernel, kernel
from onekernel.jit.request import KernelRequest, Line, Parameter

__all__ = [
    "Binary",
    "Kernel",
    "KernelRequest",
    "Line",
    "Parameter",
    "Resources",
    "adopt",
    "compile_request",
    "kernel",
    "key_of",
]

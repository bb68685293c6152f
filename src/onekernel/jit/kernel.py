"""A built kernel on one device: launched with checked operands, or bound to operands that were checked once."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from operator import index
from typing import Any, Protocol, TypedDict, Unpack

from onekernel.device import Device, LaunchShape, get
from onekernel.device.launch import Arguments, Launcher
from onekernel.errors import InvalidInput, InvalidOperand
from onekernel.jit.build import compile_request
from onekernel.jit.compile.binary import Binary
from onekernel.jit.operands import Signature
from onekernel.jit.request import KernelRequest, Parameter

Grid = int | Sequence[int]

_MOST_SHAPES = 1024  # launch shapes remembered for each kernel; then it starts afresh


_LAUNCH = (
    "try: launcher = launchers[grid, block]",
    "except (KeyError, TypeError): launcher = launcher_of(grid, block)",
    "try: arguments = idle.pop()",
    "except IndexError: arguments = make()",
    "arguments.fill({values})",
    "launcher(arguments, stream if type(stream) is int else handle_of(stream))",
    "idle.append(arguments)",
)


class Launch(Protocol):
    """How a kernel is launched."""

    def __call__(self, *operands: Any, grid: Grid, block: Grid | None = None, stream: Any = None) -> None:
        """Enqueue the kernel; operands in the order of the parameters, tensors for pointers, numbers for scalars.

        `block` defaults to the request's threads; `stream` is a handle, a torch stream or None (the default stream).
        Raises InvalidOperand naming the parameter that does not fit, DeviceError, or EmulationFault.
        """


class Kernel:
    """A built kernel on one device. Launches may be made from several threads at a time."""

    def __init__(self, request: KernelRequest, device: Device | None = None, binary: Binary | None = None) -> None:
        """Build and load; `binary` is what was built already. Raises CompileError, InvalidInput or DeviceError."""
        self.request = request
        self.device = place = get() if device is None else device
        self.binary = binary or compile_request(request, emulate=place.emulated, sanitize=place.sanitize)
        self._handle = self.device.load(self.binary.data, request.name, request.shared)
        self._signature = Signature(request, self.device)
        self._launchers: dict[Any, Launcher] = {}
        self.launch: Launch = self._launch_bound if self.device.emulated else self._launch_function()

    def _launch_function(self) -> Any:
        """Generate `launch`. It takes memory for its arguments from `idle`, so that no two threads fill the same."""
        return self._signature.function(
            "launch",
            "{operands}, grid, block=None, stream=None",
            _LAUNCH,
            launchers=self._launchers,
            launcher_of=self._launcher,
            idle=[],
            make=self._signature.arguments,
            handle_of=_stream_handle,
        )

    def _launch_bound(self, *operands: Any, grid: Grid, block: Grid | None = None, stream: Any = None) -> None:
        self.bind(*operands, grid=grid, block=block).launch(stream)

    def bind(self, *operands: Any, grid: Grid, block: Grid | None = None) -> BoundLaunch:
        """Check and pack operands once, for launches that repeat. Raises what `launch` raises."""
        arguments = self._signature.arguments()
        self._signature.pack(arguments.fill, *operands)
        arguments.operands = operands
        shape = self._shape(grid, block)
        return BoundLaunch(self._handle, self.device.launcher(self._handle, shape), shape, arguments)

    def prepare(self, grid: Grid, block: Grid | None = None) -> None:
        """Make ready for launches of a shape. Raises DoesNotFit where the device has not what one needs.

        For a cooperative kernel that is room for all blocks at once. A first launch would say the same.
        """
        self._launcher(grid, block)

    def _launcher(self, grid: Grid, block: Grid | None) -> Launcher:
        """Return how to launch with a grid and a block, remembered for next time where it can be."""
        launcher = self.device.launcher(self._handle, self._shape(grid, block))
        if len(self._launchers) >= _MOST_SHAPES:
            self._launchers.clear()
        if type(grid) in (int, tuple) and type(block) in (int, tuple, type(None)):
            self._launchers[grid, block] = launcher
        return launcher

    def _shape(self, grid: Grid, block: Grid | None) -> LaunchShape:
        request, threads = self.request, _three(self.request.threads if block is None else block)
        shape = LaunchShape(
            _three(grid), threads, request.cluster, request.overlap, request.cooperative, request.shared
        )
        if prod(shape.block) > self.request.threads:
            raise InvalidOperand(
                expected=f"a block of at most {self.request.threads} threads (the kernel's launch bound)",
                got=str(shape.block),
                todo="build the kernel with more threads",
            )
        return shape


class BoundLaunch:
    """A kernel with its operands: `launch(stream)` is the driver's call and nothing else.

    It keeps the operands alive, and reads what they hold at the time of the launch. On a GPU it can also become a node
    of a graph (device.cuda.kernel_graph).
    """

    def __init__(self, kernel: Any, launcher: Launcher, shape: LaunchShape, arguments: Arguments) -> None:
        self.kernel, self.shape, self.arguments = kernel, shape, arguments
        self._launcher = launcher

    def launch(self, stream: Any = None) -> None:
        """Enqueue it on a stream: a handle, a torch stream or None (the default stream)."""
        self._launcher(self.arguments, stream if type(stream) is int else _stream_handle(stream))


class LaunchOptions(TypedDict, total=False):
    """How a hand-written kernel is launched; the fields of KernelRequest of the same names."""

    threads: int  # the largest block
    cluster: int
    overlap: bool
    cooperative: bool
    shared: int


def kernel(
    source: str,
    *,
    entry: str,
    parameters: Sequence[Parameter | tuple[str, str]],
    constants: dict[str, int | float] | None = None,
    device: Device | None = None,
    **options: Unpack[LaunchOptions],
) -> Kernel:
    """Build hand-written CUDA text: it defines `extern "C" __global__ void entry(...)` with these parameters.

    parameters: (name, type) pairs such as ("x", "const float*"), or Parameters, which can also demand an alignment and
    a number of elements. constants become constexpr numbers. The text may include the headers of `kernels/`, and runs
    on a GPU or, unchanged, on the emulated device when it uses "primitives.cuh" for everything beyond threadIdx and
    blockIdx. Raises CompileError.
    """
    place = get() if device is None else device
    typed = tuple(item if isinstance(item, Parameter) else Parameter(*item) for item in parameters)
    folded = tuple((constants or {}).items())
    options.setdefault("threads", 1024)
    return Kernel(KernelRequest(entry, place.arch, typed, constants=folded, source=source, **options), place)


def _three(size: Grid) -> tuple[int, int, int]:
    try:
        sizes = [index(item) for item in (size if isinstance(size, Sequence) else (size,))]
        x, y, z = sizes + [1] * (3 - len(sizes)) if sizes else []
    except (TypeError, ValueError) as error:
        raise InvalidInput(
            expected="a grid and a block of one to three whole numbers", got=repr(size), todo="correct the launch"
        ) from error
    return x, y, z


def _stream_handle(stream: Any) -> int:
    if stream is None:
        return 0
    try:
        return int(getattr(stream, "cuda_stream", stream))
    except (TypeError, ValueError) as error:
        raise InvalidInput(
            expected="a stream handle, a torch stream or None", got=repr(stream), todo="give the handle as a number"
        ) from error

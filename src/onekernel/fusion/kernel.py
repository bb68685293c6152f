"""A chain on a device: picks the variant that fits the operands, builds it once, launches it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from math import gcd, prod
from typing import Any

from onekernel.device import Buffer, Device, View
from onekernel.device.buffer import ITEM_BYTES, view
from onekernel.device.parts import Part, pack_bytes, part_of
from onekernel.errors import CompileError, InvalidOperand
from onekernel.fusion.chain import Chain, Operand, Result
from onekernel.fusion.kernel_body import chain_request
from onekernel.fusion.schedule import Rows, Schedule, choose
from onekernel.jit import Binary, Kernel, KernelRequest, Supply, compile_request, warm_up
from onekernel.jit.warmup import Progress


@dataclass(frozen=True)
class Build:
    """One compiled variant of a chain."""

    request: KernelRequest
    schedule: Schedule
    binary: Binary


def compile_for(chain: Chain, part: Part) -> Build:
    """Build the variant for the chain's sample shape, with aligned operands, for a GPU that need not be here.

    `chain` is launchable (naming.launchable). Raises CompileError or InvalidInput.
    """
    schedule, request = _request_for(chain, part)
    return Build(request, schedule, compile_request(request))


def compile_all(chains: Sequence[Chain], part: Part, progress: Progress) -> list[Build | CompileError]:
    """Do that for many chains, in worker processes; `progress(done, total)` is told of every kernel.

    Returns an error in the place of a chain that did not compile. Raises InvalidInput.
    """
    with suppress(CompileError, ExceptionGroup):  # each is raised again for its own chain
        warm_up((_request_for(chain, part)[1] for chain in chains), progress=progress)
    return [_build_or_error(chain, part) for chain in chains]


def _build_or_error(chain: Chain, part: Part) -> Build | CompileError:
    try:
        return compile_for(chain, part)
    except CompileError as error:
        return error


def _request_for(chain: Chain, part: Part) -> tuple[Schedule, KernelRequest]:
    """Choose the variant for the chain's sample shape, with aligned operands."""
    rows = _rows(chain, chain.sample_shape, _widest_pack(chain, part.arch, alignment=32))
    schedule = choose(rows, columns=chain.layout == "columns", part=part)
    return schedule, chain_request(chain, schedule, part.arch)


class ChainKernel:
    """Callable on tensors of one device; `builds` holds the variants made so far.

    `chain` is launchable (naming.launchable). A kernel is not bound to a shape: `outer` and `inner` are read from the
    operands of each call.
    """

    def __init__(self, chain: Chain, device: Device, part: Part | None = None, supply: Supply | None = None) -> None:
        """`supply` says when kernels are built: by default at their first use."""
        self.chain, self.device = chain, device
        self.part = part_of(device.name, device.arch) if part is None else part
        self._supply = supply or Supply(device, "block")
        self._requests: dict[Schedule, KernelRequest] = {}
        self._variants: dict[Schedule, Kernel] = {}

    @property
    def builds(self) -> list[Build]:
        return [Build(kernel.request, schedule, kernel.binary) for schedule, kernel in list(self._variants.items())]

    def __call__(
        self, operands: Sequence[Any], outputs: Sequence[Any] | None = None, stream: Any = None
    ) -> tuple[Any, ...]:
        """Run on operands in the order of `chain.operands`; return the results, on the device.

        `outputs`: tensors to write to, in the order of `chain.results`; allocated when absent. They must not overlap
        an operand or each other: a kernel may read an operand again after it has written. Raises InvalidOperand, and
        NotReady where the supply has no kernel yet.
        """
        views = [view(operand) for operand in operands]
        shape = self._check(views)
        results = self._allocate(shape) if outputs is None else tuple(outputs)
        written = [view(result) for result in results]
        if outputs is not None:
            self._check_outputs(written, views, shape)
        if prod(shape) == 0:
            return results
        schedule, outer, inner = self._schedule(shape, [*views, *written])
        kernel = self.variant(schedule, stream)
        kernel.launch(*operands, *results, outer, inner, grid=schedule.grid(outer, inner), stream=stream)
        return results

    def warm_up(self, shapes: Iterable[Sequence[int]], *, progress: Progress | None = None) -> None:
        """Build and load the kernels for full operands of these shapes, aligned as a device allocates them.

        Raises InvalidOperand for a shape that is not the chain's, and what Supply.warm_up raises.
        """
        requests = []
        for shape in map(tuple, shapes):
            self._check_shape(shape)
            if prod(shape):
                requests.append(self._request(self._schedule(shape, ())[0]))
        self._supply.warm_up(requests, progress=progress)

    def variant(self, schedule: Schedule, stream: Any = None) -> Kernel:
        """Return the kernel of a schedule. Raises NotReady where the supply has none yet."""
        kernel = self._variants.get(schedule)
        if kernel is None:
            kernel = self._variants[schedule] = self._supply.get(self._request(schedule), stream)
        return kernel

    def _request(self, schedule: Schedule) -> KernelRequest:
        """Write the request of a schedule, once: a model whose kernels are late asks at every call."""
        request = self._requests.get(schedule)
        if request is None:
            request = self._requests[schedule] = chain_request(self.chain, schedule, self.device.arch)
        return request

    def _schedule(self, shape: tuple[int, ...], views: Sequence[View]) -> tuple[Schedule, int, int]:
        """Choose for a shape and the alignment of all tensors; also return the rows' outer and inner extents."""
        alignment = gcd(*(where.address for where in views), 32)
        rows = _rows(self.chain, shape, _widest_pack(self.chain, self.device.arch, alignment))
        return choose(rows, columns=self.chain.layout == "columns", part=self.part), rows.outer, rows.inner

    @cached_property
    def _first_full(self) -> int:
        return next(i for i, operand in enumerate(self.chain.operands) if operand.kind == "full")

    def _allocate(self, shape: tuple[int, ...]) -> tuple[Buffer, ...]:
        return tuple(self.device.empty(shape, result.dtype) for result in self.chain.results)

    def _check(self, views: Sequence[View]) -> tuple[int, ...]:
        """Return the full shape after checking that every operand agrees with it."""
        if len(views) != len(self.chain.operands):
            raise InvalidOperand(
                expected=f"{len(self.chain.operands)} operands of {self.chain.name}",
                got=str(len(views)),
                todo="give one tensor for each operand",
            )
        shape = views[self._first_full].shape
        self._check_shape(shape)
        rows = prod(shape) // self.chain.hidden
        sizes = {"full": prod(shape), "channel": self.chain.hidden, "row": rows, "scalar": 1}
        for operand, where in zip(self.chain.operands, views, strict=True):
            wrong = where.shape != shape if operand.kind == "full" else where.elements != sizes[operand.kind]
            if wrong:
                raise _misfit(
                    operand,
                    str(shape) if operand.kind == "full" else f"{sizes[operand.kind]} elements",
                    where.shape,
                )
        return shape

    def _check_shape(self, shape: tuple[int, ...]) -> None:
        if len(shape) != self.chain.rank or shape[self.chain.axis] != self.chain.hidden:
            raise _misfit(
                self.chain.operands[self._first_full],
                f"axis {self.chain.axis} of length {self.chain.hidden}",
                shape,
            )

    def _check_outputs(self, outputs: Sequence[View], operands: Sequence[View], shape: tuple[int, ...]) -> None:
        """Refuse results that a launch would write beyond, or that share memory with something else."""
        if len(outputs) != len(self.chain.results):
            raise InvalidOperand(
                expected=f"{len(self.chain.results)} outputs of {self.chain.name}",
                got=str(len(outputs)),
                todo="give one tensor for each result, or none at all",
            )
        for index, (result, where) in enumerate(zip(self.chain.results, outputs, strict=True)):
            if where.shape != shape:
                raise _misfit(result, str(shape), where.shape)
            if any(where.overlaps(other) for other in (*operands, *outputs[:index])):
                raise InvalidOperand(
                    expected=f"memory of its own for the result {result.name!r}",
                    got="memory that an operand or another result uses too",
                    todo="give another tensor, or no outputs at all",
                )


def _misfit(item: Operand | Result, expected: str, shape: tuple[int, ...]) -> InvalidOperand:
    role = f"{item.kind} operand" if isinstance(item, Operand) else "result"
    return InvalidOperand(
        expected=f"{expected} for the {role} {item.name!r}",
        got=f"shape {shape}",
        todo="give a tensor of the shape that the chain was found with, up to its row counts",
    )


def _rows(chain: Chain, shape: tuple[int, ...], widest: int) -> Rows:
    outer, inner = prod(shape[: chain.axis]), prod(shape[chain.axis + 1 :])
    return Rows(outer, chain.hidden, inner, gcd(widest, inner if chain.layout == "columns" else chain.hidden))


def _widest_pack(chain: Chain, arch: str, alignment: int) -> int:
    """Elements of a pack: the widest access for the smallest type, when every operand is aligned for it (bytes).

    A larger type takes several accesses for a pack.
    """
    dtypes = {item.dtype for item in chain.operands} | {item.dtype for item in chain.results}
    sizes = [ITEM_BYTES[dtype] for dtype in dtypes]
    widest = pack_bytes(arch)
    return widest // min(sizes) if alignment >= widest else max(alignment // max(sizes), 1)

"""The launches of a program on a device, and the steps that one request makes with them.

On a GPU each kind of step (in the prompt or behind it, few positions or many) is a CUDA graph, made when the first such
step comes and enqueued again and again: what changes from step to step lies in memory. On the emulated device the
launches run one after the other.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from onekernel.device import Device
from onekernel.jit import Kernel, warm_up
from onekernel.jit.kernel import BoundLaunch
from onekernel.megakernel.check import check
from onekernel.megakernel.launches.plan import Launch, Piece, conditions, launches
from onekernel.megakernel.launches.text import STATE_INTS, begin_request, few_bytes, piece_request, stream_floats
from onekernel.megakernel.layout import Layout
from onekernel.megakernel.unroll import condition_holds

if TYPE_CHECKING:
    import torch

Kind = tuple[bool, ...]  # of a step: whether it speaks, and which conditions on its position hold


class Launches:
    """A program as launches: its kernels on a device; requests share them."""

    def __init__(self, layout: Layout, on: Device) -> None:
        """Build all kernels. Raises CompileError, and InvalidInput for a program that `check` refuses."""
        check(layout)
        self.layout, self.device = layout, on
        self._conditions = conditions(layout.program)
        numbers = (int(condition.split()[2]) for condition in self._conditions)
        positions = sorted({0, *(number + by for number in numbers for by in (-1, 0, 1) if number + by >= 0)})
        self.kinds = {
            self.kind(position, speaks=speaks): launches(layout, position, speaks=speaks)
            for position in positions
            for speaks in (False, True)
        }
        pieces = dict.fromkeys(launch.piece for step in self.kinds.values() for launch in step)
        self.requests = {piece: piece_request(layout, piece, on.arch) for piece in pieces}
        begin = begin_request(on.arch)
        warm_up([begin, *self.requests.values()], emulate=on.emulated, sanitize=on.sanitize)
        self.begin = Kernel(begin, on)
        kernels = {request: Kernel(request, on) for request in dict.fromkeys(self.requests.values())}
        self.kernels: dict[Piece, Kernel] = {piece: kernels[request] for piece, request in self.requests.items()}

    def steps(self, operands: Mapping[str, Any], place: torch.device) -> Steps:
        """Begin a request with the operands of the one kernel, by their names, but for what `Steps.run` is given.

        They must stay where they are; `place` is where tensors are.
        """
        return Steps(self, operands, place)

    def kind(self, position: int, *, speaks: bool) -> Kind:
        """Return the kind of a step at a position."""
        at = {"position": position}
        return speaks, *(condition_holds(condition, at, speaks=speaks) for condition in self._conditions)


class Steps:
    """The steps of one request: made by `Launches.steps`."""

    def __init__(self, of: Launches, operands: Mapping[str, Any], place: torch.device) -> None:
        import torch

        self._launches, floats = of, stream_floats(of.layout.program)
        self.state = torch.zeros(STATE_INTS, dtype=torch.int32, device=place)
        streams = torch.full((floats,), torch.nan, dtype=torch.float32, device=place)
        few = torch.zeros(max(few_bytes(of.layout), 1), dtype=torch.uint8, device=place)
        self._operands = {**operands, "state": self.state, "streams": streams, "few": few}
        self._enqueue: dict[Kind, Callable[[int], None]] = {}

    def run(self, position: int, prompt_length: int, steps: int, text_rows: int = 0, stream: int = 0) -> None:
        """Enqueue steps from a position on; the first `prompt_length` of them have a prompt."""
        begin, state = self._launches.begin, self._operands["state"]
        begin.launch(state, position, prompt_length, text_rows, grid=1, stream=stream)
        for number in range(steps):
            kind = self._launches.kind(position + number, speaks=number >= prompt_length - 1)
            if kind not in self._enqueue:
                self._enqueue[kind] = self._prepared(kind)
            self._enqueue[kind](stream)

    def on(self, stream: int) -> Any:
        """Return a guard in which torch enqueues on the stream of this handle, where there are streams."""
        import torch

        device = self.state.device
        if device.type != "cuda":
            return nullcontext()
        if not stream:
            return torch.cuda.stream(torch.cuda.default_stream(device))
        return torch.cuda.stream(torch.cuda.ExternalStream(stream, device))  # type: ignore[no-untyped-call]

    def bound(self, kind: Kind) -> list[BoundLaunch]:
        """Bind the launches of a kind of step to their operands."""
        return [self._bound(launch) for launch in self._launches.kinds[kind]]

    def _bound(self, launch: Launch) -> BoundLaunch:
        kernel = self._launches.kernels[launch.piece]
        values = {**self._operands, **dict(launch.loops), "last": int(launch.last)}
        return kernel.bind(*(values[one.name] for one in kernel.request.parameters), grid=launch.blocks)

    def _prepared(self, kind: Kind) -> Callable[[int], None]:
        bound, on = self.bound(kind), self._launches.device
        if on.emulated:

            def each(stream: int) -> None:
                for launch in bound:
                    launch.launch(stream)

            return each
        from onekernel.device.cuda.gpu import GpuDevice
        from onekernel.device.cuda.kernel_graph import KernelGraph

        assert isinstance(on, GpuDevice)
        graph = KernelGraph(on)
        for launch in bound:
            graph.add(launch)
        weakref.finalize(self, graph.close)
        return graph.launch

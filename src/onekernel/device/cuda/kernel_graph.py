"""A CUDA graph made of kernel nodes by hand: no stream is captured, so nothing that others do can break it.

The graph owns what its launches use: operands stay alive as long as it does, or until an update replaces them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from onekernel.device.cuda.driver import call, driver
from onekernel.device.cuda.launcher import attributes
from onekernel.device.launch import Arguments, LaunchShape
from onekernel.errors import InvalidInput

if TYPE_CHECKING:
    from onekernel.device.cuda.gpu import GpuDevice, LoadedKernel


class Launch(Protocol):
    """A kernel with its operands, checked and packed: what jit's BoundLaunch is."""

    @property
    def kernel(self) -> LoadedKernel: ...
    @property
    def shape(self) -> LaunchShape: ...
    @property
    def arguments(self) -> Arguments: ...


class KernelGraph:
    """Kernel launches with the order between them, enqueued as one.

    Nodes are numbered in the order in which they were added.
    """

    def __init__(self, device: GpuDevice) -> None:
        self._device, self._cuda = device, driver()
        self._graph = call(self._cuda.cuGraphCreate, 0)
        self._nodes: list[Any] = []
        self._launches: list[Launch] = []
        self._executable: Any = None

    def add(self, launch: Launch, *, after: Sequence[int] | None = None) -> int:
        """Append a launch that runs after the nodes of these numbers (None: after the one added last).

        A kernel that may overlap its predecessor does so here as well. Returns the node's number. Raises InvalidInput
        for a number that does not exist and for a graph that has run.
        """
        self._check(open_for_nodes=self._executable is None)
        before = ([len(self._nodes) - 1] if self._nodes else []) if after is None else list(after)
        for number in before:
            self._check_number(number)
        parents = [self._nodes[number] for number in before]
        with self._device.current():
            node = call(self._cuda.cuGraphAddKernelNode, self._graph, [], 0, self._parameters(launch))
            for item in attributes(launch.shape, overlap=False):
                call(self._cuda.cuGraphKernelNodeSetAttribute, node, item.id, item.value)
            edges = [self._edge(launch.shape.overlap) for _ in parents]
            call(self._cuda.cuGraphAddDependencies, self._graph, parents, [node] * len(parents), edges, len(parents))
        self._nodes.append(node)
        self._launches.append(launch)
        return len(self._nodes) - 1

    def update(self, number: int, launch: Launch) -> None:
        """Give a node other operands or another grid; the kernel stays. Replays that are under way are not touched.

        Raises InvalidInput for another kernel and for what a graph cannot change (clusters, cooperation).
        """
        self._check_number(number)
        old = self._launches[number]
        if launch.kernel is not old.kernel or (launch.shape.cluster, launch.shape.cooperative) != (
            old.shape.cluster,
            old.shape.cooperative,
        ):
            raise InvalidInput(
                expected="a launch of the kernel that the node was added with",
                got="another kernel, cluster size or kind of launch",
                todo="make a new graph",
            )
        node, parameters = self._nodes[number], self._parameters(launch)
        with self._device.current():
            call(self._cuda.cuGraphKernelNodeSetParams, node, parameters)
            if self._executable is not None:
                call(self._cuda.cuGraphExecKernelNodeSetParams, self._executable, node, parameters)
        self._launches[number] = launch

    def launch(self, stream: int) -> None:
        """Enqueue all nodes on the stream with this handle; the first call makes the executable."""
        if self._executable is None:
            self._check(open_for_nodes=True)
            with self._device.current():
                self._executable = call(self._cuda.cuGraphInstantiate, self._graph, 0)
        with self._device.current():
            call(self._cuda.cuGraphLaunch, self._executable, stream)

    def close(self) -> None:
        """Free the graph; the operands are let go."""
        if self._executable is not None:
            call(self._cuda.cuGraphExecDestroy, self._executable)
        if self._graph is not None:
            call(self._cuda.cuGraphDestroy, self._graph)
        self._graph = self._executable = None
        self._nodes, self._launches = [], []

    def _parameters(self, launch: Launch) -> Any:
        """Describe a launch as a node; the driver copies the arguments when it takes it."""
        node, shape = self._cuda.CUDA_KERNEL_NODE_PARAMS(), launch.shape
        node.func = launch.kernel.function
        node.gridDimX, node.gridDimY, node.gridDimZ = shape.grid
        node.blockDimX, node.blockDimY, node.blockDimZ = shape.block
        node.sharedMemBytes = shape.shared
        node.kernelParams = launch.arguments.pointers
        return node

    def _edge(self, overlap: bool) -> Any:
        edge = self._cuda.CUgraphEdgeData()
        if overlap:
            edge.type = self._cuda.CUgraphDependencyType.CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC.value
            edge.from_port = 1  # CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC: from when the predecessor allows it
        return edge

    def _check_number(self, number: int) -> None:
        if not 0 <= number < len(self._nodes):
            raise InvalidInput(
                expected=f"a node from 0 to {len(self._nodes) - 1}", got=str(number), todo="name one that was added"
            )

    def _check(self, *, open_for_nodes: bool) -> None:
        if self._graph is None or not open_for_nodes:
            got = "a closed one" if self._graph is None else "one that has run"
            raise InvalidInput(expected="a graph that can take nodes", got=got, todo="make a new graph")

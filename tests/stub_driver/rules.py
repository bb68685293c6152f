"""Short conversations with the driver, held with the stub and with a GPU: both must answer the same.

`python -m stub_driver.rules CODE...` holds all of them and prints the statuses of each as JSON, and the driver's name
and words for the codes. tests/golden/driver_h200.json is what an H200 answered (driver 580.159.04, CUDA 13.0).
"""

from __future__ import annotations

import ctypes
import json
import sys
import threading
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

from stub_driver.talk import STREAMS, Talk

PTX = ".version {version}\n.target sm_{arch}\n.address_size 64\n.visible .entry nothing() {{ ret; }}\0"
MODES = ("GLOBAL", "THREAD_LOCAL", "RELAXED")

Rule = Callable[[Talk], object]
RULES: dict[str, Rule] = {}


def rule(work: Rule) -> Rule:
    RULES[work.__name__] = work
    return work


# ---- one call while a stream is captured, for each kind of stream and mode: its status, and how the capture ends

DURING: dict[str, Callable[[Talk, Any], object]] = {
    "launch": lambda talk, stream: talk.launch(stream),
    "launch on the legacy stream": lambda talk, _: talk.launch(0),
    "launch on another stream": lambda talk, _: talk.launch(talk.spare),
    "load": lambda talk, _: talk.load(talk.fresh.pop()),
    "load PTX": lambda talk, _: talk.load(PTX.format(version="8.0", arch=talk.arch).encode()),
    "first kernel of a library": lambda talk, _: talk.say("cuLibraryGetKernel", *talk.libraries.pop()),
    "first kernel of PTX": lambda talk, _: talk.say("cuLibraryGetKernel", talk.texts.pop(), b"nothing"),
    "first function of a kernel": lambda talk, _: talk.say("cuKernelGetFunction", talk.kernels.pop()),
    "load a function": lambda talk, _: talk.say("cuFuncLoad", talk.functions.pop()),
    "first launch of a kernel": lambda talk, stream: talk.launch(stream, function=talk.lazy()),
    "set attribute": lambda talk, _: talk.say("cuFuncSetAttribute", talk.fill, talk.shared_limit, 1024),
    "unload": lambda talk, _: talk.say("cuLibraryUnload", talk.spares.pop()),
    "allocate": lambda talk, _: talk.say("cuMemAlloc", 16),
    "free": lambda talk, _: talk.say("cuMemFree", talk.pieces.pop()),
    "memory information": lambda talk, _: talk.say("cuMemGetInfo"),
    "copy to the GPU": lambda talk, _: talk.say("cuMemcpyHtoD", talk.memory, ctypes.addressof(talk.host), 16),
    "copy from the GPU": lambda talk, _: talk.say("cuMemcpyDtoH", ctypes.addressof(talk.host), talk.memory, 16),
    "synchronize": lambda talk, _: talk.say("cuCtxSynchronize"),
    "synchronize the stream": lambda talk, stream: talk.say("cuStreamSynchronize", stream),
    "synchronize another stream": lambda talk, _: talk.say("cuStreamSynchronize", talk.spare),
    "synchronize the legacy stream": lambda talk, _: talk.say("cuStreamSynchronize", 0),
    "is the legacy stream captured": lambda talk, _: talk.say("cuStreamIsCapturing", 0),
    "begin again": lambda talk, stream: talk.say("cuStreamBeginCapture", stream, talk.mode("RELAXED")),
    "make a stream": lambda talk, _: talk.say("cuStreamCreate", 0),
    "make an event": lambda talk, _: talk.say("cuEventCreate", 0),
    "record on the legacy stream": lambda talk, _: talk.say("cuEventRecord", talk.event, 0),
    "record on another stream": lambda talk, _: talk.say("cuEventRecord", talk.event, talk.spare),
    "synchronize an event": lambda talk, _: talk.say("cuEventSynchronize", talk.event),
    "instantiate": lambda talk, _: talk.say("cuGraphInstantiate", talk.graph, 0),
    "launch a graph elsewhere": lambda talk, _: talk.say("cuGraphLaunch", talk.executable, talk.spare),
    "launch a graph on the legacy stream": lambda talk, _: talk.say("cuGraphLaunch", talk.executable, 0),
}


class Prepared(Talk):
    """Everything that a call during a capture may need, one for each kind of stream and mode."""

    def __init__(self) -> None:
        super().__init__()
        count = len(STREAMS) * len(MODES)
        self.spare = self.stream()
        self.event = self.expect("cuEventCreate", 0)
        self.pieces = [self.expect("cuMemAlloc", 16) for _ in range(count)]
        self.shared_limit = self.cuda.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        self.graph = self.expect("cuGraphCreate", 0)
        self.executable = self.expect("cuGraphInstantiate", self.graph, 0)
        text = PTX.format(version="8.0", arch=self.arch, body="ret;").encode()
        self.texts = [self.library(text) for _ in range(count)]
        self.spares = [self.library(self.cubin) for _ in range(count)]
        # No two binaries are equal: the driver might load equal ones once.
        self.fresh = [self.build(f"fresh{number}") for number in range(count)]
        names = [f"first{number}" for number in range(count)]
        self.libraries = [(self.library(self.build(name)), name.encode()) for name in names]
        self.kernels = [self.kernel(f"kernel{number}") for number in range(count)]
        unloaded = [self.kernel(f"function{number}") for number in range(count)]
        self.functions = [self.expect("cuKernelGetFunction", kernel) for kernel in unloaded]
        self.unused = [self.kernel(f"unused{number}") for number in range(count)]

    def lazy(self) -> Any:
        return self.cuda.CUfunction(int(self.unused.pop()))


def during() -> Iterator[tuple[str, list[int]]]:
    """Yield each call with the statuses (its own, the capture's end) for every kind of stream and mode."""
    talk = Prepared()
    for name, work in DURING.items():
        talk.statuses = []
        for kind, mode in product(STREAMS, MODES):
            with talk.capture(kind, mode) as stream:
                work(talk, stream)
        yield name, talk.statuses


# ---- conversations


@rule
def a_capture_of_another_thread(talk: Talk) -> None:
    """Allocate while another thread captures, in its three modes, by a thread of each mode."""
    for theirs, mine in product(MODES, MODES):
        with talk.capture("non-blocking", theirs):

            def allocate(mine: str = mine) -> None:
                talk.expect("cuCtxPushCurrent", talk.context)
                talk.expect("cuThreadExchangeStreamCaptureMode", talk.mode(mine))
                talk.say("cuMemAlloc", 16)

            _in_thread(allocate)


@rule
def ends_of_captures(talk: Talk) -> None:
    stream = talk.stream()
    talk.say("cuStreamEndCapture", stream)  # none was begun
    talk.say("cuStreamBeginCapture", 0, talk.mode("RELAXED"))
    for mode in MODES:
        talk.expect("cuStreamBeginCapture", stream, talk.mode(mode))
        _in_thread(lambda: talk.say("cuStreamEndCapture", stream))
        talk.say("cuStreamEndCapture", stream)


@rule
def a_captured_stream_is_destroyed(talk: Talk) -> None:
    stream = talk.stream("blocking")
    talk.expect("cuStreamBeginCapture", stream, talk.mode("THREAD_LOCAL"))
    talk.say("cuStreamDestroy", stream)
    talk.launch(0)
    talk.say("cuMemAlloc", 16)


@rule
def launch_shapes(talk: Talk) -> None:
    for shape in (
        {"block": (1024, 1, 1)}, {"block": (1025, 1, 1)}, {"block": (32, 33, 1)}, {"block": (1, 1, 65)},
        {"grid": (0, 1, 1)}, {"block": (0, 1, 1)}, {"grid": (1, 65536, 1)}, {"grid": (1, 1, 65536)},
        {"shared": 48 * 1024}, {"shared": 48 * 1024 + 4},
    ):  # fmt: skip
        talk.launch(0, **shape)
    limit = talk.cuda.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    optin = talk.cuda.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN
    most = talk.expect("cuDeviceGetAttribute", optin, 0)
    talk.say("cuFuncSetAttribute", talk.other, limit, most + 1)
    talk.say("cuFuncSetAttribute", talk.other, limit, most)
    talk.launch(0, function=talk.other, shared=most)
    talk.launch(0, function=talk.other, shared=most + 1)
    talk.launch(0, function=talk.cuda.CUfunction(0))


@rule
def clusters(talk: Talk) -> None:
    for grid, cluster in ((8, 8), (16, 16), (9, 2), (9, 3), (64, 64), (4, 0)):
        talk.extended(grid, cluster)


@rule
def cooperation(talk: Talk) -> None:
    talk.extended(4, cooperative=True)
    talk.extended(1 << 20, cooperative=True)


@rule
def contexts(talk: Talk) -> None:
    """What a thread without a context gets."""
    for work in (
        lambda: talk.launch(0),
        lambda: talk.launch(talk.cuda.CUstream(1)),
        lambda: talk.say("cuMemAlloc", 16),
        lambda: talk.say("cuMemcpyHtoD", talk.memory, ctypes.addressof(talk.host), 16),
        lambda: talk.say("cuMemGetInfo"),
        lambda: talk.say("cuMemFree", talk.memory),
        lambda: talk.say("cuStreamCreate", 0),
        lambda: talk.say("cuEventCreate", 0),
        lambda: talk.say("cuCtxSynchronize"),
        lambda: talk.say("cuStreamSynchronize", 0),
        lambda: talk.say("cuStreamIsCapturing", 0),
        lambda: talk.say("cuCtxGetDevice"),
        lambda: talk.say("cuCtxPopCurrent"),
        lambda: talk.say("cuGraphCreate", 0),
        lambda: talk.load(talk.cubin),
    ):
        _in_thread(work)


@rule
def memory(talk: Talk) -> None:
    host = ctypes.addressof(talk.host)
    talk.say("cuMemAlloc", 0)
    piece = talk.say("cuMemAlloc", 16)
    talk.say("cuMemcpyHtoD", piece, host, 16)
    talk.say("cuMemcpyHtoD", piece, host, 0)
    talk.say("cuMemFree", int(piece) + 4)
    talk.say("cuMemFree", 0)
    talk.say("cuMemFree", piece)
    talk.say("cuMemFree", piece)
    talk.say("cuMemFree", host)


@rule
def binaries(talk: Talk) -> None:
    """Wrong ones: the status of the load, and of asking for a kernel."""
    for arch in (talk.arch - 10, talk.arch - 1, talk.arch, talk.arch + 10):
        _load_and_ask(talk, talk.build("fill", arch), b"fill")
    _load_and_ask(talk, talk.cubin, b"missing")
    _load_and_ask(talk, b"neither a cubin nor PTX, but long enough to be one" * 4 + b"\0", b"fill")
    library = talk.load(talk.cubin)
    talk.say("cuLibraryUnload", library)


@rule
def texts(talk: Talk) -> None:
    """PTX that is fine, too new, for a newer GPU, without the kernel."""
    for version, arch, name in (
        ("8.0", talk.arch, b"nothing"),
        ("9.9", talk.arch, b"nothing"),
        ("9.0", 120, b"nothing"),
        ("8.0", talk.arch, b"missing"),
    ):
        _load_and_ask(talk, PTX.format(version=version, arch=arch).encode(), name)


def _load_and_ask(talk: Talk, binary: bytes, name: bytes) -> None:
    library = talk.load(binary)
    if talk.statuses[-1] == 0:
        talk.say("cuLibraryGetKernel", library, name)


@rule
def graphs(talk: Talk) -> None:
    graph = talk.say("cuGraphCreate", 0)
    first, second = (talk.say("cuGraphAddKernelNode", graph, [], 0, _node(talk, talk.fill)) for _ in range(2))
    talk.say("cuGraphAddKernelNode", graph, [], 0, _node(talk, talk.fill, block=1025))
    edges = [talk.cuda.CUgraphEdgeData()]
    talk.say("cuGraphAddDependencies", graph, [first], [second], edges, 1)
    talk.say("cuGraphAddDependencies", graph, [first], [second], edges, 1)  # twice
    talk.say("cuGraphAddDependencies", graph, [first], [first], edges, 1)
    executable = talk.say("cuGraphInstantiate", graph, 0)
    for node in (_node(talk, talk.fill, grid=2), _node(talk, talk.fill, block=1025), _node(talk, talk.other)):
        talk.say("cuGraphKernelNodeSetParams", first, node)
        talk.say("cuGraphExecKernelNodeSetParams", executable, first, node)
    talk.say("cuGraphLaunch", executable, talk.stream())
    talk.say("cuGraphLaunch", executable, 0)
    talk.say("cuGraphAddDependencies", graph, [second], [first], edges, 1)
    if talk.statuses[-1] == 0:
        talk.say("cuGraphInstantiate", graph, 0)
    talk.say("cuGraphExecDestroy", executable)
    talk.say("cuGraphDestroy", graph)


def _node(talk: Talk, function: Any, *, grid: int = 1, block: int = 1) -> Any:
    node = talk.cuda.CUDA_KERNEL_NODE_PARAMS()
    node.func = function
    node.gridDimX, node.gridDimY, node.gridDimZ = grid, 1, 1
    node.blockDimX, node.blockDimY, node.blockDimZ = block, 1, 1
    values = ((int(talk.memory), 0), (ctypes.c_void_p, ctypes.c_int))
    node.kernelParams = values
    return node


def words(talk: Talk, codes: list[int]) -> list[list[str]]:
    """Return the driver's name and words for each status."""
    found = []
    for code in codes:
        status = talk.cuda.CUresult(code)
        found.append([talk.expect(f"cuGetError{kind}", status).decode() for kind in ("Name", "String")])
    return found


def _in_thread(work: Callable[[], object]) -> None:
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


def main(codes: list[int]) -> None:
    """Hold every conversation and print what was answered."""
    answers: dict[str, Any] = {"words": words(Talk(), codes)}
    for name, work in RULES.items():
        talk = Talk()
        work(talk)
        answers[name] = talk.statuses
    answers |= {f"captured: {name}": statuses for name, statuses in during()}
    print(json.dumps(answers))


if __name__ == "__main__":
    main([int(code) for code in sys.argv[1:]])

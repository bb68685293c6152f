"""The real path of a launch without a GPU: on the stub driver, whose rules are tested here too."""

from __future__ import annotations

import json
import re
import textwrap
from pathlib import Path
from typing import Any

import pytest

import stub_driver
from onekernel.jit.compile import nvrtc

HERE = Path(__file__).parent
NOTHING = 'extern "C" __global__ void nothing() {}'
START = """
import json, sys
from onekernel.device import get
from onekernel.device.cuda.driver import call, driver
cuda, place = driver(), get("cuda")
"""


def on_stub(code: str, **options: object) -> Any:
    """Run code on the stub and return what it prints as JSON."""
    result = stub_driver.python("-c", START + textwrap.dedent(code), **options)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


@pytest.mark.parametrize(("gpus", "skipped"), [(1, 1), (2, 0)])
def test_the_launch_tests_pass(gpus: int, skipped: int) -> None:
    arguments = ["-m", "pytest", "-m", "gpu", "-p", "stub_driver.emulate", "-p", "no:cacheprovider", "-rs"]
    result = stub_driver.python(*arguments, str(HERE / "test_launch.py"), gpus=gpus)
    counts = {word: int(number) for number, word in re.findall(r"(\d+) (passed|failed|skipped|error)", result.stdout)}
    tests = len(re.findall(r"^def test_", (HERE / "test_launch.py").read_text(), re.MULTILINE))
    assert counts.get("passed") == tests - skipped, result.stdout
    assert counts.get("skipped", 0) == skipped, result.stdout


def test_a_launch_is_one_driver_call() -> None:
    """On an explicit stream: no context is switched, nothing is asked, nothing is loaded late."""
    code = """
        import stub_driver.emulate as stub
        import numpy as np
        from test_launch import COUNT, GRID, Kernel, numbers, request
        stream = 0
        with place.current():
            stream = int(call(cuda.cuStreamCreate, 1))
        counts = {}
        for overlap in (False, True):
            add = Kernel(request(overlap=overlap), place)
            x, y = numbers(1.0, 0.0)
            bound = add.bind(x, y, 1.0, COUNT, grid=GRID)
            for name, launch in (
                ("first", lambda: add.launch(x, y, 1.0, COUNT, grid=GRID, stream=stream)),
                ("checked", lambda: add.launch(x, y, 1.0, COUNT, grid=GRID, stream=stream)),
                ("bound", lambda: bound.launch(stream)),
            ):
                before = stub.calls()
                launch()
                counts[f"{name} {overlap}"] = stub.calls() - before
        print(json.dumps(counts))
    """
    assert set(on_stub(code).values()) == {1}


def test_a_first_use_of_a_cubin_is_checked_as_the_driver_does(tmp_path: Path) -> None:
    for arch in ("sm_80", "sm_86", "sm_90", "sm_120"):
        (tmp_path / arch).write_bytes(nvrtc.compile_cubin("nothing", NOTHING, arch).data)
    code = f"""
        from pathlib import Path
        data = {{path.name: path.read_bytes() for path in Path({str(tmp_path)!r}).iterdir()}}
        libraries = {{name: call(cuda.cuLibraryLoadData, data[name], [], [], 0, [], [], 0) for name in sorted(data)}}
        usable = [name for name in libraries if not int(cuda.cuLibraryGetKernel(libraries[name], b"nothing")[0])]
        print(json.dumps(usable))
    """
    assert on_stub(code, arch=89) == ["sm_80", "sm_86"]
    assert on_stub(code, arch=80) == ["sm_80"]
    assert on_stub(code, arch=90) == ["sm_90"]
    assert on_stub(code, arch=121) == ["sm_120"]


@pytest.mark.parametrize(("version", "driver", "code"), [("9.5", 13000, 222), ("9.0", 13000, 0), ("8.5", 12060, 0)])
def test_ptx_newer_than_the_driver_is_refused(version: str, driver: int, code: int) -> None:
    """As measured on an H200: the load says nothing, asking for the kernel does."""
    ptx = f".version {version}\\n.target sm_90\\n.address_size 64\\n.visible .entry nothing() {{ ret; }}\\0"
    source = f"""
        status, library = cuda.cuLibraryLoadData(b"{ptx}", [], [], 0, [], [], 0)
        print(json.dumps([int(status), int(cuda.cuLibraryGetKernel(library, b"nothing")[0])]))
    """
    assert on_stub(source, driver_version=driver) == [0, code]


def test_the_legacy_stream_is_refused_while_a_blocking_stream_is_captured() -> None:
    code = """
        with place.current():
            stream = call(cuda.cuStreamCreate, 0)
        mode = cuda.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
        before = place.capturing()
        call(cuda.cuStreamBeginCapture, stream, mode)
        during = place.capturing(), place.capturing(int(stream))
        call(cuda.cuStreamEndCapture, stream)
        print(json.dumps([before, *during, place.capturing()]))
    """
    assert on_stub(code) == [False, True, True, False]


def test_what_needs_a_context_says_so() -> None:
    code = """
        answers = [cuda.cuStreamCreate(1), cuda.cuEventCreate(0), cuda.cuMemAlloc(4), cuda.cuGraphInstantiate(0, 0)]
        print(json.dumps([int(answer[0]) for answer in answers]))
    """
    assert on_stub(code) == [201] * 4


def test_memory_that_is_not_there_is_refused() -> None:
    code = """
        import numpy as np
        array = np.ones(4, np.float32)
        with place.current():
            address = int(call(cuda.cuMemAlloc, 16))
            def copy(at, size):
                return int(cuda.cuMemcpyHtoD(at, array.ctypes.data, size)[0])
            answers = [copy(address, 16), copy(address + 4, 12), copy(address + 4, 16), copy(12345, 4)]
            call(cuda.cuMemFree, address)
            answers += [copy(address, 16), int(cuda.cuMemFree(address)[0])]
        print(json.dumps(answers))
    """
    assert on_stub(code) == [0, 0, 1, 1, 1, 1]


def test_an_unknown_function_is_answered_and_no_gpus_are_no_gpus() -> None:
    assert on_stub("print(json.dumps(int(cuda.cuMemPoolCreate(cuda.CUmemPoolProps())[0])))") == 801
    result = stub_driver.python("-c", "from onekernel.device import gpu_count; print(gpu_count())", gpus=0)
    assert result.stdout.strip() == "0", result.stderr


def test_a_share_of_the_multiprocessors_is_what_blocks_are_counted_for() -> None:
    """As MPS gives one: nothing is launched that would wait for blocks which never come."""
    code = """
        import stub_driver.emulate
        from onekernel.errors import DoesNotFit
        from test_launch import meeting
        meet, said = meeting(), []
        for blocks in (66 * 32, 66 * 32 + 1):
            try:
                said.append(meet.prepare(blocks))
            except DoesNotFit as error:
                said.append(error.expected)
        print(json.dumps([place.multiprocessors, *said]))
    """
    count, fits, told = on_stub(code, multiprocessors=132, share=66)
    assert (count, fits) == (66, None)
    assert told == "at most 2112 blocks, which is what fits on Stub GPU at once (they wait for each other)"
    assert on_stub("print(json.dumps(place.multiprocessors))", multiprocessors=132) == 132
    assert on_stub("print(json.dumps(place.multiprocessors))", multiprocessors=60, share=66) == 60


def test_steps_of_a_program_are_graphs_of_overlapping_launches() -> None:
    """One for each kind of step, enqueued again and again, with nothing from the host between."""
    code = """
        from dataclasses import replace
        import stub_driver.emulate as stub
        import numpy as np, torch
        from decoders import CAPACITY, SHAPES, Model, Run
        from onekernel.device.buffer import Buffer
        from onekernel.megakernel.launches.run import Launches
        from onekernel.megakernel.layout import Schedule

        def put(values):
            if getattr(values, "dtype", None) is not torch.bfloat16:
                return place.upload(np.asarray(values))
            memory = place.upload(values.view(torch.int16).numpy())
            return Buffer(replace(memory.view, dtype="bfloat16", owner=memory), read=memory._read)

        prompt, steps = [5, 17, 70], 8
        run = Run(Model(SHAPES["qwen3"]), Schedule(6, slots=0))
        launches = Launches(run.layout, place)
        one = launches.steps({}, torch.device("cpu"))
        one._operands = {name: put(memory) for name, memory in {
            **one._operands, "weights": run.stream, "vectors": run.vectors, "rotation": run.rotation,
            "cache": run.cache, "exchanged": run.mail, "said": np.full(steps, -1, np.int32), "table": run.table,
            "prompt": np.array(prompt, np.int32),
        }.items()} | {"capacity": CAPACITY}
        with place.current():
            stream = int(call(cuda.cuStreamCreate, 1))
        one.run(0, len(prompt), steps, stream=stream)
        place.synchronize()
        said = one._operands["said"].numpy()[len(prompt) - 1 :].tolist()
        overlaps = all(kernel.request.overlap for kernel in launches.kernels.values())
        print(json.dumps([said, run.run(prompt, steps), stub.calls("cuGraphLaunch"), overlaps]))
    """
    said, right, enqueued, overlaps = on_stub(code)
    assert (said, enqueued, overlaps) == (right, 8, True)

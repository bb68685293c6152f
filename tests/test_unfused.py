"""What a model does while its kernels are not there: it runs the operators that they replace."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto

import onekernel
import stub_driver
from onekernel.errors import CompileError, DeviceError, InvalidInput, NotReady
from onekernel.graph.onnx_session import cpu_session
from onekernel.jit import Kernel, build, cache, policy
from small_models import HIDDEN, two_norms
from test_policy import Capturing


@pytest.fixture
def model() -> ModelProto:
    """Two chains of different kinds: one with a residual, one without."""
    return two_norms()


@pytest.fixture
def folder(model: ModelProto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an optimised model, saved."""
    monkeypatch.setenv("ONEKERNEL_DEVICE", "emulated")
    onekernel.optimize(model, "auto", gpu="h200", out=tmp_path / "fast")
    return tmp_path / "fast"


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Hold back every build in the background until the event is set."""
    event = threading.Event()

    def late(*arguments: Any) -> Kernel:
        assert event.wait(60)
        return Kernel(*arguments)

    monkeypatch.setattr(policy, "Kernel", late)
    yield event
    event.set()


def inputs(rows: int = 5) -> dict[str, Any]:
    return {"x": np.random.default_rng(rows).standard_normal((rows, HIDDEN)).astype(np.float32)}


def difference(one: dict[str, Any], other: dict[str, Any]) -> float:
    return max(float(np.abs(one[name] - other[name]).max()) for name in one)


def refuse(*_: Any, **__: Any) -> Any:
    raise AssertionError("built or loaded")


def test_background_serves_the_original_and_then_the_kernels(
    folder: Path, model: ModelProto, gate: threading.Event
) -> None:
    fast = onekernel.load(folder, device="emulated", compile="background")
    blocking = onekernel.load(folder, device="emulated", compile="block")
    (original,) = cpu_session(model.SerializeToString()).run(None, inputs())
    before = fast(inputs())
    assert fast.counts == {"unfused": 2}
    assert np.abs(next(iter(before.values())) - original).max() < 1e-5
    gate.set()
    assert fast.engine.supply is not None
    fast.engine.supply.wait()
    after = fast(inputs())
    assert fast.counts == {"unfused": 2, "fused": 2}
    assert difference(after, blocking(inputs())) == 0.0
    assert difference(after, before) < 1e-5


def test_a_build_that_fails_in_the_background_leaves_the_original(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> Kernel:
        raise CompileError("k", error="no such operator", origin="chain:n", line="l", log="")

    monkeypatch.setattr(policy, "Kernel", broken)
    fast = onekernel.load(folder, device="emulated", compile="background")
    expected = fast(inputs())
    assert fast.engine.supply is not None
    fast.engine.supply.wait()
    with pytest.warns(RuntimeWarning, match="its build failed .*no such operator.* runs unfused") as told:
        again = fast(inputs())
    assert len(told) == 2, "once for each of the two kernels"
    fast(inputs())  # and no more: a warning is an error here
    assert difference(again, expected) == 0.0
    assert fast.counts["fused"] == 0


def test_never_uses_what_is_there_and_says_once_what_is_not(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ONEKERNEL_CACHE", str(tmp_path / "empty"))
    fast = onekernel.load(folder, device="emulated", compile="never")
    with pytest.warns(RuntimeWarning, match="the policy is never to build") as told:
        expected = fast(inputs())
    assert len(told) == 2
    fast(inputs())  # a warning is an error here
    assert fast.counts == {"unfused": 4}
    onekernel.load(folder, device="emulated", compile="block")(inputs())  # fills the cache
    again = onekernel.load(folder, device="emulated", compile="never")
    assert difference(again(inputs()), expected) < 1e-5
    assert again.counts == {"fused": 2}


def test_a_shipped_kernel_that_does_not_load_is_no_reason_to_fail(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    onekernel.load(folder, device="emulated", compile="block")(inputs())  # fills the cache

    def unloadable(*_: Any) -> Kernel:
        raise DeviceError("no kernel image is available", 209)

    monkeypatch.setattr(policy, "Kernel", unloadable)
    fast = onekernel.load(folder, device="emulated", compile="never")
    with pytest.warns(RuntimeWarning, match="does not load .no kernel image") as told:
        fast(inputs())
    fast(inputs())
    assert len(told) == 2
    assert fast.counts == {"unfused": 4}


@pytest.mark.parametrize("asked", ["background", "never"])
def test_a_capture_of_a_model_takes_the_other_way(folder: Path, asked: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy, "Kernel", refuse)
    fast = onekernel.load(folder, device=Capturing(), compile=asked)
    fast(inputs())
    assert fast.counts == {"unfused": 2}


def test_under_block_a_capture_without_a_warm_up_is_refused(folder: Path) -> None:
    """Otherwise the graph would hold the operators for ever, and nobody would know."""
    fast = onekernel.load(folder, device=Capturing(), compile="block")
    with pytest.raises(NotReady, match="a stream is being captured; call warm_up"):
        fast(inputs())
    fast.warm_up([inputs()])
    fast(inputs())
    assert fast.counts == {"unfused": 2, "fused": 2}


def test_without_its_operators_a_model_has_no_other_way(folder: Path, gate: threading.Event) -> None:
    for file in folder.glob("segments/*.unfused.onnx"):
        file.unlink()
    manifest = json.loads((folder / "manifest.json").read_text())
    for step in manifest["steps"]:
        step.pop("unfused", None)
    (folder / "manifest.json").write_text(json.dumps(manifest))
    fast = onekernel.load(folder, device="emulated", compile="background")
    with pytest.raises(NotReady, match="it is being built"):
        fast(inputs())
    with pytest.raises(InvalidInput, match="can run unfused"):
        fast.warm_up([inputs()])
    gate.set()


def test_the_setting_is_the_default(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONEKERNEL_COMPILE", "sometimes")
    with pytest.raises(InvalidInput, match="one of block, background, never, got 'sometimes'"):
        onekernel.load(folder, device="emulated")


def test_a_shipped_kernel_of_other_headers_is_not_used(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (path, *_) = sorted(folder.glob("kernels/*/"))
    entry = cache.read(path)
    shipped = dict[str, Any]()
    monkeypatch.setattr(build, "_adopted", shipped)
    build.adopt(entry)
    assert list(shipped.values()) == [entry.binary]
    monkeypatch.setattr(build, "_adopted", shipped := {})
    monkeypatch.setattr(build, "closure", lambda _: {"rows/place.cuh": "// changed"})
    build.adopt(entry)
    assert not shipped


NO_COMPILER = """
import sys
class Hide:
    def find_spec(self, name, path=None, target=None):
        if name == "cuda.bindings.nvrtc":
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Hide())
import numpy as np
import onekernel
fast = onekernel.load(sys.argv[1], device="cuda", compile=sys.argv[2])
try:
    fast({"x": np.ones((5, int(sys.argv[3])), np.float32)})
    print(dict(fast.counts))
except onekernel.errors.InvalidInput as error:
    print(error)
"""


@pytest.mark.parametrize(("compile", "printed"), [("never", "{'fused': 2}"), ("block", "NVRTC")])
def test_shipped_cubins_need_no_compiler(folder: Path, compile: str, printed: str) -> None:
    """On the stub driver, which loads the real cubins and launches them, though they do nothing there."""
    result = stub_driver.python("-c", NO_COMPILER, str(folder), compile, str(HIDDEN), name="NVIDIA H200")
    assert printed in result.stdout, result.stderr


def test_a_warm_model_builds_and_loads_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fast, told = onekernel.load(folder, device="emulated", compile="block"), []
    fast.warm_up([inputs(5), inputs(300)], progress=lambda *step: told.append(step))
    assert told[0][0] == 0
    assert told[-1][0] == told[-1][1]
    assert fast.counts == {"unfused": 4}
    monkeypatch.setattr(build, "compile_request", refuse)
    monkeypatch.setattr(policy, "Kernel", refuse)
    fast(inputs(5))
    fast(inputs(300))
    assert fast.counts["fused"] == 4

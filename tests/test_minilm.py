"""The sentence encoder all-MiniLM-L6-v2, real weights: 13 of 13 chains, and the same meaning."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
import pytest

import minilm as model
import onekernel

pytestmark = pytest.mark.models
SENTENCES = ("someone is eating food", "someone is eating bread", "someone is playing violin")


def meaning(hidden: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Pool a sentence: the mean over tokens, at unit length."""
    pooled = hidden[0].mean(axis=0)
    return np.asarray(pooled / np.linalg.norm(pooled))


def run(path: Path, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, {"input_ids": ids})[0])


@pytest.fixture(scope="module")
def written(minilm: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("minilm") / "minilm.onnx"
    onnx.save(model.build(minilm, length=6), path)
    return path


def test_the_model_is_the_encoder(written: Path, minilm: Path) -> None:
    """Known similarities hold, so that what is fused below is the real thing."""
    food, bread, violin = (meaning(run(written, model.encode_words(minilm, text))) for text in SENTENCES)
    assert food @ bread > 0.7
    assert food @ violin < 0.2


def test_all_chains_are_fused(written: Path, minilm: Path, tmp_path: Path) -> None:
    ids = model.encode_words(minilm, SENTENCES[0])
    onekernel.optimize(str(written), {"input_ids": ids}, gpu="h200", out=tmp_path / "fast")
    fast = onekernel.load(tmp_path / "fast")
    assert len(fast.chains) == 13
    other = model.encode_words(minilm, SENTENCES[1])
    (hidden,) = fast({"input_ids": other}).values()
    reference = run(written, other)
    assert np.linalg.norm(hidden - reference) <= 1e-4 * np.linalg.norm(reference)

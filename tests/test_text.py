"""Text decoders from tiny checkpoints: the engines say the same tokens, streams are wholes, mistakes are named."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import onekernel
from onekernel.megakernel.decoder import greedy_decoder
from onekernel.megakernel.interpret import Interpreter, State, rotations
from onekernel.text.config import TextConfig, read_text
from onekernel.text.model import TextModel
from onekernel.text.weights import TextWeights, read_weights, text_layout
from threads import one_thread  # noqa: F401 (an autouse fixture)

PROMPT, COUNT = [5, 17, 70], 9
LLAMA: dict[str, Any] = {
    "model_type": "llama", "num_hidden_layers": 2, "hidden_size": 96, "intermediate_size": 160,
    "num_attention_heads": 3, "num_key_value_heads": 1, "vocab_size": 300, "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5, "rope_theta": 1e4, "rope_scaling": None, "hidden_act": "silu", "tie_word_embeddings": True,
    "eos_token_id": None,
}  # fmt: skip
QWEN3 = LLAMA | {
    "model_type": "qwen3", "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64,
    "rope_theta": 1e6, "rms_norm_eps": 1e-6, "tie_word_embeddings": False, "attention_bias": False,
}  # fmt: skip
# Seen first by these tests: no size of it is in any table of ours.
OTHER = QWEN3 | {
    "num_hidden_layers": 3, "hidden_size": 132, "intermediate_size": 100, "num_attention_heads": 6,
    "num_key_value_heads": 2, "head_dim": 32, "vocab_size": 261,
}  # fmt: skip
CONFIGS = {"llama": LLAMA, "qwen3": QWEN3, "other": OTHER}


def write(folder: Path, config: dict[str, Any], *, shards: int = 1, dtype: torch.dtype = torch.bfloat16) -> Path:
    """Write a checkpoint with random weights, which depend on names alone."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    names = list(text_layout(read_text(folder)).items())
    tensors = {name: drawn(name, shape).to(dtype) for name, shape in names}
    if shards == 1:
        save_file(tensors, folder / "model.safetensors")
        return folder
    places = {name: f"model-{n % shards + 1:05}-of-{shards:05}.safetensors" for n, name in enumerate(tensors)}
    for place in set(places.values()):
        save_file({name: tensors[name] for name in tensors if places[name] == place}, folder / place)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))
    return folder


def drawn(name: str, shape: tuple[int, ...]) -> torch.Tensor:
    key = int.from_bytes(name.encode(), "little") % 2**63
    values = torch.randn(shape, generator=torch.Generator().manual_seed(key))
    if len(shape) == 1:
        return 1 + 0.1 * values
    return values if "embed" in name else values * shape[1] ** -0.5


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Write each checkpoint once; that of `qwen3` in shards."""
    place = tmp_path_factory.mktemp("texts")
    return cache(lambda name: write(place / name, CONFIGS[name], shards=2 if name == "qwen3" else 1))


@pytest.fixture(scope="module")
def models(folders: Callable[[str], Path]) -> Callable[..., TextModel]:
    """Load each checkpoint once with each engine."""

    @cache
    def load(name: str, engine: str) -> TextModel:
        device = "emulated" if engine == "megakernel" else "cpu"
        return onekernel.load_text(folders(name), device=device, engine=engine)

    return load


def interpreted(config: TextConfig, folder: Path, prompt: list[int], count: int) -> list[int]:
    """Run the program with float64 arrays: it knows neither of the engines."""
    weights = TextWeights(config, read_weights(folder, config), "cpu")

    def weight(name: str, index: tuple[int, ...]) -> Any:
        return (weights.table() if name == "table" else weights(name, index)).double().numpy()

    def kept(values: Any) -> Any:
        return torch.from_numpy(np.ascontiguousarray(values)).bfloat16().double().numpy()

    steps, shape = len(prompt) - 1 + count, config.shape
    rotation = rotations(steps, shape.head_dim, shape.theta).astype(np.float64)
    program = greedy_decoder(shape)
    return Interpreter(program, weight, rotation, keep=kept).run(State(list(prompt)), steps).said[-count:]


@pytest.mark.parametrize("name", CONFIGS)
def test_the_engines_say_what_the_interpreter_says(
    name: str, models: Callable[..., TextModel], folders: Callable[[str], Path]
) -> None:
    said = {engine: models(name, engine).generate(PROMPT, max_tokens=COUNT) for engine in ("reference", "megakernel")}
    assert said["megakernel"] == said["reference"]
    config = models(name, "reference").config
    assert list(said["reference"].tokens) == interpreted(config, folders(name), PROMPT, COUNT)
    assert said["reference"].finish == "length"

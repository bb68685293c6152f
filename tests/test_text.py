"""Text decoders from tiny checkpoints: the engines say the same tokens, streams are wholes, mistakes are named."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE

import onekernel
from benchmarks import text as bench
from onekernel.device.emulated import EmulatedDevice
from onekernel.errors import InvalidInput
from onekernel.megakernel.decoder import greedy_decoder
from onekernel.megakernel.interpret import Interpreter, State, rotations
from onekernel.text.config import TextConfig, read_text
from onekernel.text.model import TextModel
from onekernel.text.weights import TextWeights, read_weights, text_layout

PROMPT, COUNT = [5, 17, 70], 9
ENGINES = ("reference", "launches", "megakernel")
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
    return values * (0.3 if "embed" in name else 2 * shape[1] ** -0.5)  # so that it says one thing after another


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
        device = "cpu" if engine == "reference" else "emulated"
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
    said = {engine: models(name, engine).generate(PROMPT, max_tokens=COUNT) for engine in ENGINES}
    assert said["launches"] == said["megakernel"] == said["reference"]
    config = models(name, "reference").config
    assert list(said["reference"].tokens) == interpreted(config, folders(name), PROMPT, COUNT)
    assert said["reference"].finish == "length"
    assert len(set(said["reference"].tokens)) > COUNT // 2


@pytest.mark.gpu
@pytest.mark.parametrize("engine", ["auto", "launches"])
@pytest.mark.parametrize("name", CONFIGS)
def test_a_gpu_says_the_same(
    name: str, engine: str, models: Callable[..., TextModel], folders: Callable[[str], Path]
) -> None:
    model = onekernel.load_text(folders(name), device="cuda", engine=engine)
    assert model.engine.name == ("megakernel" if engine == "auto" else engine)
    assert model.refusals == ()
    assert model.generate(PROMPT, max_tokens=100) == models(name, "reference").generate(PROMPT, max_tokens=100)


def test_float16_stays_float16(tmp_path: Path) -> None:
    folder = write(tmp_path / "half", QWEN3 | {"torch_dtype": "float16"}, dtype=torch.float16)
    kernel = onekernel.load_text(folder, device="emulated", engine="megakernel")
    reference = onekernel.load_text(folder, device="cpu", engine="reference")
    assert kernel.config.shape.weights == "float16"
    assert TextWeights(kernel.config, read_weights(folder, kernel.config), "cpu").table().dtype == torch.float16
    assert kernel.generate(PROMPT, max_tokens=COUNT) == reference.generate(PROMPT, max_tokens=COUNT)


# ---- answers as they are made


@pytest.mark.parametrize("at_once", [1, 2, 5, 64])
@pytest.mark.parametrize("engine", ENGINES)
def test_a_stream_is_the_whole_however_it_is_cut(engine: str, at_once: int, models: Callable[..., TextModel]) -> None:
    model = models("qwen3", engine)
    stream = model.stream(PROMPT, max_tokens=COUNT, at_once=at_once)
    whole = models("qwen3", "reference").generate(PROMPT, max_tokens=COUNT)
    assert [token.id for token in stream] == list(whole.tokens) == stream.tokens
    assert (stream.finish, list(stream)) == ("length", [])


@pytest.mark.parametrize("engine", ENGINES)
def test_requests_share_nothing(engine: str, models: Callable[..., TextModel]) -> None:
    """Two take turns; one of them is long, so that the table of rotations grows while the other is on its way."""
    model = models("llama", engine)
    right = {n: model.generate([n], max_tokens=COUNT).tokens for n in (1, 2)}
    first, second = model.stream([1], max_tokens=COUNT), model.stream([2], max_tokens=100)
    pairs = [(next(first).id, next(second).id) for _ in range(COUNT)]
    assert tuple(zip(*pairs, strict=True)) == (right[1], right[2])


@pytest.mark.parametrize("at_once", [1, 8])
@pytest.mark.parametrize("engine", ENGINES)
def test_an_end_is_the_last_that_is_made(
    engine: str, at_once: int, models: Callable[..., TextModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not told, nor is what one launch made behind it."""
    model = models("qwen3", engine)
    whole = model.generate(PROMPT, max_tokens=COUNT).tokens
    end = whole[4]
    monkeypatch.setattr(model, "config", replace(model.config, ends=(299, end)))
    found = model.generate(PROMPT, max_tokens=COUNT, at_once=at_once)
    assert (found.tokens, found.finish) == (whole[: whole.index(end)], "eos")


# ---- text


def byte_tokenizer(*control: str) -> Tokenizer:
    """Make a tokenizer whose tokens are bytes, and control tokens behind them."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(BPE({letter: number for number, letter in enumerate(alphabet)}, []))
    made.add_special_tokens([AddedToken(word, special=True) for word in control])
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    return made


@pytest.fixture(scope="module")
def speaking(tmp_path_factory: pytest.TempPathFactory) -> TextModel:
    """A model with a tokenizer; it talks nonsense."""
    folder = write(tmp_path_factory.mktemp("speaking") / "model", LLAMA)
    byte_tokenizer("<end>").save(str(folder / "tokenizer.json"))
    return onekernel.load_text(folder, device="cpu")


def test_a_text_is_its_tokens(speaking: TextModel) -> None:
    assert speaking.tokenizer is not None
    prompt = "Grüße, \U0001f600 <end>"
    tokens = speaking.tokenizer.encode(prompt)
    assert len(tokens) == len("Grüße, \U0001f600 ".encode()) + 1
    assert speaking.generate(prompt, max_tokens=5) == speaking.generate(tokens, max_tokens=5)


def test_a_character_is_told_when_all_its_bytes_are_there(speaking: TextModel) -> None:
    assert speaking.tokenizer is not None
    pieces = speaking.tokenizer.pieces()
    told = [pieces.push(token) for token in speaking.tokenizer.encode("aß<end>\U0001f600")]
    assert told == ["a", "", "ß", "", "", "", "", "\U0001f600"]


def test_pieces_are_the_text(speaking: TextModel) -> None:
    stream = speaking.stream("Hi", max_tokens=30)
    assert "".join(token.text for token in stream) == stream.text == speaking.generate("Hi", max_tokens=30).text != ""


# ---- checkpoints


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_other_floats_are_rounded_to_bfloat16(dtype: torch.dtype, tmp_path: Path) -> None:
    config = read_text(write(tmp_path / "one", LLAMA, dtype=dtype))
    weights = TextWeights(config, read_weights(tmp_path / "one", config), "cpu")
    kept = load_file(tmp_path / "one" / "model.safetensors")["model.layers.1.mlp.down_proj.weight"]
    assert kept.dtype == dtype
    assert weights("down", (1,)).dtype == weights.table().dtype == torch.bfloat16
    assert torch.equal(weights("down", (1,)), kept.bfloat16())


@pytest.mark.parametrize("shift", [0, 4])
def test_the_table_is_where_the_kernel_can_read_it(shift: int, folders: Callable[[str], Path]) -> None:
    """A tensor that is mapped from a file may lie at any multiple of 8 bytes."""
    config = read_text(folders("llama"))
    mapped = torch.ones(300 * 96 + 8, dtype=torch.bfloat16)[shift : shift + 300 * 96].view(300, 96)
    table = TextWeights(config, {"model.embed_tokens.weight": mapped}, "cpu").table()
    assert table.data_ptr() % 16 == 0
    assert torch.equal(table, mapped)


def test_what_is_not_used_may_lie_in_the_file(tmp_path: Path, models: Callable[..., TextModel]) -> None:
    """A head that is tied anyway, and frequencies as old files have them."""
    file = write(tmp_path / "one", LLAMA) / "model.safetensors"
    spare = {"lm_head.weight": torch.zeros(300, 96), "model.layers.1.self_attn.rotary_emb.inv_freq": torch.zeros(16)}
    save_file(load_file(file) | spare, file)
    found = onekernel.load_text(tmp_path / "one", device="cpu").generate(PROMPT, max_tokens=COUNT)
    assert found == models("llama", "reference").generate(PROMPT, max_tokens=COUNT)


@pytest.mark.parametrize(
    ("fields", "theta"),
    [
        ({"rope_theta": 5e5}, 5e5),
        ({"rope_theta": 5e5, "rope_scaling": {"rope_type": "default"}}, 5e5),
        ({"rope_theta": None, "rope_parameters": {"rope_type": "default", "rope_theta": 7e3}}, 7e3),
        ({"rope_theta": None}, 1e4),
    ],
)
def test_the_base_of_rotations_is_where_either_transformers_writes_it(
    fields: dict[str, Any], theta: float, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA | fields))
    assert read_text(tmp_path).shape.theta == theta


def test_ends_are_those_of_the_generation_config_first(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA | {"eos_token_id": 7}))
    assert read_text(tmp_path).ends == (7,)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [3, 4]}))
    assert read_text(tmp_path).ends == (3, 4)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": 300}))
    with pytest.raises(InvalidInput, match=r"eos_token_id in .* as whole numbers from 0 to 299, got 300"):
        read_text(tmp_path)


# ---- mistakes


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"model_type": "mistral"}, "model_type in .* as llama or qwen3, got 'mistral'"),
        ({"hidden_act": "gelu"}, "hidden_act in .* as 'silu', got 'gelu'"),
        ({"attention_bias": True}, "attention_bias in .* as False, got True"),
        ({"mlp_bias": True}, "mlp_bias in .* as False"),
        ({"use_sliding_window": True}, "use_sliding_window in .* as False"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "layer_types in .* as full_attention in every"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8}}, "rope_scaling.rope_type in .* got 'llama3'"),
        ({"rope_scaling": {"type": "linear", "factor": 2}}, "rope_scaling.rope_type in .* got 'linear'"),
        ({"rope_parameters": {"rope_type": "yarn"}}, "rope_parameters.rope_type in .* got 'yarn'"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor in .* as 1.0, got 0.5"),
        ({"quantization_config": {"bits": 4}}, "quantization_config in .* as nothing"),
        ({"num_key_value_heads": 2}, "num_key_value_heads in .* as a divisor of the 3 heads, got 2"),
        ({"head_dim": 33}, "head_dim in .* as an even number"),
        ({"hidden_size": None}, "hidden_size in .* as a value, got 'nothing'"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings in .* as true or false, got 'yes'"),
        ({"tie_word_embeddings": False}, r"1 missing \(lm_head.weight\)"),
        ({"num_hidden_layers": 1}, r"9 extra \(model.layers.1.input_layernorm"),
        ({"vocab_size": 301}, r"1 wrong \(model.embed_tokens.weight as BF16 \[300, 96\]"),
    ],
)
def test_a_model_that_we_do_not_compute_is_refused(
    fields: dict[str, Any], words: str, tmp_path: Path, folders: Callable[[str], Path]
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA | fields))
    (tmp_path / "model.safetensors").symlink_to(folders("llama") / "model.safetensors")
    with pytest.raises(InvalidInput, match=words):
        onekernel.load_text(tmp_path, device="cpu")


def test_qwen3_tells_its_head_dim(tmp_path: Path) -> None:
    """The quotient that a Llama has would be wrong."""
    (tmp_path / "config.json").write_text(json.dumps({**QWEN3, "head_dim": None}))
    with pytest.raises(InvalidInput, match=r"head_dim in .* as a value"):
        read_text(tmp_path)


@pytest.mark.parametrize(
    ("fields", "words"),
    [({"head_dim": 48}, "heads of 48 dimensions"), ({"intermediate_size": 162}, "not in groups of four")],
)
def test_what_the_kernel_has_not_the_reference_does(fields: dict[str, Any], words: str, tmp_path: Path) -> None:
    folder = write(tmp_path / "one", LLAMA | fields)
    with pytest.raises(InvalidInput, match=f"{words}.*use the engine reference"):
        onekernel.load_text(folder, device="emulated", engine="megakernel")
    model = onekernel.load_text(folder, device="emulated")
    assert model.engine.name == "reference"
    assert [(one.name, words in one.reason) for one in model.refusals] == [("megakernel", True), ("launches", True)]
    assert model.generate(PROMPT, max_tokens=2).finish == "length"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"engine": "onnx"}, "engine as auto, reference, launches, megakernel, got 'onnx'"),
        ({"device": "tpu"}, "device as cpu, cuda, cuda:N or emulated, got 'tpu'"),
        ({"device": "cpu", "engine": "megakernel"}, "cuda or emulated, for the engine megakernel, got cpu"),
        ({"device": "cpu", "engine": "launches"}, "cuda or emulated, for the engine launches, got cpu"),
    ],
)
def test_an_engine_that_is_not_there_is_refused(
    options: dict[str, str], words: str, folders: Callable[[str], Path]
) -> None:
    with pytest.raises(InvalidInput, match=words):
        onekernel.load_text(folders("llama"), **options)


@pytest.mark.parametrize(
    ("prompt", "options", "words"),
    [
        ("Hello", {}, "the folder has no tokenizer.json, got a text"),
        ([], {}, "at least one token, got none"),
        ([1, 300], {}, "tokens from 0 to 299, got 300"),
        ([-1], {}, "tokens from 0 to 299, got -1"),
        ([1], {"max_tokens": 0}, "max_tokens of at least 1, got 0"),
        ([1], {"at_once": 0}, "at_once of at least 1, got 0"),
        ([1] * 10, {"max_tokens": 119}, "at most 128 tokens, prompt and answer together, got 129"),
        ([1], {"temperature": 0.7, "top_p": 0.9}, "no sampling: decoding is greedy, got temperature, top_p"),
    ],
)
def test_a_request_that_cannot_be_is_refused(
    prompt: Any, options: dict[str, Any], words: str, models: Callable[..., TextModel]
) -> None:
    model = models("llama", "reference")
    for ask in (model.generate, model.stream):
        with pytest.raises(InvalidInput, match=words):
            ask(prompt, **options)


@pytest.mark.parametrize("library", ["torch", "tokenizers"])
def test_a_library_that_is_missing_is_named(library: str) -> None:
    code = f"import sys; sys.modules[{library!r}] = None; import onekernel; onekernel.load_text('folder')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "MissingExtra" in done.stderr
    assert f"the library {library!r}" in done.stderr
    assert "pip install 'onekernel[text]'" in done.stderr


@pytest.mark.parametrize(("content", "words"), [("{", "a tokenizer at"), (None, "at most 300 entries in .*, got 306")])
def test_a_tokenizer_of_another_model_is_refused(content: str | None, words: str, tmp_path: Path) -> None:
    folder = write(tmp_path / "one", LLAMA)
    byte_tokenizer(*(f"<{n}>" for n in range(50))).save(str(folder / "tokenizer.json"))
    if content is not None:
        (folder / "tokenizer.json").write_text(content)
    with pytest.raises(InvalidInput, match=words):
        onekernel.load_text(folder, device="cpu")


# ---- the benchmark, on a small checkpoint


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> bench.Model:
    """Both engines of one checkpoint, on the emulated device."""
    folder = write(tmp_path_factory.mktemp("measured") / "model", QWEN3)
    byte_tokenizer("<end>").save(str(folder / "tokenizer.json"))
    return bench.prepare(folder, EmulatedDevice(), "cpu")


def test_the_benchmark_compares_the_engines(measured: bench.Model) -> None:
    rows = list(bench.parity(measured, ("Hi", "you"), 6))
    assert [(row["measured"], row["least"]) for row in rows] == [(6, 6)] * 3
    assert not bench.failed(rows)


def test_the_benchmark_tells_a_difference_from_a_tie(measured: bench.Model) -> None:
    request = measured.reference.begin(PROMPT, 20)
    right = [request.say(1)[0] for _ in range(3)]
    second = int(request.logits.topk(2).indices[1])
    row = bench.agreement(measured.reference, PROMPT, [*right[:2], second, 0])
    assert (row["measured"], row["least"]) == (2, 4)
    assert row["gap"] > bench.TIE
    assert bench.failed([row])
    logits = request.logits.clone()
    logits[second] = logits[right[2]]
    tied = SimpleNamespace(begin=lambda *_: SimpleNamespace(say=lambda _: right[2:], logits=logits))
    row = bench.agreement(tied, PROMPT, [second])  # type: ignore[arg-type]
    assert row == {"measured": 0, "least": 0, "gap": 0.0}


def test_the_peer_of_still_shapes_is_the_reference(measured: bench.Model) -> None:
    decoder = measured.reference.decoder
    still, right = bench.StaticContext(decoder, 8), decoder.context(8)
    for token in PROMPT:
        one = torch.tensor([token])
        assert torch.allclose(decoder(one, still), decoder(one, right), rtol=1e-4, atol=1e-5)

"""A checkpoint is loaded to the last tensor, in little memory, or refused with what is wrong."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from onekernel.errors import InvalidInput, MissingExtra
from onekernel.speech.weights import load_weights
from speech_checkpoint import GENERATION, Dims, write

ROOT = Path(__file__).parents[1]
KINDS = [("base", "0b6"), ("custom_voice", "0b6"), ("base", "1b7"), ("custom_voice", "1b7"), ("voice_design", "1b7")]
LM, CODEC = "model.safetensors", "speech_tokenizer/model.safetensors"
PROJECTION = "talker.code_predictor.small_to_mtp_projection.weight"


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    dims = Dims(encoder=(16, 32, 2, 8, 2, 4, 20, 8))  # more codebooks than are used, as in the released codec
    return write(tmp_path_factory.mktemp("written"), "base", "1b7", dims=dims)


@pytest.fixture
def folder(written: Path, tmp_path: Path) -> Path:
    """A checkpoint of 1.7B-Base that a test may damage."""
    return Path(shutil.copytree(written, tmp_path / "checkpoint"))


def edit(file: Path, **changes: Any) -> None:
    """Change fields of a JSON file, also of the section that a name with a dot starts with."""
    values = json.loads(file.read_text("utf-8"))
    for name, value in changes.items():
        section, _, last = name.rpartition("__")
        (values[section] if section else values)[last] = value
    file.write_text(json.dumps(values), encoding="utf-8")


def change(file: Path, changes: dict[str, torch.Tensor | None]) -> None:
    """Replace, add or remove tensors of a file."""
    tensors = {name: tensor.clone() for name, tensor in load_file(file).items()}
    save_file({name: tensor for name, tensor in (tensors | changes).items() if tensor is not None}, file)


@pytest.mark.parametrize(("kind", "size"), KINDS)
def test_every_kind_is_loaded(tmp_path: Path, kind: str, size: str) -> None:
    weights = load_weights(write(tmp_path, kind, size))
    lm, codec = load_file(tmp_path / LM), load_file(tmp_path / CODEC)
    assert (weights.config.kind, weights.config.size) == (kind, size)
    assert weights.tensors.keys() == lm.keys()
    assert all(torch.equal(weights.tensors[name], lm[name]) for name in lm)
    assert all(torch.equal(weights.codec[name], codec[name]) for name in codec)
    assert any(name.startswith("speaker_encoder.") for name in lm) == (kind == "base")
    assert (PROJECTION in lm) == (size == "1b7")


@pytest.mark.parametrize("dtype", ["bfloat16", "float32", None])
@pytest.mark.parametrize("stored", [torch.bfloat16, torch.float32, torch.float16])
def test_weights_have_the_dtype_that_is_asked_for(folder: Path, dtype: Any, stored: torch.dtype) -> None:
    lm = {name: tensor.to(stored) for name, tensor in load_file(folder / LM).items()}
    save_file(lm, folder / LM)
    weights = load_weights(folder, dtype=dtype)
    wanted = getattr(torch, dtype) if dtype else stored
    assert all(torch.equal(weights.tensors[name], lm[name].to(wanted)) for name in lm)
    assert {tensor.dtype for tensor in weights.tensors.values()} == {wanted}
    assert {tensor.dtype for tensor in weights.codec.values()} == {torch.float32}


def test_weights_are_put_on_a_device(folder: Path) -> None:
    weights = load_weights(folder, device="meta")
    held = [*weights.tensors.values(), *weights.codec.values()]
    assert {tensor.device.type for tensor in held} == {"meta"}


def test_a_voice_that_was_trained_in_just_works(folder: Path) -> None:
    """The official script for one speaker: another kind, the vector in row 3000, no speaker encoder."""
    edit(folder / "config.json", tts_model_type="custom_voice", talker_config__spk_id={"me": 3000},
         talker_config__spk_is_dialect={"me": False})  # fmt: skip
    rows = load_file(folder / LM)["talker.model.codec_embedding.weight"].clone()
    rows[3000] = 7
    speaker = [name for name in load_file(folder / LM) if name.startswith("speaker_encoder.")]
    change(folder / LM, {**dict.fromkeys(speaker), "talker.model.codec_embedding.weight": rows})
    weights = load_weights(folder)
    row = weights.config.talker.speakers["me"]
    assert bool((weights.tensors["talker.model.codec_embedding.weight"][row] == 7).all())
    assert weights.config.talker.dialects == {}


# --- damage


@pytest.mark.parametrize("file", [LM, CODEC])
@pytest.mark.parametrize("fault", ["missing", "extra", "shape", "dtype"])
def test_a_tensor_that_is_off_is_named(folder: Path, file: str, fault: str) -> None:
    name = {LM: "talker.model.layers.2.mlp.up_proj.weight", CODEC: "encoder.downsample.conv.weight"}[file]
    tensor = load_file(folder / file)[name].clone()
    faults: dict[str, tuple[dict[str, torch.Tensor | None], str]] = {
        "missing": ({name: None}, rf"got 1 missing \({name}\); use"),
        "extra": ({"rotary.inv_freq": tensor}, r"got 1 extra \(rotary\.inv_freq\); use"),
        "shape": ({name: tensor[1:].clone()}, rf"got 1 wrong \({name} as \w+ \[\d.*instead of"),
        "dtype": ({name: tensor.double()}, rf"got 1 wrong \({name} as F64 .*instead of"),
    }
    change(folder / file, faults[fault][0])
    with pytest.raises(InvalidInput, match=faults[fault][1]):
        load_weights(folder)


def test_a_codec_in_half_precision_is_refused(folder: Path) -> None:
    save_file({name: tensor.bfloat16() for name, tensor in load_file(folder / CODEC).items()}, folder / CODEC)
    with pytest.raises(InvalidInput, match=r"\d\d+ wrong \(.* as BF16 .* instead of F32"):
        load_weights(folder)


@pytest.mark.parametrize("file", [LM, CODEC])
@pytest.mark.parametrize("part", [0.0, 1e-4, 0.01, 0.5, 0.9999])
def test_a_file_cut_short_is_refused(folder: Path, file: str, part: float) -> None:
    content = (folder / file).read_bytes()
    (folder / file).write_bytes(content[: int(part * len(content))])
    with pytest.raises(InvalidInput, match=rf"a safetensors file at .*{file}, got one that cannot be read"):
        load_weights(folder)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"talker_config__num_hidden_layers": 4}, r"11 missing \(talker\.model\.layers\.3\.input_layernorm"),
        ({"talker_config__num_hidden_layers": 2}, r"11 extra \(talker\.model\.layers\.2\.input_layernorm"),
        ({"talker_config__vocab_size": 3000}, r"2 wrong \(talker\.codec_head\.weight as BF16 \[3072, 128\] instead"),
        ({"tts_model_type": "voice_design"}, r"extra \(speaker_encoder\."),
    ],
)
def test_a_config_of_other_weights_is_refused(folder: Path, changes: dict[str, Any], words: str) -> None:
    edit(folder / "config.json", **changes)
    with pytest.raises(InvalidInput, match=words):
        load_weights(folder)


def test_more_codebooks_than_there_are_is_refused(folder: Path) -> None:
    edit(folder / "speech_tokenizer" / "config.json", encoder_valid_num_quantizers=99)
    with pytest.raises(InvalidInput, match=r"at most .*, the codebooks of the encoder, got 99"):
        load_weights(folder)


@pytest.mark.parametrize(
    ("gone", "words"),
    [
        ("config.json", r"config at .*config\.json, got no such file"),
        ("speech_tokenizer", r"config at .*speech_tokenizer/config\.json, got no such file"),
        (LM, r"file at .*model\.safetensors, got no such file"),
        (CODEC, r"file at .*speech_tokenizer/model\.safetensors, got no such file"),
    ],
)
def test_what_is_not_there_is_named(folder: Path, gone: str, words: str) -> None:
    (shutil.rmtree if (folder / gone).is_dir() else Path.unlink)(folder / gone)
    with pytest.raises(InvalidInput, match=words):
        load_weights(folder)


def test_no_torch_is_a_missing_extra(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingExtra, match=r"onekernel\[speech\]"):
        load_weights(folder)


# --- how codes are chosen


def _defaults(folder: Path) -> dict[str, Any]:
    names = {"sub_do_sample": "subtalker_dosample"}
    defaults = load_weights(folder).defaults
    found = asdict(defaults.sampling) | {"max_new_tokens": defaults.max_new_tokens}
    return {names.get(name, name.replace("sub_", "subtalker_")): value for name, value in found.items()}


def test_defaults_are_those_of_the_file(folder: Path) -> None:
    file = folder / "generation_config.json"
    assert _defaults(folder) == GENERATION
    others = {
        "do_sample": False, "repetition_penalty": 1, "temperature": 0.5, "top_p": 0.25, "top_k": 0, "max_new_tokens": 1,
        "subtalker_dosample": False, "subtalker_temperature": 2, "subtalker_top_p": 0.5, "subtalker_top_k": 9,
    }  # fmt: skip
    file.write_text(json.dumps(others | {"transformers_version": "4.57.3"}))
    assert _defaults(folder) == others


def test_what_the_file_leaves_out_is_as_in_the_official_class(folder: Path) -> None:
    file = folder / "generation_config.json"
    hard = GENERATION | {"max_new_tokens": 2048}
    file.write_text('{"top_k": 7, "temperature": null}')
    assert _defaults(folder) == hard | {"top_k": 7}
    file.unlink()
    assert _defaults(folder) == hard


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("do_sample", 1), ("temperature", 0), ("temperature", -1.0), ("temperature", float("inf")),
        ("temperature", float("nan")), ("temperature", "0.9"), ("temperature", True), ("top_p", 0), ("top_p", 1.01),
        ("top_k", -1), ("top_k", 50.0), ("repetition_penalty", 0), ("max_new_tokens", 0), ("subtalker_top_k", -1),
        ("subtalker_dosample", "yes"), ("subtalker_temperature", 0), ("subtalker_top_p", -0.5),
    ],
)  # fmt: skip
def test_a_default_out_of_range_is_refused(folder: Path, name: str, value: Any) -> None:
    edit(folder / "generation_config.json", **{name: value})
    with pytest.raises(InvalidInput, match=rf"expected {name} as .*generation_config\.json, got"):
        load_weights(folder)


@pytest.mark.parametrize("content", ["", "[]", "{"])
def test_defaults_that_cannot_be_read_are_refused(folder: Path, content: str) -> None:
    (folder / "generation_config.json").write_text(content)
    with pytest.raises(InvalidInput, match=r"generation_config\.json"):
        load_weights(folder)


# --- memory

MEASURE = """
import re, sys
from pathlib import Path
import torch
from onekernel.speech.weights import load_weights

torch.set_num_threads(1)
status = Path("/proc/self/status")
def peak():
    return int(re.search(r"VmHWM:\\s+(\\d+)", status.read_text())[1]) * 1024
load_weights(Path(sys.argv[1]))  # the libraries' own
before = peak()
weights = load_weights(Path(sys.argv[2]), dtype=sys.argv[3])
total = sum(float(tensor.sum()) for tensor in (*weights.tensors.values(), *weights.codec.values()))  # reads all of it
print(peak() - before, sum(tensor.nbytes for tensor in weights.tensors.values()), total)
"""
SLACK = 16 << 20  # bytes: the folded codebooks, and what an allocator keeps


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """About 200 MB, most of it the language model's."""
    dims = Dims(wide=1024, narrow=256, layers=6, predictor_layers=1)
    return write(tmp_path_factory.mktemp("large"), "voice_design", "1b7", dims=dims)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_the_peak_of_memory(written: Path, large: Path, dtype: str) -> None:
    """Mapped pages count too, although the system may take them back. What is converted is held beside them, once."""
    command = [sys.executable, "-c", MEASURE, str(written), str(large), dtype]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    growth, held, _ = map(float, done.stdout.split())
    files = sum((large / file).stat().st_size for file in (LM, CODEC))
    assert files > 190e6
    assert growth > 0.5 * files  # it was read, and measured
    assert growth <= 1.2 * files + (held if dtype == "float32" else 0) + SLACK

"""Which tensors a released checkpoint holds: names and shapes follow from its config, to the last parameter."""

from __future__ import annotations

import hashlib
import json
from math import prod
from pathlib import Path
from typing import Any

import pytest

from onekernel.errors import InvalidInput
from onekernel.speech.config import read_codec, read_speech
from onekernel.speech.layout import Layout, codec_layout, speech_layout

FILES = Path(__file__).parent / "qwen3_tts"
RELEASED = {  # tensors, parameters (published with the checkpoints), and the digest of all names and shapes
    "0.6B-Base": (478, 914_643_008, "0ad366b8bd510f06"),
    "0.6B-CustomVoice": (402, 905_788_672, "d0d3449a757be69f"),
    "1.7B-Base": (480, 1_928_677_440, "7474e322be7aef10"),
    "1.7B-CustomVoice": (404, 1_916_676_352, "895986a06edd89e8"),
    "1.7B-VoiceDesign": (404, 1_916_676_352, "895986a06edd89e8"),
}


def digest(layout: Layout) -> str:
    lines = sorted(f"{name} {list(shape)}" for name, shape in layout.items())
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


@pytest.mark.parametrize("name", RELEASED)
def test_a_released_model_has_these_tensors(name: str) -> None:
    layout = speech_layout(read_speech(FILES / f"Qwen3-TTS-12Hz-{name}"))
    assert (len(layout), sum(map(prod, layout.values())), digest(layout)) == RELEASED[name]


def test_the_released_codec_has_these_tensors() -> None:
    layout = codec_layout(read_codec(FILES / "common" / "speech_tokenizer"))
    assert (len(layout), sum(map(prod, layout.values()))) == (496, 170_557_441)
    assert digest(layout) == "47af3a1e193f97be"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"tts_model_type": "another"}, "tts_model_type in .* as one of base"),
        ({"tokenizer_type": "qwen3_tts_tokenizer_25hz"}, "tokenizer_type"),
        ({"talker_config": None}, "talker_config in .* as a value, got 'nothing'"),
        ({"talker_config": 3}, "talker_config in .* as an object"),
        ({"im_end_token_id": None}, "im_end_token_id"),
    ],
)
def test_a_config_of_another_model_is_refused(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    config = json.loads((FILES / "Qwen3-TTS-12Hz-1.7B-Base" / "config.json").read_text("utf-8"))
    (tmp_path / "config.json").write_text(json.dumps(config | change))
    with pytest.raises(InvalidInput, match=words):
        read_speech(tmp_path)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("num_hidden_layers", "3", "a whole number above 0, got '3'"),
        ("num_hidden_layers", 3.0, "a whole number above 0"),
        ("hidden_size", True, "a whole number above 0"),
        ("head_dim", 0, "a whole number above 0"),
        ("rms_norm_eps", "small", "a number above 0"),
        ("codec_eos_token_id", 99_999, "from 0 to 3071"),
        ("spk_id", {"anna": 99_999}, r"talker_config\.spk_id\.anna in .* from 0 to 3071"),
        ("spk_id", ["anna"], "an object"),
        ("codec_language_id", {"chinese": -1}, "from 0 to 3071"),
    ],
)
def test_a_value_that_cannot_be_is_named(tmp_path: Path, name: str, value: Any, words: str) -> None:
    config = json.loads((FILES / "Qwen3-TTS-12Hz-1.7B-Base" / "config.json").read_text("utf-8"))
    config["talker_config"][name] = value
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(InvalidInput, match=words):
        read_speech(tmp_path)


@pytest.mark.parametrize("content", [None, "{", "[]"])
def test_a_config_that_cannot_be_read_is_refused(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    for read in (read_speech, read_codec):
        with pytest.raises(InvalidInput, match="give a Qwen3-TTS 12 Hz checkpoint"):
            read(tmp_path)


def test_factors_of_the_codec_make_a_frame(tmp_path: Path) -> None:
    config = json.loads((FILES / "common" / "speech_tokenizer" / "config.json").read_text("utf-8"))
    (tmp_path / "config.json").write_text(json.dumps(config | {"decode_upsample_rate": 2000}))
    with pytest.raises(InvalidInput, match="as 1920, the product of the upsampling factors, got 2000"):
        read_codec(tmp_path)

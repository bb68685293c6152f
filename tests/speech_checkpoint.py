"""Small Qwen3-TTS checkpoints in the official layout, with weights that depend on nothing but a seed and a name.

Every tensor is drawn from a counter-based generator keyed by its name, and scaled so that activations stay near 1: the
official initialisation leaves LayerScale, gamma and codebooks near 0, and a test would not notice a missing layer.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

from onekernel.speech.config import read_codec, read_speech
from onekernel.speech.layout import codec_layout, speech_layout

_ADDED = """
    <|endoftext|> <|im_start|> <|im_end|> <|object_ref_start|> <|object_ref_end|> <|box_start|> <|box_end|>
    <|quad_start|> <|quad_end|> <|vision_start|> <|vision_end|> <|vision_pad|> <|image_pad|> <|video_pad|> <tool_call>
    </tool_call> <|fim_prefix|> <|fim_middle|> <|fim_suffix|> <|fim_pad|> <|repo_name|> <|file_sep|> <tool_response>
    </tool_response> <think> </think> <|audio_start|> <|audio_end|> <tts_pad> <tts_text_bos> <tts_text_eod>
    <tts_text_bos_single> <|audio_pad|>
"""
ADDED = _ADDED.split()  # behind the entries of the vocabulary, in this order
PLAIN = ADDED[14:26]  # <tool_call> .. </think>: added, and not special
LANGUAGES = {
    "chinese": 2055, "english": 2050, "german": 2053, "italian": 2070, "portuguese": 2071, "spanish": 2054,
    "japanese": 2058, "korean": 2064, "french": 2061, "russian": 2069,
}  # fmt: skip
DIALECTS = {"beijing_dialect": 2074, "sichuan_dialect": 2062}
SPEAKERS = {
    "serena": 3066, "vivian": 3065, "uncle_fu": 3010, "ryan": 3061, "aiden": 2861, "ono_anna": 2873, "sohee": 2864,
    "eric": 2875, "dylan": 2878,
}  # fmt: skip
SPEAKS = dict.fromkeys(SPEAKERS, False) | {"eric": "sichuan_dialect", "dylan": "beijing_dialect"}
GENERATION = {
    "do_sample": True, "repetition_penalty": 1.05, "temperature": 0.9, "top_p": 1.0, "top_k": 50,
    "subtalker_dosample": True, "subtalker_temperature": 0.9, "subtalker_top_p": 1.0, "subtalker_top_k": 50,
    "max_new_tokens": 8192,
}  # fmt: skip


@dataclass(frozen=True)
class Dims:
    """Sizes of a checkpoint; those of `FULL` are the released ones."""

    wide: int = 128  # the talker of 1b7
    narrow: int = 64  # the predictor, and the talker of 0b6
    head: int = 32
    heads: int = 4
    kv_heads: int = 2
    layers: int = 3
    predictor_layers: int = 2
    text: int = 48
    latent: int = 64
    codebook: int = 32
    upsampler: int = 64
    codec: int = 32
    codec_heads: int = 4
    codec_head: int = 16
    codec_layers: int = 2
    window: int = 8
    encoder: tuple[int, ...] = (
        16,
        32,
        2,
        8,
        2,
        4,
        16,
        8,
    )  # as in codec_config
    speaker: tuple[tuple[str, Any], ...] = (
        ("enc_channels", [16, 16, 16, 16, 48]), ("enc_attention_channels", 8), ("enc_res2net_scale", 4),
        ("enc_se_channels", 8),
    )  # fmt: skip


TINY = Dims()
RELEASED = Path(__file__).parent / "qwen3_tts"  # config.json of the released models, and what they share


def write(
    folder: Path,
    kind: str = "custom_voice",
    size: str = "1b7",
    *,
    dims: Dims = TINY,
    seed: int = 1,
) -> Path:
    """Write a checkpoint of a kind ("base", "custom_voice", "voice_design") and a size ("0b6", "1b7")."""
    codec = folder / "speech_tokenizer"
    codec.mkdir(parents=True, exist_ok=True)
    entries = _write_tokenizer(folder)
    _json(folder / "config.json", speech_config(kind, size, entries, dims))
    _json(folder / "generation_config.json", GENERATION)
    _json(codec / "config.json", codec_config(dims))
    extractor = {"feature_extractor_type": "EncodecFeatureExtractor", "feature_size": 1, "padding_side": "right"}
    _json(codec / "preprocessor_config.json", {**extractor, "padding_value": 0.0, "sampling_rate": 24000})
    return _write_weights(folder, seed)


def write_released(folder: Path, name: str, *, seed: int = 1) -> Path:
    """Write random weights at the sizes of a released model, "Qwen3-TTS-12Hz-0.6B-Base", with its own files around."""
    shutil.copytree(RELEASED / "common", folder)
    shutil.copy(RELEASED / name / "config.json", folder)
    _write_added_tokens(folder, len(json.loads((folder / "vocab.json").read_text(encoding="utf-8"))))
    return _write_weights(folder, seed)


def _write_weights(folder: Path, seed: int) -> Path:
    codec = folder / "speech_tokenizer"
    weights = _weights(speech_layout(read_speech(folder)), f"{seed}", torch.bfloat16)
    save_file(weights, folder / "model.safetensors")
    save_file(_weights(codec_layout(read_codec(codec)), f"{seed} codec", torch.float32), codec / "model.safetensors")
    return folder


def speech_config(kind: str, size: str, entries: int, dims: Dims) -> dict[str, Any]:
    """Return config.json of a language model; `entries` is the size of the vocabulary without the added tokens."""
    wide = dims.wide if size == "1b7" else dims.narrow
    common = {
        "attention_bias": False, "attention_dropout": 0, "head_dim": dims.head, "hidden_act": "silu",
        "initializer_range": 0.02, "num_attention_heads": dims.heads, "num_key_value_heads": dims.kv_heads,
        "num_code_groups": 16, "rms_norm_eps": 1e-6, "rope_theta": 1000000, "sliding_window": None,
        "use_sliding_window": False, "use_cache": True,
    }  # fmt: skip
    predictor = {
        **common, "hidden_size": dims.narrow, "intermediate_size": 3 * dims.narrow, "max_position_embeddings": 65536,
        "layer_types": ["full_attention"] * dims.predictor_layers, "model_type": "qwen3_tts_talker_code_predictor",
        "num_hidden_layers": dims.predictor_layers, "rope_scaling": None, "vocab_size": 2048, "max_window_layers": 28,
        "tie_word_embeddings": False, "do_sample": False, "top_k": 50, "temperature": 1.0, "repetition_penalty": 1.0,
        "pad_token_id": None,
    }  # fmt: skip
    side = dims.head // 2 * 20 // 64
    named = kind == "custom_voice"
    talker = {
        **common, "code_predictor_config": predictor, "codec_bos_id": 2149, "codec_eos_token_id": 2150,
        "codec_think_id": 2154, "codec_nothink_id": 2155, "codec_pad_id": 2148, "codec_think_bos_id": 2156,
        "codec_think_eos_id": 2157, "codec_language_id": LANGUAGES | (DIALECTS if named else {}),
        "spk_id": SPEAKERS if named else {}, "spk_is_dialect": SPEAKS if named else {}, "hidden_size": wide,
        "intermediate_size": 3 * wide, "max_position_embeddings": 32768, "model_type": "qwen3_tts_talker",
        "num_hidden_layers": dims.layers, "position_id_per_seconds": 13, "text_hidden_size": dims.text,
        "rope_scaling": {"interleaved": True, "mrope_section": [dims.head // 2 - 2 * side, side, side],
                         "rope_type": "default", "type": "default"},
        "text_vocab_size": -(-(entries + len(ADDED)) // 64) * 64, "vocab_size": 3072,
    }  # fmt: skip
    speaker = {"enc_dim": wide, "sample_rate": 24000, **dict(dims.speaker)}
    ids = {"im_start": 1, "im_end": 2, "tts_pad": 28, "tts_bos": 29, "tts_eos": 30}
    return {
        "architectures": ["Qwen3TTSForConditionalGeneration"], "assistant_token_id": entries,
        **{f"{name}_token_id": entries + place for name, place in ids.items()}, "model_type": "qwen3_tts",
        "tokenizer_type": "qwen3_tts_tokenizer_12hz", "tts_model_size": size, "tts_model_type": kind,
        **({"speaker_encoder_config": speaker} if kind == "base" else {}),
        "talker_config": talker, "transformers_version": "4.57.3",
    }  # fmt: skip


def codec_config(dims: Dims) -> dict[str, Any]:
    """Return config.json of the codec."""
    hidden, mlp, heads, head, layers, filters, books, width = dims.encoder
    decoder = {
        "attention_bias": False, "attention_dropout": 0.0, "latent_dim": dims.latent, "codebook_dim": dims.codebook,
        "codebook_size": 2048, "decoder_dim": dims.upsampler, "hidden_act": "silu", "hidden_size": dims.codec,
        "intermediate_size": 2 * dims.codec,
        "layer_scale_initial_scale": 0.01, "max_position_embeddings": 8000,
        "head_dim": dims.codec_head, "num_attention_heads": dims.codec_heads, "num_hidden_layers": dims.codec_layers,
        "num_key_value_heads": dims.codec_heads, "num_quantizers": 16, "num_semantic_quantizers": 1,
        "rms_norm_eps": 1e-5, "rope_theta": 10000, "semantic_codebook_size": 4096, "sliding_window": dims.window,
        "upsample_rates": [8, 5, 4, 3], "upsampling_ratios": [2, 2],
        "vector_quantization_hidden_dimension": dims.codebook,
    }  # fmt: skip
    encoder = {
        "_frame_rate": 12.5, "attention_bias": False, "attention_dropout": 0.0, "audio_channels": 1,
        "codebook_dim": width,
        "codebook_size": 2048, "compress": 2, "dilation_growth_rate": 2, "dtype": "float32", "head_dim": head,
        "hidden_act": "gelu", "hidden_size": hidden, "initializer_range": 0.02, "intermediate_size": mlp,
        "kernel_size": 7, "last_kernel_size": 3, "layer_scale_initial_scale": 0.01, "max_position_embeddings": 8000,
        "norm_eps": 1e-5, "normalize": False, "num_attention_heads": heads, "num_filters": filters,
        "num_hidden_layers": layers, "num_key_value_heads": heads, "num_quantizers": books, "num_residual_layers": 1,
        "num_semantic_quantizers": 1, "pad_mode": "constant", "residual_kernel_size": 3, "rope_theta": 10000.0,
        "sampling_rate": 24000, "sliding_window": 250, "trim_right_ratio": 1.0, "upsample_groups": hidden,
        "upsampling_ratios": [8, 6, 5, 4], "use_cache": False, "use_causal_conv": True, "use_conv_shortcut": False,
        "use_streaming": False, "vector_quantization_hidden_dimension": width,
    }  # fmt: skip
    return {
        "architectures": ["Qwen3TTSTokenizerV2Model"], "model_type": "qwen3_tts_tokenizer_12hz",
        "encoder_valid_num_quantizers": 16, "input_sample_rate": 24000, "output_sample_rate": 24000,
        "decode_upsample_rate": 1920, "encode_downsample_rate": 1920, "decoder_config": decoder,
        "encoder_config": encoder, "transformers_version": "4.57.3",
    }  # fmt: skip


def _weights(layout: dict[str, tuple[int, ...]], seed: str, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Draw all tensors, several at a time: numpy lets other threads run meanwhile."""
    with ThreadPoolExecutor() as pool:
        drawn = pool.map(lambda item: torch.from_numpy(_weight(*item, seed)).to(dtype), layout.items())
        return dict(zip(layout, drawn, strict=True))


def _weight(name: str, shape: tuple[int, ...], seed: str) -> Any:
    """Draw a tensor; what kind it is, its name tells."""
    key = int.from_bytes(hashlib.sha256(f"{seed} {name}".encode()).digest()[:16], "little")
    draw = np.random.Generator(np.random.Philox(key=key)).standard_normal(shape, dtype=np.float32)
    last, parent = name.rsplit(".", 1)[-1], name.rsplit(".", 2)[-2]
    if last == "initialized":
        return np.ones(shape, np.float32)
    if last == "cluster_usage":
        return 1 + np.abs(draw)
    if last in ("embedding_sum", "embed_sum"):
        return draw
    if last in ("alpha", "beta"):  # of Snake: logarithms
        return 0.2 * draw
    if last in ("scale", "gamma"):
        return 0.3 + 0.1 * draw
    if "norm" in parent:
        return 0.1 * draw + (last == "weight")
    if len(shape) == 1:
        return 0.02 * draw
    if "embedding" in name:
        return 0.5 * draw
    return draw * np.float32(_gain(name, shape))


def _gain(name: str, shape: tuple[int, ...]) -> float:
    if len(shape) == 2:
        sharp = 4.0 if "codec_head" in name or "lm_head" in name else 1.0  # so that some codes are likelier than others
        return sharp * shape[1] ** -0.5
    fan = shape[1] * shape[2]
    if name.startswith("decoder.") and (
        ".block.1.conv" in name or ".0.conv" in name.replace("decoder.decoder.0.conv", "")
    ):
        fan = shape[0] * (shape[2] // 2 if ".block.1." in name else 1)  # transposed: in, out, kernel
    quiet = 0.3 if ".conv2.conv" in name else 0.12 if shape[0] == 1 else 1.0
    return quiet * fan**-0.5


def _write_tokenizer(folder: Path) -> int:
    """Write a vocabulary of bytes in which the role words are one token each; return its size."""
    keep = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = (byte for byte in range(256) if byte not in keep)
    letters = {byte: chr(byte) for byte in keep} | {byte: chr(256 + place) for place, byte in enumerate(others)}
    vocab, merges = [letters[byte] for byte in range(256)], list[str]()
    for word in ("assistant", "user"):
        for end in range(1, len(word)):
            merges.append(f"{word[:end]} {word[end]}")
            vocab.append(word[: end + 1])
    _json(folder / "vocab.json", {token: place for place, token in enumerate(vocab)})
    (folder / "merges.txt").write_text("\n".join(merges) + "\n", encoding="utf-8")
    processor = {"padding_side": "left", "padding_value": 0.0, "processor_class": "Qwen3TTSProcessor"}
    _json(folder / "preprocessor_config.json", {**processor, "return_attention_mask": True})
    _write_added_tokens(folder, len(vocab))
    return len(vocab)


def _write_added_tokens(folder: Path, entries: int) -> None:
    """Write tokenizer_config.json: the added tokens stand behind the entries of the vocabulary."""
    shared = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False}
    added = {
        str(entries + place): {"content": token, **shared, "special": token not in PLAIN}
        for place, token in enumerate(ADDED)
    }
    _json(folder / "tokenizer_config.json", {
        "add_bos_token": False, "add_prefix_space": False, "added_tokens_decoder": added, "bos_token": None,
        "additional_special_tokens": [*ADDED[1:14], *ADDED[26:]], "audio_bos_token": "<|audio_start|>",
        "audio_eos_token": "<|audio_end|>", "audio_token": "<|audio_pad|>", "clean_up_tokenization_spaces": False,
        "eos_token": "<|im_end|>", "errors": "replace", "model_max_length": 131072, "pad_token": "<|endoftext|>",
        "split_special_tokens": False, "tokenizer_class": "Qwen2Tokenizer", "unk_token": None,
    })  # fmt: skip


def _json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


KINDS = ("custom_voice_1b7", "custom_voice_0b6", "voice_design_1b7", "base_1b7", "base_0b6")


def main() -> None:
    """Write one tiny checkpoint of each kind: `python tests/speech_checkpoint.py FOLDER`."""
    for name in KINDS:
        kind, _, size = name.rpartition("_")
        print(write(Path(sys.argv[1]) / name, kind, size))


if __name__ == "__main__":
    main()

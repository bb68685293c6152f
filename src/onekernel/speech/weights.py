"""The tensors of a checkpoint, checked against its config, on a device."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from onekernel.checkpoint import read_tensors
from onekernel.errors import InvalidInput, MissingExtra
from onekernel.speech.config import CodecConfig, SpeechConfig, read_codec, read_speech
from onekernel.speech.layout import codec_layout, speech_layout
from onekernel.speech.request import Sampling

if TYPE_CHECKING:
    import torch

Tensors = Mapping[str, "torch.Tensor"]


@dataclass(frozen=True)
class GenerationDefaults:
    """How codes are chosen unless a request says otherwise, and how many frames there are at most."""

    sampling: Sampling = field(default_factory=Sampling)
    max_new_tokens: int = 2048


@dataclass(frozen=True, eq=False)
class Weights:
    """A checkpoint in memory. Tensors have the names of the file."""

    config: SpeechConfig
    codec_config: CodecConfig
    defaults: GenerationDefaults
    tensors: Tensors  # of the language model, and of the speaker encoder where there is one
    codec: Tensors  # float32


def load_weights(
    folder: Path, *, dtype: Literal["bfloat16", "float32"] | None = "bfloat16", device: str | torch.device = "cpu"
) -> Weights:
    """Read a Qwen3-TTS checkpoint, to the last tensor.

    `dtype` is the language model's (None: as in the file); the codec is float32 whatever it is. On the CPU a tensor
    that already has its dtype stays mapped from the file, and the others are converted one by one. Raises InvalidInput
    for a file that is missing, damaged, or not of this config; and MissingExtra without torch or safetensors.
    """
    try:
        import torch
    except ImportError as error:
        raise MissingExtra("torch", "speech") from error
    codec_folder = folder / "speech_tokenizer"
    config, codec_config = read_speech(folder), read_codec(codec_folder)
    defaults = read_defaults(folder / "generation_config.json")
    file = "model.safetensors"
    tensors = read_tensors(folder / file, speech_layout(config), dtypes=("BF16", "F16", "F32"))
    codec = read_tensors(codec_folder / file, codec_layout(codec_config), dtypes=("F32",))
    return Weights(
        config=config,
        codec_config=codec_config,
        defaults=defaults,
        tensors=_moved(tensors, None if dtype is None else getattr(torch, dtype), device),
        codec=_moved(codec, None, device),
    )


def read_defaults(file: Path) -> GenerationDefaults:
    """Read generation_config.json; what is not there, has the value of the official class. Raises InvalidInput."""
    try:
        values = json.loads(file.read_text("utf-8"))
    except FileNotFoundError:
        return GenerationDefaults()
    except (OSError, ValueError) as error:
        raise _wrong("JSON", file, f"{type(error).__name__}: {error}") from error
    if not isinstance(values, dict):
        raise _wrong("an object", file, repr(values))
    found = {}
    for ours in (*(option.name for option in fields(Sampling)), "max_new_tokens"):
        name = _official(ours)
        if (value := values.get(name)) is not None:
            what, fits = _RANGES[ours.removeprefix("sub_")]
            if not fits(value):
                raise _wrong(f"{name} as {what}", file, repr(value))
            found[ours] = value
    most = found.pop("max_new_tokens", GenerationDefaults.max_new_tokens)
    return GenerationDefaults(Sampling(**found), most)


def _official(name: str) -> str:
    return name.replace("sub_do_sample", "subtalker_dosample").replace("sub_", "subtalker_")


def _is_number(value: Any, most: float) -> bool:
    return type(value) in (int, float) and 0 < value <= most


_FINITE = ("a finite number above 0", lambda value: _is_number(value, sys.float_info.max))
_RANGES: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "do_sample": ("true or false", lambda value: type(value) is bool),
    "temperature": _FINITE,
    "top_k": ("a whole number, 0 for no limit", lambda value: type(value) is int and value >= 0),
    "top_p": ("a number above 0 and at most 1", lambda value: _is_number(value, 1)),
    "repetition_penalty": _FINITE,
    "max_new_tokens": ("a whole number above 0", lambda value: type(value) is int and value > 0),
}


def _wrong(expected: str, file: Path, got: str) -> InvalidInput:
    return InvalidInput(expected=f"{expected} in {file}", got=got, todo="correct it, or remove the file for defaults")


def _moved(tensors: dict[str, torch.Tensor], dtype: torch.dtype | None, device: str | torch.device) -> Tensors:
    """Move and convert tensor by tensor: the device has no more than one of them twice."""
    return {name: tensor.to(device).to(dtype or tensor.dtype) for name, tensor in tensors.items()}

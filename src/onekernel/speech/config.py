"""What a checkpoint says of itself: every size, id and name that the model depends on. Nothing is a constant of ours.

Names follow the official config.json; see docs/speech.md for what each part is.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onekernel.errors import InvalidInput

KINDS = ("base", "custom_voice", "voice_design")


@dataclass(frozen=True)
class Decoder:
    """A Qwen3 decoder: RMSNorm, grouped-query attention with normed heads and half-split RoPE, SwiGLU."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    eps: float
    theta: float


@dataclass(frozen=True)
class Talker:
    """The decoder that says code 0 of each frame; ids are rows of its codec embedding."""

    decoder: Decoder
    vocab: int
    text_vocab: int
    text_hidden: int
    codec_pad: int
    codec_bos: int
    codec_eos: int
    think: int
    nothink: int
    think_bos: int
    think_eos: int
    languages: Mapping[str, int]
    speakers: Mapping[str, int]
    dialects: Mapping[str, str]  # of the speakers that have one


@dataclass(frozen=True)
class Predictor:
    """The decoder that says codes 1 and later of a frame."""

    decoder: Decoder
    vocab: int
    groups: int  # codes of a frame, code 0 included


@dataclass(frozen=True)
class SpeakerEncoder:
    """ECAPA-TDNN: mel spectrogram -> x-vector of the talker's width."""

    width: int
    mels: int
    channels: tuple[int, ...]
    kernels: tuple[int, ...]
    dilations: tuple[int, ...]
    attention: int
    res2net: int
    squeeze: int
    sample_rate: int


@dataclass(frozen=True)
class SpeechConfig:
    """A language model checkpoint. Text ids are those of control tokens in the text vocabulary."""

    kind: str  # one of KINDS
    size: str
    talker: Talker
    predictor: Predictor
    speaker_encoder: SpeakerEncoder | None
    im_start: int
    im_end: int
    tts_pad: int
    tts_bos: int
    tts_eos: int

    @property
    def projects(self) -> bool:
        """Whether the predictor is narrower than the talker and a projection lies between them."""
        return self.talker.decoder.hidden != self.predictor.decoder.hidden


@dataclass(frozen=True)
class CodecDecoder:
    """Codes -> samples."""

    codebooks: int
    codebook_size: int
    codebook_dim: int
    latent: int
    width: int  # of the first convolution of the upsampling decoder
    transformer: Decoder
    window: int
    upsample: tuple[int, ...]  # ConvNeXt stages
    rates: tuple[int, ...]  # Snake stages


@dataclass(frozen=True)
class CodecEncoder:
    """Samples -> codes."""

    filters: int
    strides: tuple[int, ...]  # in the order of the layers
    hidden: int
    transformer: Decoder
    codebooks: int  # in the file
    codebook_size: int
    codebook_dim: int
    kernel: int
    last_kernel: int
    residual_kernel: int


@dataclass(frozen=True)
class CodecConfig:
    """The 12.5 Hz codec."""

    decoder: CodecDecoder
    encoder: CodecEncoder
    used_codebooks: int  # of the encoder's
    sample_rate: int
    frame: int  # samples


def read_speech(folder: Path) -> SpeechConfig:
    """Read FOLDER/config.json. Raises InvalidInput for a file that is missing, unreadable, or of another model."""
    root = _Section.of(folder / "config.json")
    if (family := root.get("tokenizer_type")) != "qwen3_tts_tokenizer_12hz":
        raise root.wrong("tokenizer_type", "qwen3_tts_tokenizer_12hz", family)
    if (kind := root.get("tts_model_type")) not in KINDS:
        raise root.wrong("tts_model_type", f"one of {', '.join(KINDS)}", kind)
    talker = root.section("talker_config")
    encoder = _speaker_encoder(root.section("speaker_encoder_config")) if kind == "base" else None
    ids = {name: root.get(f"{name}_token_id") for name in ("im_start", "im_end", "tts_pad", "tts_bos", "tts_eos")}
    predictor = talker.section("code_predictor_config")
    return SpeechConfig(kind, root.get("tts_model_size"), _talker(talker), _predictor(predictor), encoder, **ids)


def read_codec(folder: Path) -> CodecConfig:
    """Read FOLDER/config.json of the codec. Raises InvalidInput as `read_speech`."""
    root = _Section.of(folder / "config.json")
    frame = root.get("decode_upsample_rate")
    decoder, encoder = root.section("decoder_config"), root.section("encoder_config")
    config = CodecConfig(
        _codec_decoder(decoder), _codec_encoder(encoder), root.get("encoder_valid_num_quantizers"),
        root.get("output_sample_rate"), frame,
    )  # fmt: skip
    if config.used_codebooks > config.encoder.codebooks:
        most = f"at most {config.encoder.codebooks}, the codebooks of the encoder"
        raise root.wrong("encoder_valid_num_quantizers", most, config.used_codebooks)
    made = 1
    for factor in (*config.decoder.upsample, *config.decoder.rates):
        made *= factor
    if made != frame:
        raise root.wrong("decode_upsample_rate", f"{made}, the product of the upsampling factors", frame)
    return config


@dataclass(frozen=True)
class _Section:
    """A part of a config file, which knows its own path for messages."""

    file: Path
    path: str
    values: Mapping[str, Any]

    @classmethod
    def of(cls, file: Path) -> _Section:
        try:
            values = json.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            got = "no such file" if isinstance(error, FileNotFoundError) else f"{type(error).__name__}: {error}"
            raise InvalidInput(expected=f"a config at {file}", got=got, todo="give a Qwen3-TTS checkpoint") from error
        if not isinstance(values, dict):
            raise InvalidInput(expected=f"an object at {file}", got="another value", todo="give a Qwen3-TTS checkpoint")
        return cls(file, "", values)

    def get(self, name: str, default: Any = None) -> Any:
        value = self.values.get(name, default)
        if value is None:
            raise self.wrong(name, "a value", "nothing")
        return value

    def section(self, name: str) -> _Section:
        value = self.get(name)
        if not isinstance(value, dict):
            raise self.wrong(name, "an object", value)
        return _Section(self.file, f"{self.path}{name}.", value)

    def wrong(self, name: str, expected: str, got: Any) -> InvalidInput:
        todo = "use a config of Qwen3-TTS 12 Hz"
        return InvalidInput(expected=f"{self.path}{name} in {self.file} as {expected}", got=repr(got), todo=todo)


def _decoder(part: _Section, eps: str = "rms_norm_eps") -> Decoder:
    return Decoder(
        layers=part.get("num_hidden_layers"),
        hidden=part.get("hidden_size"),
        heads=part.get("num_attention_heads"),
        kv_heads=part.get("num_key_value_heads"),
        head_dim=part.get("head_dim"),
        intermediate=part.get("intermediate_size"),
        eps=float(part.get(eps)),
        theta=float(part.get("rope_theta")),
    )


def _talker(part: _Section) -> Talker:
    return Talker(
        decoder=_decoder(part),
        vocab=part.get("vocab_size"),
        text_vocab=part.get("text_vocab_size"),
        text_hidden=part.get("text_hidden_size"),
        codec_pad=part.get("codec_pad_id"),
        codec_bos=part.get("codec_bos_id"),
        codec_eos=part.get("codec_eos_token_id"),
        think=part.get("codec_think_id"),
        nothink=part.get("codec_nothink_id"),
        think_bos=part.get("codec_think_bos_id"),
        think_eos=part.get("codec_think_eos_id"),
        languages=part.get("codec_language_id"),
        speakers=part.get("spk_id", {}),
        dialects={name: value for name, value in part.get("spk_is_dialect", {}).items() if value},
    )


def _predictor(part: _Section) -> Predictor:
    return Predictor(_decoder(part), part.get("vocab_size"), part.get("num_code_groups"))


def _speaker_encoder(part: _Section) -> SpeakerEncoder:
    """Fields that the official configs leave out have the values of the official class."""
    return SpeakerEncoder(
        width=part.get("enc_dim"),
        mels=part.get("mel_dim", 128),
        channels=tuple(part.get("enc_channels", [512, 512, 512, 512, 1536])),
        kernels=tuple(part.get("enc_kernel_sizes", [5, 3, 3, 3, 1])),
        dilations=tuple(part.get("enc_dilations", [1, 2, 3, 4, 1])),
        attention=part.get("enc_attention_channels", 128),
        res2net=part.get("enc_res2net_scale", 8),
        squeeze=part.get("enc_se_channels", 128),
        sample_rate=part.get("sample_rate", 24000),
    )


def _codec_decoder(part: _Section) -> CodecDecoder:
    return CodecDecoder(
        codebooks=part.get("num_quantizers"),
        codebook_size=part.get("codebook_size"),
        codebook_dim=part.get("codebook_dim"),
        latent=part.get("latent_dim"),
        width=part.get("decoder_dim"),
        transformer=_decoder(part),
        window=part.get("sliding_window"),
        upsample=tuple(part.get("upsampling_ratios")),
        rates=tuple(part.get("upsample_rates")),
    )


def _codec_encoder(part: _Section) -> CodecEncoder:
    return CodecEncoder(
        filters=part.get("num_filters"),
        strides=tuple(reversed(part.get("upsampling_ratios"))),
        hidden=part.get("hidden_size"),
        transformer=_decoder(part, "norm_eps"),
        codebooks=part.get("num_quantizers"),
        codebook_size=part.get("codebook_size"),
        codebook_dim=part.get("codebook_dim"),
        kernel=part.get("kernel_size"),
        last_kernel=part.get("last_kernel_size"),
        residual_kernel=part.get("residual_kernel_size"),
    )

"""What a checkpoint says of itself: every size, id and name that the model depends on. Nothing is a constant of ours.

Names follow the official config.json; see docs/speech.md for what each part is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from onekernel.section import Section

MODEL = "Qwen3-TTS 12 Hz"
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

    @property
    def codes(self) -> int:
        """How many entries of the vocabulary are codes: the 1024 at its end are none."""
        return self.vocab - 1024


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
    root = Section.of(folder / "config.json", MODEL)
    if (family := root.get("tokenizer_type")) != "qwen3_tts_tokenizer_12hz":
        raise root.wrong("tokenizer_type", "qwen3_tts_tokenizer_12hz", family)
    if (kind := root.get("tts_model_type")) not in KINDS:
        raise root.wrong("tts_model_type", f"one of {', '.join(KINDS)}", kind)
    talker = root.section("talker_config")
    encoder = _speaker_encoder(root.section("speaker_encoder_config")) if kind == "base" else None
    text = talker.size("text_vocab_size")
    ids = {
        name: root.index(f"{name}_token_id", text) for name in ("im_start", "im_end", "tts_pad", "tts_bos", "tts_eos")
    }
    predictor = talker.section("code_predictor_config")
    return SpeechConfig(kind, root.get("tts_model_size"), _talker(talker), _predictor(predictor), encoder, **ids)


def read_codec(folder: Path) -> CodecConfig:
    """Read FOLDER/config.json of the codec. Raises InvalidInput as `read_speech`."""
    root = Section.of(folder / "config.json", MODEL)
    frame = root.size("decode_upsample_rate")
    decoder, encoder = root.section("decoder_config"), root.section("encoder_config")
    config = CodecConfig(
        _codec_decoder(decoder), _codec_encoder(encoder), root.size("encoder_valid_num_quantizers"),
        root.size("output_sample_rate"), frame,
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


def _decoder(part: Section, eps: str = "rms_norm_eps") -> Decoder:
    return Decoder(
        layers=part.size("num_hidden_layers"),
        hidden=part.size("hidden_size"),
        heads=part.size("num_attention_heads"),
        kv_heads=part.size("num_key_value_heads"),
        head_dim=part.size("head_dim"),
        intermediate=part.size("intermediate_size"),
        eps=part.number(eps),
        theta=part.number("rope_theta"),
    )


def _talker(part: Section) -> Talker:
    vocab = part.size("vocab_size")
    dialects = {name: value for name, value in part.get("spk_is_dialect", {}).items() if value}
    return Talker(
        decoder=_decoder(part),
        vocab=vocab,
        text_vocab=part.size("text_vocab_size"),
        text_hidden=part.size("text_hidden_size"),
        codec_pad=part.index("codec_pad_id", vocab),
        codec_bos=part.index("codec_bos_id", vocab),
        codec_eos=part.index("codec_eos_token_id", vocab),
        think=part.index("codec_think_id", vocab),
        nothink=part.index("codec_nothink_id", vocab),
        think_bos=part.index("codec_think_bos_id", vocab),
        think_eos=part.index("codec_think_eos_id", vocab),
        languages=part.indices("codec_language_id", vocab),
        speakers=part.indices("spk_id", vocab),
        dialects=dialects,
    )


def _predictor(part: Section) -> Predictor:
    return Predictor(_decoder(part), part.size("vocab_size"), part.size("num_code_groups"))


def _speaker_encoder(part: Section) -> SpeakerEncoder:
    """Fields that the official configs leave out have the values of the official class."""
    return SpeakerEncoder(
        width=part.size("enc_dim"),
        mels=part.size("mel_dim", 128),
        channels=part.sizes("enc_channels", [512, 512, 512, 512, 1536]),
        kernels=part.sizes("enc_kernel_sizes", [5, 3, 3, 3, 1]),
        dilations=part.sizes("enc_dilations", [1, 2, 3, 4, 1]),
        attention=part.size("enc_attention_channels", 128),
        res2net=part.size("enc_res2net_scale", 8),
        squeeze=part.size("enc_se_channels", 128),
        sample_rate=part.size("sample_rate", 24000),
    )


def _codec_decoder(part: Section) -> CodecDecoder:
    return CodecDecoder(
        codebooks=part.size("num_quantizers"),
        codebook_size=part.size("codebook_size"),
        codebook_dim=part.size("codebook_dim"),
        latent=part.size("latent_dim"),
        width=part.size("decoder_dim"),
        transformer=_decoder(part),
        window=part.size("sliding_window"),
        upsample=part.sizes("upsampling_ratios"),
        rates=part.sizes("upsample_rates"),
    )


def _codec_encoder(part: Section) -> CodecEncoder:
    return CodecEncoder(
        filters=part.size("num_filters"),
        strides=part.sizes("upsampling_ratios")[::-1],
        hidden=part.size("hidden_size"),
        transformer=_decoder(part, "norm_eps"),
        codebooks=part.size("num_quantizers"),
        codebook_size=part.size("codebook_size"),
        codebook_dim=part.size("codebook_dim"),
        kernel=part.size("kernel_size"),
        last_kernel=part.size("last_kernel_size"),
        residual_kernel=part.size("residual_kernel_size"),
    )

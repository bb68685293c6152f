"""Which tensors a checkpoint holds, by name and shape, as its config implies. All of them, and no others."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from onekernel.speech.config import CodecConfig, CodecDecoder, CodecEncoder, Decoder, SpeakerEncoder, SpeechConfig

Shape = tuple[int, ...]
Layout = dict[str, Shape]


def speech_layout(config: SpeechConfig) -> Layout:
    """List the tensors of a language model checkpoint."""
    talker, predictor = config.talker, config.predictor
    wide, narrow = talker.decoder.hidden, predictor.decoder.hidden
    found: Layout = {
        "talker.model.text_embedding.weight": (talker.text_vocab, talker.text_hidden),
        "talker.model.codec_embedding.weight": (talker.vocab, wide),
        "talker.codec_head.weight": (talker.vocab, wide),
        **_linear("talker.text_projection.linear_fc1", talker.text_hidden, talker.text_hidden),
        **_linear("talker.text_projection.linear_fc2", talker.text_hidden, wide),
        **_decoder("talker.model", talker.decoder),
        **_decoder("talker.code_predictor.model", predictor.decoder),
    }
    if config.projects:
        found |= _linear("talker.code_predictor.small_to_mtp_projection", wide, narrow)
    for group in range(predictor.groups - 1):
        found[f"talker.code_predictor.model.codec_embedding.{group}.weight"] = (predictor.vocab, wide)
        found[f"talker.code_predictor.lm_head.{group}.weight"] = (predictor.vocab, narrow)
    return found | (_speaker_encoder(config.speaker_encoder) if config.speaker_encoder else {})


def codec_layout(config: CodecConfig) -> Layout:
    """List the tensors of a codec checkpoint."""
    return dict(_codec_decoder(config.decoder)) | dict(_codec_encoder(config.encoder))


def _linear(name: str, inside: int, out: int) -> Layout:
    return {f"{name}.weight": (out, inside), f"{name}.bias": (out,)}


def _conv(name: str, inside: int, out: int, kernel: int) -> Layout:
    return {f"{name}.weight": (out, inside, kernel), f"{name}.bias": (out,)}


def _decoder(prefix: str, decoder: Decoder) -> Layout:
    """List the layers and the final norm of a Qwen3 decoder."""
    hidden, query, key = decoder.hidden, decoder.heads * decoder.head_dim, decoder.kv_heads * decoder.head_dim
    layer: Layout = {
        "input_layernorm.weight": (hidden,),
        "post_attention_layernorm.weight": (hidden,),
        "self_attn.q_proj.weight": (query, hidden),
        "self_attn.k_proj.weight": (key, hidden),
        "self_attn.v_proj.weight": (key, hidden),
        "self_attn.o_proj.weight": (hidden, query),
        "self_attn.q_norm.weight": (decoder.head_dim,),
        "self_attn.k_norm.weight": (decoder.head_dim,),
        "mlp.gate_proj.weight": (decoder.intermediate, hidden),
        "mlp.up_proj.weight": (decoder.intermediate, hidden),
        "mlp.down_proj.weight": (hidden, decoder.intermediate),
    }
    found = {f"{prefix}.layers.{i}.{name}": shape for i in range(decoder.layers) for name, shape in layer.items()}
    return {**found, f"{prefix}.norm.weight": (hidden,)}


def _speaker_encoder(encoder: SpeakerEncoder) -> Layout:
    first, *blocks, last = encoder.channels
    found = _conv("blocks.0.conv", encoder.mels, first, encoder.kernels[0])
    for place, (inside, out) in enumerate(pairwise([first, *blocks]), 1):
        part = out // encoder.res2net
        found |= _conv(f"blocks.{place}.tdnn1.conv", inside, out, 1)
        for piece in range(encoder.res2net - 1):
            name = f"blocks.{place}.res2net_block.blocks.{piece}.conv"
            found |= _conv(name, part, part, encoder.kernels[place])
        found |= _conv(f"blocks.{place}.tdnn2.conv", out, out, 1)
        found |= _conv(f"blocks.{place}.se_block.conv1", out, encoder.squeeze, 1)
        found |= _conv(f"blocks.{place}.se_block.conv2", encoder.squeeze, out, 1)
    found |= _conv("mfa.conv", sum(blocks), last, encoder.kernels[-1])
    found |= _conv("asp.tdnn.conv", 3 * last, encoder.attention, 1) | _conv("asp.conv", encoder.attention, last, 1)
    found |= _conv("fc", 2 * last, encoder.width, 1)
    return {f"speaker_encoder.{name}": shape for name, shape in found.items()}


def _codec_decoder(decoder: CodecDecoder) -> Iterator[tuple[str, Shape]]:
    half, latent, hidden = decoder.codebook_dim // 2, decoder.latent, decoder.transformer.hidden
    found: Layout = {}
    for name, layers in (("rvq_first", 1), ("rvq_rest", decoder.codebooks - 1)):
        found[f"quantizer.{name}.input_proj.weight"] = (half, decoder.codebook_dim, 1)
        found[f"quantizer.{name}.output_proj.weight"] = (decoder.codebook_dim, half, 1)
        for layer in range(layers):
            book = f"quantizer.{name}.vq.layers.{layer}._codebook"
            found[f"{book}.embedding_sum"] = (decoder.codebook_size, half)
            found[f"{book}.cluster_usage"] = (decoder.codebook_size,)
    found |= _conv("pre_conv.conv", decoder.codebook_dim, latent, 3)
    found |= _linear("pre_transformer.input_proj", latent, hidden)
    found |= {f"pre_transformer.{name}": shape for name, shape in _codec_transformer(decoder.transformer).items()}
    found |= _linear("pre_transformer.output_proj", hidden, latent)
    for stage, factor in enumerate(decoder.upsample):
        found |= _convnext(f"upsample.{stage}", latent, factor)
    found |= _upsampler(decoder)
    return ((f"decoder.{name}", shape) for name, shape in found.items())


def _codec_transformer(decoder: Decoder) -> Layout:
    plain = _decoder("x", decoder)
    found = {name.removeprefix("x."): shape for name, shape in plain.items() if "q_norm" not in name}
    found = {name: shape for name, shape in found.items() if "k_norm" not in name}
    for layer in range(decoder.layers):
        for scale in ("self_attn_layer_scale", "mlp_layer_scale"):
            found[f"layers.{layer}.{scale}.scale"] = (decoder.hidden,)
    return found


def _convnext(name: str, width: int, factor: int) -> Layout:
    return {
        f"{name}.0.conv.weight": (width, width, factor),  # transposed: in, out, kernel
        f"{name}.0.conv.bias": (width,),
        **_conv(f"{name}.1.dwconv.conv", 1, width, 7),
        f"{name}.1.norm.weight": (width,),
        f"{name}.1.norm.bias": (width,),
        f"{name}.1.gamma": (width,),
        **_linear(f"{name}.1.pwconv1", width, 4 * width),
        **_linear(f"{name}.1.pwconv2", 4 * width, width),
    }


def _upsampler(decoder: CodecDecoder) -> Layout:
    found = _conv("decoder.0.conv", decoder.latent, decoder.width, 7)
    width = decoder.width
    for stage, rate in enumerate(decoder.rates, 1):
        block, narrow = f"decoder.{stage}.block", width // 2
        found |= {f"{block}.0.{name}": (width,) for name in ("alpha", "beta")}
        found |= {f"{block}.1.conv.weight": (width, narrow, 2 * rate), f"{block}.1.conv.bias": (narrow,)}
        for unit in (2, 3, 4):
            found |= {f"{block}.{unit}.act{i}.{name}": (narrow,) for i in (1, 2) for name in ("alpha", "beta")}
            found |= _conv(f"{block}.{unit}.conv1.conv", narrow, narrow, 7)
            found |= _conv(f"{block}.{unit}.conv2.conv", narrow, narrow, 1)
        width = narrow
    last = len(decoder.rates) + 1
    found |= {f"decoder.{last}.{name}": (width,) for name in ("alpha", "beta")}
    return found | _conv(f"decoder.{last + 1}.conv", width, 1, 7)


def _codec_encoder(encoder: CodecEncoder) -> Iterator[tuple[str, Shape]]:
    found = _conv("encoder.layers.0.conv", 1, encoder.filters, encoder.kernel)
    width, place = encoder.filters, 1
    for stride in encoder.strides:
        found |= _conv(f"encoder.layers.{place}.block.1.conv", width, width // 2, encoder.residual_kernel)
        found |= _conv(f"encoder.layers.{place}.block.3.conv", width // 2, width, 1)
        found |= _conv(f"encoder.layers.{place + 2}.conv", width, 2 * width, 2 * stride)
        width, place = 2 * width, place + 3
    found |= _conv(f"encoder.layers.{place + 1}.conv", width, encoder.hidden, encoder.last_kernel)
    for layer in range(encoder.transformer.layers):
        found |= _encoder_layer(f"encoder_transformer.layers.{layer}", encoder.transformer)
    found["downsample.conv.weight"] = (encoder.hidden, encoder.hidden, 4)
    for name, books in (("semantic", 1), ("acoustic", encoder.codebooks - 1)):
        part = f"quantizer.{name}_residual_vector_quantizer"
        found[f"{part}.input_proj.weight"] = (encoder.codebook_dim, encoder.hidden, 1)
        found[f"{part}.output_proj.weight"] = (encoder.hidden, encoder.codebook_dim, 1)
        for book in range(books):
            found[f"{part}.layers.{book}.codebook.embed_sum"] = (encoder.codebook_size, encoder.codebook_dim)
            found[f"{part}.layers.{book}.codebook.cluster_usage"] = (encoder.codebook_size,)
            found[f"{part}.layers.{book}.codebook.initialized"] = (1,)
    return ((f"encoder.{name}", shape) for name, shape in found.items())


def _encoder_layer(name: str, decoder: Decoder) -> Layout:
    wide, hidden = decoder.heads * decoder.head_dim, decoder.hidden
    found: Layout = {f"{name}.self_attn.{part}_proj.weight": (wide, hidden) for part in "qkv"}
    found[f"{name}.self_attn.o_proj.weight"] = (hidden, wide)
    found[f"{name}.mlp.fc1.weight"] = (decoder.intermediate, hidden)
    found[f"{name}.mlp.fc2.weight"] = (hidden, decoder.intermediate)
    for norm in ("input_layernorm", "post_attention_layernorm"):
        found |= {f"{name}.{norm}.weight": (hidden,), f"{name}.{norm}.bias": (hidden,)}
    return found | {f"{name}.{scale}_layer_scale.scale": (hidden,) for scale in ("self_attn", "mlp")}

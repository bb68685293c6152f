"""The codec: the same bits however a stream is cut or batched, the formula in float64, and the official answers."""

from __future__ import annotations

from itertools import cycle
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

import codec_oracle
import speech_checkpoint
from onekernel.errors import InvalidInput
from onekernel.speech.codec.decoder import CodecDecoder
from onekernel.speech.codec.encoder import CodecEncoder
from onekernel.speech.codec.state import State
from onekernel.speech.config import CodecConfig, read_codec

GOLDEN = Path(__file__).parent / "golden" / "speech"
FRAME, WINDOW = 1920, speech_checkpoint.TINY.window
FRAMES = 20  # more than twice the window


class Codec(NamedTuple):
    config: CodecConfig
    tensors: dict[str, torch.Tensor]
    decoder: CodecDecoder
    codes: torch.Tensor  # [1, FRAMES, 16]
    samples: torch.Tensor  # of all codes at once


@pytest.fixture(scope="module")
def codec(tmp_path_factory: pytest.TempPathFactory) -> Codec:
    folder = speech_checkpoint.write(tmp_path_factory.mktemp("codec")) / "speech_tokenizer"
    config, tensors = read_codec(folder), load_file(folder / "model.safetensors")
    decoder = CodecDecoder(config.decoder, tensors)
    codes = draw(1, FRAMES)
    return Codec(config, tensors, decoder, codes, decoder.decode(codes, decoder.start()))


def draw(batch: int, frames: int, seed: int = 0) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).integers(0, 2048, (batch, frames, 16)))


def chunked(decoder: CodecDecoder, codes: torch.Tensor, sizes: list[int]) -> torch.Tensor:
    """Decode in chunks of these sizes, repeated to the end."""
    state, found, start = decoder.start(len(codes)), [], 0
    for size in cycle(sizes):
        if start >= codes.shape[1]:
            return torch.cat(found, 1)
        found.append(decoder.decode(codes[:, start : start + size], state))
        start += size
    raise AssertionError


@settings(max_examples=25, deadline=None)
@given(sizes=st.lists(st.integers(1, FRAMES), min_size=1, max_size=8))
def test_any_chunking_gives_the_same_bits(codec: Codec, sizes: list[int]) -> None:
    assert torch.equal(chunked(codec.decoder, codec.codes, sizes), codec.samples)


def test_a_long_stream_gives_the_same_bits(codec: Codec) -> None:
    codes = draw(1, 300, seed=1)
    whole = codec.decoder.decode(codes, codec.decoder.start())
    assert whole.shape == (1, 300 * FRAME)
    assert torch.equal(chunked(codec.decoder, codes, [1, 2, 3, 5]), whole)


def test_a_chunk_of_no_frames_changes_nothing(codec: Codec) -> None:
    state = codec.decoder.start(2)
    assert codec.decoder.decode(draw(2, 0), state).shape == (2, 0)
    assert state == codec.decoder.start(2)


def test_a_stream_in_a_batch_has_the_bits_that_it_has_alone(codec: Codec) -> None:
    codes = draw(3, FRAMES, seed=2)
    alone = [codec.decoder.decode(row[None], codec.decoder.start()) for row in codes]
    assert torch.equal(chunked(codec.decoder, codes, [3, 4]), torch.cat(alone))


def test_streams_at_different_frames_may_join(codec: Codec) -> None:
    one, two = codec.decoder.start(), codec.decoder.start()
    codec.decoder.prime(codec.codes[:, :11], one)
    codec.decoder.prime(codec.codes[:, :3], two)
    codes = torch.cat([codec.codes[:, 11:16], codec.codes[:, 3:8]])
    both = State([*one.streams, *two.streams])
    expected = torch.cat([codec.samples[:, 11 * FRAME : 16 * FRAME], codec.samples[:, 3 * FRAME : 8 * FRAME]])
    assert torch.equal(codec.decoder.decode(codes, both), expected)
    assert [stream.frame for stream in both.streams] == [16, 8]


def test_priming_equals_cutting(codec: Codec) -> None:
    state = codec.decoder.start()
    codec.decoder.prime(codec.codes[:, :WINDOW], state)
    rest = codec.decoder.decode(codec.codes[:, WINDOW:], state)
    assert torch.equal(rest, codec.samples[:, WINDOW * FRAME :])


def test_a_clone_goes_its_own_way(codec: Codec) -> None:
    state = codec.decoder.start()
    codec.decoder.prime(codec.codes[:, :10], state)
    clone = state.clone()
    codec.decoder.prime(draw(1, 5, seed=3), clone)
    assert torch.equal(codec.decoder.decode(codec.codes[:, 10:], state), codec.samples[:, 10 * FRAME :])


def test_a_reset_stream_begins_anew(codec: Codec) -> None:
    state = codec.decoder.start()
    codec.decoder.prime(draw(1, 5, seed=3), state)
    state.reset()
    assert torch.equal(codec.decoder.decode(codec.codes, state), codec.samples)


@pytest.mark.parametrize("frame", [0, 3, WINDOW + 4])
def test_codes_change_no_sample_before_their_frame(codec: Codec, frame: int) -> None:
    codes = codec.codes.clone()
    codes[0, frame] = (codes[0, frame] + 1) % 2048
    changed = codec.decoder.decode(codes, codec.decoder.start()) != codec.samples
    assert not changed[:, : frame * FRAME].any()
    assert changed[:, frame * FRAME : (frame + 1) * FRAME].float().mean() > 0.9


def test_state_does_not_grow(codec: Codec) -> None:
    """What a stream keeps is the reach of each layer: its inputs of the frames before, and no more."""
    decoder, state = codec.config.decoder, codec.decoder.start()
    kept = 2 * decoder.codebook_dim + 6 * (len(decoder.upsample) + 1) * decoder.latent
    part, width = decoder.transformer, decoder.width
    kept += part.layers * 2 * (decoder.window - 1) * part.kv_heads * part.head_dim
    for _ in decoder.rates:
        kept += width + 6 * (1 + 3 + 9) * width // 2
        width //= 2
    kept += 6 * width
    for _ in range(3):
        codec.decoder.prime(codec.codes[:, :5], state)
        assert sum(rows.untyped_storage().nbytes() for rows in state.streams[0].past.values()) == 4 * kept


def test_the_decoder_is_its_formula(codec: Codec) -> None:
    """More frames than the tiny decoder can look back, 26; positions that it counts wrong would be seen after them."""
    codes = draw(1, 30, seed=4)
    exact = CodecDecoder(codec.config.decoder, codec.tensors, torch.float64)
    expected = codec_oracle.decode(codec.config.decoder, codec.tensors, codes[0])
    assert expected.abs().max() < 1  # nothing hides behind the clamp
    assert (chunked(exact, codes, [1, 2, 3, 5])[0] - expected).abs().max() < 1e-9


def test_samples_are_clamped(codec: Codec) -> None:
    name = "decoder.decoder.6.conv.bias"
    decoder = CodecDecoder(codec.config.decoder, codec.tensors | {name: torch.tensor([5.0])})
    assert (decoder.decode(codec.codes[:, :1], decoder.start()) == 1).all()


def test_the_decoder_gives_the_official_samples(codec: Codec) -> None:
    golden = np.load(GOLDEN / "codec_decoder.npz")
    codes = torch.from_numpy(golden["codes"])[None]
    samples = codec.decoder.decode(codes, codec.decoder.start())[0].numpy()
    assert samples.dtype == golden["samples"].dtype
    assert np.abs(samples - golden["samples"]).max() <= 3e-6


@pytest.mark.parametrize("length", [1920, 48_000, 48_720, 312_000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_encoder_gives_the_official_codes(codec: Codec, length: int, dtype: torch.dtype) -> None:
    golden = np.load(GOLDEN / "codec_encoder.npz")
    sound = torch.from_numpy(np.resize(golden["sound"], length).astype(np.float32) / 32768)
    codes = CodecEncoder(codec.config, codec.tensors, dtype).encode(sound)
    assert codes.dtype == torch.int64
    assert codes.shape == (-(-length // FRAME), 16)
    assert np.array_equal(codes.numpy(), golden[f"codes_{length}"])


@pytest.mark.parametrize(
    ("codes", "words"),
    [
        (torch.zeros(2, 3, 16, dtype=torch.int64), r"codes \[1, frames, 16\] .* got the shape \[2, 3, 16\]"),
        (torch.zeros(1, 3, 15, dtype=torch.int64), r"got the shape \[1, 3, 15\]"),
        (torch.zeros(3, 16, dtype=torch.int64), r"got the shape \[3, 16\]"),
        (torch.zeros(1, 3, 16), "got torch.float32 from 0.0 to 0.0"),
        (torch.full((1, 3, 16), 2048), "from 0 to 2047"),
        (torch.full((1, 3, 16), -1), "from 0 to 2047, got torch.int64 from -1 to -1"),
    ],
)
def test_other_codes_are_refused(codec: Codec, codes: torch.Tensor, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        codec.decoder.decode(codes, codec.decoder.start())


@pytest.mark.parametrize("shape", [(0,), (1, 1920)])
def test_other_samples_are_refused(codec: Codec, shape: tuple[int, ...]) -> None:
    with pytest.raises(InvalidInput, match="give one channel"):
        CodecEncoder(codec.config, codec.tensors).encode(torch.zeros(shape))

"""Speech on a GPU, on tiny checkpoints: it depends on no cut of text or sound, and hears recordings in float32."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import onekernel
import speech_checkpoint
from onekernel.speech.codec.encoder import CodecEncoder
from onekernel.speech.config import read_codec
from onekernel.speech.request import SpeechRequest

pytestmark = pytest.mark.gpu
GOLDEN = Path(__file__).parent / "golden" / "speech"
TEXT = "Grüße, 世界! It's 12 o'clock."


def test_pieces_of_text_and_of_sound_give_the_same_bits(tmp_path: Path) -> None:
    model = onekernel.load_speech(speech_checkpoint.write(tmp_path / "tiny"), device="cuda")
    asked = {"text_mode": "streaming", "max_frames": 24}
    whole = np.concatenate(list(model.stream(TEXT, SpeechRequest(**asked))))
    for pieces in (TEXT, iter(TEXT), iter([TEXT.encode()[:3], TEXT.encode()[3:]])):
        request = SpeechRequest(**asked, first_chunk=3, chunk=5)
        assert (np.concatenate(list(model.stream(pieces, request))) == whole).all()


def test_a_recording_has_the_codes_of_float32_whatever_others_allow(tmp_path: Path) -> None:
    folder = speech_checkpoint.write(tmp_path / "base", "base", "1b7") / "speech_tokenizer"
    tensors = {name: tensor.cuda() for name, tensor in load_file(folder / "model.safetensors").items()}
    golden = np.load(GOLDEN / "codec_encoder.npz")
    sound = np.resize(golden["sound"], 48_000).astype(np.float32) / 32768
    assert torch.backends.cudnn.allow_tf32  # torch's default, which `encode` does not follow and leaves as it is
    found = CodecEncoder(read_codec(folder), tensors).encode(torch.from_numpy(sound).cuda())
    assert torch.backends.cudnn.allow_tf32
    assert (found.cpu().numpy() == golden["codes_48000"]).all()

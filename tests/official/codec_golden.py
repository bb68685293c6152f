"""Golden files of the codec: the official package on the tiny codec of tests/speech_checkpoint.py.

Run in an environment with `qwen-tts==0.1.1`, from the root of the repository, after writing the checkpoints:

    python tests/official/codec_golden.py CHECKPOINTS tests/golden/speech

CHECKPOINTS holds the folder `base_1b7`; the codec is the same for every kind. Samples are those of the whole sequence,
not of the package's chunks. The sound is repeated to each length, and every code is clearly the nearest: rounding on
another processor, which moves distances by a millionth, cannot change it.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
from stub import without_torchaudio

without_torchaudio()
import torch  # noqa: E402
from qwen_tts.core import Qwen3TTSTokenizerV2Model  # noqa: E402

FRAMES, PERIOD, LENGTHS = 16, 7919, (1920, 48_000, 48_720, 312_000)  # 0.08 s, 2 s, 2.03 s, 13 s
CLEAR = 2e-5  # least relative gap between the two nearest entries of a codebook


def decoded(model: Any) -> dict[str, Any]:
    """Decode random codes as a whole."""
    codes = np.random.default_rng(0).integers(0, 2048, (FRAMES, 16))
    samples = model.decoder(torch.from_numpy(codes).T[None])
    return {"codes": codes.astype(np.int16), "samples": samples.reshape(-1).numpy()}


def encoded(model: Any, seed: int) -> tuple[dict[str, Any], float]:
    """Encode a sound at each length; also return the least gap."""
    gaps, cdist = [], torch.cdist

    def seen(*given: Any, **named: Any) -> torch.Tensor:
        distances = cdist(*given, **named)
        nearest = distances.topk(2, largest=False).values
        gaps.append(float((nearest[..., 1] / nearest[..., 0]).min()) - 1)
        return distances

    time, draw = np.arange(PERIOD) / 24_000, np.random.default_rng(seed)
    sound = 0.3 * np.sin(2 * np.pi * 180 * time) * np.sin(np.pi * time * 24_000 / PERIOD)
    sound = np.round(32768 * (sound + 0.05 * draw.standard_normal(PERIOD))).astype(np.int16)
    found: dict[str, Any] = {"sound": sound}
    torch.cdist = seen
    for length in LENGTHS:
        samples = torch.from_numpy(np.resize(sound, length).astype(np.float32) / 32768)[None]
        codes = model.encode(samples, torch.ones_like(samples, dtype=torch.int64)).audio_codes[0]
        found[f"codes_{length}"] = codes.numpy().astype(np.int16)
    torch.cdist = cdist
    return found, min(gaps)


@torch.inference_mode()
def main() -> None:
    checkpoints, out = map(Path, sys.argv[1:3])
    folder = checkpoints / "base_1b7" / "speech_tokenizer"
    model = Qwen3TTSTokenizerV2Model.from_pretrained(str(folder), dtype=torch.float32).eval()
    np.savez_compressed(out / "codec_decoder.npz", **decoded(model))
    for seed in range(100):
        found, gap = encoded(model, seed)
        print(seed, gap, flush=True)
        if gap > CLEAR:
            np.savez_compressed(out / "codec_encoder.npz", **found)
            break


if __name__ == "__main__":
    main()

"""What the official package makes of the sounds in voice_sounds.py, written to tests/golden/speech/voice_*.npz.

Run in an environment with `qwen-tts==0.1.1`, from the root of the repository, after writing the checkpoints:

    python tests/official/voice_golden.py CHECKPOINTS tests/golden/speech

Each file belongs to one small Base checkpoint of speech_checkpoint.py and holds, by name of the sound, the x-vectors of
the float32 and the bfloat16 model; voice_sound.npz holds what does not depend on a checkpoint: the resampled speech
(every `STRIDE`-th sample and the count of all) and columns of its mel spectrogram (every `COLUMN`-th, and the count).
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from stub import without_torchaudio

sys.path.insert(0, str(Path(__file__).parents[1]))
import voice_sounds

STRIDE, COLUMN = 37, 23


def x_vectors(checkpoint: Path, sounds: dict[str, Path]) -> dict[str, Any]:
    """Return the x-vectors of files by the public way: create_voice_clone_prompt."""
    import qwen_tts

    found = {}
    for dtype in (torch.float32, torch.bfloat16):
        model = qwen_tts.Qwen3TTSModel.from_pretrained(str(checkpoint), dtype=dtype, device_map="cpu")
        for name, path in sounds.items():
            (prompt,) = model.create_voice_clone_prompt(ref_audio=str(path), x_vector_only_mode=True)
            found[f"{name}.{str(dtype).removeprefix('torch.')}"] = prompt.ref_spk_embedding.float().numpy()
    return found


def speech(path: Path) -> dict[str, Any]:
    """Return the resampled speech of a file and its mel spectrogram, thinned out."""
    import librosa
    from qwen_tts.core.models.modeling_qwen3_tts import mel_spectrogram

    samples, rate = librosa.load(path, sr=None, mono=True)
    if rate != 24000:
        samples = librosa.resample(samples, orig_sr=rate, target_sr=24000)
    mel = mel_spectrogram(torch.from_numpy(samples)[None], 1024, 128, 24000, 256, 1024, 0, 12000)[0].numpy()
    return {
        "samples": samples[::STRIDE],
        "count": len(samples),
        "mel": mel[:, ::COLUMN],
        "frames": mel.shape[1],
    }


def main() -> None:
    """Make all."""
    without_torchaudio()
    checkpoints, out = map(Path, sys.argv[1:3])
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        sounds = {name: voice_sounds.write(place, name) for name in voice_sounds.SOUNDS}
        shared = {f"{name}.{key}": value for name, path in sounds.items() for key, value in speech(path).items()}
        np.savez_compressed(out / "voice_sound.npz", **shared)
        for size in ("0b6", "1b7"):
            found = x_vectors(checkpoints / f"base_{size}", sounds)
            np.savez_compressed(out / f"voice_{size}.npz", **found)


if __name__ == "__main__":
    main()

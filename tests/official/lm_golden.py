"""Golden files of the language model: the official package on the tiny checkpoints of tests/speech_checkpoint.py.

Run in an environment with `qwen-tts==0.1.1`, from the root of the repository, after writing the checkpoints:

    python tests/official/lm_golden.py CHECKPOINTS tests/golden/speech

CHECKPOINTS holds one folder for each of `custom_voice_1b7`, `base_0b6`, ...
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from stub import without_torchaudio

without_torchaudio()
import qwen_tts  # noqa: E402
import torch  # noqa: E402

TEXT, FRAMES, SEED = "Hello there, tiny model.", 24, 5
KINDS = ("custom_voice_1b7", "custom_voice_0b6", "voice_design_1b7", "base_1b7", "base_0b6")
GREEDY = {"do_sample": False, "subtalker_dosample": False}


class Recorder:
    """Sees what the talker is given, what its head says, and which codes come out."""

    def __init__(self, model: Any) -> None:
        self.seen: dict[str, Any] = {}
        self.logits: list[torch.Tensor] = []
        generate, talk = model.generate, model.talker.generate
        model.generate = lambda **given: self._codes(generate(**given))
        model.talker.generate = lambda **given: self._given(given) or talk(**given)
        model.talker.codec_head.register_forward_hook(lambda _, __, out: self.logits.append(out[0, -1].float().clone()))

    def _given(self, given: dict[str, Any]) -> None:
        self.logits.clear()
        for name, tensor in (
            ("prefill", given["inputs_embeds"][0]),
            ("trailing", given["trailing_text_hidden"][0]),
            ("pad", given["tts_pad_embed"].reshape(-1)),
        ):
            self.seen[name] = tensor.float().cpu().numpy()

    def _codes(self, result: Any) -> Any:
        self.seen["codes"] = result[0][0].cpu().numpy().astype(np.int16)
        return result


def requests(kind: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Name each way to ask a kind of model."""
    if kind == "custom_voice":
        yield "", {"speaker": "Ryan", "language": "English", "instruct": "Very happy."}
    elif kind == "voice_design":
        yield "", {"language": "English", "instruct": "A calm low voice."}
    else:
        time = np.arange(48_000) / 24_000
        noise = np.random.default_rng(0).standard_normal(time.shape)
        sound = (0.3 * np.sin(2 * np.pi * 220 * time) + 0.02 * noise).astype(np.float32)
        reference = {"ref_audio": (sound, 24_000), "language": "English"}
        yield "_icl", reference | {"ref_text": "Reference words."}
        yield "_xvec", reference | {"x_vector_only_mode": True}


def answers(model: Any, recorder: Recorder, kind: str, request: dict[str, Any]) -> dict[str, Any]:
    """Ask for the likeliest codes, then for drawn ones; return all that was seen, and the seconds of the first."""
    generate = getattr(model, f"generate_{'voice_clone' if kind == 'base' else kind}")
    start = time.perf_counter()
    sounds, _ = generate(**request, **GREEDY)
    seconds = time.perf_counter() - start
    logits = torch.stack(recorder.logits[: len(recorder.seen["codes"])]).cpu().numpy()
    found = {**recorder.seen, "logits": logits, "sound": sounds[0], "seconds": np.array(seconds)}
    torch.manual_seed(SEED)
    generate(**request)
    return {**found, "sampled": recorder.seen["codes"]}


def golden(folder: Path, out: Path, dtype: torch.dtype) -> None:
    """Write one file for each way to ask a checkpoint and each text mode."""
    model = qwen_tts.Qwen3TTSModel.from_pretrained(str(folder), dtype=dtype, device_map="cpu")
    recorder, kind = Recorder(model.model), folder.name.rpartition("_")[0]
    for name, request in requests(kind):
        for streaming in (False, True):
            given = {"text": TEXT, "non_streaming_mode": not streaming, "max_new_tokens": FRAMES + 1, **request}
            found = answers(model, recorder, kind, given)
            logits = found.pop("logits")
            kept = {key: found[key] for key in ("prefill", "trailing", "pad", "codes", "sampled")}
            kept |= {"first_logits": logits[0], "last_logits": logits[-1]}
            mode = "stream" if streaming else "full"
            suffix = "" if dtype is torch.float32 else "_bf16"
            np.savez_compressed(out / f"lm_{folder.name}{name}_{mode}{suffix}.npz", **kept)
            print(folder.name, name, mode, len(kept["codes"]), len(kept["sampled"]), flush=True)


def main() -> None:
    """Make all: float32 for every kind, bfloat16 for two."""
    checkpoints, out = map(Path, sys.argv[1:3])
    for kind in KINDS:
        golden(checkpoints / kind, out, torch.float32)
    for kind in ("custom_voice_1b7", "base_0b6"):
        golden(checkpoints / kind, out, torch.bfloat16)


if __name__ == "__main__":
    main()

"""Golden prompts: what the official package gives its talker on the tiny checkpoints of tests/speech_checkpoint.py.

Run in an environment with `qwen-tts==0.1.1` (requirements.txt), after writing the checkpoints:

    python tests/official/prompt_golden.py CHECKPOINTS tests/golden/speech

One file for each checkpoint. For each case: the request, and `prefill` and `trailing` in float32 and (`_bf16`, widened)
in bfloat16. The tokenizer is loaded again, as the package replaces the rule for words of local folders.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from stub import without_torchaudio

without_torchaudio()
import torch  # noqa: E402
from qwen_tts import Qwen3TTSModel, VoiceClonePromptItem  # noqa: E402
from transformers import Qwen2TokenizerFast  # noqa: E402

CASES: dict[str, list[dict[str, Any]]] = {
    "custom_voice_1b7": [
        {"text": "Hello, tiny.", "speaker": "Ryan", "language": "Auto"},
        {"text": "It's 4 \u4f60\u597d", "speaker": "vivian", "language": "English", "instruct": "Very happy."},
        {"text": "A", "speaker": "uncle_fu", "language": "chinese", "instruct": "\nCalm"},
        {"text": " two  words ", "speaker": "Eric", "language": "auto"},
        {"text": "Dialect.", "speaker": "dylan", "language": "Chinese", "instruct": ""},
        {"text": "No dialect.", "speaker": "eric", "language": "Japanese"},
    ],
    "custom_voice_0b6": [
        {"text": "Hello, tiny.", "speaker": "ono_anna", "language": "auto", "instruct": "Left out."},
        {"text": "A", "speaker": "Sohee", "language": "KOREAN"},
        {"text": "Dialect.", "speaker": "Dylan", "language": "auto"},
    ],
    "voice_design_1b7": [
        {"text": "Hello, tiny.", "language": "French", "instruct": "A low, calm voice."},
        {"text": "A", "language": "auto", "instruct": "e\u0301"},
        {"text": "No instruction.", "language": "auto", "instruct": ""},
    ],
    "base_1b7": [
        {"text": "Hello, tiny.", "language": "auto"},
        {"text": "A", "language": "german"},
        {"text": "Longer text.", "language": "English", "ref_text": "Ref.", "frames": 3},
        {"text": "Short", "language": "auto", "ref_text": "Four", "frames": 24},
        {"text": "Even", "language": "auto", "ref_text": "even", "frames": 8},
    ],
    "base_0b6": [
        {"text": "Hello, tiny.", "language": "Russian"},
        {"text": "Longer text.", "language": "auto", "ref_text": "Ref.", "frames": 5},
        {"text": "A", "language": "Spanish", "ref_text": "b", "frames": 9},
    ],
}


class Seen(Exception):
    """The talker was given its prompt; nothing more is wanted."""


def stop(**given: Any) -> None:
    """Stand in for `talker.generate`."""
    raise Seen(given["inputs_embeds"][0], given["trailing_text_hidden"][0], given["tts_pad_embed"][0, 0])


def prompts(model: Any, kind: str, request: dict[str, Any], voice: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Name and return what the talker is given in both text modes."""
    given = {name: request[name] for name in ("text", "speaker", "language", "instruct") if name in request}
    if kind == "base":
        codes = torch.from_numpy(voice["ref_codes"]) if "ref_codes" in voice else None
        vector, icl = torch.from_numpy(voice["x_vector"]), codes is not None
        item = VoiceClonePromptItem(codes, vector, not icl, icl, request.get("ref_text"))
        given["voice_clone_prompt"] = [item]
    ask = getattr(model, "generate_voice_clone" if kind == "base" else f"generate_{kind}")
    for mode in ("full", "stream"):
        try:
            ask(**given, non_streaming_mode=mode == "full")
        except Seen as seen:
            for name, tensor in zip(("prefill", "trailing", "pad"), seen.args, strict=True):
                yield f"{mode}_{name}", tensor.float().numpy()


def golden(folder: Path) -> dict[str, Any]:
    """Return all arrays of a checkpoint."""
    kind, found = folder.name.rpartition("_")[0], {}
    for suffix, dtype in (("", torch.float32), ("_bf16", torch.bfloat16)):
        model = Qwen3TTSModel.from_pretrained(str(folder), dtype=dtype, device_map="cpu")
        model.model.talker.generate = stop
        model.processor.tokenizer = Qwen2TokenizerFast.from_pretrained(str(folder))
        random = np.random.default_rng(1)
        for case, request in enumerate(CASES[folder.name]):
            voice: dict[str, Any] = {}
            if kind == "base":
                voice["x_vector"] = random.standard_normal(model.model.config.talker_config.hidden_size, np.float32)
            if "frames" in request:
                voice["ref_codes"] = random.integers(0, 2048, (request["frames"], 16))
            found[f"{case}_request"] = np.array(json.dumps(request))
            found |= {f"{case}_{name}": value for name, value in voice.items()}
            found |= {f"{case}_{name}{suffix}": value for name, value in prompts(model, kind, request, voice)}
    return found


def main() -> None:
    """Make all."""
    checkpoints, out = map(Path, sys.argv[1:3])
    for name in CASES:
        np.savez_compressed(out / f"prompt_{name}.npz", **golden(checkpoints / name))


if __name__ == "__main__":
    main()

"""What the official package says on a checkpoint of released size, on a GPU if there is one: `benchmarks official`.

    python tests/official/full_size.py CHECKPOINT OUT.npz

Names are DTYPE/WAY/WHAT, such as float32/icl_stream/codes, and for what depends on neither dtype nor text
codec/WHAT and reference/WHAT. The codec is float32 in both runs; the package would round it to bfloat16 with the rest.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from lm_golden import FRAMES, TEXT, Recorder, answers, requests
from stub import without_torchaudio

without_torchaudio()
import qwen_tts  # noqa: E402
import torch  # noqa: E402
from transformers import Qwen2TokenizerFast  # noqa: E402

DECODED = 90  # frames, more than the window of the codec's transformer


def said(folder: Path, dtype: torch.dtype, device: str, codec: Any) -> Iterator[tuple[str, Any]]:
    """Name and return what is said in one dtype, in every way to ask and both text modes."""
    model = qwen_tts.Qwen3TTSModel.from_pretrained(str(folder), dtype=dtype, device_map=device)
    model.processor.tokenizer = Qwen2TokenizerFast.from_pretrained(str(folder))  # the package changes it for folders
    model.model.speech_tokenizer = codec
    name, recorder = str(dtype).removeprefix("torch."), Recorder(model.model)
    kind = json.loads((folder / "config.json").read_text("utf-8"))["tts_model_type"]
    for way, request in requests(kind):
        if kind == "base":
            given = {key: request.pop(key) for key in ("ref_audio", "ref_text", "x_vector_only_mode") if key in request}
            (voice,) = request["voice_clone_prompt"] = model.create_voice_clone_prompt(**given)
            yield f"{name}/x_vector", voice.ref_spk_embedding.float().cpu().numpy()
            if voice.ref_code is not None:
                yield "reference/codes", voice.ref_code.cpu().numpy()
                yield "reference/sound", given["ref_audio"][0]
        for streaming in (False, True):
            asked = {"text": TEXT, "non_streaming_mode": not streaming, "max_new_tokens": FRAMES + 1, **request}
            found = answers(model, recorder, kind, asked)
            ask = f"{name}/{way.removeprefix('_') or 'voice'}_{'stream' if streaming else 'full'}"
            yield from ((f"{ask}/{key}", value) for key, value in found.items())
            print(folder.name, ask, len(found["codes"]), len(found["sampled"]), flush=True)


def decoded(codec: Any, device: str) -> Iterator[tuple[str, Any]]:
    """Decode random codes as a whole."""
    codes = torch.from_numpy(np.random.default_rng(0).integers(0, 2048, (DECODED, 16))).to(device)
    yield "codec/codes", codes.cpu().numpy()
    yield "codec/samples", codec.decoder(codes.T[None]).flatten().cpu().numpy()


@torch.inference_mode()
def main() -> None:
    """Make all."""
    torch.backends.cudnn.allow_tf32 = False  # float32 shall be float32
    folder, out = map(Path, sys.argv[1:3])
    device = "cuda" if torch.cuda.is_available() else "cpu"
    place = str(folder / "speech_tokenizer")
    codec = qwen_tts.Qwen3TTSTokenizer.from_pretrained(place, dtype=torch.float32, device_map=device)
    kept = dict(decoded(codec.model, device))
    for dtype in (torch.float32, torch.bfloat16):
        kept |= dict(said(folder, dtype, device, codec))
    np.savez(out, **kept)


if __name__ == "__main__":
    main()

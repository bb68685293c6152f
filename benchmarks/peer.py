"""A public runtime of Qwen3-TTS in a process with packages of its own; `benchmarks peers` starts it and asks.

    python -P benchmarks/peer.py faster|official CHECKPOINT

It loads the checkpoint as its users do and says in a line of JSON who it is. Then each line `times N` or `kernels N` is
answered by another. A frame reaches from one call of the predictor to the next: both models, sixteen draws and the loop
around them, but no codec. Only this repository's stub of torchaudio is imported from outside the peer's packages.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

TEXT = (
    "The harbour is quiet before sunrise, and the first ferry leaves when the lamps on the pier go out. Two gulls "
    "follow it as far as the lighthouse, where the water turns from grey to green and the wind picks up. On the other "
    "side, the baker has already opened his door and put the kettle on for whoever comes ashore."
)  # 81 positions with what stands around it, so that forty frames have 100 in their middle
SETTLED = 2  # frames of a request that are not counted: its loop begins


@dataclass
class Runtime:
    """A runtime with a checkpoint. `begin` is called at the start of each frame."""

    package: str
    model: Any  # of qwen_tts
    speak: Callable[[int], object]  # that many frames
    begin: Callable[[], None] = lambda: None

    def watch(self, owner: Any, name: str) -> Runtime:
        """Call `begin` before the method that each frame calls once, and first."""
        call = getattr(owner, name)

        def watched(*given: Any, **named: Any) -> Any:
            self.begin()
            return call(*given, **named)

        setattr(owner, name, watched)
        return self


def faster(folder: str) -> Runtime:
    """Load faster-qwen3-tts: the predictor and the talker as a CUDA graph each."""
    from faster_qwen3_tts import FasterQwen3TTS

    found = FasterQwen3TTS.from_pretrained(folder, device="cuda", dtype=torch.bfloat16)
    ask = request(found, found.model.model)
    return Runtime("faster-qwen3-tts", found.model.model, ask).watch(found.predictor_graph, "run")


def official(folder: str) -> Runtime:
    """Load qwen-tts: eager torch."""
    from qwen_tts import Qwen3TTSModel

    found = Qwen3TTSModel.from_pretrained(folder, device_map="cuda", dtype=torch.bfloat16)
    ask = request(found, found.model)
    predictor = found.model.talker.code_predictor
    return Runtime("qwen-tts", found.model, lambda frames: ask(frames + 1)).watch(predictor, "generate")


def request(runtime: Any, model: Any) -> Callable[[int], object]:
    """Return what says so many tokens of the first codebook, drawn as the runtime does by default."""
    asked = {"text": TEXT, "language": "English", "non_streaming_mode": True}
    if model.tts_model_type != "base":
        return lambda tokens: runtime.generate_custom_voice(**asked, speaker="Ryan", max_new_tokens=tokens)
    speaker = torch.ones(model.config.talker_config.hidden_size, dtype=torch.bfloat16, device=model.device)
    voice = {"ref_spk_embedding": [speaker], "ref_code": [None], "x_vector_only_mode": [True], "icl_mode": [False]}
    return lambda tokens: runtime.generate_voice_clone(**asked, voice_clone_prompt=voice, max_new_tokens=tokens)


def never_ends(model: Any) -> None:
    """Make the end of speech no candidate of a draw, at no cost: random weights would draw it some day."""
    talker = model.talker
    with torch.no_grad():
        talker.codec_head.weight[talker.config.codec_eos_token_id] = 0


def warm(runtime: Runtime, frames: int) -> int:
    """Say frames for the first time, which captures graphs; return the positions of the prompt."""
    lengths = list[int]()

    def see(_: Any, __: Any, named: dict[str, Any]) -> None:
        lengths.append(named["inputs_embeds"].shape[1])

    hook = runtime.model.talker.model.register_forward_pre_hook(see, with_kwargs=True)
    runtime.speak(frames)
    hook.remove()
    return max(lengths)


def times(runtime: Runtime, frames: int) -> list[float]:
    """Return milliseconds between the beginnings of frames on the GPU, which waits where the host is late."""
    marks = list[torch.cuda.Event]()

    def mark() -> None:
        marks.append(torch.cuda.Event(enable_timing=True))
        marks[-1].record()

    runtime.begin = mark
    runtime.speak(frames)
    torch.cuda.synchronize()
    if len(marks) != frames:
        raise RuntimeError(f"expected {frames} frames, got {len(marks)}")
    return [start.elapsed_time(end) for start, end in pairwise(marks)][SETTLED:]


def kernels(runtime: Runtime, frames: int) -> float:
    """Count the kernels of a frame, also those of CUDA graphs."""
    profiler = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA])
    begun = 0

    def begin() -> None:
        nonlocal begun
        begun += 1
        if begun in (SETTLED, SETTLED + frames):
            torch.cuda.synchronize()
            (profiler.start if begun == SETTLED else profiler.stop)()

    runtime.begin = begin
    runtime.speak(SETTLED + frames + 1)
    return kernels_of(profiler) / frames


def kernels_of(profiler: torch.profiler.profile) -> int:
    """Count the kernels that a profiler has seen; its own events do not tell them from copies."""
    with tempfile.TemporaryDirectory() as place:
        trace = Path(place) / "trace.json"
        profiler.export_chrome_trace(str(trace))
        events = json.loads(trace.read_text(encoding="utf-8"))["traceEvents"]
    return sum(event.get("cat") == "kernel" for event in events)


def main() -> None:
    """Load, then answer until there are no more questions."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # runtimes and their libraries print
    sys.path.append(str(Path(__file__).parents[1] / "tests" / "official"))
    from stub import without_torchaudio

    without_torchaudio()
    kind, folder = sys.argv[1:]
    runtime = {"faster": faster, "official": official}[kind](folder)
    never_ends(runtime.model)
    prompt = warm(runtime, 2 * SETTLED)
    libraries = {name: version(name) for name in ("torch", "transformers")}
    said: Any = {"name": f"{runtime.package} {version(runtime.package)}", "prompt": prompt, **libraries}
    print(json.dumps(said), file=answers, flush=True)
    for question in sys.stdin:
        what, frames = question.split()
        print(json.dumps({"times": times, "kernels": kernels}[what](runtime, int(frames))), file=answers, flush=True)


if __name__ == "__main__":
    main()

"""A text model in one launch: are its tokens the reference's, and how fast? Trained weights of SmolLM2-135M; and how
fast is a decoder of the sizes of Qwen3-0.6B, with random weights?

The environment variable SMOLLM2 names the folder that examples/smollm2 writes. The reference multiplies the same
bfloat16 weights in float32. Both keep keys and values in float32 where tokens must be equal: rounded to bfloat16, they
part any two computations (benchmarks/frames_parity.py), and what that changes is told without a limit. Peers are the
same decoder in plain torch, eager and compiled, both in bfloat16 throughout. The floor is the time in which the GPU
reads the weights of a token once, at the speed at which it reads a large tensor in the same run.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, repeat
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import torch
from torch import Tensor

from benchmarks.frames import read_bandwidth, read_bytes
from benchmarks.timing import back_to_back
from onekernel import device
from onekernel.errors import InvalidInput
from onekernel.megakernel.decoder import DecoderShape
from onekernel.text.config import TextConfig, read_text
from onekernel.text.reference import Context, Reference, TextDecoder
from onekernel.text.tokenizer import TextTokenizer
from onekernel.text.tokens import TokenKernel, layout_for
from onekernel.text.weights import TextWeights, read_weights, text_layout

PROMPTS = (
    "The capital of France is", "Once upon a time", "def fibonacci(n):", "Water boils at",
    "The three primary colours are", "To bake bread, you need", "In 1969, astronauts",
    "The opposite of hot is", "My favourite book is about",
    "A triangle has three sides, and a square has", "The largest planet of the solar system is", "Dear Sir or Madam,",
    "Photosynthesis is the process by which", "1, 1, 2, 3, 5, 8,", "Shakespeare wrote", "import numpy as np\n",
    "The recipe begins with two eggs and", "If it rains tomorrow, we will",
    "<|im_start|>user\nWrite a haiku about rain.<|im_end|>\n<|im_start|>assistant\n",
    "<|im_start|>user\nWhat is 12 times 12?<|im_end|>\n<|im_start|>assistant\n",
)  # fmt: skip
QWEN3 = TextConfig(
    "qwen3", DecoderShape(28, 1024, 3072, 16, 8, 128, 151_936, head_norms=True), tied=True, positions=40_960, ends=()
)
TOKENS = 256  # of parity, for each prompt
TIE = 50  # millionths of the largest logit: as far as the engines' logits may be apart
POSITIONS, AT_ONCE, LAUNCHES = (100, 1000), (1, 8, 64), 200  # of speed
PEER_TOKENS, WARM = 100, 5
Row = dict[str, Any]


@dataclass(frozen=True)
class Model:
    """A checkpoint as both engines, on a device."""

    config: TextConfig
    tensors: dict[str, Tensor]
    tokenizer: Any  # None where no text is read
    kernel: TokenKernel
    reference: Reference
    seconds: float  # to compile the kernel and pack the weights


def prepare(folder: Path, on: Any, place: str, kept: str = "bfloat16") -> Model:
    """Read a checkpoint and make both engines of it, tensors at `place`; they keep keys and values as `kept`."""
    config = read_text(folder)
    config = replace(config, shape=replace(config.shape, kept=kept))
    tensors = read_weights(folder, config)
    start = time.perf_counter()
    weights = TextWeights(config, tensors, place)
    kernel = TokenKernel(config.shape, layout_for(config.shape, on), weights, on)
    seconds = time.perf_counter() - start
    tokenizer = TextTokenizer(folder / "tokenizer.json", config.shape.vocab)
    return Model(config, tensors, tokenizer, kernel, Reference(TextDecoder(config, tensors, place)), seconds)


def drawn(config: TextConfig, on: Any) -> Model:
    """Make a model with random weights on a GPU."""
    shapes = text_layout(config).items()
    tensors = {name: torch.randn(shape, device="cuda").mul_(0.02).bfloat16() for name, shape in shapes}
    start = time.perf_counter()
    kernel = TokenKernel(config.shape, layout_for(config.shape, on), TextWeights(config, tensors, "cuda"), on)
    seconds = time.perf_counter() - start
    return Model(config, tensors, None, kernel, Reference(TextDecoder(config, tensors, "cuda")), seconds)


def parity(model: Model, prompts: Sequence[str] = PROMPTS, count: int = TOKENS) -> Iterator[Row]:
    """Compare what both engines say; ends of texts are passed over. One launch and many must say the same."""
    for prompt in prompts:
        tokens = model.tokenizer.encode(prompt)
        found = model.kernel.begin(tokens, len(tokens) + count).say(count)
        yield {"what": f"tokens equal behind {prompt[-24:]!r}", **agreement(model.reference, tokens, found)}
    tokens = model.tokenizer.encode(prompts[0])
    whole, parts = (model.kernel.begin(tokens, len(tokens) + count) for _ in range(2))
    apart = [token for _ in range(count) for token in parts.say(1)]
    same = sum(a == b for a, b in zip(whole.say(count), apart, strict=True))
    yield {"what": "tokens equal in one launch and one by one", "measured": same, "least": count}


def rounding(model: Model, prompts: Sequence[str] = PROMPTS, count: int = TOKENS) -> Iterator[Row]:
    """Tell how many prompts the engines go on from with the same tokens, where both keep bfloat16."""
    found = [
        agreement(model.reference, tokens, model.kernel.begin(tokens, len(tokens) + count).say(count))
        for tokens in map(model.tokenizer.encode, prompts)
    ]
    same = sum(row["measured"] == count for row in found)
    yield {"what": f"keys in bfloat16: prompts with all tokens equal, of {len(prompts)}", "measured": same}


def agreement(reference: Reference, prompt: list[int], found: list[int]) -> Row:
    """Count the tokens up to the first that the reference does not say.

    There, `gap` is by how many millionths of the largest logit its best is above that of the token that was said. It
    may be a tie, which the order of a sum decides; behind it the two speak of different things, and nothing more is
    compared.
    """
    request = reference.begin(prompt, len(prompt) + len(found))
    for place, token in enumerate(found):
        (right,) = request.say(1)
        if right != token:
            logits = request.logits
            gap = 1e6 * float((logits[right] - logits[token]) / logits.abs().max())
            return {"measured": place, "least": place if gap <= TIE else len(found), "gap": gap}
    return {"measured": len(found), "least": len(found)}


def speed(model: Model) -> Iterator[Row]:
    """Time launches of one and of several tokens at the contexts of `POSITIONS`, and the peers at the first of them."""
    read = read_bandwidth()
    floor = read_bytes(model.kernel.layout.program) / read * 1e3
    yield {"what": "seconds to compile and to pack", "measured": model.seconds}
    yield {"what": "read bandwidth, TB/s", "measured": read / 1e12}
    for position in POSITIONS:
        for count in AT_ONCE:
            what = f"ms a token at {position} positions, {count} a launch"
            yield timed(what, launches(model, position, count), floor)
    yield timed("ms a token, streamed: one a launch, until the host has it", streamed(model), floor)
    decoder = TextDecoder(model.config, model.tensors, "cuda", torch.bfloat16)
    yield timed("ms a token, eager torch in bfloat16", eager(decoder), floor)
    yield timed("ms a token, torch.compile in bfloat16", compiled(decoder), floor)


def timed(what: str, times: list[float], floor: float) -> Row:
    """Make a row of milliseconds a token."""
    most = {"p99": quantiles(times, n=100)[98], "max": max(times), "floor": floor, "of floor": floor / median(times)}
    return {"what": what, "measured": median(times), **most, "tokens a second": 1e3 / median(times)}


def launches(model: Model, position: int, count: int) -> list[float]:
    """Return milliseconds a token of each launch, on the GPU; each begins at the same position."""
    request = model.kernel.begin([1], position + count + 1)
    request.cache.normal_()

    def launch() -> None:
        request.position = position
        request.launch(count)

    return [span / count for span in spans(launch, LAUNCHES)]


def streamed(model: Model) -> list[float]:
    """Return milliseconds of the host from one token to the next, behind the first of `POSITIONS`."""
    request, times = model.kernel.begin([1], sum(POSITIONS)), list[float]()
    request.position = POSITIONS[0]
    for _ in range(WARM + LAUNCHES):
        start = time.perf_counter()
        request.say(1)
        times.append(1e3 * (time.perf_counter() - start))
    return times[WARM:]


def eager(decoder: TextDecoder) -> list[float]:
    """Return milliseconds a token of plain torch, on the GPU, behind the first of `POSITIONS`."""
    context = decoder.context(POSITIONS[0] + 1)
    token = torch.ones(1, dtype=torch.int64, device="cuda")

    def step() -> None:
        context.length = POSITIONS[0]
        decoder(token, context).argmax()

    return spans(step, PEER_TOKENS)


def compiled(decoder: TextDecoder) -> list[float]:
    """Return milliseconds a token of `compile_step`, on the GPU, behind the first of `POSITIONS`."""
    context = StaticContext(decoder, POSITIONS[0] + WARM + PEER_TOKENS + 2)
    context.position.fill_(POSITIONS[0])
    token = torch.ones(1, dtype=torch.int64, device="cuda")
    return spans(compile_step(decoder, context, token), PEER_TOKENS)


def spans(work: Callable[[], object], count: int) -> list[float]:
    """Return milliseconds of each of `count` runs of some work on the GPU, behind a few that do not count."""
    for _ in range(WARM):
        work()
    return back_to_back(work, count)


class StaticContext(Context):
    """A context whose tensors keep their shapes and addresses: one token at a time, positions counted on the device."""

    def __init__(self, decoder: TextDecoder, capacity: int) -> None:
        super().__init__(decoder.shape, capacity, decoder.table)
        self.places = torch.arange(capacity, device=self.kept.device)
        self.position = torch.zeros(1, dtype=torch.int64, device=self.kept.device)

    def rotation(self, count: int) -> tuple[Tensor, Tensor]:
        """Return cos and sin of the next position."""
        assert count == 1
        return self.cos[self.position], self.sin[self.position]

    def write(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Put a key and a value in; return all there is room for."""
        keys, values = self.kept[layer]
        keys.index_copy_(1, self.position, key.bfloat16())
        values.index_copy_(1, self.position, value.bfloat16())
        return keys.to(key.dtype), values.to(value.dtype)

    def mask(self, count: int) -> Tensor:
        """Let the new position see those before it and itself."""
        assert count == 1
        return (self.places <= self.position)[None]

    def advance(self, count: int) -> None:
        """Count the position."""
        self.position.add_(count)


def compile_step(decoder: TextDecoder, context: StaticContext, token: Tensor) -> Callable[[], None]:
    """Compile a step that puts the next token in the place of `token` [1] and counts the position: a CUDA graph."""

    def step() -> None:
        token.copy_(decoder(token, context).argmax()[None])

    still = (*decoder.weights.values(), context.kept, context.cos, context.sin, context.places, context.position, token)
    for tensor in still:  # else a graph would copy them in, and one that writes into them would not be made
        torch._dynamo.mark_static_address(tensor)
    return torch.compile(step, mode="reduce-overhead", fullgraph=True)


def run(say: Callable[[str], None]) -> list[Row]:
    """Compare and time; returns rows."""
    if (folder := os.environ.get("SMOLLM2")) is None:
        todo = "python -m examples.smollm2.convert FOLDER, then SMOLLM2=FOLDER"
        raise InvalidInput(expected="the folder of SmolLM2 in SMOLLM2", got="no such variable", todo=todo)
    rows: list[Row] = []
    with torch.inference_mode():
        exact, model = (prepare(Path(folder), device.get("cuda"), "cuda", kept) for kept in ("float32", "bfloat16"))
        trained = chain(parity(exact), rounding(model), speed(model))
        like_qwen3 = speed(drawn(QWEN3, device.get("cuda")))
        for name, row in chain(zip(repeat("SmolLM2-135M"), trained), zip(repeat("sizes of Qwen3-0.6B"), like_qwen3)):
            rows.append({"model": name, **row})
            say(f"{row}")
    return rows


def failed(rows: list[Row]) -> bool:
    """Say whether tokens differ where there was no tie; speed alone fails nothing."""
    return any(row["measured"] < row["least"] for row in rows if "least" in row)

"""A text model in memory: a checkpoint's parts put together, an engine, and texts that it goes on with.

Decoding is greedy: at each step the likeliest token. There is no sampling, and asking for it is an error.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from operator import index
from pathlib import Path
from typing import Literal, NamedTuple

try:
    import torch
except ModuleNotFoundError as error:
    from onekernel.errors import MissingExtra

    raise MissingExtra("torch", "text") from error

from onekernel.checkpoint import locate
from onekernel.device import Device, get
from onekernel.errors import InvalidInput
from onekernel.text.config import read_text
from onekernel.text.engines import ENGINES, KERNELS, Request, build_engine
from onekernel.text.tokenizer import Pieces, TextTokenizer
from onekernel.text.weights import read_weights

MAX_TOKENS = 256
AT_ONCE = 8  # tokens of a launch, where nobody waits for each of them

Finish = Literal["", "eos", "length"]


class Token(NamedTuple):
    """A token, and the text that became final with it: "" inside a character, and without a tokenizer."""

    id: int
    text: str


@dataclass(frozen=True)
class Generated:
    """A whole answer. `finish`: "eos", which is not among the tokens, or "length".

    `text` is "" without a tokenizer; a character at its end that lacks bytes is left out.
    """

    tokens: tuple[int, ...]
    text: str
    finish: Finish


@dataclass
class Generation:
    """An answer on its way: an iterator of tokens, which also tells what was said and, at its end, why it ended."""

    request: Request
    left: int  # tokens that may still be said
    ends: tuple[int, ...]
    at_once: int
    pieces: Pieces | None
    tokens: list[int] = field(default_factory=list)
    text: str = ""
    finish: Finish = ""
    _ahead: list[int] = field(default_factory=list)  # said by the engine, and not yet by us

    def __iter__(self) -> Iterator[Token]:
        return self

    def __next__(self) -> Token:
        if self.finish:
            raise StopIteration
        if not self._ahead:
            self._ahead = self.request.say(min(self.at_once, self.left))
        token = self._ahead.pop(0)
        if token in self.ends:
            self.finish = "eos"
            raise StopIteration
        self.left -= 1
        if not self.left:
            self.finish = "length"
        piece = self.pieces.push(token) if self.pieces else ""
        self.tokens.append(token)
        self.text += piece
        return Token(token, piece)


class TextModel:
    """Made by `load_text`. Requests share nothing but the weights.

    `engine.name` says which engine says the tokens, `refusals` why "auto" did not take those before it.
    """

    def __init__(self, folder: Path, device: str, engine: str) -> None:
        """Read a checkpoint and build the engine. Raises InvalidInput for a model or an engine that cannot be."""
        on, place = _place(device)
        self.config, self.device = read_text(folder), device
        tensors, file = read_weights(folder, self.config), folder / "tokenizer.json"
        self.tokenizer = TextTokenizer(file, self.config.shape.vocab) if file.is_file() else None
        self.engine, self.refusals = build_engine(engine, self.config, tensors, on, place)

    def generate(
        self, prompt: str | Sequence[int], *, max_tokens: int = MAX_TOKENS, at_once: int = AT_ONCE, **sampling: object
    ) -> Generated:
        """Go on with a prompt, a text or tokens, until the model ends it or `max_tokens` are said; greedy.

        `at_once`: tokens of a launch at most, where the engine makes several. Raises InvalidInput for a prompt that
        cannot be, and for every option of sampling.
        """
        generation = self.stream(prompt, max_tokens=max_tokens, at_once=at_once, **sampling)
        for _ in generation:
            pass
        return Generated(tuple(generation.tokens), generation.text, generation.finish)

    def stream(
        self, prompt: str | Sequence[int], *, max_tokens: int = MAX_TOKENS, at_once: int = 1, **sampling: object
    ) -> Generation:
        """Go on with a prompt as `generate`, token by token as they are made; tokens of one launch come together."""
        if sampling:
            got = ", ".join(sorted(sampling))
            raise InvalidInput(expected="no sampling: decoding is greedy", got=got, todo="leave it out")
        for name, value in (("max_tokens", max_tokens), ("at_once", at_once)):
            if value < 1:
                raise InvalidInput(expected=f"{name} of at least 1", got=str(value), todo="ask for more")
        tokens = self._tokens(prompt)
        if (positions := len(tokens) + max_tokens) > self.config.positions:
            expected = f"at most {self.config.positions} tokens, prompt and answer together"
            raise InvalidInput(expected=expected, got=str(positions), todo="shorten the prompt, or lower max_tokens")
        pieces = self.tokenizer.pieces() if self.tokenizer else None
        return Generation(self.engine.begin(tokens, positions), max_tokens, self.config.ends, at_once, pieces)

    def _tokens(self, prompt: str | Sequence[int]) -> list[int]:
        """Return the tokens of a prompt. Raises InvalidInput for one that is empty, or that has tokens of no row."""
        if isinstance(prompt, str):
            if self.tokenizer is None:
                todo = "give tokens, or put the tokenizer.json of the model beside its config.json"
                raise InvalidInput(expected="tokens: the folder has no tokenizer.json", got="a text", todo=todo)
            prompt = self.tokenizer.encode(prompt)
        tokens, vocab = [index(token) for token in prompt], self.config.shape.vocab
        if not tokens:
            raise InvalidInput(expected="a prompt of at least one token", got="none", todo="give a text to go on with")
        if foreign := [token for token in tokens if not 0 <= token < vocab]:
            raise InvalidInput(expected=f"tokens from 0 to {vocab - 1}", got=str(foreign[0]), todo="correct the prompt")
        return tokens


def load_text(folder: str | Path, *, device: str | None = None, engine: str = "auto") -> TextModel:
    """Load a decoder of the Llama or Qwen3 family: a folder in Hugging Face layout, or a hub id, which is downloaded.

    Weights are float16 if config.json says so (torch_dtype), else rounded to bfloat16. `device`: "cpu", "cuda",
    "cuda:N", or for tests "emulated", a GPU played by the CPU (None: the GPU if torch sees one, else the CPU).
    `engine`: "megakernel" says tokens in one launch, on "cuda" and "emulated"; "launches" makes each phase a launch,
    there too; "reference" is plain torch; "auto" is the first of these that fits the device, in this order, and the
    reference on "cpu": the model's `refusals` and the log tell why it is not the first. Raises InvalidInput for a
    model, a device or an engine that cannot be used: one that is named is never replaced.
    """
    if engine not in ENGINES:
        todo = "name one of them, or leave it out"
        raise InvalidInput(expected=f"engine as {', '.join(ENGINES)}", got=repr(engine), todo=todo)
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    if engine in KERNELS and device == "cpu":
        todo = "use a GPU, or the engine reference"
        raise InvalidInput(expected=f"device as cuda or emulated, for the engine {engine}", got="cpu", todo=todo)
    return TextModel(locate(folder), device, engine)


def _place(device: str) -> tuple[Device | None, str]:
    """Return where kernels run, None for a CPU, and where torch has its tensors."""
    if device == "cpu":
        return None, "cpu"
    if device != "emulated" and device.partition(":")[0] != "cuda":
        expected = "device as cpu, cuda, cuda:N or emulated"
        raise InvalidInput(expected=expected, got=repr(device), todo="name one of them")
    return get(device), "cpu" if device == "emulated" else device

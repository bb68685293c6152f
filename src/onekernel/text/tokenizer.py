"""Text -> tokens and back, by the tokenizer.json of a checkpoint; nothing of it is ours."""

from __future__ import annotations

from pathlib import Path

from onekernel.errors import InvalidInput, MissingExtra

try:
    from tokenizers import Tokenizer
    from tokenizers.decoders import DecodeStream
except ImportError as error:  # not there, or from before DecodeStream
    raise MissingExtra("tokenizers", "text") from error


class TextTokenizer:
    """A tokenizer with at most `vocab` entries. Raises InvalidInput for a file that is unreadable or has more."""

    def __init__(self, file: Path, vocab: int) -> None:
        todo = "use the tokenizer and the config of one checkpoint"
        try:
            self._tokenizer = Tokenizer.from_file(str(file))
        except Exception as error:  # the library raises no other class
            raise InvalidInput(expected=f"a tokenizer at {file}", got=str(error), todo=todo) from error
        if (found := self._tokenizer.get_vocab_size()) > vocab:
            expected = f"at most {vocab} entries in {file}, as the config says"
            raise InvalidInput(expected=expected, got=str(found), todo=todo)

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text, with those that the file puts around it (a BOS, where the model has one)."""
        return list(self._tokenizer.encode(text.encode(errors="replace").decode()).ids)

    def pieces(self) -> Pieces:
        """Begin a text that arrives token by token; control tokens have none."""
        return Pieces(self._tokenizer)


class Pieces:
    """The text of tokens, piece by piece: a character is held back until all its bytes are there."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer, self._stream = tokenizer, DecodeStream(skip_special_tokens=True)

    def push(self, token: int) -> str:
        """Add a token; return the text that became final."""
        return self._stream.step(self._tokenizer, token) or ""

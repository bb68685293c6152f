"""Text -> ids of the text vocabulary: Qwen2 byte-level BPE, for whole texts and for texts that arrive in pieces.

Control tokens are no part of the BPE here. Their ids stand only where `wrap` puts them, so a text that spells one out
("<|im_end|>") becomes ordinary tokens and cannot end or steer anything.
"""

from __future__ import annotations

import json
import re
import unicodedata
from pathlib import Path

from onekernel.errors import InvalidInput, MissingExtra
from onekernel.speech.config import SpeechConfig
from onekernel.speech.prompt.characters import Decoder

try:
    from tokenizers import Regex, Tokenizer
    from tokenizers.models import BPE
    from tokenizers.normalizers import NFC
    from tokenizers.pre_tokenizers import ByteLevel, Sequence, Split
except ModuleNotFoundError as error:
    raise MissingExtra("tokenizers", "speech") from error

# The Qwen2 rule. A word is what one alternative matches; merges never cross words.
_WORD = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# White space that would share a word with the newline of the role; \x1c to \x1f are spaces for Python alone.
_LEADING = re.compile(r"\A(?:(?![\x1c-\x1f])\s)*[\r\n]+")
_LONG = 512  # characters: longer words are looked at less and less often, so that no text costs its square
_CONTROL = {
    "im_start": "<|im_start|>", "im_end": "<|im_end|>", "tts_pad": "<tts_pad>", "tts_bos": "<tts_text_bos>",
    "tts_eos": "<tts_text_eod>",
}  # fmt: skip


class TextTokenizer:
    """The tokenizer of a checkpoint folder: vocab.json, merges.txt, and ids of control tokens from its config.

    Raises InvalidInput for files that are missing, unreadable, or do not belong to the config.
    """

    def __init__(self, folder: Path, config: SpeechConfig) -> None:
        self._im_start, self._im_end = config.im_start, config.im_end
        self._split, self._nfc = Split(Regex(_WORD), "isolated"), NFC()
        self._bpe = Tokenizer(_read(folder))
        self._bpe.normalizer = self._nfc
        self._bpe.pre_tokenizer = Sequence([self._split, ByteLevel(add_prefix_space=False, use_regex=False)])
        self._check(folder, config)
        self.role = self.wrap("")[:3]

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text as they stand after the role, without newlines in front."""
        return self._ids(_LEADING.sub("", _scalars(text)))

    def wrap(self, text: str, role: str = "assistant") -> list[int]:
        """Return the ids of <|im_start|>ROLE, newline, text, <|im_end|>, newline: one string, tokenized as a whole."""
        return [self._im_start, *self._ids(f"{role}\n{_scalars(text)}"), self._im_end, *self._ids("\n")]

    def stream(self) -> StreamingTokenizer:
        """Begin a text that arrives in pieces."""
        return StreamingTokenizer(self)

    def normal(self, text: str) -> str:
        """Return the text in normal form C."""
        return str(self._nfc.normalize_str(text))

    def words(self, text: str) -> list[str]:
        """Cut a text in normal form into words."""
        return [word for word, _ in self._split.pre_tokenize_str(text)]

    def encode_words(self, words: list[str]) -> list[int]:
        """Return the ids of words, each normalized and encoded by itself."""
        return list(self._bpe.encode(words, is_pretokenized=True).ids)

    def _ids(self, text: str) -> list[int]:
        return list(self._bpe.encode(text).ids)

    def _check(self, folder: Path, config: SpeechConfig) -> None:
        """Refuse a vocabulary that reaches into the control tokens, or whose roles or control tokens lie elsewhere."""
        ids = {token: getattr(config, name) for name, token in _CONTROL.items()}
        if self._bpe.get_vocab_size() > min(ids.values()) or len(self.wrap("")) != 5:
            got = f"{self._bpe.get_vocab_size()} entries in {folder / 'vocab.json'}"
            raise _foreign("a vocabulary of Qwen2 below the control tokens", got)
        file = folder / "tokenizer_config.json"
        if not file.is_file():
            return
        try:
            added = json.loads(file.read_text(encoding="utf-8"))["added_tokens_decoder"]
            found = {entry["content"]: int(place) for place, entry in added.items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise _foreign(f"added tokens in {file}", f"{type(error).__name__}: {error}") from error
        for token, place in ids.items():
            if found.get(token) != place:
                raise _foreign(f"{token} as {place} in {file}, as config.json says", str(found.get(token)))


class StreamingTokenizer:
    """A text that arrives in pieces, cut anywhere: all returned ids together are those of `encode` of the whole text.

    Pieces are str, or bytes of UTF-8; what is neither becomes U+FFFD. An id is returned once no later piece can change
    it: the last word is held back, with the spaces behind it, and the last character, with which a mark may combine.
    """

    def __init__(self, tokenizer: TextTokenizer) -> None:
        self._tokenizer, self._decoder = tokenizer, Decoder()
        self._raw = ""  # from the last character that a mark may change
        self._text = ""  # in front of it, in normal form, words not yet returned
        self._patience = 0  # how long the text is when its words are looked at again
        self._begun = self._closed = False

    def push(self, piece: str | bytes) -> list[int]:
        """Add a piece; return the ids that became final. Raises InvalidInput behind `close`."""
        if self._closed:
            raise InvalidInput(expected="text before the end", got="text behind it", todo="begin another stream")
        before = len(self._raw)
        self._raw += self._decoder.decode(piece)
        self._settle(_unsettled(self._raw, before))
        if len(self._text) < self._patience:
            return []
        return self._take(min(len(self._text.rstrip()), len(self._text) - 1))

    def flush(self) -> list[int]:
        """Return the ids of all that is held, as if the text ended here; what follows is tokenized by itself."""
        self._settle(len(self._raw))
        return self._take(len(self._text))

    def close(self) -> list[int]:
        """End the text; return the ids of all that is held."""
        self._raw += self._decoder.end()
        self._closed = True
        return self.flush()

    def _settle(self, end: int) -> None:
        self._text += self._tokenizer.normal(self._raw[:end])
        self._raw = self._raw[end:]
        if not self._begun:
            self._text = _LEADING.sub("", self._text)

    def _take(self, limit: int) -> list[int]:
        """Remove the words that end at `limit` or before it; return their ids."""
        words, end = list[str](), 0
        for word in self._tokenizer.words(self._text):
            if end + len(word) > limit:
                break
            words.append(word)
            end += len(word)
        self._text = self._text[end:]
        self._begun = self._begun or bool(words)
        self._patience = 0 if words else 2 * len(self._text) - _LONG
        return self._tokenizer.encode_words(words)


def _scalars(text: str) -> str:
    decoder = Decoder()
    return decoder.decode(text) + decoder.end()


def _unsettled(raw: str, before: int) -> int:
    """Return where the last character begins with which a later mark may combine; at 0, or behind `before`.

    Parts of Hangul syllables combine too, but within a word, and `encode_words` normalizes each.
    """
    for place in range(len(raw) - 1, before - 1, -1):
        if raw[place].isspace():  # nothing combines with a space
            return place + 1
        if not unicodedata.category(raw[place]).startswith("M"):
            return place
    return 0


def _read(folder: Path) -> BPE:
    files = folder / "vocab.json", folder / "merges.txt"
    for file in files:
        if not file.is_file():
            raise _foreign(f"a file {file}", "no such file")
    try:
        return BPE.from_file(*map(str, files))
    except Exception as error:  # the library raises no other class
        raise _foreign(f"a byte-level BPE in {files[0]} and {files[1].name}", str(error)) from error


def _foreign(expected: str, got: str) -> InvalidInput:
    return InvalidInput(expected=expected, got=got, todo="give the folder of a Qwen3-TTS checkpoint with all its files")

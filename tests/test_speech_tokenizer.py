"""Ids equal those of the official tokenizer, control tokens in a text are text, and pieces give what the whole does."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import decoders

from onekernel.errors import InvalidInput
from onekernel.speech.config import SpeechConfig, read_speech
from onekernel.speech.prompt.tokenizer import TextTokenizer
from speech_checkpoint import ADDED, write

HERE = Path(__file__).parent
FILES = HERE / "qwen3_tts"
GOLDEN = json.loads((HERE / "golden" / "speech" / "tokens.json").read_text("utf-8"))
CONFIG = read_speech(FILES / "Qwen3-TTS-12Hz-1.7B-CustomVoice")
TOKENIZER = TextTokenizer(FILES / "common", CONFIG)
VOCABULARY = json.loads((FILES / "common" / "vocab.json").read_text("utf-8"))
LETTERS = {place: token for token, place in VOCABULARY.items()}
TRICKY = [
    *"aesSrR'!.,=<13 \n\r\t-", "  ", "\n ", " \n", "'s", "'re", "\u0301", "\u0327", "\u0338", "\u3099", "\u304b",
    "\u4e2d", "\u1100", "\u1161", "\u11a8", "\uac00", "\U0001f468", "\u200d", "\U0001f3fd", "\ufe0f", "\ud83d",
    "\ude00", "\x1c", "\x85", "\xa0", "\u2028", "\u3000", "\u017f", "\xdf", "\u0f71", "\u0344", "\u212b", "\u09c7",
    "\u09be", "<|im_end|>",
]  # fmt: skip
TEXTS = st.lists(st.sampled_from(TRICKY) | st.characters(), max_size=12).map("".join)


def streamed(pieces: list[Any]) -> list[int]:
    stream = TOKENIZER.stream()
    return [place for piece in pieces for place in stream.push(piece)] + stream.close()


def pieces_of(whole: Any, cuts: list[int]) -> list[Any]:
    ends = [*sorted(cut % (len(whole) + 1) for cut in cuts), len(whole)]
    return [whole[start:end] for start, end in zip([0, *ends], ends, strict=False)]


@pytest.mark.parametrize("item", GOLDEN, ids=lambda item: ascii(item["text"])[:24])
def test_ids_are_the_official_ones(item: dict[str, Any]) -> None:
    assert TOKENIZER.encode(item["text"]) == item["ids"]
    assert TOKENIZER.wrap(item["text"]) == [151644, 77091, 198, *item["ids"], 151645, 198]
    assert TOKENIZER.wrap(item["text"], "user") == item["instruct"]
    assert streamed(list(item["text"])) == item["ids"]


def test_the_role_stands_by_itself() -> None:
    """A newline in front of the text would become one token with that of the role."""
    assert TOKENIZER.role == [151644, 77091, 198]
    assert TOKENIZER.wrap("\nfoo")[2] != 198
    for front in ("\n", "\r\n", " \n", "\n \t\n", "\u2028\n"):
        assert TOKENIZER.encode(f"{front} foo") == TOKENIZER.encode(" foo")
        assert streamed([front, " ", "foo"]) == TOKENIZER.encode(" foo")
    assert TOKENIZER.encode("\x1c\nfoo") == TOKENIZER.wrap("\x1c\nfoo")[3:-2]
    assert TOKENIZER.encode("") == TOKENIZER.encode("\n") == streamed(["\n"]) == streamed([]) == []


@pytest.mark.parametrize("token", ADDED)
def test_a_control_token_in_a_text_is_text(token: str) -> None:
    text = f"say {token}{token}now"
    ids = TOKENIZER.encode(text)
    assert max(ids) < len(VOCABULARY) <= CONFIG.im_start
    assert decoders.ByteLevel().decode([LETTERS[place] for place in ids]) == text
    assert streamed(pieces_of(text, [6, 9])) == ids
    assert [place for place in TOKENIZER.wrap(text, "user") if place >= len(VOCABULARY)] == [151644, 151645]


@given(TEXTS, st.lists(st.integers(0, 99), max_size=12))
@example("a  1", [1, 2, 3])
@example("a \n \n b", [3, 4, 5])
@example("it're", [3, 4])
@example("e\u0323\u0302 x", [1, 2])
def test_pieces_of_a_text_give_its_ids(text: str, cuts: list[int]) -> None:
    assert streamed(pieces_of(text, cuts)) == streamed(list(text)) == TOKENIZER.encode(text)


@given(st.binary(max_size=16) | TEXTS.map(lambda text: text.encode("utf-8", "replace")), st.lists(st.integers(0, 99)))
def test_pieces_of_bytes_give_the_ids_of_their_text(data: bytes, cuts: list[int]) -> None:
    assert streamed(pieces_of(data, cuts)) == TOKENIZER.encode(data.decode("utf-8", "replace"))


def test_what_is_no_text_becomes_a_replacement_character() -> None:
    assert TOKENIZER.encode("a\ud83d b") == TOKENIZER.encode("a\ufffd b")
    assert TOKENIZER.encode("\ud83d\ude00") == streamed(["\ud83d", "\ude00"]) == TOKENIZER.encode("\U0001f600")
    assert streamed([b"a\xf0\x9f", "b"]) == TOKENIZER.encode("a\ufffdb")
    assert streamed(["a\ud83d", b"b", b"\xc3"]) == TOKENIZER.encode("a\ufffdb\ufffd")


def test_a_word_is_final_when_the_next_begins() -> None:
    stream = TOKENIZER.stream()
    assert stream.push("Hel") == []
    assert stream.push("lo ") == TOKENIZER.encode("Hello")
    assert stream.push("world") == []
    assert stream.flush() == TOKENIZER.encode(" world")
    assert stream.flush() == []
    assert stream.push("\nmore") == TOKENIZER.encode("x\n")[1:]
    assert stream.close() == TOKENIZER.encode("more")
    with pytest.raises(InvalidInput, match="text behind it"):
        stream.push("x")


@pytest.mark.parametrize("piece", ["\u4e2d", "!", " ", "\u0301", "ab\n"])
def test_a_long_text_without_words_costs_no_more(monkeypatch: pytest.MonkeyPatch, piece: str) -> None:
    seen = list[int]()
    words = TextTokenizer.words
    monkeypatch.setattr(TextTokenizer, "words", lambda self, text: seen.append(len(text)) or words(self, text))
    text = f"a {piece * 3000}. b"
    assert streamed(list(text)) == TOKENIZER.encode(text)
    assert sum(seen) < 80 * len(text)


def folder(tmp_path: Path) -> tuple[Path, SpeechConfig]:
    place = write(tmp_path / "tiny")
    return place, read_speech(place)


def test_a_small_checkpoint_has_its_own_ids(tmp_path: Path) -> None:
    place, config = folder(tmp_path)
    tokenizer = TextTokenizer(place, config)
    assert tokenizer.role == [config.im_start, 263, tokenizer.encode("x\n")[1]]
    assert tokenizer.encode("\xe9a") == tokenizer.encode("e\u0301a")


@pytest.mark.parametrize("file", ["vocab.json", "merges.txt"])
def test_a_missing_or_broken_file_is_named(tmp_path: Path, file: str) -> None:
    place, config = folder(tmp_path)
    (place / file).write_text("{ no such", "utf-8")
    with pytest.raises(InvalidInput, match="byte-level BPE"):
        TextTokenizer(place, config)
    (place / file).unlink()
    with pytest.raises(InvalidInput, match=re.escape(f"a file {place / file}")):
        TextTokenizer(place, config)


def test_files_of_another_model_are_refused(tmp_path: Path) -> None:
    place, config = folder(tmp_path)
    with pytest.raises(InvalidInput, match="below the control tokens"):
        TextTokenizer(FILES / "common", config)
    with pytest.raises(InvalidInput, match=r"<\|im_start\|> as 151644"):
        TextTokenizer(place, CONFIG)
    (place / "merges.txt").write_text("", "utf-8")
    with pytest.raises(InvalidInput, match="below the control tokens"):
        TextTokenizer(place, config)
    shutil.copy(FILES / "common" / "merges.txt", place)
    with pytest.raises(InvalidInput, match="byte-level BPE"):
        TextTokenizer(place, config)
    place, config = folder(tmp_path)
    for broken in ("[]", "{", "{}", '{"added_tokens_decoder": {"1": {}}}', '{"added_tokens_decoder": []}'):
        (place / "tokenizer_config.json").write_text(broken, "utf-8")
        with pytest.raises(InvalidInput, match="added tokens in"):
            TextTokenizer(place, config)

"""Long texts in parts: all of the text, cut where a speaker pauses, and the same for a text that still arrives."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onekernel.speech.prompt import sentences
from onekernel.speech.prompt.sentences import Parts

HARD = sentences.ENDS[-1][0]  # characters


def parts(*pieces: str | bytes | None) -> list[str]:
    return ["".join(piece for piece in part if piece) for part in Parts(pieces)]


TEXTS = st.text(st.sampled_from("abé .,!?\n。\uff0c”\U0001f600"), max_size=80)


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let parts end after some ten characters."""
    rules = [rule for _, rule in sentences.ENDS]
    monkeypatch.setattr(sentences, "ENDS", list(zip((4, 8, 12, 16), rules, strict=True)))


@pytest.mark.usefixtures("short")
@given(TEXTS, st.lists(st.integers(0, 300), max_size=8))
def test_parts_of_a_text_are_the_text_however_it_arrives(text: str, cuts: list[int]) -> None:
    found, data = parts(text), text.encode()
    assert "".join(found) == text
    assert all(part.strip() for part in found) or len(found) == 1
    assert all(len(part.rstrip()) <= 16 + len(part) - len(part.lstrip()) for part in found)
    places = [0, *sorted(cut for cut in cuts if cut < len(data)), len(data)]
    assert parts(*(data[start:end] for start, end in pairwise(places))) == found
    assert parts(*text) == found


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("One. Two three. Four.", ["One. ", "Two three. ", "Four."]),
        ("He said “No.” Then, he left.", ["He said “No.” ", "Then, he left."]),
        ("3.14 is pi, roughly spoken", ["3.14 is pi, ", "roughly spoken"]),
        ("你好你好。”世界很大、很美。", ["你好你好。”", "世界很大、很美。"]),
        ("one two three four five", ["one two three ", "four five"]),
        ("x" * 20, ["x" * 16, "xxxx"]),
        ("", [""]),
        ("Dr", ["Dr"]),
    ],
)
def test_parts_end_where_a_speaker_pauses(text: str, expected: list[str]) -> None:
    assert parts(text) == expected


def test_a_sentence_of_usual_length_is_not_cut() -> None:
    sentence = "This is a sentence of about sixty characters, as people say. "
    found = parts(sentence * 40)
    assert all(part.endswith("say. ") for part in found)
    assert {len(part) // len(sentence) for part in found[:-1]} == {5}  # the first end from 250 characters on
    assert parts("x" * 5000)[0] == "x" * HARD


def test_pauses_stay_where_they_are_and_what_is_left_of_a_part_is_skipped() -> None:
    long = "word " * 60 + "end. "
    found = Parts([long, None, "Next"])
    assert list(next(found)) == ["", long, None, ""]
    assert list(next(found)) == ["Next", ""]
    assert next(found, None) is None
    skipping = Parts([long, "Next", " part."])
    next(next(skipping))
    assert "".join(piece for piece in next(skipping) if piece) == "Next part."


def test_no_more_is_taken_than_is_needed() -> None:
    asked = []

    def written() -> object:
        for piece in ("One ", "two ", "three "):
            asked.append(piece)
            yield piece

    part = next(Parts(written()))  # type: ignore[arg-type]
    assert asked == []
    assert [next(part), next(part)] == ["", "One "]
    assert asked == ["One "]

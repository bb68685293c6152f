"""Voices on disk: what is saved comes back, or the reason is told; nothing is written elsewhere."""

from __future__ import annotations

import os
import pickle
import stat
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onekernel import settings
from onekernel.errors import InvalidInput
from onekernel.speech.voice import store
from onekernel.speech.voice.store import Voice, load, names, remove, save

VECTOR = np.linspace(-1, 1, 64, dtype=np.float32)
CODES = np.arange(48, dtype=np.int32).reshape(3, 16)


def voice(name: str = "anna", **values: Any) -> Voice:
    return Voice(name, **{"x_vector": VECTOR, "size": "0b6", **values})


def assert_equal(got: Voice, expected: Voice) -> None:
    for key, value in vars(expected).items():
        if isinstance(value, np.ndarray):
            assert getattr(got, key).dtype == value.dtype
            assert np.array_equal(getattr(got, key), value)
        else:
            assert getattr(got, key) == value


def test_all_of_a_voice_comes_back(tmp_path: Path) -> None:
    cloned = voice(
        ref_text="Sätze, 句子,\n and \ud800.", ref_codes=CODES, sample_rate=16_000, created="2026-01-02T03:04:05+00:00"
    )
    path = save(cloned, tmp_path / "new" / "folder")
    assert path.name == "anna.npz"
    assert path.stat().st_size < 4096
    assert_equal(load("anna", path.parent), cloned)


def test_a_voice_may_be_an_x_vector_alone(tmp_path: Path) -> None:
    save(voice(), tmp_path)
    assert_equal(got := load("anna", tmp_path, 64), voice(created=got.created))
    assert (got.width, got.ref_text, got.ref_codes, got.sample_rate) == (64, None, None, 24_000)
    assert got.created.endswith("+00:00")


def test_a_voice_is_replaced(tmp_path: Path) -> None:
    save(voice(ref_text="a", ref_codes=CODES), tmp_path)
    save(voice(size="1b7"), tmp_path)
    assert (load("anna", tmp_path).size, load("anna", tmp_path).ref_codes) == ("1b7", None)
    assert os.listdir(tmp_path) == ["anna.npz"]


def test_a_copy_of_the_file_is_another_voice(tmp_path: Path) -> None:
    (tmp_path / "berta.npz").write_bytes(save(voice(), tmp_path).read_bytes())
    assert load("berta", tmp_path).name == "berta"


# --- names


@given(st.text(max_size=50) | st.text("aZ9éß你あ\u0430\u0301 ._-/\\'\0\n", max_size=50))
def test_any_name_is_refused_or_comes_back(name: str) -> None:
    with tempfile.TemporaryDirectory() as top:
        folder = Path(top) / "voices"
        try:
            save(voice(name), folder)
        except InvalidInput:
            assert os.listdir(top) == []
            return
        assert load(name, folder).name == name
        assert names(folder) == [name]
        assert (os.listdir(top), os.listdir(folder)) == (["voices"], [f"{name}.npz"])
        remove(name, folder)
        assert os.listdir(folder) == []


@pytest.mark.parametrize(
    "name", ["a", "小林", "Anna-Maria O'Neil", "हिन्दी", "v1.2", "Ñandú_2", "x.npz", "9", "い" * 40, "a" * 120]
)
def test_names(name: str, tmp_path: Path) -> None:
    save(voice(name), tmp_path)
    assert names(tmp_path) == [load(name, tmp_path).name] == [name]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("", "begin with a letter"),
        (".", "begin with a letter"),
        ("..", "begin with a letter"),
        ("../anna", "begin with a letter"),
        ("/anna", "begin with a letter"),
        ("-rf", "begin with a letter"),
        ("a/b", "holds more than letters"),
        ("a\\b", "holds more than letters"),
        ("a\0", "holds more than letters"),
        ("a\n", "holds more than letters"),
        ("a\u202eb", "holds more than letters"),
        ("a\ud800", "holds more than letters"),
        ("anna.", "ends in a space or dot"),
        ("anna ", "ends in a space or dot"),
        ("e\u0301", "is not in the normal form NFC"),
        ("い" * 41, "has 123 bytes, more than 120"),
    ],
)
def test_a_name_that_is_no_file_name_is_refused(name: str, words: str, tmp_path: Path) -> None:
    for use in (lambda: voice(name), lambda: load(name, tmp_path), lambda: remove(name, tmp_path)):
        with pytest.raises(InvalidInput, match=words):
            use()


def test_names_are_those_of_voices(tmp_path: Path) -> None:
    assert names(tmp_path / "missing") == []
    for name in ("b", "a", "B"):
        save(voice(name), tmp_path)
    for other in (".tmp123", ".hidden.npz", "notes.txt", "-.npz"):
        (tmp_path / other).touch()
    assert names(tmp_path) == ["B", "a", "b"]


# --- refused


def test_a_voice_of_another_width_is_refused(tmp_path: Path) -> None:
    save(voice(), tmp_path)
    words = (
        "a voice for a talker of width 128, got 'anna' of width 64, made by a 0b6 model; add it again with this model"
    )
    with pytest.raises(InvalidInput, match=words):
        load("anna", tmp_path, 128)


def test_a_voice_that_is_not_there_is_refused(tmp_path: Path) -> None:
    for there, words in (("none", r"no 'anna' in .* \(there: none\)"), ("berta", r"\(there: berta\)")):
        if there != "none":
            save(voice(there), tmp_path)
        with pytest.raises(InvalidInput, match=words):
            load("anna", tmp_path)
    with pytest.raises(InvalidInput, match=r"a voice to remove, got 'anna' in .*: No such file"):
        remove("anna", tmp_path)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"x_vector": VECTOR.astype(np.float64)}, "x_vector as finite float32"),
        ({"x_vector": VECTOR[None]}, r"got float32 \[1, 64\]"),
        ({"x_vector": VECTOR[:0]}, "x_vector"),
        ({"x_vector": VECTOR * np.float32("nan")}, "x_vector"),
        ({"ref_text": "a"}, "both or neither, got only one"),
        ({"ref_codes": CODES}, "both or neither"),
        ({"ref_text": "a", "ref_codes": CODES.astype(np.int64)}, "ref_codes as int32"),
        ({"ref_text": "a", "ref_codes": CODES[0]}, r"got int32 \[16\]"),
        ({"ref_text": "a", "ref_codes": CODES[:0]}, "ref_codes"),
        ({"ref_text": "a", "ref_codes": -CODES}, "ref_codes"),
    ],
)
def test_what_is_no_voice_is_refused(values: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        voice(**values)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return save(voice(ref_text="a", ref_codes=CODES), tmp_path_factory.mktemp("whole")).read_bytes()


@given(data=st.data())
def test_a_damaged_file_is_named_or_harmless(whole: bytes, data: st.DataObject) -> None:
    """A byte that no reader looks at, such as a date, may change; what was saved does not."""
    content = bytearray(whole)
    place = data.draw(st.integers(0, len(content) - 1))
    content[place] ^= data.draw(st.integers(1, 255))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "anna.npz"
        path.write_bytes(content)
        try:
            got: Voice | str = load("anna", path.parent)
        except InvalidInput as error:
            got = str(error)
        if isinstance(got, str):
            assert f"a whole voice at {path}, got a damaged one" in got
        else:
            assert_equal(got, voice(ref_text="a", ref_codes=CODES, created=got.created))


class Trap:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("trapped",)


@pytest.mark.parametrize(
    "kind", ["empty", "half", "text", "pickle", "npy", "other npz", "objects", "newer", "no width"]
)
def test_another_file_is_named(whole: bytes, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "anna.npz"
    contents = {"empty": b"", "half": whole[: len(whole) // 2], "text": b"a voice", "pickle": pickle.dumps(Trap())}
    facts = np.array('{"format": 1, "size": "0b6", "ref_text": null, "sample_rate": 24000, "created": ""}')
    with path.open("wb") as file:
        if kind in contents:
            file.write(contents[kind])
        elif kind == "npy":
            np.save(file, VECTOR)
        elif kind == "other npz":
            np.savez(file, x_vector=VECTOR)
        elif kind == "objects":
            np.savez(file, facts=np.array([Trap()], object), x_vector=VECTOR)
        elif kind == "newer":
            np.savez(file, facts=np.char.replace(facts, '"format": 1', '"format": 2'), x_vector=VECTOR)
        else:
            np.savez(file, facts=facts, x_vector=VECTOR[None])
    with pytest.raises(InvalidInput, match=r"a whole voice at .*anna.npz, got a damaged one .*; remove it and add it"):
        load("anna", tmp_path)
    assert names(tmp_path) == ["anna"]
    remove("anna", tmp_path)
    assert os.listdir(tmp_path) == []


# --- writing


def test_a_save_that_fails_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(voice(), tmp_path)

    def half(file: Any, **_: Any) -> None:
        file.write(b"half of it")
        raise KeyboardInterrupt

    monkeypatch.setattr(store.np, "savez", half)
    with pytest.raises(KeyboardInterrupt):
        save(voice(size="1b7"), tmp_path)
    monkeypatch.undo()
    assert load("anna", tmp_path).size == "0b6"
    assert os.listdir(tmp_path) == ["anna.npz"]


def test_voices_are_for_their_user_only(tmp_path: Path) -> None:
    path = save(voice(), tmp_path / "voices")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_a_place_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InvalidInput, match=r"a place for a voice, got .*file/anna.npz: .*; correct it"):
        save(voice(), tmp_path / "file")
    (tmp_path / "anna.npz").mkdir()
    with pytest.raises(InvalidInput, match=r"a place for a voice, got .*anna.npz: Is a directory"):
        save(voice(), tmp_path)
    assert sorted(os.listdir(tmp_path)) == ["anna.npz", "file"]


# --- where they are by default


@pytest.mark.parametrize(
    ("data", "expected"),
    [(None, ".local/share"), ("", ".local/share"), ("relative", ".local/share"), ("/data", "/data")],
)
def test_the_default_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, data: str | None, expected: str) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    if data is not None:
        monkeypatch.setenv("XDG_DATA_HOME", data)
    assert store.default_folder() == tmp_path / expected / "onekernel" / "voices"


def test_no_home_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless(_: Path) -> Path:
        raise RuntimeError("no home")

    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    monkeypatch.setattr(Path, "expanduser", homeless)
    assert settings.load().voices is None
    with pytest.raises(InvalidInput, match="no home; name a folder in XDG_DATA_HOME"):
        store.default_folder()

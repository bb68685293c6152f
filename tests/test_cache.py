"""The cache on disk: what is kept is found again, what is damaged is built again, what others can write is not run."""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cache_entries import BINARY, TEXT, entry, keep, label, must_not_build
from onekernel import settings
from onekernel.errors import CompileError, InvalidInput
from onekernel.jit.cache import Damaged, KernelCache, digest, read, trust, write
from onekernel.jit.cache.entry import RECORD, decode, encode, is_folder_name
from onekernel.jit.compile.binary import Binary


def found(folder: Path, word: str = "key") -> Binary:
    """Get a kernel in a new process's stead: from disk, or fail."""
    return KernelCache(folder).get(label(word), TEXT, must_not_build)


def rebuilt(folder: Path, word: str = "key") -> bool:
    """Get a kernel; tell whether it was built for that, and make sure that it was not in vain."""
    built: list[int] = []
    assert KernelCache(folder).get(label(word), TEXT, lambda: built.append(1) or BINARY) == BINARY
    assert found(folder, word) == BINARY
    return bool(built)


# ---- the format


@given(st.lists(st.text(max_size=4), max_size=3), st.lists(st.text(max_size=4), max_size=3))
def test_digests_of_different_parts_differ(one: list[str], other: list[str]) -> None:
    assert (digest(*one) == digest(*other)) == (one == other)


def test_a_second_process_reads_what_the_first_built(tmp_path: Path) -> None:
    keep(tmp_path)
    assert found(tmp_path) == BINARY


def test_an_entry_is_three_files_that_a_person_can_open(tmp_path: Path) -> None:
    path = keep(tmp_path)
    assert sorted(item.name for item in path.iterdir()) == ["build.json", "kernel.bin", "kernel.cu"]
    assert (path / "kernel.cu").read_text() == TEXT
    assert (path / "kernel.bin").read_bytes() == BINARY.data
    record = json.loads((path / "build.json").read_text())
    assert record["key"] == label().key
    assert record["name"] == "k"
    assert record["target"] == "sm_90"
    assert record["compiler"] == label().compiler
    assert record["resources"]["registers"] == 7
    assert record["files"]["kernel.bin"]["bytes"] == len(BINARY.data)


@given(st.binary(max_size=40), st.text(st.characters(exclude_categories=["Cs"]), max_size=40), st.floats(0, 1e9))
def test_what_is_decoded_is_what_was_encoded(data: bytes, text: str, seconds: float) -> None:
    kept = replace(entry(), text=text, binary=replace(BINARY, data=data, seconds=seconds, log=text))
    assert decode(kept.label.folder, encode(kept)) == kept


def test_long_and_foreign_names_have_folders() -> None:
    for name in ("x" * 300, "norm_é"):
        assert is_folder_name(label(name=name).folder)
    for name in ("photos.2024", ".locks", "a/b." + "0" * 32, "", "k." + "0" * 31, "k." + "0" * 32 + "\n"):
        assert not is_folder_name(name)


def test_every_flipped_bit_is_seen() -> None:
    """All of them: no bit of any file is without meaning."""
    kept = entry()
    files = encode(kept)
    for name, content in files.items():
        for place in range(len(content) * 8):
            changed = bytearray(content)
            changed[place // 8] ^= 1 << place % 8
            with pytest.raises(Damaged):
                decode(kept.label.folder, {**files, name: bytes(changed)})


def test_files_and_folders_cannot_be_swapped(tmp_path: Path) -> None:
    kept, other = encode(entry()), encode(entry("other", b"other bytes"))
    for name in kept:
        with pytest.raises(Damaged):
            decode(label().folder, {**kept, name: other[name]})
    with pytest.raises(Damaged, match=r"it is k\."):
        decode(label("other").folder, kept)
    keep(tmp_path).rename(tmp_path / label("other").folder)
    assert rebuilt(tmp_path, "other")


# ---- damage


def fill_with_deep_json(path: Path) -> None:
    path.write_text("[" * 1_000_000)


def loop(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.name)


def make_folder(path: Path) -> None:
    path.unlink()
    (path / "inside").mkdir(parents=True)


def make_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def make_huge(path: Path) -> None:
    os.truncate(path, 1 << 40)  # a file with a hole: it takes no room


DAMAGES: list[Callable[[Path], object]] = [
    Path.unlink,
    make_folder,
    make_pipe,
    loop,
    make_huge,
    fill_with_deep_json,
    lambda path: path.write_bytes(b""),
    lambda path: path.write_bytes(path.read_bytes()[:-1]),
    lambda path: path.write_bytes(path.read_bytes() + b"\n"),
    lambda path: path.write_bytes(b"\0" * 4096),
    lambda path: path.write_text("{}"),
    lambda path: path.write_text('{"format": ' + "9" * 10_000 + "}"),
    lambda path: path.write_bytes(path.read_text(errors="replace").encode("utf-16")),
    lambda path: path.chmod(0o666),
]


@pytest.mark.parametrize("name", ["kernel.cu", "kernel.bin", "build.json"])
@pytest.mark.parametrize("number", range(len(DAMAGES)))
def test_a_damaged_file_is_built_again(tmp_path: Path, name: str, number: int) -> None:
    path = keep(tmp_path)
    DAMAGES[number](path / name)
    assert rebuilt(tmp_path)
    assert sorted(item.name for item in path.iterdir()) == ["build.json", "kernel.bin", "kernel.cu"]


def in_the_way(path: Path, kind: str) -> None:
    {
        "file": lambda: path.write_text(""),
        "pipe": lambda: os.mkfifo(path),
        "loop": lambda: path.symlink_to(path.name),
        "link": lambda: path.symlink_to(path.parent / "elsewhere"),
        "empty": path.mkdir,
    }[kind]()


@pytest.mark.parametrize("kind", ["file", "pipe", "loop", "link", "empty"])
def test_whatever_is_in_an_entrys_place_is_replaced(tmp_path: Path, kind: str) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "build.json").write_text("somebody's")
    in_the_way(tmp_path / label().folder, kind)
    assert rebuilt(tmp_path)
    assert (tmp_path / "elsewhere" / "build.json").read_text() == "somebody's"


def resealed(record: object) -> bytes:
    """Seal any record as if we had written it."""
    body = json.dumps(record, indent=1).removesuffix("\n}").encode()
    return body + f',\n "sha256": "{hashlib.sha256(body).hexdigest()}"\n}}\n'.encode()


@pytest.mark.parametrize(
    "change",
    [
        {"format": 99},
        {"resources": {"registers": 1, "luck": 2}},
        {"resources": None},
        {"files": []},
        {"files": {"kernel.bin": None}},
        {"key": None},
        {"name": {}},
        {"seconds": "long"},
        {"resources": {"registers": 1.5}},
        {"log": True},
        {"key": "0" * 32},
    ],
)
def test_a_record_of_another_kind_is_refused(change: dict[str, object]) -> None:
    """Sealed rightly, by another version: still only Damaged."""
    files = encode(entry())
    record = json.loads(files[RECORD])
    del record["sha256"]
    assert decode(label().folder, {**files, RECORD: resealed(record)}) == entry()
    with pytest.raises(Damaged):
        decode(label().folder, {**files, RECORD: resealed({**record, **change})})


# ---- folders that cannot be used


def test_an_unusable_folder_costs_one_warning(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    cache = KernelCache(tmp_path / "file")
    with pytest.warns(UserWarning, match="stay in memory"):
        assert cache.get(label(), TEXT, lambda: BINARY) == BINARY
    assert cache.get(label("other"), TEXT, lambda: BINARY) == BINARY


def test_a_folder_that_cannot_be_written_is_still_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keep(tmp_path)
    monkeypatch.setattr("tempfile.mkstemp", refuse)
    cache = KernelCache(tmp_path)
    with pytest.warns(UserWarning, match="cannot be written"):
        cache.get(label("new"), TEXT, lambda: BINARY)
    cache.get(label("newer"), TEXT, lambda: BINARY)
    assert cache.get(label(), TEXT, must_not_build) == BINARY
    assert not (tmp_path / label("new").folder).exists() or not list((tmp_path / label("new").folder).iterdir())


def refuse(*_: object, **__: object) -> object:
    raise OSError(30, "Read-only file system")


def test_no_folder_can_stop_a_build(tmp_path: Path) -> None:
    (tmp_path / ".locks").write_text("a file where locks should be")
    assert KernelCache(tmp_path).get(label(), TEXT, lambda: BINARY) == BINARY


def test_a_failed_build_leaves_nothing(tmp_path: Path) -> None:
    def fail() -> Binary:
        raise CompileError("k", error="e", origin="o", line="l", log="")

    with pytest.raises(CompileError):
        KernelCache(tmp_path).get(label(), TEXT, fail)
    assert [path.name for path in tmp_path.rglob("*")] == [".locks"], "no entry, no lock"


# ---- whose kernels are run


def info(mode: int, uid: int, gid: int = 54321) -> os.stat_result:
    return os.stat_result((stat.S_IFDIR | mode, 0, 0, 1, uid, gid, 0, 0, 0, 0))


@pytest.mark.parametrize(
    ("mode", "owner", "group", "expected"),
    [
        (0o700, "me", "other", True),
        (0o755, "root", "other", True),
        (0o775, "root", "other", True),
        (0o700, "other", "other", False),
        (0o755, "other", "mine", False),
        (0o770, "other", "other", False),
        (0o2770, "other", "mine", True),
        (0o777, "me", "mine", False),
        (0o1777, "root", "other", False),
        (0o702, "me", "mine", False),
    ],
)
@pytest.mark.parametrize("me", [0, 1000])
def test_trust(monkeypatch: pytest.MonkeyPatch, me: int, mode: int, owner: str, group: str, expected: bool) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: me)
    monkeypatch.setattr(os, "getgroups", lambda: [7])
    uid, gid = {"me": me, "root": 0, "other": 4321}[owner], {"mine": 7, "other": 8}[group]
    assert trust.trusted(info(mode, uid, gid)) is expected


@pytest.mark.parametrize("spoil", [lambda path: path.chmod(0o777), lambda path: os.chown(path, 4321, 4321)])
def test_a_folder_of_others_is_neither_read_nor_written(tmp_path: Path, spoil: Callable[[Path], None]) -> None:
    keep(tmp_path)
    try:
        spoil(tmp_path)
    except PermissionError:
        pytest.skip("only root can give a folder away")
    cache, before = KernelCache(tmp_path), sorted(tmp_path.rglob("*"))
    with pytest.warns(UserWarning, match="belongs to another user or can be written by all"):
        assert cache.get(label(), TEXT, lambda: replace(BINARY, data=b"own")).data == b"own"
    assert cache.get(label("other"), TEXT, lambda: BINARY) == BINARY
    assert sorted(tmp_path.rglob("*")) == before


def test_an_entry_that_all_may_write_is_built_again(tmp_path: Path) -> None:
    path = keep(tmp_path)
    path.chmod(0o777)
    assert rebuilt(tmp_path)
    assert path.stat().st_mode & 0o777 == 0o755 & tmp_path.stat().st_mode


@pytest.mark.parametrize(
    ("mode", "folder_mode", "file_mode"),
    [(0o700, 0o700, 0o600), (0o2770, 0o2770, 0o660), (0o755, 0o755, 0o644)],
)
def test_what_is_private_stays_so_and_what_is_shared_too(
    tmp_path: Path, mode: int, folder_mode: int, file_mode: int
) -> None:
    tmp_path.chmod(mode)
    path = keep(tmp_path)
    assert path.stat().st_mode & 0o7777 == folder_mode
    assert {item.stat().st_mode & 0o7777 for item in path.iterdir()} == {file_mode}


def test_a_folder_that_we_make_is_ours_alone(tmp_path: Path) -> None:
    keep(tmp_path / "new" / "cache")
    assert {path.stat().st_mode & 0o077 for path in (tmp_path / "new" / "cache").rglob("*")} == {0}


def test_a_saved_models_entries_are_read_whoever_owns_them(tmp_path: Path) -> None:
    path = tmp_path / label().folder
    write(path, entry())
    path.chmod(0o777)
    assert read(path) == entry()


# ---- the limit's setting


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("500MB", 500_000_000),
        ("2 GB", 2_000_000_000),
        ("1gib", 1 << 30),
        ("1.5k", 1500),
        ("123", 123),
        ("1TiB", 1 << 40),
    ],
)
def test_sizes(monkeypatch: pytest.MonkeyPatch, text: str, expected: int) -> None:
    monkeypatch.setenv("ONEKERNEL_CACHE_LIMIT", text)
    assert settings.load().cache_limit == expected


@pytest.mark.parametrize("text", ["", "0", " 0 ", "0MB"])
def test_no_limit(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("ONEKERNEL_CACHE_LIMIT", text)
    assert settings.load().cache_limit is None


@pytest.mark.parametrize("text", ["much", "-1", "1 PB", "1,5 GB", "9" * 400, "1GB 2", "nan"])
def test_nonsense_is_refused(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("ONEKERNEL_CACHE_LIMIT", text)
    with pytest.raises(InvalidInput, match="ONEKERNEL_CACHE_LIMIT"):
        settings.load()


def test_the_limit_is_a_gigabyte_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ONEKERNEL_CACHE_LIMIT", raising=False)
    assert settings.load().cache_limit == 10**9

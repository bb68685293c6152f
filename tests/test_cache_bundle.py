"""Bundles carry entries unharmed, and carry nothing else in."""

from __future__ import annotations

import gzip
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from cache_entries import BINARY, entry, keep, label
from onekernel.errors import InvalidInput
from onekernel.jit.cache import bundle, read, write
from onekernel.jit.cache.entry import encode
from onekernel.jit.cache.listing import select


def packed(folder: Path, name: str = "b.tar") -> Path:
    """Keep two kernels and pack them."""
    file = folder / name
    report = bundle.pack(file, [keep(folder / "here", word) for word in ("one", "two")])
    assert sorted(item.key for item in report.done) == sorted(label(word).key for word in ("one", "two"))
    return file


@pytest.mark.parametrize("name", ["b.tar", "b.tar.gz", "b.tgz", "no suffix"])
def test_what_is_packed_is_loaded(tmp_path: Path, name: str) -> None:
    file = packed(tmp_path, name)
    assert (file.read_bytes()[:2] == b"\x1f\x8b") == ("gz" in name)
    report = bundle.load(file, tmp_path / "there")
    assert (len(report.done), report.present, report.refused) == (2, [], [])
    for word in ("one", "two"):
        assert read(tmp_path / "there" / label(word).folder) == read(tmp_path / "here" / label(word).folder)
    again = bundle.load(file, tmp_path / "there")
    assert (again.done, len(again.present), again.refused) == ([], 2, [])


def test_the_same_kernels_make_the_same_bytes(tmp_path: Path) -> None:
    assert packed(tmp_path, "a.tgz").read_bytes() == packed(tmp_path, "b.tgz").read_bytes()


@pytest.mark.parametrize("form", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
def test_a_bundle_packed_again_by_tar_is_one(tmp_path: Path, form: int) -> None:
    packed(tmp_path)
    with tarfile.open(tmp_path / "again.tar", "w", format=form) as archive:
        archive.add(tmp_path / "here", ".", filter=lambda member: None if ".locks" in member.name else member)
    report = bundle.load(tmp_path / "again.tar", tmp_path / "there")
    assert len(report.done) == 2
    assert [name for name, _ in report.refused if "kernel" in name] == []


def test_a_damaged_entry_is_not_packed(tmp_path: Path) -> None:
    path = keep(tmp_path / "here")
    (path / "kernel.bin").write_bytes(b"other")
    report = bundle.pack(tmp_path / "b.tar", [path])
    assert report.done == []
    assert "kernel.bin is not the one that was built" in report.refused[0][1]


def member(name: str, content: bytes = b"evil", kind: bytes = tarfile.REGTYPE, target: str = "") -> bytes:
    """Make one member of an archive."""
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.size = kind, target, len(content)
    return info.tobuf(tarfile.GNU_FORMAT) + content + bytes(-len(content) % 512)


def genuine() -> bytes:
    return b"".join(member(f"{label().folder}/{name}", content) for name, content in encode(entry()).items())


OTHER = label("other").folder
EVIL: list[bytes] = [
    member("../../escaped"),
    member("/tmp/escaped"),
    member(f"{OTHER}/../../escaped"),
    member(f"{OTHER}/sub/kernel.cu"),
    member(f"{OTHER}/notes.txt"),
    member(f"{OTHER}/kernel.bin", b"", tarfile.SYMTYPE, "/etc/passwd"),
    member(f"{OTHER}/kernel.bin", b"", tarfile.LNKTYPE, "/etc/passwd"),
    member(f"{OTHER}/kernel.bin", b"", tarfile.FIFOTYPE),
    member(f"{OTHER}/kernel.bin", b"", tarfile.CHRTYPE),
    member(f"{OTHER}/kernel.bin"),
    member(f"{OTHER}/kernel.bin", b"x" * (16 << 20)) + member(f"{OTHER}/build.json", b"{}" * (8 << 20) + b" "),
    b"".join(member(f"{OTHER}/{name}", content) for name, content in encode(entry()).items()),
]


@pytest.mark.parametrize("number", range(len(EVIL)))
def test_what_is_no_entry_is_refused_and_the_rest_is_loaded(tmp_path: Path, number: int) -> None:
    (tmp_path / "b.tar").write_bytes(EVIL[number] + genuine() + EVIL[number] + bytes(1024))
    (tmp_path / "a" / "b").mkdir(parents=True)
    report = bundle.load(tmp_path / "b.tar", tmp_path / "a" / "b" / "there")
    assert [item.key for item in report.done] == [label().key]
    assert len(report.refused) >= 2
    found = {path.name for path in tmp_path.rglob("*") if path.is_file()}
    assert found == {"b.tar", "kernel.cu", "kernel.bin", "build.json"}
    assert not Path("/tmp/escaped").exists()
    assert [slot.key for slot in select(tmp_path / "a" / "b" / "there")] == [label().key]


def huge() -> bytes:
    info = tarfile.TarInfo("pax")
    info.type, info.size = tarfile.XHDTYPE, 1 << 50
    return info.tobuf(tarfile.GNU_FORMAT)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"text, and a lot of it" * 100,
        genuine(),
        genuine()[:-700],
        genuine()[:700],
        huge() + genuine() + bytes(1024),
        b"\x1f\x8b" + bytes(100),
        gzip.compress(genuine() + bytes(1024))[:-30],
        member("nothing", b"") * 1002 + bytes(1024),
    ],
    ids=range(9),
)
def test_what_is_no_bundle_is_an_error_of_one_line(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "b.tar").write_bytes(content)
    with pytest.raises(InvalidInput, match="a bundle that `onekernel cache pack` wrote") as caught:
        bundle.load(tmp_path / "b.tar", tmp_path / "there")
    assert "\n" not in str(caught.value)


def test_a_size_below_zero(tmp_path: Path) -> None:
    info = tarfile.TarInfo(f"{label().folder}/kernel.cu")
    header = bytearray(info.tobuf(tarfile.GNU_FORMAT))
    header[124:136] = b"\xff" * 12  # -1 in base 256
    header[148:156] = b"        "
    header[148:156] = b"%06o\0 " % sum(header)
    (tmp_path / "b.tar").write_bytes(bytes(header) + bytes(1024))
    with pytest.raises(InvalidInput, match="a negative size"):
        bundle.load(tmp_path / "b.tar", tmp_path / "there")


def spoilt(folder: Path) -> None:
    folder.mkdir()
    folder.chmod(0o777)


@pytest.mark.parametrize("spoil", [Path.touch, spoilt])
def test_a_folder_that_cannot_take_it(tmp_path: Path, spoil: Callable[[Path], None]) -> None:
    spoil(tmp_path / "there")
    with pytest.raises(InvalidInput, match="a cache folder to write in"):
        bundle.load(packed(tmp_path), tmp_path / "there")


def test_a_damaged_entry_in_the_folder_is_replaced(tmp_path: Path) -> None:
    path = keep(tmp_path / "there", "one")
    (path / "kernel.bin").write_bytes(b"other")
    report = bundle.load(packed(tmp_path), tmp_path / "there")
    assert len(report.done) == 2
    assert read(path).binary == BINARY


def test_a_saved_models_folder_can_be_packed(tmp_path: Path) -> None:
    """They are the same entries."""
    (tmp_path / "kernels").mkdir()
    write(tmp_path / "kernels" / label().folder, entry())
    assert len(bundle.pack(tmp_path / "b.tar", [slot.path for slot in select(tmp_path / "kernels")]).done) == 1


def test_a_bundle_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "b.tar").mkdir()
    with pytest.raises(OSError, match="directory"):
        bundle.pack(tmp_path / "b.tar", [keep(tmp_path / "here")])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b.tar", "here"]

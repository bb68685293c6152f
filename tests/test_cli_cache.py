"""The verb `cache` as a user meets it, and what `doctor` is told of the folder."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from cache_entries import BINARY, TEXT, keep, label
from onekernel.cli import main
from onekernel.jit.cache.listing import usage
from onekernel.jit.cache.lock import best_effort_lock
from onekernel.jit.compile import nvrtc

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ONEKERNEL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def run(folder: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run `onekernel cache ...` in this process: exit code, stdout, stderr."""
    del folder

    def run(*arguments: object) -> tuple[int, str, str]:
        code = main(["cache", *(str(item) for item in arguments)])
        out, err = capsys.readouterr()
        return code, out, err

    return run


def test_an_empty_cache(run: Run, folder: Path) -> None:
    assert run("list") == (0, f"0 kernels, 0 B, limit 1 GB, in {folder}\n", "")
    assert run("clear")[0] == 0
    assert json.loads(run("list", "--json")[1])["kernels"] == []
    assert not folder.exists(), "looking makes nothing"


def test_list(run: Run, folder: Path) -> None:
    keep(folder, "one")
    damaged = keep(folder, "two")
    (damaged / "kernel.bin").unlink()
    code, out, err = run("list")
    assert (code, err) == (0, "")
    assert label("one").key[:12] in out
    assert "500 ms" in out
    assert "damaged" in out
    assert "2 kernels" in out
    kernels = {item["key"]: item for item in json.loads(run("list", "--json")[1])["kernels"]}
    assert kernels[label("one").key]["resources"]["registers"] == 7
    assert kernels[label("one").key]["target"] == "sm_90"
    assert kernels[label("one").key]["bytes"] == sum(
        file.stat().st_size for file in (folder / label("one").folder).iterdir()
    )
    assert "damaged" in kernels[label("two").key]


def test_show(run: Run, folder: Path) -> None:
    path = keep(folder)
    code, out, _ = run("show", label().key[:8])
    assert code == 0
    for fact in (label().key, "sm_90", label().compiler, str(path / "kernel.cu"), BINARY.log.strip()):
        assert fact in out
    assert run("show", label().key, "--text") == (0, TEXT, "")
    assert json.loads(run("show", label().key, "--json")[1])["log"] == BINARY.log


@pytest.mark.parametrize("verb", [("show",), ("clear",), ("pack", "b.tar")])
def test_keys_that_name_none_or_several(run: Run, folder: Path, verb: tuple[str, ...]) -> None:
    words = [str(number) for number in range(17)]
    for word in words:
        keep(folder, word)
    starts = [label(word).key[0] for word in words]
    several = next(start for start in starts if starts.count(start) > 1)
    for key, says in [(several, f"begins {starts.count(several)} ("), ("zz", "begins none"), ("[0-9]", "begins none")]:
        code, out, err = run(*verb, key)
        assert (code, out) == (2, "")
        assert says in err
        assert err.count("\n") == 1
    assert len(list(folder.glob("k.*"))) == 17


def test_a_damaged_kernel_is_not_shown(run: Run, folder: Path) -> None:
    (keep(folder) / "kernel.bin").unlink()
    code, _, err = run("show", label().key)
    assert code == 2
    assert "onekernel cache clear" in err


def test_clear(run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for word in ("one", "two", "three"):
        keep(folder, word)
    (folder / "mine.txt").touch()
    assert "removed  1 kernels" in run("clear", label("one").key[:10])[1]
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    monkeypatch.setattr("click.confirm", refuse)
    assert run("clear")[0] == 3
    assert len(list(folder.glob("k.*"))) == 2
    assert "removed  2 kernels" in run("clear", "--yes")[1]
    assert sorted(path.name for path in folder.iterdir()) == [".locks", "mine.txt"]


def refuse(*_: object, abort: bool) -> None:
    import click

    assert abort
    raise click.Abort


def test_a_pipe_is_not_asked(run: Run, folder: Path) -> None:
    keep(folder)
    assert "removed  1 kernels" in run("clear")[1]


def test_pack_and_load(run: Run, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for word in ("one", "two"):
        keep(folder, word)
    code, out, _ = run("pack", tmp_path / "b.tgz")
    assert code == 0
    assert out.startswith("packed   2 kernels")
    monkeypatch.setenv("ONEKERNEL_CACHE", str(tmp_path / "other"))
    keep(tmp_path / "other", "one")
    code, out, err = run("load", tmp_path / "b.tgz")
    assert (code, err) == (0, "")
    assert "loaded   1 kernels" in out
    assert "present  1 that were there" in out
    assert "note     built by nvrtc 13.5, onekernel" in out
    monkeypatch.setattr(nvrtc, "compiler_id", lambda: label().compiler)
    assert "note" not in run("load", tmp_path / "b.tgz")[1]


def test_without_a_compiler_nothing_is_said_of_it(
    run: Run, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def absent() -> str:
        raise RuntimeError("no NVRTC")

    keep(folder)
    run("pack", tmp_path / "b.tar")
    monkeypatch.setattr(nvrtc, "compiler_id", absent)
    code, out, _ = run("load", tmp_path / "b.tar")
    assert code == 0
    assert "note" not in out


def test_load_says_what_it_refused_and_dropped(
    run: Run, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for word in ("one", "two", "three"):
        keep(folder, word)
    run("pack", tmp_path / "b.tar")
    content = (tmp_path / "b.tar").read_bytes()
    (tmp_path / "b.tar").write_bytes(content.replace(BINARY.data, BINARY.data[::-1], 1))
    monkeypatch.setenv("ONEKERNEL_CACHE", str(tmp_path / "other"))
    monkeypatch.setenv("ONEKERNEL_CACHE_LIMIT", "1kB")
    code, out, _ = run("load", tmp_path / "b.tar")
    assert code == 1
    assert "loaded   2 kernels" in out
    assert "dropped  1 of them again" in out
    assert "refused  'k." in out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("load", "gone.tar"), "gone.tar"),
        (("load", "."), "directory"),
        (("pack", "b.tar"), "kernels to pack"),
        (("show",), "KEY"),
    ],
)
def test_mistakes_are_one_line(run: Run, arguments: tuple[str, ...], says: str) -> None:
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    assert says in err
    assert err.count("\n") == 1


def test_pack_into_no_folder(run: Run, folder: Path, tmp_path: Path) -> None:
    keep(folder)
    code, _, err = run("pack", tmp_path / "gone" / "b.tar")
    assert code == 2
    assert "a place to write" in err


@pytest.mark.parametrize("verb", [("list",), ("clear",), ("show", "a"), ("pack", "b"), ("load", "b")])
def test_without_a_folder(run: Run, monkeypatch: pytest.MonkeyPatch, verb: tuple[str, ...]) -> None:
    monkeypatch.setenv("ONEKERNEL_CACHE", "")
    code, _, err = run(*verb)
    assert code == 2
    assert "ONEKERNEL_CACHE" in err


# ---- for doctor


def test_usage(folder: Path, tmp_path: Path) -> None:
    state = usage(folder, 5)
    assert (state.exists, state.trusted, state.writable, state.entries, state.limit) == (False, True, True, 0, 5)
    assert not folder.exists()
    path = keep(folder)
    with best_effort_lock(folder / ".locks" / "some-key", seconds=0):
        state = usage(folder)
        assert state.held == ("some-key",)
    assert (state.entries, state.writable) == (1, True)
    assert state.bytes == sum(file.stat().st_size for file in path.iterdir())
    assert usage(folder).held == ()
    folder.chmod(0o777)
    assert not usage(folder).trusted
    (tmp_path / "file").touch()
    for unusable in (None, tmp_path / "file", tmp_path / "file" / "below"):
        assert not usage(unusable).writable

"""The limit of the folder: the least recently used go first, never the new one; processes do not mind each other."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cache_entries import entry, label
from onekernel.jit.cache.eviction import KEPT
from onekernel.jit.cache.files import slots
from onekernel.jit.cache.folder import KernelFolder

LIMIT = 20_000
OVERHEAD = 1000  # bytes of an entry's record, about


def total(folder: Path) -> int:
    return sum(file.stat().st_size for path in folder.iterdir() if path.is_dir() for file in path.iterdir())


class Model:
    """What must be in the folder: words with their bytes, the least recently used first."""

    def __init__(self) -> None:
        self.sizes: dict[str, int] = {}

    def use(self, word: str) -> bool:
        """Tell whether it is there; then it is the newest."""
        if word in self.sizes:
            self.sizes[word] = self.sizes.pop(word)
            return True
        return False

    def write(self, word: str, size: int) -> None:
        """Add the newest; over the limit, drop the oldest others down to the low mark."""
        self.sizes[word] = size
        if sum(self.sizes.values()) > LIMIT:
            for old in [other for other in self.sizes if other != word]:
                if sum(self.sizes.values()) > KEPT * LIMIT:
                    del self.sizes[old]


@example([("a", 30_000), ("a", 0), ("b", 1), ("a", 1), ("c", 30_000), ("b", 1)])
@given(st.lists(st.tuples(st.sampled_from("abcdefghijkl"), st.integers(1000, 6000)), min_size=10, max_size=40))
@settings(max_examples=60)
def test_the_folder_is_what_a_model_says(uses: list[tuple[str, int]]) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder, model = KernelFolder(Path(name), LIMIT), Model()
        for clock, (word, size) in enumerate(uses, start=1):
            path = Path(name) / label(word).folder
            if model.use(word):
                read = folder.read(label(word))
                assert read is not None
                assert path.joinpath("build.json").stat().st_mtime > 1e6, "reading is use"
            else:
                assert folder.read(label(word)) is None
                assert folder.write(entry(word, b"x" * size))
                model.write(word, sum(file.stat().st_size for file in path.iterdir()))
            # The time of files is coarse: a clock of our own orders them.
            os.utime(path / "build.json", (clock, clock))
            assert [slot.key for slot in slots(Path(name))] == [label(word).key for word in model.sizes]
            assert total(Path(name)) <= LIMIT or len(model.sizes) == 1, "only one that is larger by itself is over it"


def test_without_a_limit_nothing_goes(tmp_path: Path) -> None:
    folder = KernelFolder(tmp_path, None)
    for number in range(50):
        assert folder.write(entry(str(number), b"x" * 10_000))
    assert len(slots(tmp_path)) == 50


def test_what_is_not_ours_is_neither_counted_nor_removed(tmp_path: Path) -> None:
    (tmp_path / "photos.2024").mkdir()
    (tmp_path / "photos.2024" / "one.png").write_bytes(b"x" * 2 * LIMIT)
    (tmp_path / f"k.{'0' * 32}").symlink_to("photos.2024")
    folder = KernelFolder(tmp_path, LIMIT)
    for number in range(20):
        assert folder.write(entry(str(number), b"x" * 3000))
    assert (tmp_path / "photos.2024" / "one.png").exists()
    assert 2 <= len(slots(tmp_path)) <= 6


def test_damaged_entries_and_remains_of_dead_processes_go_too(tmp_path: Path) -> None:
    remains = tmp_path / label("dead").folder
    remains.mkdir()
    (remains / "kernel.bin.x8f3k2").write_bytes(b"x" * LIMIT)
    os.utime(remains, (1, 1))
    assert KernelFolder(tmp_path, LIMIT).write(entry())
    assert [slot.key for slot in slots(tmp_path)] == [label().key]


CROWD = """
import random, sys
from pathlib import Path
from cache_entries import entry, label
from onekernel.jit.cache.folder import KernelFolder
chance, folder = random.Random(int(sys.argv[1])), KernelFolder(Path(sys.argv[2]), int(sys.argv[3]))
found = 0
for _ in range(300):
    word = str(chance.randrange(40))
    kept = folder.read(label(word))
    assert kept in (None, entry(word, b"x" * 1500)), "something else was read"
    found += kept is not None
    if kept is None:
        assert folder.write(entry(word, b"x" * 1500))
print(found)
"""


def test_several_processes_evict_at_once(tmp_path: Path) -> None:
    """40 entries do not fit, and four processes write and remove the same few all the time."""
    command = [sys.executable, "-W", "error", "-c", CROWD]
    processes = [
        subprocess.Popen([*command, str(seed), str(tmp_path), str(LIMIT)], cwd=Path(__file__).parent, stdout=-1)
        for seed in range(4)
    ]
    results = [process.communicate(timeout=120)[0] for process in processes]
    assert [process.returncode for process in processes] == [0] * 4
    assert all(int(found) > 0 for found in results)
    assert total(tmp_path) <= LIMIT + 4 * LIMIT / 16 + 4 * (1500 + OVERHEAD)
    assert KernelFolder(tmp_path, LIMIT).write(entry("last"))
    assert total(tmp_path) <= LIMIT


@pytest.mark.parametrize("vanishing", ["unlink", "rmtree"])
def test_an_entry_that_another_process_removes_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, vanishing: str
) -> None:
    """Between looking and removing, everything may be gone."""
    from onekernel.jit.cache import eviction, files

    folder = KernelFolder(tmp_path, LIMIT)
    for number in range(5):
        folder.write(entry(str(number), b"x" * 2000))

    def gone(path: Path) -> None:
        if vanishing == "rmtree":
            files.discard(path)
        else:
            (path / "build.json").unlink()
        files.discard(path)

    monkeypatch.setattr(eviction, "discard", gone)
    for number in range(5, 20):
        assert folder.write(entry(str(number), b"x" * 2000))
    assert total(tmp_path) <= LIMIT

"""The lock over processes: exclusive where it can be, never in the way, never left behind; and the child of a fork."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cache_entries import BINARY, TEXT, label
from onekernel.jit.cache import KernelCache, lock
from onekernel.jit.cache.lock import best_effort_lock, is_held

# Add one to the number in a file, many times, in a way that loses some unless nobody else does so meanwhile.
COUNT = """
import sys
from pathlib import Path
from onekernel.jit.cache.lock import best_effort_lock
number = Path(sys.argv[1])
for _ in range(int(sys.argv[2])):
    with best_effort_lock(number.with_name("lock"), seconds=60) as held:
        assert held
        number.write_text(str(int(number.read_text()) + 1))
"""


def test_no_two_processes_hold_it(tmp_path: Path) -> None:
    (tmp_path / "number").write_text("0")
    command = [sys.executable, "-c", COUNT, str(tmp_path / "number"), "400"]
    processes = [subprocess.Popen(command) for _ in range(3)]
    assert [process.wait(120) for process in processes] == [0, 0, 0]
    assert (tmp_path / "number").read_text() == "1200"
    assert not (tmp_path / "lock").exists()


def test_it_gives_up_in_time(tmp_path: Path) -> None:
    with (
        best_effort_lock(tmp_path / "lock", seconds=1) as first,
        best_effort_lock(tmp_path / "lock", seconds=0) as second,
    ):
        assert (first, second) == (True, False)
        assert is_held(tmp_path / "lock")
    assert not (tmp_path / "lock").exists()
    assert not is_held(tmp_path / "lock")


@pytest.mark.parametrize("mode", [0o600, 0o660])
def test_those_who_share_the_folder_can_wait(tmp_path: Path, mode: int) -> None:
    before = os.umask(0o077)
    try:
        with best_effort_lock(tmp_path / "lock", seconds=0, mode=mode):
            assert (tmp_path / "lock").stat().st_mode & 0o777 == mode
    finally:
        os.umask(before)


def test_the_file_of_a_dead_process_is_no_lock(tmp_path: Path) -> None:
    (tmp_path / "lock").touch()
    assert not is_held(tmp_path / "lock")
    with best_effort_lock(tmp_path / "lock", seconds=0) as held:
        assert held


@pytest.mark.parametrize(
    "number", [37, 38, 95, 22]
)  # ENOLCK, ENOSYS, EOPNOTSUPP, EINVAL: what folders without locks say
def test_a_folder_without_locks_stops_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def refuse(*_: object) -> None:
        raise OSError(number, "no locks here")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with best_effort_lock(tmp_path / "lock", seconds=60) as held:
        assert not held
    assert lock._open == set(), "and no descriptor is lost"
    assert KernelCache(tmp_path).get(label(), TEXT, lambda: BINARY) == BINARY


def test_a_lock_that_is_held_for_ever_only_delays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onekernel.jit.cache.folder.LOCK_SECONDS", 0.05)
    (tmp_path / ".locks").mkdir()
    with best_effort_lock(tmp_path / ".locks" / label().key, seconds=0) as held:
        assert held
        assert KernelCache(tmp_path).get(label(), TEXT, lambda: BINARY) == BINARY


# ---- fork: while a thread of the parent compiles a key, a child asks for the same one

FORK = """
import os, signal, sys, threading, time, warnings
from pathlib import Path
from cache_entries import BINARY, TEXT, label
from onekernel.jit.cache import KernelCache

warnings.simplefilter("ignore")  # newer Pythons warn of a fork with threads: that is what this is about
case, folder, parent = sys.argv[1], Path(sys.argv[2]), os.getpid()
cache, compiling = KernelCache(folder if case == "parent dies" else None), threading.Event()

def compile_for_ever():
    compiling.set()
    time.sleep(600)

threading.Thread(target=cache.get, args=(label(), TEXT, compile_for_ever), daemon=True).start()
assert compiling.wait(60)
if case == "lock is held":
    cache._flights._lock.acquire()  # as any thread may at the moment of a fork
if os.fork():
    if case == "parent dies":
        os.kill(parent, signal.SIGKILL)
    os.wait()
    os._exit(0)
while case == "parent dies" and os.getppid() == parent:
    time.sleep(0.001)
for word in ("key", "other"):
    assert cache.get(label(word), TEXT, lambda: BINARY) == BINARY
print("the child has both", flush=True)
os._exit(0)
"""


@pytest.mark.parametrize("case", ["thread is gone", "lock is held", "parent dies"])
def test_a_forked_child_does_not_wait_for_what_it_does_not_have(tmp_path: Path, case: str) -> None:
    """Neither for the parent's thread, nor for its locks, of which the child must not keep a copy either."""
    command = [sys.executable, "-c", FORK, case, str(tmp_path)]
    here = Path(__file__).parent
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=here, start_new_session=True) as process:
        try:
            assert process.communicate(timeout=30)[0] == "the child has both\n"
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


FORKED_BY_THE_WORK = """
import os, sys
from pathlib import Path
from cache_entries import BINARY, TEXT, label
from onekernel.jit.cache import KernelCache

folder, children = Path(sys.argv[1]), []

def build():
    children.append(os.fork())
    if children[0] == 0:
        return BINARY
    os.waitpid(children[0], 0)
    assert (folder / ".locks" / label().key).exists(), "the child removed the lock of its parent"
    return BINARY

assert KernelCache(folder).get(label(), TEXT, build) == BINARY
assert not list((folder / ".locks").iterdir())
"""


def test_a_child_forked_by_a_build_leaves_the_parents_lock(tmp_path: Path) -> None:
    command = [sys.executable, "-c", FORKED_BY_THE_WORK, str(tmp_path)]
    # The child makes the same assertion about the folder, which the lock of its parent breaks: only the parent counts.
    assert subprocess.run(command, cwd=Path(__file__).parent, stderr=subprocess.DEVNULL, timeout=60).returncode == 0

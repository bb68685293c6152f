"""`speak --play` and other tools behind `speak`: what a player is given, and players that are missing or leave."""

from __future__ import annotations

import io
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile

import speech_checkpoint
from onekernel.cli import main

COUNT = 4 * 1920  # samples of four frames


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return speech_checkpoint.write(tmp_path_factory.mktemp("tiny") / "model")


@pytest.fixture
def bin_(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a folder of programs and let no others be found."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    return folder


def program(path: Path, text: str) -> None:
    path.write_text(f"#!{sys.executable}\n{text}\n")
    path.chmod(0o755)


def speak(folder: Path, out: Path, *more: str) -> int:
    return main(["speak", "Hello.", "--model", str(folder), "-o", str(out), "--max-frames", "4", *more])


def test_a_player_is_given_all_of_the_sound(folder: Path, bin_: Path, tmp_path: Path) -> None:
    heard, out = tmp_path / "heard", tmp_path / "out.wav"
    program(bin_ / "play", f"import sys\nopen({str(heard)!r}, 'wb').write(sys.stdin.buffer.read())")
    program(bin_ / "aplay", "raise SystemExit('the other one is preferred')")
    assert speak(folder, out, "--play") == 0
    played, rate = soundfile.read(io.BytesIO(heard.read_bytes()))
    written, _ = soundfile.read(out)
    assert rate == 24_000
    assert len(written) == COUNT
    assert (played[:COUNT] == written).all()


def test_a_player_that_leaves_does_not_end_the_file(
    folder: Path, bin_: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    program(bin_ / "aplay", "import os; os.close(0)")
    out = tmp_path / "out.wav"
    assert speak(folder, out, "--play", "--chunk", "1") == 0
    assert len(soundfile.read(out)[0]) == COUNT
    assert "aplay does not play any more" in caplog.text


@pytest.mark.usefixtures("bin_")
def test_no_player_is_a_mistake_that_is_told(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert speak(folder, tmp_path / "out.wav", "--play") == 2
    assert "expected a player: ffplay, play, paplay, aplay, got none of them" in capsys.readouterr().err
    assert not (tmp_path / "out.wav").exists()


@pytest.mark.skipif(shutil.which("sox") is None, reason="SoX is not installed")
def test_sox_reads_the_file_and_the_pipe(folder: Path, tmp_path: Path) -> None:
    out, converted = tmp_path / "out.wav", tmp_path / "converted.flac"
    assert speak(folder, out) == 0
    told = subprocess.run(["soxi", "-s", str(out)], capture_output=True, text=True, check=True)
    assert int(told.stdout) == COUNT
    command = f'"{sys.executable}" -m onekernel speak Hello. --model "{folder}" --max-frames 4 -o - | ' \
        f'sox -t raw -r 24000 -e signed -b 16 -c 1 - "{converted}"'  # fmt: skip
    subprocess.run(command, shell=True, check=True, capture_output=True)
    assert (soundfile.read(converted)[0] == soundfile.read(out)[0]).all()
    assert np.abs(soundfile.read(out)[0]).max() > 0.01

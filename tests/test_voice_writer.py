"""Sound that goes out: every form reads back, also when the work was interrupted in the middle."""

from __future__ import annotations

import io
import signal
import subprocess
import sys
import textwrap
import wave
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from onekernel.errors import InvalidInput, MissingExtra
from onekernel.speech.voice.writer import AudioWriter

FORMS = ["wav", "pcm", "flac", "mp3", "opus"]
RATE = 24_000
TONE = (0.5 * np.sin(2 * np.pi * 220 * np.arange(2 * RATE) / RATE)).astype(np.float32)
CHUNKS = [TONE[place : place + 1920] for place in range(0, len(TONE), 1920)]


def decoded(content: bytes, form: str) -> Any:
    """Return the samples of a file. A flac stream does not say how many there are: all but the last one is read."""
    if form == "pcm":
        return np.frombuffer(content, "<i2") / 32768
    with soundfile.SoundFile(io.BytesIO(content)) as sound:
        assert (sound.samplerate, sound.channels) == (RATE, 1)
        return sound.read(min(sound.frames, len(TONE) - 1 if sound.frames > 10 * RATE else 10 * RATE))


def assert_is_tone(samples: Any, form: str, seconds: float = 2.0, delays: Sequence[int] = (0,)) -> None:
    """Fail unless the samples are the beginning of TONE, at least `seconds` of it, after one of `delays`.

    What loses by design may add silence at the end, and is not compared where it begins and ends.
    """
    count = round(seconds * RATE)
    exact = form in ("wav", "pcm", "flac")
    assert count - 1 <= len(samples) <= count if exact else count <= len(samples) < count + 4000
    part = slice(0, len(samples)) if exact else slice(5000, count - 1000)
    errors = [np.abs(samples[delay:][part] - TONE[part]).max() for delay in delays]
    assert min(errors) < (0.51 / 32768 if exact else 0.05)


def write_audio(place: Any, pcm: Any, rate: int, form: str | None = None) -> None:
    """Write samples, whole or chunk by chunk."""
    with AudioWriter(place, rate, form) as writer:
        for chunk in [pcm] if isinstance(pcm, np.ndarray) else pcm:
            writer.write(chunk)


@pytest.mark.parametrize("form", FORMS)
def test_a_file_reads_back(form: str, tmp_path: Path) -> None:
    path = tmp_path / f"a.{form}"
    write_audio(path, CHUNKS, RATE)
    assert_is_tone(decoded(path.read_bytes(), form), form)
    write_audio(str(path), TONE[:RATE], RATE)  # replaces
    assert_is_tone(decoded(path.read_bytes(), form), form, 1.0)


@pytest.mark.parametrize(("suffix", "form"), [(".raw", "pcm"), (".ogg", "opus"), (".WAV", "wav")])
def test_suffixes(suffix: str, form: str, tmp_path: Path) -> None:
    write_audio(tmp_path / f"a{suffix}", TONE, RATE)
    assert_is_tone(decoded((tmp_path / f"a{suffix}").read_bytes(), form), form)


@pytest.mark.parametrize("form", FORMS)
def test_a_stream_is_written_as_it_comes(form: str) -> None:
    """It is never sought in; so an mp3 keeps the silence of its encoder, for it cannot say how long that is."""
    stream = io.BytesIO()
    stream.seek = stream.tell = None  # type: ignore[method-assign, assignment]
    with AudioWriter(stream, RATE, form) as writer:
        for chunk in CHUNKS:
            writer.write(chunk)
        before = len(stream.getvalue())
    assert before > 0.5 * len(stream.getvalue())
    delays = range(1600, 1800) if form == "mp3" else (0,)
    assert_is_tone(decoded(stream.getvalue(), form), form, delays=delays)


@pytest.mark.parametrize(("form", "header"), [("wav", 44), ("pcm", 0), ("flac", 42), ("mp3", 240)])
def test_a_stream_is_the_file_but_for_its_header(form: str, header: int, tmp_path: Path) -> None:
    """libsndfile goes back to the header at the end: nothing of that may land behind the sound."""
    stream, path = io.BytesIO(), tmp_path / "a"
    write_audio(stream, TONE, RATE, form)
    write_audio(path, TONE, RATE, form)
    sent, kept = stream.getvalue(), path.read_bytes()
    assert len(sent) == len(kept)
    assert sent[header:] == kept[header:]


@pytest.mark.parametrize("form", ["wav", "pcm", "flac"])
def test_chunks_do_not_matter(form: str) -> None:
    whole, parts = io.BytesIO(), io.BytesIO()
    write_audio(whole, TONE, RATE, form)
    write_audio(parts, CHUNKS, RATE, form)
    assert whole.getvalue() == parts.getvalue()


def test_a_wav_file_is_right_after_each_write(tmp_path: Path) -> None:
    path = tmp_path / "a.wav"
    with AudioWriter(path, RATE) as writer:
        for number, chunk in enumerate([*CHUNKS[:3], CHUNKS[3][:0]]):
            with wave.open(str(path)) as sound:  # which believes the header
                assert sound.getparams()[:4] == (1, 2, RATE, 1920 * number)
            assert int.from_bytes(path.read_bytes()[4:8], "little") == path.stat().st_size - 8
            writer.write(chunk)


def test_a_wav_stream_says_that_its_size_is_unknown() -> None:
    stream = io.BytesIO()
    write_audio(stream, TONE, RATE)
    header = stream.getvalue()[:44]
    assert header[4:8] == header[40:44] == b"\xff" * 4


def test_standard_output_is_a_stream() -> None:
    code = "import numpy as np; from onekernel.speech.voice.writer import AudioWriter; "
    code += "writer = AudioWriter('-', 24000); [writer.write(np.zeros(1920, np.float32)) for _ in range(25)]"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert decoded(done.stdout, "wav").shape == (48_000,)


def test_samples_are_rounded_and_clipped() -> None:
    stream = io.BytesIO()
    samples = np.array([0, 1, 2, -1, -2, 0.4 / 32768, 0.6 / 32768, -0.6 / 32768], np.float32)
    write_audio(stream, samples, RATE, "pcm")
    assert np.frombuffer(stream.getvalue(), "<i2").tolist() == [0, 32767, 32767, -32768, -32768, 0, 1, -1]


# --- interruptions

WORK = """
import sys, time
import numpy as np
from onekernel.speech.voice.writer import AudioWriter
samples = (0.5 * np.sin(2 * np.pi * 220 * np.arange(48000) / 24000)).astype(np.float32)
with AudioWriter(sys.argv[1], 24000) as writer:
    for place in range(0, 24000, 1920):
        writer.write(samples[place : place + 1920])
    print("half of it", flush=True)
    while True:
        time.sleep(0.01)
"""


@pytest.mark.parametrize(
    ("form", "number"), [*((form, signal.SIGINT) for form in FORMS), ("wav", signal.SIGKILL), ("pcm", signal.SIGKILL)]
)
def test_an_interrupted_file_is_whole(form: str, number: signal.Signals, tmp_path: Path) -> None:
    path = tmp_path / f"a.{form}"
    with subprocess.Popen([sys.executable, "-c", WORK, path], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as work:
        assert work.stdout is not None
        assert work.stdout.readline() == b"half of it\n"
        work.send_signal(number)
        _, errors = work.communicate()
    assert work.returncode == -number
    assert b"callback" not in errors
    assert_is_tone(decoded(path.read_bytes(), form), form, 13 * 1920 / RATE)


@pytest.mark.parametrize("form", FORMS)
def test_an_error_in_the_work_leaves_a_whole_file(form: str, tmp_path: Path) -> None:
    def work() -> Any:
        yield from CHUNKS[:13]
        raise RuntimeError("planned")

    with pytest.raises(RuntimeError, match="planned"):
        write_audio(tmp_path / f"a.{form}", work(), RATE)
    assert_is_tone(decoded((tmp_path / f"a.{form}").read_bytes(), form), form, 13 * 1920 / RATE)


@pytest.mark.parametrize("form", FORMS)
def test_a_listener_who_leaves_is_a_broken_pipe(form: str) -> None:
    """The error is the stream's own, raised where the samples are given, and nothing is printed by a callback."""
    code = f"""
        import io
        import numpy as np
        from onekernel.speech.voice.writer import AudioWriter

        class Gone(io.RawIOBase):
            left = 2000
            def writable(self):
                return True
            def write(self, data):
                self.left -= len(data)
                if self.left < 0:
                    raise BrokenPipeError
                return len(data)

        noise = np.random.default_rng(0).uniform(-1, 1, 48000).astype(np.float32)
        try:
            with AudioWriter(Gone(), 24000, {form!r}) as writer:
                writer.write(noise)
        except BrokenPipeError:
            print("gone")
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("gone\n", "")


# --- refused


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("a.aac", {}, r"a name in \.wav, .*a.aac"),
        ("a", {}, "or name the form"),
        ("a.wav", {"form": "aac"}, "one of wav, pcm, flac, mp3, opus, got 'aac'"),
        ("no/such/folder/a.wav", {}, "No such file or directory; give another file"),
        ("", {"form": "wav"}, "Is a directory"),
        ("a\0.wav", {}, "null byte"),
        ("a.opus", {"rate": 44_100}, "opus of 44100 Hz; write a wav file"),
    ],
)
def test_refused(name: str, options: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=words):
        write_audio(tmp_path / name, TONE, **{"rate": RATE, **options})


@pytest.mark.parametrize("form", FORMS)
def test_stereo_is_refused(form: str) -> None:
    with pytest.raises(InvalidInput, match=r"mono samples \[n\], got \(100, 2\)"):
        write_audio(io.BytesIO(), np.zeros((100, 2), np.float32), RATE, form)


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "soundfile", None)
    write_audio(io.BytesIO(), TONE, RATE, "wav")
    with pytest.raises(MissingExtra, match=r"soundfile.*onekernel\[speech\]"):
        write_audio(io.BytesIO(), TONE, RATE, "flac")

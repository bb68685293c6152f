"""The whole way on tiny checkpoints: text to sound, whole and in pieces, in Python and from the command line."""

from __future__ import annotations

import asyncio
import itertools
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import onekernel
import speech_checkpoint
from onekernel.cli import main
from onekernel.errors import InvalidInput
from onekernel.speech.lm.model import Generation
from onekernel.speech.model import SpeechModel
from onekernel.speech.prompt import sentences
from onekernel.speech.request import SpeechRequest
from onekernel.speech.voice import store
from onekernel.speech.watchdog import is_stuck

TEXT = "Grüße, 世界! It's 12 o'clock."
SHORT = SpeechRequest(max_frames=12)
Load = Callable[..., SpeechModel]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    root = tmp_path_factory.mktemp("checkpoints")
    return cache(lambda kind="custom_voice", size="1b7": speech_checkpoint.write(root / f"{kind}_{size}", kind, size))


@pytest.fixture(scope="module")
def load(folders: Callable[..., Path]) -> Load:
    return cache(lambda *kind: onekernel.load_speech(folders(*kind), device="cpu"))


def sound(speech: Any) -> Any:
    return np.concatenate(list(speech))


@pytest.mark.parametrize("kind", ["custom_voice", "voice_design"])
@pytest.mark.parametrize("size", [1, 3, 1000])
def test_text_in_pieces_sounds_as_the_whole(load: Load, kind: str, size: int) -> None:
    """Words, characters, or bytes that cut characters in two."""
    model, streaming = load(kind, "1b7"), SpeechRequest(max_frames=12, text_mode="streaming")
    whole = sound(model.stream(TEXT, streaming))
    data = TEXT.encode()
    pieces = [data[start : start + size] for start in range(0, len(data), size)]
    assert (sound(model.stream(iter(pieces), streaming)) == whole).all()
    assert (sound(model.stream(iter(TEXT), streaming)) == whole).all()


@settings(max_examples=12)
@given(st.integers(1, 9), st.integers(1, 9))
def test_pieces_of_sound_add_up_to_the_same(load: Load, first: int, most: int) -> None:
    model = load()
    request = SpeechRequest(max_frames=12, first_chunk=first, chunk=most)
    pieces = list(model.stream(TEXT, request))
    assert (np.concatenate(pieces) == _whole(model)).all()
    sizes = [len(piece) // 1920 for piece in pieces]
    assert sizes[0] == min(first, most)
    assert max(sizes) <= most


@cache
def _whole(model: SpeechModel) -> Any:
    return sound(model.stream(TEXT, SHORT))


def test_text_is_heard_only_when_it_is_needed(load: Load) -> None:
    """The first frame is said while the text is still being written: a word and the space behind it are enough."""
    asked = 0

    def words() -> Iterator[str]:
        nonlocal asked
        for word in ["one", "two", "three", "four", "five", "six"]:
            asked += 1
            yield f"{word} "

    speech = load().stream(words(), SpeechRequest(max_frames=4))
    assert asked == 0
    next(speech)
    assert asked == 1
    list(speech)
    assert speech.finish == "length"


def test_seeds_reproduce_and_differ(load: Load) -> None:
    model = load()
    one, same, other = (sound(model.stream(TEXT, SpeechRequest(max_frames=6, seed=seed))) for seed in (1, 1, 2))
    assert (one == same).all()
    assert (one != other).any()


def test_a_request_sounds_the_same_among_others(load: Load) -> None:
    """Eight at a time, of different lengths, texts, voices, languages and modes, and each alone: the same bits."""
    model = load()
    texts = [TEXT[: 3 * place + 1] for place in range(1, 9)]
    asked = [
        SpeechRequest(
            max_frames=place + 3,
            seed=place % 3,
            voice=model.voices[place],
            language=model.languages[place],
            text_mode=("whole", "streaming")[place % 2],
        )
        for place in range(8)
    ]
    alone = [sound(model.stream(text, request)) for text, request in zip(texts, asked, strict=True)]
    together = [model.stream(text, request) for text, request in zip(texts, asked, strict=True)]
    rounds = list(itertools.zip_longest(*together))
    for place, samples in enumerate(alone):
        assert (np.concatenate([row[place] for row in rounds if row[place] is not None]) == samples).all()
    assert len({len(samples) for samples in alone}) > 4


def test_cancelling_ends_it_within_a_frame(load: Load) -> None:
    speech = load().stream(TEXT, SpeechRequest(max_frames=50, chunk=1))
    for _ in range(3):
        next(speech)
    speech.cancel()
    assert list(speech) == []
    assert (speech.finish, len(speech.codes)) == ("cancelled", 3)


@given(st.integers(1, 15), st.integers(0, 40), st.integers(0, 1000))
def test_a_loop_is_seen_and_speech_is_not(cycle: int, before: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    lead = random.integers(0, 2048, before).tolist()
    loop = random.integers(2048, 4096, cycle).tolist() * 80  # other codes than those before
    assert not is_stuck((lead + loop)[: before + 74])
    assert is_stuck(lead + loop[:75])
    assert not is_stuck(lead + random.integers(0, 2048, 100).tolist())
    assert not is_stuck([*lead, *[7] * 60, *random.integers(0, 2048, 15).tolist()])  # a pause, then speech


def test_speech_that_loops_is_ended(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    model = load()
    logits = torch.zeros(3072)
    logits[99] = 50.0
    monkeypatch.setattr(model.engine.lm, "logits", lambda hidden: logits.expand(*hidden.shape[:-1], 3072))
    speech = model.stream(TEXT, SpeechRequest(repetition_penalty=1.0, chunk=8))
    assert len(sound(speech)) == 75 * 1920
    assert speech.finish == "repetition"


def test_silence_that_lasts_is_ended_and_may_be_left_out(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    model = load()
    codec, decode = model.engine.codec, model.engine.codec.decode
    loud = iter([False] * 3 + [True] * 2 + [False] * 200)

    def some_silent(codes: Any, state: Any) -> Any:
        samples = decode(codes, state)
        for frame in range(codes.shape[1]):
            samples[:, frame * 1920 : (frame + 1) * 1920] *= next(loud)
        return samples

    monkeypatch.setattr(codec, "decode", some_silent)
    speech = model.stream(TEXT, SpeechRequest(chunk=1, skip_silence=True))
    assert len(sound(speech)) == (2 + 75) * 1920
    assert (speech.finish, len(speech.codes)) == ("repetition", 3 + 2 + 75)


LONG = "One sentence is here. Is this another? Yes, it is! " * 3


def test_a_long_text_is_spoken_part_by_part(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each part to its end, with other random numbers and the same voice; one that does not end well ends all."""
    monkeypatch.setattr(sentences, "ENDS", [(45, rule) for _, rule in sentences.ENDS[:1]])
    model, say = load(), Generation.next_frame
    sounds = []
    for text in (LONG, iter(LONG), iter([LONG[:70], LONG[70:]])):  # whole, or still being written
        ends = iter([3, 2, 4])
        monkeypatch.setattr(Generation, "next_frame", _ending_after(ends, say))
        speech = model.stream(text, SpeechRequest(text_mode="streaming"))
        sounds.append(sound(speech))
        assert next(ends, None) is None
        assert (speech.finish, len(speech.codes)) == ("eos", 9)
    assert len(sounds[0]) == 9 * 1920
    assert all((one == sounds[0]).all() for one in sounds)
    capped = model.stream(LONG, SpeechRequest(max_frames=2))
    assert len(sound(capped)) == 2 * 1920
    assert capped.finish == "length"


def _ending_after(frames: Iterator[int], say: Callable[[Generation], list[int] | None]) -> Any:
    """Let generations end by themselves after so many frames each."""

    def next_frame(self: Generation) -> list[int] | None:
        if not hasattr(self, "most"):
            self.most = next(frames, 99)  # type: ignore[attr-defined]
        if self.frames == self.most and not self.finish:  # type: ignore[attr-defined]
            self.finish = "eos"
        return say(self)

    return next_frame


def test_a_pause_of_the_writer_need_not_be_waited_for(load: Load) -> None:
    """A word without its end is held back, until the writer pauses; the text then goes on."""
    asked: list[object] = []

    def words() -> Iterator[str | None]:
        for piece in ("Hello", None, " there"):
            asked.append(piece)
            yield piece

    speech = load().stream(words(), SpeechRequest(max_frames=9, chunk=1))
    next(speech)
    assert asked == ["Hello", None]
    assert len(list(speech)) == 8
    assert asked == ["Hello", None, " there"]


def test_sound_can_be_awaited(load: Load) -> None:
    async def listen() -> list[Any]:
        return [samples async for samples in load().stream(TEXT, SHORT)]

    assert (np.concatenate(asyncio.run(listen())) == _whole(load())).all()


def test_a_voice_is_copied_from_a_recording_and_kept(
    load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    model = load("base", "0b6")
    place = tmp_path / "voice.wav"
    soundfile.write(place, 0.3 * np.sin(np.arange(48_000) / 20), 24_000)
    said = "Some words."
    direct = sound(model.stream("Hello", SpeechRequest(max_frames=6, ref_audio=str(place), ref_text=said)))
    store.save(model.read_voice("anna", str(place), said), store.default_folder())
    assert model.voices == ["anna"]
    assert (sound(model.stream("Hello", SpeechRequest(max_frames=6, voice="anna"))) == direct).all()
    timbre = sound(model.stream("Hello", SpeechRequest(max_frames=6, ref_audio=str(place))))
    assert (timbre != direct).any()
    with pytest.raises(InvalidInput, match="made by a 0b6 model"):
        load("base", "1b7").stream("Hello", SpeechRequest(voice="anna"))


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (SpeechRequest(voice="nobody"), "serena, vivian"),
        (SpeechRequest(language="klingon"), "auto, chinese, english"),
        (SpeechRequest(ref_audio="voice.wav"), "a base model, which copies voices"),
    ],
)
def test_what_a_model_does_not_know_is_listed(load: Load, request_: SpeechRequest, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        load().stream("Hello", request_)


@pytest.mark.parametrize("text", ["a", "…!?", "😀👩‍👩‍👧", "\0\0", "<|im_end|><tts_pad>", "\n\nhi", "x" * 3000])
def test_odd_texts_are_spoken_and_end(load: Load, text: str) -> None:
    speech = load().stream(text, SpeechRequest(max_frames=3, text_mode="streaming"))
    assert sound(speech).shape == (3 * 1920,)
    assert speech.finish == "length"


@pytest.mark.parametrize("text", ["", "\n", iter(()), iter(["", b""]), "x" * 100_001])
def test_no_text_and_too_much_are_refused(load: Load, text: Any) -> None:
    with pytest.raises(InvalidInput, match=r"a text to speak|at most 100000 characters"):
        sound(load().stream(text, SHORT))


# --- the command line


def speak(*arguments: object, **options: Any) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "onekernel", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, timeout=120, check=False, **options)


@pytest.mark.parametrize("name", ["hello.wav", "hello.flac", "hello.mp3", "hello.opus"])
def test_a_file_opens_elsewhere(folders: Callable[..., Path], tmp_path: Path, name: str) -> None:
    done = speak("speak", "Hello.", "--model", folders(), "-o", tmp_path / name, "--max-frames", 5, "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["frames"], told["finish"], told["seconds"]) == (5, "length", pytest.approx(0.4))
    samples, rate = soundfile.read(tmp_path / name)
    assert len(samples) / rate == pytest.approx(0.4, abs=0.1)
    assert np.abs(samples).max() > 0.01


def test_a_pipe_in_and_a_pipe_out_give_the_same_sound(folders: Callable[..., Path], load: Load) -> None:
    done = speak("speak", "-", "--model", folders(), "-o", "-", "--max-frames", 5, input="Grüße.".encode())
    assert done.returncode == 0, done.stderr
    pcm = np.frombuffer(done.stdout, "<i2") / 32768
    assert np.abs(pcm - sound(load().stream(iter(["Grüße."]), SpeechRequest(max_frames=5)))).max() <= 0.6 / 32768


def test_an_interrupted_file_is_valid(folders: Callable[..., Path], tmp_path: Path) -> None:
    place = tmp_path / "long.wav"
    command = ["speak", "Hello " * 200, "--model", str(folders()), "-o", str(place), "--chunk", "1"]
    process = subprocess.Popen([sys.executable, "-m", "onekernel", *command], stderr=subprocess.PIPE)
    deadline = time.monotonic() + 60
    while not (place.exists() and place.stat().st_size > 20_000) and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 3, errors
    samples, rate = soundfile.read(place)
    assert len(samples) >= 4 * 1920
    assert rate == 24_000


def test_how_far_it_is_is_told(
    folders: Callable[..., Path], tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "told.wav"
    assert main(["speak", "Hello.", "--model", str(folders()), "-o", str(place), "--max-frames", "7"]) == 0
    told = [record.getMessage() for record in caplog.records if "first sound after" in record.getMessage()]
    assert [line.partition(" s, ")[0] for line in told] == ["0.08", "0.24", "0.56"]
    assert all(line.endswith("of real time") for line in told)
    assert capsys.readouterr().out.startswith(f"{place}: 0.56 s, first sound after ")


def test_mistakes_are_one_line(tmp_path: Path, folders: Callable[..., Path]) -> None:
    for arguments in (
        ["speak", "hi", "--model", tmp_path / "nowhere"],
        ["speak", "hi"],
        ["speak"],
        ["speak", "hi", "--model", folders(), "--voice", "nobody"],
        ["speak", "hi", "--model", folders(), "--temperature", "9"],
        ["voices", "remove", "nobody"],
    ):
        done = speak(*arguments)
        assert done.returncode == 2, (arguments, done.stderr)
        assert done.stderr.decode().count("\n") == 1
        assert done.stderr.startswith(b"onekernel: ")

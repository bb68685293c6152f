"""The verb `speak`: a text becomes sound while it is being spoken, in a file, a pipe or a loudspeaker."""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import fields
from typing import IO, TYPE_CHECKING, Any

import click

from onekernel.cli.console import duration, progress
from onekernel.cli.player import Player

if TYPE_CHECKING:
    from onekernel.speech.stream import Speech

log = logging.getLogger("onekernel")


def _request_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add an option for every field of SpeechRequest, with its meaning, range and default."""
    from onekernel.speech.request import SpeechRequest

    kinds: dict[str, type] = {"bool": bool, "int": int, "float": float, "str": str}
    for item in reversed(fields(SpeechRequest)):
        low, high = item.metadata["low"], item.metadata["high"]
        between = f" [{low:g} to {high:g}]" if low is not None else ""
        kind = kinds[str(item.type).partition(" ")[0]]
        shown: dict[str, Any] = (
            {"is_flag": True} if kind is bool else {"type": kind, "show_default": bool(item.default)}
        )
        name = f"--{item.name.replace('_', '-')}"
        command = click.option(name, default=item.default, help=item.metadata["meaning"] + between, **shown)(command)
    return command


@click.command(name="speak")
@click.argument("text", required=False)
@click.option("--file", "source", type=click.File("rb"), help="Speak this file.")
@click.option("--model", metavar="FOLDER|HUB-ID", help="A Qwen3-TTS checkpoint; else the setting ONEKERNEL_MODEL.")
@click.option("-o", "--out", default="speech.wav", show_default=True, help=".wav, .flac, .mp3, .opus, or - (raw PCM).")
@click.option("--play", is_flag=True, help="Play it, too: by ffplay, play, paplay or aplay.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object at the end.")
@_request_options
def command(text: str | None, source: IO[bytes] | None, model: str | None, out: str, **options: Any) -> int:
    """Speak TEXT, or what comes from a pipe while it is still being written (TEXT is -)."""
    import onekernel

    play, as_json = options.pop("play"), options.pop("as_json")
    if (text is None) == (source is None):
        raise click.UsageError("give a text, - for standard input, or --file")
    request = onekernel.SpeechRequest(**options)
    said: Any = text if source is None and text != "-" else _pieces(source or sys.stdin.buffer)
    with progress("loading the model"):
        speaker = onekernel.load_speech(model)
    start = time.perf_counter()
    told = _Told(speaker.stream(said, request), speaker.sample_rate, start)
    with ExitStack() as stack, progress("speaking"):
        _write(stack, told, out, play)
    click.echo(json.dumps(told.record()) if as_json else told.line(out), err=out == "-" and not as_json)
    return 0


def _pieces(source: IO[bytes]) -> Iterator[bytes]:
    """Hand on what is there as soon as it is there."""
    read = getattr(source, "read1", source.read)
    while piece := read(4096):
        yield piece


def _write(stack: ExitStack, told: _Told, out: str, play: bool) -> None:
    from onekernel.speech.voice.writer import AudioWriter

    sinks: list[Any] = [stack.enter_context(Player(told.rate))] if play else []
    sinks.insert(0, stack.enter_context(AudioWriter(out, told.rate, "pcm" if out == "-" else None)))
    for samples in told:
        for sink in sinks:
            sink.write(samples)


class _Told:
    """Passes sound on and tells how far it is: seconds of sound, when the first came, and how fast it is made."""

    def __init__(self, speech: Speech, rate: int, start: float) -> None:
        self.speech, self.rate, self._start = speech, rate, start
        self.first = self.samples = self.took = 0.0

    def __iter__(self) -> Iterator[Any]:
        for samples in self.speech:
            self.first = self.first or time.perf_counter() - self._start
            self.samples += len(samples)
            self.took = time.perf_counter() - self._start
            log.info(self._so_far())
            yield samples

    def _so_far(self) -> str:
        seconds = self.samples / self.rate
        factor = f", {self.took / seconds:.2f} of real time" if seconds else ""
        return f"{seconds:.2f} s, first sound after {duration(self.first)}{factor}"

    def record(self) -> dict[str, Any]:
        seconds = self.samples / self.rate
        factor = self.took / seconds if seconds else None
        return {"seconds": seconds, "frames": len(self.speech.codes), "first_audio_seconds": self.first,
                "real_time_factor": factor, "finish": self.speech.finish, "notes": list(self.speech.notes)}  # fmt: skip

    def line(self, out: str) -> str:
        notes = "".join(f"\nnote  {note}" for note in self.speech.notes)
        return f"{out}: {self._so_far()}, ended by {self.speech.finish}{notes}"

"""Sound that goes out while it is made: a file that stays valid when the work is interrupted, or a stream of bytes.

wav     16 bits; the sizes in the header are right after every write, and "unknown" (all ones) in a stream
pcm     the same samples and nothing else: little-endian int16
flac    16 bits        mp3  80 kbit/s at 24 kHz        opus  in an ogg container; these three by libsndfile
"""

from __future__ import annotations

import os
import struct
import sys
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Protocol, Self

import numpy as np

from onekernel.errors import InvalidInput, MissingExtra
from onekernel.speech.voice.audio import Samples

Place = str | os.PathLike[str] | BinaryIO

SUFFIXES = {
    ".wav": "wav", ".pcm": "pcm", ".raw": "pcm", ".flac": "flac", ".mp3": "mp3", ".opus": "opus", ".ogg": "opus",
}  # fmt: skip
# In soundfile's words. The length of an mp3 of constant rate is known without a header that says it.
ENCODED: dict[str, dict[str, Any]] = {
    "flac": {"format": "FLAC", "subtype": "PCM_16"},
    "mp3": {"format": "MP3", "subtype": "MPEG_LAYER_III", "bitrate_mode": "CONSTANT", "compression_level": 0.5},
    "opus": {"format": "OGG", "subtype": "OPUS"},
}
UNKNOWN = 2**32 - 1  # the size of a wav stream, and the largest that its header can say


class AudioWriter:
    """Appends mono samples to `place`: a path, "-" for standard output, or a binary stream, which stays open.

    `form` is a name of the table above; by default what the suffix says, and wav for a stream. As a context manager it
    closes the file at Ctrl-C too. Raises InvalidInput for a place, form or rate (Hz) that cannot be.
    """

    def __init__(self, place: Place, rate: int, form: str | None = None) -> None:
        form = _form_of(place) if form is None else form
        if form not in SUFFIXES.values():
            expected = f"one of {', '.join(dict.fromkeys(SUFFIXES.values()))}"
            raise InvalidInput(expected=expected, got=repr(form), todo="name one of them as the form of the sound")
        with ExitStack() as stack:
            file, seekable = _opened(place, stack)
            if form in ENCODED:
                self._encoder: _Encoder = _Encoded(file, rate, form, seekable)
            else:
                self._encoder = _Pcm(file, rate if form == "wav" else None, seekable)
            stack.callback(self._encoder.close)
            self._open = stack.pop_all()

    def write(self, samples: Samples) -> None:
        """Append float32 [n]; what is outside of -1..1 is clipped."""
        if np.ndim(samples) != 1:
            raise InvalidInput(expected="mono samples [n]", got=str(np.shape(samples)), todo="give one channel")
        self._encoder.write(np.clip(np.asarray(samples, np.float32), -1, 1))

    def close(self) -> None:
        """Finish the file; more than once is harmless."""
        self._open.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _form_of(place: Place) -> str:
    if place == "-" or not isinstance(place, str | os.PathLike):
        return "wav"
    if (form := SUFFIXES.get(Path(place).suffix.lower())) is None:
        got = repr(os.fspath(place))
        raise InvalidInput(expected=f"a name in {', '.join(SUFFIXES)}", got=got, todo="correct it, or name the form")
    return form


def _opened(place: Place, stack: ExitStack) -> tuple[BinaryIO, bool]:
    """Return an open file and whether what was written can be corrected; `stack` closes it where it is ours."""
    if place == "-":
        return sys.stdout.buffer, False
    if not isinstance(place, str | os.PathLike):
        return place, False
    try:
        file = stack.enter_context(open(place, "wb"))  # noqa: SIM115 (the stack closes it)
    except (OSError, ValueError) as error:
        got = f"{os.fspath(place)!r}: {(error.strerror if isinstance(error, OSError) else None) or error}"
        raise InvalidInput(expected="a place to write sound", got=got, todo="give another file") from error
    return file, file.seekable()


class _Encoder(Protocol):
    def write(self, samples: Samples) -> None: ...

    def close(self) -> None: ...


class _Pcm:
    """int16 samples, behind a wav header when `rate` is given."""

    def __init__(self, file: BinaryIO, rate: int | None, seekable: bool) -> None:
        self._file, self._rate = file, rate if seekable else None
        if rate is not None:
            file.write(_header(rate, 0 if seekable else UNKNOWN))
        file.flush()

    def write(self, samples: Samples) -> None:
        self._file.write(np.clip(np.rint(samples * 32768), -32768, 32767).astype("<i2").tobytes())
        self.close()

    def close(self) -> None:
        """Bring everything to the system, then say its size: a reader in between misses the last samples only."""
        self._file.flush()
        if self._rate is not None:
            size = self._file.tell() - len(_header(self._rate, 0))
            os.pwrite(self._file.fileno(), _header(self._rate, size), 0)


def _header(rate: int, size: int) -> bytes:
    """Make the header of a mono 16-bit wav file with `size` bytes of samples."""
    form = (b"fmt ", 16, 1, 1, rate, 2 * rate, 2, 16)
    return struct.pack(
        "<4sI4s4sIHHIIHH4sI", b"RIFF", min(36 + size, UNKNOWN), b"WAVE", *form, b"data", min(size, UNKNOWN)
    )


class _Encoded:
    """What libsndfile encodes. It writes to a file itself, and to a stream through memory."""

    def __init__(self, file: BinaryIO, rate: int, form: str, seekable: bool) -> None:
        try:
            import soundfile  # type: ignore[import-untyped]
        except ImportError as error:
            raise MissingExtra("soundfile", "speech") from error
        self._file, self._sink = file, None if seekable else _Sink()
        place: Any = file.fileno() if self._sink is None else self._sink
        try:
            self._sound = soundfile.SoundFile(place, "w", rate, 1, closefd=False, **ENCODED[form])
        except (soundfile.LibsndfileError, ValueError) as error:
            got, todo = f"{form} of {rate} Hz", "write a wav file, or one of 24000 Hz"
            raise InvalidInput(expected="a rate that the form allows", got=got, todo=todo) from error

    def write(self, samples: Samples) -> None:
        self._sound.write(samples)
        self._pass_on()

    def close(self) -> None:
        self._sound.close()
        self._pass_on()

    def _pass_on(self) -> None:
        if self._sink is not None:
            self._file.write(self._sink.take())
            self._file.flush()


class _Sink:
    """The file that libsndfile sees in front of a stream: it may go back, but what it writes there is lost."""

    def __init__(self) -> None:
        self._fresh = bytearray()
        self._place = self._end = 0

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._place = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._place, os.SEEK_END: self._end}[whence]
        return self._place

    def tell(self) -> int:
        return self._place

    def write(self, data: bytes) -> int:
        self._fresh += data[max(0, self._end - self._place) :]
        self._place += len(data)
        self._end = max(self._end, self._place)
        return len(data)

    def take(self) -> bytes:
        """Return what is new since the last time."""
        data, self._fresh = bytes(self._fresh), bytearray()
        return data

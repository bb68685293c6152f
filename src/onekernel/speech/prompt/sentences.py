"""Long texts in parts that a model speaks well, cut behind sentences; a text that still arrives has the same parts."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator

from onekernel.speech.prompt.characters import Decoder
from onekernel.speech.text_feed import Piece

# Where a part may end, and from how many characters on: a sentence from a quarter of a minute of speech on. The last
# character of a rule is the first of the next part.
ENDS = (
    (250, re.compile(r"(?:[.!?…]+[\"'”’)\]]*\s+|[。！？]+[”’」』）]*\s*|\n\s*)[^\s。！？”’」』）]\Z")),  # noqa: RUF001
    (400, re.compile(r"(?:[,;:–—]\s+|[，、；：]\s*)[^\s，、；：”’」』）]\Z")),  # noqa: RUF001
    (500, re.compile(r"\s\S\Z")),
    (600, re.compile(r"\S\Z")),
)
_LOOKS_BACK = 32  # characters: more closing marks and spaces stand behind no sentence


class Parts(Iterator[Iterator[str | None]]):
    """The parts of a text in pieces, each an iterator of pieces that ends where the part does; there is at least one.

    A part takes pieces as they are asked for. What is left of it when the next is asked for, is skipped.
    """

    def __init__(self, pieces: Iterable[Piece]) -> None:
        self._pieces, self._decoder = iter(pieces), Decoder()
        self._rest: str | None = ""  # that is in no part yet; None behind the end
        self._part: Iterator[str | None] | None = None

    def __next__(self) -> Iterator[str | None]:
        if self._part is not None:
            deque(self._part, maxlen=0)
            if self._rest is None:
                raise StopIteration
        self._part = self._until_end()
        return self._part

    def _until_end(self) -> Iterator[str | None]:
        said = ""
        for piece in self._characters():
            if piece is not None:
                if (end := _end(said, piece)) is not None:
                    self._rest = piece[end:]
                    yield piece[:end]
                    return
                said += piece
            yield piece
        self._rest = None

    def _characters(self) -> Iterator[str | None]:
        """Yield what the part before has left, then pieces as characters."""
        yield self._rest
        for piece in self._pieces:
            yield None if piece is None else self._decoder.decode(piece)
        yield self._decoder.end()


def _end(said: str, piece: str) -> int | None:
    """Return where in a piece the part ends that began with `said`, if it does."""
    text = said + piece
    for place in range(max(len(said), ENDS[0][0]), len(text)):
        if text[place].isspace():
            continue
        near = text[max(0, place - _LOOKS_BACK) : place + 1]
        if any(place >= least and rule.search(near) for least, rule in ENDS):
            return place - len(said)
    return None

"""Pieces of a text, cut anywhere, as characters."""

from __future__ import annotations

import codecs


class Decoder:
    """Pieces -> characters: characters cut in two, of bytes or of surrogates, are put together."""

    def __init__(self) -> None:
        self._bytes = codecs.getincrementaldecoder("utf-8")("replace")
        self._units = codecs.getincrementaldecoder("utf-16-le")("replace")

    def decode(self, piece: str | bytes) -> str:
        """Return the characters that are complete."""
        if isinstance(piece, bytes):
            return self._units.decode(b"", final=True) + self._bytes.decode(piece)
        return self._bytes.decode(b"", final=True) + self._units.decode(piece.encode("utf-16-le", "surrogatepass"))

    def end(self) -> str:
        """Return what is incomplete at the end, as U+FFFD."""
        return self._bytes.decode(b"", final=True) + self._units.decode(b"", final=True)

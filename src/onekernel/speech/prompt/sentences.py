"""Long texts in parts that a model speaks well: cut behind sentences, else behind commas, else between words."""

from __future__ import annotations

import re
from collections.abc import Iterator

MOST = 400  # characters of a part: about half a minute of speech
_ENDS = (  # where a part may end, the best first
    re.compile(r"(?:[.!?…]+[\"'”’)\]]*(?=\s)|[。！？]+[”’」』）]*|\n+)\s*"),  # noqa: RUF001
    re.compile(r"(?:[,;:–—](?=\s)|[，、；：])\s*"),  # noqa: RUF001
    re.compile(r"\s+"),
)


def parts(text: str, most: int = MOST) -> Iterator[str]:
    """Cut a text into parts of at most `most` characters, each as long as may be; together they are the text."""
    while len(text) > most:
        end = _end(text, most)
        yield text[:end]
        text = text[end:]
    if text:
        yield text


def _end(text: str, most: int) -> int:
    for rule in _ENDS:
        if ends := [match.end() for match in rule.finditer(text, 0, most + 1) if 0 < match.end() <= most]:
            return ends[-1]
    return most

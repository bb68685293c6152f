"""From text to the input ids of a Piper voice, without espeak.

It knows two alphabets (that of the phoneme source, and the IPA that espeak writes for American English, on
which the voice was trained) and the way Piper joins phonemes to ids. It knows no model and no audio.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from onekernel.errors import InvalidInput

# Left: the source's symbols (one letter for a diphthong). Right: espeak's spelling of the same sound.
_IPA = {
    "A": "eɪ",
    "I": "aɪ",
    "O": "oʊ",
    "W": "aʊ",
    "Y": "ɔɪ",
    "T": "ɾ",
    "ʤ": "dʒ",
    "ʧ": "tʃ",
    "ᵊ": "ə",
    "ɜɹ": "ɜː",
    "əɹ": "ɚ",
    "ˈi": "ˈiː",
    "ˌi": "ˌiː",
    "u": "uː",
    "ɑ": "ɑː",
    "ɔ": "ɔː",
    " —": ",",
    "—": ",",
    "…": ".",
    "“": '"',
    "”": '"',
}
_SYMBOL = re.compile("|".join(sorted(map(re.escape, _IPA), key=len, reverse=True)))
START, JOIN, END = "^", "_", "$"


def to_ipa(phonemes: str) -> str:
    """Respell the source's phonemes as espeak would."""
    return _SYMBOL.sub(lambda match: _IPA[match.group()], phonemes)


def to_ids(ipa: str, table: Mapping[str, Sequence[int]]) -> npt.NDArray[np.int64]:
    """Encode IPA with the voice's own table: start, a join between any two symbols, end. Returns int64[1, P].

    Raises InvalidInput when the voice has no id for a symbol: to drop it would change the sentence silently.
    """
    unknown = sorted({symbol for symbol in ipa if symbol not in table})
    if unknown:
        raise InvalidInput(
            expected="phonemes that the voice knows",
            got=f"{unknown} in {ipa!r}",
            todo="write the sentence in plain English words, or add the symbol to phonemes.py",
        )
    ids = [number for symbol in JOIN.join((START, *ipa, END)) for number in table[symbol]]
    return np.asarray([ids], np.int64)


def phonemize(text: str) -> str:
    """Read an English sentence aloud as IPA (hibari-tts holds the dictionary and the rules)."""
    from hibari.g2p import G2P

    return to_ipa(G2P()(text))

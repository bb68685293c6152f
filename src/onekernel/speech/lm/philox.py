"""Random numbers by counter: a draw is a function of (seed, frame, codebook, entry): no neighbour can change it.

Philox4x32-10 (Salmon et al., Parallel random numbers: as easy as 1, 2, 3, SC 2011): a block of four 32-bit words for
each counter of four words and key of two. A GPU computes the same words.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10
_MASK = np.uint64(0xFFFFFFFF)

Words = npt.NDArray[np.uint64]


def philox(counter: tuple[Words, Words, Words, Words], key: tuple[int, int]) -> Words:
    """Return the words [4, n] of n counters, each word below 2^32."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        first, second = c0 * np.uint64(_MULTIPLIERS[0]), c2 * np.uint64(_MULTIPLIERS[1])
        c0, c1, c2, c3 = (
            (second >> np.uint64(32)) ^ c1 ^ np.uint64(k0),
            second & _MASK,
            (first >> np.uint64(32)) ^ c3 ^ np.uint64(k1),
            first & _MASK,
        )
        k0, k1 = (k0 + _WEYL[0]) & 0xFFFFFFFF, (k1 + _WEYL[1]) & 0xFFFFFFFF
    return np.stack((c0, c1, c2, c3))


def exponentials(seed: int, frame: int, codebook: int, count: int) -> npt.NDArray[Any]:
    """Return `count` float32 draws of the exponential distribution of mean 1, for one code of one frame.

    Entry i is -log((w + 1/2) / 2^32) of word i mod 4 of the block with the counter (i div 4, codebook, frame, 0) and
    the seed as the key, low word first; the logarithm is taken in float64 and rounded.
    """
    blocks = np.arange(-(-count // 4), dtype=np.uint64)
    same = np.ones_like(blocks)
    counter = (blocks, same * np.uint64(codebook), same * np.uint64(frame), same * np.uint64(0))
    words = philox(counter, (seed & 0xFFFFFFFF, seed >> 32 & 0xFFFFFFFF)).T.reshape(-1)[:count]
    return (-np.log((words.astype(np.float64) + 0.5) * 2.0**-32)).astype(np.float32)

"""Speech that has lost its way: it says the same again and again, or nothing, and would go on until it is cut off.

Trained models do that about once in 200 requests. Real speech pauses for a second or two; it does not repeat a bar of
sound for six.
"""

from __future__ import annotations

from collections.abc import Sequence

FRAMES = 75  # 6 s of the same
LONGEST_CYCLE = 15  # frames that are repeated: 1.2 s


def is_stuck(codes: Sequence[int], frames: int = FRAMES) -> bool:
    """Say whether the last frames, by their code 0, are one cycle of up to LONGEST_CYCLE frames again and again."""
    if len(codes) < frames:
        return False
    last = list(codes[-frames:])
    return any(last[cycle:] == last[:-cycle] for cycle in range(1, LONGEST_CYCLE + 1))

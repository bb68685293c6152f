"""The memory through which the blocks of a program give values to each other, and what it tells of a wait in vain."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from onekernel.errors import DeviceError
from onekernel.megakernel.program import Attend, Merge, Project

if TYPE_CHECKING:
    from onekernel.megakernel.layout import Layout

_NONE = -1  # what memory begins as


class Mailbox:
    """The exchanges of a request, int32: in front parities, then which value was missing, and which block missed it."""

    def __init__(self, layout: Layout, device: Any) -> None:
        """Make the memory of a request that begins, on a torch device."""
        self._layout = layout
        self.words = torch.full((layout.exchange_floats,), _NONE, dtype=torch.int32, device=device)

    def exchange(self, name: str) -> torch.Tensor:
        """Return what blocks gave each other last in an exchange of the program, float32 [width]."""
        start, width = self._layout.exchanges[name], self._layout.width(self._layout.program.exchange(name))
        return (self.words[start : start + width] & ~1).view(torch.float32)

    def check(self) -> None:
        """Raise DeviceError if a block of the last launches waited in vain; waits until they have ended.

        What was said then has no meaning, and the request cannot go on; others can.
        """
        word, block = self.words[1:3].tolist()
        if word == _NONE:
            return
        name = max((it for it in self._layout.exchanges if self._layout.exchanges[it] <= word), key=self._place)
        place = word - self._place(name)
        raise DeviceError(
            f"a block of {self._layout.program.name} waited in vain: block {block} for value {place} of {name}, which "
            f"{self._maker(name, place)} makes; say the request again, and report it if that does not help"
        )

    def _place(self, name: str) -> int:
        return self._layout.exchanges[name]

    def _maker(self, name: str, place: int) -> str:
        """Tell which block makes a value of an exchange."""
        for phase, _ in self._layout.program.phases():
            if isinstance(phase, Project) and phase.into == name:
                width = self._layout.program.exchange(name).width
                row = place % width * (phase.matrix.rows // width)  # two rows are gated into one value
                return f"block {row // self._layout.tiling(phase.matrix).rows}, {phase.matrix.name},"
            if isinstance(phase, Attend | Merge) and phase.into == name:
                return f"the {type(phase).__name__.lower()} of {phase.heads.kv_heads} heads"
        return "each block"

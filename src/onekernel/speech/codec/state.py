"""What a stream remembers of the frames before, one entry for each layer that looks back."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass
class Stream:
    """One stream: how many frames it has decoded, and by layer the inputs of the last ones; empty before the first."""

    frame: int = 0
    past: dict[str, Tensor] = field(default_factory=dict)

    def slide(self, name: str, rows: Tensor, reach: int) -> Tensor:
        """Return the last `reach` rows of layer `name` and behind them the new `rows`; zeros before the first frame.

        The result has reach + len(rows) rows, whatever the number of frames before: rows of a frame that never was are
        there as zeros.
        """
        before = self.past.get(name)
        if before is None:
            before = rows.new_zeros(reach, *rows.shape[1:])
        window = torch.cat([before, rows])
        self.past[name] = window[len(rows) :].clone()  # a view would keep the whole window alive
        return window


@dataclass
class State:
    """The streams of a batch, one a row. States of streams at different frames may be joined: State([*a, *b])."""

    streams: list[Stream]

    def reset(self) -> None:
        """Forget everything: the next frame is frame 0."""
        self.streams = [Stream() for _ in self.streams]

    def clone(self) -> State:
        """Copy the state: what is decoded with the copy leaves this one as it is."""
        copies = ({name: rows.clone() for name, rows in stream.past.items()} for stream in self.streams)
        return State([Stream(stream.frame, past) for stream, past in zip(self.streams, copies, strict=True)])

"""Small decoders with random weights, run by the generated kernel on the emulated device and by the interpreter."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch

from onekernel.device.emulated import EmulatedDevice
from onekernel.jit import Kernel
from onekernel.megakernel.decoder import DecoderShape, SpeechShape, greedy_decoder
from onekernel.megakernel.generate import kernel_request
from onekernel.megakernel.interpret import Interpreter, State, rotations
from onekernel.megakernel.layout import Layout, Schedule
from onekernel.megakernel.pack import pack_stream, pack_vectors

CAPACITY = 64  # positions
NEAR = 6  # of them: most tests have more
SHAPES = {
    "qwen3": DecoderShape(2, 96, 160, 4, 2, 32, 300, head_norms=True),
    "llama": DecoderShape(1, 64, 96, 3, 1, 64, 100, epsilon=1e-5, theta=1e4),
    "wide heads": DecoderShape(2, 64, 288, 2, 2, 128, 520, head_norms=True),
}
SHAPES["float32"] = replace(SHAPES["qwen3"], kept="float32")

WHOLE = DecoderShape(1, 1024, 2048, 8, 4, 128, 264, head_norms=True)  # each lane of a warp has as many columns

# The sizes of real decoders.
TALKERS = [DecoderShape(28, hidden, 3 * hidden, 16, 8, 128, 3072, head_norms=True) for hidden in (1024, 2048)]
PREDICTOR = DecoderShape(5, 1024, 3072, 16, 8, 128, 2048, head_norms=True)
SPEECH = [SpeechShape(talker, PREDICTOR, 16, 2048, 2150) for talker in TALKERS]
SPEECH_FLOAT16 = SpeechShape(
    replace(TALKERS[0], weights="float16"), replace(PREDICTOR, weights="float16"), 16, 2048, 2150
)
SMALL_TEXT = DecoderShape(30, 576, 1536, 9, 3, 64, 49152, epsilon=1e-5, theta=1e5)


@dataclass
class Model:
    """A shape with weights, by their names and the number of their layer."""

    shape: DecoderShape
    seed: int = 0
    near: int = NEAR
    weights: dict[tuple[str, tuple[int, ...]], torch.Tensor] = field(default_factory=dict)

    @cached_property
    def program(self) -> Any:
        return greedy_decoder(self.shape, self.near)

    @cached_property
    def sizes(self) -> dict[str, tuple[int, ...]]:
        layout = Layout(self.program, Schedule(8))
        matrices = {matrix.name: (matrix.rows, matrix.columns) for matrix in layout.matrices}
        vectors = {vector.name: (vector.width,) for vector in layout.vectors}
        return {"table": (self.shape.vocab, self.shape.hidden), **matrices, **vectors}

    def weight(self, name: str, index: tuple[int, ...]) -> torch.Tensor:
        """Draw weights, the same each time: they depend on the name and the number alone."""
        if (name, index) not in self.weights:
            key = int.from_bytes(f"{self.seed} {name} {index}".encode(), "little") % 2**63
            drawn = torch.randn(self.sizes[name], generator=torch.Generator().manual_seed(key))
            scale = 1.0 if name == "table" else self.sizes[name][-1] ** -0.5
            values = 1 + 0.1 * drawn if "norm" in name else drawn * scale
            self.weights[name, index] = values.to(getattr(torch, self.shape.weights))
        return self.weights[name, index]

    def interpret(self, prompt: list[int], steps: int) -> State:
        """Run the program with float64 arrays, keys and values rounded as the cache does."""
        rotation = rotations(CAPACITY, self.shape.head_dim, self.shape.theta).astype(np.float64)
        weights = lambda name, index: self.weight(name, index).double().numpy()  # noqa: E731
        keep = rounded if self.shape.kept == "bfloat16" else lambda values: values
        return Interpreter(self.program, weights, rotation, keep=keep).run(State(list(prompt)), steps)


def rounded(values: Any) -> Any:
    """Round to bfloat16."""
    return torch.from_numpy(np.ascontiguousarray(values)).bfloat16().double().numpy()


class Run:
    """The kernel of a model with its memory; on the emulated device, unless another one is given."""

    def __init__(
        self, model: Model, schedule: Schedule, arch: str = "sm_90", on: Any = None,
        change: Callable[[str], str] = str, **machine: Any,
    ) -> None:  # fmt: skip
        """Build it; `change` is given each line of its text."""
        self.model, self.layout = model, Layout(model.program, schedule)
        self.on = EmulatedDevice(arch, **machine) if on is None else on
        request = kernel_request(self.layout, self.on.arch)
        body = tuple(replace(line, text=change(line.text)) for line in request.body)
        self.kernel = Kernel(replace(request, body=body), self.on)
        self.stream = self.place(pack_stream(self.layout, model.weight))
        self.vectors = self.place(pack_vectors(self.layout, model.weight))
        self.table = self.place(model.weight("table", ()).contiguous())
        self.rotation = self.place(torch.from_numpy(rotations(CAPACITY, model.shape.head_dim, model.shape.theta)))
        kept = torch.full((self.layout.cached(CAPACITY),), torch.nan, dtype=getattr(torch, model.shape.kept))
        self.cache = self.place(kept)
        self.mailbox = self.layout.mailbox("cpu" if self.on.emulated else "cuda")
        self.done = 0

    @property
    def mail(self) -> Any:
        """The memory of all exchanges."""
        return self.mailbox.words.cpu().numpy()

    def place(self, tensor: torch.Tensor) -> torch.Tensor:
        """Put a tensor where the kernel reads it."""
        return tensor if self.on.emulated else tensor.cuda()

    def run(self, prompt: list[int], steps: int) -> list[int]:
        """Run steps behind those before; returns what is said behind the prompt."""
        said = self.place(torch.full((steps,), -1, dtype=torch.int32))
        given = self.place(torch.tensor(prompt or [0], dtype=torch.int32))
        self.kernel.launch(
            self.stream, self.vectors, self.rotation, self.cache, self.mailbox.words, said, len(prompt), self.done,
            steps, CAPACITY, self.table, given, grid=self.layout.schedule.blocks,
        )  # fmt: skip
        self.done += steps
        return [int(token) for token in said[max(len(prompt) - 1, 0) :].tolist()]

    def exchange(self, name: str) -> Any:
        """Return what was exchanged last, as floats."""
        return self.mailbox.exchange(name).cpu().numpy()

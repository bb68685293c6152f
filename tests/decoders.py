"""Small decoders with random weights, run by the generated kernel on the emulated device and by the interpreter."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch

from onekernel.device.emulated import EmulatedDevice
from onekernel.jit import Kernel
from onekernel.megakernel.decoder import DecoderShape, SpeechShape, greedy_decoder, speech_decoder
from onekernel.megakernel.generate import REQUEST_HEAD, kernel_request
from onekernel.megakernel.interpret import Interpreter, State, rotations
from onekernel.megakernel.layout import Layout, Schedule
from onekernel.megakernel.pack import pack_stream, pack_vectors

CAPACITY = 48  # positions
SHAPES = {
    "qwen3": DecoderShape(2, 96, 160, 4, 2, 32, 300, head_norms=True),
    "llama": DecoderShape(1, 64, 96, 3, 1, 64, 100, epsilon=1e-5, theta=1e4),
    "wide heads": DecoderShape(2, 64, 288, 2, 2, 128, 520, head_norms=True),
}


@dataclass
class Model:
    """A shape with weights, by their names and the number of their layer."""

    shape: DecoderShape
    seed: int = 0
    weights: dict[tuple[str, tuple[int, ...]], torch.Tensor] = field(default_factory=dict)

    @cached_property
    def program(self) -> Any:
        return greedy_decoder(self.shape)

    @cached_property
    def sizes(self) -> dict[str, tuple[int, ...]]:
        layout = Layout(self.program, Schedule(8))
        matrices = {matrix.name: (matrix.rows, matrix.columns) for matrix in layout.matrices}
        vectors = {vector.name: (vector.width,) for vector in layout.vectors}
        return {"table": (self.shape.vocab, self.shape.hidden), **matrices, **vectors}

    def weight(self, name: str, index: tuple[int, ...]) -> torch.Tensor:
        """Draw bfloat16 weights, the same each time: they depend on the name and the number alone."""
        if (name, index) not in self.weights:
            key = int.from_bytes(f"{self.seed} {name} {index}".encode(), "little") % 2**63
            drawn = torch.randn(self.sizes[name], generator=torch.Generator().manual_seed(key))
            scale = 1.0 if name == "table" else self.sizes[name][-1] ** -0.5
            self.weights[name, index] = (1 + 0.1 * drawn if "norm" in name else drawn * scale).bfloat16()
        return self.weights[name, index]

    def interpret(self, prompt: list[int], steps: int) -> State:
        """Run the program with float64 arrays, keys and values rounded as the cache does."""
        rotation = rotations(CAPACITY, self.shape.head_dim, self.shape.theta).astype(np.float64)
        weights = lambda name, index: self.weight(name, index).double().numpy()  # noqa: E731
        return Interpreter(self.program, weights, rotation, keep=rounded).run(State(list(prompt)), steps)


def rounded(values: Any) -> Any:
    """Round to bfloat16."""
    return torch.from_numpy(np.ascontiguousarray(values)).bfloat16().double().numpy()


class Run:
    """The kernel of a model on the emulated device, with its memory."""

    def __init__(self, model: Model, schedule: Schedule, arch: str = "sm_90", **machine: Any) -> None:
        self.model, self.layout = model, Layout(model.program, schedule)
        self.kernel = Kernel(kernel_request(self.layout, arch), EmulatedDevice(arch, **machine))
        self.stream = aligned(pack_stream(self.layout, model.weight).numpy().ravel())
        self.vectors = pack_vectors(self.layout, model.weight).numpy()
        self.table = model.weight("table", ()).contiguous()
        self.rotation = rotations(CAPACITY, model.shape.head_dim, model.shape.theta)
        shape = model.shape.layers, model.shape.kv_heads, CAPACITY, 2, model.shape.head_dim
        self.cache = torch.full(shape, torch.nan, dtype=torch.bfloat16)
        self.mail = aligned(np.full(self.layout.exchange_floats, -1, np.int32))
        self.done = 0

    def run(self, prompt: list[int], steps: int) -> list[int]:
        """Run steps behind those before; returns what is said."""
        said = np.full(steps, -1, np.int32)
        self.kernel.launch(
            self.stream, self.vectors, self.rotation, self.cache, self.mail, said, len(prompt), self.done, steps,
            CAPACITY, self.table, np.array(prompt or [0], np.int32), grid=self.layout.schedule.blocks,
        )  # fmt: skip
        self.done += steps
        return [int(token) for token in said]

    def exchange(self, name: str) -> Any:
        """Return what was exchanged last, as floats."""
        place, width = self.layout.exchanges[name], self.layout.width(self.layout.program.exchange(name))
        return (self.mail[place : place + width] & ~np.int32(1)).view(np.float32)


def aligned(values: Any) -> Any:
    """Copy to an address that is a multiple of 128."""
    memory = np.zeros(values.nbytes + 128, np.uint8)
    start = -memory.ctypes.data % 128
    copy = memory[start : start + values.nbytes].view(values.dtype)
    copy[:] = values
    return copy


# ---- speech


class SpeechModel:
    """The decoder of a speech checkpoint, by the names of the program."""

    def __init__(self, lm: Any, config: Any) -> None:
        self.tensors, self.config = lm, config
        talker, predictor = config.talker.decoder, config.predictor.decoder
        self.places = config.predictor.groups
        self.shape = SpeechShape(
            talker=_decoder(talker, config.talker.vocab), predictor=_decoder(predictor, config.predictor.vocab),
            places=self.places, codes=config.talker.vocab - 1024, end=config.talker.codec_eos,
        )  # fmt: skip
        self.program = speech_decoder(self.shape)
        self._cache: dict[tuple[str, tuple[int, ...]], torch.Tensor] = {}

    def weight(self, name: str, index: tuple[int, ...]) -> torch.Tensor:
        """Return a matrix, a vector, or a table of codes."""
        if (name, index) not in self._cache:
            self._cache[name, index] = self._find(name, index)
        return self._cache[name, index]

    def _find(self, name: str, index: tuple[int, ...]) -> torch.Tensor:
        sub = name.removeprefix("sub_")
        model = "talker.model" if sub == name else "talker.code_predictor.model"
        if name in ("code_table", "sub_table"):
            return self._table(index[0], projected=name == "sub_table")
        if name == "head":
            return self.tensors["talker.codec_head.weight"]
        if name == "sub_head":
            return self.tensors[f"talker.code_predictor.lm_head.{max(index[0] - 1, 0)}.weight"]
        if name.startswith("projection"):
            part = "bias" if name.endswith("bias") else "weight"
            return self.tensors[f"talker.code_predictor.small_to_mtp_projection.{part}"]
        if sub == "final_norm":
            return self.tensors[f"{model}.norm.weight"]
        layer = f"{model}.layers.{index[0]}"
        parts = [self.tensors[f"{layer}.{part}.weight"] for part in _PARTS[sub]]
        return torch.stack(parts, 1).flatten(0, 1) if sub == "gate_up" else torch.cat(parts)

    def _table(self, place: int, *, projected: bool) -> torch.Tensor:
        name = (
            "talker.model.codec_embedding" if place == 0 else f"talker.code_predictor.model.codec_embedding.{place - 1}"
        )
        table = self.tensors[f"{name}.weight"]
        if not projected:
            return table
        if self.shape.talker.hidden == self.shape.predictor.hidden:
            return table.float()
        return table.float() @ self.weight("projection", ()).float().T + self.weight("projection_bias", ()).float()


_PARTS = {
    "qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "output": ("self_attn.o_proj",),
    "gate_up": ("mlp.gate_proj", "mlp.up_proj"),
    "down": ("mlp.down_proj",),
    "query_norm": ("self_attn.q_norm",),
    "key_norm": ("self_attn.k_norm",),
    "input_norm": ("input_layernorm",),
    "post_norm": ("post_attention_layernorm",),
}


def _decoder(config: Any, vocab: int) -> DecoderShape:
    return DecoderShape(
        config.layers, config.hidden, config.intermediate, config.heads, config.kv_heads, config.head_dim, vocab,
        head_norms=True, epsilon=config.eps, theta=config.theta,
    )  # fmt: skip


class SpeechRun:
    """The kernel of a speech model on the emulated device, with the memory of one request."""

    def __init__(
        self, model: SpeechModel, schedule: Schedule, options: list[float], request_seed: int, **machine: Any
    ) -> None:
        self.layout = layout = Layout(model.program, schedule)
        self.kernel = Kernel(kernel_request(layout, "sm_90"), EmulatedDevice("sm_90", **machine))
        self.stream = aligned(pack_stream(layout, model.weight).numpy().ravel())
        self.vectors = pack_vectors(layout, model.weight).numpy()
        places = range(model.places)
        self.tables = torch.cat([model.weight("code_table", (place,)) for place in places]).bfloat16().contiguous()
        self.sub_tables = torch.cat([model.weight("sub_table", (place,)) for place in places[:-1]]).contiguous()
        talker, predictor = model.shape.talker, model.shape.predictor
        self.rotation = rotations(CAPACITY, talker.head_dim, talker.theta)
        sizes = [(talker, CAPACITY), (predictor, model.places)]
        count = sum(d.layers * d.kv_heads * capacity * 2 * d.head_dim for d, capacity in sizes)
        self.cache = torch.full((count,), torch.nan, dtype=torch.bfloat16)
        self.mail = aligned(np.full(layout.exchange_floats, -1, np.int32))
        self.options = np.array(options, np.float32)
        self.request = np.zeros(REQUEST_HEAD + 16 + talker.vocab // 32, np.int32)
        self.request[0] = request_seed
        self.done = 0

    def run(self, prompt: Any, text: Any, frames: int) -> list[list[int]]:
        """Say frames, behind the prompt (rows, or none) and behind what was said before."""
        steps = max(len(prompt) - 1, 0) + frames
        said = np.full((frames, 16), -1, np.int32)
        rows = np.ascontiguousarray(prompt if len(prompt) else np.zeros((1, 4)), np.float32)
        self.kernel.launch(
            self.stream, self.vectors, self.rotation, self.cache, self.mail, said, len(prompt), self.done, steps,
            CAPACITY, self.tables, self.sub_tables, rows, np.ascontiguousarray(text, np.float32), len(text),
            self.options, self.request, grid=self.layout.schedule.blocks,
        )  # fmt: skip
        self.done += steps
        return [[int(code) for code in frame] for frame in said]

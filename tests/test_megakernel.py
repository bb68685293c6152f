"""A decoder as one launch: the generated kernel against the interpreter, and the interpreter against torch."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import onekernel.megakernel
from decoders import CAPACITY, NEAR, SHAPES, WHOLE, Model, Run
from onekernel.device.emulated import Order
from onekernel.megakernel.decoder import DecoderShape, greedy_decoder
from onekernel.megakernel.generate import kernel_request
from onekernel.megakernel.interpret import Interpreter, State, rotations
from onekernel.megakernel.layout import Layout, Schedule
from onekernel.megakernel.pack import pack_matrix
from onekernel.megakernel.program import Project
from onekernel.speech.config import Decoder
from onekernel.speech.lm.decoder import Qwen3Decoder

PROMPT, STEPS = [5, 17, 70], 8
CLOSE = 2e-5  # of the largest value: products are right to 2^-16, and many even out
KEPT_CLOSE = 5e-4  # where a key or value may be rounded to the next bfloat16
ONE_BY_ONE = 1.5  # times as far where there are no tensor cores: products are added up one by one
SCHEDULE = Schedule(6, slots=4)


@cache
def model(name: str) -> Model:
    return Model(SHAPES[name])


@cache
def expected(name: str) -> State:
    return model(name).interpret(PROMPT, STEPS)


@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_90"])
@pytest.mark.parametrize("name", SHAPES)
def test_it_says_what_the_interpreter_says(name: str, arch: str) -> None:
    """And it makes the same values in every phase of the last layer."""
    run = Run(model(name), Schedule(6, slots=3 if arch == "sm_90" else 0), arch)
    assert run.run(PROMPT, STEPS) == expected(name).said
    for exchange in ("qkv", "inner", "fed"):
        found, right = run.exchange(exchange), expected(name).exchanges.get(exchange)
        if right is not None:  # what was owed is added and gone
            close = KEPT_CLOSE if SHAPES[name].kept == "bfloat16" else CLOSE * (ONE_BY_ONE if arch == "sm_75" else 1)
            assert np.abs(found - right).max() <= close * np.abs(right).max()


def test_a_width_of_which_each_lane_has_as_much() -> None:
    """Then nothing is left out, and one text serves all tiles."""
    wide = Model(WHOLE)
    said = Run(wide, Schedule(8, slots=4)).run(PROMPT, 4)
    assert said == Run(wide, Schedule(8, slots=0), "sm_80").run(PROMPT, 4) == wide.interpret(PROMPT, 4).said


@pytest.mark.parametrize("blocks", [4, 5, 8])
def test_blocks_share_the_work_in_any_number(blocks: int) -> None:
    run = Run(model("qwen3"), Schedule(blocks, slots=4))
    assert run.run(PROMPT, STEPS) == expected("qwen3").said


@pytest.mark.parametrize("order", [Order.DESCENDING, Order.RANDOM], ids=lambda order: order.name.lower())
@pytest.mark.parametrize("schedule", [SCHEDULE, Schedule(6, slots=2, ahead=1), Schedule(6, slots=0)])
def test_the_order_of_threads_changes_no_bit(schedule: Schedule, order: Order) -> None:
    arch = "sm_90" if schedule.slots else "sm_80"
    first, other = Run(model("qwen3"), schedule, arch), Run(model("qwen3"), schedule, arch, order=order, seed=4)
    assert first.run(PROMPT, STEPS) == other.run(PROMPT, STEPS)
    assert (first.mail == other.mail).all()
    assert torch.equal(first.cache.view(torch.int16), other.cache.view(torch.int16))


@pytest.mark.parametrize("last", range(6))
def test_a_block_may_lag_behind_all_others(last: int) -> None:
    """It runs only when no other can go on."""
    run = Run(model("qwen3"), SCHEDULE, order=Order.LAGGING, seed=last)
    assert run.run(PROMPT, STEPS) == expected("qwen3").said


def test_launches_go_on_where_the_last_one_ended() -> None:
    whole, parts = Run(model("qwen3"), SCHEDULE), Run(model("qwen3"), SCHEDULE)
    said = whole.run(PROMPT, STEPS)
    begun = parts.run(PROMPT, 3)
    assert begun + parts.run(begun[-1:], 1) + parts.run(said[1:2], 4) == said
    assert (whole.mail == parts.mail).all()


def test_a_member_that_owns_nothing_of_a_launch_sees_what_it_has() -> None:
    """It has more positions than warps, none of them new: what is new for others must not reach it."""
    short = Schedule(6, slots=3)
    whole, parts = Run(model("llama"), short), Run(model("llama"), short)
    prompt = list(range(21))
    said = whole.run(prompt, 23)
    last = parts.run(prompt, 21)
    assert [*last, *(last := parts.run(last, 1)), *parts.run(last, 1)] == said
    assert (whole.mail == parts.mail).all()


@pytest.mark.parametrize("name", SHAPES)
def test_it_keeps_to_the_rules_of_the_machine(name: str) -> None:
    """Addresses, alignment, races on shared memory, reads of what nobody wrote."""
    run = Run(model(name), Schedule(6, slots=3), sanitize=True, order=Order.RANDOM, seed=1)
    assert run.run(PROMPT, 4) == expected(name).said[:2]


@pytest.mark.parametrize(("name", "near"), [("qwen3", NEAR), ("qwen3", CAPACITY), ("wide heads", NEAR)])
def test_it_attends_to_many_positions(name: str, near: int) -> None:
    """More than warps see at once, in parts and alone; keys of wide heads take several slots of the ring."""
    many = Model(SHAPES[name], near=near)
    prompt = [int(token) for token in np.random.default_rng(1).integers(0, 300, CAPACITY)]
    assert Run(many, Schedule(3, slots=4)).run(prompt, CAPACITY) == many.interpret(prompt, CAPACITY).said


@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_90"])
def test_weights_may_be_float16(arch: str) -> None:
    """Values are closer to the interpreter's than weights rounded to bfloat16 could make them."""
    half = Model(replace(SHAPES["qwen3"], weights="float16"))
    run, state = Run(half, Schedule(6, slots=3 if arch == "sm_90" else 0), arch), half.interpret(PROMPT, STEPS)
    assert run.run(PROMPT, STEPS) == state.said
    found, right = run.exchange("inner"), state.exchanges["inner"]
    assert np.abs(found - right).max() <= CLOSE * np.abs(right).max()


# ---- the oracle, and the packing


def test_the_interpreter_is_the_decoder_of_the_speech_models() -> None:
    """The same weights in plain torch, which equals the official package."""
    one, shape = model("qwen3"), SHAPES["qwen3"]
    config = Decoder(
        layers=shape.layers, hidden=shape.hidden, heads=shape.heads, kv_heads=shape.kv_heads,
        head_dim=shape.head_dim, intermediate=shape.inner, eps=shape.epsilon, theta=shape.theta,
    )  # fmt: skip
    theirs = Qwen3Decoder(config, _named(one), "model")
    with torch.no_grad():
        hidden = theirs(one.weight("table", ())[PROMPT].float(), theirs.cache(8))[-1]
        logits = hidden @ one.weight("head", ()).float().T
    found: dict[str, Any] = {}

    def seen(phase: Any, _: dict[str, int], state: State) -> None:
        if isinstance(phase, Project) and phase.finish == "consider":
            found["logits"] = state.candidates

    rotation = rotations(8, shape.head_dim, shape.theta).astype(np.float64)
    weights = lambda name, index: one.weight(name, index).double().numpy()  # noqa: E731
    Interpreter(one.program, weights, rotation, seen=seen).run(State(list(PROMPT)), len(PROMPT))
    assert np.abs(found["logits"] - logits.numpy()).max() < 1e-5 * np.abs(found["logits"]).max()


def _named(one: Model) -> dict[str, torch.Tensor]:
    """Name the weights as a checkpoint does."""
    shape, found = one.shape, {"model.norm.weight": one.weight("final_norm", ()).float()}
    wide, narrow = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    for layer in range(shape.layers):
        query, key, value = one.weight("qkv", (layer,)).float().split([wide, narrow, narrow])
        parts = {
            "self_attn.q_proj": query,
            "self_attn.k_proj": key,
            "self_attn.v_proj": value,
            "mlp.gate_proj": one.weight("gate_up", (layer,))[0::2],
            "mlp.up_proj": one.weight("gate_up", (layer,))[1::2],
        }
        names = {
            "self_attn.o_proj": "output",
            "mlp.down_proj": "down",
            "self_attn.q_norm": "query_norm",
            "self_attn.k_norm": "key_norm",
            "input_layernorm": "input_norm",
            "post_attention_layernorm": "post_norm",
        }
        parts |= {theirs: one.weight(ours, (layer,)) for theirs, ours in names.items()}
        found |= {f"model.layers.{layer}.{name}.weight": weight.float() for name, weight in parts.items()}
    return found


def test_every_weight_is_packed_once_and_the_rest_is_zero() -> None:
    layout = Layout(model("qwen3").program, Schedule(5, slots=4))
    for matrix in layout.matrices:
        weight = torch.arange(1, matrix.rows * matrix.columns + 1, dtype=torch.float32).view(
            matrix.rows, matrix.columns
        )
        packed = pack_matrix(layout, matrix, weight.bfloat16()).view(torch.bfloat16).float()
        assert sorted(packed[packed != 0].tolist()) == sorted(weight.bfloat16().float().flatten().tolist())
        assert packed.numel() * 2 == layout.schedule.blocks * layout.tiling(matrix).bytes


# ---- text


def test_the_text_grows_with_kinds_of_phases_and_not_with_layers() -> None:
    shapes = [DecoderShape(layers, 1024, 3072, 16, 8, 128, 3072) for layers in (2, 28)]
    texts = [str(kernel_request(Layout(greedy_decoder(shape), Schedule(128)), "sm_90")) for shape in shapes]
    assert texts[0].count("\n") == texts[1].count("\n")
    assert texts[0].count("project<") == 5
    assert "28" in texts[1]


def test_no_model_is_named_in_the_generator() -> None:
    folder = Path(onekernel.megakernel.__file__).parent
    text = " ".join(
        path.read_text(encoding="utf-8").lower() for path in folder.glob("*.py") if path.name != "decoder.py"
    )
    assert not [name for name in ("qwen", "llama", "smollm", "talker", "predictor", "tts") if name in text]

"""A decoder of the Llama and Qwen3 families as a program: RMSNorm, grouped-query attention with RoPE, SwiGLU."""

from __future__ import annotations

from dataclasses import dataclass

from onekernel.megakernel.program import (
    Attend,
    Choose,
    Embed,
    Exchange,
    Heads,
    Matrix,
    Merged,
    Normed,
    Plain,
    Program,
    Project,
    Repeat,
    Vector,
)


@dataclass(frozen=True)
class DecoderShape:
    """The sizes of a decoder; `head_norms`: queries and keys are normed, as in Qwen3."""

    layers: int
    hidden: int
    inner: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    head_norms: bool = False
    epsilon: float = 1e-6
    theta: float = 1e6


def greedy_decoder(shape: DecoderShape) -> Program:
    """Say the likeliest token at each step; the steps are counted at the launch."""
    heads = Heads(shape.heads, shape.kv_heads, shape.head_dim, shape.head_norms)
    wide, narrow = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    each = ("layer",)
    norms = Vector("query_norm", shape.head_dim, each), Vector("key_norm", shape.head_dim, each)

    def normed(name: str, owed: str, per: tuple[str, ...] = each) -> Normed:
        return Normed(Vector(name, shape.hidden, per), owed, shape.epsilon)

    layer = (
        Project(Matrix("qkv", wide + 2 * narrow, shape.hidden, each), normed("input_norm", "fed"), "publish", "qkv"),
        Attend(heads, "qkv", "parts", norms if shape.head_norms else None, shape.epsilon),
        Project(Matrix("output", shape.hidden, wide, each), Merged("parts"), "publish", "attended", owe=True),
        Project(
            Matrix("gate_up", 2 * shape.inner, shape.hidden, each), normed("post_norm", "attended"), "gate", "inner"
        ),
        Project(Matrix("down", shape.hidden, shape.inner, each), Plain("inner"), "publish", "fed", owe=True),
    )
    step = (
        Embed(shape.vocab, shape.hidden),
        Repeat(shape.layers, "layer", layer),
        Project(Matrix("head", shape.vocab, shape.hidden), normed("final_norm", "fed", ()), "consider"),
        Choose("best"),
    )
    exchanges = (
        Exchange("qkv", wide + 2 * narrow),
        Exchange("parts", 0),
        Exchange("attended", shape.hidden),
        Exchange("inner", shape.inner),
        Exchange("fed", shape.hidden),
        Exchange("best", 0),
    )
    return Program("greedy_decoder", shape.hidden, exchanges, (Repeat("steps", "step", step),))

"""Decoders as programs: of text, greedy; and of speech, a talker with a predictor of the other codes of each frame.

Layers are those of the Llama and Qwen3 families: RMSNorm, grouped-query attention with RoPE, SwiGLU.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from onekernel.megakernel.program import (
    Attend,
    Begin,
    Choose,
    CodeRow,
    Exchange,
    FrameSum,
    Given,
    Heads,
    Item,
    Matrix,
    Merge,
    Normed,
    Plain,
    Program,
    Project,
    Repeat,
    Sample,
    TokenRow,
    Vector,
    When,
)

NEAR = 128  # positions that each block looks at itself


@dataclass(frozen=True)
class DecoderShape:
    """The sizes of a decoder; `head_norms`: queries and keys are normed, as in Qwen3.

    `kept`: how keys and values are kept. bfloat16 reads half as much as float32, and rounds to 2^-9. `weights`: the
    kind of weights, and of the rows of tokens and codes, "bfloat16" or "float16".
    """

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
    kept: str = "bfloat16"
    weights: str = "bfloat16"


@dataclass(frozen=True)
class SpeechShape:
    """The sizes of a talker and its predictor: `places` codes a frame; of the talker's vocabulary `codes` are codes."""

    talker: DecoderShape
    predictor: DecoderShape
    places: int
    codes: int
    end: int


@dataclass(frozen=True)
class _Stack:
    """The layers of a decoder in a program: names begin with `prefix`, layers are counted by the loop `layer`."""

    shape: DecoderShape
    prefix: str = ""
    layer: str = "layer"
    position: str = ""
    near: int = 0
    vectors: int = 1
    silent: tuple[str, ...] = ()

    @property
    def stream(self) -> str:
        return f"{self.prefix}hidden"

    def normed(self, name: str, owed: str, per: tuple[str, ...] | None = None) -> Normed:
        vector = Vector(self.prefix + name, self.shape.hidden, (self.layer,) if per is None else per)
        return Normed(self.stream, vector, self.prefix + owed, self.shape.epsilon)

    def layers(self) -> Repeat:
        """Return all layers; the last owes `fed` to the stream."""
        shape, each, prefix = self.shape, (self.layer,), self.prefix
        wide, narrow = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        norms = Vector(f"{prefix}query_norm", shape.head_dim, each), Vector(f"{prefix}key_norm", shape.head_dim, each)
        qkv, parts, context, attended, inner, fed = (f"{prefix}{name}" for name in _EXCHANGES)
        heads = Heads(shape.heads, shape.kv_heads, shape.head_dim, shape.head_norms, shape.kept)
        attend = Attend(heads, qkv, context, norms if shape.head_norms else None, shape.epsilon, self.layer,
                        self.position, vectors=self.vectors)  # fmt: skip
        attends: tuple[Item, ...] = (attend,)
        if not self.position:
            attends = (
                When(f"position < {self.near}", (replace(attend, near=self.near),)),
                When(f"position >= {self.near}", (replace(attend, into=parts), Merge(heads, parts, context))),
            )

        def matrix(name: str, rows: int, columns: int) -> Matrix:
            return Matrix(prefix + name, rows, columns, each, shape.weights)

        return Repeat(shape.layers, self.layer, (
            Project(matrix("qkv", wide + 2 * narrow, shape.hidden), self.normed("input_norm", "fed"), "publish", qkv,
                    vectors=self.vectors),
            *attends,
            Project(matrix("output", shape.hidden, wide), Plain(context), "publish", attended, owe=self.stream,
                    vectors=self.vectors),
            Project(matrix("gate_up", 2 * shape.inner, shape.hidden), self.normed("post_norm", "attended"), "gate",
                    inner, vectors=self.vectors),
            Project(matrix("down", shape.hidden, shape.inner), Plain(inner), "publish", fed, owe=self.stream,
                    vectors=self.vectors, silent=self.silent),
        ))  # fmt: skip

    def exchanges(self) -> tuple[Exchange, ...]:
        shape = self.shape
        wide, narrow = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        widths = wide + 2 * narrow, 0, wide, shape.hidden, shape.inner, shape.hidden
        found = [Exchange(self.prefix + name, width) for name, width in zip(_EXCHANGES, widths, strict=True)]
        return tuple(exchange for exchange in found if not (self.position and exchange.width == 0))


_EXCHANGES = ("qkv", "parts", "context", "attended", "inner", "fed")


def greedy_decoder(shape: DecoderShape, near: int = NEAR) -> Program:
    """Say the likeliest token at each step behind the prompt; the steps are counted at the launch."""
    stack = _Stack(shape, near=near)
    head = Matrix("head", shape.vocab, shape.hidden, kind=shape.weights)
    step = (
        Begin(stack.stream, TokenRow(shape.vocab), "fed"),
        stack.layers(),
        When("speaks", (Project(head, stack.normed("final_norm", "fed", ()), "consider"), Choose("best"))),
    )
    exchanges = (*stack.exchanges(), Exchange("best", 0))
    return Program("greedy_decoder", ((stack.stream, shape.hidden),), exchanges, (Repeat("steps", "step", step),))


def speech_decoder(shape: SpeechShape, near: int = NEAR, *, paired: bool = True) -> Program:
    """Say frames of codes: after the talker's step the first one, then each from those before it (Qwen3-TTS).

    The predictor's first position, which is the talker's state, goes through it together with the second, the first
    code: weights are read once for both. Or, not `paired`, by itself.
    """
    talker = _Stack(shape.talker, near=near)
    predictor = _Stack(shape.predictor, "sub_", "depth", "place")
    vocab, sub_vocab = shape.talker.vocab, shape.predictor.vocab
    tables = (vocab, *(sub_vocab,) * (shape.places - 1))
    final = talker.normed("final_norm", "fed", ())
    carried: tuple[Project, ...] = ()
    begin = Begin(predictor.stream, final, "sub_fed", vector=1 if paired else 0)
    if shape.talker.hidden != shape.predictor.hidden:
        matrix = Matrix("projection", shape.predictor.hidden, shape.talker.hidden, kind=shape.talker.weights)
        bias = Vector("projection_bias", shape.predictor.hidden)
        carried = (Project(matrix, final, "publish", "carried", bias=bias),)
        begin = replace(begin, source=Given("carried"))
    frame: tuple[Item, ...] = (
        Project(Matrix("head", vocab, shape.talker.hidden, kind=shape.talker.weights), final, "publish", "logits"),
        Sample("logits", vocab, codes=shape.codes, end=shape.end),
        *carried,
        begin,
        _places(predictor, shape.places, tables, paired),
    )
    streams = (talker.stream, shape.talker.hidden), (predictor.stream, shape.predictor.hidden)
    more = (Exchange("carried", shape.predictor.hidden),) if carried else ()
    spoken = Exchange("logits", vocab), Exchange("sub_logits", sub_vocab), *more
    exchanges = (*talker.exchanges(), *predictor.exchanges(), *spoken)
    step = Begin(talker.stream, FrameSum(tables), "fed"), talker.layers(), When("speaks", frame)
    return Program("speech_decoder", streams, exchanges, (Repeat("steps", "step", step),))


def _places(predictor: _Stack, places: int, tables: tuple[int, ...], paired: bool) -> Repeat:
    """Return the loop over the codes of a frame."""
    shape = predictor.shape
    head = Matrix("sub_head", shape.vocab, shape.hidden, ("place",), shape.weights)
    unheard = "place == 0", f"depth == {shape.layers - 1}"
    layers: tuple[Item, ...] = (replace(predictor, silent=unheard).layers(),)
    if paired:
        layers = When("place == 1", (replace(predictor, vectors=2).layers(),)), When("place > 1", (predictor.layers(),))
    return Repeat(places, "place", (
        When("place > 0", (Begin(predictor.stream, CodeRow(tables[:-1]), "sub_fed"),)),
        *layers,
        When("place > 0", (
            Project(head, predictor.normed("final_norm", "fed", ()), "publish", "sub_logits"),
            Sample("sub_logits", shape.vocab, place="place"),
        )),
    ))  # fmt: skip

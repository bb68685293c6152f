"""The predicted saving: bytes counted by hand for known chains, and what each price does."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest

from onekernel.fusion.chain import Chain
from onekernel.fusion.cost import predict
from onekernel.fusion.rules import normal_form
from onekernel.fusion.search import find_chains
from onekernel.graph.onnx_reader import read
from spellings import DIVIDES, MEANS, SQUARES, Spelling, written

ROWS, HIDDEN = 6, 8
FULL, ROW, CHANNEL = 4 * ROWS * HIDDEN, 4 * ROWS, 4 * HIDDEN


@dataclass(frozen=True)
class Part:
    """Round prices."""

    launch_seconds: float = 1.0
    bandwidth: float = 1.0


def chain_of(s: Spelling, output: str) -> Chain:
    proto, inputs = s.build(output)
    del proto.graph.node[-1]  # the closing Identity
    proto.graph.output[0].name = output
    (chain,) = find_chains(normal_form(read(proto, inputs))).chains
    return chain


def nine_nodes(dtype: type = np.float32) -> Chain:
    s = Spelling((ROWS, HIDDEN), dtype=dtype)
    normal = written(s, MEANS["mean"], SQUARES["pow"], DIVIDES["div"])
    scaled = s.op("Mul", normal, s.array(s.random(HIDDEN)))
    return chain_of(s, s.op("Add", scaled, s.array(s.random(HIDDEN))))


def test_nine_nodes_of_a_layer_norm() -> None:
    saving = predict(nine_nodes(), Part())
    assert (saving.launches_before, saving.launches_after) == (9, 1)
    # mean 1, sub 2, pow 2, mean 1, div 2, mul 2, add 2 tensors; mean 1, sub 1, mean 1, add 2, sqrt 2, div 1 rows
    assert saving.bytes_before == 12 * FULL + 8 * ROW + 2 * CHANNEL
    assert saving.bytes_after == 2 * FULL + 2 * CHANNEL
    assert saving.seconds == 8 + saving.bytes_before - saving.bytes_after


def test_half_precision_moves_half_the_bytes() -> None:
    single, half = (predict(nine_nodes(dtype), Part()) for dtype in (np.float32, np.float16))
    assert single.bytes_before == 2 * half.bytes_before
    assert single.bytes_after == 2 * half.bytes_after


def test_transposes_residual_and_mask_count() -> None:
    s = Spelling((2, HIDDEN, 3))
    total = s.op("Mul", s.op("Add", "x", s.given(2, HIDDEN, 3)), s.given(2, 1, 3))
    inside = Spelling((2, 3, HIDDEN), nodes=s.nodes, constants=s.constants)
    x = s.op("Transpose", total, perm=[0, 2, 1])
    normal = written(inside, MEANS["mean"], SQUARES["mul"], DIVIDES["div"], x=x)
    saving = predict(chain_of(s, s.op("Transpose", normal, perm=[0, 2, 1])), Part())
    assert saving.launches_before == 11
    assert saving.bytes_before == (3 + 2 + 2 + 2 + 8) * FULL + (1 + 8) * ROW
    assert saving.bytes_after == 3 * FULL + ROW


def test_a_fused_operator_counts_once() -> None:
    s = Spelling((ROWS, HIDDEN))
    vectors = [s.array(s.random(HIDDEN)) for _ in range(2)]
    saving = predict(chain_of(s, s.op("LayerNormalization", "x", *vectors)), Part())
    assert saving.launches_before == 1
    assert saving.bytes_before == saving.bytes_after == 2 * FULL + 2 * CHANNEL
    assert saving.seconds == 0


def test_an_operand_of_both_halves_is_read_twice() -> None:
    s = Spelling((ROWS, HIDDEN))
    total = s.op("Add", "x", s.given(ROWS, HIDDEN))
    normal = written(s, MEANS["mean"], SQUARES["mul"], DIVIDES["div"], x=total)
    assert predict(chain_of(s, s.op("Add", normal, total)), Part()).bytes_after == 5 * FULL


@pytest.mark.parametrize(("launch", "bandwidth"), [(2.0, 1.0), (1.0, 4.0), (0.0, 1e30)])
def test_prices_scale_their_share(launch: float, bandwidth: float) -> None:
    saving = predict(nine_nodes(), replace(Part(), launch_seconds=launch, bandwidth=bandwidth))
    moved = saving.bytes_before - saving.bytes_after
    assert saving.seconds == pytest.approx(8 * launch + moved / bandwidth)

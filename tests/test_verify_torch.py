"""Torch modules as sides of a verification: their parts, their float64 copies, their modes and their memory."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from onekernel.errors import InvalidInput
from onekernel.verify import Plan, verify

NUMBERS = Plan(seconds=0, repeats=4)
X = torch.randn(4, 16, generator=torch.Generator().manual_seed(0))


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 8)).eval()


def changed(original: nn.Sequential, layer: int, by: float) -> nn.Sequential:
    other = copy.deepcopy(original)
    with torch.no_grad():
        other[layer].bias[3] += by  # type: ignore[operator]
    return other


def test_a_module_equals_its_copy_and_its_weights_survive() -> None:
    one = model()
    weights = {name: value.clone() for name, value in one.state_dict().items()}
    verdict = verify(one, copy.deepcopy(one), [X], plan=NUMBERS)
    assert verdict.decision == "keep"
    assert verdict.worst is not None
    assert 0 < verdict.worst.error < 1e-6  # against float64, not against itself
    assert all(torch.equal(value, weights[name]) for name, value in one.state_dict().items())


def test_the_first_layer_that_is_off_is_named() -> None:
    one = model()
    verdict = verify(one, changed(one, 2, 0.1), [X], plan=NUMBERS)
    assert verdict.decision == "reject"
    assert verdict.divergence is not None
    assert verdict.divergence.name == "2"


@pytest.mark.parametrize("which", ["whole", "part"])
def test_training_mode_is_refused(which: str) -> None:
    one = model()
    (one if which == "whole" else one[1]).train()
    with pytest.raises(InvalidInput, match=r"call model\.eval\(\) first"):
        verify(one, model(), [X], plan=NUMBERS)


def test_dropout_that_is_left_on_makes_no_reference() -> None:
    moody = lambda x: nn.functional.dropout(x, 0.5, training=True)  # noqa: E731
    verdict = verify(moody, lambda x: x, [X], plan=NUMBERS)
    assert (verdict.decision, verdict.rule) == ("inconclusive", "no reference")


@pytest.mark.parametrize(
    ("dtype", "decision"), [(torch.bfloat16, "keep"), (torch.float16, "keep"), (torch.float32, "reject")]
)
def test_limits_are_those_of_what_the_model_rounds_to(dtype: torch.dtype, decision: str) -> None:
    """An error of 3e-3 is bfloat16's and float16's own, and not float32's."""
    one = model().to(dtype)

    def noisy(x: Any) -> Any:
        with torch.no_grad():
            return one(x) * 1.003

    verdict = verify(one, noisy, [X.to(dtype)], plan=NUMBERS)
    assert verdict.decision == decision


def test_a_static_output_is_poisoned_and_put_back() -> None:
    """What a captured graph does: it writes the same memory at every call, here all but the last row."""
    one = model()
    with torch.no_grad():
        kept = one(X).clone()

    def replay(x: Any) -> Any:
        with torch.no_grad():
            kept[:-1] = one(x)[:-1]
        return kept

    verdict = verify(one, replay, [X], plan=NUMBERS)
    assert verdict.decision == "reject"
    assert verdict.worst is not None
    assert verdict.worst.first is not None
    assert verdict.worst.first.index[0] == 3
    assert torch.isfinite(kept).all()


def test_a_module_that_has_no_float64_is_compared_with_itself() -> None:
    class OnlyFloat32(nn.Module):
        def forward(self, x: Any) -> Any:
            if x.dtype != torch.float32:
                raise TypeError("float32 only")
            return x * 2

    verdict = verify(OnlyFloat32().eval(), lambda x: x * 2, [X], plan=NUMBERS)
    assert verdict.decision == "keep"
    assert any("no float64 oracle" in note for note in verdict.notes)


def test_named_inputs_and_nested_results() -> None:
    def split(x: Any, y: Any) -> Any:
        return {"sum": x + y, "parts": [x.mean(-1), {"product": x * y}]}

    verdict = verify(split, split, {"x": X, "y": X.flip(0)}, plan=NUMBERS)
    assert [item.name for item in verdict.numbers] == ["sum", "parts[0]", "parts[1].product"]
    assert verdict.decision == "keep"

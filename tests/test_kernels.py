"""Every variant of every kernel against the float64 oracle: emulated under three thread orders, and on a GPU."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise, product
from typing import Any

import numpy as np
import pytest

from kernel_cases import CASES, Case, check, cuda, emulated, layer_norm, residual_gelu
from onekernel.device.cuda.graph import CudaGraph
from onekernel.device.emulated import Order
from onekernel.errors import EmulationFault, InvalidOperand
from onekernel.fusion.chain import Chain, Step
from onekernel.fusion.kernel import ChainKernel
from onekernel.fusion.kernel_body import chain_request
from onekernel.fusion.schedule import Schedule

DTYPES = ["float32", "float16", "bfloat16"]
MACHINES = [
    *(pytest.param(lambda order=order: emulated(order=order), id=order.name.lower()) for order in Order),
    pytest.param(cuda, id="cuda", marks=pytest.mark.gpu),
]
OTHER_ARCHS = ["sm_75", "sm_120"]
OTHER_SHAPES = [(3, 192), (1, 4096), (1, 16384), (1, 20000), (2, 192, 37)]


def parity_cases() -> Iterator[Any]:
    """Every case in every dtype on every machine; large ones are emulated once."""
    for case, dtype, machine in product(CASES, DTYPES, MACHINES):
        if not case.large or machine.id == "cuda" or (dtype, machine.id) == ("float32", "random"):
            yield pytest.param(case, dtype, *machine.values, id=f"{case}-{dtype}-{machine.id}", marks=machine.marks)


def chain_for(case: Case, dtype: str, make: Any = residual_gelu) -> Chain:
    chain: Chain = make(case.shape[1], axis=1, rank=len(case.shape), dtype=dtype)
    return chain


@pytest.mark.parametrize(("case", "dtype", "make_machine"), list(parity_cases()))
def test_results_are_within_the_limit(case: Case, dtype: str, make_machine: Any) -> None:
    _, comparisons = check(chain_for(case, dtype), case, make_machine())
    assert all(item.passed for item in comparisons), "\n".join(map(str, comparisons))


@pytest.mark.parametrize("arch", OTHER_ARCHS)
@pytest.mark.parametrize("shape", OTHER_SHAPES, ids=str)
def test_text_for_other_architectures_runs_too(shape: tuple[int, ...], arch: str) -> None:
    case = Case(shape)
    _, comparisons = check(chain_for(case, "float16"), case, emulated(arch))
    assert all(item.passed for item in comparisons), "\n".join(map(str, comparisons))


@pytest.mark.parametrize("make_machine", MACHINES)
def test_a_far_mean_costs_no_accuracy(make_machine: Any) -> None:
    """One-pass variance would lose everything here: mean 1000, deviation 1."""
    machine = make_machine()
    chain = layer_norm(512, axis=1, rank=2)
    x = np.random.default_rng(3).standard_normal((4, 512)) + 1000.0
    x32 = machine.put(x, "float32", 0)
    ones, zeros = machine.put(np.ones(512), "float32", 0), machine.put(np.zeros(512), "float32", 0)
    (result,) = ChainKernel(chain, machine.device)(
        [x32, ones, zeros], outputs=[machine.blank(x.shape, "float32", 0)[0]]
    )
    exact = x32.numpy().astype(np.float64)
    expected = (exact - exact.mean(1, keepdims=True)) / np.sqrt(exact.var(1, keepdims=True) + 1e-5)
    # The mean itself is known to 1000 * 2^-24, which moves every result by 6e-5 at most.
    assert np.abs(result.numpy() - expected).max() < 1.2e-4


@pytest.mark.parametrize(
    ("shapes", "names"),
    [
        ([(2, 64), (64,), (63,)], "in2"),
        ([(2, 65), (64,), (64,)], "in0"),
        ([(2, 3, 64), (64,), (64,)], "in0"),
    ],
)
def test_operands_that_do_not_fit_are_named(shapes: list[tuple[int, ...]], names: str) -> None:
    kernel = ChainKernel(layer_norm(64, axis=1, rank=2), emulated().device)
    with pytest.raises(InvalidOperand, match=names):
        kernel([np.zeros(shape, np.float32) for shape in shapes])


def test_the_emulator_refuses_a_misaligned_pack() -> None:
    """A variant made for aligned tensors must not run on shifted ones unnoticed."""
    machine = emulated()
    chain = layer_norm(64, axis=1, rank=2)
    kernel = ChainKernel(chain, machine.device)
    good = [machine.put(np.ones(shape), "float32", 0) for shape in ((2, 64), (64,), (64,))]
    kernel(good)
    (build,) = kernel.builds
    shifted = machine.put(np.ones((2, 64)), "float32", 1)
    with pytest.raises(EmulationFault, match="misaligned"):
        kernel.variant(build.schedule).launch(shifted, *good[1:], machine.blank((2, 64), "float32", 0)[0], 2, 1, grid=1)


def test_every_variant_is_built_once(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = ChainKernel(layer_norm(64, axis=1, rank=2), emulated().device)
    operands = [np.ones(shape, np.float32) for shape in ((2, 64), (64,), (64,))]
    kernel(operands)
    monkeypatch.setitem(os.environ, "PATH", "")  # no compiler from here on
    kernel([np.ones((5, 64), np.float32), *operands[1:]])
    assert len(kernel.builds) == 1


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [(4096, 64), (1024, 1024), (1, 192, 109)], ids=str)
def test_overlapping_launches_wait_for_each_other(shape: tuple[int, ...]) -> None:
    """Each launch of a graph reads what the one before wrote: the bits are those of launches kept apart."""
    machine = cuda()
    chain = chain_for(Case(shape), "float32", layer_norm)
    kernel = ChainKernel(chain, machine.device)
    start = np.random.default_rng(5).standard_normal(shape)
    weights = [machine.put(np.full(shape[1], value), "float32", 0) for value in (1.25, 0.5)]

    def chained(run: Callable[[Callable[[Any], None]], None]) -> Any:
        here, there = machine.put(start, "float32", 0), machine.put(start, "float32", 0)

        def forth_and_back(stream: Any) -> None:
            kernel([here, *weights], outputs=[there], stream=stream)
            kernel([there, *weights], outputs=[here], stream=stream)

        run(forth_and_back)
        machine.device.synchronize()
        return here.numpy()

    def apart(work: Callable[[Any], None]) -> None:
        for _ in range(40):
            work(None)
            machine.device.synchronize()

    expected = chained(apart)  # also builds and loads the kernel, which a capture may not do
    assert np.array_equal(chained(lambda work: CudaGraph(machine.device, work, calls=40).replay()), expected)


def test_a_deep_prologue_is_written_once() -> None:
    """Each level reads the one before it twice: to follow every path would take 2^60 steps."""
    values = ["in0", *(f"p{level}" for level in range(60))]
    steps = tuple(Step("mul", (value, value), after, ()) for value, after in pairwise(values))
    chain = replace(layer_norm(64, axis=1, rank=2), prologue=steps, normal_input=values[-1])
    text = str(chain_request(chain, Schedule("LaneRow", 4, 1, 16, 128), "sm_90"))
    assert text.count("each<op::mul>(") == 60 + 1  # and the scale

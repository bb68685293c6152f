"""Each barrier of each kernel is taken out in turn: some thread order must show it, or the barrier is not needed."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kernel_cases import Case, Machine, check, emulated, layer_norm, residual_gelu
from onekernel.device.emulated import EmulatedDevice, Order
from onekernel.device.machine import KERNELS
from onekernel.errors import EmulationFault
from onekernel.fusion.kernel_body import chain_request
from onekernel.fusion.schedule import Schedule
from onekernel.jit import Kernel, headers
from onekernel.jit.compile import emulated as compiler

BARRIER = re.compile(r"\b(block|cluster)_barrier\(\);")

# Barriers that nothing needs, each with its proof. Empty: every barrier in the tree is load-bearing.
REDUNDANT: dict[tuple[str, int], str] = {}

# A shape whose schedule runs the code of each place.
SHAPES = {"BlockRow": (3, 4096), "ClusterRow": (2, 20000), "ColumnTile": (2, 192, 37)}


def barrier_sites() -> list[tuple[str, int, str]]:
    """Every barrier call as (header, ordinal in it, the place it belongs to)."""
    sites = []
    for path in sorted((KERNELS / "rows").rglob("*.cuh")):
        text = path.read_text()
        for ordinal, match in enumerate(BARRIER.finditer(text)):
            owners = re.findall(r"^struct (\w+)", text[: match.start()], re.MULTILINE)
            sites.append((path.relative_to(KERNELS).as_posix(), ordinal, owners[-1]))
    return sites


def line_of(header: str, ordinal: int) -> str:
    """Return the line of a barrier call."""
    text = (KERNELS / header).read_text()
    start = list(BARRIER.finditer(text))[ordinal].start()
    return text[text.rfind("\n", 0, start) : start]


@pytest.fixture
def without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, int], None]:
    """Compile kernels from a tree in which one barrier call is missing."""

    def remove(header: str, ordinal: int) -> None:
        tree = tmp_path / "kernels"
        shutil.copytree(KERNELS, tree)
        text = (tree / header).read_text()
        match = list(BARRIER.finditer(text))[ordinal]
        mutant = text[: match.start()] + " " * (match.end() - match.start()) + text[match.end() :]
        (tree / header).write_text(mutant)
        texts = {**headers.all_headers(), header: mutant}
        monkeypatch.setattr(headers, "all_headers", lambda: texts)  # other text, other key
        monkeypatch.setattr(compiler, "INCLUDE", (tree / "emulated", tree))

    return remove


def survives(shape: tuple[int, ...]) -> bool:
    """Say whether all orders give right results."""
    case = Case(shape)
    chain = residual_gelu(shape[1], axis=1, rank=len(shape))
    for order, seed in (
        (Order.ASCENDING, 1),
        (Order.DESCENDING, 1),
        *((Order.RANDOM, seed) for seed in range(6)),
    ):
        try:
            _, comparisons = check(chain, case, emulated(order=order, seed=seed))
        except EmulationFault:
            return False
        if not all(item.passed for item in comparisons):
            return False
    return True


@pytest.mark.parametrize(("header", "ordinal", "place"), barrier_sites())
def test_a_missing_barrier_is_seen(header: str, ordinal: int, place: str, without: Callable[[str, int], None]) -> None:
    assert survives(SHAPES[place]), "the kernel is wrong before any mutation"
    without(header, ordinal)
    assert survives(SHAPES[place]) == ((header, ordinal) in REDUNDANT)


@pytest.mark.parametrize(("header", "ordinal", "place"), barrier_sites())
def test_the_sanitizer_sees_it_in_any_order(
    header: str, ordinal: int, place: str, without: Callable[[str, int], None]
) -> None:
    without(header, ordinal)
    if "finish" in line_of(header, ordinal):
        return  # who ends too early is seen by the order in which blocks end, above
    shape = SHAPES[place]
    for order in Order:
        machine = Machine(EmulatedDevice(order=order, seed=3, sanitize=True))
        with pytest.raises(EmulationFault, match=r"race on shared memory|what nobody wrote"):
            check(residual_gelu(shape[1], axis=1, rank=len(shape)), Case(shape), machine)


def test_a_missing_wait_for_the_predecessor_is_seen() -> None:
    request = chain_request(layer_norm(64, axis=1, rank=2), Schedule("LaneRow", 4, 1, 16, 128), "sm_90")
    body = tuple(line for line in request.body if "await_predecessor" not in line.text)
    assert len(body) == len(request.body) - 1
    machine = emulated()
    operands = [machine.put(np.ones(shape), "float32", 0) for shape in ((2, 64), (64,), (64,))]
    result, _ = machine.blank((2, 64), "float32", 0)
    Kernel(request, machine.device).launch(*operands, result, 2, 1, grid=1)
    with pytest.raises(EmulationFault, match="before await_predecessor"):
        Kernel(replace(request, body=body), machine.device).launch(*operands, result, 2, 1, grid=1)


def test_every_barrier_is_taken_out() -> None:
    """Counted apart from the pattern above: a call that it does not see would never be tested."""
    calls = sum(path.read_text().count("_barrier()") for path in (KERNELS / "rows").rglob("*.cuh"))
    assert calls == len(barrier_sites())
    assert {place for _, _, place in barrier_sites()} == set(SHAPES)

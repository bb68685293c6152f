"""Schedules: each covers its tensor and keeps the rules of the machine; every kind that is chosen is run somewhere."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from math import gcd
from typing import get_args, get_type_hints

import pytest

from kernel_cases import CASES, Case, check, emulated, residual_gelu
from onekernel.device.parts import Part, find, pack_bytes
from onekernel.fusion.schedule import MAX_THREADS, MAX_VALUES, WARP, Rows, Schedule, choose
from test_kernels import OTHER_ARCHS, OTHER_SHAPES

ARCHS = ["sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120"]
SMALL = replace(find("h200"), key="small", multiprocessors=1)  # a GPU that a few rows fill


def lengths() -> list[int]:
    """Row lengths: all short ones, and every power of two with its neighbours."""
    long = {2**k + d for k in range(8, 17) for d in (-1, 0, 1, 4, 16)} | {384, 768, 1536, 3000, 5120, 20_000, 60_000}
    return [*range(1, 257), *sorted(size for size in long if 256 < size <= 65_536)]


def choices(part: Part) -> Iterator[tuple[Rows, bool, Schedule]]:
    """Choose for many tensors: few rows and many, in every width of pack that is legal for some dtype."""
    widest = pack_bytes(part.arch) // 2
    for hidden in lengths():
        for outer in (1, 8, 34, 100, 16 * part.multiprocessors, 10**5):
            for pack in {gcd(hidden, 2**k) for k in range(5) if 2**k <= widest}:
                rows = Rows(outer, hidden, 1, pack)
                yield rows, False, choose(rows, columns=False, part=part)
        for outer, inner in ((1, 1), (1, 37), (2, 64), (16, 96), (1, 4098), (300, 64), (300, 5), (1, 100_000)):
            for pack in {gcd(inner, 2**k) for k in range(5) if 2**k <= widest}:
                rows = Rows(outer, hidden, inner, pack)
                yield rows, True, choose(rows, columns=True, part=part)


def kind(schedule: Schedule) -> set[tuple[str, str, object]]:
    """What is special in a schedule's text: one fact for each field, by place."""
    fields = ("pack", "threads", "blocks", "columns", "held")
    several = ("items", "several" if schedule.items > 1 else "one")
    pairs = [*((field, getattr(schedule, field)) for field in fields), several]
    return {(schedule.place, field, value) for field, value in pairs}


@pytest.mark.parametrize("arch", ARCHS)
def test_every_choice_covers_its_row_and_fits_the_machine(arch: str) -> None:
    for rows, columns, chosen in choices(find(arch)):
        why = f"{rows} -> {chosen}"
        tile = chosen.place == "ColumnTile"
        assert tile == columns, why
        assert rows.pack % chosen.pack == 0, why
        if chosen.held:
            reach = chosen.items * chosen.lanes * chosen.blocks * (1 if tile else chosen.pack)
            assert rows.hidden <= reach, why
            assert chosen.items * chosen.pack <= (2 if chosen.place == "LaneRow" else 1) * MAX_VALUES, why
        assert chosen.threads % WARP == 0, why
        assert chosen.threads <= (MAX_THREADS if chosen.blocks == 1 else MAX_THREADS // 2), why
        assert chosen.blocks in ((1, 2, 4, 8) if find(arch).arch_number >= 90 else (1,)), why
        assert chosen.lanes * chosen.columns == chosen.threads or chosen.place == "LaneRow", why
        grid, packs = chosen.grid(rows.outer, rows.inner), rows.inner // chosen.pack
        if tile:
            assert (grid // rows.outer - 1) * chosen.columns < packs <= grid // rows.outer * chosen.columns, why
        else:
            assert grid * chosen.threads >= rows.outer * chosen.lanes * chosen.blocks, why


@pytest.mark.parametrize("arch", ARCHS)
def test_a_chain_has_few_variants_however_many_shapes_come(arch: str) -> None:
    """So a server that sees ever new shapes does not compile for ever, and needs no limit."""
    variants = defaultdict[tuple[int, bool], set[Schedule]](set)
    for rows, columns, chosen in choices(find(arch)):
        variants[rows.hidden, columns].add(chosen)
    assert max(map(len, variants.values())) <= 12


# Rows of a GPU with one multiprocessor: what takes a million elements on a large GPU takes few here.
FILLED = [
    (1, 20_000), (1, 16_386), (1, 32_769), (1, 40_000), (16, 65), (16, 512), (4, 16, 20), (1, 300, 64), (40, 21, 5),
    (1, 2000, 64),
]  # fmt: skip


@pytest.mark.parametrize("shape", FILLED, ids=str)
def test_a_full_gpu_computes_the_same(shape: tuple[int, ...]) -> None:
    chain = residual_gelu(shape[1], axis=1, rank=len(shape))
    _, comparisons = check(chain, Case(shape), emulated(), part=SMALL)
    assert all(item.passed for item in comparisons), "\n".join(map(str, comparisons))


def runs() -> Iterator[tuple[Case, Part, int]]:
    """What the parity tests run: cases, whose limits choose, and bytes of the smallest element."""
    yield from ((case, find("sm_90"), size) for case in CASES for size in (2, 4))
    yield from ((Case(shape), find(arch), 2) for shape in OTHER_SHAPES for arch in OTHER_ARCHS)
    yield from ((Case(shape), SMALL, 4) for shape in FILLED)


def chosen(case: Case, part: Part, size: int) -> Schedule:
    outer, hidden, inner = (*case.shape, 1)[:3]
    columns = len(case.shape) == 3
    pack = 1 if case.shifted else gcd(inner if columns else hidden, pack_bytes(part.arch) // size)
    return choose(Rows(outer, hidden, inner, pack), columns=columns, part=part)


def test_every_kind_of_schedule_is_run() -> None:
    """Each value that a field takes for any tensor on any GPU is taken in a parity test; a new one needs a new case."""
    wanted = {fact: rows for arch in ARCHS for rows, _, schedule in choices(find(arch)) for fact in kind(schedule)}
    run = {fact for case, part, size in runs() if 0 not in case.shape for fact in kind(chosen(case, part, size))}
    assert not {fact: wanted[fact] for fact in set(wanted) - run}


def test_every_value_that_a_field_can_take_is_chosen() -> None:
    """Nothing is left in the table that no tensor asks for."""
    taken = {fact[1:] for arch in ARCHS for _, _, schedule in choices(find(arch)) for fact in kind(schedule)}
    places = {schedule.place for arch in ARCHS for _, _, schedule in choices(find(arch))}
    assert places == set(get_args(get_type_hints(Schedule)["place"]))
    assert taken == {
        *(("pack", value) for value in (1, 2, 4, 8, 16)),
        *(("threads", value) for value in (64, 128, 256, 512, 1024)),
        *(("blocks", value) for value in (1, 2, 4, 8)),
        *(("columns", value) for value in (1, 4, 8, 16)),
        *(("held", value) for value in (True, False)),
        *(("items", value) for value in ("one", "several")),
    }

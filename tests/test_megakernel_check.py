"""The checker of programs: real ones pass, each planted fault is named, and what it refuses does go wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from decoders import SHAPES, SMALL_TEXT, TALKERS, Model, Run
from onekernel.device.emulated import Order
from onekernel.errors import EmulationFault, InvalidInput
from onekernel.megakernel.check import check, faults
from onekernel.megakernel.decoder import DecoderShape, greedy_decoder
from onekernel.megakernel.generate import kernel_request
from onekernel.megakernel.layout import Layout, Schedule
from onekernel.megakernel.program import (
    Attend,
    Choose,
    Exchange,
    Normed,
    Phase,
    Plain,
    Program,
    Project,
    Repeat,
    Vector,
    When,
)
from onekernel.megakernel.schedule import schedule_for


@pytest.mark.parametrize("shape", [*TALKERS, SMALL_TEXT], ids=["talker", "large", "text"])
@pytest.mark.parametrize("multiprocessors", [132, 114, 82])
def test_real_decoders_get_a_schedule_that_is_safe(shape: DecoderShape, multiprocessors: int) -> None:
    program = greedy_decoder(shape)
    schedule = schedule_for(program, multiprocessors, "sm_90")
    assert multiprocessors / 2 < schedule.blocks <= multiprocessors
    check(Layout(program, schedule))


def test_more_blocks_than_work_are_refused() -> None:
    """Blocks that give nothing to others could be left behind: nobody would wait for them."""
    found = list(faults(Layout(greedy_decoder(TALKERS[0]), Schedule(132))))
    assert "attended overwritten while a block may still read it" in found
    with pytest.raises(InvalidInput, match="as many tiles of 8 rows as there are blocks"):
        kernel_request(Layout(greedy_decoder(TALKERS[0]), Schedule(132)), "sm_90")


@pytest.mark.parametrize("last", range(12))
def test_what_is_refused_goes_wrong_and_nothing_else_does(last: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twelve blocks for eight tiles: each of the last four, if it lags, is left behind and waits for ever."""
    monkeypatch.setattr("onekernel.megakernel.generate.check", lambda _: None)
    small = Model(DecoderShape(2, 32, 64, 2, 1, 32, 64))
    run = Run(small, Schedule(12, slots=4), order=Order.LAGGING, seed=last)
    if last < 8:
        assert run.run([5, 17], 12) == small.interpret([5, 17], 12).said
    else:
        with pytest.raises(EmulationFault, match="deadlock"):
            run.run([5, 17], 12)


def test_a_ring_that_holds_more_than_a_step_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The warp that copies would read keys that nobody has kept yet; on the emulated device it does."""
    deep = Schedule(6, slots=12)
    small = Model(SHAPES["llama"], near=1)
    found = list(faults(Layout(small.program, deep)))
    assert found == ["a ring of 12 slots for 3 chunks a step: keys would be copied before they are kept"]
    monkeypatch.setattr("onekernel.megakernel.generate.check", lambda _: None)
    prompt = list(range(21))
    right = small.interpret(prompt, 24).said
    assert Run(small, Schedule(6, slots=3), order=Order.DESCENDING).run(prompt, 24) == right
    assert Run(small, deep, order=Order.DESCENDING).run(prompt, 24) != right


def test_a_small_program_takes_a_part_of_a_large_gpu() -> None:
    program = greedy_decoder(SHAPES["qwen3"])
    assert next(faults(Layout(program, Schedule(132))), None) is not None
    schedule = schedule_for(program, 132, "sm_90")
    assert 1 < schedule.blocks < 132
    assert list(faults(Layout(program, schedule))) == []


def test_a_gpu_that_is_too_small_for_a_program_is_told() -> None:
    with pytest.raises(InvalidInput, match="a program for 1 blocks of sm_90, got greedy_decoder: 2 heads of keys"):
        schedule_for(greedy_decoder(SHAPES["qwen3"]), 1, "sm_90")


# ---- planted faults

Change = Callable[[Phase], Phase | tuple[Phase, ...]]


def changed(program: Program, change: Change) -> Program:
    """Apply a change to every phase; a tuple takes the place of one."""

    def walk(body: tuple[Any, ...]) -> tuple[Any, ...]:
        found: list[Any] = []
        for item in body:
            new = replace(item, body=walk(item.body)) if isinstance(item, Repeat | When) else change(item)
            found += new if isinstance(new, tuple) else (new,)
        return tuple(found)

    return replace(program, body=walk(program.body))


def matrix(name: str, change: Callable[[Project], Any]) -> Change:
    """Change the product with one matrix."""
    return lambda phase: change(phase) if isinstance(phase, Project) and phase.matrix.name == name else phase


def of_kind(kind: type, change: Callable[[Any], Any]) -> Change:
    return lambda phase: change(phase) if isinstance(phase, kind) else phase


def swap_output_and_attention(program: Program) -> Program:
    def walk(body: tuple[Any, ...]) -> tuple[Any, ...]:
        if any(isinstance(item, Project) and item.matrix.name == "output" for item in body):
            return (body[0], body[3], body[1], body[2], *body[4:])
        return tuple(replace(item, body=walk(item.body)) if isinstance(item, Repeat) else item for item in body)

    return replace(program, body=walk(program.body))


FAULTS: dict[str, tuple[Callable[[Program], Program], str]] = {
    "a phase forgotten": (
        lambda it: changed(it, matrix("gate_up", lambda _: ())),
        "inner awaited before it is published",
    ),
    "an exchange nobody reads": (lambda it: changed(it, matrix("down", lambda _: ())), "inner published twice before"),
    "two phases in the wrong order": (
        swap_output_and_attention,
        "context awaited before it is published: all blocks wait",
    ),
    "a phase twice": (
        lambda it: changed(it, matrix("qkv", lambda p: (p, p))),
        "qkv published twice before it is awaited",
    ),
    "one exchange for two things": (
        lambda it: changed(it, matrix("down", lambda p: replace(p, source=Plain("attended")))),
        "attended awaited before it is published",
    ),
    "a debt forgotten": (
        lambda it: changed(it, matrix("output", lambda p: replace(p, owe=""))),
        "attended published and not awaited",
    ),
    "the wrong debt paid": (
        lambda it: changed(it, matrix("gate_up", lambda p: replace(p, source=replace(p.source, owed="fed")))),
        "attended owed to the residual stream, fed added",
    ),
    "two debts": (
        lambda it: changed(it, matrix("gate_up", lambda p: replace(p, source=Plain("attended"), finish="gate"))),
        "attended owed to the residual stream and never added",
    ),
    "rows that do not fit": (
        lambda it: changed(it, matrix("down", lambda p: replace(p, matrix=replace(p.matrix, rows=96 - 8)))),
        "down makes 88 values, fed has 96",
    ),
    "columns that do not fit": (
        lambda it: changed(it, matrix("down", lambda p: replace(p, matrix=replace(p.matrix, columns=96)))),
        "down takes 96 values, its source has 160",
    ),
    "a norm of another width": (
        lambda it: changed(
            it, matrix("head", lambda p: replace(p, source=Normed("hidden", Vector("final_norm", 64), "fed", 1e-6)))
        ),
        "head takes 96 values, its source has 0",
    ),
    "weights of a loop that is not there": (
        lambda it: changed(it, matrix("head", lambda p: replace(p, matrix=replace(p.matrix, per=("layer",))))),
        "head chosen by a loop that is not around it",
    ),
    "heads that do not fit": (
        lambda it: changed(it, of_kind(Attend, lambda p: replace(p, heads=replace(p.heads, heads=6)))),
        "heads of 320 values, qkv has 256",
    ),
    "a pair for one": (
        lambda it: changed(it, matrix("gate_up", lambda p: replace(p, vectors=2))),
        "gate_up takes 2 vectors, hidden has fewer",
    ),
    "more exchanges than parities": (
        lambda it: replace(it, exchanges=it.exchanges + tuple(Exchange(f"spare{i}", 8) for i in range(30))),
        "exchanges, their parities fit in a word of 32",
    ),
    "no choice": (lambda it: changed(it, of_kind(Choose, lambda _: ())), "candidates that nobody chooses from"),
    "nothing to choose from": (lambda it: changed(it, matrix("head", lambda _: ())), "a token chosen of no candidates"),
}


@pytest.mark.parametrize("case", FAULTS)
def test_a_planted_fault_is_named(case: str) -> None:
    plant, words = FAULTS[case]
    program = greedy_decoder(SHAPES["qwen3"])
    schedule = Schedule(6, slots=4)
    assert list(faults(Layout(program, schedule))) == []
    found = list(faults(Layout(plant(program), schedule)))
    assert any(words in fault for fault in found), found


def test_an_exchange_that_is_used_again_at_once_is_a_race() -> None:
    """Two exchanges share one memory: nothing between tells a writer that all have read."""
    program = greedy_decoder(SHAPES["qwen3"])
    both = {"attended": "fed"}

    def rename(phase: Phase) -> Phase:
        if isinstance(phase, Project):
            source = phase.source
            if isinstance(source, Normed):
                source = replace(source, owed=both.get(source.owed, source.owed))
            return replace(phase, into=both.get(phase.into, phase.into), source=source)
        return phase

    shared = changed(program, rename)
    assert list(faults(Layout(shared, Schedule(6, slots=4)))) == []  # others are between, and tell
    alone = replace(shared, exchanges=(*shared.exchanges, Exchange("spare", 8)))
    assert "fed overwritten while a block may still read it" in list(faults(Layout(alone, Schedule(12))))

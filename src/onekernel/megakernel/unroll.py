"""The nest of a program as it runs: its phases one after the other, with the iterations around them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from operator import eq, ge, gt, lt

from onekernel.megakernel.program import Item, Phase, Repeat, When

At = dict[str, int]  # the number of the iteration of each loop, and "position"
Turns = Callable[[Repeat], Iterable[At]]  # the iterations of a loop
Holds = Callable[[str, At], bool]  # whether a condition holds there


def unrolled(body: tuple[Item, ...], turns: Turns, holds: Holds, at: At | None = None) -> Iterator[tuple[Phase, At]]:
    """Yield every phase as often as it runs, with the iterations around it."""
    around = at or {}
    for item in body:
        if isinstance(item, Repeat):
            for turn in turns(item):
                yield from unrolled(item.body, turns, holds, around | turn)
        elif not isinstance(item, When):
            yield item, around
        elif holds(item.condition, around):
            yield from unrolled(item.body, turns, holds, around)


def counted(loop: Repeat, steps: int = 1, first: int = 0) -> Iterator[At]:
    """Yield the iterations of a loop; one whose count the launch knows runs over `steps`, from position `first` on."""
    if isinstance(loop.count, int):
        yield from ({loop.index: number} for number in range(loop.count))
    else:
        yield from ({loop.index: number, "position": first + number} for number in range(steps))


def condition_holds(condition: str, at: At, *, speaks: bool) -> bool:
    """Say whether a condition of a program holds in an iteration; `speaks`: it is behind the prompt."""
    if condition == "speaks":
        return speaks
    name, sign, number = condition.split()
    return bool(_COMPARE[sign](at[name], int(number)))


_COMPARE = {"==": eq, ">": gt, "<": lt, ">=": ge}

"""One side of a verification, opened: what answers, and how inputs for it are found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from onekernel.errors import InvalidInput
from onekernel.splice.signature import Spec
from onekernel.targets.inputs import FROM_FILE, find_inputs
from onekernel.verify import Subject
from onekernel.verify.sides.subject import Inputs


@dataclass(frozen=True)
class Opened:
    """A Subject; `inputs` came with it, `specs` are what it takes (None: it does not say), `tables` what they index."""

    subject: Subject
    inputs: Inputs | None = None
    specs: Sequence[Spec] | None = None
    tables: Mapping[str, int] = field(default_factory=dict)


def inputs_for(given: Inputs | str | Path | None, *sides: Opened) -> Inputs:
    """Find one call's inputs: those given, those that a side brought, or made-up ones; the first side comes first.

    Raises InvalidInput where there are none.
    """
    if given is None:
        brought = next((side.inputs for side in sides if side.inputs is not None), None)
        if brought is not None:
            return brought
    elif not isinstance(given, (str, Path)) or str(given) != "auto":
        return find_inputs(given)
    known = [(side.specs, side.tables) for side in sides if side.specs is not None]
    if not known:
        got = "none, and neither side says what it takes"
        raise InvalidInput(expected="one call's inputs", got=got, todo=FROM_FILE)
    specs, tables = next((pair for pair in known if pair[0]), known[0])
    return find_inputs(given, specs, tables)

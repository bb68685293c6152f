"""The readers of the cache under random damage, and proof that the fuzzer notices a reader that errs."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fuzz_cache
from onekernel.jit.cache import Damaged, entry, folder
from onekernel.jit.cache.entry import decode

NAMES = ("kernel.cu", "kernel.bin", "build.json")


def test_three_thousand_damages_are_judged_rightly() -> None:
    outcomes = fuzz_cache.run(3000)
    assert outcomes["refused"] > 1000
    assert outcomes["accepted"] > 100
    assert outcomes["sealed again"] > 10
    assert outcomes["no bundle"] > 30
    assert outcomes["bundle loaded"] > 10


@given(st.text(max_size=60), st.dictionaries(st.sampled_from(NAMES), st.binary(max_size=300)))
@settings(max_examples=300)
def test_arbitrary_bytes_are_never_taken(folder: str, content: dict[str, bytes]) -> None:
    with pytest.raises(Damaged):
        decode(folder, content)


def unsealed(content: bytes) -> object:
    """Read a record as one would without a seal."""
    return entry.json.loads(content)


@pytest.mark.parametrize(
    ("module", "name", "fault"),
    [
        (entry, "_unseal", unsealed),
        (entry, "_print", lambda content: {"bytes": len(content), "sha256": 0}),
        (entry, "_expect", lambda _, value: value),
        (folder, "trusted", lambda _: True),
    ],
)
def test_the_fuzzer_notices(monkeypatch: pytest.MonkeyPatch, module: object, name: str, fault: object) -> None:
    monkeypatch.setattr(module, name, fault)
    with pytest.raises(Exception):  # noqa: B017, PT011  a wrong judgement, or whatever crashes
        fuzz_cache.run(3000)

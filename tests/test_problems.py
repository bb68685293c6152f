"""The table of known problems names 25 of them, and for each a test that exists."""

from __future__ import annotations

import re
from pathlib import Path

HERE = Path(__file__).parent
CITED = re.compile(r"\[(test_\w+\.py)\]\(\.\./tests/\1\)::((?:test_\w+(?:, )?)+)")


def cited(text: str) -> dict[int, list[tuple[str, str]]]:
    """Return the tests of each numbered row, as (file, name)."""
    rows = [line.split("|") for line in text.splitlines() if re.match(r"\| \d+ \|", line)]
    return {
        int(row[1]): [(file, name) for file, names in CITED.findall(row[-2]) for name in re.findall(r"test_\w+", names)]
        for row in rows
    }


def absent(tests: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return those that are not defined."""
    return [(file, name) for file, name in tests if f"def {name}(" not in (HERE / file).read_text(encoding="utf-8")]


def test_every_problem_has_a_test_that_exists() -> None:
    rows = cited((HERE.parent / "docs" / "problems.md").read_text(encoding="utf-8"))
    assert list(rows) == list(range(1, 26))
    assert all(rows.values())
    assert [item for tests in rows.values() for item in absent(tests)] == []


def test_a_missing_test_would_be_seen() -> None:
    rows = cited(
        "| 1 | a | b | [test_problems.py](../tests/test_problems.py)::test_gone, test_a_missing_test_would_be_seen |"
    )
    assert absent(rows[1]) == [("test_problems.py", "test_gone")]

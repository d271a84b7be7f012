"""The house stays small: no room grows by more than a tenth without somebody saying so."""

import re
from collections import Counter

import pytest

from .house import CHECKOUT, ROOT, counted, house, table, words

LIMIT = 1.1
QUOTED = ("modules", "statements")


def quoted(text: str) -> dict[str, Counter[str]]:
    """Return the counts that the table of CONTRIBUTING quotes, by room."""
    rows = re.findall(r"^\| ([\w ]+) \| ([\d,]+) \| ([\d,]+) \|$", text, re.MULTILINE)
    return {
        room: Counter({name: int(n.replace(",", "")) for name, n in zip(QUOTED, ns, strict=True)})
        for room, *ns in rows
    }


def too_large(now: dict[str, Counter[str]], then: dict[str, Counter[str]]) -> list[str]:
    """Return the rooms that have grown by more than a tenth, or that nobody counted."""
    return [
        name
        for name, count in now.items()
        if name not in then or count["statements"] > LIMIT * then[name]["statements"]
    ]


def test_contributing_quotes_a_table_that_the_command_prints():
    some = {"plans": Counter(modules=7, statements=1_234), ROOT: Counter(modules=1, statements=2)}
    assert quoted(f"Before.\n\n{table(some, QUOTED)}\n\n| another | 1 |") == some


def test_no_room_has_grown_by_more_than_a_tenth():
    then = quoted((CHECKOUT / "CONTRIBUTING.md").read_text())
    grown = too_large(house(), then)
    assert not grown, (
        f"say why in CONTRIBUTING (`python -m tests.house {' '.join(QUOTED)}`): {grown}"
    )


def test_growth_and_new_rooms_are_seen():
    then = {"plans": Counter(statements=100), "search": Counter(statements=100)}
    now = {"plans": Counter(statements=111), "search": Counter(statements=110), "x": Counter()}
    assert too_large(now, then) == ["plans", "x"]


def test_the_pages_stay_short():
    assert words() <= 20_000, "cut what a command or a notebook prints, and what is said twice"


@pytest.mark.parametrize(
    ("source", "statements"),
    [
        ("x = 1; y = 2", 2),
        ('"""Prose."""', 0),
        ("if True:\n    pass", 2),
        ("class A:\n    x: int", 2),
    ],
)
def test_statements_are_counted_wherever_they_stand(source, statements):
    assert counted(source)["statements"] == statements

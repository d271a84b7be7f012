"""The house stays small: no room grows by more than a tenth without somebody saying so."""

import pytest

from .house import CHECKOUT, COLUMNS, ROOT, Count, counted, house, table

LIMIT = 1.1


def quoted(text: str) -> dict[str, Count]:
    """Return the counts that a table of CONTRIBUTING quotes, by room."""
    header = f"| room | {' | '.join(COLUMNS)} |"
    rows = text.partition(header)[2].strip().partition("\n\n")[0].splitlines()[1:]
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]
    return {name: Count(*(int(n.replace(",", "")) for n in numbers)) for name, *numbers in cells}


def too_large(now: dict[str, Count], then: dict[str, Count]) -> list[str]:
    """Return the rooms that have grown by more than a tenth, or that nobody counted."""
    return [
        name
        for name, count in now.items()
        if name not in then or count.statements > LIMIT * then[name].statements
    ]


def test_contributing_quotes_a_table_that_the_command_prints():
    some = {"plans": Count(7, 1_234, 70, 20, 90), ROOT: Count(1, 2, 3, 4, 5)}
    assert quoted(f"Before.\n\n{table(some)}\n\n| another | 1 |") == some


def test_no_room_has_grown_by_more_than_a_tenth():
    then = quoted((CHECKOUT / "CONTRIBUTING.md").read_text())
    grown = too_large(house(), then)
    assert not grown, f"count again (`python -m tests.house`) and say why in CONTRIBUTING: {grown}"


def test_growth_and_new_rooms_are_seen():
    then = {"plans": Count(statements=100), "search": Count(statements=100)}
    now = {"plans": Count(statements=111), "search": Count(statements=110), "x": Count()}
    assert too_large(now, then) == ["plans", "x"]


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
    assert counted(source).statements == statements

"""What `make test` leaves out of the tests that are marked thorough."""

from types import SimpleNamespace

import pytest

from tests.cli.test_notebooks import NAMES, SAMPLE
from tests.conftest import thorough


class Case:
    """As much of a test's case as is looked at."""

    def __init__(self, test: str, name: str = "", mark: pytest.MarkDecorator | None = None):
        self.nodeid = f"{test}[{name}]" if name else test
        self.callspec = SimpleNamespace(id=name)
        self.get_closest_marker = lambda _: mark and mark.mark


def kept(cases: list[Case]) -> list[str]:
    left_out = thorough(cases)
    return [case.nodeid for case in cases if case not in left_out]


def test_a_sample_has_so_many_cases_from_end_to_end():
    cases = [Case("t", str(i), pytest.mark.thorough(but=3)) for i in range(8)]
    assert kept(cases) == ["t[0]", "t[3]", "t[6]"]


def test_a_sample_has_the_cases_that_are_named():
    cases = [Case("t", name, pytest.mark.thorough(but=("b", "c"))) for name in "abc"]
    assert kept(cases) == ["t[b]", "t[c]"]


def test_a_sample_has_all_that_is_not_marked_and_of_others_nothing_without_but():
    bare = pytest.mark.thorough()
    assert kept([Case("t"), Case("u", mark=bare), Case("v", "a"), Case("v", "b", bare)]) == [
        *("t", "v[a]"),
    ]


def test_the_notebooks_of_the_sample_exist():
    assert set(SAMPLE) <= set(NAMES)

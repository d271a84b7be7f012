"""The public names: each is documented with an example, and the examples run.

Those that run at once are run by pytest's ``--doctest-modules``. Those that start processes or take
their time are marked to be skipped there, and run here.
"""

import doctest
import inspect
import re
from importlib import import_module

import pytest

import ddlnb
from ddlnb.files import ROOT


def examples_of(name: str) -> list[doctest.Example]:
    """Return the examples of a public name; a table's are those of the module that defines it."""
    public = getattr(ddlnb, name)
    documented = public
    if isinstance(public, dict):
        documented = import_module(f"ddlnb.{ddlnb._MODULE_OF[name]}")
    return doctest.DocTestParser().get_examples(inspect.getdoc(documented) or "", name)


@pytest.mark.parametrize("name", ddlnb.__all__)
def test_every_public_name_has_an_example(name):
    assert examples_of(name), f"ddlnb.{name} has no example in its docstring"


def test_the_page_on_the_package_lists_every_public_name_once():
    page = (ROOT / "docs" / "python.md").read_text().partition("What fewer people need")[0]
    rows = re.findall(r"^\| .+ \| (.+) \|$", page, re.MULTILINE)
    assert sorted(re.findall(r"`(\w+)`", " ".join(rows))) == ddlnb.__all__


def test_there_are_at_most_fifty_public_names():
    assert len(ddlnb.__all__) <= 50


@pytest.mark.parametrize("name", ["get_gpu", "Layout", "CLAIMS"])
def test_a_name_that_has_moved_says_where_it_is(name):
    place = f"ddlnb.{ddlnb._ROOM_OF[name]}.{name}"
    with pytest.warns(DeprecationWarning, match=f"^ddlnb.{name} is now {place}$"):
        found = getattr(ddlnb, name)
    assert found is getattr(getattr(ddlnb, ddlnb._ROOM_OF[name]), name)


def test_the_one_path_through_the_package_runs_as_its_docstring_shows():
    [test] = doctest.DocTestFinder(recurse=False).find(ddlnb, "ddlnb", globs={})
    assert doctest.DocTestRunner(verbose=False).run(test) == (0, len(test.examples))


def run_all(name: str) -> doctest.TestResults:
    """Run the examples of a public name, those that are marked to be skipped as well."""
    public = getattr(ddlnb, name)
    [test] = doctest.DocTestFinder(recurse=False).find(public, name)
    for example in test.examples:
        example.options.pop(doctest.SKIP, None)
    return doctest.DocTestRunner(verbose=False).run(test)


@pytest.mark.thorough(but=1)
@pytest.mark.ranks
@pytest.mark.parametrize("name", ["measure", "measure_scaling", "Ranks", "compare", "profile"])
def test_an_example_that_starts_processes_or_takes_times_runs(name):
    failed, attempted = run_all(name)
    assert failed == 0
    assert attempted > 1

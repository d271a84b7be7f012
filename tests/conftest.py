"""What the tests share."""

import os
from collections import Counter
from collections.abc import Iterator

import pytest
from hypothesis import settings

os.environ.pop("COLUMNS", None)  # the workers of pytest-xdist say 80, whatever the terminal

# The machines are shared: an example that takes long says nothing. Every machine plays the same
# examples, so that a run says whether the code has changed; another profile searches new ones.
settings.register_profile("search", deadline=None)
settings.register_profile("ddlnb", deadline=None, derandomize=True)
settings.load_profile("ddlnb")

# The files of notebooks and of tests that start ranks, the longest first: then no worker is left
# alone with one.
LONGEST = (
    *("test_notebooks", "test_engines", "test_reproduce", "test_faults", "test_launchers"),
    *("test_calibrated_model", "test_byteps", "test_horovod", "test_ranks", "test_emulation"),
    *("test_executors", "test_byteps_asynchronous", "test_public_face", "test_emulated_cuts"),
    *("test_simulated_here", "test_emulated_graphs", "test_replanner", "test_compressed"),
    *("test_collectives", "test_compare", "test_sec1_parallelism", "test_against_simgrid"),
)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the choice that `make test` makes."""
    parser.addoption(
        "--sample",
        action="store_true",
        help="leave out tests marked thorough, but the cases that their mark names (`make test`)",
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Take the sample if it is asked for. Begin with the longest files."""
    if config.getoption("sample"):
        left_out = thorough(items)
        config.hook.pytest_deselected(items=[item for item in items if item in left_out])
        items[:] = [item for item in items if item not in left_out]
    items.sort(key=lambda item: (*LONGEST, item.path.stem).index(item.path.stem))


def thorough(items: list[pytest.Item]) -> set[pytest.Item]:
    """Return what a sample leaves out.

    Of a test marked ``thorough(but=n)`` it has n cases, as far apart as they come; of one with
    ``but=(name, ...)`` the cases named so; of one marked ``thorough`` none.
    """
    marked = [
        (item, item.nodeid.partition("[")[0], mark.kwargs.get("but", ()))
        for item in items
        if (mark := item.get_closest_marker("thorough"))
    ]
    cases = Counter(test for _, test, _ in marked)
    seen: Counter[str] = Counter()
    left_out = set()
    for item, test, but in marked:
        if isinstance(but, int):
            is_kept = seen[test] % -(-cases[test] // but) == 0
        else:
            is_kept = bool(but) and item.callspec.id in but
        seen[test] += 1
        if not is_kept:
            left_out.add(item)
    return left_out


PASSED: dict[str, bool] = {}  # of tests that name items of the survey, by file and name
PARTS: set[str] = set()  # of which a sample has some cases


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Note whether tests that name items of the survey pass, all parameters of one together."""
    if "item" in report.keywords and (report.when == "call" or report.failed):
        name = report.nodeid.partition("[")[0]
        PASSED[name] = PASSED.get(name, True) and report.passed
        if "thorough" in report.keywords:
            PARTS.add(name)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Keep what was noted, for the survey's index; workers of pytest-xdist tell one process."""
    if PASSED and not hasattr(session.config, "workerinput"):
        from ddlnb.survey.evidence import keep_test_runs

        sampled = PARTS if session.config.getoption("sample") else set()
        keep_test_runs({name: ok for name, ok in PASSED.items() if not (ok and name in sampled)})


# What ranks import once for all: a function that a test sends to them is in the test's module.
IMPORTS = (
    *("tests.not_there", "torch._dynamo", "ddlnb.engines.worker", "ddlnb.engines.probes"),
    "ddlnb.parallelism.executed.trainer",
    *("tests.foreign_engines.test_byteps", "tests.foreign_engines.test_byteps_asynchronous"),
    *("tests.collective_transport.test_collectives", "tests.engines.test_engines"),
    "tests.engines.jobs",
    *("tests.foreign_engines.test_horovod", "tests.engines.test_measure"),
    *("tests.replanning.test_replanner", "tests.launch.test_ranks", "tests.test_extending"),
    "tests.training.test_extending",
    *("tests.survey.test_sec3_3_1_protocols", "tests.training.test_executors"),
)


@pytest.fixture(scope="session")
def six_ranks() -> Iterator:
    """Six local ranks for the whole session; a test that kills ranks starts its own."""
    from ddlnb.launch.ranks import Ranks

    with Ranks(6, imports=IMPORTS) as ranks:
        yield ranks


@pytest.fixture(scope="session")
def four_ranks() -> Iterator:
    """Four, likewise, for runs in which all ranks take part."""
    from ddlnb.launch.ranks import Ranks

    with Ranks(4, imports=IMPORTS) as ranks:
        yield ranks

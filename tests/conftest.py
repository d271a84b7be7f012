"""What the tests share."""

import os
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


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the longest files; all others stay in their order."""
    items.sort(key=lambda item: (*LONGEST, item.path.stem).index(item.path.stem))


PASSED: dict[str, bool] = {}  # of tests that name items of the survey, by file and name


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Note whether tests that name items of the survey pass, all parameters of one together."""
    if "item" in report.keywords and (report.when == "call" or report.failed):
        name = report.nodeid.partition("[")[0]
        PASSED[name] = PASSED.get(name, True) and report.passed


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Keep what was noted, for the survey's index; workers of pytest-xdist tell one process."""
    if PASSED and not hasattr(session.config, "workerinput"):
        from ddlnb.survey.evidence import keep_test_runs

        keep_test_runs(PASSED)


# What ranks import once for all: a function that a test sends to them is in the test's module.
IMPORTS = (
    *("tests.not_there", "torch._dynamo", "ddlnb.engines.worker", "ddlnb.engines.probes"),
    "ddlnb.parallelism.executed.trainer",
    *("tests.foreign_engines.test_byteps", "tests.foreign_engines.test_byteps_asynchronous"),
    *("tests.collective_transport.test_collectives", "tests.engines.test_engines"),
    "tests.engines.jobs",
    *("tests.foreign_engines.test_horovod", "tests.engines.test_measure"),
    *("tests.replanning.test_replanner", "tests.launch.test_ranks", "tests.test_extending"),
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

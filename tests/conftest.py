"""What the tests share."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from hypothesis import settings

os.environ.pop("COLUMNS", None)  # the workers of pytest-xdist say 80, whatever the terminal

# The machines are shared: an example that takes long says nothing.
settings.register_profile("ddlnb", deadline=None)
settings.load_profile("ddlnb")

# The files of notebooks and of tests that start ranks, the longest first: then no worker is left
# alone with one.
LONGEST = (
    *("test_notebooks", "test_engines", "test_reproduce", "test_faults", "test_launchers"),
    *("test_twin", "test_byteps", "test_horovod", "test_ranks", "test_emulation"),
    *("test_executors", "test_byteps_asynchronous"),
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the longest files; all others stay in their order."""
    items.sort(key=lambda item: (*LONGEST, item.path.stem).index(item.path.stem))


# What the functions that tests run on ranks need.
IMPORTS = (
    *("pytest", "hypothesis", "tests.running", "tests.not_there"),
    *("torch._dynamo", "ddlnb.engines.worker", "ddlnb.training.executors.distributed"),
)


@pytest.fixture(scope="session")
def four_ranks() -> Iterator:
    """Four local ranks for the whole session; a test that kills ranks starts its own."""
    from ddlnb.launch.ranks import Ranks

    with Ranks(4, imports=IMPORTS) as ranks:
        yield ranks


@pytest.fixture(scope="session")
def six_ranks() -> Iterator:
    """Four workers and two servers, likewise."""
    from ddlnb.launch.ranks import Ranks

    with Ranks(6, imports=IMPORTS) as ranks:
        yield ranks

"""What the tests of the command line share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ddlnb.survey.execute import preloaded


@pytest.fixture(scope="session")
def notebooks_preloaded() -> Iterator[None]:
    """Notebooks start in processes that are forked from one; it imports once for all tests."""
    with preloaded():
        yield

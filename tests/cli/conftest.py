"""What the tests of notebooks and labs share."""

from contextlib import closing

import pytest

from ddlnb.survey.execution import Worker


@pytest.fixture(scope="module")
def worker():
    with closing(Worker()) as process:
        yield process


@pytest.fixture(scope="module")
def one_kernel():
    with closing(Worker("tests.cli.one_kernel")) as process:
        yield process

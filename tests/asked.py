"""What of a file of tests is to run, so that a fixture for many cases makes no others."""

from typing import Any

import pytest


def asked(request: pytest.FixtureRequest, parameter: str) -> list[Any]:
    """Return the values of a parameter with which tests of the fixture's file are to run."""
    cases = [item.callspec.params for item in _items(request) if hasattr(item, "callspec")]
    return list(dict.fromkeys(case[parameter] for case in cases if parameter in case))


def is_asked(request: pytest.FixtureRequest, test: str) -> bool:
    """Return whether a test of the fixture's file is to run."""
    return any(item.originalname == test for item in _items(request))


def _items(request: pytest.FixtureRequest) -> list[Any]:
    return [item for item in request.session.items if item.path == request.path]

"""Environment variables set for a while, for libraries that take settings no other way."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager


@contextmanager
def environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables for the block; then restore what was there before.

    >>> with environment({"DDLNB_EXAMPLE": "1"}):
    ...     os.environ["DDLNB_EXAMPLE"]
    '1'
    >>> "DDLNB_EXAMPLE" in os.environ
    False
    """
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)  # the block may have removed it itself
            else:
                os.environ[name] = value

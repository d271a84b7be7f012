"""Work that takes long says so before it begins, and asks, if there is somebody to ask."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

LONG_SECONDS = 120.0
DECLINED = 1  # the exit status of a "no"

Yes = Annotated[bool, typer.Option("--yes", help="Do not ask before work of over two minutes.")]


def announce(seconds: float | None, yes: bool, what: str = "This") -> None:
    """Say how long the work takes if that is long, and end here unless it is to be done.

    Nobody is asked where ``yes`` is given, or where no terminal is there to answer. None is an
    unknown time, of which nothing is said.
    """
    if seconds is None or seconds <= LONG_SECONDS:
        return
    typer.echo(f"{what} takes about {minutes(seconds)} here.", err=True)
    if yes or not somebody_is_there():
        return
    if not typer.confirm("Go on?", default=True, err=True):
        raise typer.Exit(DECLINED)


def somebody_is_there() -> bool:
    """Return whether a person at a terminal can be asked."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def minutes(seconds: float) -> str:
    """Return a long time in words.

    >>> minutes(130), minutes(1000), minutes(9000)
    ('2 minutes', '17 minutes', '2.5 hours')
    """
    if seconds < 90 * 60:
        return f"{seconds / 60:.0f} minutes"
    return f"{seconds / 3600:.2g} hours"

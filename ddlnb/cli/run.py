"""Run a command line so that an expected error is one line and never a traceback."""

from __future__ import annotations

import logging
import re
import sys
from typing import NoReturn

import typer

from ddlnb.errors import DdlnbError

FAILED = 2  # the exit status of a wrong call and of every expected error
INTERRUPTED = 130  # the exit status that shells expect after Ctrl-C

# The base of all complaints about the words of a call, which typer does not export by itself.
UsageError: type[Exception] = typer.BadParameter.__base__  # type: ignore[assignment]


def run(app: typer.Typer, name: str) -> NoReturn:
    """Run the command that the words of this process name, and end the process with its status.

    A wrong call, an expected error, and a file that cannot be read or written are one line on
    stderr that begins with ``name``, and status 2. Ctrl-C is one line, too, and status 130.
    """
    try:
        status = app(prog_name=name, standalone_mode=False)
    except UsageError as error:
        _end(name, _explained(error), FAILED)
    except DdlnbError as error:
        _end(name, str(error), FAILED)
    except OSError as error:
        if error.filename is None:  # of a socket or a process, and unexpected
            raise
        reason = (error.strerror or type(error).__name__).lower()
        _end(name, f"cannot use {str(error.filename)!r}: {reason}", FAILED)
    except (KeyboardInterrupt, typer.Abort):
        status = INTERRUPTED
    if status == INTERRUPTED:
        logging.getLogger("asyncio").disabled = True  # it would report tasks that never finished
        _end(name, "interrupted", INTERRUPTED)
    sys.exit(status)


def _explained(error: Exception) -> str:
    """Return what is wrong with a call, and where its options are explained, in one line."""
    message = " ".join(error.format_message().split()).rstrip(".")  # type: ignore[attr-defined]
    message = re.sub(r"Value error, |, unable to parse.*", "", message)  # how pydantic says it
    context = getattr(error, "ctx", None)
    where = f"; see '{context.command_path} --help'" if context else ""
    return message[:1].lower() + message[1:] + where


def _end(name: str, message: str, status: int) -> NoReturn:
    typer.echo(f"{name}: {message}", err=True)
    sys.exit(status)

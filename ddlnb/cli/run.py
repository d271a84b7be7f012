"""Run a command line so that an expected error is one line and never a traceback."""

from __future__ import annotations

import atexit
import errno
import gc
import io
import logging
import os
import sys
from pathlib import Path
from typing import NoReturn

import typer

from ddlnb.errors import DdlnbError, without
from ddlnb.files import write_atomically

FAILED = 2  # the exit status of a wrong call and of every expected error
INTERRUPTED = 130  # the exit status that shells expect after Ctrl-C
KINDS = {"int": ("a whole number", "4"), "float": ("a number", "0.5")}  # by pydantic's names
# New objects between two searches for garbage. torch and transformers make millions that stay, and
# by default (700) looking through them again and again is a fifth of what loading them takes. They
# go with the process: frozen as it ends, they are not looked through once more.
NEW_OBJECTS = 200_000

# The base of all complaints about the words of a call, which typer does not export by itself.
NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
UsageError: type[Exception] = typer.BadParameter.__base__  # type: ignore[assignment]


def run(app: typer.Typer, name: str) -> NoReturn:
    """Run the command that the words of this process name, and end the process with its status.

    A wrong call, an expected error, and a file that cannot be read or written are one line on
    stderr that begins with ``name``, and status 2; what an error has to say in more lines, such as
    what every rank did, goes into a log file that the line names. Ctrl-C is one line, too, and
    status 130.
    """
    if sys.stdout is None:  # its number would go to the first file that is opened
        _end(name, "the output cannot be written: it is closed", FAILED)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # of what an old locale cannot write
    gc.set_threshold(NEW_OBJECTS)
    atexit.register(gc.freeze)
    try:
        status = app(prog_name=name, standalone_mode=False)
    except UsageError as error:
        _end(name, _explained(error, name), FAILED)
    except DdlnbError as error:
        _end(name, _in_one_line(error), FAILED)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] == "ddlnb":
            raise
        _end(name, without(error.name), FAILED)
    except OSError as error:
        if error.errno in NO_ROOM and error.filename is None:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what is left of it
            _end(name, "the output cannot be written: No space left on device", FAILED)
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


def _in_one_line(error: DdlnbError) -> str:
    """Return the first line of an error, and where the others are; all lines if nowhere."""
    text = str(error)
    summary, _, details = text.partition("\n")
    if not details:
        return text
    try:
        log = write_atomically(_cache() / "last-error.log", f"{text}\n")
    except OSError:
        return text
    return f"{summary}; details in {log}"


def _cache() -> Path:
    """Return the user's folder for what can be made again."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "ddlnb")


def _explained(error: Exception, name: str) -> str:
    """Return what is wrong with a call, and where its options are explained, in one line."""
    message = _wrong_value(error) or error.format_message()  # type: ignore[attr-defined]
    message = " ".join(message.split()).rstrip(".").replace("Value error, ", "")  # pydantic's word
    context = getattr(error, "ctx", None)
    command = context.command_path.strip() if context else _called(name)
    return f"{message[:1].lower()}{message[1:]}; see '{command} --help'"


def _called(name: str) -> str:
    """Return the command that the words of this process begin with, with the name before it."""
    return " ".join([name, *(word for word in sys.argv[1:2] if not word.startswith("-"))])


def _wrong_value(error: Exception) -> str:
    """Return which value of which option is of the wrong kind, "" if that is not what is wrong.

    typer's own message has the rule and leaves the value to its cause, an error of pydantic.
    """
    name = getattr(getattr(error, "param", None), "opts", [""])[-1]
    for found in getattr(error.__cause__, "errors", list)():
        kind = found["type"].partition("_")[0]
        if name and kind in KINDS:
            rule, example = KINDS[kind]
            return f"{name} {found['input']!r} must be {rule}, such as {name} {example}"
    return ""


def _end(name: str, message: str, status: int) -> NoReturn:
    typer.echo(f"{name}: {message}", err=True)
    sys.exit(status)

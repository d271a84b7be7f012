"""The command line. Every command has a Python call of the same meaning.

An expected error is one line and never a traceback.
"""

from __future__ import annotations

import atexit
import errno
import gc
import io
import logging
import os
import sys
import warnings
from importlib import import_module, metadata
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from ddlnb.cli.options import OWN, unwrapped
from ddlnb.errors import DdlnbError, require, without
from ddlnb.files import abandoned, write_atomically
from ddlnb.survey.notebooks import command_help

ASK, RUN, LOOK, KNOW = "Ask", "Run", "Look", "Know"
# Module and group of each command, in the order of the way.
COMMANDS = {
    "advise": ("advise", ASK),
    "forecast": ("forecast", ASK),
    "layouts": ("layouts", ASK),
    "goodput": ("goodput", ASK),
    "measure": ("measure", RUN),
    "train": ("train", RUN),
    "plan": ("plan", LOOK),
    "timeline": ("plan:timeline_app", LOOK),
    "trace": ("trace", LOOK),
    "models": ("models", KNOW),
    "methods": ("models:methods_app", KNOW),
    "cluster": ("cluster", KNOW),
    "survey": ("survey", "Book"),
    "doctor": ("doctor", "Book"),
}
# Names that commands had before, and where they are now.
OLD = {
    "scaling": "forecast scaling",
    "lossy": "forecast lossy",
    "scale": "layouts scale",
    "iteration": "layouts iteration",
    "unlike": "layouts balance",
    "profile": "measure profile",
    "clusters": "cluster list",
    "hardware": "cluster list hardware",
    "networks": "cluster list topologies",
    "import": "cluster import",
    "calibrate": "cluster fit",
    "collectives": "cluster collectives",
    "reproduce": "survey reproduce",
    "check": "survey check",
    "strategies": "survey strategies",
}
SHORT = {
    "board": "survey board",
    "expect": "cluster expect",
}  # what is also typed at the first level
LISTED = ("gpus", "networks", "machines")  # that `ddlnb hardware` listed


class Commands(TyperGroup):
    """The first level: loads a command when it is asked for, and knows the old names."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given | {"commands": dict.fromkeys((*COMMANDS, *OLD, *SHORT))})
        self.help = unwrapped(self.help)

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of today."""
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return the command of a name, loaded now."""
        if cmd_name not in COMMANDS:
            return None
        module, group = COMMANDS[cmd_name]
        module, _, variable = module.partition(":")
        commands = getattr(import_module(f"ddlnb.cli.{module}"), variable or "app")
        found = typer.main.get_command(commands)
        found.name, found.rich_help_panel = cmd_name, group  # type: ignore[attr-defined]
        if OWN in getattr(found, "commands", {}):
            found.help = found.commands[OWN].help  # type: ignore[attr-defined]
        return found

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command that words name, and the words left; an old name tells the new one.

        Help says the times that were kept of it.
        """
        if args[0] in SHORT:
            args = [*SHORT[args[0]].split(), *args[1:]]
        if args[0] in OLD:
            words = renamed(*args)
            if not ctx.resilient_parsing:
                new = " ".join(words[:2])
                typer.echo(f"note: `ddlnb {args[0]}` is now `ddlnb {new}`", err=True)
            args = words
        name, found, rest = super().resolve_command(ctx, args)
        if name and found and {"-h", "--help"} & set(rest):
            found.epilog = command_help(name)
        return name, found, rest


def renamed(name: str, *rest: str) -> list[str]:
    """Return the words that an old command with these is today.

    >>> renamed("scaling", "--model", "gpt2"), renamed("clusters", "survey-10GbE")
    (['forecast', 'scaling', '--model', 'gpt2'], ['cluster', 'show', 'survey-10GbE'])
    """
    first = rest[0] if rest else "-"
    if OLD[name].startswith("cluster list") and not first.startswith("-"):
        return ["cluster", "list" if first in LISTED else "show", *rest]
    return [*OLD[name].split(), *rest]


app = typer.Typer(
    name="ddlnb",
    cls=Commands,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


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
    if sys.stdin is None:
        sys.stdin = Path(os.devnull).open()  # noqa: SIM115 - nobody is there, to the end
    if sys.stderr is None:
        sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # of what an old locale cannot write
    gc.set_threshold(NEW_OBJECTS)
    atexit.register(gc.freeze)
    warnings.formatwarning = _noted
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
    except MemoryError:
        _end(name, "no memory is left; give this process more", FAILED)
    except (KeyboardInterrupt, typer.Abort):
        status = INTERRUPTED
    if status == INTERRUPTED:
        logging.getLogger("asyncio").disabled = True  # it would report tasks that never finished
        _end(name, "interrupted", INTERRUPTED)
    sys.exit(status)


def _noted(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    line: str | None = None,
) -> str:
    """Return a warning of ours as a note; those of others stand with the line that they are of."""
    if Path(filename).is_relative_to(Path(__file__).parents[1]):
        return f"note: {message}\n"
    return AS_PYTHON_SAYS(message, category, filename, lineno, line)


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


AS_PYTHON_SAYS = warnings.formatwarning


@app.callback(invoke_without_command=True)
def ddlnb(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and end.")] = False,
    extensions: Annotated[
        list[Path] | None,
        typer.Option(
            "--with",
            metavar="FILE.py",
            help="Run this file first: what it registers has a name here, too. Repeatable.",
        ),
    ] = None,
) -> None:
    """How far will training scale on a cluster, and which communication method gets it there?

    Examples: `ddlnb advise --model bert-large --cluster survey-10GbE --gpus 16` and
    `ddlnb forecast --model my.py:task --gpu A100 --nodes 4 --network 200GbIB`.
    """
    if abandoned():
        from ddlnb.launch import leftovers

        if removed := ", ".join(map(str, leftovers.sweep())):
            typer.echo(f"note: removed what a killed command had left: {removed}", err=True)
    for file in extensions or []:
        from ddlnb.workloads.resolve import run_file

        require(
            file.suffix == ".py" and file.is_file(),
            f"--with {str(file)!r} is no Python file; give one that registers methods or "
            f"compressors, such as mine.py (docs/own_method.md)",
        )
        run_file(file)
    if version:
        typer.echo(f"ddlnb {metadata.version('ddlnb')}")
    elif context.invoked_subcommand is None:
        typer.echo(context.get_help())


def main() -> NoReturn:
    """Run the command line; see `run` for how it ends."""
    run(app, "ddlnb")


if __name__ == "__main__":
    main()

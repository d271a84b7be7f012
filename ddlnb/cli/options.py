"""Options that mean the same in every command, and the printing of tables.

Groups of options: written once, and taken by every command that declares the group.

Work that takes long says so before it begins, and asks, if there is somebody to ask.
"""

from __future__ import annotations

import inspect
import math
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from ddlnb.errors import InputError, require

if TYPE_CHECKING:
    import pandas as pd


WIDTH = 160  # columns of a table where there is no terminal

Csv = Annotated[bool, typer.Option("--csv", help="Print comma-separated values.")]
Model = Annotated[
    str, typer.Option(help="A model of `ddlnb models`, my.py:task, or a Hugging Face config.json.")
]
Batch = Annotated[int | None, typer.Option(help="Samples per worker; default: the model's own.")]
Partition = Annotated[
    str | None, typer.Option(help="Largest message of methods that partition, such as 256KB.")
]
Credit = Annotated[
    str | None, typer.Option(help="Most bytes in flight, for methods with a credit, such as 1MB.")
]


def numbers(help: str, number: Callable[[str], float] = int) -> Any:
    """Return an option that takes several numbers, as ``--gpus 8,16`` or ``--gpus 8 --gpus 16``.

    The command declares it as ``Annotated[list[int] | None, numbers("...")]`` and is given one flat
    list, or None if the option is left out. ``number`` reads one number: ``int`` or ``float``.
    """

    def parse(text: str) -> list[float]:
        try:
            return [number(part) for part in text.split(",")]
        except ValueError:
            kind = "whole numbers" if number is int else "numbers"
            raise typer.BadParameter(
                f"{text!r} must be {kind}, separated by commas, such as 8,16"
            ) from None

    def joined(given: list[list[float]] | None) -> list[float] | None:
        return [value for values in given for value in values] if given else None

    return typer.Option(help=help, parser=parse, callback=joined, metavar="N[,N...]")


WorkerCounts = Annotated[
    list[int] | None, numbers("Workers, such as 8,16. Default: all of the cluster.")
]
Workers = Annotated[int | None, typer.Option(help="Workers; default: all of the cluster.")]
Draws = Annotated[int, typer.Option(help="Draws behind the 90 % intervals; 0: none.")]
RowsFile = Annotated[Path | None, typer.Option(help="Also write the rows to this file.")]


def price(help: str) -> Any:
    """Return an option that takes a price; NaN, which is none, is refused like a word."""

    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if math.isnan(value):
            raise typer.BadParameter(f"{text!r} is no price; give a number, or leave it out")
        return value

    return typer.Option(help=help, parser=parse, metavar="FLOAT")


def parameters_from(texts: list[str]) -> dict[str, object]:
    """Return the parameters that texts ``name=value`` give; values are YAML.

    Raises InputError for a text that cannot be read.

    >>> parameters_from(["iterations=4", "options={launcher: ssh, hosts: [a, b]}"])
    {'iterations': 4, 'options': {'launcher': 'ssh', 'hosts': ['a', 'b']}}
    """
    import yaml

    found: dict[str, object] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        try:
            found[name.strip()] = yaml.safe_load(value)
            readable = bool(equals) and name.strip().isidentifier()
        except yaml.YAMLError:
            readable = False
        require(readable, f"--set {text!r} must be name=value, such as options={{launcher: mpi}}")
    return found


def refuse_unused(why: str, **given: object) -> None:
    """Raise InputError if an option is given that would change nothing; ``why`` says the reason.

    >>> refuse_unused("--fig4 has models of its own", model="resnet50", gpus=None)
    Traceback (most recent call last):
    ddlnb.errors.InputError: --fig4 has models of its own; leave out --model
    """
    _refuse(
        why,
        [
            f"--{name.replace('_', '-')}"
            for name, value in given.items()
            if value not in (None, "", [], False)
        ],
    )


def refuse_others(context: typer.Context, why: str, *kept: str) -> None:
    """Raise InputError if the call has an option, by the name of its parameter, other than these.

    An option counts as given even where its value is the default.
    """
    _refuse(
        why,
        [
            option.opts[0]
            for option in context.command.params
            if option.name and option.name not in kept and _is_given(context, option.name)
        ],
    )


def _is_given(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name != "DEFAULT"


def _refuse(why: str, unused: list[str]) -> None:
    if unused:
        raise InputError(f"{why}; leave out {' and '.join(unused)}")


def print_table(rows: list[dict[str, Any]], csv: bool, title: str) -> None:
    """Print rows as a table under a title, or as comma-separated values.

    The table is as wide as the terminal; elsewhere as COLUMNS of the environment says, or WIDTH.
    """
    import pandas as pd

    frame: pd.DataFrame = pd.DataFrame(rows)
    if csv:
        typer.echo(frame.to_csv(index=False), nl=False)
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console() if sys.stdout.isatty() else Console(width=_columns())
    table = Table(title=title, title_justify="left")
    for number, column in enumerate(frame.columns, start=1):
        numeric = pd.api.types.is_numeric_dtype(frame[column])
        is_last = number == len(frame.columns)
        table.add_column(column, justify="right" if numeric else "left", no_wrap=not is_last)
    for row in rows:
        shown = (f"{value:,}" if isinstance(value, int) else str(value) for value in row.values())
        table.add_row(*(Text(value) for value in shown))
    console.print(table)


def _columns() -> int:
    given = os.environ.get("COLUMNS", "")
    return int(given) if given.isdecimal() and int(given) > 0 else WIDTH


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command in whose place of a group are the options of the group.

    A group is a frozen dataclass with an annotated option and its default per field; the command
    takes it as a keyword, and is given one that is made of the options.

    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True)
    ... class Size:
    ...     wide: int = 1
    ...     high: int = 1
    >>> @grouped
    ... def draw(*, name: str, size: Size) -> None:
    ...     print(name, size)
    >>> list(inspect.signature(draw).parameters)
    ['name', 'wide', 'high']
    >>> draw(name="a", wide=2, high=1)
    a Size(wide=2, high=1)
    """
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {name: kind for name, kind in hints.items() if is_dataclass(kind)}
    parameters: list[inspect.Parameter] = []
    for one in inspect.signature(command).parameters.values():
        kind = hints[one.name]
        parameters += _options(kind) if one.name in groups else [one.replace(annotation=kind)]

    @wraps(command)
    def called(**given: Any) -> None:
        made = {
            name: kind(**{field.name: given.pop(field.name) for field in fields(kind)})
            for name, kind in groups.items()
        }
        command(**given, **made)

    called.__annotations__ = {one.name: one.annotation for one in parameters}
    called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return called


def _options(group: Any) -> Iterator[inspect.Parameter]:
    hints = get_type_hints(group, include_extras=True)
    for field in fields(group):
        yield inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=field.default,
            annotation=hints[field.name],
        )


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

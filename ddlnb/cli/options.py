"""Options that mean the same in every command, and the printing of tables.

Groups of options are written once, and taken by every command that declares the group; questions
(`ddlnb.questions`) become options as they are. Answers are printed as they say themselves.
"""

from __future__ import annotations

import inspect
import io
import math
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import fields, is_dataclass
from functools import cache, wraps
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_type_hints

import typer
from typer.core import TyperCommand, TyperGroup

from ddlnb.errors import EXTRAS, InputError, MissingPart, printable, require, without
from ddlnb.files import provenance, require_writable_file, write_atomically
from ddlnb.plans.methods import METHODS
from ddlnb.questions import NUMBERS, WORDS, Answer, options
from ddlnb.reading import yaml_of
from ddlnb.survey.notebooks import in_words

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


def numbers(help: str, number: Callable[[str], float] = int, *flags: str) -> Any:
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

    return typer.Option(*flags, help=help, parser=parse, callback=joined, metavar="N[,N...]")


WorkerCounts = Annotated[
    list[int] | None, numbers("Workers, such as 8,16. Default: all of the cluster.")
]
Workers = Annotated[int | None, typer.Option(help="Workers; default: all of the cluster.")]
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
    found: dict[str, object] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        require(
            bool(equals) and name.strip().isidentifier(),
            f"--set {text!r} must be name=value, such as options={{launcher: mpi}}",
        )
        found[name.strip()] = yaml_of(value, f"--set {text!r}")
    return found


def refuse_unused(why: str, **given: object) -> None:
    """Raise InputError if an option is given that would change nothing; ``why`` says the reason.

    >>> refuse_unused("--fig4 has models of its own", model="resnet50", gpus=None)
    Traceback (most recent call last):
    ddlnb.errors.InputError: --fig4 has models of its own; leave out --model
    """
    unused = [name for name, value in given.items() if value not in (None, "", [], False)]
    _refuse(why, [f"--{name.replace('_', '-')}" for name in unused])


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
    The first columns are shown that have room, and a line names the others; with --wide all are.
    """
    import pandas as pd

    frame: pd.DataFrame = pd.DataFrame(rows)
    if csv:
        typer.echo(frame.to_csv(index=False), nl=False)
        return
    from rich.cells import cell_len
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    shown = [
        [
            f"{value:,}" if isinstance(value, int) else printable(str(value))
            for value in row.values()
        ]
        for row in rows
    ]
    names = [printable(str(column)) for column in frame.columns]
    widths = [max(map(cell_len, cells)) for cells in zip(names, *shown, strict=True)]
    columns = shutil.get_terminal_size((WIDTH, 0)).columns
    count = len(names) if WIDE.get() else with_room(widths, columns)
    room = max(columns, sum(widths) + 3 * len(widths) + 1) if WIDE.get() else columns
    table = Table(title=Text(printable(title)), title_justify="left")
    for number, column in enumerate(names[:count], start=1):
        numeric = pd.api.types.is_numeric_dtype(frame[column])
        table.add_column(
            column, justify="right" if numeric else "left", no_wrap=number < len(names)
        )
    for cells in shown:
        table.add_row(*map(Text, cells[:count]))
    Console(width=room).print(table)
    if left_out := names[count:]:
        typer.echo(f"More columns with --wide: {'; '.join(left_out)}.")


WIDE = ContextVar("WIDE", default=False)  # whether tables have all columns, however wide
PROSE = 24  # columns of a terminal that the last column of a table needs: its text wraps


def with_room(widths: Sequence[int], room: int) -> int:
    """Return how many of the first columns of a table of these widths a terminal has room for.

    >>> with_room([10, 10, 10, 200], 80), with_room([10, 40, 40, 10], 80), with_room([200], 80)
    (4, 2, 1)
    """
    needed = [*widths[:-1], min(widths[-1], PROSE)] if widths else []
    ends = [1 + sum(needed[:count]) + 3 * count for count in range(1, len(needed) + 1)]
    return max(1, sum(end <= room for end in ends))


def print_answer(found: Answer) -> None:
    """Print the tables of an answer, and all that it says below them."""
    for table in found.tables:
        print_table([dict(row) for row in table.rows], False, table.title)
    say(found.said)


def say(lines: Iterable[str]) -> None:
    """Print each of the lines; what a terminal would obey in it is shown."""
    for line in lines:
        typer.echo(printable(line))


def write_picture(path: Path | None, name: str, *shown: Any, err: bool = False, **how: Any) -> None:
    """Draw the figure of this name where it is to go, as its suffix says, and say so."""
    if path is not None:
        from ddlnb import figures

        image = io.BytesIO()
        figure = getattr(figures, name)(*shown, **how)
        figure.savefig(image, format=path.suffix[1:], dpi=150, bbox_inches="tight")
        typer.echo(f"picture: {write_atomically(path, image.getvalue())}", err=err)


def write_rows(
    rows: pd.DataFrame, path: Path | None, what: str = "Rows", err: bool = False
) -> None:
    """Write rows where they are to go, and say so."""
    if path is not None:
        write_atomically(path, rows.to_csv(index=False))
        typer.echo(f"{what} in {path}", err=err)


def rendered(template: str, **values: Any) -> str:
    """Return a page: a template beside this file, filled in with the values and how it was made."""
    from jinja2 import Environment, FileSystemLoader

    loader = FileSystemLoader(Path(__file__).parent)
    environment = Environment(autoescape=True, trim_blocks=True, loader=loader)
    return environment.get_template(template).render(values, made=provenance())


def require_writable_files(**examples: Path | None) -> None:
    """Raise InputError for a path, by an example of its name, that cannot be written."""

    for example, path in examples.items():
        if path is not None:
            require_writable_file(path, example.replace("_", "."))


def first_line(thing: Any) -> str:
    """Return the first line of what documents a choice."""
    return (thing.__doc__ or "").strip().partition("\n")[0]


def grouped(command: Callable[..., Any]) -> Callable[..., None]:
    """Return a command in whose place of a group are the options of the group.

    A group is a frozen dataclass of annotated options, and the command is given one that is made of
    them. A dict that is annotated with a question (`ddlnb.questions`) has the keywords for it that
    the user said, without those that are left out.

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
    questions = {
        name: one
        for name, kind in hints.items()
        for one in getattr(kind, "__metadata__", ())
        if is_dataclass(one) and isinstance(one, type)
    }
    own = [name for name in hints if name not in groups and name not in questions]
    parameters: list[inspect.Parameter] = []
    for one in inspect.signature(command).parameters.values():
        kind = hints[one.name]
        if one.name in questions:
            parameters += asked_options(questions[one.name], without=own)
        elif one.name in groups:
            parameters += _options(kind)
        else:
            parameters.append(one.replace(annotation=kind))

    @wraps(command)
    def called(**given: Any) -> None:
        made: dict[str, Any] = {}
        for name, kind in (groups | questions).items():
            names = {field.name for field in fields(kind)} - set(own)
            taken = {key: given.pop(key) for key in names if key in given}
            if name in questions:
                made[name] = {key: value for key, value in taken.items() if value is not None}
            else:
                made[name] = kind(**taken)
        command(**given, **made)

    called.__annotations__ = {one.name: one.annotation for one in parameters}
    called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return called


def asked_options(kind: Any, without: Sequence[str] = ()) -> Iterator[inspect.Parameter]:
    """Yield the options that the fields of a question are on the command line.

    All may be left out: then they are None, and the question has its default.
    """
    hints = get_type_hints(kind)
    defaults = {field.name: field.default for field in fields(kind)}
    for name, asked in options(kind).items():
        if name in without:
            continue
        flag = asked.flag or f"--{name.replace('_', '-')}"
        default = defaults[name]
        meaning = asked.meaning
        if not asked.kind and isinstance(default, int | float | str) and default != "":
            meaning += f" Default: {'yes' if default is True else default}."
        annotation: Any
        if asked.kind == NUMBERS:
            annotation = Annotated[list[int] | None, numbers(meaning, int, flag)]
        else:
            one = list[str] if asked.kind == WORDS else _single(hints[name])
            flags = f"{flag}/--no-{flag[2:]}" if one is bool else flag
            option = typer.Option(flags, help=meaning, autocompletion=COMPLETED.get(name))
            annotation = Annotated[one | None, option]
        yield inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation
        )


def _single(hint: Any) -> Any:
    """Return the type that the command line reads: str for what Python takes in several ways."""
    return next(
        (one for one in (bool, str, int, float) if one is hint or one in get_args(hint)), str
    )


def known_models() -> list[str]:
    """Return the models that have a name, for the shell to complete."""
    from ddlnb.workloads.models import TASKS

    return list(TASKS)


def known_methods() -> list[str]:
    """Return the methods that have a name, for the shell to complete."""

    return ["all", *METHODS]


def known_clusters() -> list[str]:
    """Return the clusters that have a name, for the shell to complete."""
    from ddlnb.clusters.file import cluster_names

    return cluster_names()


COMPLETED = {"model": known_models, "methods": known_methods, "cluster": known_clusters}


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
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask before work of over two minutes.")]


def announce(seconds: float | None, yes: bool) -> None:
    """Say how long work took before if that is long, and end here unless it is to be done again.

    Nobody is asked where ``yes`` is given, or where no terminal is there to answer. None is an
    unknown time, of which nothing is said.
    """

    if seconds is None or seconds <= LONG_SECONDS:
        return
    typer.echo(f"This takes about {in_words(seconds)} here.", err=True)
    if not yes and somebody_is_there() and not typer.confirm("Go on?", default=True, err=True):
        raise typer.Exit(1)


def require_extra(extra: str, what: str) -> None:
    """Raise MissingPart unless the modules of an extra, and of those it builds on, are there.

    ``what`` is what needs it, such as "measuring".
    """
    for name, modules in EXTRAS.items():
        for module in modules:
            try:
                there = find_spec(module) is not None
            except ImportError:
                there = False
            if not there and not (module == "pyroute2" and sys.platform != "linux"):
                raise MissingPart(without(module, extra, what))
        if name == extra:
            return


def somebody_is_there() -> bool:
    """Return whether a person at a terminal can be asked."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def unwrapped(text: str | None) -> str:
    """Return a line for each paragraph, which the terminal wraps: sources have other widths."""
    return re.sub(r"(?<!\n)\n(?!\n)", " ", inspect.cleandoc(text or ""))


class Call(TyperCommand):
    """A command of ours: an option that takes one value is given once, and errors name it so.

    Its tables have all their columns with --wide.
    """

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.help = unwrapped(self.help)
        self.params.append(_wide_option())

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Take the words of a call. Raises UsageError for an option whose first value is lost."""
        _, _, given = self.make_parser(ctx).parse_args(args=list(args))
        for option in dict.fromkeys(given):
            lost = not getattr(option, "multiple", True) and not getattr(option, "is_flag", False)
            if lost and given.count(option) > 1:
                name = option.opts[-1]
                ctx.fail(f"{name} is given {given.count(option)} times and takes one value; give "
                         f"it once")  # fmt: skip
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Run the command; what it refuses of an option that was given is called as typed."""
        WIDE.set(ctx.params.pop("wide"))
        try:
            return super().invoke(ctx)
        except InputError as error:
            given = {
                option.opts[0]: ctx.params[option.name]
                for option in self.params
                if option.name in ctx.params
                and option.opts[0].startswith("--")
                and _is_given(ctx, option.name)
            }
            error.args = (as_typed(str(error), given),)
            raise


@cache
def _wide_option() -> Any:
    """Return the option of every command that prints tables whole."""
    one = typer.Typer()

    @one.command()
    def table(
        wide: Annotated[
            bool, typer.Option("--wide", help="Print tables with all their columns.")
        ] = False,
    ) -> None: ...

    return next(option for option in typer.main.get_command(one).params if option.name == "wide")


def as_typed(message: str, given: Mapping[str, Any]) -> str:
    """Return what is refused with the option whose value it is about: one of those given.

    Where a message begins with a parameter and the value, the option takes its place; where it has
    the value as one of its first words, the option stands before it.

    >>> as_typed("workers 0 must be a whole number, at least 1", {"--gpus": [0]})
    '--gpus 0 must be a whole number, at least 1'
    >>> as_typed("local_batch 0 must be a whole number", {"--draws": 0, "--batch": 0})
    '--batch 0 must be a whole number'
    >>> as_typed("unknown GPU 'B9'; choose one of A100", {"--gpu": "B9"})
    "--gpu: unknown GPU 'B9'; choose one of A100"
    """
    begins = message.split(" ")[0]
    word = re.match(r"([a-z_]+)(?:\[\d+\])? (?:['\"\[\d-]|nan\b|inf\b)", message)
    values = [
        (option, option[2:].replace("-", "_"), one)
        for option, value in given.items()
        for one in (value if isinstance(value, list) else [value])
        if not isinstance(one, bool)
    ]
    if word:

        def has(one: Any) -> bool:
            return message.startswith(tuple(f"{begins} {text} " for text in shown(one)))

        rules: list[Callable[[str, Any], bool]] = [
            lambda name, one: word[1] == name,
            lambda name, one: word[1].endswith(f"_{name}") and has(one),
            lambda name, one: has(one),
            lambda name, one: word[1].startswith(f"{name}_"),
        ]
        for rule in rules:
            for option, name, one in values:
                if rule(name, one):
                    return option + message.removeprefix(begins)
    for option, _, one in values:
        about = " ".join(message.split()[:4])
        if "--" not in message and isinstance(one, str | Path) and repr(str(one)) in about:
            return f"{option}: {message}"
    return message


def shown(value: Any) -> set[str]:
    """Return how messages write a value."""
    return {repr(value), str(value), f"{value:,}" if isinstance(value, int) else str(value)} - {""}


class App(typer.Typer):
    """A module's commands, each a `Call`."""

    def __init__(self, **given: Any) -> None:
        super().__init__(add_completion=False, **given)

    def command(self, name: str | None = None, **given: Any) -> Any:
        """Return the decorator that adds a command."""
        return super().command(name, cls=Call, **given)


OWN = "itself"  # the name of what a family of commands does by itself, which nobody types


class Family(TyperGroup):
    """A command that has others below it: `ddlnb forecast`, and `ddlnb forecast scaling`."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names that are typed."""
        return [name for name in self.commands if name != OWN]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put the family's own command before words that name none of the others."""
        is_named = args[0] in self.commands if args else ctx.resilient_parsing
        if OWN in self.commands and not is_named:
            args = [OWN, *args]
        return super().parse_args(ctx, args or ["--help"])

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:
        """Return the names and options that may follow, those of the own command as well."""
        found = super().shell_complete(ctx, incomplete)
        if own := self.commands.get(OWN):
            inside = own.make_context("", [], parent=ctx, resilient_parsing=True)
            found += own.shell_complete(inside, incomplete)
        return found

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return a command; the help of the family's own one lists the others."""
        name, found, rest = super().resolve_command(ctx, args)
        if name != OWN or found is None:
            return name, found, rest
        others = [f"`ddlnb {ctx.info_name} {other}`" for other in self.list_commands(ctx)]
        found.epilog = " ".join(filter(None, [f"See also {', '.join(others)}.", self.epilog]))
        return "", found, rest

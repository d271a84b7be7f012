"""The command line. Every command has a Python call of the same meaning."""

from __future__ import annotations

from importlib import import_module, metadata
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from ddlnb.cli.options import OWN
from ddlnb.cli.run import run
from ddlnb.errors import require
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
    "timeline": ("timeline", LOOK),
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
KINDS = ("gpus", "networks", "machines")  # that `ddlnb hardware` listed


class Commands(TyperGroup):
    """The first level: loads a command when it is asked for, and knows the old names."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given | {"commands": dict.fromkeys((*COMMANDS, *OLD, *SHORT))})

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
        return ["cluster", "list" if first in KINDS else "show", *rest]
    return [*OLD[name].split(), *rest]


app = typer.Typer(
    name="ddlnb",
    cls=Commands,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


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
    """Run the command line; see `ddlnb.cli.run` for how it ends."""
    run(app, "ddlnb")


if __name__ == "__main__":
    main()

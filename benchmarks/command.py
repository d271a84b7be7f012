"""The command line of a benchmark: its ``main`` has a keyword argument for every option."""

import sys
from argparse import SUPPRESS, ArgumentParser
from collections.abc import Callable, Sequence
from inspect import signature
from types import NoneType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from ddlnb.errors import InputError, ResultsError


def command(main: Callable[..., Any], words: Sequence[str] | None = None) -> Any:
    """Return what ``main`` returns, called with the options of the command line.

    Names, types and defaults are those of ``main``, and the help ends with what it says: a bool is
    a switch, a `Sequence` takes several values, at once or by repeating the option, and a `Literal`
    has choices. What comes before the ``*`` of its parameters is given without a name. The message
    of an InputError or a ResultsError ends the program.
    """
    page = sys.modules[main.__module__].__doc__ or ""
    parser = ArgumentParser(
        description=page.split("\n")[0], epilog=main.__doc__, argument_default=SUPPRESS
    )
    hints = get_type_hints(main)
    for name, parameter in signature(main).parameters.items():
        needed, reading = parameter.default is parameter.empty, _reading(hints[name])
        if parameter.kind is parameter.KEYWORD_ONLY:
            parser.add_argument(f"--{name.replace('_', '-')}", required=needed, **reading)
        else:
            usual = {} if needed else {"nargs": "?", "default": parameter.default}
            parser.add_argument(name, **(usual | reading | {"action": "store"}))
    try:
        return main(**vars(parser.parse_args(words)))
    except (InputError, ResultsError) as error:
        parser.error(str(error))


def _reading(hint: Any) -> dict[str, Any]:
    """Return how `ArgumentParser.add_argument` reads values of a type."""
    kind, inner = get_origin(hint), get_args(hint)
    if NoneType in inner:
        return _reading(next(one for one in inner if one is not NoneType))
    if kind is Sequence:
        return _reading(inner[0]) | {"nargs": "*", "action": "extend"}
    if kind is Literal:
        return {"choices": inner}
    return {"action": "store_true"} if hint is bool else {"type": hint}

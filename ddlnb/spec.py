"""Choices written as text: a name of a catalogue and its parameters, ``"top-k(0.01)"``."""

from __future__ import annotations

import ast
import dataclasses
import re
from collections.abc import Mapping
from typing import TypeVar

from ddlnb.errors import InputError, UnknownName

T = TypeVar("T")


def parsed(what: str, text: str, known: Mapping[str, type[T]]) -> T:
    """The dataclass of that name, made with the parameters in brackets: numbers and words.

    Raises UnknownName for the name and InputError for parameters that it does not have.
    """
    match = re.fullmatch(r"\s*([\w.+-]+)\s*(?:\((.*)\))?\s*", text)
    if match is None:
        raise InputError(
            f"{what} {text!r} must be a name, with parameters in brackets if it has any"
        )
    name, inside = match.group(1).casefold(), match.group(2) or ""
    if name not in known:
        raise UnknownName(what, match.group(1), known)
    kind = known[name]
    fields = [field.name for field in dataclasses.fields(kind)]  # type: ignore[arg-type]
    try:
        call = ast.parse(f"f({inside})", mode="eval").body
        assert isinstance(call, ast.Call)
        positional = [_value(node) for node in call.args]
        named = {str(keyword.arg): _value(keyword.value) for keyword in call.keywords}
        return kind(*positional, **named)
    except InputError:
        raise
    except (SyntaxError, TypeError, ValueError) as error:
        takes = f"takes {', '.join(fields)}" if fields else "takes none"
        raise InputError(
            f"{what} {text!r} has parameters it cannot have; {name} {takes}"
        ) from error


def _value(node: ast.expr) -> object:
    return node.id if isinstance(node, ast.Name) else ast.literal_eval(node)


def shown(name: str, choice: object) -> str:
    """The text that `parsed` reads.

    >>> from ddlnb.compression.top_k import TopK
    >>> shown("top-k", TopK(0.01))
    'top-k(0.01)'
    """
    values = [getattr(choice, field.name) for field in dataclasses.fields(choice)]  # type: ignore[arg-type]
    inside = ", ".join(f"{v:g}" if isinstance(v, float) else str(v) for v in values)
    return f"{name}({inside})" if inside else name

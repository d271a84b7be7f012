"""What the core knows by name only: choices written as text, and parts that extensions have.

A choice is a name of a catalogue and its parameters, ``"top-k(0.01)"``. What it is written as reads
back as an equal one, so that texts can stand in tables. A part is asked for by the core, which
imports no extension, and supplied by whatever has it.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import sys
import traceback
import types
import typing
from abc import ABC
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from typing import Any, ClassVar, TypeVar

from ddlnb.errors import DdlnbError, InputError, MissingPart, UnknownName, require

T = TypeVar("T")
TRUTH = {"true": True, "false": False}
WORDS = "words"
CACHES: list[Callable[[], None]] = []  # empty those of what was made of names; extensions add


def several(given: Any) -> list[Any]:
    """Return a list of what was given: of one thing, or of all in a sequence; a text is one thing.

    Notebooks take their parameters through it, so that `papermill -p workers 2` means ``[2]``.

    >>> import ddlnb
    >>> ddlnb.several(2), ddlnb.several([2, 4]), ddlnb.several("all")
    ([2], [2, 4], ['all'])
    """
    given = given.tolist() if hasattr(given, "tolist") else given  # of NumPy, pandas or torch
    is_many = isinstance(given, Iterable) and not isinstance(given, str | bytes)
    return list(given) if is_many else [given]


class Choice(ABC):
    """A choice of a catalogue; subclasses are frozen dataclasses of its parameters.

    It is written as its ``name`` with all of them, or ``brief``ly without the last ones that have
    their defaults, and `parsed` reads it back.
    """

    name: ClassVar[str]
    brief: ClassVar[bool] = False

    def __str__(self) -> str:
        return shown(self.name, self, self.brief)


def parsed(what: str, text: str, known: Mapping[str, type[T]]) -> T:
    """The dataclass of that name, made with the parameters in brackets: numbers and words.

    Parameters are of the types that the dataclass says: bool, int, float, str, None, tuples of
    these. Numbers are finite; a whole one will do for a float. Raises UnknownName for the name and
    InputError for parameters that it does not have or that are of another type.
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
    try:
        positional, named = _arguments(inside)
        given = inspect.signature(kind).bind(*positional, **named).arguments
    except (SyntaxError, TypeError, ValueError, RecursionError, MemoryError) as error:
        fields = inspect.signature(kind).parameters.values()
        names = ", ".join(str(one.replace(annotation=one.empty)) for one in fields)
        takes = f"is written {name}({names})" if names else "takes none"
        raise InputError(
            f"{what} {text!r} has parameters that do not fit: {name} {takes}"
        ) from error
    hints = typing.get_type_hints(kind)
    for field, value in given.items():
        try:
            given[field] = _of_type(value, hints[field])
        except TypeError as error:
            raise InputError(
                f"{what} {text!r}: {field} {_text(value)} must be {_in_words(hints[field])}"
            ) from error
    return kind(**given)


def shown(name: str, choice: object, brief: bool = False) -> str:
    """The text that `parsed` reads: all parameters, the shortest digits that read back.

    In ``brief`` the last ones are left out if they have their defaults.

    >>> from ddlnb.compression.top_k import TopK
    >>> shown("top-k", TopK(0.01)), shown("top-k", TopK(0.01), brief=True)
    ('top-k(0.01)', 'top-k')
    """
    fields = list(dataclasses.fields(choice))  # type: ignore[arg-type]
    while brief and fields and getattr(choice, fields[-1].name) == fields[-1].default:
        fields.pop()
    inside = ", ".join(_text(getattr(choice, field.name)) for field in fields)
    return f"{name}({inside})" if inside else name


def abridged(name: str, choice: object) -> str:
    """A text that `parsed` reads, for readers: the first parameter, and what is not by default.

    A first parameter that has its default and is no number or word is left out as well.

    >>> from ddlnb.compression.dgc import DeepGradientCompression
    >>> abridged("dgc", DeepGradientCompression()), abridged("dgc", DeepGradientCompression(0.1, 0))
    ('dgc(0.001)', 'dgc(0.1, 0)')
    >>> abridged("dgc", DeepGradientCompression(warm_up=64))
    'dgc(0.001, warm_up=64)'
    """
    inside: list[str] = []
    for number, field in enumerate(dataclasses.fields(choice)):  # type: ignore[arg-type]
        value = getattr(choice, field.name)
        is_default = value == field.default
        if not is_default or (number == 0 and not isinstance(value, bool | None)):
            is_next = len(inside) == number
            inside.append(_text(value) if is_next else f"{field.name}={_text(value)}")
    return f"{name}({', '.join(inside)})" if inside else name


def enter(name: str, thing: T, known: dict[str, T]) -> None:
    """Put something into a catalogue, and empty what is kept of what its names meant before."""
    known[name] = thing
    for empty in CACHES:
        empty()


def register(
    what: str,
    kind: type[T],
    base: type,
    known: dict[str, type[T]],
    reserved: Iterable[str] = (),
) -> None:
    """Add a choice that a user wrote to the catalogue, so that its name works as any other.

    ``kind`` is a frozen dataclass that inherits from ``base``, has a ``name``, and defaults for all
    parameters. Registering a class anew, as a notebook does whose cell runs again, replaces it.
    Raises InputError for anything else, and for words that are ``reserved`` for something else.
    """
    parameters = getattr(kind, "__dataclass_params__", None)
    require(
        isinstance(kind, type)
        and parameters is not None
        and parameters.frozen
        and issubclass(kind, base),
        f"{what} {kind!r} must be a frozen dataclass that inherits from {base.__name__}",
    )
    where, name = f"{what} {kind.__qualname__}", getattr(kind, "name", "")
    require(
        re.fullmatch(r"[a-z][a-z0-9._-]*", name) is not None and name not in ("none", *reserved),
        f"{where} has the name {name!r}, and needs one of small letters, digits, dots and dashes "
        f"that means nothing else",
    )
    abstract = sorted(getattr(kind, "__abstractmethods__", ()))
    require(not abstract, f"{where} does not define {', '.join(abstract)}")
    missing = [
        field.name
        for field in dataclasses.fields(kind)  # type: ignore[arg-type]
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    ]
    require(not missing, f"{where} needs a default for each parameter; give one to {missing}")
    owner = known.get(name, kind)
    require(
        (owner.__module__, owner.__qualname__) == (kind.__module__, kind.__qualname__),
        f"{where} has the name {name!r} of {owner.__qualname__}; choose another name",
    )
    enter(name, kind, known)


def register_entry(what: str, entry: Any, known: dict[str, Any]) -> None:
    """Add a row with a ``name`` to a catalogue of rows, so that its name works as any other.

    Registering an equal row again changes nothing. Raises InputError for the name of another row,
    and for names that are not of small letters, digits, dots and dashes.
    """
    name = entry.name
    require(
        re.fullmatch(r"[a-z0-9][a-z0-9._-]*", name) is not None and name != "none",
        f"{what} {name!r} needs a name of small letters, digits, dots and dashes",
    )
    require(
        known.get(name, entry) == entry,
        f"{what} {name!r} is registered with other choices; give yours another name",
    )
    enter(name, entry, known)


def called(what: str, function: Callable[..., T], *given: object) -> T:
    """Return what somebody's own function returns.

    Raises InputError for whatever it raises, with the line of it that did.
    """
    try:
        return function(*given)
    except DdlnbError:
        raise
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)[1:]
        own = getattr(getattr(function, "__code__", None), "co_filename", "")
        lines = [one for one in frames if one.filename == own] or frames
        where = f" ({lines[-1].filename}, line {lines[-1].lineno})" if lines else ""
        raise InputError(
            f"{what} raises {type(error).__name__}: {error}{where}; correct it"
        ) from error


def one_of(default: str, words: Iterable[str]) -> Any:
    """A field of a dataclass that is one of these words; what checks it is the dataclass."""
    return dataclasses.field(default=default, metadata={WORDS: tuple(words)})


def usage(kind: Any) -> str:
    """A name and its parameters as they are written, with their defaults and all words.

    >>> from ddlnb.training.gossip import Choco
    >>> usage(Choco)
    'choco(graph=ring|torus|complete, gamma=0.1, scale=1)'
    """
    inside = []
    for field in dataclasses.fields(kind):
        others = [word for word in field.metadata.get(WORDS, ()) if word != field.default]
        values = [] if field.default is dataclasses.MISSING else [_text(field.default), *others]
        inside.append("=".join([field.name, "|".join(values)] if values else [field.name]))
    return f"{kind.name}({', '.join(inside)})" if inside else str(kind.name)


def parts_of(text: str, separator: str) -> list[str]:
    """The text between separators that are not in brackets, without spaces around.

    >>> parts_of("local(8) + signsgd(1e+16)", "+")
    ['local(8)', 'signsgd(1e+16)']
    """
    parts, depth = [""], 0
    for letter in text:
        depth += (letter == "(") - (letter == ")")
        if letter == separator and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts]


def _arguments(inside: str) -> tuple[list[object], dict[str, object]]:
    """Return what stands in the brackets, by position and by name."""
    call = ast.parse(f"f({inside})", mode="eval").body
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
        raise ValueError("brackets do not match")
    named = {str(keyword.arg): _value(keyword.value) for keyword in call.keywords}
    if len(named) < len(call.keywords):
        raise ValueError("a parameter is given twice")
    return [_value(node) for node in call.args], named


def _value(node: ast.expr) -> object:
    if isinstance(node, ast.Tuple):
        return tuple(map(_value, node.elts))
    return node.id if isinstance(node, ast.Name) else ast.literal_eval(node)


def _of_type(value: object, hint: Any) -> object:
    """The value as one of this type. Raises TypeError if it is none."""
    if isinstance(hint, types.UnionType):
        for one in typing.get_args(hint):
            try:
                return _of_type(value, one)
            except TypeError:
                continue
    elif typing.get_origin(hint) is tuple:
        inner = typing.get_args(hint)
        if isinstance(value, tuple):
            each = inner[:1] * len(value) if inner[1:] == (...,) else inner
            if len(each) == len(value):
                return tuple(_of_type(part, one) for part, one in zip(value, each, strict=True))
    elif hint is bool and isinstance(value, str):
        if value.casefold() in TRUTH:
            return TRUTH[value.casefold()]
    elif hint is float and isinstance(value, int | float) and not isinstance(value, bool):
        if abs(value) <= sys.float_info.max:
            return float(value)
    elif hint is types.NoneType and value in (None, "none"):
        return None
    elif type(value) is hint:
        return value
    raise TypeError


def _text(value: object) -> str:
    if isinstance(value, tuple):
        return f"({', '.join(map(_text, value))}{',' * (len(value) == 1)})"
    if isinstance(value, float):
        return float.__repr__(value).removesuffix(".0")
    return str(value)


def _in_words(hint: Any) -> str:
    if isinstance(hint, types.UnionType):
        return " or ".join(map(_in_words, typing.get_args(hint)))
    if typing.get_origin(hint) is tuple:
        return f"a tuple of values, each {_in_words(typing.get_args(hint)[0])}"
    words = {bool: "true or false", int: "a whole number", float: "a finite number", str: "a word"}
    return words.get(hint, "None")


_LOADERS: dict[str, Callable[[], Any]] = {}


def supply(part: str, load: Callable[[], Any]) -> None:
    """Say how a part is loaded that the core asks for and an extension has.

    The core names parts, never extensions; `ddlnb/__init__.py` joins the two, and nothing is loaded
    before the core asks.

    >>> supply("greeting", lambda: "hello")
    >>> supplied("greeting"), is_supplied("greeting"), is_supplied("farewell")
    ('hello', True, False)
    """
    _LOADERS[part] = load


def supplied(part: str) -> Any:
    """Return a part that an extension has. Raises MissingPart where none that is here has it."""
    try:
        return _LOADERS[part]()
    except (KeyError, ImportError) as error:
        raise MissingPart(
            f"the {part} needs a part of ddlnb that is not here ({error}); install all of it"
        ) from error


def is_supplied(part: str) -> bool:
    """Return whether an extension that is here has this part."""
    try:
        return supplied(part) is not None
    except MissingPart:
        return False


def supplied_names(kind: str) -> list[str]:
    """Return the names of the parts of a kind that are supplied, without loading any.

    >>> supply("greeting short", lambda: "hi")
    >>> supplied_names("greeting")
    ['short']
    """
    return [part.removeprefix(f"{kind} ") for part in _LOADERS if part.startswith(f"{kind} ")]


def supplied_parts(kind: str) -> dict[str, Any]:
    """Return the parts of a kind that extensions which are here have, by name.

    >>> supply("greeting short", lambda: "hi")
    >>> supplied_parts("greeting")
    {'short': 'hi'}
    """
    parts = {name: f"{kind} {name}" for name in supplied_names(kind)}
    return {name: supplied(part) for name, part in parts.items() if is_supplied(part)}


def loader(package: str, **modules: str) -> Callable[[str], Any]:
    """Return the ``__getattr__`` of a package whose names are loaded from its modules on first use.

    Names that an extension adds to the package are supplied as ``PACKAGE NAME``.

    >>> import ddlnb.hardware
    >>> ddlnb.hardware.get_gpu("A100").name
    'A100-SXM4-80GB'
    """

    def load(name: str) -> Any:
        if name in supplied_names(package):
            return supplied(f"{package} {name}")
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(f"{package}.{modules[name]}"), name)

    return load

"""What a caller made, by its sources: a kept run is found again if none of it has changed.

A thing is pickled; functions and classes in it count by the files that they stand in, or, where a
notebook's cell defined them, by their lines or code and by what they use there.
"""

from __future__ import annotations

import ast
import dis
import hashlib
import inspect
import io
import pickle
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import suppress
from functools import cached_property, lru_cache, partial, partialmethod
from pathlib import Path
from types import CellType, CodeType, FunctionType
from typing import Any

from ddlnb.errors import InputError
from ddlnb.training.runs.train import PACKAGE


def fingerprint(thing: object) -> str:
    """Return a hash of a picklable thing and of the sources of all functions and classes in it.

    Raises InputError for what cannot be pickled.
    """
    stream = io.BytesIO()
    pickler = _Pickler(stream)
    try:
        pickler.dump(thing)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise InputError(
            f"{thing!r} cannot travel to other processes ({error}); make it of functions of a "
            f"module and functools.partial"
        ) from error
    digest = hashlib.sha256(stream.getvalue())
    for _, source in sorted(pickler.sources.items()):
        digest.update(source)
    return digest.hexdigest()


class _Pickler(pickle.Pickler):
    """A pickler that collects the source of everything that is pickled as a name only."""

    def __init__(self, stream: io.BytesIO):
        super().__init__(stream)
        self.sources: dict[str, bytes] = {}

    def reducer_override(self, thing: Any) -> Any:
        if inspect.isfunction(thing) or inspect.isclass(thing):
            name = f"{thing.__module__}.{thing.__qualname__}"
            self.sources[name] = _source(thing)
        return NotImplemented


def _source(thing: Any) -> bytes:
    """Return the whole file, since a function calls others, and what of the thing is in no file.

    With the files beside it that it imports, by their names, unless it is installed.
    """
    file = getattr(sys.modules.get(thing.__module__), "__file__", None)
    whole = b"".join(_files(Path(file), set())) if file and file.endswith(".py") else b""
    return whole + "\n".join(_outside(thing, file, thing.__module__, set())).encode()


INSTALLED = (
    *(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")),
    str(PACKAGE),
)


def _files(file: Path, seen: set[Path]) -> Iterator[bytes]:
    """Yield the contents of a file of Python, and of those beside it that it imports."""
    if file in seen or not file.is_file():
        return
    seen.add(file)
    text = file.read_bytes()
    yield text
    if str(file).startswith(INSTALLED):
        return
    names: list[str] = []
    with suppress(SyntaxError, ValueError):  # half edited: its bytes say enough
        for one in ast.walk(ast.parse(text)):
            if isinstance(one, ast.Import):
                names += [name.name for name in one.names]
            elif isinstance(one, ast.ImportFrom) and not one.level:
                names.append(one.module or "")
    for name in names:
        yield from _files(file.parent / f"{name}.py", seen)


PLAIN = (int, float, complex, str, bytes, type(None), type(...))
WRAPPED = {  # what has a function inside, and where
    staticmethod: ("__func__",),
    classmethod: ("__func__",),
    property: ("fget", "fset"),
    cached_property: ("func",),
    partial: ("func", "args", "keywords"),
    partialmethod: ("func", "args", "keywords"),
    type(lru_cache(len)): ("__wrapped__",),
}


def _outside(thing: Any, file: str | None, module: str, seen: set[int]) -> Iterator[str]:
    """Yield the lines or code of what was defined in a notebook's cell, and of what it uses there.

    Of a class its bases and all that it has; of a function what it finds by name, its defaults and
    the variables around it; of data what pickle writes; of what other modules have, the name.
    """
    if isinstance(thing, PLAIN):
        yield repr(thing)
        return
    if id(thing) in seen:
        return
    seen.add(id(thing))
    used: list[Any] = []
    if type(thing) in WRAPPED:
        used = [getattr(thing, name) for name in WRAPPED[type(thing)]]
    elif isinstance(thing, dict):
        used = [*thing.keys(), *thing.values()]
    elif isinstance(thing, list | tuple):
        used = [*thing]
    elif isinstance(thing, set | frozenset):
        yield repr(sorted("".join(_outside(one, file, module, set(seen))) for one in thing))
    elif inspect.isfunction(thing) or inspect.isclass(thing) or inspect.ismodule(thing):
        if inspect.ismodule(thing) or thing.__module__ != module:
            yield f"{getattr(thing, '__module__', '')}.{thing.__name__}"
        elif inspect.isclass(thing):
            members = {name: value for name, value in vars(thing).items() if name not in UNSAID}
            used = [*thing.__bases__, type(thing), *members, *members.values()]
        elif thing.__code__.co_filename != file:
            yield from _of_function(thing)
            used = [thing.__globals__.get(name) for name in sorted(_names(thing.__code__))]
            used += [thing.__defaults__, thing.__kwdefaults__, getattr(thing, "__wrapped__", None)]
            used += [cell.cell_contents for cell in thing.__closure__ or () if _is_full(cell)]
    else:
        used = [type(thing)]
        try:
            written = io.BytesIO()
            _Data(written).dump(thing)
            yield hashlib.sha256(written.getvalue()).hexdigest()
        except Exception:  # whatever somebody's own object raises
            used.append(getattr(thing, "__dict__", None))
    for one in used:
        yield from _outside(one, file, module, seen)


class _Data(pickle.Pickler):
    """A pickler that writes a tensor as its numbers: torch writes where its memory is, too."""

    def reducer_override(self, thing: Any) -> Any:
        import torch

        if not isinstance(thing, torch.Tensor):
            return NotImplemented
        flat = thing.detach().cpu().contiguous().reshape(-1)
        return bytes, (flat.view(torch.uint8).numpy().tobytes() + repr(thing.shape).encode(),)


UNSAID = ("__doc__", "__weakref__", "__dict__", "__abstractmethods__", "_abc_impl")


def _is_full(cell: CellType) -> bool:
    """Return whether a variable around a function is there already."""
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False


def _of_function(function: FunctionType) -> Iterator[str]:
    """Yield its lines, or its code where nobody kept them."""
    try:
        yield inspect.getsource(function)
    except (OSError, TypeError):
        yield repr(_code(function.__code__))


def _names(code: CodeType) -> set[str]:
    """Return the names that code looks up, and that functions inside of it do; no attributes."""
    inside = [one for one in code.co_consts if isinstance(one, CodeType)]
    own = {
        str(one.argval)
        for one in dis.get_instructions(code)
        if one.opname in ("LOAD_GLOBAL", "LOAD_NAME")
    }
    return own.union(*map(_names, inside))


def _code(code: Any) -> Any:
    """Return what code does, without where it stands."""
    if isinstance(code, frozenset):  # in an order that every process has
        return sorted(map(repr, code))
    if not isinstance(code, CodeType):
        return code
    return code.co_code, code.co_names, tuple(map(_code, code.co_consts))

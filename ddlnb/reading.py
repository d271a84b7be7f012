"""The door for bytes from outside: files that others may have written are read here alone.

A reader works inside ``reading(place)``: whatever odd bytes make go wrong there, from UTF-8 to a
key that is missing, comes out as one of our errors that names the place. Limits keep a file from
filling memory or time: its bytes, also of what is packed; how deeply it nests; what aliases of
YAML unfold to. YAML has no tags but those of plain values.
"""

from __future__ import annotations

import gzip
import json
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from io import BufferedReader
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ddlnb.errors import DdlnbError, InputError, MissingPart, UnknownName, reason_of

if TYPE_CHECKING:
    from pydantic import BaseModel, ValidationError

MOST_BYTES = 64 << 20  # of a file, once it is unpacked; readers of traces and tables allow more
MOST_YAML_BYTES = 1 << 20  # parsed at less than 1 MB/s
MOST_LEVELS = 64  # of lists in lists
LONGEST_REASON = 300  # characters of what a parser says
GZIP, ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
WIDEST = 128 << 20  # bytes that zstd may look back, as its own program allows with --long
PLAIN_TAGS = ("null", "bool", "int", "float", "str", "seq", "map")
Schema = TypeVar("Schema", bound="BaseModel")


@contextmanager
def reading(
    place: object, way_out: str = "correct it", error: type[DdlnbError] = InputError
) -> Iterator[None]:
    """Turn whatever is raised in the block into ``error``, which names the place and the way out.

    Errors of ours pass as they are.

    >>> with reading("'mine.json'"):
    ...     {}["seconds"]
    Traceback (most recent call last):
    ddlnb.errors.InputError: 'mine.json' cannot be read: it lacks 'seconds'; correct it
    """
    try:
        yield
    except DdlnbError:
        raise
    except MemoryError as problem:  # which says nothing of the file
        told = f"{place} cannot be read: no memory is left; give this process more"
        raise error(told) from problem
    except Exception as problem:  # of any class: parsers, and what looks into their results
        raise error(f"{place} cannot be read: {_reason(problem)}; {way_out}") from problem


def _reason(problem: Exception) -> str:
    if isinstance(problem, RecursionError):
        return "it is nested too deeply"
    if isinstance(problem, KeyError):
        return f"it lacks {problem.args[0]!r}" if problem.args else "it lacks a key"
    if isinstance(problem, UnicodeDecodeError):
        return f"byte {problem.start} is not UTF-8, the encoding in which it has to be saved"
    reason = reason_of(problem)
    is_plain = isinstance(problem, OSError | ValueError | EOFError)
    return (reason if is_plain else f"{type(problem).__name__}: {reason}")[:LONGEST_REASON]


def read_bytes(
    path: str | Path,
    most: int = MOST_BYTES,
    way_out: str = "check the path",
    error: type[DdlnbError] = InputError,
) -> bytes:
    """Return what a file holds, unpacked if it is gzip or zstd.

    Raises ``error`` for one that cannot be read or that holds more bytes than ``most``.
    """
    with reading(path, way_out, error):
        with Path(path).open("rb") as raw, _unpacked(raw, Path(path).suffix) as stream:
            content = stream.read(most + 1)
        _require_at_most(len(content), most, path, error)
    return content


def pieces_of(
    path: str | Path, most: int, way_out: str, error: type[DdlnbError] = InputError
) -> Iterator[bytes]:
    """Yield what a file holds, unpacked, in pieces; of a packed one that was cut, what is left.

    Raises as `read_bytes` does.
    """
    seen = 0
    with (
        reading(path, way_out, error),
        Path(path).open("rb") as raw,
        _unpacked(raw, Path(path).suffix) as stream,
    ):
        try:
            while part := stream.read1(1 << 22):
                seen += len(part)
                _require_at_most(seen, most, path, error)
                yield part
        except EOFError:
            if not seen:
                raise


def _require_at_most(seen: int, most: int, path: object, error: type[DdlnbError]) -> None:
    if seen > most:
        raise error(f"{path} holds more than {most:,} bytes; give a smaller file")


def _unpacked(raw: BufferedReader, suffix: str) -> Any:
    """Return a stream of what a file holds. Raises MissingPart where nothing here unpacks zstd."""
    if raw.peek(2)[:2] == GZIP or suffix == ".gz":
        return gzip.GzipFile(fileobj=raw)
    if raw.peek(4)[:4] != ZSTD and suffix != ".zst":
        return raw
    if sys.version_info >= (3, 14):
        return import_module("compression.zstd").ZstdFile(raw)
    try:
        packer = import_module("zstandard").ZstdDecompressor(max_window_size=WIDEST)
    except ImportError:
        raise MissingPart(
            "a file packed by zstd needs the package zstandard; install 'ddlnb[zstd]', or unpack "
            "it with `zstd -d`"
        ) from None
    return packer.stream_reader(raw, read_across_frames=True)


def read_text(
    path: str | Path,
    most: int = MOST_BYTES,
    way_out: str = "check the path",
    error: type[DdlnbError] = InputError,
) -> str:
    """Return the text of a file in UTF-8. Raises as `read_bytes` does."""
    content = read_bytes(path, most, way_out, error)
    with reading(path, way_out, error):
        return content.decode("utf-8-sig")


def json_of(
    text: str,
    place: object,
    way_out: str = "correct it",
    error: type[DdlnbError] = InputError,
) -> Any:
    """Return what a JSON text says. Raises ``error`` that names the place.

    >>> json_of("[" * 100_000, "'mine.json'")
    Traceback (most recent call last):
    ddlnb.errors.InputError: 'mine.json' cannot be read: it is nested too deeply; correct it
    """
    with reading(place, way_out, error):
        try:
            found = json.loads(text)
        except json.JSONDecodeError as problem:
            raise error(f"{place} is not JSON: {problem}; {way_out}") from problem
        _require_bounded(found, len(text))
    return found


def read_json(
    path: str | Path, way_out: str = "check it", error: type[DdlnbError] = InputError
) -> Any:
    """Return what a JSON file says. Raises ``error`` that names it."""
    return json_of(read_text(path, MOST_BYTES, way_out, error), path, way_out, error)


def toml_of(text: str, place: object) -> dict[str, Any]:
    """Return what a TOML text says. Raises InputError that names the place."""
    import tomllib

    with reading(place):
        found = tomllib.loads(text)
        _require_bounded(found, len(text))
    return found


def xml_of(text: str, place: object) -> list[tuple[int, str, dict[str, str]]]:
    """Return the elements of an XML text in order: how deep each is, its tag and its attributes.

    Raises InputError that names the place for other texts, and for those with a DOCTYPE, whose
    entities could unfold to more than was written.
    """
    from xml.parsers.expat import ParserCreate

    found: list[tuple[int, str, dict[str, str]]] = []
    within: list[str] = []

    def begins(tag: str, attributes: dict[str, str]) -> None:
        if len(within) >= MOST_LEVELS:
            raise RecursionError
        found.append((len(within), tag, attributes))
        within.append(tag)

    def declares(*_: object) -> None:
        raise ValueError("it has a DOCTYPE, which may declare entities")

    parser = ParserCreate()
    parser.StartElementHandler, parser.StartDoctypeDeclHandler = begins, declares
    parser.EndElementHandler = lambda _: within.pop()
    with reading(place):
        parser.Parse(text, True)
    return found


def yaml_of(text: str, place: object) -> Any:
    """Return what a YAML text says, in plain values; a date is a text.

    Raises InputError that names the place for other texts, other tags, a key that is written twice,
    and aliases that unfold to more than was written.
    """
    import yaml

    if len(text) > MOST_YAML_BYTES:
        raise InputError(f"{place} holds more than {MOST_YAML_BYTES:,} bytes; write less")
    with reading(place):
        try:
            _require_shallow(yaml.parse(text, _yaml_loader()))
            found = yaml.load(text, _yaml_loader())
        except yaml.YAMLError as error:
            raise InputError(f"{place} is not YAML: {reason_of(error)}; correct it") from error
        except TwiceError as error:
            raise InputError(f"{place} {error}; write it once") from error
        _require_bounded(found, len(text))
    return found


def read_yaml(path: Path, schema: type[Schema]) -> Schema:
    """Return what a YAML file holds, validated by a pydantic model.

    Raises InputError that names the file, the key and the first rule that is broken.
    """
    from pydantic import ValidationError

    found = yaml_of(read_text(path, MOST_YAML_BYTES), path)
    if not isinstance(found, dict):
        keys = [name for name, field in schema.model_fields.items() if field.is_required()]
        raise InputError(
            f"{path} {'is empty' if found is None else 'holds no keys'}; write one key and its "
            f"value a line, such as {', '.join(f'{key}: ...' for key in keys or ('key',))}"
        )
    with reading(path):
        try:
            return schema.model_validate(found)
        except ValidationError as error:
            raise InputError(f"{path}: {first_problem(error, schema)}") from error


def _require_shallow(events: Iterable[Any]) -> None:
    """Raise RecursionError for events of YAML that nest too deeply for the parser's own stack."""
    depth = 0
    for event in events:
        name = type(event).__name__
        depth += name.endswith("StartEvent") - name.endswith("EndEvent")
        if depth > MOST_LEVELS:
            raise RecursionError


def _require_bounded(found: Any, length: int) -> None:
    """Raise ValueError for lists that nest too deeply, or hold more than their text can say."""
    level, seen = [found], 0
    for _ in range(MOST_LEVELS):
        level = [
            inner
            for one in level
            if isinstance(one, dict | list)
            for inner in (one.values() if isinstance(one, dict) else one)
        ]
        seen += len(level)
        if seen > length:  # every value takes a character
            raise ValueError("its aliases unfold to more than it says")
        if not level:
            return
    raise RecursionError


class TwiceError(ValueError):
    """A key of YAML that is written twice."""


@cache
def _yaml_loader() -> Any:
    """Return a loader of plain YAML that refuses a key that is written twice."""
    import yaml

    quickest = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    plain = {f"tag:yaml.org,2002:{name}" for name in PLAIN_TAGS} | {None}

    class Loader(quickest):  # type: ignore[misc, valid-type]
        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            lines: dict[str, int] = {}
            for key, _ in node.value:
                line = key.start_mark.line + 1
                if isinstance(key.value, str) and lines.setdefault(key.value, line) != line:
                    raise TwiceError(
                        f"has the key {key.value!r} in line {lines[key.value]} and in line {line}"
                    )
            return super().construct_mapping(node, deep)

    Loader.yaml_constructors = {
        tag: made for tag, made in quickest.yaml_constructors.items() if tag in plain
    }
    Loader.yaml_implicit_resolvers = {
        first: [(tag, form) for tag, form in forms if not tag.endswith(":timestamp")]
        for first, forms in quickest.yaml_implicit_resolvers.items()
    }
    return Loader


def first_problem(error: ValidationError, schema: type[BaseModel]) -> str:
    """Return the first problem that pydantic found as one sentence that names the key.

    Unknown keys come first: a misspelt key is also a missing one.
    """
    unknown = ("extra_forbidden", "unexpected_keyword_argument")  # of a model, of a dataclass
    problem = min(error.errors(), key=lambda one: one["type"] not in unknown)
    *above, key = [one + 1 if isinstance(one, int) else one for one in problem["loc"]] or ["file"]
    where = "".join(f"{one} " for one in above)
    if problem["type"] in unknown and not above:
        return str(UnknownName("key", key, schema.model_fields))
    if problem["type"] == "missing":
        return f"{where}lacks the key {key!r}; add it"
    if problem["type"] in unknown:
        return f"{where}has the unknown key {key!r}; remove it"
    raised = problem.get("ctx", {}).get("error")
    rule = str(raised) if raised else f"{problem['input']!r}: {problem['msg'].lower()}"
    if problem["type"] in ("int_type", "float_type"):
        rule = (
            f"{problem['input']!r} must be a {'whole ' * problem['type'].startswith('int')}number"
        )
    return f"{where}{key} {rule}"

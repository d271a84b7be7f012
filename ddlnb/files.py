"""Files that are written whole or not at all, and files of data that are validated when read."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from ddlnb.errors import InputError, NotWritten, UnknownName, reason_of

if TYPE_CHECKING:
    from pydantic import BaseModel, ValidationError

PICTURES = (".png", ".svg", ".pdf")  # kinds that open elsewhere
PAGE = 4096  # bytes: the least that a disk has room for, if it has any
Schema = TypeVar("Schema", bound="BaseModel")


def write_atomically(path: str | Path, content: str | bytes) -> Path:
    """Write the content, text as UTF-8, and return the path.

    A crash or a full disk leaves the old file as it was. Raises NotWritten, which says why.
    """
    try:
        return _written(Path(path), content)
    except OSError as error:
        reason = error.strerror or str(error)
        raise NotWritten(
            f"{path} cannot be written: {reason}; make room or choose another place"
        ) from error


def _written(path: Path, content: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    part = Path(name)
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(content.encode() if isinstance(content, str) else content)
            stream.flush()
            os.fsync(stream.fileno())
        part.chmod(0o644)
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    return path


def require_writable_file(path: str | Path, example: str) -> None:
    """Make the file's folder. Raises InputError if no file of that name can be written there.

    ``example`` is a file name that the error suggests. If it is a picture, the path names one, too.
    """
    if Path(path).is_dir():
        raise InputError(
            f"{str(path)!r} is a folder; name a file in it, such as {str(Path(path, example))!r}"
        )
    if Path(example).suffix in PICTURES and Path(path).suffix not in PICTURES:
        raise InputError(
            f"picture {str(path)!r} must have a name in {', '.join(PICTURES)}, such as {example!r}"
        )
    require_writable(Path(path).parent)


def require_writable(folder: str | Path) -> None:
    """Make the folder, with those above it. Raises InputError if no file can be written there.

    A page is really written: on a full disk an empty file can still be made.
    """
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as probe:
            probe.write(bytes(PAGE))
            probe.flush()
            os.fsync(probe.fileno())
    except OSError as error:
        raise InputError(
            f"no file can be written in {str(folder)!r} ({error.strerror}); name another folder"
        ) from error


def read_yaml(path: Path, schema: type[Schema]) -> Schema:
    """Return what a YAML file holds, validated by a pydantic model.

    Raises InputError that names the file, the key and the first rule that is broken.
    """
    import yaml
    from pydantic import ValidationError

    try:
        found = yaml.safe_load(path.read_text())
        if not isinstance(found, dict):
            keys = [name for name, field in schema.model_fields.items() if field.is_required()]
            raise InputError(
                f"{path} {'is empty' if found is None else 'holds no keys'}; write one key and its "
                f"value a line, such as {', '.join(f'{key}: ...' for key in keys or ('key',))}"
            )
        return schema.model_validate(found)
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read: {reason_of(error)}; check the path") from error
    except yaml.YAMLError as error:
        raise InputError(f"{path} is not YAML: {reason_of(error)}; correct it") from error
    except ValidationError as error:
        raise InputError(f"{path}: {first_problem(error, schema)}") from error


def first_problem(error: ValidationError, schema: type[BaseModel]) -> str:
    """Return the first problem that pydantic found as one sentence that names the key.

    Unknown keys come first: a misspelt key is also a missing one.
    """
    problem = min(error.errors(), key=lambda one: one["type"] != "extra_forbidden")
    *above, key = [one + 1 if isinstance(one, int) else one for one in problem["loc"]] or ["file"]
    where = "".join(f"{one} " for one in above)
    if problem["type"] == "extra_forbidden" and not above:
        return str(UnknownName("key", key, schema.model_fields))
    if problem["type"] == "missing":
        return f"{where}lacks the key {key!r}; add it"
    if problem["type"] == "extra_forbidden":
        return f"{where}has the unknown key {key!r}; remove it"
    raised = problem.get("ctx", {}).get("error")
    rule = str(raised) if raised else f"{problem['input']!r}: {problem['msg'].lower()}"
    return f"{where}{key} {rule}"

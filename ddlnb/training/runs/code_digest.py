"""Identify the code that made a run: kept runs count only if the same code would make them."""

from __future__ import annotations

import hashlib
import inspect
import io
import pickle
import sys
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import ddlnb
from ddlnb.errors import InputError

PACKAGE = Path(ddlnb.__file__).parent
ALGORITHMS = (
    *("training", "compression"),
    *("choices.py", "seeding.py", "plans/requests.py", "plans/server_rules.py"),
    *("workloads/tasks.py", "workloads/small_models.py"),
)


@cache
def made_by() -> str:
    """Return versions and the hash of the sources that define training: ``ddlnb 0.1.0, torch ...``.

    Changes of sources during the process are not seen.
    """
    versions = [f"{name} {_version(name)}" for name in ("ddlnb", "torch", "numpy")]
    return ", ".join([*versions, f"sources {source_hash(PACKAGE)}"])


def source_hash(package: Path) -> str:
    """Return the hash of names and contents of the files of ALGORITHMS below this folder."""
    digest = hashlib.sha256()
    for part in ALGORITHMS:
        source = package / part
        for path in sorted(source.rglob("*.py")) if source.is_dir() else [source]:
            digest.update(f"{path.relative_to(package)}\n".encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


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
    """Return the whole file, since a function calls others; in a notebook, its own lines."""
    file = getattr(sys.modules.get(thing.__module__), "__file__", None)
    if file and file.endswith(".py"):
        return Path(file).read_bytes()
    try:
        return inspect.getsource(thing).encode()
    except (OSError, TypeError):  # built in: the versions identify it
        return b""


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"

"""Files that are written whole or not at all, and places where that is possible."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from ddlnb.errors import InputError


def write_atomically(path: str | Path, content: str | bytes) -> Path:
    """The path, now holding the content, text as UTF-8.

    A crash or a full disk leaves the old file as it was.
    """
    path = Path(path)
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


def require_writable(folder: str | Path) -> None:
    """Make the folder, with those above it. Raises InputError if no file can be written there."""
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise InputError(
            f"no file can be written in {str(folder)!r} ({error.strerror}); name another folder"
        ) from error

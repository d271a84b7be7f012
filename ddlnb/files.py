"""Files: where they are, how they are written and locked, and where results come from.

Folders are absolute, so that nothing depends on the working directory but where an installed ddlnb
builds. A file is written whole or not at all; `ddlnb.reading` reads them. Provenance says on what a
result was measured, and with which software.
"""

from __future__ import annotations

import errno
import fcntl
import os
import platform
import secrets
import shutil
import socket
import subprocess
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import cache
from glob import escape
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import BinaryIO, TextIO

from ddlnb.errors import InputError, NotWritten, ResultsError, require

PACKAGE = Path(__file__).resolve().parent
ROOT = PACKAGE.parent  # the checkout, or the folder into which ddlnb was installed
INSTALLED = (PACKAGE / "data").is_dir()  # a wheel has data and notebooks inside the package
DATA = (PACKAGE if INSTALLED else ROOT) / "data"
CALIBRATION = DATA / "calibration"
CLUSTERS = DATA / "clusters"
HARDWARE = DATA / "hardware"
MODELS = DATA / "models"
PROFILES = DATA / "profiles"
PUBLISHED = DATA / "published"
SURVEY_NOTES = DATA / "text" / "survey_notes.txt"
DIGITS = DATA / "digits" / "digits.csv.gz"
NOTEBOOKS = (PACKAGE if INSTALLED else ROOT) / "notebooks"
BUILD = (Path.cwd() if INSTALLED else ROOT) / "build"
PICTURES = (".png", ".svg", ".pdf")  # kinds that open elsewhere
WITHOUT_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)  # what their file systems say
PAGE = 4096  # bytes: the least that a disk has room for, if it has any
OWNER = "owner"  # the file in a temporary folder that its process locks as long as it lives
RECORDED = ("ddlnb", "torch", "numpy", "ipyparallel", "pyzmq")  # in provenance


def write_atomically(path: str | Path, content: str | bytes) -> Path:
    """Write the content, text as UTF-8, and return the path.

    A crash or a full disk leaves the old file as it was; what a writer that was killed has left
    beside it, the next one removes. A link stays one, a file keeps who may read it, and a device or
    a pipe takes the bytes as they come. Raises NotWritten, which says why.
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
    data, target = content.encode() if isinstance(content, str) else content, target_of(path)
    if is_stream(path):
        path.write_bytes(data)
        return path
    _remove_parts(target)
    part, stream = _part(target)
    try:
        with stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
            if target.exists():
                shutil.copymode(target, part)
            part.replace(target)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    return path


def target_of(path: str | Path) -> Path:
    """Return the file that a path leads to, through links; one that is not there yet, too."""
    return Path(os.path.realpath(path))


def is_stream(path: str | Path) -> bool:
    """Return whether this is a device or a pipe, which takes bytes and keeps none."""
    return Path(path).exists() and not Path(path).is_file() and not Path(path).is_dir()


def _part(path: Path) -> tuple[Path, BinaryIO]:
    """Make a file beside the path, which is locked as long as its writer lives."""
    while True:
        part = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
        stream = part.open("xb")
        with suppress(OSError):  # a file system without locks: nobody removes it, either
            fcntl.flock(stream, fcntl.LOCK_EX)
        if os.fstat(stream.fileno()).st_nlink:
            return part, stream
        stream.close()  # another process took it for left before it was locked


def _remove_parts(path: Path) -> None:
    """Remove the parts of the file whose writers were killed: nobody locks them any more."""
    for part in path.parent.glob(f".{escape(path.name)}.*.part"):
        with suppress(OSError), part.open("rb") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            part.unlink()


def require_writable_file(path: str | Path, example: str) -> None:
    """Raise InputError if no file of that name can be written, as where its folder is not there.

    ``example`` is a file name that the error suggests. If it is a picture, the path names one, too.
    """
    folder = Path(path).parent
    require(
        not Path(path).is_dir(),
        f"{str(path)!r} is a folder; name a file in it, such as {str(Path(path, example))!r}",
    )
    require(
        Path(example).suffix not in PICTURES or Path(path).suffix in PICTURES,
        f"picture {str(path)!r} must have a name in {', '.join(PICTURES)}, such as {example!r}",
    )
    require(
        folder.exists(),
        f"there is no folder {str(folder)!r} for {Path(path).name!r}; make it, or name another",
    )
    if not is_stream(path):
        require_writable(folder)


def require_writable(folder: str | Path) -> None:
    """Make the folder, with those above it. Raises InputError if no file can be written there.

    A page is really written: on a full disk an empty file can still be made.
    """
    require(
        Path(folder).parts[:1] != ("~",),
        f"folder {str(folder)!r} begins with ~, which a shell expands and Python does not; give "
        f"{os.path.expanduser(folder)!r}",  # noqa: PTH111 - pathlib's raises without a home
    )
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


@contextmanager
def held(path: str | Path | None) -> Iterator[None]:
    """Keep other processes from measuring into the same file; None is no file.

    Two measurements at once would run all twice, and time each other. The kernel holds the lock, on
    a file beside the results, and drops it when its process ends, however it ends. Raises
    ResultsError that names who holds it. Where the file system knows no locks, a warning says so.
    """
    if path is None:
        yield
        return
    from filelock import FileLock, Timeout

    beside = lock_path(path)
    lock = FileLock(beside)
    since = datetime.now().astimezone().isoformat(sep=" ", timespec="seconds")
    try:
        lock.acquire(blocking=False)
        beside.write_text(f"process {os.getpid()} on {socket.gethostname()} since {since}\n")
    except Timeout:
        holder = "another process"
        with suppress(FileNotFoundError):  # it may have ended meanwhile
            holder = beside.read_text(errors="replace").strip() or holder
        raise ResultsError(
            f"{path} is being written by {holder}; wait until it has ended, or write into another "
            f"file"
        ) from None
    except OSError as error:
        if error.errno not in WITHOUT_LOCKS:
            raise NotWritten(f"{beside} cannot be made: {error.strerror}") from error
        warnings.warn(
            f"{beside} cannot be locked ({error.strerror}): start no second measurement into "
            f"{Path(path).name}",
            UserWarning,
            stacklevel=3,
        )
    try:
        yield
    finally:
        beside.unlink(missing_ok=True)  # while it is locked: nobody can hold one that is gone
        lock.release()


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """Yield a folder of this process alone, which is removed at the end of the block.

    After a process that was killed, the next command removes it (see ddlnb/launch/leftovers.py).
    """
    made = tempfile.TemporaryDirectory(
        prefix=f"ddlnb-{secrets.token_hex(6)}-", ignore_cleanup_errors=True
    )
    with made as folder, claim(Path(folder)):
        yield Path(folder)


def claim(folder: Path) -> TextIO:
    """Return a file of the folder that names this machine, locked until it is closed.

    The kernel closes it when this process ends, however it ends.
    """
    claimed = (folder / OWNER).open("w", buffering=1)  # line by line
    with suppress(OSError):  # a file system without locks: the folder is never taken for left
        fcntl.flock(claimed, fcntl.LOCK_EX)
    claimed.write(f"{platform.node()}\n")
    return claimed


def is_abandoned(folder: Path) -> bool:
    """Return whether this user's process that claimed the folder here is dead."""
    with suppress(OSError):
        if folder.lstat().st_uid == os.geteuid():  # of others not even a pipe is opened
            with (folder / OWNER).open() as claimed:
                fcntl.flock(claimed, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return claimed.read().strip() == platform.node()
    return False


def abandoned() -> list[Path]:
    """Return the temporary folders that dead processes of this user have left on this machine."""
    return [one for one in Path(tempfile.gettempdir()).glob("ddlnb-*") if is_abandoned(one)]


def lock_path(path: str | Path) -> Path:
    """Return the path of the file that is locked while somebody measures into this one."""
    file = target_of(path)
    return file.with_name(f".{file.name}.lock")


@cache
def machine() -> str:
    """Return the processor and the number of cores, such as ``'Xeon Gold 6230, 2 cores'``."""
    return f"{processor()}, {cores()} cores"


def processor() -> str:
    """Return the name of the processor."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


JOBS_VARIABLE = "DDLNB_JOBS"  # how many trainings go on side by side, by default one a core


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@cache
def versions() -> str:
    """Return the versions of Python and of the packages that can change a result."""
    found = [f"python {platform.python_version()}"]
    for package in RECORDED:
        try:
            found.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            continue
    return "; ".join(found)


@cache
def commit() -> str:
    """Return the checkout's short commit, with ``+`` if files differ from it; empty outside git."""
    with suppress(OSError, subprocess.SubprocessError):
        return git_said(ROOT, "rev-parse", "--short", "HEAD") + changed_in(ROOT)
    return ""


def changed_in(folder: Path, name: str = ".") -> str:
    """Return ``+`` if files of a folder differ from their commit, else nothing."""
    said = git_said(folder, "status", "--porcelain", "--untracked-files=no", "--", name)
    return "+" if said else ""


def git_said(folder: Path, *words: str) -> str:
    """Return what git prints in a folder. Raises OSError and subprocess.SubprocessError."""
    command = ["git", "-C", str(folder), *words]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=10)
    return done.stdout.strip()


def provenance() -> dict[str, str]:
    """Return the columns machine, versions, commit and time (UTC) of a results row."""
    now = datetime.now(UTC).isoformat(timespec="seconds")
    return {"machine": machine(), "versions": versions(), "commit": commit(), "time": now}

"""Odd bytes through a reader: what it raises, how long it takes, how much memory it fills."""

from __future__ import annotations

import random
import resource
import signal
import sys
import tempfile
import time
import traceback
import warnings
from dataclasses import dataclass, field
from pathlib import Path

from ddlnb.errors import DdlnbError
from ddlnb.training.runs.train import PACKAGE
from tests.fuzz.mutations import mutated
from tests.fuzz.readers import Reader

MOST_MEGABYTES = 500  # that the process may grow by
LONGEST_SECONDS = 5.0  # of this process, whatever else the machine does


WATCHED = 100  # inputs of which it is noted through which of our files they go


class _TooLong(BaseException):
    pass


@dataclass
class Played:
    """What a reader did with many inputs; ``foreign`` and ``slow`` say which went wrong."""

    name: str
    inputs: int = 0
    read: int = 0
    refused: int = 0
    foreign: dict[str, str] = field(default_factory=dict)
    slow: list[int] = field(default_factory=list)
    longest_seconds: float = 0.0
    megabytes: float = 0.0
    sources: set[str] = field(default_factory=set)  # files of ours that inputs went through

    @property
    def good(self) -> bool:
        """Return whether nothing went wrong."""
        return not self.foreign and not self.slow and self.megabytes < MOST_MEGABYTES


def play(name: str, reader: Reader, inputs: int, seed: int = 1, first: int = 0) -> Played:
    """Return what the reader did; input n depends on the seed, the name and n only."""
    found = Played(name)
    seeds = reader.seeds()
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        path = Path(folder, reader.file or "words")
        for good in seeds:  # is read; and what is imported and prepared is no input's
            _given(reader, good, path)
        if not first:  # what goes on has them
            found.sources = _sources(name, reader, seeds, path, seed)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for number in range(first, first + inputs):
            chance = random.Random(f"{seed} {name} {number}")
            _one(reader, mutated(chance.choice(seeds), chance), path, number, found)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    found.megabytes = grown / 1024
    return found


def _sources(name: str, reader: Reader, seeds: list[bytes], path: Path, seed: int) -> set[str]:
    """Return the files of ours whose functions run for good inputs and for the first odd ones."""
    files: set[str] = set()
    odd = [random.Random(f"{seed} {name} {number}") for number in range(WATCHED)]
    inputs = [*seeds, *(mutated(chance.choice(seeds), chance) for chance in odd)]
    for number, content in enumerate(inputs):
        sys.setprofile(lambda frame, *_: files.add(frame.f_code.co_filename))
        try:
            _one(reader, content, path, number, Played(name))
        finally:
            sys.setprofile(None)
    ours = (Path(file) for file in files if file.startswith(f"{PACKAGE}/"))
    return {str(file.relative_to(PACKAGE)) for file in ours}


def _one(reader: Reader, odd: bytes, path: Path, number: int, found: Played) -> None:
    found.inputs += 1
    begin = time.process_time()
    signal.signal(signal.SIGPROF, _ring)
    signal.setitimer(signal.ITIMER_PROF, LONGEST_SECONDS)
    try:
        _given(reader, odd, path)
        found.read += 1
    except DdlnbError as error:
        found.refused += 1
        str(error).encode()  # as it is written to a terminal
    except _TooLong:
        found.slow.append(number)
    except Exception as error:
        ours = [f for f in traceback.extract_tb(error.__traceback__) if "/ddlnb/" in f.filename]
        at = f"{Path(ours[-1].filename).name}:{ours[-1].lineno} " if ours else ""
        found.foreign.setdefault(f"{at}{type(error).__name__}", f"input {number}: {error}"[:200])
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    found.longest_seconds = max(found.longest_seconds, time.process_time() - begin)


def _given(reader: Reader, content: bytes, path: Path) -> None:
    if reader.file:
        path.write_bytes(content)
        reader.read(path)
    else:
        reader.read(content.decode(errors="surrogateescape"))


def _ring(*_: object) -> None:
    raise _TooLong


def row(one: Played) -> dict[str, object]:
    """Return the line of a table."""
    return {
        "reader": one.name,
        "inputs": one.inputs,
        "read": one.read,
        "refused": one.refused,
        "foreign": "; ".join(one.foreign),
        "over_5_seconds": len(one.slow),
        "longest_seconds": round(one.longest_seconds, 3),
        "grown_megabytes": round(one.megabytes),
        "sources": " ".join(sorted(one.sources)),
    }

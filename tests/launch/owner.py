"""A process that owns ranks, to be killed: what it leaves behind is seen from here."""

import contextlib
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import psutil


class Owner:
    """A script that owns ranks, and a look at everything that it started."""

    def __init__(self, folder: Path, script: str):
        self.mark = uuid.uuid4().hex
        self.home = folder / "home"
        self.temporary = folder / "tmp"
        self.home.mkdir(parents=True)
        self.temporary.mkdir()
        self.process = subprocess.Popen(
            [sys.executable, "-c", script],
            env=os.environ
            | {"OWNER": self.mark, "HOME": str(self.home), "TMPDIR": str(self.temporary)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def read_until(self, word: str) -> str:
        lines = []
        for line in self.process.stdout:
            lines.append(line)
            if word in line:
                return "".join(lines)
        raise AssertionError(f"no {word!r} in {''.join(lines)}")

    def left(self) -> list[str]:
        """Live processes that inherited its environment, and its files but for torch's cache."""
        files = (*self.temporary.iterdir(), *self.home.iterdir())
        found = [str(path) for path in files if not path.name.startswith("torchinductor_")]
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.environ().get("OWNER") == self.mark:
                    found.append(" ".join(process.cmdline()) or process.status())
        return found

    def assert_nothing_left(self, within_seconds: float) -> None:
        self.process.wait(within_seconds)
        self.process.stdout.close()
        wait_until(lambda: not self.left(), within_seconds)
        assert not self.left()


def wait_until(condition: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.1)

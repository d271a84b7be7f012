"""Where faults happen: ranks that many of them share, and a look at what is left behind."""

import contextlib
import multiprocessing.util
import os
import subprocess
import tempfile
import time
import uuid
from pathlib import Path
from typing import Any

import psutil

from ddlnb.engines.settings import MEASURING
from ddlnb.errors import DdlnbError
from ddlnb.launch import leftovers
from ddlnb.launch.ranks import Ranks
from ddlnb.launch.reaper import TOKEN_VARIABLE
from tests.faults.sweep import SERVERS, WORKERS, Sweep

MARK = "DDLNB_FAULTS"
NETWORK = "100Mb/s 1ms"
LEFT_SECONDS = 10.0  # after which whatever is still there was left behind
HELPERS = ("multiprocessing.forkserver", "multiprocessing.resource_tracker")
SHARED_MEMORY = Path("/dev/shm")


class Stage:
    """Ranks on this machine and on an emulated network, started when first needed.

    Everything that is started from here inherits a mark, and a folder for temporary files.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        self.temporary = folder / "tmp"
        self.temporary.mkdir(parents=True)
        self.mark = uuid.uuid4().hex
        multiprocessing.util.get_temp_dir()  # elsewhere, and removed by itself
        self._outside = tempfile.gettempdir()
        os.environ |= {
            MARK: self.mark,
            "TMPDIR": str(self.temporary),
            "TORCHINDUCTOR_CACHE_DIR": str(folder / "torch"),  # which torch keeps on purpose
        }
        tempfile.tempdir = None  # to be found anew
        self._shared_memory = set(SHARED_MEMORY.iterdir())
        self._network = _namespaces()
        self._ranks: dict[str, Ranks] = {}
        self._services: dict[Path, Path] = {}
        self._used: list[Any] = []  # the processes of all ranks that were used

    def ranks(self, launcher: str = "local") -> Ranks:
        """Two workers and a server; the same ones every time, unless a fault ended them."""
        if launcher not in self._ranks:
            network = NETWORK if launcher == "emulated" else None
            for attempts_left in (3, 2, 1, 0):
                try:
                    self._ranks[launcher] = Ranks(
                        WORKERS + SERVERS, launcher=launcher, network=network, imports=MEASURING
                    )
                    break
                except DdlnbError:  # the machine was too busy for this network: it was verified
                    if not attempts_left:
                        raise
        return self._ranks[launcher]

    def ready(self, launcher: str = "local") -> Ranks:
        """The same ranks, up, and past their first run, which takes longer than the others."""
        ranks = self.ranks(launcher)
        if not ranks.pids or ranks._processes not in self._used:
            with tempfile.TemporaryDirectory(dir=self.folder) as folder:
                methods = ("WFBP-A2A", "WFBP-PS")
                Sweep(Path(folder), methods, repetitions=1, timeout_seconds=60).run(ranks)
            self.used(ranks)
        return ranks

    def used(self, ranks: Ranks) -> None:
        """Note that these ranks, as they are up now, are past their first run."""
        self._used = [
            *(processes for processes in self._used if not processes.ended),
            ranks._processes,
        ]

    def serve(self, script: Path) -> None:
        """Start what a launcher needs, by its script, until the end of the campaign."""
        if script not in self._services:
            folder = Path(tempfile.mkdtemp(prefix="serve-", dir=self._outside), "s")
            folder.parent.chmod(0o755)  # munge runs as a user of its own
            unmarked = {key: value for key, value in os.environ.items() if key != MARK}
            said = subprocess.check_output([script, "start", folder], text=True, env=unmarked)
            name, _, value = said.strip().removeprefix("export ").partition("=")
            os.environ[name], self._services[script] = value, folder

    def close(self) -> None:
        """End the ranks and the services."""
        for ranks in self._ranks.values():
            ranks.close()
        for script, folder in self._services.items():
            subprocess.run([script, "stop", folder], check=True, capture_output=True)
            folder.parent.rmdir()

    def left(self) -> list[str]:
        """What is still there besides the ranks that are up, once it had time to go."""
        deadline = time.monotonic() + LEFT_SECONDS
        while (found := self._look()) and time.monotonic() < deadline:
            time.sleep(0.1)
        if found:  # the next start may take it away
            leftovers.sweep()
        return self._look() if found else []

    @property
    def tokens(self) -> dict[str, str]:
        """The tokens of the ranks that are up, and the names of their folders."""
        running = [r._processes for r in self._ranks.values()]
        return {one.token: one.folder.name for one in running if one and not one.ended}

    def _look(self) -> list[str]:
        tokens, folders = set(self.tokens), set(self.tokens.values())
        found = [f"process: {line}" for line in self._processes(tokens)]
        found += [f"namespace: {name}" for name in _namespaces() - self._network]
        new = set(SHARED_MEMORY.iterdir()) - self._shared_memory
        found += [f"shared memory: {path.name}" for path in new]
        return found + [
            f"folder: {path.name}" for path in self.temporary.iterdir() if path.name not in folders
        ]

    def _processes(self, tokens: set[str]) -> list[str]:
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                environment = process.environ()
                command = " ".join(process.cmdline())
                helper = process.ppid() == os.getpid() and any(name in command for name in HELPERS)
                ours = environment.get(MARK) == self.mark and process.pid != os.getpid()
                of_ranks = environment.get(TOKEN_VARIABLE) in tokens
                if ours and not helper and not of_ranks and not any(t in command for t in tokens):
                    found.append(f"{process.pid} {command[:100]}")
        return found


def _namespaces() -> set[str]:
    """Network namespaces that this process is in, holds open or has mounted."""
    found = set()
    links = [*Path("/proc/self/task").glob("*/ns/net"), *Path("/proc/self/fd").iterdir()]
    for link in links:
        with contextlib.suppress(OSError):
            if (name := str(link.readlink())).startswith("net:"):
                found.add(name)
    mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    return found | {line.split()[3] for line in mounts if " - nsfs " in line}

"""Started processes: what ipyparallel needs to start N ranks, and the world that holds them.

A world is started once and ended once. Nothing of it is left behind: the processes carry a token
in their environment, their files are in one private folder, and a reaper (see reaper.py) that was
there before them cleans up even if this process is killed.
"""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import wait
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import psutil

from ddlnb import reaper
from ddlnb.errors import MissingPart, RankError, UnknownName

# The program without which a launcher cannot start anything, and where it comes from.
_PROGRAMS = {
    "mpi": ("mpiexec", "apt-get install openmpi-bin, or conda install -c conda-forge openmpi"),
    "slurm": ("sbatch", "run on a login node of a Slurm cluster"),
    "ssh": ("ssh", "apt-get install openssh-client"),
    "pbs": ("qsub", "run on a login node of a PBS cluster"),
    "sge": ("qsub", "run on a login node of a Grid Engine cluster"),
    "lsf": ("bsub", "run on a login node of an LSF cluster"),
    "htcondor": ("condor_submit", "run on a submit node of an HTCondor pool"),
}
STOP_SECONDS = 10.0
LOG_LINES = 15
_PROFILE_FILES = ("ipcluster_config.py", "ipcontroller_config.py", "ipengine_config.py")


@dataclass(frozen=True)
class Launch:
    """How a set of ranks is to be started."""

    launcher: str
    count: int
    host: str
    hosts: tuple[str, ...]
    threads: int
    timeout_seconds: float


def check_launcher(name: str) -> None:
    """Raise UnknownName for a launcher that nobody provides, MissingPart for one not installed."""
    known = engine_launchers()
    if name not in known and profile_folder(name) is None:
        raise UnknownName("launcher", name, [*known, "<an IPython profile>"])
    program, way_out = _PROGRAMS.get(name, (None, ""))
    if program and shutil.which(program) is None:
        raise MissingPart(f"launcher {name!r} needs the program {program!r}: {way_out}")
    if name == "mpi" and importlib.util.find_spec("mpi4py") is None:
        raise MissingPart("launcher 'mpi' needs the package mpi4py: pip install 'ddlnb[mpi]'")


def engine_launchers() -> list[str]:
    """The names that ipyparallel and its extensions register, in lower case."""
    return sorted({e.name.lower() for e in entry_points(group="ipyparallel.engine_launchers")})


def profile_folder(name: str) -> Path | None:
    """The folder of the user's IPython profile of that name, if there is one.

    To be asked only where it matters: IPython makes its folder in the user's home to look in it.
    """
    from IPython.paths import locate_profile

    try:
        return Path(locate_profile(name))
    except OSError:
        return None


def environment(launch: Launch, token: str, folder: Path) -> dict[str, str]:
    """What controller and ranks find in their environment beside what this process has."""
    variables = {
        reaper.TOKEN_VARIABLE: token,
        "IPYTHONDIR": str(folder),  # no history and no profiles in the user's home
        "OMP_NUM_THREADS": str(launch.threads),
        "TORCH_CPP_LOG_LEVEL": "ERROR",  # c10d warns when an address has no host name: harmless
    }
    if launch.launcher == "mpi":
        # A killed mpiexec does not remove its files: they go with the folder. Open MPI 4, then 5.
        variables["OMPI_MCA_orte_tmpdir_base"] = str(folder)
        variables["PRTE_MCA_prte_tmpdir_base"] = str(folder)
        if os.geteuid() == 0:
            variables |= dict.fromkeys(
                ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"), "1"
            )
        if launch.count > (psutil.cpu_count(logical=False) or 1):
            variables["OMPI_MCA_rmaps_base_oversubscribe"] = "1"
            variables["PRTE_MCA_rmaps_default_mapping_policy"] = ":oversubscribe"
    return variables


def ranks_by_host(hosts: tuple[str, ...], count: int) -> dict[str, int]:
    """Ranks for each host: neighbours together, the first hosts get the remainder.

    >>> ranks_by_host(("a", "b"), 3)
    {'a': 2, 'b': 1}
    """
    share, rest = divmod(count, len(hosts))
    return {host: share + (index < rest) for index, host in enumerate(hosts)}


def cluster(launch: Launch, token: str, folder: Path) -> Any:
    """An ipyparallel Cluster, not started yet, that keeps all its files in the folder."""
    import ipyparallel
    from traitlets.config import Config

    config = Config()
    config.BaseLauncher.environment = environment(launch, token, folder)
    # A rank is let in at the second heartbeat: with the default of 3 s, most of the start is
    # waiting. The misses allowed make up for it: either side gives the other up after 120 s.
    config.ControllerLauncher.controller_args = [
        "--nodb",
        "--HeartMonitor.period=250",
        "--HeartMonitor.max_heartmonitor_misses=480",
    ]
    config.EngineLauncher.engine_args = [
        "--timeout=60",  # to register; the default of 5 s is short where all ranks import at once
        "--IPEngine.max_heartbeat_misses=160",
        "--HistoryManager.enabled=False",
    ]
    config.ControllerLauncher.connection_info_timeout = float(launch.timeout_seconds)
    config.BatchSystemLauncher.batch_file_name = str(folder / "batch_script")
    if launch.launcher == "local":
        # A nanny is a second Python beside every rank; the deaths of local ones are seen here.
        config.EngineLauncher.engine_args.append("--IPEngine.enable_nanny=False")
    if launch.hosts:
        config.SSHLauncher.remote_python = sys.executable  # the same path on all hosts
        config.SSHLauncher.to_send = []  # the environment says how to connect
        config.SSHEngineSetLauncher.engines = ranks_by_host(launch.hosts, launch.count)

    names = {"engines": launch.launcher}
    if launch.launcher not in engine_launchers():
        names = {}  # the profile says which
        for file in _PROFILE_FILES:
            with contextlib.suppress(FileNotFoundError):
                shutil.copy(f"{profile_folder(launch.launcher)}/{file}", folder)
    log = logging.getLogger(f"{__name__}.ipyparallel")
    log.setLevel(logging.CRITICAL + 1)
    return ipyparallel.Cluster(
        profile_dir=str(folder),
        cluster_file="",  # it would be written again after the folder is gone
        config=config,
        load_profile=not names,
        shutdown_atexit=False,  # it prints; the world is ended by its owner
        log=log,
        log_level=logging.CRITICAL + 1,
        delay=0.0,
        controller_ip=launch.host,
        controller_location=launch.host,
        **names,
    )


class World:
    """Started ranks: processes, the calls into them, and the store they meet in."""

    def __init__(self, launch: Launch, prepare: Callable, *prepare_args: Any):
        """Start everything; prepare(folder, *prepare_args) runs in each rank and returns its pid.

        The reaper is told the name of the folder before the folder is there, and is there before
        any process: so there is no moment at which a death leaves something behind.
        """
        self.token = secrets.token_hex(16)
        self.folder = Path(tempfile.gettempdir()) / f"ddlnb-{self.token[:12]}"
        self.pids: list[int] = []
        self._here: list[psutil.Process | None] = []
        self._client: Any = None
        self._cluster: Any = None
        self._launch = launch
        self.store: Any = None
        self.ended = False
        self._reaper = subprocess.Popen(
            [sys.executable, "-P", reaper.__file__, self.token, str(os.getpid()), self.folder],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,  # who reads the output of a killed owner need not wait
            stderr=subprocess.DEVNULL,
            cwd="/",
            start_new_session=True,  # Ctrl-C is for the owner
        )
        try:
            self._start(prepare, prepare_args)
        except Exception as error:
            message = self._not_started(error)
            self.end()
            raise RankError(message) from error
        except BaseException:
            self.end()
            raise

    def _start(self, prepare: Callable, prepare_args: tuple) -> None:
        deadline = time.monotonic() + self._launch.timeout_seconds
        self.folder.mkdir(mode=0o700)
        self._cluster = cluster(self._launch, self.token, self.folder)
        self._cluster.start_controller_sync()
        self._cluster.start_engines_sync(self._launch.count)
        self.store = _store(self._launch.host)  # importing torch takes as long as the ranks do
        self._client = self._cluster.connect_client_sync(
            ipython_dir=str(self.folder), timeout=max(1, deadline - time.monotonic())
        )
        while len(self._client.ids) < self._launch.count:
            if time.monotonic() > deadline:
                raise TimeoutError(f"only {len(self._client.ids)} came up in time")
            time.sleep(0.02)
        self._views = [self._client[engine] for engine in sorted(self._client.ids)]
        self._views = self._views[: self._launch.count]
        # The ranks find what this process can import: a notebook's folder, an editable install.
        path = f"import sys; sys.path += [p for p in {sys.path!r} if p not in sys.path]"
        wait([view.execute(path, silent=True) for view in self._views])
        answers = [
            self.call(rank, prepare, str(self.folder), *prepare_args)
            for rank in range(self._launch.count)
        ]
        done, late = wait(answers, timeout=max(1, deadline - time.monotonic()))
        if late:
            raise TimeoutError(f"only {len(done)} were ready in time")
        self.pids = [answer.get() for answer in answers]
        self._here = [self._if_here(pid) for pid in self.pids]

    def _not_started(self, error: Exception) -> str:
        logs = sorted(self.folder.glob("log/*.log"))
        lines = [line for log in logs for line in log.read_text(errors="replace").splitlines()]
        return "\n".join(
            [
                f"{self._launch.count} ranks were not started with launcher "
                f"{self._launch.launcher!r} ({type(error).__name__}: {error}); "
                f"start_timeout_seconds={self._launch.timeout_seconds} can be raised. They said:",
                *lines[-LOG_LINES:],
            ]
        )

    def _if_here(self, pid: int) -> psutil.Process | None:
        """The process, if it runs on this machine: on another one that number means nothing."""
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(pid)
            if reaper.carries(process, self.token):
                return process
        return None

    def call(self, rank: int, function: Callable, *args: Any) -> Any:
        """The future of function(*args) in one rank."""
        return self._views[rank].apply_async(function, *args)

    def forget(self) -> None:
        """Drop what the client keeps of finished calls: a long sweep would fill the memory."""
        with contextlib.suppress(RuntimeError):
            self._client.purge_local_results("all")
        self._client.history.clear()

    def lost(self, rank: int) -> str:
        """Why the rank cannot answer any more; empty if it may, as far as is seen from here."""
        if self._here[rank] is not None and _has_ended(self._here[rank]):
            return "process died"
        controller = getattr(self._cluster.controller, "process", None)  # none in a batch queue
        if controller is not None and _has_ended(controller):
            return "the controller of ipyparallel, which connects the ranks, died"
        return ""

    def is_stopped(self, rank: int) -> bool:
        """Whether the process of the rank is held by SIGSTOP or a debugger."""
        with contextlib.suppress(psutil.Error):
            process = self._here[rank]
            return process is not None and process.status() in (
                psutil.STATUS_STOPPED,
                psutil.STATUS_TRACING_STOP,
            )
        return False

    def signal(self, rank: int, number: int) -> None:
        """Send a signal to a rank that runs on this machine."""
        with contextlib.suppress(psutil.Error):
            if process := self._here[rank]:
                process.send_signal(number)

    def end(self) -> None:
        """End every process, remove the folder; safe to call twice."""
        self.ended = True
        for rank in range(len(self._here)):
            self.signal(rank, signal.SIGKILL)
        if self._client is not None:
            self._client.close(linger=0)
        if self._cluster is not None and self._launch.launcher not in ("local", "mpi"):
            with contextlib.suppress(Exception):  # processes elsewhere: only the launcher can
                self._cluster.stop_engines_sync()
        with contextlib.suppress(OSError, ValueError, subprocess.TimeoutExpired):
            self._reaper.communicate(reaper.ALL_ENDED, STOP_SECONDS)
        if self._reaper.returncode != 0:  # somebody ended the reaper
            reaper.clean(self.token, self.folder)
        self.store = None


def _has_ended(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    return True


def _store(host: str) -> Any:
    """A torch TCPStore that listens on that address only, at a port the system chose."""
    from torch.distributed import TCPStore

    listener = socket.create_server((host, 0), backlog=512)
    port = listener.getsockname()[1]
    return TCPStore(
        host, port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach()
    )

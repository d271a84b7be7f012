"""What ipyparallel needs to start ranks: a launcher, an environment, a private folder.

A job of Slurm bears the name of its ranks' private folder, which no other job has. So it can be
found and cancelled without its number, also by the reaper of a killed owner, which never learnt it.
"""

from __future__ import annotations

import contextlib
import getpass
import importlib.util
import json
import logging
import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import psutil

from ddlnb.errors import MissingPart, UnknownName
from ddlnb.launch import forked, reaper
from ddlnb.launch.options import EMULATED
from ddlnb.launch.topology import EmulatedTopology
from ddlnb.registry import supplied

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
_FORKED = "ddlnb.launch.starters.ForkLauncher"
_OWN_LAUNCHERS = {
    "local": _FORKED if sys.platform == "linux" else "local",  # macOS allows no fork after torch
    EMULATED: _FORKED,
    "ssh": "ddlnb.launch.starters.HostsLauncher",
}  # instead of those that ipyparallel has under these names
# Encrypted: without that, random bytes of a stranger are a message of ZeroMQ's first protocol. With
# a key beside it, messages are signed as well; or every process warns that they are not.
_PRIVATE = """
c.IPController.enable_curve = True
c.Session.key = {key!r}
"""
_CONTROLLER_FILE = "ipcontroller_config.py"
_PROFILE_FILES = ("ipcluster_config.py", _CONTROLLER_FILE, "ipengine_config.py")


@dataclass(frozen=True)
class RankSpec:
    """How a set of ranks is to be started."""

    launcher: str
    count: int
    host: str
    hosts: tuple[str, ...]
    threads: int
    timeout_seconds: float
    topology: EmulatedTopology | None = None  # of an emulated network, slowed to its scale
    ranks_per_node: int = 1
    imports: tuple[str, ...] = ()  # modules that ranks of this machine share

    @property
    def is_remote(self) -> bool:
        """Whether ranks may be on machines that neither the reaper nor an mpiexec looks after."""
        return self.launcher not in ("local", "mpi", EMULATED)

    @property
    def in_slurm(self) -> bool:
        """Whether the ranks are a job of Slurm, or may be, as with an unknown profile."""
        return self.launcher == "slurm" or (
            self.launcher not in (*engine_launchers(), EMULATED) and bool(shutil.which("scancel"))
        )


def check_launcher(name: str) -> None:
    """Raise UnknownName for a launcher that nobody provides, MissingPart for one not installed."""
    known = engine_launchers()
    if name == EMULATED:
        if lack := supplied("emulated network").lacking():
            raise MissingPart(f"launcher {name!r}: {lack}")
        return
    if name not in known and profile_folder(name) is None:
        raise UnknownName("launcher", name, [*known, EMULATED, "<an IPython profile>"])
    program, way_out = _PROGRAMS.get(name, (None, ""))
    if program and shutil.which(program) is None:
        raise MissingPart(f"launcher {name!r} needs the program {program!r}: {way_out}")
    if name == "mpi" and importlib.util.find_spec("mpi4py") is None:
        raise MissingPart("launcher 'mpi' needs the package mpi4py: .venv/bin/pip install mpi4py")


def engine_launchers() -> list[str]:
    """Return the names that ipyparallel and its extensions register, in lower case."""
    return sorted({e.name.lower() for e in entry_points(group="ipyparallel.engine_launchers")})


def profile_folder(name: str) -> Path | None:
    """Return the folder of the user's IPython profile of that name, None if there is none.

    To be asked only where it matters: IPython makes its folder in the user's home to look in it.
    """
    from IPython.paths import locate_profile

    try:
        return Path(locate_profile(name))
    except OSError:
        return None


def environment(launch: RankSpec, token: str, folder: Path) -> dict[str, str]:
    """Return what controller and ranks have in their environment besides this process's."""
    variables = {
        reaper.TOKEN_VARIABLE: token,
        "IPYTHONDIR": str(folder),  # no history and no profiles in the user's home
        "OMP_NUM_THREADS": str(launch.threads),
        "TORCH_CPP_LOG_LEVEL": "ERROR",  # c10d warns when an address has no host name: harmless
    }
    if launch.in_slurm:
        variables |= job_environment(folder.name)
    if launch.launcher == "mpi":
        # A killed mpiexec does not remove its files: they go with the folder. Open MPI 4, then 5.
        variables["OMPI_MCA_orte_tmpdir_base"] = str(folder)
        variables["PRTE_MCA_prte_tmpdir_base"] = str(folder)
        if (shared := reaper.shared_memory(folder)).is_dir():
            variables["OMPI_MCA_btl_vader_backing_directory"] = str(shared)
            variables["OMPI_MCA_btl_sm_backing_directory"] = str(shared)
        if os.geteuid() == 0:
            variables |= dict.fromkeys(
                ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"), "1"
            )
        if launch.count > (psutil.cpu_count(logical=False) or 1):
            variables["OMPI_MCA_rmaps_base_oversubscribe"] = "1"
            variables["PRTE_MCA_rmaps_default_mapping_policy"] = ":oversubscribe"
    return variables


def ranks_by_host(hosts: tuple[str, ...], count: int) -> dict[str, int]:
    """Return the ranks of each host: neighbours together, the remainder on the first hosts.

    >>> ranks_by_host(("a", "b"), 3)
    {'a': 2, 'b': 1}
    """
    share, rest = divmod(count, len(hosts))
    return {host: share + (index < rest) for index, host in enumerate(hosts)}


def cluster(launch: RankSpec, token: str, folder: Path, before: Sequence[str] = ()) -> Any:
    """Return an ipyparallel Cluster, not started yet, that keeps all its files in the folder.

    ``before`` are words in front of the command that starts a local rank.
    """
    import ipyparallel
    from traitlets.config import Config

    config = Config()
    config.BaseLauncher.environment = environment(launch, token, folder)
    # A file in the folder where a command starts must not stand for a module: Python gets -P, and
    # what puts its folder first on the path nonetheless begins in a private one.
    private = f"--work-dir={folder}"
    # A rank is let in at the second heartbeat: with the default of 3 s, most of the start is
    # waiting. The misses allowed make up for it: either side gives the other up after 120 s.
    config.ControllerLauncher.controller_args = [
        private,
        "--nodb",
        "--HeartMonitor.period=250",
        "--HeartMonitor.max_heartmonitor_misses=480",
    ]
    config.EngineLauncher.engine_args = [
        private,
        "--timeout=60",  # to register; the default of 5 s is short where all ranks import at once
        "--IPEngine.max_heartbeat_misses=160",
        "--HistoryManager.enabled=False",
    ]
    config.ControllerLauncher.connection_info_timeout = float(launch.timeout_seconds)
    config.BatchSystemLauncher.batch_file_name = str(folder / "batch_script")
    config.SlurmLauncher.submit_command = submit_command(str(folder / "log" / "sbatch.log"))
    if launch.launcher in ("local", EMULATED):
        # A nanny is a second Python for every rank; the deaths of local ranks are seen anyway.
        config.EngineLauncher.engine_args.append("--IPEngine.enable_nanny=False")
        more = json.dumps([sys.path, launch.imports])
        config.ForkLauncher.engine_cmd = [*before, sys.executable, "-P", forked.__file__, more]
    if launch.hosts:
        config.HostsLauncher.hosts = ranks_by_host(launch.hosts, launch.count)
        config.HostsLauncher.log_folder = str(folder / "log")

    names = {"engines": _OWN_LAUNCHERS.get(launch.launcher, launch.launcher)}
    if launch.launcher not in (*engine_launchers(), *_OWN_LAUNCHERS):
        names = {}  # the profile says which
        for file in _PROFILE_FILES:
            with contextlib.suppress(FileNotFoundError):
                shutil.copy(f"{profile_folder(launch.launcher)}/{file}", folder)
    else:
        python = [sys.executable, "-P", "-m"]
        config.ControllerLauncher.controller_cmd = [*python, "ipyparallel.controller"]
        config.EngineLauncher.engine_cmd = [*python, "ipyparallel.engine"]
    # What forks them imports for seconds, and meanwhile the controller comes up; others may be
    # where its file never comes, and must say so at once.
    together = names.get("engines") == _FORKED
    if together:
        config.EngineLauncher.engine_args.append(
            f"--IPEngine.wait_for_url_file={launch.timeout_seconds}"
        )
    with (folder / _CONTROLLER_FILE).open("a") as settings:  # where others do not see the key
        settings.write(_PRIVATE.format(key=secrets.token_hex().encode()))
    log = logging.getLogger(f"{__name__}.ipyparallel")
    log.setLevel(logging.CRITICAL + 1)
    return ipyparallel.Cluster(
        profile_dir=str(folder),
        cluster_file="",  # it would be written again after the folder is gone
        config=config,
        load_profile=not names,
        shutdown_atexit=False,  # it prints; the ranks are ended by their owner
        log=log,
        log_level=logging.CRITICAL + 1,
        delay=0.0,
        send_engines_connection_env=not together,
        controller_ip=launch.host,
        controller_location=launch.host,
        **names,
    )


SLURM_SECONDS = 15.0  # for a command of Slurm; without a controller they try for a minute


def slurm_lacking() -> str:
    """Return why no job can be submitted from here, as sinfo answers; "" if one can."""
    if shutil.which("sbatch") is None:
        return "no sbatch"
    try:
        partitions = _slurm_said("sinfo", "--noheader", "--format=%P %a")
    except OSError as silence:
        return f"Slurm's programs are here, but {silence}"
    return "" if any(line.endswith(" up") for line in partitions) else "no partition is up"


def job_environment(name: str) -> dict[str, str]:
    """Return variables that sbatch obeys: the name of the job, and that it is not started twice."""
    return {"SBATCH_JOB_NAME": name, "SBATCH_NO_REQUEUE": "1"}


def submit_command(log: str) -> list[str]:
    """Return a command that submits the script it gets as its last word; errors go to the log."""
    return ["sh", "-c", 'exec sbatch "$1" 2>"$0"', log]


def cancel_command(name: str) -> list[str]:
    """Return a command that takes the job out of the queue and ends it where it runs."""
    return ["scancel", f"--user={getpass.getuser()}", f"--name={name}"]


def jobs_in_queue(name: str) -> list[str]:
    """Return a line for every job of that name: number, state, reason or nodes.

    Raises OSError if Slurm does not answer.
    """
    return _slurm_said("squeue", "--me", f"--name={name}", "--noheader", "--format=job %i: %T %R")


def _slurm_said(program: str, *words: str) -> list[str]:
    """Return what a command of Slurm prints, line by line; OSError if it fails or is silent."""
    try:
        done = subprocess.run(
            [program, *words], capture_output=True, text=True, timeout=SLURM_SECONDS, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise OSError(f"{program} did not answer within {SLURM_SECONDS:g} s") from error
    if done.returncode:
        said = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        raise OSError(f"{program} failed: {said[-1]}")
    return done.stdout.splitlines()

"""The queue of Slurm: what it says of our job, and how to take the job out of it.

A job bears the name of its ranks' private folder, which no other job has. So it can be found and
cancelled without its number, also by somebody who never learnt it: the reaper of a killed owner.
"""

from __future__ import annotations

import getpass
import shutil
import subprocess

_SECONDS = 15.0  # for a command of Slurm; without a controller they try for a minute


def lacking() -> str:
    """Return why no job can be submitted from here, as sinfo answers; "" if one can."""
    if shutil.which("sbatch") is None:
        return "no sbatch"
    try:
        partitions = _said("sinfo", "--noheader", "--format=%P %a")
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
    return _said("squeue", "--me", f"--name={name}", "--noheader", "--format=job %i: %T %R")


def _said(program: str, *words: str) -> list[str]:
    """Return what a command of Slurm prints, line by line; OSError if it fails or is silent."""
    try:
        done = subprocess.run(
            [program, *words], capture_output=True, text=True, timeout=_SECONDS, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise OSError(f"{program} did not answer within {_SECONDS:g} s") from error
    if done.returncode:
        said = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        raise OSError(f"{program} failed: {said[-1]}")
    return done.stdout.splitlines()

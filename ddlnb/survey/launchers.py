"""Where ranks run: said in a text for all notebooks, and looked at in an inventory."""

from __future__ import annotations

import os
import platform
import signal
from collections.abc import Mapping
from typing import Any

import pandas as pd

from ddlnb.errors import DdlnbError, require, require_known
from ddlnb.launch.rank import RankContext, process_group as process_group
from ddlnb.launch.ranks import Ranks
from ddlnb.training.runs.runner import hand_to

# The variables that launchers leave in the environment of a rank, the most specific one first.
_MARKS = {
    "OMPI_COMM_WORLD_RANK": "Open MPI, rank {}",
    "PMI_RANK": "MPI, rank {}",
    "SLURM_JOB_ID": "Slurm, job {}",
    "PBS_JOBID": "PBS, job {}",
    "LSB_JOBID": "LSF, job {}",
    "SSH_CONNECTION": "SSH",
}


# What is said by name; machines are words of their own.
SAID = ("host", "device", "backend", "network", "engines")
ENGINES = 4  # that train, where neither they nor machines are named


def place(where: str) -> dict[str, Any]:
    """Return the options of `ddlnb.measure` that say where its ranks run. Raises UnknownName.

    ``where`` is a launcher; behind a colon machines, this machine's address for them, and a device.

    >>> place("ssh:node1,node2,host=10.1.0.5")
    {'launcher': 'ssh', 'hosts': ['node1', 'node2'], 'host': '10.1.0.5'}
    """
    return {name: value for name, value in _said(where).items() if name != "engines"}


def _said(where: str) -> dict[str, Any]:
    launcher, _, rest = where.partition(":")
    words = [word.strip() for word in rest.split(",") if word.strip()]
    named = dict(word.split("=", 1) for word in words if "=" in word)
    for name in named:
        require_known("option of where", name, SAID)
    return {"launcher": launcher, "hosts": [one for one in words if "=" not in one], **named}


def ranks_at(where: str, count: int, imports: tuple[str, ...] = ()) -> Ranks:
    """Return ranks started there; which device they compute on is up to what they run."""
    known = {k: v for k, v in place(where).items() if k in ("launcher", "hosts", "host")}
    return Ranks(count, imports=imports, **known)


def train_at(where: str) -> None:
    """Hand the training of this process to engines there; "local": to the cores of this machine.

    Of engines there are as many as ``where`` says ("slurm:engines=8"), one on every machine that it
    names, or ENGINES. Raises InputError for a number that is none.
    """
    said = _said(where)
    if where == "local":
        return hand_to(None)
    engines = str(said.get("engines", len(said["hosts"]) or ENGINES))
    is_count = engines.isdecimal() and int(engines) > 0
    require(is_count, f"engines={engines} must be a whole number, such as engines=8")
    hand_to(ranks_at(where, int(engines), imports=("ddlnb.training.runs.train",)))


def rank_inventory(ranks: Ranks) -> pd.DataFrame:
    """Return a row per rank: its machine, what started it, its process and the GPU it sees."""
    rows = ranks.run(_described, _marked(os.environ))
    return pd.DataFrame(rows).set_index("rank")


def lose(ranks: Ranks, rank: int) -> str:
    """Kill the process of a rank, and return the first line of what is said of it."""
    try:
        ranks.run(_end, rank)
    except DdlnbError as error:
        return str(error).splitlines()[0]
    return ""


def _end(context: RankContext, rank: int) -> None:
    """End this process at once if it is that rank's; else wait for it, as a collective would."""
    if context.rank == rank:
        os.kill(os.getpid(), signal.SIGKILL)
    context.store().get("what the lost rank would have said")


def _marked(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: environment[name] for name in _MARKS if name in environment}


def _described(context: RankContext, of_owner: Mapping[str, str]) -> dict[str, object]:
    """Return the row of this rank. A mark that the owner has, too, did not start the rank."""
    import torch

    own = [(name, v) for name, v in _marked(os.environ).items() if of_owner.get(name) != v]
    gpus = torch.cuda.device_count()
    return {
        "rank": context.rank,
        "machine": platform.node(),
        "started_by": _MARKS[own[0][0]].format(own[0][1]) if own else "this process",
        "process": os.getpid(),
        "gpu": torch.cuda.get_device_name(context.rank % gpus) if gpus else "-",
    }

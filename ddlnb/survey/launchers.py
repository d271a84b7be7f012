"""The inventory of ranks: on which machine each is, what started it, and which GPU it sees."""

from __future__ import annotations

import os
import platform
import signal
from collections.abc import Mapping

import pandas as pd

from ddlnb.errors import DdlnbError
from ddlnb.launch.rank import RankContext, process_group as process_group
from ddlnb.launch.ranks import Ranks

# The variables that launchers leave in the environment of a rank, the most specific one first.
_MARKS = {
    "OMPI_COMM_WORLD_RANK": "Open MPI, rank {}",
    "PMI_RANK": "MPI, rank {}",
    "SLURM_JOB_ID": "Slurm, job {}",
    "PBS_JOBID": "PBS, job {}",
    "LSB_JOBID": "LSF, job {}",
    "SSH_CONNECTION": "SSH",
}


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

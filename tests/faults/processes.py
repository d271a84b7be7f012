"""Faults of processes and links: a rank is killed, stopped or slow, a link is cut or lossy."""

import contextlib
import os
import random
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ddlnb.emulation.network import EmulatedNetwork
from ddlnb.errors import RankError
from ddlnb.launch.ranks import Ranks
from ddlnb.launch.topology import get_link
from tests.faults.injection import inject
from tests.faults.outcome import Outcome
from tests.faults.stage import NETWORK, Stage
from tests.faults.sweep import SERVERS, WORKERS, Sweep

Kind = Callable[[Stage, Path, random.Random, Outcome], Outcome]
PS = ("WFBP-PS", "BSP-PS")
PATIENT_SECONDS = 60.0  # of a run that is to go on
SILENCE_SECONDS = 5.0  # of a run that a stopped rank or a cut link ends
DEATH_SECONDS = 15.0  # of a run in which a rank dies, which is noticed long before
SLOWER = 5
LONG = {"iterations": 60, "warmup": 1}  # so that most moments are within a run


def _send(ranks: Ranks, rank: int, number: int) -> None:
    with contextlib.suppress(IndexError, ProcessLookupError):  # the ranks are gone already
        os.kill(ranks.pids[rank], number)


def signalled(number: int, ranks: range, may_go_on: bool, **of_sweep: Any) -> Kind:
    """Return the fault of a signal for one of these ranks while gradients are exchanged.

    Who is killed between two runs is replaced; who is stopped holds its connections and never
    answers.
    """

    def fault(stage: Stage, folder: Path, chance: random.Random, outcome: Outcome) -> Outcome:
        up, rank = stage.ready(), chance.choice(ranks)
        outcome.detail = f"rank {rank}"
        return inject(
            *(stage, Sweep(folder, **of_sweep), outcome, chance),
            ranks=up,
            act=lambda: _send(up, rank, number),
            errors=(RankError,),
            may_go_on=may_go_on,
        )

    return fault


def straggler(stage: Stage, folder: Path, chance: random.Random, outcome: Outcome) -> Outcome:
    """One worker runs a fifth of the time only."""
    ranks, rank = stage.ready(), chance.randrange(WORKERS)
    outcome.detail = f"worker {rank}"
    over = threading.Event()
    pid = ranks.pids[rank]

    def slow_down() -> None:
        while not over.is_set():
            os.kill(pid, signal.SIGSTOP)
            time.sleep(0.01 * (SLOWER - 1))
            os.kill(pid, signal.SIGCONT)
            over.wait(0.01)

    thread = threading.Thread(target=slow_down, name="slowing", daemon=True)

    def normal_again() -> None:
        over.set()
        if thread.ident is not None:
            thread.join()

    return inject(
        *(stage, Sweep(folder, timeout_seconds=PATIENT_SECONDS), outcome, chance),
        ranks=ranks,
        act=thread.start,
        undo=normal_again,
        may_go_on=True,
    )


def disturbed(
    disturb: Callable[[EmulatedNetwork, int, random.Random], None],
    nodes: int,
    undo: Callable[[EmulatedNetwork, int], None] = lambda network, node: None,
    may_go_on: bool = True,
    **of_sweep: Any,
) -> Kind:
    """Return the fault of a link of an emulated network, that of one of the first nodes."""

    def fault(stage: Stage, folder: Path, chance: random.Random, outcome: Outcome) -> Outcome:
        ranks, node = stage.ready("emulated"), chance.randrange(nodes)
        outcome.detail = f"node {node}"
        network = ranks.network
        assert network is not None
        return inject(
            *(stage, Sweep(folder, **of_sweep), outcome, chance),
            ranks=ranks,
            act=lambda: disturb(network, node, chance),
            undo=lambda: undo(network, node),
            errors=() if may_go_on else (RankError,),
            may_go_on=may_go_on,
        )

    return fault


def _cut_for_a_moment(network: EmulatedNetwork, node: int, chance: random.Random) -> None:
    """TCP sends again what was lost."""
    network.cut(node)
    time.sleep(chance.uniform(0.1, 1))
    network.restore(node)


DEADLY = {"timeout_seconds": DEATH_SECONDS, "rest": LONG}
ON_SERVERS = {"methods": PS, "baselines": (), "repetitions": 3}
PATIENT = {"timeout_seconds": PATIENT_SECONDS}
EVERY = range(WORKERS + SERVERS)
KINDS: dict[str, Kind] = {
    "worker-killed": signalled(signal.SIGKILL, EVERY[:WORKERS], True, **DEADLY),
    "server-killed": signalled(signal.SIGKILL, EVERY[WORKERS:], True, **ON_SERVERS, **DEADLY),
    "engine-stopped": signalled(
        signal.SIGSTOP, EVERY, False, **ON_SERVERS, timeout_seconds=SILENCE_SECONDS
    ),
    "link-cut": disturbed(
        lambda network, node, chance: network.cut(node),
        WORKERS + SERVERS,
        may_go_on=False,
        **{"methods": PS, "baselines": (), "timeout_seconds": SILENCE_SECONDS},
    ),
    "link-restored": disturbed(_cut_for_a_moment, WORKERS, **PATIENT),
    "loss-10%": disturbed(
        lambda network, node, chance: network.change(node, get_link(f"{NETWORK} loss 10%")),
        WORKERS,
        undo=lambda network, node: network.change(node, get_link(NETWORK)),
        **PATIENT,
        rest={"iterations": 4, "warmup": 1},
    ),
    "straggler": straggler,
}

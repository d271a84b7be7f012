"""Faults of processes and links: a rank is killed, stopped or slow, a link is cut or lossy."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
import time
from pathlib import Path

from ddlnb.errors import RankError
from ddlnb.launch.emulation.topology import get_link
from ddlnb.launch.ranks import Ranks
from tests.faults.injection import inject
from tests.faults.outcome import Outcome
from tests.faults.stage import NETWORK, Stage
from tests.faults.sweep import SERVERS, WORKERS, Sweep

PS = ("WFBP-PS", "BSP-PS")
PATIENT_SECONDS = 60.0  # of a run that is to go on
SILENCE_SECONDS = 5.0  # of a run that a stopped rank or a cut link ends
DEATH_SECONDS = 15.0  # of a run in which a rank dies, which is noticed long before
SLOWER = 5
LONG = {"iterations": 60, "warmup": 1}  # so that most moments are within a run


def _send(ranks: Ranks, rank: int, number: int) -> None:
    with contextlib.suppress(IndexError, ProcessLookupError):  # the ranks are gone already
        os.kill(ranks.pids[rank], number)


def worker_killed(stage: Stage, folder: Path, chance: random.Random, outcome: Outcome) -> Outcome:
    """SIGKILL for a worker while gradients are exchanged. Between two runs it is replaced."""
    ranks, rank = stage.ready(), chance.randrange(WORKERS)
    outcome.detail = f"worker {rank}"
    sweep = Sweep(folder, timeout_seconds=DEATH_SECONDS, rest=LONG)
    return inject(
        *(stage, sweep, outcome, chance),
        ranks=ranks,
        act=lambda: _send(ranks, rank, signal.SIGKILL),
        errors=(RankError,),
        may_go_on=True,
    )


def server_killed(stage: Stage, folder: Path, chance: random.Random, outcome: Outcome) -> Outcome:
    """SIGKILL for a parameter server. Between two runs it is replaced."""
    ranks, rank = stage.ready(), WORKERS + chance.randrange(SERVERS)
    sweep = Sweep(folder, PS, (), 3, timeout_seconds=DEATH_SECONDS, rest=LONG)
    return inject(
        *(stage, sweep, outcome, chance),
        ranks=ranks,
        act=lambda: _send(ranks, rank, signal.SIGKILL),
        errors=(RankError,),
        may_go_on=True,
    )


def engine_stopped(stage: Stage, folder: Path, chance: random.Random, outcome: Outcome) -> Outcome:
    """SIGSTOP for a worker or the server: it holds its connections and never answers."""
    ranks, rank = stage.ready(), chance.randrange(WORKERS + SERVERS)
    outcome.detail = f"rank {rank}"
    sweep = Sweep(folder, methods=PS, baselines=(), repetitions=3, timeout_seconds=SILENCE_SECONDS)
    return inject(
        *(stage, sweep, outcome, chance),
        ranks=ranks,
        act=lambda: _send(ranks, rank, signal.SIGSTOP),
        errors=(RankError,),
    )


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


def link_cut(stage: Stage, folder: Path, chance: random.Random, outcome: Outcome) -> Outcome:
    """The link of a node is cut for ever."""
    ranks, node = stage.ready("emulated"), chance.randrange(WORKERS + SERVERS)
    outcome.detail = f"node {node}"
    network = ranks.network
    assert network is not None
    return inject(
        *(stage, Sweep(folder, PS, (), timeout_seconds=SILENCE_SECONDS), outcome, chance),
        ranks=ranks,
        act=lambda: network.cut(node),
        errors=(RankError,),
    )


def link_restored(stage: Stage, folder: Path, chance: random.Random, outcome: Outcome) -> Outcome:
    """The link of a node is cut, and restored after a moment: TCP sends again what was lost."""
    ranks, node = stage.ready("emulated"), chance.randrange(WORKERS)
    seconds = chance.uniform(0.1, 1)
    outcome.detail = f"node {node} for {seconds:.2f} s"
    network = ranks.network
    assert network is not None

    def cut() -> None:
        network.cut(node)
        time.sleep(seconds)
        network.restore(node)

    sweep = Sweep(folder, timeout_seconds=PATIENT_SECONDS)
    return inject(stage, sweep, outcome, chance, ranks=ranks, act=cut, may_go_on=True)


def loss(stage: Stage, folder: Path, chance: random.Random, outcome: Outcome) -> Outcome:
    """A node loses a tenth of its packets from a moment on."""
    ranks, node = stage.ready("emulated"), chance.randrange(WORKERS)
    outcome.detail = f"node {node}"
    network = ranks.network
    assert network is not None
    link = get_link(NETWORK)
    sweep = Sweep(folder, timeout_seconds=PATIENT_SECONDS, rest={"iterations": 4, "warmup": 1})
    return inject(
        *(stage, sweep, outcome, chance),
        ranks=ranks,
        act=lambda: network.change(node, get_link(f"{NETWORK} loss 10%")),
        undo=lambda: network.change(node, link),
        may_go_on=True,
    )

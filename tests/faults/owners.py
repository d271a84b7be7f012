"""The owner of a sweep is killed: a Python process, or a kernel of Jupyter."""

import contextlib
import multiprocessing
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.faults.injection import Moment, resume
from tests.faults.outcome import GRACE_SECONDS, Outcome
from tests.faults.stage import Stage
from tests.faults.sweep import Onlooker, Sweep

START_SECONDS = 8.0  # about what ranks need to start: faults come at any moment of that, too
PATIENT_SECONDS = 180.0  # after which a child that is still there hangs
JUPYTER_SHARE = 0.2
FORK = multiprocessing.get_context("forkserver")
FORK.set_forkserver_preload(["tests.faults.sweep"])  # so that a child need not import torch


def kernel_killed(stage: Stage, folder: Path, chance: random.Random, outcome: Outcome) -> Outcome:
    """SIGKILL for a Python process, or a Jupyter kernel, that measures."""
    sweep = Sweep(folder, timeout_seconds=60)
    in_jupyter = chance.random() < JUPYTER_SHARE
    outcome.detail = "Jupyter" if in_jupyter else "Python"
    with (_jupyter if in_jupyter else _forked)(folder) as (pid, is_over):
        onlooker, at = _inject(sweep, outcome, chance, pid, signal.SIGKILL, is_over)
        while not is_over() and time.monotonic() < at + GRACE_SECONDS:
            time.sleep(0.01)
        return _aftermath(stage, sweep, outcome, onlooker, at, is_over())


@contextlib.contextmanager
def _forked(folder: Path) -> Iterator[tuple[int, Callable[[], bool]]]:
    child = FORK.Process(target=run_sweep, args=(folder,))
    child.start()
    assert child.pid is not None
    try:
        yield child.pid, lambda: not child.is_alive()
    finally:
        child.kill()
        child.join()


def alone() -> None:
    """Forget to be a child: its locks would be removed at the end of the campaign only."""
    multiprocessing.set_start_method("fork", force=True)


def run_sweep(folder: Path) -> None:
    """The whole sweep, on ranks of its own, as a process that nobody forked would run it."""
    alone()
    Sweep(Path(folder), timeout_seconds=60).run(None)


@contextlib.contextmanager
def _jupyter(folder: Path) -> Iterator[tuple[int, Callable[[], bool]]]:
    from jupyter_client.manager import KernelManager

    manager = KernelManager(kernel_name="python3", connection_file=str(folder / "connection.json"))
    manager.start_kernel(
        cwd=str(Path.cwd()), env={**os.environ, "IPYTHONDIR": str(folder / "ipython")}
    )
    client = manager.client()
    client.start_channels()
    client.execute(f"from tests.faults.owners import run_sweep\nrun_sweep({str(folder)!r})")
    try:
        yield manager.provisioner.pid, lambda: not manager.is_alive()
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
        manager.cleanup_resources()


def _inject(
    sweep: Sweep,
    outcome: Outcome,
    chance: random.Random,
    pid: int,
    number: int,
    is_over: Callable[[], bool],
) -> tuple[Onlooker, float]:
    """Send the signal at a random moment: while the ranks start, or some time after some runs."""
    moment = Moment.any_of(sweep, chance)
    if chance.random() < 0.5:
        moment = Moment(0, chance.uniform(0, START_SECONDS))
    outcome.detail += f"; after {moment.runs} runs and {moment.seconds:.3f} s"
    onlooker = Onlooker(sweep)
    deadline = time.monotonic() + PATIENT_SECONDS
    while onlooker.look() < moment.runs and not is_over() and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(moment.seconds)
    outcome.missed = int(is_over())
    at = time.monotonic()
    if not outcome.missed:
        os.killpg(-pid, number) if pid < 0 else os.kill(pid, number)
    return onlooker, at


def _aftermath(
    stage: Stage, sweep: Sweep, outcome: Outcome, onlooker: Onlooker, at: float, ended: bool
) -> Outcome:
    """Look at what is left, and resume on the ranks of the stage."""
    outcome.seconds = time.monotonic() - at
    outcome.allowed = GRACE_SECONDS
    outcome.hung = int(not ended)
    outcome.left = "; ".join(stage.left())
    onlooker.stop()
    onlooker.look()
    resume(sweep, outcome, stage.ranks())
    outcome.lost = onlooker.lost()
    return outcome

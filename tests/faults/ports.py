"""Ports are taken: those that ranks listened at, and nearly all while others start."""

import contextlib
import ctypes
import os
import random
import socket
import subprocess
import threading
import time
from pathlib import Path

import psutil

from ddlnb.errors import DdlnbError, RankError
from tests.faults.injection import inject, resume
from tests.faults.outcome import GRACE_SECONDS, START_SECONDS, Outcome
from tests.faults.owners import FORK, alone
from tests.faults.processes import PATIENT_SECONDS
from tests.faults.stage import Stage
from tests.faults.sweep import Sweep

FRESH_SHARE = 0.25
FIRST_PORT, PORTS, FREE_PORTS = 40_000, 400, 120
CLONE_NEWNET = 0x40000000


def port_taken(stage: Stage, folder: Path, chance: random.Random, outcome: Outcome) -> Outcome:
    """A thief takes every port of a rank as soon as it is free, or ranks start where few are."""
    if chance.random() < FRESH_SHARE and os.geteuid() == 0:
        return _start_among_thieves(stage, folder, chance, outcome)
    ranks = stage.ready()
    pids = ranks.pids
    thief = Thief(pids)
    outcome = inject(
        *(stage, Sweep(folder, timeout_seconds=PATIENT_SECONDS, methods=("WFBP-A2A", "WFBP-PS"))),
        *(outcome, chance),
        ranks=ranks,
        act=thief.start,
        undo=thief.stop,
        may_go_on=True,
    )
    outcome.detail += f"; {thief.taken} ports taken"
    return outcome


class Thief(threading.Thread):
    """Takes every port at which one of the processes listened, once it is free."""

    def __init__(self, pids: list[int]):
        super().__init__(name="thief", daemon=True)
        self._pids, self._over, self._held = pids, threading.Event(), contextlib.ExitStack()
        self.taken = 0

    def run(self) -> None:
        wanted: set[tuple[str, int]] = set()
        while not self._over.wait(0.02):
            for pid in self._pids:
                with contextlib.suppress(psutil.Error):
                    for line in psutil.Process(pid).net_connections("tcp4"):
                        if line.status == psutil.CONN_LISTEN:
                            wanted.add((line.laddr.ip, line.laddr.port))
            for address in list(wanted):
                with contextlib.suppress(OSError):
                    self._held.enter_context(socket.create_server(address))
                    wanted.discard(address)
                    self.taken += 1

    def stop(self) -> None:
        """Give the ports back."""
        self._over.set()
        if self.ident is not None:
            self.join()
        self._held.close()


def _start_among_thieves(
    stage: Stage, folder: Path, chance: random.Random, outcome: Outcome
) -> Outcome:
    """Ranks start and run in a network of their own in which most ports are taken."""
    sweep = Sweep(folder, timeout_seconds=PATIENT_SECONDS)
    taken = chance.randrange(PORTS // 2, PORTS - FREE_PORTS)
    outcome.detail = f"start with {taken} of {PORTS} ports taken"
    ours, theirs = FORK.Pipe()
    child = FORK.Process(target=_run_where_ports_are_few, args=(folder, taken, theirs))
    start = time.monotonic()
    child.start()
    theirs.close()
    outcome.allowed = START_SECONDS + sweep.total * PATIENT_SECONDS + GRACE_SECONDS
    child.join(START_SECONDS + GRACE_SECONDS)
    outcome.hung = int(child.is_alive())
    outcome.seconds = time.monotonic() - start
    child.kill()
    child.join()
    with contextlib.suppress(EOFError):
        outcome.error, outcome.told = ours.recv() if ours.poll() else ("nothing", "")
    ours.close()
    if outcome.error not in ("", RankError.__name__):
        outcome.wrong += "another error than expected; "
    outcome.left = "; ".join(stage.left())
    before = sweep.finished()
    resume(sweep, outcome, stage.ranks())
    outcome.lost = len(set(before) - set(sweep.finished()))
    return outcome


def _run_where_ports_are_few(folder: Path, taken: int, answer: object) -> None:
    """The sweep; sends the error's class and first line, or empty texts."""
    alone()
    if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "no network of its own")
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    last = FIRST_PORT + PORTS - 1
    Path("/proc/sys/net/ipv4/ip_local_port_range").write_text(f"{FIRST_PORT} {last}")
    held = [socket.create_server(("", 0)) for _ in range(taken)]
    told = ("", "")
    try:
        Sweep(Path(folder), timeout_seconds=PATIENT_SECONDS).run(None)
    except DdlnbError as error:
        told = (type(error).__name__, str(error).splitlines()[0])
    answer.send(told)  # type: ignore[attr-defined]
    for server in held:
        server.close()

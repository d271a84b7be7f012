"""Faults of whole commands, by engine or launcher: what their user sees, and what is left."""

import contextlib
import os
import random
import re
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import psutil

from ddlnb.files import ROOT
from ddlnb.launch.reaper import TOKEN_VARIABLE
from tests.faults.outcome import GRACE_SECONDS, Outcome
from tests.faults.processes import Kind
from tests.faults.stage import MARK, Stage
from tests.faults.sweep import Onlooker, Sweep

START_SECONDS, RUN_SECONDS = 30.0, 3.0  # faults come at any moment of a start, or of a run
END_SECONDS = 400.0  # within which a command ends, on a busy machine
TIMES = ("--timeout", "40", "--start-timeout", "80")
RUN = ("--batch", "4", "--iterations", "9", "--warmup", "1", "--repeat", "2", "--no-baselines")
TRAIN = ("train", "--task", "quadratic", "--workers", "2", "--yes", "--folder", "saved")
PAUSE_SECONDS = 3.0  # of who is stopped and goes on
REFUSED = "the emulated network is not the one asked for"  # by a machine that others keep busy
CUT = re.compile(r"^ddlnb: (\S+) .*\bmove it away", re.M)
ENDED = "it had ended"
REPEATS = 3  # of a command that was refused so
SENDS = """import random, socket, sys, time
held = []
for line in sys.argv[2:]:
    host, port = line.rsplit(":", 1)
    try:
        held.append(socket.create_connection((host, int(port)), 2))
        held[-1].sendall(random.Random(line).randbytes(int(sys.argv[1])))
    except OSError:
        pass
time.sleep(2 if int(sys.argv[1]) else 60)"""


def _measure(method: str, *words: str) -> tuple[str, ...]:
    out = ("--workers", "2", "--out", "rows.csv", "--yes")
    return ("measure", "--model", "small-conv", "--method", method, *RUN, *TIMES, *out, *words)


COMMANDS: dict[str, tuple[str, ...]] = {
    "torch all-reduce": _measure("WFBP-A2A"),
    "servers": _measure("WFBP-PS"),
    "collectives": _measure("WFBP-A2A", "--collective", "ring"),
    "Horovod": _measure("WFBP-A2A", "--engine", "horovod"),
    "BytePS": _measure("WFBP-PS", "--engine", "byteps"),
    "emulated": _measure("WFBP-A2A", "--launcher", "emulated", "--network", "1Gb/s 1ms"),
    "MPI": _measure("WFBP-A2A", "--launcher", "mpi"),
    "SSH": _measure("WFBP-A2A", "--launcher", "ssh", "--on", "loopback"),
    "Slurm": _measure("WFBP-A2A", "--launcher", "slurm"),
    "lockstep": (*TRAIN, "--method", "bsp", "--method", "local(8)", "--steps", "20000"),
    "distributed": (*TRAIN, "--method", "bsp", "--steps", "2000", "--executor", "distributed"),
    "BytePS training": (*TRAIN, "--method", "bsp on PS", "--steps", "2000", "--executor", "byteps"),
    "strategies": ("survey", "strategies", "--layout", "dp2 tp2"),
    "reproduce": ("survey", "reproduce", "--only", "sec3_1_2*", "--build", "build", "--yes"),
    "calibrate": ("cluster", "fit", "here", "--workers", "2", "--out", "here"),
}
SERVICES = {"SSH": "ssh_loopback.sh", "Slurm": "slurm_one_node.sh"}

_HEARING: dict[Path, subprocess.Popen] = {}
Act = Callable[[subprocess.Popen, Stage, Path, random.Random], object]


def _signal(number: int) -> Act:
    return lambda child, stage, folder, chance: child.send_signal(number)


def _group(child: subprocess.Popen, stage: Stage, folder: Path, chance: random.Random) -> None:
    os.killpg(child.pid, signal.SIGINT)


def _started(child: subprocess.Popen, stage: Stage, of_reaper: bool = False) -> list:
    """Return what the command started: reapers, or all else."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            marked = process.environ().get(MARK) == stage.mark
            is_reaper = any(word.endswith("reaper.py") for word in process.cmdline())
            is_helper = process.ppid() == os.getpid() or process.pid == os.getpid()
            is_other = process.environ().get(TOKEN_VARIABLE) in stage.tokens
            if marked and is_reaper == of_reaper and not (is_helper or is_other):
                found.append(process)
    return found


def _owner_and_reaper(child: subprocess.Popen, stage: Stage, *_: object) -> None:
    for process in _started(child, stage, of_reaper=True):
        with contextlib.suppress(psutil.Error):  # ended since
            process.kill()
    child.kill()


def _one(number: int, goes_on: bool = False) -> Act:
    """Return a signal for any one process of those that the command started."""

    def act(child: subprocess.Popen, stage: Stage, folder: Path, chance: random.Random) -> str:
        said = "the command itself"
        for process in chance.sample(found := _started(child, stage), len(found)):
            with contextlib.suppress(psutil.Error):  # ended since
                said = " ".join(process.cmdline())[-60:]
                process.send_signal(number)
                break
        else:
            if child.poll() is not None:
                return ENDED
            child.send_signal(number)
            process = psutil.Process(child.pid)
        if goes_on:
            threading.Timer(PAUSE_SECONDS, lambda: _to(process, signal.SIGCONT)).start()
        elif number == signal.SIGSTOP and process.pid == child.pid:
            process.resume()  # nobody ends who waits for a stopped owner
        return said

    return act


def _to(process: psutil.Process, number: int) -> None:
    with contextlib.suppress(psutil.Error):
        process.send_signal(number)


def send(count: int, child: subprocess.Popen, stage: Stage, *_: object) -> str:
    """Send random bytes to every port of the command, in its own networks; none: hold it open."""
    asked = 0
    for process in [psutil.Process(child.pid), *_started(child, stage)]:
        with contextlib.suppress(psutil.Error):
            listen = [c for c in process.net_connections("tcp4") if c.status == psutil.CONN_LISTEN]
            there = [f"{c.laddr.ip.replace('0.0.0.0', '127.0.0.1')}:{c.laddr.port}" for c in listen]
            inside = ["nsenter", "--target", str(process.pid), "--net"] * (os.geteuid() == 0)
            if there:
                words = [*inside, sys.executable, "-P", "-c", SENDS, str(count), *there]
                subprocess.Popen(words, env={"PATH": os.environ["PATH"]}, stderr=-3)
            asked += len(there)
    return f"{asked} ports"


def _file(change: Callable[[Path], object]) -> Act:
    def act(child: subprocess.Popen, stage: Stage, folder: Path, chance: random.Random) -> str:
        files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
        path = chance.choice([one for one in files if one.name != "said"] or [folder / "rows.csv"])
        with contextlib.suppress(OSError):
            change(path)
        return path.name

    return act


def _limit(which: int, more: int) -> Act:
    def act(child: subprocess.Popen, *_: object) -> None:
        used = psutil.Process(child.pid).memory_info().vms if which == resource.RLIMIT_AS else 0
        resource.prlimit(child.pid, which, (used + more, used + more))

    return act


ACTS: dict[str, Act] = {
    "ctrl-c": _signal(signal.SIGINT),
    "ctrl-c of the group": _group,
    "SIGTERM": _signal(signal.SIGTERM),
    "SIGHUP": _signal(signal.SIGHUP),
    "SIGKILL": _signal(signal.SIGKILL),
    "owner and reaper killed": _owner_and_reaper,
    "one killed": _one(signal.SIGKILL),
    "one stopped": _one(signal.SIGSTOP),
    "stopped and continued": _one(signal.SIGSTOP, goes_on=True),
    "random bytes": partial(send, 4096),
    "half-open sockets": partial(send, 0),
    "file deleted": _file(Path.unlink),
    "file truncated": _file(lambda path: os.truncate(path, path.stat().st_size // 2)),
    "file read-only": _file(lambda path: path.chmod(0o400)),
    "no file grows": _limit(resource.RLIMIT_FSIZE, 200),
    "low memory": _limit(resource.RLIMIT_AS, 30 << 20),
}


def fault(command: str, act: str) -> Kind:
    """Return the fault of a command at a random moment; then the command is repeated."""

    def injected(stage: Stage, folder: Path, chance: random.Random, outcome: Outcome) -> Outcome:
        if command in SERVICES:
            stage.serve(ROOT / "scripts" / "launchers" / SERVICES[command])
        sweep, words = Sweep(folder), COMMANDS[command]
        runs = int("rows.csv" in words and chance.random() < 0.7)
        moment = chance.uniform(0, RUN_SECONDS if runs else START_SECONDS)
        onlooker = Onlooker(sweep)
        child = run(folder, words)
        while onlooker.look() < runs and child.poll() is None:
            time.sleep(0.01)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(moment)
        outcome.missed = int(child.poll() is not None)
        at = time.monotonic()
        if not outcome.missed:
            told = ACTS[act](child, stage, folder, chance)
            outcome.missed = int(told == ENDED)
            outcome.detail = f"after {runs} runs and {moment:.3f} s; {told or ''}"
        is_ended = act in list(ACTS)[:6]
        outcome.allowed = GRACE_SECONDS if is_ended else END_SECONDS
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(outcome.allowed)
        outcome.seconds = time.monotonic() - at
        outcome.hung = int(child.poll() is None)
        child.kill()
        judge(outcome, child.wait(), heard(folder))
        onlooker.look()
        onlooker.stop()
        outcome.left = "; ".join(stage.left())
        for _ in range(REPEATS):
            again = run(folder, words)
            with contextlib.suppress(subprocess.TimeoutExpired):
                outcome.resumed = int(again.wait(END_SECONDS) == 0)
            again.kill()
            said = heard(folder)
            if told := CUT.search(said):
                (folder / told[1]).rename(folder / f"{told[1]} away")  # as its user would
            elif REFUSED not in said:
                break
        if not outcome.resumed:
            outcome.wrong += f"not repeated: {said[-300:]!r}; "
        outcome.lost = 0 if act.startswith("file") else onlooker.lost()
        return outcome

    return injected


def run(folder: Path, words: Sequence[str]) -> subprocess.Popen:
    """Start a command in a folder; what it says goes through a pipe into the file ``said`` there.

    A limit on files that the command may write is none on its words then.
    """
    end, begin = os.pipe()
    alone = {"env": {"PATH": os.environ["PATH"]}, "start_new_session": True}
    with (folder / "said").open("wb") as said:
        _HEARING[folder] = subprocess.Popen(["cat"], stdin=end, stdout=said, **alone)
    child = subprocess.Popen(
        [str(Path(sys.executable).with_name("ddlnb")), *words],
        **{"cwd": folder, "stdout": begin, "stderr": begin, "start_new_session": True},
    )
    os.close(end)
    os.close(begin)
    return child


def heard(folder: Path) -> str:
    """Return what the last command in a folder said, which may have processes that live on."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        _HEARING[folder].wait(2)
    return (folder / "said").read_text(errors="replace")


def judge(outcome: Outcome, status: int, text: str) -> None:
    """Note how the command ended, and what is wrong with that."""
    last = (text.strip().splitlines() or [""])[-1]
    outcome.told = last[:300] if status else ""
    head, *tracebacks = text.split("Traceback (most recent call last)")
    # Python's own answer, as long as it has not come to our first line.
    is_early = last == "KeyboardInterrupt" and len(tracebacks) == 1
    outcome.error = {0: "", 130: "interrupted"}.get(status, "interrupted" if is_early else "error")
    if status < 0:
        outcome.error = signal.Signals(-status).name
    elif status and not (is_early or last.startswith("ddlnb:")):
        outcome.wrong += f"status {status} and no sentence; "
    if len(tracebacks) > is_early:
        outcome.wrong += f"a traceback: {head[-200:]!r} {tracebacks[0][:1500]!r}; "


KINDS = {f"{command}: {act}": fault(command, act) for command in COMMANDS for act in ACTS}

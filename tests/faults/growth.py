"""Whether a measurement grows while it runs: memory, open files and threads of its processes.

    python -m tests.faults.growth [--minutes 10]

A sweep without an end runs so long, and Ctrl-C ends it. The first third of the time is its start;
of each process the medians of the other two are compared: what grows for an hour grows in them.
"""

import contextlib
import signal
import sys
import tempfile
import time
from pathlib import Path

import pandas as pd
import psutil

from benchmarks.command import command
from tests.faults.commands import END_SECONDS, TIMES, run

SWEEP = (
    *("measure", "--model", "small-conv", "--replay", "small-conv_b64_cpu-1thread"),
    *("--method", "WFBP-A2A", "--method", "WFBP-PS", "--workers", "2", "--no-baselines"),
    *("--iterations", "3", "--warmup", "1", "--repeat", "100000", "--out", "rows.csv", "--yes"),
    *TIMES,
)
HAS = ["MB", "files", "threads"]
MOST_SHARE, MOST_MORE = 1.05, 2  # of memory; and of files and threads


def main(*, minutes: float = 10.0) -> int:
    """Return status 0 if no process grew, and at least a run a minute was kept."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background has none
    with tempfile.TemporaryDirectory(prefix="growth-") as folder:
        child, seen = run(Path(folder), SWEEP), []
        try:
            start = time.monotonic()
            while (at := (time.monotonic() - start) / 60) < minutes and child.poll() is None:
                seen += [{"third": int(3 * at / minutes), **one} for one in look(child.pid)]
                time.sleep(1)
        finally:
            child.send_signal(signal.SIGINT)
            child.wait(END_SECONDS)
        runs = len((Path(folder) / "rows.runs.csv").read_text().splitlines()) - 1
    table = grown(pd.DataFrame(seen))
    sys.stdout.write(f"{table.round(1).to_string()}\n{runs} runs in {minutes:g} minutes\n")
    return int(table["grew"].any() or runs < minutes)


def look(owner: int) -> list[dict[str, object]]:
    """Return what the process and all that it started have, as far as they are still there."""
    found = []
    with contextlib.suppress(psutil.NoSuchProcess):
        for one in [(top := psutil.Process(owner)), *top.children(recursive=True)]:
            with contextlib.suppress(psutil.Error), one.oneshot():
                name = f"{one.pid} {' '.join(one.cmdline())[-40:]}"
                mb = one.memory_info().rss / 1e6
                has = {"MB": mb, "files": one.num_fds(), "threads": one.num_threads()}
                found.append({"process": name, **has})
    return found


def grown(seen: pd.DataFrame) -> pd.DataFrame:
    """Return each process's medians in the second and the last third, and whether it ``grew``."""
    by_third = seen.groupby(["third", "process"])[HAS].median()
    second, last = by_third.loc[1], by_third.loc[2].reindex(by_third.loc[1].index)
    more = (last[HAS[1:]] - second[HAS[1:]] > MOST_MORE).any(axis=1)
    grew = (last["MB"] > MOST_SHARE * second["MB"]) | more
    return second.join(last, lsuffix=" before", rsuffix=" after").assign(grew=grew)


if __name__ == "__main__":
    sys.exit(command(main))

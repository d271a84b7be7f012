"""How quick answers are where there is much to try or to read.

    python -m benchmarks.scale_speed                          # all layouts of large models
    python -m benchmarks.scale_speed --ranks 8                # `ddlnb trace` of ranks of 200 MB
    python -m benchmarks.scale_speed --ranks 1 --megabytes 1000   # all that one file says
    python -m benchmarks.scale_speed --rows 1000000           # reading a results file

Traces are those that HolisticTraceAnalysis published of two ranks, one step after the other, again
and again. The command runs in a process of its own, with its start.
"""

import gzip
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from functools import partial
from itertools import count, cycle, islice
from pathlib import Path

import msgspec
import pandas as pd

from benchmarks.command import command
from benchmarks.repeated import seconds_of
from ddlnb.files import DATA, PUBLISHED
from ddlnb.parallelism.forecast.layouts import scale

MACHINES = (  # nodes of eight H100, and the framework: nemo's layouts are interleaved, too
    ("llama3-8b", 8, "nanotron"),
    ("llama3-70b", 64, "nanotron"),
    ("llama3-405b", 2048, "nanotron"),
    ("llama3-70b", 2048, "nemo"),
)
REPETITIONS = 3
SWEEP = "2026-11-21_two-cores_loopback/rows.csv"


def layouts() -> pd.DataFrame:
    """The least seconds of some repetitions in which all layouts of a model are forecast."""
    rows = []
    for model, nodes, framework in MACHINES:
        ask = partial(scale, model, "H100", nodes, framework=framework, global_batch=16 * nodes * 8)
        seconds = min(seconds_of(ask) for _ in range(REPETITIONS))
        found = len(ask().outlook.cases)
        rows.append((model, framework, 8 * nodes, found, seconds, 1000 * seconds / found))
    columns = ["model", "framework", "GPUs", "layouts", "seconds", "ms per layout"]
    return pd.DataFrame(rows, columns=columns)


def write_traces(folder: Path, ranks: int, size: int) -> None:
    """Write traces of at least so many bytes: the steps of the two ranks, repeated."""
    for rank in range(min(ranks, 2)):
        kept = PUBLISHED / "traces" / f"hta-rank-{rank}.json.gz"
        head = msgspec.json.decode(gzip.decompress(kept.read_bytes()))
        events = head.pop("traceEvents")
        step = 1.2 * (max(one["ts"] for one in events) - min(one["ts"] for one in events))
        with tempfile.TemporaryFile() as steps:  # a child's peak is never below its parent's
            for again in count():
                moved = [_later(one, again, again * step) for one in events]
                steps.write(b"," * bool(again) + msgspec.json.encode(moved)[1:-1])
                if steps.tell() >= size:
                    break
            for number in range(rank, ranks, 2):
                head["distributedInfo"]["rank"] = number
                with (folder / f"rank{number}.json").open("wb") as file:
                    file.write(msgspec.json.encode(head)[:-1] + b',"traceEvents":[')
                    steps.seek(0)
                    shutil.copyfileobj(steps, file)
                    file.write(b"]}")


def _later(event: dict, again: int, seconds: float) -> dict:
    args = dict(event.get("args", {}))
    if "correlation" in args:
        args["correlation"] += again * 2**32
    step = re.fullmatch(r"ProfilerStep#(\d+)", event["name"])
    name = f"ProfilerStep#{int(step[1]) + 2 * again}" if step else event["name"]
    return {**event, "name": name, "ts": event["ts"] + seconds, "args": args}


def _run(words: list[str], **row: float) -> pd.DataFrame:
    """Run a command, and return its seconds and peak memory beside the row."""
    start = time.perf_counter()
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
    seconds = time.perf_counter() - start
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    core, peak = used.ru_utime + used.ru_stime, used.ru_maxrss * 1024 / 1e6
    return pd.DataFrame([row | {"seconds": seconds, "seconds of a core": core, "peak MB": peak}])


def traced(ranks: int, megabytes: int) -> pd.DataFrame:
    """Seconds and peak memory of `ddlnb trace` on a folder of so many ranks, or a rank's file."""
    with tempfile.TemporaryDirectory() as folder:
        write_traces(Path(folder), ranks, megabytes * 10**6)
        files = list(Path(folder).iterdir())
        size = sum(path.stat().st_size for path in files)
        words = [sys.executable, "-m", "ddlnb", "trace", folder if ranks > 1 else str(files[0])]
        return _run(words, ranks=ranks, MB=size / 1e6)


def read(rows: int) -> pd.DataFrame:
    """Seconds and peak memory of `ddlnb.read_rows` on so many rows, those of a sweep repeated."""
    head, *kept = (DATA / "measured" / SWEEP).read_text().splitlines(keepends=True)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "rows.csv"
        with file.open("w") as written:
            written.write(head)
            written.writelines(islice(cycle(kept), rows))
        asked = f"import ddlnb; assert len(ddlnb.read_rows({str(file)!r})) == {rows}"
        return _run([sys.executable, "-c", asked], rows=rows, MB=file.stat().st_size / 1e6)


def main(*, ranks: int = 0, megabytes: int = 200, rows: int = 0) -> None:
    """Print the least seconds of some repetitions, or those of reading traces or rows."""
    table = read(rows) if rows else traced(ranks, megabytes) if ranks else layouts()
    print(table.round(3).to_string(index=False))


if __name__ == "__main__":
    command(main)

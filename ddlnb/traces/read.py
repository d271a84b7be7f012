"""Reading a trace, whichever tool wrote it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ddlnb.errors import InputError, require
from ddlnb.results.timeline import Timeline
from ddlnb.traces.byteps import byteps_timeline, read_byteps_graph
from ddlnb.traces.chrome import (
    BYTEPS,
    HOROVOD,
    KINETO,
    KNOWN,
    OURS,
    described,
    events_of,
    read_text,
    tool_of,
)
from ddlnb.traces.horovod import horovod_timeline
from ddlnb.traces.jobs.table import Job, read_job
from ddlnb.traces.kineto.trace import KinetoTrace, kineto_trace

if TYPE_CHECKING:
    import networkx as nx


def read_trace(path: str | Path) -> Job | KinetoTrace | Timeline | nx.DiGraph:
    """Return what a trace file holds, as the tool that wrote it deserves.

    - A table of all operations of a job (.csv): a ``Job``, which ``ddlnb.what_if`` replays.
    - A trace of one rank by torch.profiler (.json): a ``KinetoTrace``. Its ``workload(model)``
      returns layers and gradients, ``timeline()`` spans, ``operations`` what waits for what.
    - A timeline of Horovod, or a comm.json of BytePS: a ``Timeline`` of messages.
    - A dag.gml of BytePS: the networkx graph of its operations, without circles.

    Times are seconds; files may be compressed (.gz). Raises InputError for a file that cannot be
    read, is too large for the memory that is free, or that none of these tools wrote.

    >>> import ddlnb
    >>> ddlnb.read_trace("data/published/traces/bytedance-trace-ST.csv.gz")
    Job('bytedance-trace-ST', 6,784 operations, 32 iterations, 2 data-parallel ranks x 4 stages)
    """
    path = Path(path)
    require(not path.is_dir(), f"trace {str(path)!r} is a folder; give the file of one trace in it")
    if path.name.removesuffix(".gz").endswith(".csv"):
        return read_job(path)
    if path.suffix == ".gml":
        return read_byteps_graph(path)
    name = path.name.removesuffix(".gz").removesuffix(".json")
    events, head = events_of(read_text(path), path.name)
    tool = tool_of(events, head)
    if tool == KINETO:
        return kineto_trace(events, head, name)
    if tool == HOROVOD:
        return horovod_timeline(events, path.name, HOROVOD)
    if tool == BYTEPS:
        return byteps_timeline(events, path.name, BYTEPS)
    require(tool != OURS, f"{path.name!r} was written by ddlnb itself; open it at ui.perfetto.dev")
    require(bool(events), f"{path.name!r} has no event; give {KNOWN}")
    raise InputError(f"{path.name!r} has {described(events)}, of no tool known here; give {KNOWN}")

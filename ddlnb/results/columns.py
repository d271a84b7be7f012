"""The columns of tables of results, and what their values must be."""

from __future__ import annotations

from ddlnb.results.schema import Column, Kind, Rule, Schema

SOURCES = ("published", "simulated", "emulated", "measured")  # of a row

# A table of throughputs.
KEY = ["model", "local_batch", "network", "method", "gpus"]
RATE = "throughput_samples_per_s"
THROUGHPUT = (
    Column("model", Kind.NAME),
    Column("local_batch", Kind.COUNT),
    Column("network", Kind.TEXT),
    Column("method", Kind.NAME),
    Column("gpus", Kind.COUNT),
    Column(RATE, Kind.POSITIVE),
)
NAMED_NETWORK = Rule(
    lambda rows: (rows["gpus"].astype(int) > 1) & (rows["network"].fillna("").str.strip() == ""),
    "network is empty; only a row of one GPU, which uses none, may leave it out",
)

# The tidy table: what was run. Runs that agree in all of these are repetitions of one cell.
CELL = [
    *("model", "structure", "local_batch", "network", "method", "gpus", "engine", "source"),
    *("servers", "optimizer", "settings", "iterations", "warmup", "machine"),
]
# What came out of one run. Seconds and bytes are per iteration and worker.
MEASURES = [RATE, "iteration_seconds", "exposed_communication_seconds", "bytes_sent"]
PROVENANCE = ["versions", "commit", "time"]  # of a run
RUN_COLUMNS = [*CELL, "repetition", *MEASURES, "messages", "plan", *PROVENANCE]
ROW_COLUMNS = [*CELL, *MEASURES, "std", "repetitions", "messages", "plan", *PROVENANCE]
TEXT = {
    *("model", "structure", "network", "method", "engine", "source", "optimizer", "settings"),
    *("machine", "plan", *PROVENANCE),
}


def tidy(names: list[str]) -> Schema:
    """Return the schema of a tidy table with these columns."""
    kinds = {name: Kind.TEXT if name in TEXT else Kind.NUMBER for name in names}
    return Schema(
        tuple(Column(name, kind) for name, kind in {**kinds, RATE: Kind.POSITIVE}.items()),
        what="results file",
        way_out="fix that file or move it away; nothing has been overwritten",
    )


RUNS, ROWS = tidy(RUN_COLUMNS), tidy(ROW_COLUMNS)

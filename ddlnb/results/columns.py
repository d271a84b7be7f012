"""The columns of the tidy table of results, in their order."""

from __future__ import annotations

SOURCES = ("published", "simulated", "emulated", "measured")  # of a row
# What was run. Runs that agree in all of these are repetitions of one cell.
CELL = [
    *("model", "structure", "local_batch", "network", "method", "gpus", "engine", "source"),
    *("servers", "optimizer", "settings", "iterations", "warmup", "machine"),
]
# What came out of one run. Seconds and bytes are per iteration and worker.
MEASURES = [
    "throughput_samples_per_s",
    "iteration_seconds",
    "exposed_communication_seconds",
    "bytes_sent",
]
PROVENANCE = ["versions", "commit", "time"]  # of a run
TEXT = [
    *("model", "structure", "network", "method", "engine", "source", "optimizer", "settings"),
    *("machine", "plan", "versions", "commit", "time"),
]
RUN_COLUMNS = [*CELL, "repetition", *MEASURES, "messages", "plan", *PROVENANCE]
ROW_COLUMNS = [*CELL, *MEASURES, "std", "repetitions", "messages", "plan", *PROVENANCE]

"""Tables of runs for tests."""

import csv
from pathlib import Path

RUN = {
    "model": "llama-1B", "params_b": "1.342", "layers": "16", "hidden": "2048", "heads": "32",
    "kv_heads": "32", "ffn": "8192", "vocab": "131072", "seq_len": "4096", "gpu": "H100-80GB-SXM",
    "num_gpus": "16", "gpus_per_node": "8", "network": "AWS EFA (3200 Gb/s per node nominal)",
    "tp": "2", "pp": "2", "dp": "4", "zero_stage": "1", "micro_batch": "4", "grad_accum": "16",
    "global_batch_seqs": "256", "precision": "bf16",
}  # fmt: skip


def write_table(path: Path, *rows: dict[str, str]) -> Path:
    """Write rows, each the run above with changes, and return the path."""
    rows_written = [RUN | row for row in rows]
    columns = list(dict.fromkeys(name for row in rows_written for name in row))
    with path.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, columns)
        writer.writeheader()
        writer.writerows(rows_written)
    return path

"""What the ways of sharing cost, as sentences that are computed from the rows."""

from __future__ import annotations

import pandas as pd

from ddlnb.studies.findings import Findings, findings
from ddlnb.studies.sec1_parallelism.formulas import break_even_batch
from ddlnb.units import show_bytes


def parallelism_findings(rows: pd.DataFrame) -> Findings:
    """Return the result, memory, traffic and balance of `compare_parallelism`'s rows."""
    alone, split, pipeline, data = (rows.loc[name] for name in rows.index)
    workers, batch = int(split["workers"]), int(alone["samples"])
    return findings(
        f"Result: after training no parameter differs from the one worker's by more than "
        f"{rows['difference'].max():.1e}.",
        f"Memory: the busiest of {workers} workers keeps {_share(split, alone, 'state_bytes')} of "
        f"one worker's parameters, gradients and momentum if the neurons are split, "
        f"{_share(pipeline, alone, 'state_bytes')} in the pipeline and "
        f"{_share(data, alone, 'state_bytes')} with data parallelism; of its activations it keeps "
        f"{_share(split, alone, 'activation_bytes')}, "
        f"{_share(pipeline, alone, 'activation_bytes')} and "
        f"{_share(data, alone, 'activation_bytes')}.",
        f"Traffic in a step of {batch} samples: {_sent(split)}, {_sent(pipeline)} and "
        f"{_sent(data)}, with {_times(split)}, {_times(pipeline)} and {_times(data)} to wait for "
        f"others. Split neurons send in proportion to the batch, data parallelism in proportion "
        f"to the parameters: at {break_even_batch():.0f} samples they send equally much, whatever "
        f"the number of workers.",
        f"Imbalance: the busiest worker computes {split['imbalance']:.2f}, "
        f"{pipeline['imbalance']:.2f} and {data['imbalance']:.2f} times the mean. If sending took "
        f"no time, a step would be at most {split['speedup_bound']:.2f}, "
        f"{pipeline['speedup_bound']:.2f} and {data['speedup_bound']:.2f} times as fast as one "
        f"worker's: stages of a pipeline wait for each other as long as the batch is not cut.",
    )


def _share(row: pd.Series, alone: pd.Series, column: str) -> str:
    return f"{100 * row[column] / alone[column]:.0f} %"


def _sent(row: pd.Series) -> str:
    return show_bytes(row["bytes_sent"])


def _times(row: pd.Series) -> str:
    count = int(row["exchanges"])
    return f"{count} time" + "s" * (count != 1)

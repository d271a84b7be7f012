"""What a table of goodput says to do, in sentences."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ddlnb.parallelism.goodput.compare import named_intervals
from ddlnb.parallelism.goodput.failures import fit_failure_rate, in_hours
from ddlnb.parallelism.goodput.month import Job
from ddlnb.units import counted

if TYPE_CHECKING:
    import pandas as pd

LEVEL = 0.005  # of the goodput of all nodes: less is no difference


def goodput_sentences(job: Job, table: pd.DataFrame) -> list[str]:
    """Return how often such a job fails, how often to write checkpoints, and what pays.

    ``table`` has rows for several numbers of spare nodes, elastic or not. Goodput is compared over
    all nodes that are paid for, the spare ones as well.
    """
    mean = in_hours(fit_failure_rate().mean_time_to_failure(job.gpus))
    daly = named_intervals(job)["Daly"] / 60
    paid = table["goodput"] * table["nodes"] / (table["nodes"] + table["spare_nodes"])
    waits, elastic = paid[~table["elastic"]], paid[table["elastic"]]
    said = [
        f"A job on {counted(job.gpus, 'GPU')} fails every {mean.estimate:.3g} hours "
        f"({mean.low:.2g} to {mean.high:.3g} on 90 % of clusters); write a checkpoint every "
        f"{daly:.3g} minutes of work.",
    ]
    if len(waits):
        row = table.loc[waits.idxmax()]
        said.append(
            f"Waiting for broken nodes, {row['spare_nodes']} spare nodes are best: "
            f"{waits.max():.1%} of what all nodes could do is useful."
        )
    if len(elastic) and len(waits):
        row = table.loc[elastic.idxmax()]
        gain = elastic.max() - waits.max()
        if gain > LEVEL:
            verdict = f"elastic training pays, {gain:.1%} more"
        elif gain < -LEVEL:
            verdict = f"elastic training does not pay, {-gain:.1%} less"
        else:
            verdict = "elastic training gains nothing over them"
        said.append(f"With {row['spare_nodes']} spare nodes, {verdict} ({elastic.max():.1%}).")
    return said

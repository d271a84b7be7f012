"""What a table of goodput says to do, in sentences."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ddlnb.parallelism.goodput.compare import named_intervals
from ddlnb.parallelism.goodput.failures import fit_failure_rate, in_hours
from ddlnb.parallelism.goodput.month import Job
from ddlnb.units import counted, digits

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
        f"A job on {counted(job.gpus, 'GPU')} fails every {digits(mean.estimate, 3)} hours "
        f"({digits(mean.low, 2)} to {digits(mean.high, 3)} on 90 % of clusters); write a "
        f"checkpoint every {digits(daly, 3)} minutes of work.",
    ]
    if len(waits):
        row = table.loc[waits.idxmax()]
        said.append(
            f"Waiting for broken nodes is best with {counted(row['spare_nodes'], 'spare node')}: "
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
        spare = counted(row["spare_nodes"], "spare node")
        said.append(f"With {spare}, {verdict} ({elastic.max():.1%}).")
    return said

"""What a piece of advice does not know, said aloud."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ddlnb.advice.lossy_options import LossyOption
from ddlnb.advice.question import Question
from ddlnb.clusters.cluster import ASSUMED_ERROR
from ddlnb.units import show_bytes

NOTEWORTHY = 0.01  # relative: seconds that are known better are known


def unknowns(
    question: Question, lossy: Sequence[LossyOption], left_out: Sequence[str] = ()
) -> list[str]:
    """Return sentences, each on one thing that nobody measured or gave.

    ``left_out`` are lossy methods that were not judged, each with its reason.
    """
    cluster, workload = question.cluster, question.workload
    said = []
    if cluster.assumed:
        said.append(
            f"Nobody measured {_listed(cluster.assumed)} of {cluster.name}: their intervals are "
            f"assumed, and wide. `ddlnb calibrate` or your own values narrow them."
        )
    if cluster.model_error == ASSUMED_ERROR:
        said.append(
            f"How far simulated seconds are off on {cluster.name} is assumed: {ASSUMED_ERROR:.0%}."
        )
    if workload.spread >= NOTEWORTHY:
        said.append(
            f"The seconds of {workload.model} are known within {workload.spread:.0%} "
            f"({workload.source}); the throughput of one GPU would tell (--throughput)."
        )
    needed = question.memory_bytes(workload.local_batch)
    if math.isnan(needed):
        said.append(
            f"Whether larger batches of {workload.model} fit into memory is unknown: "
            f"{question.why_no_footprint}."
        )
    elif math.isnan(question.gpu_memory):
        said.append(
            f"Training takes about {show_bytes(int(needed))} of a GPU's memory; how much a GPU of "
            f"{cluster.name} has is unknown."
        )
    if lossy:
        said.append(
            f"How many iterations lossy methods need on {workload.model} is unknown; those given "
            f"are of a small task. Their compression is counted as free of cost."
        )
    said += [f"Not judged: {one}." for one in left_out]
    if not question.prices.are_given:
        said.append("Prices were not given: costs are in GPU hours.")
    return said


def _listed(words: Sequence[str]) -> str:
    *most, last = words
    return f"{', '.join(most)} and {last}" if most else last

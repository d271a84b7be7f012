"""The options that say what is trained and how its gradients are sent, and the workload of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from ddlnb.clusters.cluster import Cluster
    from ddlnb.workloads.workload import Workload

ModelName = Annotated[
    str,
    typer.Option(
        "--model",
        help="A model of `ddlnb models`, my.py:task, package.module:task, a Hugging Face "
        "config.json or architecture, or a kept profile.",
    ),
]
Throughput = Annotated[
    float | None,
    typer.Option(help="Samples per second of one GPU, measured; else a profile or a data sheet."),
]
Sequence = Annotated[
    int | None, typer.Option("--sequence", help="Tokens of a sample; default: the model's own.")
]
Gradients = Annotated[
    str, typer.Option("--gradients", help="Send gradients as fp16, bf16 or fp32; forecast only.")
]
Accumulate = Annotated[
    int,
    typer.Option("--accumulate", help="Exchange once in so many batches; forecast only."),
]


def workload_for(
    model: str,
    on: Cluster,
    batch: int | None,
    throughput: float | None,
    precision: str = "",
    *,
    sequence: int | None = None,
    gradients: str = "",
    accumulate: int = 1,
) -> Workload:
    """Return what one worker computes and sends; see `ddlnb.simulator.profiles.workload_on`."""
    from ddlnb.errors import require_whole
    from ddlnb.simulator.profiles import workload_on

    require_whole(accumulate=accumulate)
    found = workload_on(
        model, on, batch, sequence=sequence, throughput=throughput, precision=precision
    ).accumulated(accumulate)
    return found.sent_as(gradients) if gradients else found

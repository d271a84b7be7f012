"""Made-up models to calibrate with: one of many small tensors, and one of few large ones.

On an emulated network they are replayed, with as much computation as there is communication.
"""

from __future__ import annotations

from collections import Counter
from functools import partial

import torch
from torch import nn

from ddlnb.launch.site import Site
from ddlnb.workloads.replay import replayed
from ddlnb.workloads.tasks import Batch, Task
from ddlnb.workloads.tracing import trace
from ddlnb.workloads.workload import Workload


def _mlp(layers: int, width: int) -> nn.Module:
    blocks = [nn.Sequential(nn.Linear(width, width), nn.Tanh()) for _ in range(layers)]
    return nn.Sequential(*blocks)


def _vectors(width: int, local_batch: int, seed: int) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(local_batch, width, generator=generator),)


def _mean_square(module: nn.Module, batch: Batch) -> torch.Tensor:
    return module(batch[0]).square().mean()


def _probe(name: str, layers: int, width: int, local_batch: int) -> Task:
    return Task(
        name,
        partial(_mlp, layers, width),
        partial(_vectors, width),
        _mean_square,
        local_batch,
        "vectors",
        f"{layers} layers of width {width}, made up to calibrate with",
    )


PROBES = (_probe("probe-deep", 20, 160, 256), _probe("probe-wide", 4, 576, 96))
CARRIED = 2.0  # times the gradient: what a link carries while a replayed probe computes


def probes(site: Site) -> tuple[Task, ...]:
    """Return the made-up models as they are trained at this site."""
    if not site.is_emulated:
        return PROBES
    return tuple(replayed(_with_seconds(trace(probe), site.link.bandwidth)) for probe in PROBES)


def _with_seconds(workload: Workload, bandwidth: float) -> Workload:
    """Return the workload with made-up seconds, a third of them forward, shared out by bytes."""
    seconds = CARRIED * workload.gradient_bytes / bandwidth
    size = Counter[str]()
    for gradient in workload.gradients:
        size[gradient.layer] += gradient.bytes
    share = {layer: bytes_ / workload.gradient_bytes for layer, bytes_ in size.items()}
    return workload.with_seconds(
        {layer: seconds / 3 * part for layer, part in share.items()},
        {
            gradient.name: 2 * seconds / 3 * gradient.bytes / workload.gradient_bytes
            for gradient in workload.gradients
        },
        f"made up: what {CARRIED:g} times the gradient take on a link of this bandwidth",
    )

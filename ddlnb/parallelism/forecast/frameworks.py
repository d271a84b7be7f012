"""Frameworks: what they do differently, and the words by which tables name them."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Framework:
    """A framework: its words, and what its steps do.

    - gradient_bytes: of a gradient while replicas reduce it.
    - deals_by_cost: stages get layers by cost, the head included; otherwise evenly.
    - slow_transfers: runs may lose time in transfers between stages, as those of nanotron did.
    - overlaps: its replicas exchange gradients and sharded parameters while the GPU computes.
    - splits_sequences: tensor parallelism splits sequences, too, where nothing else is said.
    - keeps_scores: its attention keeps scores, their masks and what is left of them.
    - adds_apart: gradients of micro batches are added up in fp32 by kernels of their own.
    - hides_transfers: interleaved stages send while they compute another chunk.
    - interleaves: its pipelines can hold several chunks of layers per stage (vpp).
    - pipelined_latency: its tensor-parallel exchanges slow down where a pipeline spans nodes.
    - reports_first: its runs report the memory of the first stage, others of the fullest.
    """

    name: str
    words: str
    gradient_bytes: int
    deals_by_cost: bool = False
    slow_transfers: bool = False
    pipelined_latency: bool = False
    keeps_scores: bool = False
    overlaps: bool = False
    splits_sequences: bool = False
    interleaves: bool = False
    reports_first: bool = False
    hides_transfers: bool = False
    adds_apart: bool = False


FRAMEWORKS = (
    Framework(
        "nanotron",
        r"nanotron",
        4,
        True,
        True,
        True,
        splits_sequences=True,
        reports_first=True,
        adds_apart=True,
    ),
    Framework("fsdp", r"fsdp|composer|foundry|torchtitan|deepspeed|zero", 2, overlaps=True),
    Framework(
        "nemo",
        r"nemo|mcore|transformer.?engine",
        4,
        overlaps=True,
        splits_sequences=True,
        interleaves=True,
        hides_transfers=True,
    ),
    Framework("megatron", r"megatron", 4, keeps_scores=True, interleaves=True),
)
NAMES = tuple(framework.name for framework in FRAMEWORKS)


def named(words: str) -> int | None:
    """Return the index of the framework that these words name, None if they name none.

    >>> NAMES[named("Composer + PyTorch FSDP (MPT)")], named("JAX")
    ('fsdp', None)
    """
    for index, framework in enumerate(FRAMEWORKS):
        if re.search(framework.words, words, re.IGNORECASE):
            return index
    return None

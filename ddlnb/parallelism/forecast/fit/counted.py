"""What parameters are by counting, for those that runs of two models alone do not tell apart.

Activations that grow with the width of the model and those that grow with that of its feed-forward
part differ only between models; so do matrices and what elementwise kernels move. A fit that sees
fewer models than it has such parameters would give all to one and none to the other: it forecasts
the runs that it has seen, and is off on every other model. Counted values keep them apart.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ddlnb.parallelism.forecast.cases import Column

# Bytes per element of what a layer in bf16 (2 bytes) keeps for its backward pass with flash
# attention: inputs and outputs of two norms (8), queries, keys and values (6), the first two with
# their positions (4), the output of attention (2); per element of the feed-forward part: gate and
# up (4), the activated gate (2), the product (2). Exchanges hold back the two gathered inputs of a
# layer. Logits: bf16 and its gradient (4), the copy in fp32 and its gradient (8). Buffers beside
# states: gradients in bf16, which are added up in fp32. Elementwise: norms, residuals, positions
# and activations read and write about 65 bytes forward and twice that backward.
COUNTED = {
    "states": 2.0,
    "kept": 20.0,
    "kept_inner": 8.0,
    "held_back": 4.0,
    "logits": 12.0,
    "elementwise": 200.0,
    # A judgement: fused attention gets half of what matrices get. All runs have sequences of 4,096
    # tokens, where its time grows as elementwise traffic does.
    "attention_share": 0.5,
    # Of the cluster's own all-reduces of 256 MB over 64 nodes a twentieth had 177 GB/s or more,
    # the median over two nodes 362 (data/published). Runs on at most 8 nodes hardly tell.
    "reduction_growth": 0.0168,
}
AWAY = 0.2  # by how much a parameter may differ: a standard deviation of its logarithm


def away(which: Sequence[str], logs: Column) -> Column:
    """Return by how many standard deviations the counted ones of these parameters are off."""
    return np.array(
        [
            (log - np.log(COUNTED[name])) / AWAY
            for name, log in zip(which, logs, strict=True)
            if name in COUNTED
        ]
    )

"""From data parallelism to layouts: what cannot be held has to be split, and is asked about anew.

What was given that only data parallelism has is refused, rather than left out of the answer.
"""

from __future__ import annotations

from collections.abc import Mapping

from ddlnb.advice.layouts.advise import LayoutAdvice, advise_on_layouts
from ddlnb.advice.layouts.question import split_on
from ddlnb.advice.prices import Prices
from ddlnb.clusters.cluster import Cluster
from ddlnb.errors import require

COUNTED = "adam"  # the optimizer whose states layouts are forecast with


def hand_over(
    because: str,
    model: str,
    cluster: Cluster,
    *,
    unused: Mapping[str, object],
    local_batch: int | None = None,
    sequence: int | None = None,
    precision: str = "",
    prices: Prices | None = None,
    optimizer: str = COUNTED,
    draws: int,
    seed: int = 0,
) -> LayoutAdvice:
    """Return how to split a model that data parallelism cannot hold; ``because`` says why not.

    ``unused`` are inputs that say nothing about layouts, by the names that their user knows. Raises
    InputError if one is given, and for a cluster whose GPUs are not known.
    """
    given = [name for name, value in unused.items() if value is not None]
    require(
        not given,
        f"{because}: layouts have no throughput of one GPU, no servers and no searched "
        f"plan; leave out {' and '.join(given)}",
    )
    if optimizer != COUNTED:
        because = f"{because}; memory below is with Adam, which keeps more than {optimizer}"
    asked = split_on(
        model,
        cluster,
        local_batch=local_batch,
        sequence=sequence,
        precision=precision,
        prices=prices,
        because=because,
    )
    return advise_on_layouts(asked, draws=draws, seed=seed)

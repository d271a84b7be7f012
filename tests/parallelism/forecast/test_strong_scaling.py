"""A batch that stays the same on ever more GPUs: each of them reaches less of its peak."""

from __future__ import annotations

import pytest

from ddlnb.parallelism.forecast.layouts import Ranking, scale


@pytest.mark.item("D10", how="simulated")
def test_the_share_of_the_peak_falls_as_gpus_are_added_at_a_constant_batch() -> None:
    """GPT-3 on 96 to 4608 H100, 1152 sequences: fewer micro batches, more bubble and reduction."""
    found = [scale("gpt3-175b", "H100", nodes, framework="nemo", global_batch=1152)
             for nodes in (12, 48, 192, 576)]  # fmt: skip
    shares = [one.rows(1)[0]["mfu"] for one in found]
    assert shares == sorted(shares, reverse=True)
    assert micro_batches(found[0]) > micro_batches(found[-1])
    assert waiting(found[0]) < waiting(found[-1])


def micro_batches(ranking: Ranking) -> float:
    """Return the micro batches of a replica per stage, in the best layout."""
    best, cases = int(ranking.order[0]), ranking.outlook.cases
    return float(cases.micro_batches[best] / cases.pp[best])


def waiting(ranking: Ranking) -> float:
    """Return the share of a step that is bubble and reduction, in the best layout."""
    best = int(ranking.order[0])
    parts = ranking.parts(best)
    return (parts["bubble"] + parts["reduction"]) / sum(parts.values())

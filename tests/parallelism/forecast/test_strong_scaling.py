"""A batch that stays the same on ever more GPUs: each of them reaches less of its peak."""

from __future__ import annotations

import pytest

from ddlnb.parallelism.forecast.layouts import Ranking, scale

NODES = (12, 48, 192, 576)
PUBLISHED = 0.47, 0.42  # shares of the peak on the least and the most (Megatron-Core, readme 2024)


def largest(nodes: int, vpp: int | None = None) -> Ranking:
    """Return the layouts of GPT-3 on so many nodes, with NeMo's ways."""
    return scale("gpt3-175b", "H100", nodes, framework="nemo", global_batch=1152, vpp=vpp)


@pytest.fixture(scope="module")
def found() -> list[Ranking]:
    return [largest(nodes) for nodes in NODES]


@pytest.mark.item("D10", how="simulated")
def test_the_share_of_the_peak_falls_as_gpus_are_added_at_a_constant_batch(
    found: list[Ranking],
) -> None:
    """GPT-3 on 96 to 4608 H100, 1152 sequences: fewer micro batches, more bubble and reduction.

    On the fewest GPUs less fits in memory: their best layout is no better than the next ones'.
    """
    shares = [one.rows(1)[0]["mfu"] for one in found]
    assert shares[1:] == sorted(shares[1:], reverse=True)
    assert shares[1] < 1.02 * shares[0]
    assert shares[-1] < 0.8 * shares[0]
    assert micro_batches(found[0]) > micro_batches(found[-1])
    assert waiting(found[0]) < waiting(found[-1])


@pytest.mark.item("D10", how="simulated")
def test_interleaved_stages_make_up_for_a_part_of_it(found: list[Ranking]) -> None:
    """Most where a replica has few micro batches per stage; the published ends are in reach."""
    plain = [largest(nodes, vpp=1) for nodes in (NODES[0], NODES[-1])]
    gains = [
        one.rows(1)[0]["mfu"] / alone.rows(1)[0]["mfu"]
        for one, alone in zip((found[0], found[-1]), plain, strict=True)
    ]
    assert 1 < gains[0] < 1.05 < gains[1]
    assert bubble(found[-1]) < bubble(plain[-1])
    for ranking, published in zip((found[0], found[-1]), PUBLISHED, strict=True):
        row = ranking.rows(1)[0]
        low, high = (row["mfu"] * row[end] / row["tokens_per_s_per_gpu"] for end in ("low", "high"))
        assert low < published < high


def micro_batches(ranking: Ranking) -> float:
    """Return the micro batches of a replica per stage, in the best layout."""
    best, cases = int(ranking.order[0]), ranking.outlook.cases
    return float(cases.micro_batches[best] / cases.pp[best])


def waiting(ranking: Ranking) -> float:
    """Return the share of a step that is bubble and reduction, in the best layout."""
    best = int(ranking.order[0])
    parts = ranking.parts(best)
    return (parts["bubble"] + parts["reduction"]) / sum(parts.values())


def bubble(ranking: Ranking) -> float:
    """Return the share of a step that is bubble, in the best layout."""
    parts = ranking.parts(int(ranking.order[0]))
    return parts["bubble"] / sum(parts.values())

"""The map names the quickest collective of every field; trees are searched for a torus."""

import pytest

from ddlnb.networks.collectives.proof import prove
from ddlnb.survey.sec5_6_collectives import (
    best_algorithms,
    host_link,
    map_findings,
    networks_of,
    on_trees,
    searched_trees,
    torus_findings,
    torus_use,
)

SIZES = (1024, 16 << 20)


def test_few_steps_win_small_messages_and_few_bytes_large_ones():
    rows = best_algorithms((16,), SIZES, algorithms=("ring", "recursive-doubling", "torus"))
    assert host_link("8 Gb/s, 1 ms") == (1e9, 1e-3)
    best = rows[rows["best"]].set_index(["network", "bytes"])["algorithm"]
    assert best["star", SIZES[0]] == "recursive-doubling"
    assert best["torus", SIZES[1]] == "torus"
    assert best["star", SIZES[1]] in ("ring", "torus")
    assert "no algorithm fits all networks" in map_findings(rows)
    assert rows.groupby(["network", "hosts", "bytes"])["best"].any().all()


@pytest.mark.item("A65", how="simulated")
def test_searched_trees_use_more_of_a_torus_than_a_double_tree_does():
    trees = searched_trees(networks_of(16)["torus"].network(1e9))
    prove(on_trees(trees, 3))
    cables = [set(map(frozenset, enumerate(tree.tolist()))) for tree in trees]
    assert not cables[0] & cables[1]
    use = torus_use()
    assert (use.loc["double-tree", "idle"], use.loc["searched trees", "idle"]) == (17, 4)
    assert use["seconds"].idxmin() == "searched trees"
    [said] = torus_findings(use).items
    assert said.verdict == "holds"
    as_good = use.assign(**{"used (%)": 80.0, "idle": 4})
    assert torus_findings(as_good).items[0].verdict == "contradicted"

"""How fast gossip mixes: tables and the figure of them."""

from __future__ import annotations

import pytest

from ddlnb.errors import InputError
from ddlnb.figures import gossip_mixing
from ddlnb.studies.convergence_rates.mixing import consensus_rounds, spectral_gaps
from ddlnb.training.synchronisation.graphs import make_graph, spectral_gap

METHODS = ("d-psgd(ring)", "choco(ring, 0.3) + top-k(0.1)", "d-psgd(complete)")


@pytest.fixture(scope="module")
def rounds():
    return consensus_rounds(METHODS, workers=8, rounds=12, elements=100)


def of(rounds, method: str):
    return rounds[rounds["method"].str.startswith(method)].set_index("round")


def test_every_graph_has_a_gap_for_every_number_of_workers():
    gaps = spectral_gaps([4, 16])
    assert gaps[["graph", "workers"]].drop_duplicates().shape == (6, 2)
    torus = gaps[(gaps["graph"] == "torus") & (gaps["workers"] == 16)]
    assert torus["gap"].item() == pytest.approx(0.4)


def test_plain_gossip_keeps_within_the_bound_of_the_gap(rounds):
    ring = of(rounds, "d-psgd(ring")["distance"]
    bound = (1 - spectral_gap(make_graph("ring", 8))) ** 2
    assert ring[0] == 1
    for done in range(1, 13):
        assert ring[done] <= bound * ring[done - 1] * 1.0001


def test_the_complete_graph_agrees_at_once(rounds):
    assert (of(rounds, "d-psgd(complete")["distance"].iloc[1:] < 1e-12).all()


def test_compressed_gossip_is_slower_by_round_and_its_bytes_are_counted(rounds):
    plain, choco = of(rounds, "d-psgd(ring"), of(rounds, "choco")
    assert plain["distance"][12] < choco["distance"][12] < choco["distance"][0]
    assert plain["bytes_sent"][12] == 12 * 2 * 400
    assert choco["bytes_sent"][12] == 12 * 2 * 80


def test_what_does_not_gossip_is_refused():
    with pytest.raises(InputError, match="bsp on A2A does not gossip"):
        consensus_rounds(["bsp"], workers=4, rounds=2)
    with pytest.raises(InputError, match="no methods"):
        consensus_rounds([], workers=4, rounds=2)


def test_the_figure_has_every_graph_and_method_and_its_source(rounds):
    figure = gossip_mixing(spectral_gaps([4, 8]), rounds)
    left, right = figure.axes
    assert [text.get_text() for text in left.texts] == ["ring", "torus", "complete"]
    assert len(right.lines) == 2 + len(METHODS)  # the bound of both graphs, too
    said = [text.get_text() for text in figure.legends[0].texts]
    assert said[-1] == "bound by the gap, without compression"
    assert figure.get_supxlabel().startswith("source: computed; simulated")
    with pytest.raises(InputError, match="no gaps"):
        gossip_mixing(spectral_gaps([4]).iloc[:0], rounds)

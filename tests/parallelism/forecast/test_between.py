"""Nodes that speak TCP get what sockets leave of the line, as in forecasts of data parallelism."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ddlnb.clusters.named import cluster_of
from ddlnb.hardware.catalogue import get_interconnect
from ddlnb.parallelism.forecast.cases import Cases
from ddlnb.parallelism.forecast.fit import observed
from ddlnb.parallelism.forecast.forecast import spread_of
from ddlnb.parallelism.forecast.frameworks import FRAMEWORKS, saved_fit
from ddlnb.parallelism.forecast.layouts import scale
from ddlnb.parallelism.forecast.question import LayoutQuestion
from ddlnb.parallelism.forecast.step import replica_rates, step
from ddlnb.parallelism.forecast.table import Row, case
from tests.parallelism.forecast.tables import RUN

MESSAGE = 1e9  # bytes, beside which latencies are small


def cases_on(network: str, gpus_per_node: int = 1, **options: object) -> Cases:
    found = scale("llama3-1b", "A100", 2, gpus_per_node=gpus_per_node, network=network,
                  sequence=2048, **options)  # fmt: skip
    return found.outlook.cases


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("network", ["1GbE", "10GbE", "25GbE", "100GbE", "4x100GbE"])
def test_an_all_reduce_on_two_nodes_takes_as_long_as_in_a_forecast(
    network: str, framework: str
) -> None:
    cases = cases_on(network, framework=framework)
    both = cases.select(np.flatnonzero(cases.dp == 2)[:1])
    inside, across = replica_rates(both, saved_fit().of(framework))
    alone = cluster_of("A100-PCIe", nodes=2, gpus_per_node=1, network=network)
    expected = MESSAGE / alone.effects.between_bandwidth
    assert 2 * MESSAGE * (inside + across) == pytest.approx(expected, rel=0.02)
    assert alone.cost.seconds(MESSAGE) == pytest.approx(expected, rel=0.02)


def test_networks_with_rdma_count_as_they_were_fitted() -> None:
    for cases in (observed().cases, cases_on("8x400GbIB", 8), cases_on("8x400 Gb/s RoCE", 8)):
        assert np.isinf(cases.sockets).all()


def test_a_gpu_that_is_usually_joined_by_ethernet_is_so_here() -> None:
    usual = LayoutQuestion("llama3-1b", "T4", 2, gpus_per_node=4, precision="fp16")
    assert usual.sockets == get_interconnect("50GbE").bandwidth.value


def test_sockets_never_help_and_slow_down_all_that_crosses_nodes() -> None:
    cases = observed().cases
    cases = cases.select(cases.nodes > 1)
    slow = replace(cases, sockets=np.full(len(cases), 1.25e9))
    fast, found = step(cases, saved_fit()), step(slow, saved_fit())
    assert (found.seconds >= fast.seconds).all()
    assert (found.reduction > fast.reduction)[cases.dp > cases.gpus_per_node].all()
    assert (found.transfers > fast.transfers)[cases.pp > 1].all()
    assert (found.tensor > fast.tensor)[cases.tp > cases.gpus_per_node].all()


def test_a_stage_sends_its_activations_through_the_port_of_its_node() -> None:
    cases = observed().cases
    cases = cases.select(cases.pp > 1)
    one = cases.select(np.flatnonzero((cases.nodes > 1) & (cases.tp * cases.dp >= 8))[:1])
    slow = replace(one, sockets=np.full(1, 1e9))
    times = step(slow, saved_fit()).transfers - step(one, saved_fit()).transfers
    each = 8 / one.tp * 2 * one.tokens * one.hidden / 1e9  # split sequences: a tensor's part
    assert float(one.sequence_parallel[0]) == 1
    many = times / each
    assert many == pytest.approx(np.round(many), rel=1e-9)
    assert many >= 2


def test_no_cluster_with_sockets_is_the_one_that_was_fitted() -> None:
    home = observed().cases
    home = home.select(home.nodes > 1)
    over, elsewhere = replace(home, sockets=home.across), replace(home, across=home.across / 4)
    assert (spread_of(over, saved_fit()) == spread_of(elsewhere, saved_fit())).all()
    assert (spread_of(over, saved_fit()) > spread_of(home, saved_fit())).any()


@pytest.mark.parametrize(
    ("words", "gbits"),
    [
        ("10GbE per node", 9.35),
        ("8x 100 GbE", 8 * 22),
        ("100GbE per GPU", 8 * 22),
        ("gVNIC 200 Gb/s per node", 22),
        ("AWS EFA (3200 Gb/s per node nominal)", np.inf),
        ("Selene: 8x HDR InfiniBand 200 Gb/s per node, fat-tree", np.inf),
        ("RoCE", np.inf),
        ("not stated", np.inf),
    ],
)
def test_rows_of_tables_say_tcp_in_words(words: str, gbits: float) -> None:
    found = case(Row(2, RUN | {"network": words}))
    assert found["sockets"] == pytest.approx(gbits * 1e9 / 8)

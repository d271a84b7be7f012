"""The model that is evaluated has a price where no worker has it, and everybody counts it."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd
import pytest

from ddlnb.plans.requests import AllReduce, PushPull
from ddlnb.survey.sec3_1_2_synchronisation import at_equal
from ddlnb.survey.sec5_2_relaxed_compression import link_bytes
from ddlnb.training.cost.estimate import cluster_clock
from ddlnb.training.cost.pure_case import made_up_cluster, made_up_digits
from ddlnb.training.cost.requests import push_pull_seconds
from ddlnb.training.executors.clock import Clock
from ddlnb.training.method import training_method
from ddlnb.training.runs.summaries import spent, summary, to_target
from ddlnb.training.runs.train import Averaging, train

WORKERS = 4
SIZE = 4 * 20  # bytes of the quadratic's parameters
RING = 2 * (WORKERS - 1) / WORKERS * SIZE


def seconds(kind: type, bytes_: int, workers: int) -> float:
    return {AllReduce: 3.0, PushPull: 1.0}[kind]


def curve(method: str, **options) -> pd.DataFrame:
    options = {"steps": 8, "evaluate_every": 1, "clock": Clock(communicate=seconds)} | options
    return train("quadratic", method, workers=WORKERS, **options)


@pytest.mark.parametrize("method", ["bsp", "bsp on PS", "bsp + top-k(0.5)", "local(1)"])
def test_where_all_workers_agree_nothing_is_added(method):
    found = curve(method, clock=None)
    assert (found["consensus_distance"] == 0).all()
    assert (found["averaging_bytes_sent"] == 0).all()
    assert (found["averaging_seconds"] == 0).all()


def test_within_a_round_one_average_is_added():
    found = curve("local(4)")
    within = found["step"] % 4 > 0
    for way in ("sent", "received"):
        assert found[f"averaging_bytes_{way}"].tolist() == [RING * one for one in within]
    assert found["averaging_seconds"].tolist() == [3.0 * one for one in within]
    averages = spent(found, "bytes") / (2 * RING)
    assert averages.tolist() == [0, 1, 1, 1, 1, 2, 2, 2, 2]
    assert spent(found, "seconds").tolist() == [0, 4, 5, 6, 7, 11, 12, 13, 14]
    assert spent(found, "step").tolist() == found["step"].tolist()


def test_servers_are_asked_both_ways_and_may_have_the_model_already():
    found = curve("local(4) on PS")
    assert found["averaging_bytes_sent"].max() == SIZE
    assert found["averaging_seconds"].max() == 2.0
    for method in ("ssp(2)", "asp"):
        free = curve(method, clock=None)
        assert free["consensus_distance"].max() > 0
        assert (free["averaging_bytes_sent"] == 0).all()


def test_gossip_has_no_common_model_until_it_is_made():
    found = curve("d-psgd(ring)", clock=None)
    assert (found["averaging_bytes_sent"][1:] == RING).all()


def test_a_target_within_the_first_round_takes_an_average():
    """local(32) seemed to reach a target before it had sent anything."""
    found = curve("local(32)")
    target = float(found["test_loss"].iloc[3])
    assert found["bytes_sent"].iloc[3] == 0
    assert to_target(found, target, "bytes") == 2 * RING
    assert to_target(found, target, "seconds") == 3 + 3.0
    row = summary(found, target).iloc[0]
    assert row["bytes_to_target"] == row["bytes"] == 2 * RING
    assert link_bytes(found)["link_bytes"].iloc[3] == 2 * RING


def test_equal_costs_hold_the_average_too():
    curves = pd.concat([curve("bsp", steps=2), curve("local(8)", steps=6)])
    rows = at_equal(curves, "bytes").set_index("method")
    assert rows["step"].to_dict() == {"bsp on A2A": 1, "local(8) on A2A": 6}
    rows = at_equal(curves, "seconds").set_index("method")
    assert rows["step"].to_dict() == {"bsp on A2A": 2, "local(8) on A2A": 5}


def test_an_average_through_a_server_of_a_cluster_has_a_price():
    workload = made_up_digits(1000)
    here = replace(made_up_cluster("1 Gb/s", "50 us", 4), server_place="extra machines")
    size = 4 * workload.parameters
    for method in ("local(4) on PS", "bsp on PS"):
        clock = cluster_clock(workload, here, method)
        found = Averaging.of(training_method(method), 4, workload.parameters, clock)
        assert found.seconds == pytest.approx(push_pull_seconds(workload, here, size))
        assert found.seconds >= size / here.effects.between_bandwidth

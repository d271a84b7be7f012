"""Observations: each kind is predicted by its formula, and many are simulated in one go."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import ddlnb.calibration.observations
from ddlnb.calibration.observations import (
    AllReduceTime,
    HopTime,
    IterationTime,
    observe,
    predictions,
    require_small,
)
from ddlnb.calibration.parameters import Parameter, ParameterValues
from ddlnb.errors import InputError, UnknownName
from ddlnb.simulator.simulate import simulate, steady_seconds
from tests.toy_clusters import (
    BANDWIDTH,
    FAST,
    LATENCY,
    SLOW,
    SLOWNESS,
    THIN,
    TRUTH,
    cells,
    seen,
)

PAIR = SLOW.with_workers(4)
NOMINAL = ParameterValues()  # clusters with the effects that they have


def predicted(quantity, values=NOMINAL):
    return predictions([quantity], [values])[0, 0]


def test_the_seconds_of_an_iteration_are_the_simulator_s():
    for cell in cells(workers=(8,), workloads=(THIN,)):
        found = simulate(cell.workload, cell.cluster, cell.method).iteration_seconds
        assert predicted(IterationTime(cell)) == pytest.approx(found)


def test_a_hop_takes_latency_and_bytes_over_bandwidth():
    assert predicted(HopTime(SLOW, 1e6)) == pytest.approx(5e-5 + 1e6 / 1e9)
    assert predicted(HopTime(SLOW, 1e6), TRUTH) == pytest.approx(5e-5 + 1e6 / 7e8)
    assert predicted(HopTime(FAST, 1e6), TRUTH) == pytest.approx(5e-5 + 1e6 / 8e9)


def test_an_all_reduce_takes_latency_and_bytes():
    cluster = PAIR.with_effects(between_share=0.5, inside_bandwidth=float("inf"))
    latency, per_byte, _ = cluster.all_reduce_seconds
    calm = predicted(AllReduceTime(cluster, 1e6))
    assert calm == pytest.approx(latency + 1e6 * per_byte)
    with pytest.raises(InputError, match="two workers"):
        AllReduceTime(SLOW.with_workers(1), 1e6)


def test_everything_is_simulated_in_one_call_and_nothing_twice(monkeypatch):
    calls = []

    def counted(chosen):
        calls.append(len(chosen))
        return steady_seconds(chosen)

    monkeypatch.setattr(ddlnb.calibration.observations, "steady_seconds", counted)
    things = [HopTime(SLOW, 1e6), *map(IterationTime, cells())]
    found = predictions(things, [NOMINAL, ParameterValues((BANDWIDTH,), (2e9,))])
    assert found.shape == (2, 1 + 36)
    # The fast cluster is the same for both, and within one node both clusters are.
    assert calls == [42]


def test_predictions_of_many_are_those_of_each():
    things = [HopTime(SLOW, 1e6), *map(IterationTime, cells(workers=(4,))), HopTime(FAST, 1e3)]
    several = [NOMINAL, TRUTH]
    together = predictions(things, several)
    alone = [[predicted(thing, values) for thing in things] for values in several]
    assert np.array_equal(together, alone)


def test_rows_within_one_node_are_one_group_whatever_the_network():
    def group(cell):
        return IterationTime(cell).labels.group

    slow, fast = cells(workers=(2,), methods=("BSP-A2A",), workloads=(THIN,))
    assert group(slow) == group(fast)
    slow, fast = cells(workers=(4,), methods=("BSP-A2A",), workloads=(THIN,))
    assert group(slow) != group(fast)
    few, many = cells(workers=(4, 8), methods=("BSP-A2A",), workloads=(THIN,), clusters=(SLOW,))
    assert group(few) != group(many)


def test_published_cells_of_more_than_eight_gpus_are_refused_by_name():
    require_small(seen(cells(workers=(8,)), source="published"))
    require_small(seen(cells(workers=(16,)), source="simulated"))
    large = seen(cells(workers=(16,), methods=("WFBP-PS",)), source="published")
    with pytest.raises(InputError, match="thin WFBP-PS on slow with 16 GPUs must not be fitted"):
        require_small(large)
    disguised = [replace(row, labels=replace(row.labels, gpus=8)) for row in large]
    with pytest.raises(InputError, match="16 GPUs"):
        require_small(disguised)


def test_observations_that_cannot_be_are_refused():
    with pytest.raises(InputError, match="value 0"):
        observe(HopTime(SLOW, 1e6), 0.0, 0.1, "published")
    with pytest.raises(InputError, match="spread nan"):
        observe(HopTime(SLOW, 1e6), 1.0, float("nan"), "published")
    with pytest.raises(InputError, match="source 'read'"):
        observe(HopTime(SLOW, 1e6), 1.0, 0.1, "read")


def test_a_parameter_of_something_beats_the_one_of_everything():
    general = Parameter("between_bandwidth", low=1e8, high=1e10)
    values = ParameterValues((BANDWIDTH, general), (2e9, 3e9))
    assert values.on(SLOW).effects.between_bandwidth == 2e9
    assert values.on(FAST).effects.between_bandwidth == 3e9
    assert ParameterValues((SLOWNESS,), (1.5,)).on(SLOW, "fat").effects.compute_factor == 1.5
    assert ParameterValues((SLOWNESS,), (1.5,)).on(SLOW, "thin").effects.compute_factor == 1.0
    both = Parameter("between_bandwidth", ("toy-slow",), low=1e8, high=1e10)
    with pytest.raises(InputError, match="both stand for between_bandwidth"):
        ParameterValues((BANDWIDTH, both), (2e9, 3e9)).on(SLOW)


def test_parameters_have_names_and_bounds_that_physics_allows():
    assert LATENCY.name == "operation_latency"
    assert Parameter("inside_share", ("a", "b"), low=0.1, high=1.0).name == "inside_share@a+b"
    assert Parameter("inside_share", "a", low=0.1, high=1.0).name == "inside_share@a"
    assert Parameter("inside_latency", low=1e-6, high=1e-4).prior == pytest.approx(1e-5)
    with pytest.raises(UnknownName, match="did you mean 'inside_share'"):
        Parameter("inside_shar", low=0.1, high=1.0)
    for low, high in ((0.0, 1.0), (0.5, 0.5), (0.1, 1.1), (0.001, 1.0)):
        with pytest.raises(InputError, match="inside_share: "):
            Parameter("inside_share", low=low, high=high)
    with pytest.raises(InputError, match="prior 2"):
        Parameter("inside_share", low=0.1, high=1.0, prior=2.0)
    with pytest.raises(InputError, match="prior_spread"):
        Parameter("inside_share", low=0.1, high=1.0, prior_spread=0.0)

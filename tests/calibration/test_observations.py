"""Observations: each kind is predicted by its formula, and many are simulated in one go."""

import pytest

import ddlnb.calibration.observations
from ddlnb.calibration.observations import (
    AllReduceTime,
    HopTime,
    IterationTime,
    observe,
    predictions,
)
from ddlnb.calibration.parameters import Parameter, ParameterValues
from ddlnb.errors import InputError
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
    assert found[0, 1] == predicted(things[1])  # as alone


def test_rows_within_one_node_are_one_group_whatever_the_network():
    def group(cell):
        return IterationTime(cell).labels.group

    slow, fast = cells(workers=(2,), methods=("BSP-A2A",), workloads=(THIN,))
    assert group(slow) == group(fast)
    slow, fast = cells(workers=(4,), methods=("BSP-A2A",), workloads=(THIN,))
    assert group(slow) != group(fast)
    few, many = cells(workers=(4, 8), methods=("BSP-A2A",), workloads=(THIN,), clusters=(SLOW,))
    assert group(few) != group(many)


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


@pytest.mark.parametrize(
    ("value", "spread", "source", "said"),
    [
        (0.0, 0.1, "published", "value 0"),
        (1.0, float("nan"), "published", "spread nan"),
        (1.0, 0.1, "read", "source 'read'"),
    ],
)
def test_observations_that_cannot_be_are_refused(value, spread, source, said):
    with pytest.raises(InputError, match=said):
        observe(HopTime(SLOW, 1e6), value, spread, source)


def test_parameters_have_names_and_a_prior_between_their_bounds():
    assert LATENCY.name == "operation_latency"
    assert Parameter("inside_share", ("a", "b"), low=0.1, high=1.0).name == "inside_share@a+b"
    assert Parameter("inside_share", "a", low=0.1, high=1.0).name == "inside_share@a"
    assert Parameter("inside_latency", low=1e-6, high=1e-4).prior == pytest.approx(1e-5)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"effect": "inside_shar"}, "did you mean 'inside_share'"),
        ({"low": 0.0}, "inside_share: low 0.0"),
        ({"low": 0.5, "high": 0.5}, "low below high"),
        ({"high": 1.1}, "at most 1"),
        ({"low": 0.001}, "inside_share: low 0.001"),
        ({"prior": 2.0}, "prior 2"),
        ({"prior_spread": 0.0}, "prior_spread"),
    ],
)
def test_parameters_that_physics_does_not_allow_are_refused(given, said):
    with pytest.raises(InputError, match=said):
        Parameter(**{"effect": "inside_share", "low": 0.1, "high": 1.0} | given)

"""Workers that are not alike, as data: factors, delays, and what is refused."""

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from ddlnb.clusters.file import get_cluster, read_cluster, write_cluster
from ddlnb.clusters.heterogeneous import DISTRIBUTIONS, HOMOGENEOUS, Delay, Heterogeneity
from ddlnb.errors import InputError, UnknownName
from tests.toy_clusters import SLOW

LAWS = {
    "exponential": stats.expon(),
    "log-normal": stats.lognorm(0.7, scale=np.exp(-(0.7**2) / 2)),
    "pareto": stats.lomax(3.0, scale=2.0),
}
SHAPES = {"exponential": None, "log-normal": 0.7, "pareto": 3.0}


def test_workers_with_factors_of_one_and_no_delay_are_alike():
    same = SLOW.with_heterogeneity(
        compute=[1.0] * SLOW.workers, link={3: 1}, delay=Delay("exponential", 0)
    )
    assert same == SLOW
    assert same.heterogeneity == HOMOGENEOUS


def test_factors_are_given_by_number_or_for_all():
    few = SLOW.with_workers(4)
    listed = few.with_heterogeneity(compute=[2.0, 1, 1, 0.5], link=[1, 3.0])
    assert listed == few.with_heterogeneity(compute={3: 0.5, 0: 2}, link={1: 3})
    assert [listed.heterogeneity.compute_factor(rank) for rank in range(5)] == [
        2.0,
        1.0,
        1.0,
        0.5,
        1.0,
    ]
    assert listed.with_heterogeneity() == few


def test_an_all_reduce_goes_at_the_pace_of_the_slowest_link_in_use():
    """Of the link's bytes only; nodes that are not in use slow nobody down."""
    slow = SLOW.with_heterogeneity(link={0: 0.5, 5: 4.0})
    fast, four = SLOW.with_effects(between_bandwidth=2e9), SLOW.with_effects(between_bandwidth=25e7)
    assert slow.cost == four.cost
    size = np.array([1e6])
    assert slow.gather_work(size) == four.gather_work(size)
    assert slow.with_workers(8).cost == SLOW.with_workers(8).cost
    everywhere = SLOW.with_heterogeneity(link=[0.5] * SLOW.nodes)
    assert everywhere.cost == fast.cost
    assert SLOW.with_heterogeneity(link={0: 4.0}).with_workers(2).cost == SLOW.with_workers(2).cost


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_delays_follow_their_distribution(name):
    delay = Delay(name, 0.2, SHAPES[name], seed=4)
    drawn = np.concatenate([delay.seconds(rank, 500) for rank in range(8)]) / 0.2
    # Rejects the right law in one of 10,000 seeds, and a wrong one for sure:
    assert stats.kstest(drawn, LAWS[name].cdf).pvalue > 1e-4
    others = [law for other, law in LAWS.items() if other != name]
    assert all(stats.kstest(drawn, law.cdf).pvalue < 1e-4 for law in others)
    assert LAWS[name].mean() == pytest.approx(1.0)


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_longer_draws_begin_alike_and_workers_and_seeds_differ(name):
    delay = Delay(name, 1.0)
    assert (delay.seconds(3, 5) == delay.seconds(3, 50)[:5]).all()
    other = replace(delay, seed=1)
    first = [delay.seconds(0, 5), delay.seconds(1, 5), other.seconds(0, 5)]
    assert len({tuple(draws) for draws in first}) == 3


def test_an_iteration_has_the_same_delay_in_a_run_of_any_length():
    delay = Delay("exponential", 1.0, seed=3)
    every = delay.seconds(1, 800)
    late = [0, 255, 256, 511, 512, 799]
    differ = Heterogeneity(delay=delay)
    assert [differ.delay_seconds(1, step) for step in late] == [every[step] for step in late]


def test_only_workers_and_nodes_that_take_part_are_said_to_differ():
    differ = Heterogeneity(compute=((3, 2.0), (4, 3.0)), link=((1, 2.0), (2, 3.0)))
    said = differ.among(workers=4, nodes=2)
    assert said.split("; ") == [
        "worker 3 computes 2 times as long",
        "the link of node 1 takes 2 times as long",
    ]
    assert differ.among(workers=3, nodes=1) == ""


def test_a_file_of_workers_that_differ_is_read_back(tmp_path):
    given = Heterogeneity(((0, 2.0), (15, 1.25)), ((3, 4.0),), Delay("pareto", 0.02, seed=7))
    cluster = replace(SLOW, heterogeneity=given)
    back = read_cluster(write_cluster(cluster, tmp_path / "toy-slow.yaml"))
    assert back.heterogeneity == given


def written(tmp_path, given, key="heterogeneity"):
    path = write_cluster(get_cluster("v100-nvlink"), tmp_path / "mine.yaml")
    path.write_text(f"{key}: {given}\n" + path.read_text())
    return path


def test_a_file_lists_factors_or_names_some(tmp_path):
    listed = read_cluster(written(tmp_path, "{compute: [2, 1, 1, 1]}"))
    assert listed == read_cluster(written(tmp_path, "{compute: {0: 2}}", key="unlike"))  # in 0.1
    assert listed.heterogeneity == Heterogeneity(compute=((0, 2.0),))
    named = "{compute: {0: 2}, delay: {distribution: exponential, mean: 20 ms}}"
    assert read_cluster(written(tmp_path, named)).heterogeneity.delay == Delay("exponential", 0.02)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("{compute: [2, 1]}", r"mine.yaml: heterogeneity: compute has 2 factors for 4 workers"),
        (
            "{compute: {0: -2}}",
            r"heterogeneity: compute factor -2.0 of worker 0 must be .* above 0",
        ),
        ("{compute: {4: 2}}", r"worker 4 is slowed down, and .* has workers 0 to 3"),
        ("{link: {0: 0}}", "link factor 0.0 of node 0 must be a number above 0"),
        ("{delay: {distribution: expo, mean: 1 s}}", "unknown distribution of delays 'expo'"),
        ("{delay: {distribution: pareto, mean: -1 s}}", "mean of a delay: duration '-1 s'"),
        ("{delay: {distribution: pareto, mean: 1 s, shape: 1}}", "shape 1.0 .* above 1"),
        ("{speed: 2}", "speed"),
    ],
)
def test_a_wrong_file_gets_one_error(tmp_path, given, said):
    with pytest.raises(InputError, match=said):
        read_cluster(written(tmp_path, given))


@pytest.mark.parametrize(
    ("make", "error", "said"),
    [
        (
            lambda: SLOW.with_heterogeneity(compute=[1.0, 2.0]),
            InputError,
            "2 factors for 16 workers",
        ),
        (
            lambda: SLOW.with_heterogeneity(compute={0: 0}),
            InputError,
            "factor 0 of worker 0 must be",
        ),
        (lambda: SLOW.with_heterogeneity(compute={0: "2"}), InputError, "factor '2' of worker 0"),
        (lambda: SLOW.with_heterogeneity(compute="22"), InputError, "compute '22' must be factors"),
        (lambda: SLOW.with_heterogeneity(link={8: 2.0}), InputError, "node 8 is slowed down"),
        (
            lambda: SLOW.with_heterogeneity(compute={-1: 2.0}),
            InputError,
            "worker -1 must be a whole",
        ),
        (lambda: Heterogeneity(compute=((0, 2.0), (0, 3.0))), InputError, "names worker 0 twice"),
        (
            lambda: replace(SLOW, topology="star(16)").with_heterogeneity(link={0: 2.0}),
            InputError,
            "slow a node down there with changes such as scale-node",
        ),
        (lambda: Delay("pareto", -0.1), InputError, "mean -0.1 of a delay"),
        (lambda: Delay("exponential", 0.1, 2.0), InputError, "exponential delays have none"),
        (lambda: Delay("log-normal", 0.1, -1.0), InputError, "must be above 0"),
        (lambda: Delay("lognormal", 0.1), UnknownName, "did you mean 'log-normal'"),
    ],
)
def test_wrong_values_get_one_error(make, error, said):
    with pytest.raises(error, match=said):
        make()

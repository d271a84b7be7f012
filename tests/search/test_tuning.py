"""ByteScheduler's tuning: never worse than its defaults, and towards the least seconds."""

import math

import numpy as np

from benchmarks.bytescheduler_tuning import expected_improvement, tune, tune_on
from ddlnb.clusters.file import get_cluster
from ddlnb.plans.methods import METHODS
from ddlnb.workloads.workload import read_profile


def test_tuned_sizes_are_no_worse_than_the_defaults():
    workload = read_profile("resnet50_b64_rtx2080ti")
    cluster = get_cluster("survey-100GbE", 16)
    tuned = tune_on(workload, cluster, METHODS["ByteScheduler-A2A"], trials=12)
    (partition, credit, before), *others = tuned.tried
    method = METHODS["ByteScheduler-A2A"]
    assert (partition, credit) == (method.partition_bytes, method.credit_bytes)
    assert tuned.iteration_seconds == min(taken for _, _, taken in tuned.tried) <= before
    assert len(others) == 11


def test_asking_the_process_beats_chance():
    """A smooth bowl over both sizes, found closer than the best of as many pairs by chance."""
    wanted = math.log(20e6), math.log(60e6)

    def seconds(method):
        sizes = math.log(method.partition_bytes), math.log(method.credit_bytes)
        return sum((own - best) ** 2 for own, best in zip(sizes, wanted, strict=True))

    method = METHODS["ByteScheduler-A2A"]
    found = [tune(method, seconds, trials=25, seed=seed) for seed in range(5)]
    chance = [min(t for _, _, t in tune(method, seconds, trials=6, seed=s).tried) for s in range(5)]
    assert np.median([one.iteration_seconds for one in found]) < np.median(chance) / 3


def test_what_is_expected_to_improve_lies_where_values_are_low_or_unknown():
    points = np.array([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0]])
    gain = expected_improvement(points, np.array([1.0, 5.0, 5.0]), points)
    assert (gain >= 0).all()
    far = expected_improvement(points, np.array([1.0, 5.0, 5.0]), np.array([[1.0, 1.0]]))
    assert far[0] > gain.max()

"""Cluster files: what is written is read back."""

from dataclasses import asdict, replace

import pytest
import yaml

from ddlnb.calibration.clusters import calibrate_parameters
from ddlnb.clusters.cluster import Fit
from ddlnb.clusters.effects import EFFECTS, Effects
from ddlnb.clusters.file import cluster_names, get_cluster, read_cluster, write_cluster
from ddlnb.plans.alpha_beta import AlphaBeta
from tests.toy_clusters import PARAMETERS, SLOW, cells, seen


def alike(left, right):
    """Whether two clusters are the same but for rounding, and for how many workers are in use."""
    kept = {**asdict(left), "workers": 0}, {**asdict(right), "workers": 0}
    for cluster in kept:
        for key in ("effects", "fits", "planning", "model_error"):
            cluster.pop(key, None)
    assert kept[0] == kept[1]
    assert right.effects.there == pytest.approx(left.effects.there, rel=1e-5)
    assert right.fits.keys() == left.fits.keys()
    assert right.model_error == pytest.approx(left.model_error)
    for name, fit in left.fits.items():
        there = right.fits[name]
        assert (there.low, there.high) == pytest.approx((fit.low, fit.high), rel=1e-5)
        assert there.source == fit.source
    if left.planning is not None:
        assert asdict(right.planning) == pytest.approx(asdict(left.planning), rel=1e-5)


def test_a_fitted_cluster_is_read_back_as_it_was(tmp_path):
    found = calibrate_parameters(seen(cells(workers=(2, 4))), PARAMETERS)
    base = replace(SLOW, about="a toy: 10 %", facts={"gpu": "none", "link": "copper: 1 Gb/s"})
    (cluster,) = found.clusters([base.with_workers(4)])
    path = write_cluster(cluster, tmp_path / f"{cluster.name}.yaml")
    back = read_cluster(path)
    alike(cluster, back)
    assert len(back.fits) == 4
    assert back.workers == back.most_workers


@pytest.mark.parametrize("name", cluster_names())
def test_every_cluster_of_data_survives_a_round_trip(tmp_path, name):
    cluster = get_cluster(name)
    alike(cluster, read_cluster(write_cluster(cluster, tmp_path / f"{name}.yaml")))


@pytest.mark.parametrize("value", [1.23456789e-7, 0.000999999999, 0.01234567, 3.21])
@pytest.mark.parametrize("effect", EFFECTS)
def test_every_effect_is_written_with_a_unit_that_is_read_back(tmp_path, effect, value):
    unit = EFFECTS[effect].unit
    if unit.name.startswith("bytes"):
        value = 1e12 * value
    value = min(max(value, unit.least), unit.most)
    effects = Effects(**{effect: value})
    fit = Fit(value, min(value * 1.5, unit.most), "made: up")
    cluster = replace(SLOW, effects=effects, fits={effect: fit})
    alike(cluster, read_cluster(write_cluster(cluster, tmp_path / "toy-slow.yaml")))


def test_facts_come_before_fitted_values_and_apart_from_them(tmp_path):
    cluster = replace(
        SLOW,
        facts={"gpu": "some"},
        planning=AlphaBeta(1e-3, 0.0),
        fits={"between_bandwidth": Fit(8e8, 2e9, "fitted to something, at length, " * 9)},
    )
    text = write_cluster(cluster, tmp_path / "toy-slow.yaml").read_text()
    raw = yaml.safe_load(text)
    assert list(raw)[-1] == "effects"
    assert raw["facts"] == {"gpu": "some"}
    assert raw["planning"] == {"latency": "1 ms", "bandwidth": "unlimited"}
    assert "workers" not in raw
    assert raw["effects"]["inside_bandwidth"] == "4 GB/s"
    assert raw["effects"]["between_bandwidth"]["value"] == "8 Gb/s"
    assert len([line for line in text.splitlines() if "between_bandwidth" in line]) == 1

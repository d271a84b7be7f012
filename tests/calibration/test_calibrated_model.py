"""This machine's simulated twin: from a micro-benchmark to a comparison with real runs."""

import pytest

from ddlnb.calibration.calibrate import calibrate
from ddlnb.calibration.calibrated_model import (
    PROBES,
    PROBING,
    ROWS,
    here_observations,
    here_parameters,
    micro_benchmark,
    read_micro_benchmark,
    uncalibrated,
)
from ddlnb.calibration.parameters import MOST_PARAMETERS
from ddlnb.clusters.file import read_cluster
from ddlnb.errors import InputError, ResultsError
from ddlnb.launch.options import emulated
from ddlnb.plans.methods import METHODS
from ddlnb.survey.simulated_here import forecast_errors, measure_and_forecast


def test_the_parameters_fit_two_numbers_of_workers():
    names = [parameter.name for parameter in here_parameters([uncalibrated(2), uncalibrated(4)])]
    assert len(names) == len(set(names)) <= MOST_PARAMETERS


def test_a_benchmark_that_is_not_there_is_told(tmp_path):
    with pytest.raises(ResultsError, match="there is no results file"):
        read_micro_benchmark(tmp_path)


def test_one_worker_has_nothing_to_exchange(tmp_path):
    with pytest.raises(InputError, match="workers"):
        micro_benchmark(tmp_path, workers=(1,))


@pytest.mark.slow
@pytest.mark.ranks
def test_a_twin_is_calibrated_and_compared(tmp_path):
    short = PROBING.changed(iterations=2, warmup=1)
    found = micro_benchmark(tmp_path, workers=(2,), settings=short)
    measured = (tmp_path / ROWS).read_bytes()
    assert len(found.rows) == len(PROBES) * len(METHODS)
    assert len(here_observations(found)) == len(found.rows) + len(found.all_reduces) // 2
    result = calibrate("here", workers=[2], out=tmp_path)
    assert (tmp_path / ROWS).read_bytes() == measured, "it measured again what was there"
    assert [path.name for path in result.paths] == ["here-2-workers.yaml"]
    cluster = read_cluster(result.paths[0])
    assert cluster.fits
    rows = measure_and_forecast(
        [cluster], tmp_path, models=("small-conv",), iterations=2, repetitions=1, draws=20
    )
    errors = forecast_errors(rows)
    assert list(errors["method"]) == list(METHODS)
    assert errors["error"].notna().all()


def test_only_emulated_networks_have_a_delay_of_their_own():
    site = emulated("1Gb/s 1ms")
    delay = {p.name: p.prior for p in here_parameters([uncalibrated(4, site=site)], site)}
    assert delay["between_latency"] == pytest.approx(1e-3)
    assert "between_latency" not in {p.name for p in here_parameters([uncalibrated(4)])}

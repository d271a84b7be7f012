"""This machine's simulated twin: from a micro-benchmark to a comparison with real runs."""

import pytest

from ddlnb.calibration.calibrated_model import (
    AllReduceTimes,
    completed,
    here_parameters,
    micro_benchmark,
    read_micro_benchmark,
    uncalibrated,
)
from ddlnb.calibration.parameters import MOST_PARAMETERS
from ddlnb.errors import InputError, ResultsError
from ddlnb.launch.options import emulated


def test_the_parameters_fit_two_numbers_of_workers():
    names = [parameter.name for parameter in here_parameters([uncalibrated(2), uncalibrated(4)])]
    assert len(names) == len(set(names)) <= MOST_PARAMETERS


def test_a_benchmark_that_is_not_there_is_told(tmp_path):
    with pytest.raises(ResultsError, match="there is no results file"):
        read_micro_benchmark(tmp_path)


def test_one_worker_has_nothing_to_exchange(tmp_path):
    with pytest.raises(InputError, match="workers"):
        micro_benchmark(tmp_path, workers=(1,))


def test_all_reduces_of_more_workers_join_those_that_are_kept(tmp_path):
    asked = []

    def timed(workers: int) -> list[AllReduceTimes]:
        asked.append(workers)
        return [AllReduceTimes(workers, 4096, 1e-3, False)]

    first = completed(tmp_path, [2], timed)
    both = completed(tmp_path, [2, 4], timed)
    assert asked == [2, 4]
    assert both == (*first, AllReduceTimes(4, 4096, 1e-3, False))
    assert completed(tmp_path, [4, 2], timed) == both


def test_only_emulated_networks_have_a_delay_of_their_own():
    site = emulated("1Gb/s 1ms")
    delay = {p.name: p.prior for p in here_parameters([uncalibrated(4, site=site)], site)}
    assert delay["between_latency"] == pytest.approx(1e-3)
    assert "between_latency" not in {p.name for p in here_parameters([uncalibrated(4)])}

"""Ratios to the baselines, errors of forecasts, and what a site is called."""

import pandas as pd
import pytest

from benchmarks.emulated import NETWORKS, against, agreement, summary
from ddlnb.calibration.calibrated_model import CARRIED, PROBES, probes
from ddlnb.engines.settings import MeasurementSettings
from ddlnb.engines.targets import targets_of
from ddlnb.errors import InputError, UnknownName
from ddlnb.figures import engine_bars
from ddlnb.launch.options import HERE, emulated
from ddlnb.launch.topology import get_link
from ddlnb.workloads.workload import read_profile
from tests.figures.toys import table

RATES = {"DDP": 100.0, "horovod": 80.0, "WFBP-A2A": 90.0, "MG-WFBP": 120.0}


def rows_of(rates: dict[str, float], source: str, **changes: object) -> pd.DataFrame:
    engines = {"DDP": "ddp", "horovod": "horovod"}
    cells = [(name, rate, engines.get(name, "torch")) for name, rate in rates.items()]
    return table(
        "method throughput_samples_per_s engine",
        *cells,
        **{"model": "small-conv", "local_batch": 64, "network": "1Gb/s 1ms", "gpus": 4},
        **{"source": source, "std": 1.0, "machine": "a machine"},
        iteration_seconds=lambda rows: 256 / rows["throughput_samples_per_s"],
        low=lambda rows: rows["throughput_samples_per_s"] / 2,
        high=lambda rows: rows["throughput_samples_per_s"] * 2,
    ).assign(**changes)


def test_the_best_of_ours_is_compared_with_each_baseline_cell_by_cell():
    rows = pd.concat(
        [rows_of(RATES, "emulated"), rows_of({**RATES, "MG-WFBP": 95.0}, "emulated", gpus=8)]
    )
    ratios = against(rows)
    assert list(ratios["best"]) == ["MG-WFBP", "MG-WFBP"]
    assert list(ratios["over DDP"]) == pytest.approx([1.2, 0.95])
    assert list(ratios["over horovod"]) == pytest.approx([1.5, 95 / 80])
    alone = against(rows[rows["method"] != "horovod"])  # what did not run has no ratio
    assert alone["over horovod"].isna().all()


def test_forecasts_are_compared_with_our_engine_s_rows_only():
    ours = {"WFBP-A2A": 90.0, "MG-WFBP": 120.0}
    rows = pd.concat(
        [
            rows_of(RATES, "emulated"),
            rows_of({name: 1.1 * rate for name, rate in ours.items()}, "simulated"),
        ]
    )
    errors = agreement(rows)
    assert sorted(errors["method"]) == sorted(ours)
    assert list(errors["error"]) == pytest.approx([1 / 1.1 - 1] * 2)
    said = summary(against(rows), errors)
    assert "geometric mean 1.200" in said
    assert "within 10 %: 2 of 2" in said


def test_every_case_of_the_study_exists():
    for network, case in NETWORKS.items():
        assert get_link(network).bandwidth > 0
        assert case.site(network).scale == case.scale
        assert all(read_profile(name).compute_seconds > 0 for name in case.profiles)


def test_a_setting_names_files_and_clusters():
    assert HERE.name == "here"
    assert emulated("100Mb/s 1ms", 0.5).name == "emulated-100Mbps-1ms"
    with pytest.raises(InputError):
        emulated("100Mbps")


def test_probes_are_replayed_on_emulated_links_with_as_much_to_compute_as_to_carry():
    assert probes(HERE) is PROBES
    site = emulated("100Mb/s 1ms")
    for task in probes(site):
        carried = CARRIED * task.recorded.gradient_bytes / site.link.bandwidth
        assert task.recorded.compute_seconds == pytest.approx(carried)
        assert "made up" in task.recorded.source


def test_baselines_are_chosen_by_name():
    chosen = targets_of("BSP-A2A", MeasurementSettings(baselines=["DDP", "horovod"]))
    assert [one.name for one in chosen] == ["DDP", "horovod", "BSP-A2A"]
    with pytest.raises(UnknownName, match="DDP"):
        targets_of("BSP-A2A", MeasurementSettings(baselines=["DPD"]))


def test_bars_of_another_engine_say_how_much_of_ours_they_reach():
    other = rows_of({"MG-WFBP": 60.0}, "emulated", engine="horovod")
    bars = engine_bars(pd.concat([rows_of(RATES, "emulated"), other]))
    assert any(text.get_text() == "0.50" for text in bars.axes[0].texts)

"""Lossy methods on emulated links: what is kept, what is compared, and real seconds."""

from contextlib import nullcontext

import pandas as pd
import pytest

from benchmarks import lossy_emulated
from benchmarks.lossy_emulated import METHODS, lossy_errors, lossy_on_emulated, order_kept
from benchmarks.pictures import lossy_against_emulated
from ddlnb.errors import ResultsError, UnknownName
from ddlnb.files import DATA
from ddlnb.survey.sec3_2_architectures import made_up_workload
from ddlnb.workloads.replay import replayed


def rows(**seconds: tuple[float, float]) -> pd.DataFrame:
    """Two repetitions of each method, measured so and a fifth slower, and its forecast."""
    return pd.DataFrame(
        [
            {"network": "n", "method": method, "iteration_seconds": slower * seen, "forecast": told}
            for method, (seen, told) in seconds.items()
            for slower in (1.0, 1.2)
        ]
    )


def test_errors_are_of_the_median():
    table = lossy_errors(rows(bsp=(1.0, 2.2), local=(2.0, 1.1)))
    assert table["measured"].tolist() == pytest.approx([1.1, 2.2])
    assert table["error"].tolist() == pytest.approx([1.0, -0.5])
    assert table["spread"].tolist() == pytest.approx([0.2, 0.2])


def test_pairs_in_the_right_order_are_counted():
    assert order_kept(lossy_errors(rows(a=(1, 1), b=(2, 3), c=(3, 2)))) == pytest.approx(2 / 3)


def test_only_missing_runs_are_made(tmp_path):
    made = []

    def seconds(ranks, method):
        made.append(method)
        if method == "breaks":
            raise KeyboardInterrupt
        return 1.0

    def runs(*wanted):
        path = tmp_path / "lossy.csv"
        return lossy_emulated._runs(path, wanted, lambda: nullcontext(None), seconds, False)

    with pytest.raises(KeyboardInterrupt):
        runs((0, "bsp"), (0, "breaks"))
    table = runs((0, "local"), (0, "bsp"))
    assert made == ["bsp", "breaks", "local"]
    assert table["method"].tolist() == ["local", "bsp"]
    assert runs((0, "bsp"))["iteration_seconds"].tolist() == [1.0]
    assert made == ["bsp", "breaks", "local"]


def test_networks_without_a_profile_are_refused(tmp_path):
    with pytest.raises(UnknownName, match="1Gb/s 50us"):
        lossy_on_emulated(tmp_path, ["1Gb/s 51us"])


def test_a_folder_without_runs_is_told(tmp_path):
    with pytest.raises(ResultsError, match=r"has no lossy\.csv of the networks 1Gb/s 50us"):
        lossy_on_emulated(tmp_path, ["1Gb/s 50us"], only_kept=True)


@pytest.mark.thorough
def test_kept_runs_are_judged_on_any_machine():
    folder = DATA / "measured" / "2026-11-21_four-cores_lossy"
    table = lossy_on_emulated(folder, ["1Gb/s 50us", "100Mb/s 1ms"], only_kept=True)
    assert set(table["network"]) == {"1Gb/s 50us"}  # the other was not measured
    assert len(lossy_errors(table)) == len(METHODS)
    assert order_kept(lossy_errors(table)) > 0.5  # a coin's


@pytest.mark.ranks
@pytest.mark.parametrize("method", ["bsp + top-k(0.1) + feedback", "local(2)", "d-psgd(ring)"])
def test_an_iteration_takes_its_computation_at_least(six_ranks, method):
    workload = made_up_workload(4, 1024, forward_seconds=5e-3, backward_seconds=10e-3)
    seconds = lossy_emulated._seconds(replayed(workload), 4, 4, six_ranks, method)
    assert seconds >= 0.99 * workload.compute_seconds


def test_the_figure_shows_every_run_and_every_forecast():
    table = rows(bsp=(1.0, 2.2), local=(2.0, 1.1)).assign(model="m", workers=4, source="emulated")
    figure = lossy_against_emulated(pd.concat([table, table.assign(network="other")]))
    assert [ax.get_title() for ax in figure.axes] == ["n", "other"]
    measured, forecast = figure.axes[0].lines
    assert sorted(measured.get_xdata()) == pytest.approx([1000, 1200, 2000, 2400])
    assert list(forecast.get_xdata()) == pytest.approx([2200, 1100])
    assert list(forecast.get_ydata()) == [0, 1]

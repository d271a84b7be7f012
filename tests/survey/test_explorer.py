"""The explorer: what sliders show is what the simulator says, and what is kept is a cluster."""

import json
import re

import pytest

import ddlnb
from ddlnb.figures import explorer
from ddlnb.plans.methods import METHODS
from ddlnb.survey.explorer import (
    Setting,
    explored_grid,
    explored_speeds,
    save_explored,
)

START = Setting(workers=8)


@pytest.fixture(scope="module")
def widget():
    """Sliders that never rest: a search begins when a test says so."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ddlnb.survey.explorer.REST", 1e6)
        yield explorer(START)


def test_a_kept_cluster_is_forecast_as_the_explorer_shows(tmp_path):
    path = save_explored(START, tmp_path / "mine.yaml")
    rows = ddlnb.forecast(START.workload, str(path), list(METHODS), gpus=START.workers, draws=20)
    speeds = explored_speeds(START).set_index("method")["throughput"]
    for method, rate in rows.set_index("method")["throughput_samples_per_s"].items():
        assert rate == pytest.approx(speeds[method], rel=1e-4)  # six digits are written


def test_a_moved_slider_changes_bars_words_and_timeline_and_a_click_the_timeline(widget):
    before = {name: widget.said[name].value for name in explored_speeds(START)["method"]}
    picture = widget.picture.value
    widget.gigabits.value = 1.0
    assert all(widget.said[name].value != text for name, text in before.items())
    widget.show()
    assert widget.picture.value != picture
    widest = max(before, key=lambda name: float(widget.bars[name].layout.width[:-2]))
    speeds = explored_speeds(widget.setting).set_index("method")["throughput"]
    assert speeds[widest] == speeds.max()
    shown = widget.picture.value
    widget.bars["BSP-PS"].click()
    assert widget.chosen == "BSP-PS"
    assert bytes(widget.picture.value).startswith(b"\x89PNG")
    assert widget.picture.value != shown


def test_the_searched_plan_follows_and_shows_its_timeline_on_click(widget):
    widget.gigabits.value = 2.0
    assert "searching" in widget.said["searched"].value
    widget.bars["searched"].click()
    assert widget.chosen != "searched"  # not there yet
    widget.search()
    assert "no plan takes less than" in widget.said["searched"].value
    widget.bars["searched"].click()
    assert widget.chosen == "searched"
    speeds = explored_speeds(widget.setting)
    a2a = speeds[~speeds["method"].str.endswith("PS")]["iteration_seconds"].min()
    assert widget.found.iteration_seconds <= a2a * (1 + 1e-9)


def test_what_cannot_be_kept_is_said_beside_the_button(widget, tmp_path):
    widget.path.value = str(tmp_path / "mine.txt")
    assert widget.keep() is None
    assert "must have a name in .yaml" in widget.saved.value
    widget.path.value = str(tmp_path / "mine.yaml")
    assert widget.keep().exists()


def test_a_page_has_the_simulated_rate_at_every_place_of_its_sliders(monkeypatch):
    places = {"workers": (8, 16), "network (Gb/s)": (10.0,), "latency (us)": (50.0, 5.0)}
    monkeypatch.setattr("ddlnb.survey.explorer.GRID", places)
    page = explored_grid(["resnet50"])._repr_html_()
    found = json.loads(re.search(r"rows = (.*?), methods = ", page).group(1))
    speeds = [
        explored_speeds(Setting("resnet50", 10.0, latency, workers))
        for workers in (8, 16)
        for latency in (50.0, 5.0)
    ]
    assert len(found) == len(speeds)
    for rows, expected in zip(found, speeds, strict=True):
        assert [row[0] for row in rows] == pytest.approx(expected["throughput"], rel=1e-3)

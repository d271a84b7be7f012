"""Work of over two minutes says so, and asks a person at a terminal; shorter work says nothing."""

import shlex
from contextlib import nullcontext
from dataclasses import replace

import pytest
import typer

import ddlnb
from ddlnb.cli.app import main
from ddlnb.cli.measure import START_SECONDS, expected_seconds
from ddlnb.cli.options import announce
from ddlnb.engines.settings import DEFAULTS
from ddlnb.training.runs.compare import estimated_seconds as training_seconds
from ddlnb.training.settings import training_settings

EMULATED = DEFAULTS.changed(launcher="emulated", network="100Mb/s 1ms", servers=2)


@pytest.mark.parametrize(
    ("seconds", "yes", "is_there", "answer", "said"),
    [
        (0.0, False, True, None, False),
        (120.0, False, True, None, False),
        (None, False, True, None, False),
        (1000, False, True, True, True),
        (1000, False, True, False, True),
        (1000, True, True, None, True),
        (1000, False, False, None, True),
    ],
)
def test_long_work_is_said_and_a_person_at_a_terminal_is_asked(
    seconds, yes, is_there, answer, said, monkeypatch, capsys
):
    monkeypatch.setattr("ddlnb.cli.options.somebody_is_there", lambda: is_there)
    confirm = None if answer is None else lambda *_, **__: answer  # None is nothing to call
    monkeypatch.setattr(typer, "confirm", confirm)
    with pytest.raises(typer.Exit) if answer is False else nullcontext():
        announce(seconds, yes)
    assert capsys.readouterr() == ("", "This takes about 17 minutes here.\n" * said)


@pytest.mark.parametrize(
    ("words", "work"),
    [
        (
            "measure --model small-conv --launcher emulated --workers 4 --network '100Mb/s 1ms'",
            "ddlnb.engines.measure.measure_scaling",
        ),
        (
            "train --task digits --method bsp --workers 8 --steps 300 --seeds 5 --tune --jobs 1",
            "ddlnb.training.runs.runner.in_parallel",
        ),
    ],
)
def test_long_work_is_announced_before_a_process_starts(words, work, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["ddlnb", *shlex.split(words)])
    monkeypatch.setattr("ddlnb.training.runs.compare.estimated_seconds", lambda *_, **__: 600.0)
    monkeypatch.setattr(work, None)
    with pytest.raises(TypeError, match="not callable"):
        main()
    assert capsys.readouterr().err.startswith("This takes about ")


def test_more_work_is_estimated_to_take_longer_and_replayed_work_by_its_bytes():
    def seconds(methods="all", workers=4, **changes):
        found = expected_seconds(
            "small-conv", methods, workers=workers, settings=EMULATED.changed(**changes)
        )
        return found - START_SECONDS

    assert seconds() > 120
    assert seconds(repetitions=6) == pytest.approx(2 * seconds(repetitions=3), rel=0.01)
    assert seconds("MG-WFBP") < seconds(["MG-WFBP", "WFBP-PS"]) < seconds()
    assert seconds(network="50Mb/s 1ms") > 1.5 * seconds()
    replayed = ddlnb.workloads.replayed("resnet50_b64_rtx2080ti")
    settings = DEFAULTS.changed(
        launcher="emulated", network="10GbE", scale=0.05, baselines=False, repetitions=1
    )
    found = expected_seconds(replayed, "BSP-A2A", workers=4, settings=settings)
    bits = 8 * 2 * replayed.recorded.gradient_bytes
    iteration = (replayed.recorded.compute_seconds + bits / 10e9) / settings.site.scale
    runs = (settings.iterations + settings.warmup) * iteration
    assert found == pytest.approx(runs, rel=0.15)


def test_what_nobody_timed_is_not_told_and_what_is_on_disk_takes_no_time(tmp_path, monkeypatch):
    for settings in (DEFAULTS.changed(launcher="slurm"), DEFAULTS.changed(local_batch=63)):
        assert expected_seconds("small-conv", "all", workers=4, settings=settings) is None
    cell = training_settings("digits", "bsp", executor="distributed")
    assert training_seconds([cell], 5) is None
    monkeypatch.setattr("ddlnb.engines.targets.missing_runs", lambda *_: [])
    (tmp_path / "rows.csv").write_text("")
    monkeypatch.setattr("ddlnb.results.rows.ResultsFile", lambda path: path)
    given = {"workers": 4, "settings": EMULATED, "out": tmp_path / "rows.csv"}
    assert expected_seconds("small-conv", "all", **given) == 0.0


def test_training_takes_what_gradients_take_on_all_cores():
    cell = training_settings("digits", "bsp", workers=8, steps=400)
    assert training_seconds([cell], 10, jobs=2) == pytest.approx(10 * 400 * 8 * 1.6e-3 / 2)
    assert training_seconds([cell], 10, tune=True, jobs=1) == pytest.approx(14.5 * 3200 * 1.6e-3)
    own = replace(cell, task=replace(cell.task, name="mine"))
    assert training_seconds([cell, own], 1) is None

"""Questions and answers: declared once, and the same in Python, on the command line, on a page."""

import html
import inspect
import subprocess
import sys
import threading
from dataclasses import fields

import pandas as pd
import pytest

import ddlnb
from ddlnb.advice.question import AdviceQuestion, ScalingQuestion
from ddlnb.cli.app import main
from ddlnb.engines.settings import MeasurementSettings
from ddlnb.launch.options import LaunchOptions
from ddlnb.parallelism.forecast.question import LayoutQuestion
from ddlnb.questions import Answer, options
from ddlnb.simulator import simulate
from ddlnb.simulator.questions import ForecastQuestion
from ddlnb.training.settings import TrainingSettings
from tests.cli.test_commands import EVERY
from tests.command_line import ddlnb as run

QUESTIONS = {
    "forecast": (ddlnb.forecast, ForecastQuestion),
    "forecast scaling": (ddlnb.scaling, ScalingQuestion),
    "advise": (ddlnb.advise, AdviceQuestion),
}
ASKED = ["--model", "resnet50", "--cluster", "survey-10GbE", "--gpus", "8"]


@pytest.mark.parametrize("command", QUESTIONS)
def test_a_question_is_the_keywords_the_options_and_the_help(command):
    call, question = QUESTIONS[command]
    asked = inspect.signature(question).parameters
    keywords = inspect.signature(call).parameters
    assert {name: (one.kind, one.default) for name, one in keywords.items()} == {
        name: (one.kind, one.default) for name, one in asked.items()
    }
    offered = {flag: one for one in EVERY[command].params for flag in one.opts}
    for name, option in options(question).items():
        shown = offered[option.flag or f"--{name.replace('_', '-')}"]
        assert shown.help.startswith(option.meaning)
        assert option.meaning in call.__doc__


@pytest.mark.parametrize(
    ("command", "question", "given_otherwise"),
    [
        ("measure", MeasurementSettings, {"site", "cost"}),
        ("measure", LaunchOptions, set()),
        ("train", TrainingSettings, {"clock"}),
        ("layouts scale", LayoutQuestion, {"fitted"}),
    ],
)
def test_settings_are_the_options_of_their_commands(command, question, given_otherwise):
    offered = {flag for one in EVERY[command].params for flag in one.opts}
    asked = options(question)
    assert {one.flag or f"--{name.replace('_', '-')}" for name, one in asked.items()} <= offered
    assert {one.name for one in fields(question)} - given_otherwise == asked.keys()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"accumulate": 0}, "accumulate 0 must be a whole number, at least 1"),
        ({"draws": "3"}, "draws '3' must be a whole number, at least 0"),
        ({"throughput": -1}, "throughput -1 must be a finite number above 0"),
        ({"precision": 4}, "precision 4: input should be a valid string"),
        ({"methds": "all"}, "unknown argument 'methds'; choose one of .*did you mean 'methods'"),
    ],
)
def test_what_a_question_does_not_allow_is_refused_before_any_work(given, said, monkeypatch):
    monkeypatch.setitem(sys.modules, "ddlnb.simulator.profiles", None)
    with pytest.raises(ddlnb.DdlnbError, match=said):
        ddlnb.forecast("resnet50", "survey-10GbE", **given)


@pytest.mark.parametrize("command", QUESTIONS)
def test_a_notebook_shows_what_the_command_prints(command):
    call, _ = QUESTIONS[command]
    said = " ".join(
        run(*command.split(), *ASKED, "--draws", "0", "--wide", check=True).stdout.split()
    )
    found = call("resnet50", "survey-10GbE", gpus=8, draws=0)
    assert isinstance(found, Answer)
    assert found in {found: 1}
    assert found not in [call("resnet50", "survey-10GbE", gpus=8, draws=0)]
    shown = found._repr_html_()
    for one in found.said:
        assert " ".join(one.split()) in said
        assert html.escape(one) in shown
        assert one in repr(found)
    for table in found.tables:
        assert html.escape(table.title) in shown
        for row in table.rows:
            words = " ".join(map(str, row.values())).split()  # of cells on several lines
            assert all(word in said for word in words)
            assert all(html.escape(str(value)) in shown for value in row.values())


def test_an_answer_has_what_a_frame_has():
    found = ddlnb.forecast("resnet50", "survey-10GbE", gpus=8, draws=0)
    assert found["method"].tolist() == found.rows["method"].tolist()
    assert len(found.query("gpus == 8")) == len(found)
    assert "method" in found
    pd.testing.assert_frame_equal(found.to_frame(), found.rows)
    assert found.to_frame() is not found.rows
    assert len(ddlnb.throughput_table(found)) > 0


def test_a_forecast_walks_through_fifteen_modules_to_the_first_simulated_cell(monkeypatch):
    """The modules whose functions are under way when the first cell is played."""

    class Played(Exception):
        """Takes the place of the rest."""

    def stop(*_):
        frame, walked = sys._current_frames()[threading.main_thread().ident], set()
        while frame := frame.f_back:
            walked.add(frame.f_globals["__name__"])
        raise Played(sorted(name for name in walked if name.startswith("ddlnb.")))

    monkeypatch.setattr(simulate, "play_prepared", stop)
    monkeypatch.setattr(sys, "argv", ["ddlnb", "forecast", *ASKED])
    with pytest.raises(Played) as ended:
        main()
    assert 3 < len(ended.value.args[0]) <= 15


def test_a_forecast_reads_its_cluster_and_its_profile_once(monkeypatch):
    from ddlnb.clusters import file
    from ddlnb.simulator import profiles

    read = []
    for module, name in ((file, "read_cluster"), (profiles, "read_profile")):
        original = getattr(module, name)

        def counted(*given, original=original, **named):
            read.append(original.__name__)
            return original(*given, **named)

        monkeypatch.setattr(module, name, counted)
    run("forecast", *ASKED, "--draws", "0", check=True)
    assert sorted(read) == ["read_cluster", "read_profile"]


def test_what_is_known_by_name_is_answered_without_torch():
    code = (
        "import sys; sys.modules['torch'] = None; import ddlnb; "
        "asked = {'draws': 0, 'gpus': 8}; on = ('resnet50', 'survey-10GbE'); "
        "print(len(ddlnb.forecast(*on, **asked)), ddlnb.scaling(*on, **asked).reach, "
        "ddlnb.advise(*on, most_plans=0, **asked).remarks[0])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("9 8 Not known: Not judged: what sends or waits less needs torch")

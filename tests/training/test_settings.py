"""The settings of a run are parsed and validated once, and say what they are everywhere alike."""

from __future__ import annotations

import math
import pickle
import subprocess
import sys
from dataclasses import fields, replace

import pytest

import ddlnb
from ddlnb.errors import InputError, UnknownName
from ddlnb.questions import options
from ddlnb.training.method import training_method
from ddlnb.training.optimizers import OPTIMIZERS, get_optimizer
from ddlnb.training.runs.compare import EXTENSIONS, SCANNED, SPACING
from ddlnb.training.settings import RATE_SPAN, TrainingSettings, training_settings
from ddlnb.training.tasks.catalogue import LEARNING_TASKS

SETTINGS = training_settings("digits", "local(8)", workers=4, steps=100, split="non-iid(0.1)")


def test_text_stands_for_choices_and_what_is_left_out_is_found():
    assert SETTINGS.task is LEARNING_TASKS["digits"]
    assert SETTINGS.method == training_method("local(8) on A2A")
    assert SETTINGS.local_batch == SETTINGS.task.local_batch
    assert SETTINGS.lr == SETTINGS.task.learning_rate
    assert SETTINGS.every == 5
    assert replace(SETTINGS, steps=10).every == 1
    assert replace(SETTINGS, method="ssp(3)").method == training_method("ssp(3)")
    again = training_settings(SETTINGS.task, SETTINGS.method, workers=4, steps=100,
                              split=SETTINGS.split)  # fmt: skip
    assert again == SETTINGS


def test_settings_travel_to_other_processes():
    assert pickle.loads(pickle.dumps(SETTINGS)) == SETTINGS


def test_every_setting_has_a_meaning():
    assert {one.name for one in fields(TrainingSettings)} - {"clock"} == options(
        TrainingSettings
    ).keys()


def test_curves_say_under_which_settings_they_were_made():
    curve = ddlnb.train("quadratic", "bsp", workers=2, steps=2, seed=7)
    expected = training_settings("quadratic", "bsp", workers=2, steps=2, seed=7).columns()
    assert curve[list(expected)].iloc[0].to_dict() == expected


def test_an_unknown_setting_is_one_clear_error():
    with pytest.raises(UnknownName, match=r"unknown training setting 'step'.*did you mean 'steps'"):
        ddlnb.train("digits", "bsp", step=3)


@pytest.mark.parametrize("lr", [1e9, 1e-12, 0, -1.0, math.nan, math.inf, "fast"])
def test_rates_that_make_no_sense_are_refused_with_the_reason(lr):
    with pytest.raises(InputError, match=r"learning rate .* must be between .* first guess"):
        replace(SETTINGS, lr=lr)


@pytest.mark.parametrize("task", LEARNING_TASKS.values(), ids=LEARNING_TASKS)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_every_rate_that_tuning_may_try_is_allowed(task, optimizer):
    assert max(SCANNED) * SPACING**EXTENSIONS * 2 < RATE_SPAN
    guess = get_optimizer(optimizer).first_rate(task)
    for factor in (SPACING ** -(EXTENSIONS + 1) / 2**5, SPACING ** (EXTENSIONS + 1) * 2):
        assert training_settings(task, "bsp", optimizer=optimizer, lr=factor * guess).lr > 0


def test_the_settings_are_known_without_torch():
    code = (
        "import ddlnb.training.settings, sys; sys.exit(bool({'torch', 'pandas'} & {*sys.modules}))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

"""Where a server keeps the model, it is the one that is evaluated."""

import pytest
import torch
from typer.testing import CliRunner

from ddlnb.cli.app import app
from ddlnb.training.executors.clock import Clock, OneSlow
from ddlnb.training.executors.lockstep import Lockstep
from ddlnb.training.runs.train import run
from ddlnb.training.settings import training_settings

LATE = Clock(OneSlow(4.0))


@pytest.mark.parametrize("method", ["asp", "ssp(2)", "r2sp"])
def test_the_last_row_is_about_the_sum_of_all_updates(method):
    """Workers that end early keep copies that are older than the model."""
    settings = training_settings("quadratic", f"{method} on PS", workers=4, steps=30, clock=LATE)
    job = settings.job()
    workers, rule, module = [job.worker(rank) for rank in range(4)], job.rule(), job.model()
    started = workers[0].parameters.clone()
    Lockstep(workers, job.method.synchronisation.loop, 30, rule=rule, clock=LATE).run()
    with torch.no_grad():
        torch.nn.utils.vector_to_parameters(
            started + rule._updates[0].total, list(module.parameters())
        )
    last = run(settings).iloc[-1]
    assert last["test_loss"] == pytest.approx(settings.task.evaluate(module).loss, rel=1e-6)


def test_methods_that_need_not_wait_say_that_nobody_is_late():
    words = ["train", "--task", "quadratic", "--workers", "2", "--steps", "4", "--yes"]
    words += ["--method", "ssp(2)", "--method", "bsp", "--method", "asp"]
    said = "so that nobody gets ahead: --straggler 'log-normal(0.5)' shows"
    told = CliRunner().invoke(app, words, env={"COLUMNS": "400"}).output
    assert f"{said} what it is worth not to wait, with ssp(2) on PS, asp on PS." in told
    assert said not in CliRunner().invoke(app, [*words, "--straggler", "one-slow(2)"]).output

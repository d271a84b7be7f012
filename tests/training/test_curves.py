"""What a curve evaluates, and how it ends when numbers are none any more."""

from __future__ import annotations

import math
from functools import partial

import pandas as pd
import pytest
import torch
from torch import nn

from ddlnb.training.executors.lockstep import Lockstep
from ddlnb.training.runs.train import train
from ddlnb.training.settings import training_settings
from ddlnb.training.tasks.built_in import classification_loss, evaluate_classifier
from ddlnb.training.tasks.task import Constants, Evaluation, LearningTask, Samples

OVERFLOWING = (  # by whom what is no number any more is found: the loss, or a compressor
    *("bsp", "bsp + top-k(0.1) + feedback", "bsp + qsgd(127)", "bsp + dgc(0.1, 0.9, None, 9)"),
    *("local(2) + signsgd", "asp + top-k(0.1)", "choco(complete) + top-k(0.1)"),
    *("dcd-psgd + qsgd(7)", "bsp + powersgd(1) + feedback", "bsp + gtop-k(0.1) + feedback"),
)


@pytest.mark.parametrize("method", OVERFLOWING)
@pytest.mark.parametrize("lr", [1e4, 1e38])
def test_numbers_that_cannot_be_compressed_are_a_run_that_diverged(method, lr, monkeypatch):
    monkeypatch.setattr("ddlnb.training.settings.RATE_SPAN", math.inf)
    curve = train("digits", method, workers=2, steps=12, lr=lr, evaluate_every=2)
    assert curve["diverged"].tolist() == [False] * (len(curve) - 1) + [True]
    assert 0 < curve["step"].iloc[-1] < 12


@pytest.mark.ranks
@pytest.mark.parametrize("method", OVERFLOWING)
@pytest.mark.parametrize("lr", [1e4, 1e38])
def test_real_processes_that_diverge_say_so_and_nobody_waits(six_ranks, method, lr, monkeypatch):
    monkeypatch.setattr("ddlnb.training.settings.RATE_SPAN", math.inf)
    settings = {"workers": 2, "steps": 6, "evaluate_every": 1, "lr": lr}
    curve = train("digits", method, executor="distributed", ranks=six_ranks, **settings)
    assert curve["diverged"].tolist() == [False] * (len(curve) - 1) + [True]
    assert curve["step"].iloc[-1] < 6
    assert len(six_ranks.pids) == 6


def in_parts(seed: int, normalised: bool) -> nn.Module:
    """A first layer that is frozen, or running statistics behind it, which are buffers."""
    torch.manual_seed(seed)
    first = nn.Linear(6, 12).requires_grad_(normalised)
    between = nn.BatchNorm1d(12) if normalised else nn.Identity()
    return nn.Sequential(first, between, nn.ReLU(), nn.Linear(12, 2))


def six_numbers() -> Samples:
    inputs = 3 + torch.randn(400, 6, generator=torch.Generator().manual_seed(0))
    labels = (inputs.sum(1) > 18).long()
    return Samples((inputs, labels), labels)


def evaluated(module: nn.Module) -> Evaluation:
    module.eval()
    found = evaluate_classifier(module, *six_numbers().tensors)
    module.train()
    return found


def task_in_parts(normalised: bool) -> LearningTask:
    build = partial(in_parts, normalised=normalised)
    parts = (six_numbers, classification_loss, evaluated, Constants)
    return LearningTask("in-parts", build, *parts, local_batch=16, learning_rate=0.1, about="")


@pytest.mark.parametrize("normalised", [False, True], ids=["frozen", "normalised"])
@pytest.mark.parametrize("seed", [0, 1])
def test_what_is_evaluated_is_the_workers_model_whatever_it_is_made_of(normalised, seed):
    task = task_in_parts(normalised)
    settings = {"workers": 1, "steps": 40, "seed": seed}
    last = train(task, "bsp", **settings).iloc[-1]
    job = training_settings(task, "bsp", **settings).job()
    worker = job.worker(0)
    Lockstep([worker], job.method.synchronisation.loop, 40).run()
    assert last["test_loss"] == evaluated(worker.module).loss


def test_running_statistics_are_averaged_over_the_workers():
    task = task_in_parts(True)
    settings = {"workers": 3, "steps": 10}
    last = train(task, "bsp", **settings).iloc[-1]
    job = training_settings(task, "bsp", **settings).job()
    crew = [job.worker(rank) for rank in range(3)]
    Lockstep(crew, job.method.synchronisation.loop, 10).run()
    norms = [worker.module[1] for worker in crew]
    for name in ("running_mean", "running_var"):
        mean = torch.stack([getattr(norm, name).double() for norm in norms]).mean(0)
        assert not torch.allclose(mean.float(), getattr(norms[0], name))
        getattr(norms[0], name).copy_(mean)
    assert last["test_loss"] == evaluated(crew[0].module).loss


@pytest.mark.ranks
def test_real_processes_show_their_running_statistics(six_ranks):
    settings = {"workers": 2, "steps": 6, "evaluate_every": 3}
    here, there = (
        train(task_in_parts(True), "local(3)", executor=executor, ranks=ranks, **settings)
        for executor, ranks in (("lockstep", None), ("distributed", six_ranks))
    )
    same = ["step", "test_loss", "test_accuracy", "consensus_distance"]
    pd.testing.assert_frame_equal(here[same], there[same], rtol=1e-5)

"""Lossless means lossless: every method, on real processes, equals one worker on joined batches."""

from __future__ import annotations

from functools import partial
from itertools import pairwise

import pytest
import torch

from ddlnb.engines.job import Job
from ddlnb.engines.settings import OPTIMIZERS
from ddlnb.engines.worker import run_job
from ddlnb.errors import RankError
from ddlnb.networks.collectives.catalogue import get_collective
from ddlnb.plans.methods import METHODS
from ddlnb.workloads.resolve import get_task
from ddlnb.workloads.task import Task
from ddlnb.workloads.tracing import trace
from tests.toy import COST, in_double, mlp, train_alone

STEPS, BATCH = 10, 2
PARTITION = "100KB"
CASES = [
    (name, servers)
    for name, method in METHODS.items()
    for servers in ((1, 2) if method.architecture == "PS" else (1,))
]
# Every pair of a model, an optimizer and a number of workers; not all eight triples.
PAIRS = [
    ("small-conv", "sgd", 2),
    ("small-conv", "adamw", 4),
    ("small-transformer", "sgd", 4),
    ("small-transformer", "adamw", 2),
]


def run(ranks, task, name, servers, workers, optimizer, **changes):
    method = METHODS[name].tuned(partition=PARTITION, credit="300KB")
    plan = method.plan(trace(task, 4), cost=COST, servers=servers)
    job = Job(
        task=task,
        engine="torch",
        workers=workers,
        local_batch=BATCH,
        iterations=STEPS,
        batches=STEPS,
        plan=plan,
        make_optimizer=OPTIMIZERS[optimizer],
        keep_parameters=True,
        **changes,
    )
    reports = ranks.run(run_job, job, count=job.ranks, timeout_seconds=120)
    return [report for report in reports if report is not None]


@pytest.fixture(scope="module")
def alone():
    """One worker's parameters, worked out once per model, optimizer and number of workers."""
    known = {}

    def look_up(model, optimizer, workers):
        key = (model, optimizer, workers)
        if key not in known:
            make = OPTIMIZERS[optimizer]
            known[key] = train_alone(in_double(model), make, workers, BATCH, STEPS)
        return known[key]

    return look_up


@pytest.mark.item("A05", how="measured")
@pytest.mark.ranks
@pytest.mark.parametrize(("model", "optimizer", "workers"), PAIRS)
@pytest.mark.parametrize(("name", "servers"), CASES)
def test_ten_steps_equal_one_worker_on_the_joined_batch(
    six_ranks, alone, name, servers, model, optimizer, workers
):
    reports = run(six_ranks, in_double(model), name, servers, workers, optimizer)
    assert len({report.digest for report in reports}) == 1
    for parameter, value in alone(model, optimizer, workers).items():
        for report in reports:
            torch.testing.assert_close(report.parameters[parameter], value, rtol=1e-5, atol=1e-9)


@pytest.mark.ranks
@pytest.mark.parametrize("workers", [2, 3, 4])
@pytest.mark.parametrize("name", [n for n, m in METHODS.items() if m.architecture == "A2A"])
def test_a_mesh_is_as_lossless_as_a_ring(six_ranks, alone, name, workers):
    """Messages of all sizes: in one hop, in two, and of fewer elements than workers."""
    reports = run(six_ranks, in_double("small-conv"), name, 1, workers, "sgd", topology="mesh")
    assert len({report.digest for report in reports}) == 1
    for parameter, value in alone("small-conv", "sgd", workers).items():
        for report in reports:
            torch.testing.assert_close(report.parameters[parameter], value, rtol=1e-5, atol=1e-9)


@pytest.mark.ranks
@pytest.mark.parametrize("name", [n for n, m in METHODS.items() if m.architecture == "A2A"])
@pytest.mark.parametrize("collective", ["double-tree", "halving-doubling", "torus(2, 2)"])
def test_every_collective_is_as_lossless_as_torch_s_own(six_ranks, alone, name, collective):
    made = get_collective(collective, 4)
    reports = run(six_ranks, in_double("small-conv"), name, 1, 4, "sgd", collective=made)
    assert len({report.digest for report in reports}) == 1
    for parameter, value in alone("small-conv", "sgd", 4).items():
        for report in reports:
            torch.testing.assert_close(report.parameters[parameter], value, rtol=1e-5, atol=1e-9)


@pytest.mark.ranks
def test_a_collective_reports_the_bytes_of_its_list(six_ranks):
    """A tree's root sends twice what a leaf does; parts of a message are as even as can be."""
    task = mlp([64, 64])
    workload = trace(task, 4)
    tree = get_collective("tree", 4)
    plan = METHODS["WFBP-A2A"].plan(workload)
    job = Job(task, "torch", 4, 4, iterations=3, plan=plan, collective=tree)
    sent = [report.bytes_sent for report in six_ranks.run(run_job, job, count=4)]
    assert sent == (3 * tree.bytes_sent(workload.gradient_bytes)).tolist()


@pytest.mark.ranks
@pytest.mark.parametrize("name", ["BSP-A2A", "ByteScheduler-PS"])
def test_single_precision_stays_within_its_rounding(six_ranks, name):
    """Ten SGD steps in float32: 1e-4 of the parameter's largest entry covers the rounding."""
    task = get_task("small-conv")
    reports = run(six_ranks, task, name, 2, 4, "sgd")
    expected = train_alone(task, OPTIMIZERS["sgd"], 4, BATCH, STEPS)
    for parameter, value in expected.items():
        error = (reports[0].parameters[parameter] - value).abs().max()
        assert error <= 1e-4 * max(1.0, float(value.abs().max())), parameter


@pytest.mark.ranks
@pytest.mark.parametrize("name", METHODS)
def test_every_worker_reports_what_it_sent_and_did(six_ranks, name):
    workers, traced = 2, 2
    task = mlp([64, 64])
    method = METHODS[name].tuned(partition="8KB", credit="16KB")
    workload = trace(task, 4)
    plan = method.plan(workload, cost=COST, servers=2)
    job = Job(task, "torch", workers, 4, iterations=3, traced=traced, plan=plan)
    reports = [r for r in six_ranks.run(run_job, job, count=job.ranks) if r is not None]
    for report in reports:
        messages = [span for span in report.spans if span.kind == "message"]
        halves = len(plan.legs) // len(plan.messages)  # of an all-reduce: each reports itself
        assert len(messages) == traced * len(plan.legs)
        assert sum(span.bytes for span in messages) == traced * workload.gradient_bytes * halves
        assert {"forward", "backward", "wait", "update"} <= {span.kind for span in report.spans}
        computing = sorted(
            (s.start_seconds, s.stop_seconds) for s in report.spans if s.lane == "compute"
        )
        assert all(a[1] <= b[0] + 1e-6 for a, b in pairwise(computing))
        # 2 (n-1) / n of the gradient in a ring, all of it and 14 bytes a message with servers
        expected = 3 * (workload.gradient_bytes + 14 * len(plan.messages) * bool(plan.servers))
        assert report.bytes_sent == expected


@pytest.mark.ranks
@pytest.mark.parametrize("engine", ["single", "ddp"])
def test_the_baselines_train_like_everyone_else(six_ranks, engine):
    task = in_double("small-conv")
    workers = 1 if engine == "single" else 2
    job = Job(task, engine, workers, 2, iterations=STEPS, batches=STEPS, keep_parameters=True)
    reports = six_ranks.run(run_job, job, count=workers)
    assert len({report.digest for report in reports}) == 1
    for parameter, value in train_alone(task, OPTIMIZERS["sgd"], workers, 2, STEPS).items():
        torch.testing.assert_close(reports[0].parameters[parameter], value, rtol=1e-5, atol=1e-9)


def _diverging_plan(context, job, other):
    return run_job(context, job if context.rank == 0 else other)


@pytest.mark.ranks
def test_ranks_with_different_plans_are_refused_before_they_hang(six_ranks):
    task = mlp([8])
    workload = trace(task, 4)
    jobs = [
        Job(task, "torch", 2, 4, iterations=1, plan=METHODS[name].plan(workload))
        for name in ("BSP-A2A", "WFBP-A2A")
    ]
    with pytest.raises(RankError, match="make the plan once"):
        six_ranks.run(_diverging_plan, *jobs, count=2, timeout_seconds=30)


def _skips_a_layer(module, batch):
    return module[0](batch[0]).sum()


@pytest.mark.ranks
def test_a_parameter_without_gradient_is_named(six_ranks):
    task = mlp([8])
    partial_task = Task(
        "partial", task.build, task.batch, partial(_skips_a_layer), 4, "samples", "uses one layer"
    )
    job = Job(
        partial_task, "torch", 2, 4, iterations=1, plan=METHODS["WFBP-A2A"].plan(trace(task, 4))
    )
    with pytest.raises(RankError, match=r"no gradient arrived for 2\.(weight|bias)"):
        six_ranks.run(run_job, job, count=2, timeout_seconds=30)

"""All-reduces in halves, and a collective for every message, on real ranks."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from ddlnb.engines.job import Job
from ddlnb.engines.settings import OPTIMIZERS
from ddlnb.engines.worker import run_job
from ddlnb.plans.bucketing import in_buffers
from ddlnb.plans.methods import METHODS
from ddlnb.plans.plan import Plan
from ddlnb.workloads.tracing import trace
from tests.toy import in_double, train_alone

STEPS, BATCH, WORKERS = 6, 2, 3


@pytest.fixture(scope="module")
def task():
    return in_double("small-conv")


@pytest.fixture(scope="module")
def alone(task):
    return train_alone(task, OPTIMIZERS["adamw"], WORKERS, BATCH, STEPS)


def run(ranks, task, plan: Plan, traced=0):
    job = Job(
        task=task,
        engine="torch",
        workers=WORKERS,
        local_batch=BATCH,
        iterations=STEPS,
        traced=traced,
        batches=STEPS,
        plan=plan,
        make_optimizer=OPTIMIZERS["adamw"],
        keep_parameters=True,
    )
    return ranks.run(run_job, job, count=WORKERS, timeout_seconds=120)


def require_equal(reports, alone):
    assert len({report.digest for report in reports}) == 1
    for parameter, value in alone.items():
        torch.testing.assert_close(reports[0].parameters[parameter], value, rtol=1e-5, atol=1e-9)


def dear(task, buffer_bytes) -> Plan:
    workload = trace(task, BATCH)
    plan = METHODS["DeAR"].plan(workload)
    return replace(plan, messages=tuple(in_buffers(workload, buffer_bytes)))


@pytest.mark.ranks
def test_halves_of_several_buffers_train_as_one_worker_does(six_ranks, task, alone):
    plan = dear(task, 300_000)
    assert len(plan.messages) > 5
    reports = run(six_ranks, task, plan)
    require_equal(reports, alone)
    sent = 2 * (WORKERS - 1) / WORKERS * sum(plan.message_bytes) * STEPS
    assert reports[0].bytes_sent == pytest.approx(sent, rel=1e-3)


@pytest.mark.ranks
def test_gathers_follow_all_scatters_and_start_as_the_forward_pass_needs_them(six_ranks, task):
    plan = dear(task, 1_000_000)
    spans = run(six_ranks, task, plan, traced=2)[0].spans
    of_first = [span for span in spans if span.kind == "message" and span.iteration == 0]
    started = [span.name for span in sorted(of_first, key=lambda span: span.start_seconds)]
    assert started == list(plan.leg_names)
    halves = {
        kind: [span for span in of_first if span.name.startswith(kind)]
        for kind in ("reduce-scatter", "all-gather")
    }
    ended = max(span.stop_seconds for span in halves["reduce-scatter"])
    assert all(span.start_seconds >= ended for span in halves["all-gather"])


@pytest.mark.ranks
def test_every_message_has_a_collective_of_its_own(six_ranks, task, alone):
    plan = METHODS["WFBP-A2A"].plan(trace(task, BATCH))
    names = ["", "ring", "tree", "direct", "double-tree"]
    chosen = tuple(names[i % len(names)] for i in range(len(plan.messages)))
    require_equal(run(six_ranks, task, replace(plan, collectives=chosen)), alone)

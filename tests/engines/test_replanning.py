"""Plans made anew: who decides, that all ranks follow at once, and what ends them if one dies."""

from __future__ import annotations

import os
import signal
import threading
import time
from contextlib import nullcontext
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
import torch.distributed as dist

from ddlnb.engines.contenders import contenders
from ddlnb.engines.job import Job
from ddlnb.engines.optimizers import OPTIMIZERS
from ddlnb.engines.probes import COST_SIZES
from ddlnb.engines.replanning import Replanner, Replanning
from ddlnb.engines.searching import in_order, measured_cluster
from ddlnb.engines.settings import MeasurementSettings
from ddlnb.engines.worker import run_job
from ddlnb.errors import InputError, PlanError, RankError
from ddlnb.launch.ranks import Ranks
from ddlnb.plans.alpha_beta import AlphaBeta
from ddlnb.plans.methods import METHODS
from ddlnb.search.search import search_plan
from ddlnb.search.space import Space
from ddlnb.workloads.replay import replayed
from ddlnb.workloads.workload import Layer
from tests.toy import TOY

WORKERS, WINDOW = 2, 10
STEADY = 17  # iterations before the network slows down: those of the first window are among them
WHOLE = Space(servers=False, collectives=(), split=False)
SLOW = AlphaBeta(0.15, 1e-9)
SMALL = replace(  # milliseconds instead of seconds
    TOY,
    layers=tuple(Layer(layer.name, 1e-3) for layer in TOY.layers),
    gradients=tuple(replace(one, backward_seconds=1e-3) for one in TOY.gradients),
)


class Slowed:
    """All-reduces as they are; once ``steady`` iterations are over, each takes longer by ``late``.

    That is over three times what any of those iterations took, so that iterations with such a delay
    are longer than every one of them, and more than 1.5 times as long as the median, whatever else
    the machine does.
    """

    def __init__(self, messages, steady):
        self.messages, self.steady = messages, steady
        self.late, self.starts, self.calls, self.real = 0.0, [], 0, dist.all_reduce

    def __call__(self, tensor, async_op=False):
        if not self.late and self.calls % self.messages == 0:
            self.starts.append(time.perf_counter())
            if len(self.starts) > self.steady:
                # An iteration lies within two intervals between first messages.
                self.late = 3.1 * max(b - a for a, b in pairwise(self.starts))
        self.calls += 1
        pending = Late(self.real(tensor, async_op=True), time.perf_counter() + self.late)
        return pending if async_op else pending.wait()


class Late:
    def __init__(self, work, until):
        self.work, self.until = work, until

    def wait(self):
        self.work.wait()
        time.sleep(max(0.0, self.until - time.perf_counter()))

    def get_future(self):
        return self.work.get_future()


def run_while_it_slows_down(context, job):
    slowed = Slowed(len(job.plan.messages), STEADY)
    with mock.patch.object(dist, "all_reduce", slowed):
        return run_job(context, job), slowed.late


def job_of(workers, **options):
    return Job(
        task=replayed(SMALL),
        engine="torch",
        workers=workers,
        local_batch=1,
        warmup=1,
        plan=METHODS["WFBP-A2A"].plan(SMALL),
        make_optimizer=OPTIMIZERS["adamw"],
        **options,
    )


@pytest.mark.ranks
@pytest.mark.parametrize("workers", [2, 4])
def test_all_ranks_take_up_the_plan_that_was_searched_and_no_bit_changes(six_ranks, workers):
    job = job_of(workers, iterations=3 * WINDOW + 3, traced=2, keep_parameters=True)
    rules = Replanning(SMALL, WHOLE, WINDOW, search_seconds=60)
    answers = six_ranks.run(
        run_while_it_slows_down, replace(job, replanning=rules), count=workers, timeout_seconds=60
    )
    reports = [report for report, _ in answers]
    (takeover,) = reports[0].takeovers
    # The second window ends under the slow network; the third lies in it, from end to end.
    assert takeover.iteration in (job.warmup + 2 * WINDOW, job.warmup + 3 * WINDOW)
    assert takeover.cost.seconds(COST_SIZES[-1]) >= answers[0][1]
    cluster = measured_cluster(takeover.cost, workers)
    found = in_order(search_plan(SMALL, cluster, space=WHOLE, progress=False).plan)
    assert takeover.digest == found.digest != job.plan.digest
    assert takeover.messages == len(found.messages) < len(job.plan.messages)
    for report in reports:
        assert report.takeovers == (takeover,)
        assert report.digest == reports[0].digest
        sent = {span.name for span in report.spans if span.kind == "message"}
        assert sent == set(found.leg_names)
    if workers == 2:  # two numbers have one sum; more are added in an order that messages decide
        (kept, _) = six_ranks.run(run_job, job, count=workers, timeout_seconds=60)
        for name, value in kept.parameters.items():
            assert torch.equal(reports[0].parameters[name], value)


@pytest.fixture(scope="module")
def own_ranks():
    """Two ranks to be killed, and restarted by the next run."""
    with Ranks(2) as ranks:
        yield ranks


def dies(*_):
    os.kill(os.getpid(), signal.SIGKILL)


def run_until_one_dies(context, job, rank, where):
    """Drift is found at the first meeting; the rank dies there while it plans anew."""
    replanning = "ddlnb.engines.replanning"
    with (
        mock.patch(f"{replanning}.Drift.found", return_value=True),
        mock.patch(f"{replanning}.LEAST_GAIN", 0.0),
        mock.patch(f"{replanning}.{where}", dies) if context.rank == rank else nullcontext(),
    ):
        return run_job(context, job)


@pytest.mark.ranks
@pytest.mark.parametrize(
    ("rank", "where"), [(0, "search_plan"), (1, "timed_all_reduces"), (1, "Replanner._read")]
)
def test_a_rank_that_dies_while_it_plans_anew_ends_the_run_for_all(own_ranks, rank, where):
    rules = Replanning(SMALL, WHOLE, window=2, search_seconds=60)
    job = job_of(2, iterations=6, replanning=rules)
    with pytest.raises(RankError, match=f"first rank {rank}: process died"):
        own_ranks.run(run_until_one_dies, job, rank, where, timeout_seconds=300)
    assert own_ranks.pids == []


def told(rank, store, text, errors, adopted):
    """What a rank does with the text that it is told of a new plan."""
    plan = METHODS["WFBP-A2A"].plan(SMALL)
    replica = SimpleNamespace(plan=plan, replan=lambda *_: adopted.append(rank))
    job = SimpleNamespace(
        workers=WORKERS, device="cpu", replanning=Replanning(SMALL, WHOLE, WINDOW)
    )
    replanner = Replanner(SimpleNamespace(rank=rank), job, store, replica)
    try:
        replanner._take_up(text, iteration=10)
    except PlanError as error:
        errors[rank] = str(error)


def searched_text():
    store = dist.HashStore()
    replica = SimpleNamespace(plan=METHODS["WFBP-A2A"].plan(SMALL))
    job = SimpleNamespace(
        workers=WORKERS, device="cpu", replanning=Replanning(SMALL, WHOLE, WINDOW)
    )
    replanner = Replanner(SimpleNamespace(rank=0), job, store, replica)
    return replanner._search(SLOW, iteration=10)


@pytest.mark.parametrize(
    ("before", "after", "problem"),
    [
        ("all_reduce", "all_redule", "unknown exchange 'all_redule'"),
        ("c.weight", "d.weight", "sends other gradients|was changed by hand"),
        ('"iteration": 10', '"iteration": 11', "rank 0 said .* before iteration 11"),
        ('"digest": "', '"digest": "0', "and rank 0 said 0"),
    ],
)
def test_a_rank_that_cannot_take_a_plan_up_stops_all_with_the_same_error(before, after, problem):
    text = searched_text()
    assert before in text
    changed = text.replace(before, after, 1 if "digest" in before else -1)
    store, errors, adopted = dist.HashStore(), {}, []
    threads = [
        threading.Thread(target=told, args=(rank, store, said, errors, adopted))
        for rank, said in enumerate([text, changed])
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert adopted == []
    assert errors[0] == errors[1]
    with pytest.raises(PlanError, match=f"rank 1 cannot take up a new plan: .*({problem})"):
        raise PlanError(errors[0])


def test_a_network_that_is_as_it_was_keeps_the_searched_plan():
    cost = SLOW
    plan = search_plan(SMALL, measured_cluster(cost, WORKERS), space=WHOLE, progress=False).plan
    job = SimpleNamespace(
        workers=WORKERS, device="cpu", replanning=Replanning(SMALL, WHOLE, WINDOW)
    )
    context, replica = SimpleNamespace(rank=0), SimpleNamespace(plan=plan)
    assert Replanner(context, job, None, replica)._search(cost, iteration=10) == "stays"


def test_only_searched_plans_of_our_engine_are_made_anew():
    settings = MeasurementSettings(replan=10, iterations=21)
    listed = contenders(["searched", "MG-WFBP"], settings)
    said = {one.name: one.settings_text(settings, replayed=False) for one in listed}
    assert said["searched"] == "replan=10"
    assert said["MG-WFBP"] == said["DDP"] == ""
    with pytest.raises(InputError, match="replan=10 lets method 'searched' of our own engine"):
        contenders("MG-WFBP", settings)


@pytest.mark.parametrize(
    ("replan", "iterations", "problem"),
    [
        (0, 100, "replan"),
        (9, 100, "replan=9 iterations do not tell drift from noise; take 10 or more"),
        (10, 20, "iterations=20 leave none for a new plan; time more than 20 iterations"),
    ],
)
def test_windows_that_could_not_tell_drift_are_refused(replan, iterations, problem):
    with pytest.raises(InputError, match=problem):
        MeasurementSettings(replan=replan, iterations=iterations)

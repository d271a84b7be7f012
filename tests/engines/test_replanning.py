"""Plans made anew: what counts as drift, who decides, and that all ranks follow at once."""

from __future__ import annotations

import random
import threading
import time
from dataclasses import replace
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
import torch.distributed as dist

from ddlnb.engines.contenders import contenders
from ddlnb.engines.drift import THRESHOLD, Drift
from ddlnb.engines.job import Job
from ddlnb.engines.optimizers import OPTIMIZERS
from ddlnb.engines.replanning import Replanner, Replanning
from ddlnb.engines.searching import in_order, measured_cluster
from ddlnb.engines.settings import MeasurementSettings
from ddlnb.engines.worker import run_job
from ddlnb.errors import InputError, PlanError
from ddlnb.plans.alpha_beta import AlphaBeta
from ddlnb.plans.methods import METHODS
from ddlnb.search.search import search_plan
from ddlnb.search.space import Space
from ddlnb.workloads.replay import replayed
from ddlnb.workloads.workload import Layer
from tests.toy import TOY

WORKERS, WINDOW, ITERATIONS = 2, 5, 18
SLOW_FROM, SLOW_SECONDS = 7, 0.15
WHOLE = Space(servers=False, collectives=(), split=False)
SLOW = AlphaBeta(SLOW_SECONDS, 1e-9)
SMALL = replace(  # milliseconds instead of seconds
    TOY,
    layers=tuple(Layer(layer.name, 1e-3) for layer in TOY.layers),
    gradients=tuple(replace(one, backward_seconds=1e-3) for one in TOY.gradients),
)


def noisy(generator, seconds, spread=0.2, count=10):
    """Iterations as shared machines have them: some noise, and one that takes ten times as long."""
    found = [seconds * generator.lognormvariate(0, spread) for _ in range(count - 1)]
    return [*found, 10 * seconds]


def test_noise_is_no_drift():
    for seed in range(50):
        generator, drift = random.Random(seed), Drift()
        assert not any(drift.found(noisy(generator, 0.1)) for _ in range(20)), seed


@pytest.mark.parametrize("factor", [2 * THRESHOLD, 1 / (2 * THRESHOLD)])
def test_drift_either_way_is_found_in_the_first_window_after_it(factor):
    for seed in range(50):
        generator, drift = random.Random(seed), Drift()
        assert not any(drift.found(noisy(generator, 0.1)) for _ in range(3)), seed
        assert drift.found(noisy(generator, 0.1 * factor)), seed


def test_steady_iterations_drift_beyond_the_threshold_only():
    drift = Drift()
    assert not drift.found([1.0] * 5)
    assert not drift.found([0.999 * THRESHOLD] * 5)
    assert drift.found([1.001 * THRESHOLD] * 5)


class Slowed:
    """All-reduces as they are, and from call ``first`` on ``seconds`` later."""

    def __init__(self, first, seconds):
        self.first, self.seconds, self.calls, self.real = first, seconds, 0, dist.all_reduce

    def __call__(self, tensor, async_op=False):
        self.calls += 1
        late = self.seconds if self.calls > self.first else 0.0
        pending = Late(self.real(tensor, async_op=True), time.perf_counter() + late)
        return pending if async_op else pending.wait()


class Late:
    def __init__(self, work, until):
        self.work, self.until = work, until

    def wait(self):
        self.work.wait()
        time.sleep(max(0.0, self.until - time.perf_counter()))

    def get_future(self):
        return self.work.get_future()


def run_while_it_slows_down(context, job, first):
    with mock.patch.object(dist, "all_reduce", Slowed(first, SLOW_SECONDS)):
        return run_job(context, job)


@pytest.mark.ranks
def test_all_ranks_take_up_the_plan_that_was_searched_and_no_bit_changes(six_ranks):
    plan = METHODS["WFBP-A2A"].plan(SMALL)
    job = Job(
        task=replayed(SMALL),
        engine="torch",
        workers=WORKERS,
        local_batch=1,
        iterations=ITERATIONS,
        traced=2,
        plan=plan,
        make_optimizer=OPTIMIZERS["adamw"],
        keep_parameters=True,
    )
    kept = six_ranks.run(run_job, job, count=WORKERS, timeout_seconds=60)
    anew = replace(job, replanning=Replanning(SMALL, WHOLE, WINDOW, search_seconds=60))
    first = SLOW_FROM * len(plan.messages)
    reports = six_ranks.run(run_while_it_slows_down, anew, first, count=WORKERS, timeout_seconds=60)
    (takeover,) = reports[0].takeovers
    assert reports[1].takeovers == (takeover,)
    # The window from 5 on holds 2 quick iterations and 3 slow ones: its median is slow.
    assert takeover.iteration == 2 * WINDOW
    assert takeover.cost.latency_seconds == pytest.approx(SLOW_SECONDS, rel=0.5)
    cluster = measured_cluster(takeover.cost, WORKERS)
    found = in_order(search_plan(SMALL, cluster, space=WHOLE, progress=False).plan)
    assert takeover.digest == found.digest != plan.digest
    assert takeover.messages == len(found.messages) < len(plan.messages)
    for report in reports:
        sent = {span.name for span in report.spans if span.kind == "message"}
        assert sent == set(found.leg_names)
        for name, value in kept[0].parameters.items():
            assert torch.equal(report.parameters[name], value)


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
    settings = MeasurementSettings(replan=10)
    listed = contenders(["searched", "MG-WFBP"], settings)
    said = {one.name: one.settings_text(settings, replayed=False) for one in listed}
    assert said["searched"] == "replan=10"
    assert said["MG-WFBP"] == said["DDP"] == ""
    with pytest.raises(InputError, match="replan=10 lets method 'searched' of our own engine"):
        contenders("MG-WFBP", settings)
    with pytest.raises(InputError, match="replan"):
        MeasurementSettings(replan=0)

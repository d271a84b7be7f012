"""Plans made anew: who decides, that all ranks follow at once, and what ends them if one dies."""

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
import torch.distributed as dist

from ddlnb.engines.job import Job
from ddlnb.engines.settings import MEASURING, OPTIMIZERS, MeasurementSettings
from ddlnb.engines.targets import targets_of
from ddlnb.engines.worker import run_job
from ddlnb.errors import InputError, PlanError, RankError
from ddlnb.launch.ranks import Ranks
from ddlnb.plans.alpha_beta import AlphaBeta
from ddlnb.plans.methods import METHODS
from ddlnb.replanning.replanner import Replanner, Replanning, in_order, measured_cluster
from ddlnb.search.search import search_plan
from ddlnb.search.space import Space
from ddlnb.workloads.replay import replayed
from ddlnb.workloads.workload import Layer
from tests.toy import TOY

WORKERS, WINDOW = 2, 10
SLOW_FROM = 1 + 17  # iterations, warm-up included
WHOLE = Space(servers=False, collectives=(), split=False)
QUICK, SLOW = AlphaBeta(1e-3, 1e-9), AlphaBeta(0.05, 1e-9)
SMALL = replace(  # milliseconds instead of seconds
    TOY,
    layers=tuple(Layer(layer.name, 1e-3) for layer in TOY.layers),
    gradients=tuple(replace(one, backward_seconds=1e-3) for one in TOY.gradients),
)
RULES = Replanning(SMALL, WHOLE, WINDOW)


class VirtualNetwork:
    """Real all-reduces on a clock that only they move: quick ones first, then slow ones.

    What is seen of the network thereby does not depend on what else the machine does.
    """

    def __init__(self, quick_calls):
        self.now, self.calls, self.quick_calls = 0.0, 0, quick_calls
        self.real = dist.all_reduce

    def all_reduce(self, tensor, op=dist.ReduceOp.SUM, group=None, async_op=False):
        self.calls += 1
        cost = QUICK if self.calls <= self.quick_calls else SLOW
        self.now += cost.seconds(tensor.numel() * tensor.element_size())
        return self.real(tensor, op, group, async_op)

    def perf_counter(self):
        return self.now


def run_while_it_slows_down(context, job):
    network = VirtualNetwork(SLOW_FROM * len(job.plan.messages))
    with (
        mock.patch.object(dist, "all_reduce", network.all_reduce),
        mock.patch("ddlnb.replanning.replanner.time", network),
        mock.patch("ddlnb.engines.probes.time", network),
    ):
        return run_job(context, job)


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


@pytest.mark.thorough(but=1)
@pytest.mark.ranks
@pytest.mark.parametrize("workers", [2, 4])
def test_all_ranks_take_up_the_plan_that_was_searched_and_no_bit_changes(six_ranks, workers):
    job = job_of(workers, iterations=3 * WINDOW + 3, traced=2, keep_parameters=True)
    rules = Replanning(SMALL, WHOLE, WINDOW, search_seconds=60)
    reports = six_ranks.run(
        run_while_it_slows_down, replace(job, replanning=rules), count=workers, timeout_seconds=120
    )
    (takeover,) = reports[0].switches
    # Of the second window the last iterations are slow, and its median is not; then all are.
    assert takeover.iteration == job.warmup + 3 * WINDOW
    assert takeover.cost.latency_seconds == pytest.approx(SLOW.latency_seconds)
    assert takeover.cost.seconds_per_byte == pytest.approx(SLOW.seconds_per_byte)
    cluster = measured_cluster(takeover.cost, workers)
    found = in_order(search_plan(SMALL, cluster, space=WHOLE, progress=False).plan)
    assert takeover.digest == found.digest != job.plan.digest
    assert takeover.messages == len(found.messages) < len(job.plan.messages)
    for report in reports:
        assert report.switches == (takeover,)
        assert report.digest == reports[0].digest
        sent = {span.name for span in report.spans if span.kind == "message"}
        assert sent == set(found.leg_names)
    if workers == 2:  # two numbers have one sum; more are added in an order that messages decide
        (kept, _) = six_ranks.run(run_job, job, count=workers, timeout_seconds=120)
        for name, value in kept.parameters.items():
            assert torch.equal(reports[0].parameters[name], value)


@pytest.fixture(scope="module")
def own_ranks():
    """Two ranks to be killed, and restarted by the next run."""
    with Ranks(2, imports=(__name__, *MEASURING)) as ranks:
        yield ranks


def dies(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)


def run_until_one_dies(context, job, rank, where):
    """Drift is found at the first meeting; the rank dies there while it plans anew."""
    replanning = "ddlnb.replanning.replanner"
    with (
        mock.patch(f"{replanning}.Drift.found", return_value=True),
        mock.patch(f"{replanning}.LEAST_GAIN", 0.0),
        mock.patch(f"{replanning}.{where}", dies) if context.rank == rank else nullcontext(),
    ):
        return run_job(context, job)


@pytest.mark.thorough(but=1)
@pytest.mark.ranks
@pytest.mark.parametrize(("rank", "where"), [(0, "search_plan"), (1, "Replanner._read")])
def test_a_rank_that_dies_while_it_plans_anew_ends_the_run_for_all(own_ranks, rank, where):
    rules = Replanning(SMALL, WHOLE, window=2, search_seconds=60)
    job = job_of(2, iterations=6, replanning=rules)
    with pytest.raises(RankError, match=f"first rank {rank}: process died"):
        own_ranks.run(run_until_one_dies, job, rank, where, timeout_seconds=300)
    assert own_ranks.pids == []


def replanner_with(plan, rank=0, store=None, device="cpu", adopted=None):
    replica = SimpleNamespace(plan=plan, replan=lambda *_: adopted.append(rank))
    job = SimpleNamespace(workers=WORKERS, device=device)
    return Replanner(RULES, SimpleNamespace(rank=rank), job, store, replica)


def told(rank, store, text, errors, adopted):
    """What a rank does with the text that it is told of a new plan."""
    replanner = replanner_with(METHODS["WFBP-A2A"].plan(SMALL), rank, store, adopted=adopted)
    try:
        replanner._take_up(text, iteration=10)
    except PlanError as error:
        errors[rank] = str(error)


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
    replanner = replanner_with(METHODS["WFBP-A2A"].plan(SMALL), store=dist.HashStore())
    text = replanner._search(SLOW, iteration=10)
    assert before in text
    changed = text.replace(before, after, 1 if "digest" in before else -1)
    store, errors, adopted = dist.HashStore(), {}, []
    with ThreadPoolExecutor(WORKERS) as pool:
        for rank, said in enumerate([text, changed]):
            pool.submit(told, rank, store, said, errors, adopted)
    assert adopted == []
    assert errors[0] == errors[1]
    with pytest.raises(PlanError, match=f"rank 1 cannot take up a new plan: .*({problem})"):
        raise PlanError(errors[0])


@pytest.mark.parametrize(
    ("share", "device", "searches"), [(1.0, "cpu", 1), (0.4, "cpu", 2), (0.4, "cuda", 1)]
)
def test_all_searches_of_a_re_plan_together_take_no_longer_than_allowed(
    share, device, searches, monkeypatch
):
    limits = []

    def search(*args, time_limit, **options):
        limits.append(time_limit)
        return search_plan(*args, most_plans=20, **options)

    monkeypatch.setattr("ddlnb.replanning.replanner.search_plan", search)
    plan = search_plan(SMALL, measured_cluster(SLOW, WORKERS), space=WHOLE, progress=False).plan
    found = replanner_with(plan, device=device)._search(
        replace(SLOW, occupied_share=share), iteration=10
    )
    assert limits == [RULES.search_seconds / searches] * searches
    assert share < 1 or found == "stays"  # the network is as it was


def test_only_searched_plans_of_our_engine_are_made_anew():
    settings = MeasurementSettings(replan=10, iterations=21)
    listed = targets_of(["searched", "MG-WFBP"], settings)
    said = {one.name: one.settings_text(settings, replayed=False) for one in listed}
    assert said["searched"] == "replan=10"
    assert said["MG-WFBP"] == said["DDP"] == ""
    with pytest.raises(InputError, match="replan=10 lets method 'searched' of our own engine"):
        targets_of("MG-WFBP", settings)

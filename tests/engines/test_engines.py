"""Lossless means lossless: every method, on real processes, equals one worker on joined batches.

The laws are the same for every engine, and for all ways in which messages travel.
"""

from dataclasses import replace
from functools import partial
from itertools import pairwise

import pytest

from ddlnb.engines.catalogue import get_engine
from ddlnb.engines.job import Job
from ddlnb.engines.settings import OPTIMIZERS
from ddlnb.engines.worker import run_job
from ddlnb.errors import RankError
from ddlnb.networks.collectives.catalogue import get_collective
from ddlnb.plans.bucketing import in_buffers
from ddlnb.plans.methods import METHODS
from ddlnb.workloads.resolve import get_task
from ddlnb.workloads.task import Task
from ddlnb.workloads.tracing import trace
from tests.engines.jobs import A2A, BATCH, PS, STEPS, job_of, left_behind, require_lossless, train
from tests.toy import COST, in_double, mlp, train_alone

CASES = [*((name, 1) for name in METHODS), *((name, 2) for name in PS)]
# Each model, optimizer and number of workers; tests/engines/test_replica.py draws models and plans.
PAIRS = [("small-conv", "adamw", 4), ("small-transformer", "sgd", 2)]
OTHERS = [  # workers and servers change from case to case, in the same processes
    *(("horovod", method, 4, 1, "sgd") for method in A2A),
    ("horovod", "MG-WFBP", 2, 1, "adamw"),
    ("horovod", "ByteScheduler-A2A", 2, 1, "adamw"),
    ("horovod", None, 2, 1, "sgd"),
    ("horovod", None, 4, 1, "adamw"),
    ("byteps", "BSP-PS", 2, 1, "sgd"),
    ("byteps", "BSP-PS", 4, 2, "sgd"),
    ("byteps", "WFBP-PS", 2, 2, "sgd"),
    ("byteps", "WFBP-PS", 4, 1, "sgd"),
    ("byteps", "ByteScheduler-PS", 2, 1, "sgd"),
    ("byteps", "ByteScheduler-PS", 4, 2, "adamw"),
    ("single", None, 1, 1, "sgd"),
    ("ddp", None, 2, 1, "sgd"),
]


def on(engine: str, *values):
    """Return parameters of a test that is skipped where the engine is not installed."""
    lack = get_engine(engine).missing()
    return pytest.param(engine, *values, marks=pytest.mark.skipif(bool(lack), reason=lack))


@pytest.fixture
def ranks(engine, request):
    """Ranks of the session that an engine runs on."""
    return request.getfixturevalue("four_ranks" if engine == "horovod" else "six_ranks")


@pytest.mark.thorough(but=8)
@pytest.mark.item("A05", how="measured")
@pytest.mark.ranks
@pytest.mark.parametrize(("model", "optimizer", "workers"), PAIRS)
@pytest.mark.parametrize(("name", "servers"), CASES)
def test_ten_steps_equal_one_worker_on_the_joined_batch(
    six_ranks, name, servers, model, optimizer, workers
):
    job = job_of(in_double(model), name, workers, servers, optimizer, keep_parameters=True)
    require_lossless(six_ranks, model, job, optimizer)


@pytest.mark.thorough(but=6)
@pytest.mark.ranks
@pytest.mark.parametrize(
    ("engine", "name", "workers", "servers", "optimizer"), [on(*case) for case in OTHERS]
)
def test_other_engines_are_as_lossless(ranks, engine, name, workers, servers, optimizer):
    changes = {"engine": engine, "keep_parameters": True}
    job = job_of(in_double("small-conv"), name, workers, servers, optimizer, **changes)
    require_lossless(ranks, "small-conv", job, optimizer)


@pytest.mark.thorough(but=10)
@pytest.mark.ranks
@pytest.mark.parametrize("name", A2A)
@pytest.mark.parametrize(
    ("way", "workers"),
    [
        *(("mesh", workers) for workers in (2, 3, 4)),
        *((name, 4) for name in ("double-tree", "halving-doubling", "torus(2, 2)")),
    ],
)
def test_however_messages_travel_the_method_is_lossless(six_ranks, name, way, workers):
    """On a mesh in one hop, in two, and with fewer elements than workers; or by a collective."""
    changes = {"topology": way} if way == "mesh" else {"collective": get_collective(way, workers)}
    job = job_of(in_double("small-conv"), name, workers, keep_parameters=True, **changes)
    require_lossless(six_ranks, "small-conv", job)


def dear(buffer_bytes: int, **changes) -> Job:
    """Return a job whose all-reduces go in halves, in buffers of a size, on three workers."""
    task = in_double("small-conv")
    workload = trace(task, BATCH)
    messages = tuple(in_buffers(workload, buffer_bytes))
    plan = replace(METHODS["DeAR"].plan(workload), messages=messages)
    return job_of(task, None, 3, optimizer="adamw", keep_parameters=True, plan=plan, **changes)


@pytest.mark.ranks
def test_halves_of_several_buffers_train_as_one_worker_does(six_ranks):
    job = dear(300_000)
    assert len(job.plan.messages) > 5
    reports = require_lossless(six_ranks, "small-conv", job, "adamw")
    sent = 2 * 2 / 3 * sum(job.plan.message_bytes) * STEPS
    assert reports[0].bytes_sent == pytest.approx(sent, rel=1e-3)


@pytest.mark.ranks
def test_gathers_follow_all_scatters_and_start_as_the_forward_pass_needs_them(six_ranks):
    job = dear(1_000_000, traced=2)
    spans = train(six_ranks, job)[0].spans
    of_first = [span for span in spans if span.kind == "message" and span.iteration == 0]
    started = [span.name for span in sorted(of_first, key=lambda span: span.start_seconds)]
    assert started == list(job.plan.leg_names)
    halves = {
        kind: [span for span in of_first if span.name.startswith(kind)]
        for kind in ("reduce-scatter", "all-gather")
    }
    ended = max(span.stop_seconds for span in halves["reduce-scatter"])
    assert all(span.start_seconds >= ended for span in halves["all-gather"])


@pytest.mark.ranks
def test_every_message_has_a_collective_of_its_own(six_ranks):
    job = job_of(in_double("small-conv"), "WFBP-A2A", 3, optimizer="adamw", keep_parameters=True)
    names = ["", "ring", "tree", "direct", "double-tree"]
    chosen = tuple(names[i % len(names)] for i in range(len(job.plan.messages)))
    job = replace(job, plan=replace(job.plan, collectives=chosen))
    require_lossless(six_ranks, "small-conv", job, "adamw")


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
    reports = train(six_ranks, job_of(task, name, 4, 2, keep_parameters=True))
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
@pytest.mark.parametrize(
    ("engine", "name"),
    [on("horovod", "ByteScheduler-A2A"), on("horovod", None), on("byteps", "ByteScheduler-PS")],
)
def test_what_other_engines_sent_and_waited_for_is_reported(ranks, engine, name):
    task = mlp([64, 64])
    size = trace(task, 4).gradient_bytes
    for report in train(ranks, job_of(task, name, 2, engine=engine, traced=2)):
        assert report.bytes_sent == STEPS * size
        assert report.waited_seconds > 0
        assert {"forward", "backward", "wait", "update"} <= {s.kind for s in report.spans}
        sent = [span.bytes for span in report.spans if span.kind == "message"]
        assert sum(sent) == (2 * size if name else 0)


@pytest.mark.ranks
@pytest.mark.parametrize(
    ("engine", "name", "runs"),
    [
        on("horovod", "WFBP-A2A", ((2, 1), (4, 1), (2, 1))),
        on("byteps", "WFBP-PS", ((2, 1), (1, 2), (2, 1))),
    ],
)
def test_runs_of_other_engines_leave_nothing_in_a_rank(ranks, engine, name, runs):
    """No variables, processes, files, listeners and busy threads."""
    prefixes = ("HOROVOD", "DMLC", "BYTEPS")
    before = ranks.run(left_behind, prefixes, count=3)
    for workers, servers in runs:
        train(ranks, job_of(mlp([8]), name, workers, servers, engine=engine))
    assert ranks.run(left_behind, prefixes, count=3) == before


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


@pytest.mark.thorough
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

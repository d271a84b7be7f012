"""Real processes and sockets do what lockstep does: every method, by the same generators."""

import time
from collections import Counter
from dataclasses import dataclass, replace
from functools import partial

import pytest
import torch

from ddlnb.clusters.cluster import Cluster
from ddlnb.clusters.effects import Effects
from ddlnb.compression.base import Codec
from ddlnb.compression.catalogue import COMPRESSORS, FOR_ONE_MODEL
from ddlnb.compression.half import Half
from ddlnb.engines.catalogue import get_engine
from ddlnb.errors import DdlnbError, InputError, RankError
from ddlnb.plans.requests import Flow, Messages
from ddlnb.training.cost.estimate import iteration_cost
from ddlnb.training.executors.distributed import as_run, run_on_rank, train_on_ranks
from ddlnb.training.method import (
    SYNCHRONISATIONS,
    Arrival,
    TrainingMethod,
    TrainingRun,
    training_method,
)
from ddlnb.training.synchronisation import Synchronisation
from ddlnb.training.worker import NextGradient, StepDone, Worker
from tests.asked import asked
from tests.replay import run_in_lockstep
from tests.toy import TOY
from tests.toy_training import WORKERS, batches, broken_batches, finite_error, job_of, straggler

STEPS = 5
CODEC = "top-k(0.3)"
LACK = get_engine("byteps").missing()
# What would not show within five steps otherwise.
SOONER = {
    "local": "local(2)",
    "post-local": "post-local(2, 2)",
    "adaptive-local": "adaptive-local(1, 2)",
    "ssp": "ssp(1)",
    "dssp": "dssp(0, 2)",
}


def allowed(*texts: str) -> list[TrainingMethod]:
    """Those of the methods that are not refused; that some are is for other tests."""
    methods = []
    for text in texts:
        try:
            methods.append(training_method(text))
        except InputError:
            continue
    return methods


def compressed_methods() -> list[TrainingMethod]:
    """Every compressor with bsp, with feedback where it needs it, and every codec on a server."""
    return [
        method
        for name, kind in COMPRESSORS.items()
        for method in allowed(
            f"bsp + {name}" + (" + feedback" if kind.feedback == "needed" else ""),
            f"bsp + {name} on PS",
        )
    ]


def synchronised_methods() -> list[TrainingMethod]:
    """Every synchronisation wherever it runs, without compression and with a codec."""
    return [
        method
        for name, kind in SYNCHRONISATIONS.items()
        for where in kind.architectures
        for short in [SOONER.get(name, name)]
        for method in allowed(f"{short} on {where}", f"{short} + {CODEC} on {where}")
    ]


# A density for every one of the model's tensors, one of them not compressed.
LAYERED = "bsp + layer-top-k((0.3, 1.0, 0.1, 0.5)) + feedback"
METHODS = list(
    dict.fromkeys(
        [*synchronised_methods(), *compressed_methods(), *allowed(LAYERED, f"{LAYERED} on PS")]
    )
)


def run_all(context, jobs):
    return [
        run_on_rank(replace(context, prefix=f"{context.prefix}/{number}"), job)
        for number, job in enumerate(jobs)
    ]


@pytest.fixture(scope="module")
def both(six_ranks, request):
    """The real run of every method that is asked for, all in one go, and the same in lockstep."""
    to_run = asked(request, "method")
    methods = [method for method in METHODS if method in to_run]
    jobs = [job_of(method) for method in methods]
    by_rank = six_ranks.run(run_all, jobs, count=WORKERS + 1, timeout_seconds=200)
    runs = {}
    for number, (method, job) in enumerate(zip(methods, jobs, strict=True)):
        real = as_run([reports[number] for reports in by_rank])
        runs[method] = real, run_in_lockstep(job, arrivals=real.arrivals if job.servers else None)
    return runs


def compare(real: TrainingRun, expected: TrainingRun, tolerance: float) -> None:
    assert len(real.workers) == WORKERS
    for ours, theirs in zip(real.workers, expected.workers, strict=True):
        assert len(ours.losses) == len(ours.observed) == STEPS
        for mine, other in zip(ours.observed, theirs.observed, strict=True):
            torch.testing.assert_close(mine, other, rtol=tolerance, atol=tolerance)
        torch.testing.assert_close(ours.observed[-1], ours.parameters, rtol=0, atol=0)
        assert ours.losses == pytest.approx(theirs.losses, rel=10 * tolerance)


def test_everything_in_the_catalogues_is_compared():
    assert {method.synchronisation.name for method in METHODS} == set(SYNCHRONISATIONS)
    names = {method.compressor.name for method in METHODS if method.compressor}
    assert names == {*COMPRESSORS, *FOR_ONE_MODEL}


@pytest.mark.thorough(but=16)
@pytest.mark.ranks
@pytest.mark.parametrize("method", METHODS, ids=str)
def test_a_real_run_equals_lockstep_step_by_step_and_sends_its_bytes(both, method):
    """All-reduces add in an order of their own: 1e-5 leaves some 80 roundings of float32 for it.

    Those of half precision round to its numbers. All-gathers, messages and servers leave the order
    to the method, and equal to the bit.
    """
    half = method.architecture == "A2A" and isinstance(method.compressor, Half)
    rounding = torch.finfo(method.compressor.dtype).eps if half else 1e-5
    average = getattr(type(method.compressor), "average", None)
    ordered = method.architecture != "A2A" or (
        method.synchronisation.name == "bsp" and average is Codec.average
    )
    compare(*both[method], 0.0 if ordered else rounding)
    real, expected = both[method]
    for ours, theirs in zip(real.workers, expected.workers, strict=True):
        assert ours.bytes_sent == pytest.approx(theirs.bytes_sent)
        assert ours.bytes_received == pytest.approx(theirs.bytes_received)
    assert sum(ours.bytes_sent for ours in real.workers) > 0


@pytest.mark.ranks
def test_who_waits_for_a_straggler_and_who_does_not(six_ranks):
    methods = ["bsp on PS", "ssp(1)", "asp"]
    jobs = [job_of(method, delay=straggler) for method in methods]
    by_rank = six_ranks.run(run_all, jobs, count=WORKERS + 1, timeout_seconds=60)
    bsp, ssp, asp = (as_run([reports[number] for reports in by_rank]) for number in range(3))
    slept = 0.1 * STEPS
    assert all(run.workers[1].seconds >= slept for run in (bsp, ssp, asp))
    assert all(worker.seconds >= slept for worker in bsp.workers)
    assert all(
        worker.seconds < asp.workers[1].seconds for worker in asp.workers if worker.rank != 1
    )
    assert asp.arrivals[-1].worker == 1
    for run, lead in ((bsp, 1), (ssp, 2)):  # a push more than the answers it has had
        pushed = Counter(dict.fromkeys(range(WORKERS), 0))
        for arrival in run.arrivals:
            pushed[arrival.worker] += 1
            assert max(pushed.values()) - min(pushed.values()) <= lead
    compare(asp, run_in_lockstep(jobs[2], arrivals=asp.arrivals), 0.0)
    in_turn = run_in_lockstep(jobs[2]).workers[0].parameters
    assert not torch.allclose(in_turn, asp.workers[0].parameters)  # the order does matter


@dataclass(frozen=True)
class Sleeps:
    """Workers that sleep instead of computing; worker 1 does so ``factor`` times as long."""

    factor: float
    seconds: float = 0.04

    def __call__(self, rank: int, step: int) -> float:
        return self.seconds * (self.factor if rank == 1 else 1.0)


@pytest.mark.ranks
def test_one_slow_worker_costs_real_ranks_what_it_costs_simulated_ones(six_ranks):
    """In the ratio of rates, generously: what is not slept is the machine's own."""
    factor, methods = 4.0, ["bsp on PS", "bsp on A2A", "local(2) on A2A", "asp"]
    jobs = [
        job_of(method, delay=Sleeps(slow), steps=8) for method in methods for slow in (1.0, factor)
    ]
    by_rank = six_ranks.run(run_all, jobs, count=WORKERS + 1, timeout_seconds=60)
    runs = [as_run([reports[number] for reports in by_rank]) for number in range(len(jobs))]
    rates = [sum(1 / worker.seconds for worker in run.workers) for run in runs]
    free = Cluster("free", "", WORKERS, 1, Effects(), server_place="extra machines")
    for number, method in enumerate(methods):
        measured = rates[2 * number] / rates[2 * number + 1]
        alike, slow = (
            iteration_cost(TOY, cluster, method, overlap=False).iteration_seconds
            for cluster in (free, free.with_heterogeneity({1: factor}))
        )
        assert measured == pytest.approx(slow / alike, rel=0.3)


def test_a_replay_keeps_to_the_order():
    job = job_of("asp", steps=3)
    order = [2, 2, 0, 1, 3, 3, 3, 0, 2, 1, 1, 0]
    arrivals = tuple(Arrival(worker, 0.5 * number) for number, worker in enumerate(order))
    replayed = run_in_lockstep(job, arrivals=arrivals)
    assert replayed.arrivals == arrivals
    other = run_in_lockstep(job, arrivals=arrivals[::-1])
    assert not torch.allclose(replayed.workers[0].parameters, other.workers[0].parameters)
    with pytest.raises(DdlnbError, match="for ever"):
        run_in_lockstep(job, arrivals=arrivals[:-1])


@dataclass(frozen=True)
class Chatter(Synchronisation):
    """Reads messages an iteration after they were sent, of many lengths; the last ones never."""

    name = "chatter"
    architectures = ("gossip",)

    def loop(self, worker: Worker) -> Flow:
        others = [rank for rank in range(worker.workers) if rank != worker.rank]
        step = 0
        while True:
            yield NextGradient()
            outgoing = {other: letter(worker.rank, other, step) for other in others}
            lengths = {other: len(letter(other, worker.rank, step - 1)) for other in others}
            received = yield Messages(outgoing, lengths if step else {})
            for sender, payload in received.items():
                worker.parameters[sender] = len(payload) + payload.sum()
            step += 1
            yield StepDone()


def letter(sender: int, receiver: int, step: int) -> torch.Tensor:
    length = 30_000 * ((sender + 2 * receiver + step) % 3)  # also none at all
    return torch.full((length,), 1 + step + sender, dtype=torch.uint8)


@pytest.mark.ranks
def test_messages_may_be_sent_before_they_are_wanted(six_ranks):
    job = job_of(TrainingMethod(Chatter(), architecture="gossip"))
    real = train_on_ranks(six_ranks, job, timeout_seconds=60)
    expected = run_in_lockstep(job)
    compare(real, expected, 0.0)
    assert [w.bytes_sent for w in real.workers] == [w.bytes_sent for w in expected.workers]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"workers": 0}, "workers 0 must be a whole number"),
        ({"steps": 2.5}, r"steps 2\.5 must be a whole number"),
        ({"seed": -1}, "seed -1"),
        ({"loss": None}, "loss None must be a function"),
        ({"method": "bsp"}, "training_method"),
    ],
)
def test_a_job_refuses_what_it_cannot_do(changes, message):
    with pytest.raises(InputError, match=message):
        replace(job_of("bsp"), **changes)


@pytest.mark.ranks
@pytest.mark.parametrize(
    ("workers", "said"),
    [(3, "batches of 4 workers, and there are 3"), (7, "more than the 6 ranks")],
)
def test_a_wrong_job_is_refused_before_anything_starts(six_ranks, workers, said):
    job = job_of("bsp", workers=workers, batches=partial(batches, max(4, workers)))
    with pytest.raises(InputError, match=said):
        train_on_ranks(six_ranks, job)


@pytest.mark.thorough(but=1)
@pytest.mark.ranks
@pytest.mark.parametrize(
    ("method", "executor"),
    [
        ("bsp on A2A", "distributed"),
        pytest.param("bsp on PS", "distributed", marks=pytest.mark.slow),
        pytest.param("asp", "byteps", marks=pytest.mark.skipif(bool(LACK), reason=LACK)),
    ],
)
def test_a_worker_that_fails_is_named_and_nobody_waits_for_it(six_ranks, method, executor):
    job = job_of(method, loss=finite_error, batches=broken_batches)
    start = time.monotonic()
    with pytest.raises(RankError, match=r"rank 2: FloatingPointError: this loss is not finite"):
        train_on_ranks(six_ranks, job, 100, executor)
    assert time.monotonic() - start < 60
    assert six_ranks.pids == []

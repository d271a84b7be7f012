"""BSP, local SGD and votes: what equals one worker on the joined batch, and the traffic beyond it.

With signSGD a server counts, and takes and gives one bit per parameter.
"""

from itertools import product

import pytest
import torch

from ddlnb.compression.base import Payloads
from ddlnb.compression.catalogue import COMPRESSORS
from ddlnb.compression.sign import SignVote
from ddlnb.errors import DdlnbError
from ddlnb.plans.requests import Messages
from ddlnb.plans.server_rules import BulkSynchronous
from ddlnb.training.cost.estimate import iteration_cost
from ddlnb.training.executors.lockstep import Lockstep
from ddlnb.training.runs import train as training
from ddlnb.training.server_rules import Tallying
from ddlnb.training.synchronisation import AdaptiveLocalSGD
from ddlnb.training.worker import NextGradient
from ddlnb.workloads.workload import read_profile
from tests.toy_training import ADAM, MOMENTUM, SGD, Trained, draw, make_workers, model, square_error


@pytest.mark.parametrize(
    ("once", "rest", "optimizer"),
    [
        *product(
            ["local(1)", "post-local(4, 1000)", "adaptive-local(1, 1)"],
            [" on A2A", " on PS", " + top-k(0.3) + feedback on A2A"],
            [SGD, MOMENTUM, ADAM],
        ),
        *(("local(1)", f" + {name}", SGD) for name in COMPRESSORS),
    ],
)
def test_one_gradient_a_round_is_bsp_to_the_bit(once, rest, optimizer):
    local, bsp = (Trained(name + rest, 6, optimizer=optimizer) for name in (once, "bsp"))
    assert torch.equal(local.parameters, bsp.parameters)


def trained_alone(make_optimizer, steps: int, ranks) -> torch.Tensor:
    """Return where one worker ends that trains on the joined batches of these ranks."""
    module = model()
    optimizer = make_optimizer(module.parameters())
    for step in range(steps):
        optimizer.zero_grad()
        losses = [square_error(module, draw(rank, step)) for rank in ranks]
        (sum(losses) / len(losses)).backward()
        optimizer.step()
    return torch.cat([p.detach().flatten() for p in module.parameters()])


def test_with_plain_sgd_a_round_ends_at_the_mean_of_where_the_workers_were():
    ends = [trained_alone(SGD, 5, [rank]) for rank in range(4)]
    for mine in Trained("local(5)", steps=5).parameters:
        torch.testing.assert_close(mine, sum(ends) / 4)


@pytest.mark.item("A22", how="measured")
@pytest.mark.parametrize("rest", ["", " + top-k(0.3) + feedback", " on PS"])
@pytest.mark.parametrize("period", [2, 3, 6])
def test_traffic_is_that_of_bsp_over_the_period(period, rest):
    often = Trained("bsp" + rest).run.bytes_sent
    rare = Trained(f"local({period})" + rest).run.bytes_sent
    assert [period * bytes_ for bytes_ in rare] == often


def test_post_local_averages_every_step_and_then_every_fourth():
    local = Trained("post-local(4, 6)", steps=14)
    averages = [one for one in local.run.activities if one.rank == 0 and one.name == "AllReduce"]
    assert [one.start_seconds for one in averages] == [1, 2, 3, 4, 5, 6, 10, 14]


@pytest.mark.parametrize("start", ["rare", "frequent"])
@pytest.mark.parametrize("rest", [" on A2A", " on PS", " + top-k(0.5) + feedback on PS"])
def test_adaptive_rounds_follow_the_loss_and_workers_agree(start, rest):
    trained = Trained(f"adaptive-local(1, 12, {start}){rest}", steps=120)
    workers = len(trained.workers)
    rounds = [one.start_seconds for one in trained.run.activities if one.kind == "wait"]
    # Two requests of every worker per round, at the same moment: a gradient takes a second.
    assert rounds == sorted(rounds)
    times = rounds[:: 2 * workers]
    assert all(rounds.count(time) == 2 * workers for time in times)
    lengths = [late - early for early, late in zip([0.0, *times], times, strict=False)]
    first, last = lengths[0], lengths[-1]
    assert (first, last < 8) == (12, True) if start == "rare" else (first, last > 2) == (1, True)


def test_adaptive_periods_stay_within_their_bounds_whatever_the_loss():
    """The loss of "quadratic" goes below zero, where a power of it is no number."""
    for start in ("rare", "frequent"):
        rule = AdaptiveLocalSGD(2, 9, start)
        losses = [0.0, 1e-30, 0.3, 1.0, 7.0, 1e30, float("inf"), float("nan")]
        assert all(2 <= rule.period(1.0, loss) <= 9 for loss in losses)
        assert rule.period(0.0, 0.0) in (2, 9)
    curve = training.train("quadratic", "adaptive-local", workers=2, steps=200)
    assert not curve["diverged"].any()
    for start, (learnt, worse) in {"rare": (1, 16), "frequent": (16, 1)}.items():
        steep = AdaptiveLocalSGD(1, 16, start, 4000.0)
        losses = {-1.0: learnt, 0.0: learnt, 0.5: learnt, 2.0: worse}
        assert {loss: steep.period(1.0, loss) for loss in losses} == losses


@pytest.mark.parametrize("compression", ["top-k(0.3) + feedback", "top-k(0.3)"])
@pytest.mark.parametrize("architecture", ["A2A", "PS"])
def test_compressed_local_sgd_lowers_the_loss_and_keeps_workers_equal(compression, architecture):
    trained = Trained(f"local(4) + {compression} on {architecture}", steps=120)
    for worker in trained.workers:
        assert torch.equal(worker.parameters, trained.parameters[0])
    start = Trained("local(4)", steps=4).workers[0].last_loss
    assert trained.workers[0].last_loss < start / 4


# The lockstep executor.


@pytest.mark.item("A05", how="measured")
def test_bsp_equals_one_worker_on_the_joined_batch():
    together = Trained("bsp", 10, optimizer=MOMENTUM).workers
    expected = trained_alone(MOMENTUM, 10, range(4))
    for worker in together:
        torch.testing.assert_close(worker.parameters, expected)
        assert torch.equal(worker.parameters, together[0].parameters)


def test_workers_that_wait_for_one_another_are_named():
    def waits(worker):
        yield NextGradient()
        yield Messages({}, {1 - worker.rank: 4})

    with pytest.raises(DdlnbError, match=r"for ever.*0: 'Messages'"):
        Lockstep(make_workers("bsp", 2), waits, 1).run()


# Votes.


@pytest.mark.parametrize("workers", [1, 3, 5])
@pytest.mark.parametrize("name", ["bsp", "local(2)"])
def test_an_odd_number_of_workers_votes_on_a_server_as_it_counts_itself(name, workers):
    served, counted = (
        Trained(f"{name} + signsgd(0.1) on {where}", 10, workers) for where in ("PS", "A2A")
    )
    assert torch.equal(served.parameters, counted.parameters)


@pytest.mark.item("A24", how="measured")
def test_a_parameter_takes_a_bit_in_each_direction():
    trained = Trained("bsp + signsgd on PS", 8)
    bytes_ = sum(-(-(stop - start) // 8) for start, stop, _ in trained.workers[0].pieces)
    assert trained.run.bytes_sent == trained.run.bytes_received == [8 * bytes_] * 4
    workload = read_profile("resnet50_b64_rtx2080ti")
    cost = iteration_cost(workload, "survey-10GbE", "bsp + signsgd on PS", steps=2)
    assert cost.bytes_sent == cost.bytes_received
    assert cost.bytes_sent == pytest.approx(workload.gradient_bytes / 32, rel=1e-4)
    gathered = iteration_cost(workload, "survey-10GbE", "bsp + signsgd")
    assert gathered.bytes_sent == pytest.approx(31 * cost.bytes_sent)


def voted(votes: list[list[float]], clock: int = 0) -> list[float]:
    """The outcome for these votes of workers, through the rule of a server."""
    codec = SignVote(1.0)
    joint = Payloads(codec, (len(votes[0]),))
    rule = Tallying(BulkSynchronous(len(votes)), len(votes), joint.tally)
    for rank, vote in enumerate(votes):
        assert rule.pull(0, 0, clock) is None
        rule.push(rank, 0, clock, codec.encode(torch.tensor(vote), None, {}))
    answers = [rule.pull(rank, 0, clock) for rank in range(len(votes))]
    assert all(torch.equal(answer, answers[0]) for answer in answers)
    assert len(answers[0]) == -(-len(votes[0]) // 8)
    return joint.outcome(answers[0]).tolist()


def test_a_coin_decides_ties_alike_for_all_and_what_is_no_vote_is_summed():
    """Adaptive local SGD averages losses between its votes, of all workers alike."""
    split = [[1.0] * 4000, [-1.0] * 4000]
    outcome = torch.tensor(voted(split))
    assert set(outcome.tolist()) == {1.0, -1.0}
    # Four standard deviations: beyond them with a chance below 1e-4.
    assert abs(float(outcome.sum())) < 4 * 4000**0.5
    assert voted(split) == outcome.tolist()
    assert voted(split, clock=1) != outcome.tolist()
    rule = Tallying(BulkSynchronous(2), 2, lambda payloads, clock: payloads[0])
    for clock, value in enumerate([torch.ones(1, dtype=torch.uint8), torch.ones(1)]):
        rule.push(0, 0, clock, value)
        assert rule.pull(0, 0, clock) is None
        rule.push(1, 0, clock, value)
        assert [rule.pull(rank, 0, clock).item() for rank in range(2)] == [1 + clock] * 2
    trained = Trained("adaptive-local(1, 4, rare) + signsgd(0.1) on PS", 12)
    assert trained.parameters.isfinite().all()

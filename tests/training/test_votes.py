"""signSGD with majority vote: a server counts, and takes and gives one bit per parameter."""

from __future__ import annotations

import pytest
import torch

from ddlnb.compression.base import Payloads
from ddlnb.compression.sign import SignVote
from ddlnb.errors import InputError
from ddlnb.plans.server_rules import BulkSynchronous, Tallying
from ddlnb.training.cost.estimate import iteration_cost
from ddlnb.training.method import training_method
from ddlnb.workloads.workload import read_profile
from tests.toy_training import Trained


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


def test_the_majority_decides_whatever_the_magnitudes():
    assert voted([[9.0, -1.0, 1.0], [-1.0, -1.0, 1.0], [-1.0, 9.0, 1.0]]) == [-1.0, -1.0, 1.0]


def test_a_coin_decides_ties_fairly_and_the_same_for_all():
    split = [[1.0] * 4000, [-1.0] * 4000]
    outcome = torch.tensor(voted(split))
    assert set(outcome.tolist()) == {1.0, -1.0}
    # Four standard deviations: beyond them with a chance below 1e-4.
    assert abs(float(outcome.sum())) < 4 * 4000**0.5
    assert voted(split) == outcome.tolist()
    assert voted(split, clock=1) != outcome.tolist()


def test_what_is_no_vote_is_summed_beside_it():
    """Adaptive local SGD averages losses between its votes, of all workers alike."""
    rule = Tallying(BulkSynchronous(2), 2, lambda payloads, clock: payloads[0])
    for clock, value in enumerate([torch.ones(1, dtype=torch.uint8), torch.ones(1)]):
        rule.push(0, 0, clock, value)
        assert rule.pull(0, 0, clock) is None
        rule.push(1, 0, clock, value)
        assert [rule.pull(rank, 0, clock).item() for rank in range(2)] == [1 + clock] * 2
    trained = Trained("adaptive-local(1, 4, rare) + signsgd(0.1) on PS", 12)
    assert trained.parameters.isfinite().all()


def test_it_learns_by_votes():
    trained = Trained("bsp + signsgd(0.3) on PS", 80)
    start = Trained("bsp", 1).workers[0].last_loss
    assert all(worker.last_loss < start / 4 for worker in trained.workers)


@pytest.mark.parametrize("name", ["asp", "ssp(2)", "r2sp", "dssp(1, 2)"])
def test_who_does_not_wait_for_all_cannot_count(name):
    with pytest.raises(InputError, match=r"does not wait for all; use it on A2A, or with bsp"):
        training_method(f"{name} + signsgd on PS")

"""Local SGD: BSP at H = 1, less traffic beyond, and workers that always agree on H."""

from __future__ import annotations

import pytest
import torch

from ddlnb.compression.catalogue import COMPRESSORS
from ddlnb.errors import InputError
from ddlnb.training.method import training_method
from ddlnb.training.synchronisation.local import AdaptiveLocalSGD
from tests.toy_training import ADAM, MOMENTUM, SGD, Trained, draw, model, square_error

ONCE_EACH = ["local(1)", "post-local(4, 1000)", "adaptive-local(1, 1)"]


@pytest.mark.parametrize("optimizer", [SGD, MOMENTUM, ADAM], ids=["sgd", "momentum", "adam"])
@pytest.mark.parametrize("once", ONCE_EACH)
@pytest.mark.parametrize("rest", [" on A2A", " on PS", " + top-k(0.3) + feedback on A2A"])
def test_one_gradient_a_round_is_bsp_to_the_bit(once, rest, optimizer):
    local, bsp = (Trained(name + rest, 6, optimizer=optimizer) for name in (once, "bsp"))
    assert torch.equal(local.parameters, bsp.parameters)


@pytest.mark.parametrize("compressor", COMPRESSORS)
def test_one_gradient_a_round_is_bsp_with_any_compressor(compressor):
    local, bsp = (Trained(f"{name} + {compressor}", 4) for name in ("local(1)", "bsp"))
    assert torch.equal(local.parameters, bsp.parameters)


def test_with_plain_sgd_a_round_ends_at_the_mean_of_where_the_workers_were():
    ends = []
    for rank in range(4):
        module = model()
        optimizer = SGD(module.parameters())
        for step in range(5):
            optimizer.zero_grad()
            square_error(module, draw(rank, step)).backward()
            optimizer.step()
        ends.append(torch.cat([p.detach().flatten() for p in module.parameters()]))
    together = Trained("local(5)", steps=5).parameters
    for mine in together:
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


def test_adaptive_periods_stay_within_their_bounds():
    for start in ("rare", "frequent"):
        rule = AdaptiveLocalSGD(2, 9, start)
        losses = [0.0, 1e-30, 0.3, 1.0, 7.0, 1e30, float("inf"), float("nan")]
        assert all(2 <= rule.period(1.0, loss) <= 9 for loss in losses)
        assert rule.period(0.0, 0.0) in (2, 9)


@pytest.mark.parametrize("compression", ["top-k(0.3) + feedback", "top-k(0.3)"])
@pytest.mark.parametrize("architecture", ["A2A", "PS"])
def test_compressed_local_sgd_lowers_the_loss_and_keeps_workers_equal(compression, architecture):
    trained = Trained(f"local(4) + {compression} on {architecture}", steps=120)
    for worker in trained.workers:
        assert torch.equal(worker.parameters, trained.parameters[0])
    start = Trained("local(4)", steps=4).workers[0].last_loss
    assert trained.workers[0].last_loss < start / 4


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("local(4) on gossip", r"average over all workers; choose A2A or PS"),
        ("local(0)", r"period 0 must be a whole number"),
        ("post-local(4, -1)", r"after -1"),
        ("adaptive-local(8, 2)", r"low 8 must be at most high 2"),
        ("adaptive-local(1, 8, often)", r"'often' must be one of frequent, rare"),
        ("adaptive-local(1, 8, rare, 0)", r"power 0.0 must be above 0"),
    ],
)
def test_choices_that_make_no_sense_are_refused_with_the_reason(text, reason):
    with pytest.raises(InputError, match=reason):
        training_method(text)

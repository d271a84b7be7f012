"""A network that changes while a run is on it: what is asked for, and that ranks notice it."""

import statistics

import pytest

from ddlnb.emulation.network import lacking
from ddlnb.engines.bench import Bench
from ddlnb.engines.settings import DEFAULTS, MEASURING
from ddlnb.engines.targets import Target, targets_of
from ddlnb.errors import InputError
from ddlnb.launch.options import NetworkChange, emulated
from ddlnb.launch.ranks import Ranks
from ddlnb.plans.alpha_beta import AlphaBeta
from ddlnb.search.search import SEARCHED_METHOD
from ddlnb.workloads.replay import replayed
from tests.engines.jobs import made_up

NETWORK = "100Mb/s 1ms"
EMULATED = DEFAULTS.changed(launcher="emulated", network=NETWORK)
TREE = "two-tier(2, 2, 2) of 100Mb/s 1ms"


@pytest.mark.parametrize(
    ("becomes", "problem"),
    [
        ("10Mb/s 1ms", "'10Mb/s 1ms' cannot be read; write the network and the iteration"),
        ("10Mb/s 1ms from soon", "cannot be read"),
        ("10Mb/s from 3", "unknown network '10Mb/s'"),
        ("10Mb/s 1ms from 0", "iteration 0 must be a whole number, at least 1"),
        (
            "10Mb/s 1ms from 25",
            "becomes='10Mb/s 1ms from 25': a run has iterations 0 to 24, warm-up included",
        ),
        ("1Gb/s 1ms from 3", "faster than '100Mb/s 1ms' .*; begin with the larger bandwidth"),
        ("10Mb/s 1ms loss 1% from 3", "loses packets and '100Mb/s 1ms', .* none; begin with one"),
        (f"{TREE} from 3", "has other hosts or cables than '100Mb/s 1ms'"),
        (["10Mb/s 1ms from 3", "20Mb/s 1ms from 3"], "before iteration 3; give each an iteration"),
    ],
)
def test_what_a_network_cannot_become_is_one_sentence(becomes, problem):
    with pytest.raises(InputError, match=problem) as refused:
        EMULATED.changed(becomes=becomes)
    assert "\n" not in str(refused.value)


def test_a_network_that_is_not_emulated_does_not_change():
    with pytest.raises(InputError, match="take launcher 'emulated', or leave becomes out"):
        DEFAULTS.changed(becomes="10Mb/s 1ms from 3")


def test_changes_come_in_the_order_of_their_iterations_and_stand_in_the_settings_column():
    asked = [NetworkChange(NETWORK, 12), "10Mb/s 1ms from 3"]
    settings = EMULATED.changed(becomes=asked)
    assert [change.iteration for change in settings.changes] == [3, 12]
    for one in targets_of("MG-WFBP", settings):  # baselines see the same network
        said = one.settings_text(settings, replayed=True)
        assert said == "becomes=10Mb/s-1ms@3 becomes=100Mb/s-1ms@12 replayed"


def test_a_tree_becomes_another_one():
    tree = EMULATED.changed(network=TREE, workers=4)
    (change,) = tree.changed(becomes=f"{TREE.replace('100', '20')} from 3").changes
    assert str(change) == f"{TREE.replace('100', '20')} from 3"
    assert change.word == "two-tier(2,2,2)-of-20Mb/s-1ms@3"
    assert change.site(tree.site).topology(4).wires[0].link.bandwidth == 2.5e6


LATER, WARMUP, WINDOW = "100Mb/s 30ms", 1, 10
CHANGE = WARMUP + WINDOW
# Messages pass while others are computed, as long as each takes little more than its bytes.
MADE_UP = made_up(*[40_000] * 4, forward=1e-3, backward=10e-3)
QUICK = AlphaBeta(1e-4, 8e-8)


@pytest.mark.thorough
@pytest.mark.ranks
@pytest.mark.skipif(bool(lacking()), reason=lacking() or "-")
def test_all_ranks_take_up_a_plan_for_the_network_that_theirs_became():
    settings = DEFAULTS.changed(
        site=emulated(NETWORK),
        warmup=WARMUP,
        iterations=2 * WINDOW + 3,
        replan=WINDOW,
        becomes=NetworkChange(LATER, CHANGE),
        cost=QUICK,
    )
    searched = Target("searched", "torch", SEARCHED_METHOD)
    with Ranks.at(settings.site, 2, imports=MEASURING) as ranks:
        bench = Bench(replayed(MADE_UP), ranks, settings)
        job, reports = bench.run(searched, iterations=settings.iterations, warmup=WARMUP)
        again = Bench(replayed(MADE_UP), ranks, settings.changed(becomes=(), replan=None))
        _, whole = again.run(searched, iterations=3, warmup=WARMUP)
    (takeover,) = reports[0].switches
    # The first window is on the first network, the second on what it became: a plan follows it.
    assert takeover.iteration == WARMUP + 2 * WINDOW
    assert takeover.messages < len(job.plan.messages)
    assert takeover.cost.latency_seconds > 2 * 30e-3  # of a ring of two: there and back
    for report in reports:
        assert report.switches == (takeover,)
        assert [one.iteration for one in report.sync_points] == [CHANGE, takeover.iteration]
        steps = report.step_seconds
        assert len(steps) == WARMUP + settings.iterations
        drifted = statistics.median(steps[CHANGE : takeover.iteration])
        assert drifted > 1.5 * statistics.median(steps[WARMUP:CHANGE])
    assert statistics.median(whole[0].step_seconds) < drifted / 1.5  # the next run begins anew

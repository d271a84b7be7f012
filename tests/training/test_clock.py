"""Virtual time: stragglers, links of servers, and workers without values.

Stragglers take the same seconds at the same step again, distributed as said. Pushes queue for the
links of parameter servers, and who spreads them waits less. Arithmetic without values gives what
torch's meta device gives.
"""

import math

import pytest
import torch

import ddlnb
from ddlnb.training.cost.estimate import iteration_cost
from ddlnb.training.executors.clock import (
    PUSH,
    STRAGGLERS,
    Alternating,
    Clock,
    Constant,
    ExponentialTail,
    LogNormal,
    OneSlow,
    Passage,
    ServerLinks,
    Trip,
    get_straggler as get,
)
from ddlnb.training.executors.dry_run import dry_run, size_only
from ddlnb.training.method import training_method

DRAWS = [(rank, step, 8) for rank in range(8) for step in range(500)]


@pytest.mark.parametrize("name", STRAGGLERS)
def test_a_worker_is_late_at_the_same_steps_again(name):
    assert [get(name)(*draw) for draw in DRAWS[:50]] == [get(name)(*draw) for draw in DRAWS[:50]]
    assert all(get(name)(*draw) > 0 for draw in DRAWS[:50])


@pytest.mark.parametrize(
    ("straggler", "mean", "deviation"),
    [
        (LogNormal(0.5, seed=3, seconds=2.0), 2.0, 2.0 * math.sqrt(math.exp(0.25) - 1)),
        (ExponentialTail(0.5, seed=3, seconds=2.0), 2.5, 0.5),
    ],
    ids=["log-normal", "exponential"],
)
def test_random_seconds_have_the_mean_and_differ_between_workers(straggler, mean, deviation):
    seconds = [straggler(*draw) for draw in DRAWS]
    assert len(set(seconds)) == len(DRAWS)
    # Four standard errors: wrong once in 16,000 seeds.
    error = 4 * deviation / math.sqrt(len(DRAWS))
    assert sum(seconds) / len(seconds) == pytest.approx(mean, abs=error)


def test_the_slow_worker_changes_and_only_random_laws_take_a_seed():
    slow = Alternating(factor=3.0, period=2)
    late = [[rank for rank in range(3) if slow(rank, step, 3) == 3.0] for step in range(8)]
    assert late == [[0], [0], [1], [1], [2], [2], [0], [0]]
    changed = {name for name in STRAGGLERS if get(name).drawn_from(7) != get(name)}
    assert changed == {"log-normal", "exponential"}


# Links of servers.


WORKLOAD = ddlnb.read_profile("resnet50_b64_rtx2080ti")


def behind_one_server(seconds: float, law=None) -> Clock:
    """Gradients take 4 s; a push and an answer each occupy the server's link in their direction."""

    def trip(rank: int, way: str, size: int, workers: int) -> Trip:
        return Trip(0.0, (Passage("in" if way == PUSH else "out", seconds),))

    return Clock(law or Constant(4.0), trip=trip)


def period(method: str, clock: Clock, workers: int = 4, steps: int = 40) -> float:
    """Seconds of an iteration once the workers have found their rhythm."""
    done = dry_run(training_method(method), [(4,)], workers, steps, clock)
    later = [times[steps // 2 :] for times in done.times]
    return sum((times[-1] - times[0]) / (len(times) - 1) for times in later) / workers


@pytest.mark.parametrize(
    ("method", "seconds", "expected"),
    [
        # Compute 4, in 1, out 1: with four workers the link is idle a third of the time.
        ("r2sp", 1.0, 6.0),
        ("asp", 1.0, 6.0),
        ("ssp(2)", 1.0, 6.0),
        # All wait for the last push, whose worker had its answer last: 4 + (4 + 1) seconds.
        ("bsp on PS", 1.0, 9.0),
        # The link is never idle: four messages of 3 s each way.
        ("r2sp", 3.0, 12.0),
        ("asp", 3.0, 12.0),
        ("bsp on PS", 3.0, 19.0),
        ("bsp on PS", 0.0, 4.0),
    ],
)
def test_rounds_of_four_workers_by_hand(method, seconds, expected):
    """Round-robin keeps its promise against BSP; nobody needs an order to spread pushes, though."""
    assert period(method, behind_one_server(seconds)) == pytest.approx(expected)


@pytest.mark.parametrize("law", [OneSlow(2.0, seconds=4.0), LogNormal(0.5, seconds=4.0)], ids=str)
def test_a_fixed_order_waits_for_those_who_are_late(law):
    turns, free = (period(name, behind_one_server(1.0, law)) for name in ("r2sp", "asp"))
    assert turns > 1.1 * free


@pytest.mark.parametrize(
    ("trips", "ends"),
    [
        # Three messages of 2 s that are ready together, and one when the link is free again.
        ([(0.0, 0.0), (0.0, 0.0), (0.0, 0.0), (9.0, 0.0)], [2.0, 4.0, 6.0, 11.0]),
        # They travel for 5 s, while they pass: only the third waits for the link.
        ([(0.0, 5.0), (0.0, 5.0), (0.0, 5.0)], [5.0, 5.0, 6.0]),
        # Their first parts left 1.5 s before they are complete.
        ([(10.0, 1.0, 1.5), (10.0, 1.0, 1.5)], [11.0, 12.5]),
    ],
)
def test_a_link_passes_one_message_after_the_other(trips, ends):
    links, passages = ServerLinks(), (Passage("l", 2.0),)
    found = [links.arrival(Trip(travel, passages, *early), now) for now, travel, *early in trips]
    assert found == ends


@pytest.mark.parametrize("method", ["asp", "ssp(3)"])
def test_a_link_of_a_node_carries_what_its_workers_push(method):
    """Four workers move four models each way through the link of their node, never less."""
    here = ddlnb.get_cluster("survey-10GbE")
    least = 4 * WORKLOAD.gradient_bytes / here.effects.between_bandwidth
    assert iteration_cost(WORKLOAD, here, method).iteration_seconds >= least


@pytest.mark.thorough(but=1)
@pytest.mark.parametrize("network", ["survey-10GbE", "survey-100GbE"])
@pytest.mark.parametrize("method", ["bsp + top-k(0.01)", "asp", "ssp(2) + top-k(0.01)", "r2sp"])
def test_layers_are_pushed_during_the_backward_pass(method, network):
    pushed, after = (
        iteration_cost(WORKLOAD, network, f"{method} on PS", workers=8, overlap=overlap)
        for overlap in (True, False)
    )
    assert pushed.iteration_seconds < after.iteration_seconds
    assert pushed.iteration_seconds >= pushed.compute_seconds
    assert (pushed.hidden_behind, after.hidden_behind) == ("backward pass", "nothing")
    whole = iteration_cost(WORKLOAD, network, "bsp + top-k(0.01) + whole-model on PS", workers=8)
    assert whole.hidden_behind == "nothing"


# Without values.


LEFT = torch.empty(6, device="meta")
OTHERS = {
    "a tensor": torch.empty(6, device="meta"),
    "a number": 3,
    "one that broadcasts": torch.empty(2, 6, device="meta"),
    "another type": torch.empty(6, dtype=torch.float64, device="meta"),
}
OPERATIONS = {
    "a + b": lambda a, b: a + b,
    "a - b": lambda a, b: a - b,
    "b - a": lambda a, b: b - a,
    "b * a": lambda a, b: b * a,
    "a / b": lambda a, b: a / b,
    "add": lambda a, b: torch.add(a, b),
    "clone": lambda a, b: a.clone(),
    "cat": lambda a, b: torch.cat([a, a]),
    "view": lambda a, b: a.view(2, 3),
    "split": lambda a, b: a.split([2, 4])[1],
}


@pytest.mark.parametrize("other", OTHERS)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_result_has_the_size_and_the_type_that_torch_says(operation, other):
    expected = OPERATIONS[operation](LEFT, OTHERS[other])
    found = OPERATIONS[operation](size_only(LEFT), OTHERS[other])
    assert (found.shape, found.dtype, found.nbytes) == (
        expected.shape,
        expected.dtype,
        expected.nbytes,
    )


def test_an_operand_stands_for_sums_and_quotients_of_one_size():
    tensor = size_only(LEFT)
    assert tensor + tensor / 2 - 1 is tensor

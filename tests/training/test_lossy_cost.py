"""What compression and relaxed synchronisation cost on a cluster: laws of the simulated seconds."""

from collections import Counter
from dataclasses import replace

import pytest
import torch

import ddlnb
from ddlnb.compression.base import Uncompressed
from ddlnb.compression.half import Float16
from ddlnb.compression.profile import (
    FREE,
    CompressionProfile,
    CompressorSeconds,
    Line,
    growth_of,
)
from ddlnb.compression.top_k import TopK
from ddlnb.errors import InputError
from ddlnb.plans.requests import AllGather, AllReduce, Messages
from ddlnb.simulator.events import play
from ddlnb.simulator.program import lower
from ddlnb.simulator.simulate import plan_on
from ddlnb.training.cost.estimate import (
    as_one_vector,
    compute_seconds,
    iteration_cost,
)
from ddlnb.training.cost.overlapped import (
    CompressedMessage,
    compressed,
    with_own_plans,
)
from ddlnb.training.cost.requests import request_cost
from ddlnb.training.executors.clock import Alternating, Clock, Link, LogNormal, OneSlow
from ddlnb.training.executors.dry_run import dry_workers
from ddlnb.training.executors.lockstep import Lockstep
from ddlnb.training.gossip import make_graph
from ddlnb.training.method import training_method
from ddlnb.training.worker import NextGradient, StepDone
from ddlnb.units import show_seconds
from tests.simulator.oracle import play_plain

CLUSTERS = ["survey-10GbE", "survey-100GbE", "survey-100GbIB"]
BASES = ["BSP-A2A", "WFBP-A2A", "MG-WFBP"]
WORKLOAD = ddlnb.read_profile("resnet50_b64_rtx2080ti")
SLOW = CompressionProfile(
    "made up",
    {"top-k(0.01)": CompressorSeconds(Line(1e-5, 1e-9), Line(), Line(1e-6, 1e-10), "workers")},
)


def cluster(name: str, workers: int = 16):
    return ddlnb.get_cluster(name, workers=workers)


RATIO_ONE = replace(training_method("bsp"), compressor=Uncompressed())


@pytest.mark.parametrize("name", CLUSTERS)
@pytest.mark.parametrize("base", BASES)
def test_free_compression_at_ratio_one_is_the_dense_forecast(name, base):
    here = with_own_plans(cluster(name))  # lossy methods are planned by the cluster's own cost
    dense = iteration_cost(WORKLOAD, here, base)
    lossy = iteration_cost(WORKLOAD, here, RATIO_ONE, compression=FREE, base=base)
    assert lossy.iteration_seconds == pytest.approx(dense.iteration_seconds, rel=1e-9)
    assert lossy.bytes == pytest.approx(dense.bytes)


@pytest.mark.parametrize("method", ["DDP", *BASES])
def test_lossless_methods_take_what_is_simulated(method):
    found = iteration_cost(WORKLOAD, cluster("survey-10GbE"), method)
    simulated = ddlnb.simulate(WORKLOAD, cluster("survey-10GbE"), method)
    assert found.iteration_seconds == pytest.approx(simulated.iteration_seconds)


@pytest.mark.parametrize("name", CLUSTERS)
@pytest.mark.parametrize("base", BASES)
def test_fewer_bytes_are_never_slower_when_compression_is_free(name, base):
    seconds = [
        iteration_cost(
            WORKLOAD, cluster(name), f"bsp + top-k({density})", compression=FREE, base=base
        ).iteration_seconds
        for density in (0.5, 0.1, 0.01, 0.001)
    ]
    assert seconds == sorted(seconds, reverse=True)
    assert seconds[-1] >= compute_seconds(WORKLOAD, cluster(name))


@pytest.mark.parametrize("text", ["qsgd(127)", "qsgd(4)", "top-k(0.01)", "powersgd(4)", "fp16"])
@pytest.mark.parametrize("model", ["resnet50", "bert-large"])
def test_merging_by_its_rule_loses_little_to_merging_by_bytes(model, text):
    """The rule neglects unpacking, here of what 64 workers sent, behind the next message."""
    here = ddlnb.cluster_of("V100", nodes=16, gpus_per_node=4, network="25GbE")
    merged, buckets = (
        iteration_cost(model, here, f"bsp + {text}", base=base).iteration_seconds
        for base in ("MG-WFBP", "DDP")
    )
    assert merged <= 1.03 * buckets


def test_the_plain_player_agrees_with_the_compiled_one():
    here = cluster("survey-10GbE")
    program = lower(WORKLOAD, here, plan_on(here, WORKLOAD, "WFBP-A2A"))
    messages = [
        CompressedMessage(1e-4, 2e-4, request_cost(here, AllGather, size // 50), size // 50)
        for size in program.message_bytes
    ]
    plain = play_plain(compressed(program, messages))
    kinds = {span.kind for span in plain.spans}
    assert {"compress", "decompress", "forward", "backward", "message"} <= kinds
    assert play(compressed(program, messages)) == plain.seconds


@pytest.mark.parametrize("workers", [8, 16, 32])
def test_gathering_a_share_of_one_nth_costs_half_an_all_reduce(workers):
    here = cluster("survey-10GbE", workers)
    size = 1 << 24
    gathered = request_cost(here, AllGather, size / workers)
    reduced = request_cost(here, AllReduce, size)
    assert gathered.work == pytest.approx(reduced.work / 2)
    assert gathered.seconds < reduced.seconds


@pytest.mark.parametrize("workers", [8, 16, 32])
@pytest.mark.parametrize("name", CLUSTERS)
@pytest.mark.parametrize("architecture", ["A2A", "PS"])
def test_bsp_in_lockstep_takes_what_the_simulator_says(name, architecture, workers):
    here = cluster(name, workers)
    found = iteration_cost(WORKLOAD, here, f"bsp on {architecture}", overlap=False, steps=3)
    expected = iteration_cost(WORKLOAD, here, f"BSP-{architecture}")
    assert found.iteration_seconds == pytest.approx(expected.iteration_seconds, rel=1e-6)
    assert found.bytes == pytest.approx(expected.bytes)


@pytest.mark.parametrize("law", [OneSlow(2.0, rank=3), Alternating(3.0)], ids=str)
@pytest.mark.parametrize("architecture", ["A2A", "PS"])
def test_stragglers_cost_lossless_methods_what_they_cost_in_lockstep(architecture, law):
    """Where no message overlaps, each step of the loop waits for its slowest worker.

    On servers the simulator lets those who wait push earlier, by at most the half of the exchange.
    """
    here = cluster("survey-10GbE")
    played = iteration_cost(WORKLOAD, here, f"BSP-{architecture}", slower=law, steps=4)
    stepped = iteration_cost(
        WORKLOAD, here, f"bsp on {architecture}", slower=law, steps=4, overlap=False
    )
    assert played.compute_seconds == pytest.approx(stepped.compute_seconds)
    seconds = stepped.iteration_seconds
    if architecture == "A2A":
        assert played.iteration_seconds == pytest.approx(seconds, rel=1e-6)
        return
    alone = iteration_cost(WORKLOAD, here, "BSP-PS")
    push = (alone.iteration_seconds - alone.compute_seconds) / 2
    assert seconds - push <= played.iteration_seconds <= seconds * (1 + 1e-9)


@pytest.mark.parametrize("method", ["MG-WFBP", "bsp + top-k(0.01)", "WFBP-PS", "ByteScheduler-PS"])
def test_who_overlaps_waits_for_a_straggler_too(method):
    here = cluster("survey-10GbE")
    even, slowed, uneven = (
        iteration_cost(WORKLOAD, here, method, compression=SLOW, slower=law, steps=4)
        for law in (None, OneSlow(2.0, rank=3), LogNormal(0.3))
    )
    computed = compute_seconds(WORKLOAD, here)
    assert slowed.iteration_seconds >= 2 * computed + even.compression_seconds - 1e-9
    assert slowed.iteration_seconds <= even.iteration_seconds + computed + 1e-9
    assert slowed.compute_seconds == pytest.approx(
        even.compute_seconds + computed / here.workers, rel=1e-6
    )
    assert even.iteration_seconds < uneven.iteration_seconds < slowed.iteration_seconds
    for cost in (even, slowed, uneven):
        parts = cost.compute_seconds + cost.compression_seconds + cost.waiting_seconds
        assert cost.iteration_seconds == pytest.approx(parts)


@pytest.mark.parametrize("period", [2, 8, 13, 25, 32])
@pytest.mark.parametrize("architecture", ["A2A", "PS"])
def test_local_steps_divide_communication_by_h(period, architecture):
    here = cluster("survey-10GbE")
    often, rarely = (
        iteration_cost(WORKLOAD, here, f"{name} on {architecture}", overlap=False)
        for name in ("bsp", f"local({period})")
    )
    assert rarely.waiting_seconds == pytest.approx(often.waiting_seconds / period)
    assert rarely.bytes == pytest.approx(often.bytes / period)
    assert rarely.compute_seconds == pytest.approx(often.compute_seconds)


def test_compression_is_paid_once_per_round():
    here = cluster("survey-10GbE")
    every, fourth = (
        iteration_cost(
            WORKLOAD,
            here,
            f"{name} + top-k(0.01) + whole-model",
            overlap=False,
            compression=SLOW,
            steps=8,
        )
        for name in ("bsp", "local(4)")
    )
    assert fourth.compression_seconds == pytest.approx(every.compression_seconds / 4)


def test_without_barriers_a_straggler_holds_up_itself_alone():
    here, slow = cluster("survey-10GbE"), OneSlow(2.0, rank=3)
    asp, ssp = (
        iteration_cost(WORKLOAD, here, method, overlap=False, slower=slow, steps=40)
        for method in ("asp", "ssp(2)")
    )
    alone = iteration_cost(WORKLOAD, here, "asp", overlap=False, steps=40).iteration_seconds
    assert asp.iteration_seconds < 1.1 * alone
    assert asp.iteration_seconds < ssp.iteration_seconds
    shares = [cost.waiting_seconds / cost.iteration_seconds for cost in (asp, ssp)]
    assert shares[0] < shares[1]


def test_a_ring_of_neighbours_costs_the_same_whatever_the_workers():
    costs = [
        iteration_cost(WORKLOAD, cluster("survey-10GbE", n), "d-psgd", overlap=False, steps=4)
        for n in (8, 16, 32)
    ]
    for cost in costs:
        assert cost.bytes_sent == cost.bytes_received == 2 * WORKLOAD.gradient_bytes
        assert cost.iteration_seconds == pytest.approx(costs[0].iteration_seconds, rel=5e-3)


def bytes_that_leave(here, graph: str) -> dict[int, int]:
    """Neighbours on other nodes times the model, by node."""
    neighbours, per_node = make_graph(graph, here.workers).neighbours, here.workers_per_node
    crossing: Counter[int] = Counter()
    for rank, near in enumerate(neighbours):
        crossing[rank // per_node] += sum(rank // per_node != one // per_node for one in near)
    return {node: count * WORKLOAD.gradient_bytes for node, count in crossing.items()}


@pytest.mark.thorough(but=4)
@pytest.mark.parametrize("workers", [4, 8, 16, 32])
@pytest.mark.parametrize("graph", ["ring", "torus", "complete"])
def test_gossip_takes_no_less_than_the_bytes_on_the_busiest_link(graph, workers):
    here = cluster("survey-10GbE", workers)
    found = iteration_cost(WORKLOAD, here, f"d-psgd({graph})", overlap=False)
    least = max(bytes_that_leave(here, graph).values()) / here.effects.between_bandwidth
    assert found.iteration_seconds >= least
    # No more than that, a latency for each of its messages, and those that stay inside.
    effects, degree = here.effects, make_graph(graph, workers).degree(0)
    latency = effects.operation_latency + effects.between_latency + effects.inside_latency
    within = degree * WORKLOAD.gradient_bytes / effects.inside_bandwidth
    assert found.waiting_seconds <= least + within + degree * latency


@pytest.mark.parametrize(
    ("link", "ends"),
    [
        # Three of 100 bytes share 20 bytes per second: all are there after 15 seconds.
        (Link("one", 0.0, 0.05), [0.0, 15.0, 15.0, 15.0]),
        # The second leaves after a second, the third after two.
        (Link("one", 1.0, 0.0), [0.0, 1.0, 2.0, 3.0]),
        # The first has 70 bytes to go, the second 90, when the third leaves.
        (Link("one", 1.0, 0.05), [0.0, 13.5, 15.5, 16.0]),
    ],
)
def test_messages_on_one_link_share_it(link, ends):
    def sends(worker):
        yield NextGradient()
        mine = [1, 2, 3] if worker.rank == 0 else []
        yield Messages(
            {rank: torch.empty(100, dtype=torch.uint8) for rank in mine},
            {} if worker.rank == 0 else {0: 100},
        )
        yield StepDone()

    done: dict[int, float] = {}
    clock = Clock(compute=lambda rank, step, workers: 0.0, link=lambda sender, receiver: link)
    workers = dry_workers(training_method("bsp"), [(4,)], 4)
    Lockstep(
        workers, sends, 1, clock=clock, on_step=lambda rank, count, now: done.update({rank: now})
    ).run()
    assert [done[rank] for rank in range(4)] == pytest.approx(ends)


def test_a_server_answers_densely_and_a_tree_sends_and_receives_by_turns():
    here, size = cluster("survey-10GbE", 8), WORKLOAD.gradient_bytes
    served = iteration_cost(WORKLOAD, here, "bsp + top-k(0.01) + whole-model on PS", steps=2)
    assert served.bytes_received == size
    assert served.bytes_sent == pytest.approx(0.02 * size, rel=1e-3)
    assert iteration_cost(WORKLOAD, here, "WFBP-PS").bytes == 2 * size
    tree = "gtop-k(0.01) + whole-model"
    for method in (f"bsp + {tree}", f"local(1) + {tree}"):  # three levels up and down
        found = iteration_cost(WORKLOAD, here, method, steps=2)
        assert found.bytes == pytest.approx(6 * 0.02 * size, rel=1e-3)


@pytest.mark.parametrize(
    "method", ["bsp", "bsp + top-k(0.01)", "bsp + fp16", "bsp on PS", "local(4)", "d-psgd", "asp"]
)
def test_one_worker_asks_nobody(method):
    alone = cluster("survey-10GbE", 1)
    found = iteration_cost(WORKLOAD, alone, method, steps=2, compression=FREE)
    assert found.bytes == found.waiting_seconds == 0
    assert found.iteration_seconds == pytest.approx(compute_seconds(WORKLOAD, alone))
    assert iteration_cost(WORKLOAD, alone, "WFBP-PS").bytes == 0


@pytest.mark.parametrize(
    ("method", "hidden", "machines"),
    [
        ("BSP-A2A", "nothing", 0),
        ("WFBP-PS", "backward pass", 4),
        ("ByteScheduler-A2A", "backward and next forward pass", 0),
        ("bsp + fp16", "backward pass", 0),
        ("bsp + fp16 + whole-model", "nothing", 0),
        ("local(8)", "nothing", 0),
        ("local(8) on PS", "nothing", 4),
        ("choco", "nothing", 0),
    ],
)
def test_costs_say_what_hides_communication_and_which_machines_they_take(method, hidden, machines):
    found = iteration_cost(WORKLOAD, cluster("survey-10GbE"), method, steps=2)
    assert (found.hidden_behind, found.server_machines) == (hidden, machines)
    beside = replace(cluster("survey-10GbE"), server_place="workers' nodes")
    assert iteration_cost(WORKLOAD, beside, method, steps=2).server_machines == 0
    inside = cluster("survey-10GbE", 4)
    assert iteration_cost(WORKLOAD, inside, method, steps=2).server_machines == 0


@pytest.mark.parametrize(
    ("method", "options", "reason"),
    [
        ("bsp + top-k(0.01)", {"base": "ByteScheduler-A2A"}, "cuts tensors"),
        ("bsp + top-k(0.01)", {"base": "WFBP-PS"}, "goes through servers"),
        ("bsp + top-k(0.5)", {"compression": SLOW}, r"no seconds for top-k\(0.5\).*--also"),
        ("WFBP-A2A", {"overlap": False}, "ask for 'bsp on A2A'"),
        *(
            (method, {"slower": OneSlow(2.0, rank=16)}, "slows a worker that is not there")
            for method in ("bsp + fp16", "WFBP-A2A", "asp")
        ),
        ("MGWFBP", {}, r"unknown method 'MGWFBP'.*did you mean 'MG-WFBP'"),
        ("locale", {}, r"unknown method 'locale'.*did you mean 'local'"),
        ("bsp", {"compression": "nowhere"}, "compression profile"),
        ("local(8)", {"base": "BSP-PS"}, "base 'BSP-PS' goes through servers"),
        (  # no two of their iterations cost the same
            "post-local(8, 100)",
            {},
            r"100 iterations cost what those of bsp do, and all others what those of local\(8\) do",
        ),
        (
            "adaptive-local(2, 16, rare)",
            {},
            r"the losses decide how often.*local\(2\) and local\(16\)",
        ),
    ],
)
def test_what_does_not_fit_is_refused(method, options, reason):
    with pytest.raises(InputError, match=reason):
        iteration_cost(WORKLOAD, cluster("survey-10GbE"), method, **options)


@pytest.mark.parametrize(
    ("method", "same"),
    [("bsp on PS", "WFBP-PS"), (ddlnb.get_method("WFBP-A2A"), "WFBP-A2A"), ("bsp", "MG-WFBP")],
)
def test_methods_that_are_one_cost_the_same(method, same):
    here = with_own_plans(cluster("survey-10GbE"))
    assert iteration_cost(WORKLOAD, here, method) == iteration_cost(WORKLOAD, here, same)


# The profile.


def test_what_is_larger_than_measured_is_marked_and_only_gathers_grow_with_workers():
    measured = replace(SLOW, samples=({"elements": 1 << 20},))
    method, here = "bsp + top-k(0.01)", cluster("survey-10GbE")
    layers, whole = (
        iteration_cost(WORKLOAD, here, method + flag, compression=measured)
        for flag in ("", " + whole-model")
    )
    assert "extrapolated from 1.05 to 25.6 million elements" in whole.source
    assert "to 2.36 million" in layers.source
    local = iteration_cost(
        WORKLOAD, here, "local(2) + top-k(0.01) + whole-model", compression=measured
    )
    assert "25.6 million" in local.source
    wide = replace(SLOW, samples=({"elements": 1 << 24},))
    assert (
        "extrapolated"
        not in iteration_cost(WORKLOAD, here, method + " + whole-model", compression=wide).source
    )
    assert growth_of(TopK()) == "workers"
    assert growth_of(Float16()) == "none"
    assert not iteration_cost(WORKLOAD, cluster("survey-10GbE"), "bsp + fp16").gathers
    assert growth_of(Uncompressed()) == "none"


def test_who_starts_a_compression_per_tensor_is_told_what_one_vector_takes():
    """Twice as fast at least, by the same estimate; the name given is one that can be asked."""
    here = ddlnb.cluster_of("A100", nodes=4)
    work = replace(WORKLOAD, hardware=here.hardware)
    names = ["bsp + top-k(0.01) + feedback on A2A", "bsp + fp16", "local(4)", "MG-WFBP"]
    said = as_one_vector(work, here, names)
    whole = "bsp + top-k(0.01) + feedback + whole-model on A2A"
    before, after = (iteration_cost(work, here, one).iteration_seconds for one in (names[0], whole))
    assert before > 2 * after
    assert f"{whole} {show_seconds(after)}, not {show_seconds(before)}." in said
    assert f"each of {len(work.gradients)} tensors" in said
    assert "fp16" not in said
    assert as_one_vector(work, here, [whole, "local(4)", "MG-WFBP"]) == ""
    # Where compression takes nothing, nothing starts.
    assert as_one_vector(work, here, names[:1], compression=FREE) == ""

"""Laws of plans that are searched for compressed gradients, and of their seconds.

Compressed gradients are merged by what is sent of them, not by what they were.
"""

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import ddlnb
from ddlnb.compression.profile import (
    FREE,
    SHEET,
    CompressionProfile,
    CompressorSeconds,
    Line,
    compression_profile,
)
from ddlnb.errors import InputError, PlanError, UnknownName
from ddlnb.plans.plan import Gate, Launch, Order, Plan
from ddlnb.plans.plan_file import plan_from_json, plan_to_json
from ddlnb.search.bound import groups
from ddlnb.search.search import search_plan
from ddlnb.search.space import Candidate, Space
from ddlnb.simulator.events import play
from ddlnb.simulator.program import lower
from ddlnb.simulator.simulate import plan_on
from ddlnb.survey.time_to_target import made_up_cluster
from ddlnb.training.cost.estimate import iteration_cost
from ddlnb.training.cost.overlapped import compressed, compressed_message, pieces_of_messages
from ddlnb.training.cost.requests import compressed_pieces, tensor_shapes
from ddlnb.training.cost.searched import Compressed, group_costs
from ddlnb.training.method import training_method
from ddlnb.workloads.workload import Gradient, Layer, Workload
from tests.simulator.test_simulate import clusters, workloads

NAMES = ["fp16", "top-k(0.1) + feedback", "qsgd", "gtop-k(0.1)"]
SLOW = CompressionProfile(
    "made up",
    {
        text: CompressorSeconds(Line(0.01, 1e-4), Line(0.02, 1e-5), Line(0.01, 1e-5), "workers")
        for text in (
            "fp16",
            "top-k(0.1)",
            "qsgd(127, None)",
            "gtop-k(0.1)",
            "powersgd(1, False, True)",
        )
    },
    feedback=Line(0.005, 1e-5),
)
WHOLE = Space(partition=False, split=False, collectives=(), servers=False)
RESNET = ddlnb.read_profile("resnet50_b64_rtx2080ti")
sent = st.builds(Compressed, st.sampled_from(NAMES), st.sampled_from([FREE, SLOW]), st.booleans())


@st.composite
def situations(draw):
    """A workload on a cluster, what is sent of it, and any plan for that."""
    workload = draw(workloads(least_seconds=0))
    cluster, what = draw(clusters()), draw(sent)
    ends = draw(st.sets(st.integers(1, len(workload.gradients)))) | {len(workload.gradients)}
    messages = Candidate(tuple(sorted(ends))).plan(workload, cluster, ()).messages
    messages = tuple(draw(st.permutations(messages)))
    launch, gate = draw(st.sampled_from(Launch)), draw(st.sampled_from(Gate))
    plan = Plan("drawn", workload.gradients, messages, "all_reduce", launch, Order.LISTED, gate)
    is_compressed = [True] * len(ends)
    if what.mixed:
        is_compressed = draw(st.lists(st.booleans(), min_size=len(ends), max_size=len(ends)))
    names = tuple(str(what) if one else "" for one in is_compressed)
    return workload, cluster, what, replace(plan, compressions=names)


@settings(max_examples=70)
@given(situations())
def test_no_compressed_plan_is_quicker_than_the_bound(situation):
    workload, cluster, what, plan = situation
    sending = what.on(workload, cluster, Space(collectives=()))
    bound = sending.bound()
    assert bound.seconds <= sending.seconds(plan) * (1 + 1e-9), bound


@settings(max_examples=10)
@given(workloads(), clusters(), sent)
def test_a_searched_plan_is_no_worse_than_fixed_methods_and_costs_what_was_found(
    workload, cluster, what
):
    found = search_plan(workload, cluster, compression=what, most_plans=25)
    assert found.fixed
    assert found.iteration_seconds <= min(found.fixed.values())
    assert found.lower_bound_seconds <= found.iteration_seconds * (1 + 1e-9)
    if what.mixed:
        assert found.iteration_seconds <= found.dense.iteration_seconds
    else:
        assert set(found.plan.compressions) == {str(what)}
    read = plan_from_json(plan_to_json(found.plan))
    assert read == found.plan
    if read.compressed_by:
        cost = iteration_cost(workload, cluster, read, compression=what.profile)
        assert cost.iteration_seconds == found.iteration_seconds


@pytest.mark.parametrize("profile", ["free", "cpu-1thread"])
@pytest.mark.parametrize("compression", ["fp16", "top-k(0.01) + feedback", "powersgd"])
def test_fixed_methods_have_the_seconds_of_their_lossy_forecast(compression, profile):
    here = ddlnb.get_cluster("survey-10GbE", 16)
    sending = Compressed(compression, profile).on(RESNET, here, WHOLE)
    fixed = {name.rpartition(" as ")[2]: plans for name, plans in sending.fixed().items()}
    assert set(fixed) == {"BSP-A2A", "WFBP-A2A", "MG-WFBP"}
    for base, plans in fixed.items():
        found = min(map(sending.seconds, plans))
        cost = iteration_cost(RESNET, here, f"bsp + {compression}", compression=profile, base=base)
        assert found == cost.iteration_seconds


# Two layers of 4 MB each on a link of a megabyte per second: "b" is ready after 1 s, "a" after 3 s.
TWO_LAYERS = Workload(
    "toy",
    1,
    (Layer("a", 0.5), Layer("b", 0.25)),
    (Gradient("b", "b", 1_000_000, 4, 1.0), Gradient("a", "a", 1_000_000, 4, 2.0)),
    "by hand",
)
LINK = made_up_cluster("8 Mb/s", "50 ms", workers=2)


def test_one_message_of_two_layers_by_hand():
    """Compressed in 1 s, gathered in 50 + 160 ms, decompressed once in 2 x 0.5 s, whoever waits.

    The iteration: 0.75 s forward, 3 s backward, 1 + 0.21 s to send, 1 s to decompress.
    """
    seconds = CompressorSeconds(Line(0.5), Line(0.5))
    profile = CompressionProfile("made up", {"top-k(0.01)": seconds})
    for gate in Gate:
        plan = Candidate((2,), gate).plan(TWO_LAYERS, LINK, ())
        plan = replace(plan, compressions=("top-k(0.01)",))
        cost = iteration_cost(TWO_LAYERS, LINK, plan, compression=profile)
        assert cost.iteration_seconds == pytest.approx(0.75 + 3 + 1 + 0.21 + 1)
        assert cost.compression_seconds == pytest.approx(2.0)
        assert cost.bytes_sent == pytest.approx(160_000)


def test_what_computation_hides_goes_dense_by_hand():
    """Layer b's 4 MB take 4.05 s; compressed, 1 s of encoding delays a, which nothing hides.

    Compressing both ends at 0.75 + 3 + 2 x 0.1 (encode) + 0.05 + 0.08 s; b as it is would last
    until 0.75 + 1 + 4.05 s. On a link ten times as fast b is hidden, and goes dense.
    """
    seconds = CompressorSeconds(Line(0.1), Line())
    profile = CompressionProfile("made up", {"top-k(0.01)": seconds})
    both = Compressed("top-k(0.01)", profile, mixed=True)
    for bandwidth, names in (("8 Mb/s", 2), ("80 Mb/s", 1)):
        link = made_up_cluster(bandwidth, "50 ms", workers=2)
        found = search_plan(TWO_LAYERS, link, compression=both, space=WHOLE)
        assert sum(map(bool, found.plan.compressions)) == names
        last = 3.75 + 0.1 * names + 0.05 + 0.08 * 8 / float(bandwidth.split()[0])
        assert found.iteration_seconds == pytest.approx(last)


@pytest.mark.parametrize("compression", [*NAMES, "powersgd(1)"])
def test_group_costs_are_those_of_every_group(compression):
    cluster = ddlnb.get_cluster("survey-10GbE", 8)
    shapes = tensor_shapes(RESNET)
    some = [replace(one, shape=shapes[one.name]) for one in RESNET.gradients[:12]]
    few = replace(RESNET, model="some", gradients=tuple(some))
    sending = Compressed(compression, SLOW).on(few, cluster, WHOLE)
    names = [gradient.name for gradient in some]
    pieces = sending.compressing.pieces
    costs = group_costs(cluster, [pieces[name] for name in names])
    for number, (first, last) in enumerate(zip(*groups(len(names)), strict=True)):
        made = sending.compressing.message(*names[first : last + 1])
        assert costs.latency[number] == pytest.approx(made.cost.latency + made.cost.copies)
        assert costs.work[number] == pytest.approx(made.cost.work)


@pytest.mark.parametrize("seed", range(4))
def test_the_merging_is_the_best_of_all_where_all_layers_wait(seed):
    """Every merge counted out: encoding delays what is ready, wherever messages end."""
    draw = np.random.default_rng(seed)
    gradients = tuple(
        Gradient(f"g{i}", "l", int(draw.integers(10, 2000)), 4, float(draw.uniform(0, 0.02)))
        for i in range(7)
    )
    workload = Workload("drawn", 1, (Layer("l"),), gradients, "drawn")
    cluster = made_up_cluster("1 Mb/s", "2 ms", workers=4)
    profile = replace(SLOW, compressors={"fp16": CompressorSeconds(Line(0.001, 1e-6), Line())})
    sending = Compressed("fp16", profile).on(workload, cluster, WHOLE)
    (best,) = sending.mergings()
    every = [
        (*cuts, len(gradients))
        for size in range(len(gradients))
        for cuts in combinations(range(1, len(gradients)), size)
    ]
    seconds = {ends: sending.seconds(sending.plan(Candidate(ends))) for ends in every}
    assert seconds[best] == pytest.approx(min(seconds.values()))
    assert len(set(seconds.values())) > 10


def test_compressions_are_part_of_a_plan():
    plan = plan_on(LINK, TWO_LAYERS, "WFBP-A2A")
    named = replace(plan, compressions=("fp16", ""))
    assert named.digest != plan.digest
    assert replace(named, compressions=("", "fp16")).digest != named.digest
    assert named.compressed_by == ("fp16",)
    text = str(named)
    assert "compressed by fp16" in text
    assert ["compressed" in line for line in text.splitlines()[1:]] == [True, False]
    older = plan_to_json(plan).replace(' "compressions": [],\n', "")
    assert "compressions" not in older
    assert plan_from_json(older) == plan


PLANNED = plan_on(LINK, TWO_LAYERS, "WFBP-A2A")
IN_PARTS = Candidate((1, 2), partition=1_000_000).plan(TWO_LAYERS, LINK, ())


@pytest.mark.parametrize(
    ("make", "error", "said"),
    [
        (
            lambda: replace(PLANNED, compressions=("fp16",)),
            PlanError,
            "names compressions for 1 of 2 messages",
        ),
        (
            lambda: replace(PLANNED, compressions=("fp16", ""), collectives=("ring", "")),
            PlanError,
            "names collective 'ring' for a message that is compressed",
        ),
        (
            lambda: replace(IN_PARTS, compressions=("fp16",) * 8),
            PlanError,
            "compresses a part of 'b' by fp16",
        ),
        (  # who knows no compression
            lambda: lower(TWO_LAYERS, LINK, replace(PLANNED, compressions=("fp16", "fp16"))),
            InputError,
            r"compresses messages by fp16.*ask ddlnb.iteration_cost",
        ),
        (
            lambda: iteration_cost(
                replace(TWO_LAYERS, gradients=TWO_LAYERS.gradients[:1]), LINK, PLANNED
            ),
            PlanError,
            "has 2 gradients and workload 'toy' 1",
        ),
        (lambda: Compressed("topk-0.01"), UnknownName, "unknown compression 'topk-0.01'"),
        (lambda: Compressed("none"), InputError, "compresses nothing"),
        (lambda: Compressed("bsp + top-k"), InputError, "leave 'bsp' out"),
        (lambda: Compressed("top-k + whole-model"), InputError, "leave whole-model out"),
        (lambda: Compressed("fp16", "nix"), UnknownName, "unknown compression profile 'nix'"),
        (
            lambda: search_plan(TWO_LAYERS, LINK, compression="fp16"),
            InputError,
            r"give ddlnb.training.Compressed\('fp16'\)",
        ),
        (
            lambda: search_plan(
                TWO_LAYERS, LINK, compression=Compressed("qsgd", SLOW.__class__("x", {}))
            ),
            InputError,
            "has no seconds for qsgd",
        ),
    ],
)
def test_what_cannot_be_sent_or_planned_is_refused(make, error, said):
    with pytest.raises(error, match=said):
        make()


# Merging by what is sent.


# Three gradients of 4 MB, ready after 1.0, 1.5 and 3.0 seconds.
TOY = Workload(
    "toy",
    1,
    (Layer("l"),),
    tuple(
        Gradient(name, "l", 1_000_000, 4, seconds)
        for name, seconds in [("c", 1.0), ("b", 0.5), ("a", 1.5)]
    ),
    "by hand",
)


def by_dense_plan(method: str, cluster: ddlnb.Cluster) -> float:
    """Seconds of an iteration whose compressed messages are merged as uncompressed ones are."""
    chosen = training_method(method)
    shapes = tensor_shapes(RESNET)
    by_name = dict(zip(shapes, compressed_pieces(chosen.compressor, shapes.values()), strict=True))
    plan = plan_on(cluster, RESNET, "MG-WFBP")
    made = [
        compressed_message(group, cluster, compression_profile(FREE), chosen.feedback)
        for group in pieces_of_messages(plan, by_name)
    ]
    return play(compressed(lower(RESNET, cluster, plan), made)).iteration_seconds


def test_a_plan_for_what_is_sent_and_waits_for_compression_by_hand():
    """Dense, the first message fills the link until 5.1 s, so that the other two merge.

    Of a hundredth, 80 kB are gathered in 50 + 80 ms: the second is on its way before the third is
    ready, and the last one has arrived at 3.13 s. With the plan for dense ones it was 3.21 s.

        Half a second each: ready at 1.5, 2.5 and 4.5 s, with 50 ms to send after the last.
    """
    dense = plan_on(LINK, TOY, "MG-WFBP")
    assert [len(message.pieces) for message in dense.messages] == [1, 2]
    cost = iteration_cost(TOY, LINK, "bsp + top-k(0.01)", compression=FREE)
    assert cost.iteration_seconds == pytest.approx(3.13)
    assert "3 messages" in cost.source
    slow = CompressorSeconds(Line(0.5, 0.0), Line(), Line(), "workers")
    profile = CompressionProfile("made up", {"top-k(0.01)": slow})
    cost = iteration_cost(TOY, LINK, "bsp + top-k(0.01)", compression=profile)
    assert cost.iteration_seconds == pytest.approx(4.63)
    assert cost.compression_seconds == pytest.approx(1.5)


def test_two_all_reduces_per_message_are_merged_further():
    """Messages that were merged for dense gradients took PowerSGD 16 % more time.

    The survey's MG-WFBP believed in half a millisecond per all-reduce; here each takes 2 ms.
    """
    here = replace(
        ddlnb.get_cluster("survey-10GbE").with_effects(
            between_latency=100e-6, operation_latency=100e-6, rank_latency=3e-6
        ),
        planning=ddlnb.plans.AlphaBeta(523e-6, 1 / 1.167e9),
    )
    method = "bsp + powersgd + feedback"
    cost = iteration_cost(RESNET, here, method, compression=FREE)
    assert cost.iteration_seconds < 0.95 * by_dense_plan(method, here)
    assert cost.iteration_seconds < 1.1 * cost.compute_seconds


@pytest.mark.parametrize("workers", [8, 32])
@pytest.mark.parametrize("network", ["survey-10GbE", "survey-100GbE"])
@pytest.mark.parametrize("method", ["fp16", "signsgd", "top-k(0.01)", "qsgd", "powersgd"])
def test_it_is_never_slower_than_the_plan_for_dense_gradients(method, network, workers):
    here = replace(ddlnb.get_cluster(network, workers), planning=None)
    cost = iteration_cost(RESNET, here, f"bsp + {method}", compression=FREE)
    found = cost.iteration_seconds
    assert found <= by_dense_plan(f"bsp + {method}", here) + 1e-12


def test_what_compressing_takes_is_counted_unless_it_is_said_to_be_free():
    here = ddlnb.get_cluster("survey-10GbE", 16)
    assert Compressed("qsgd").profile == SHEET
    for method in ("bsp + qsgd", "local(4) + qsgd"):
        by_sheet, free = (
            iteration_cost(RESNET, here, method, compression=how) for how in (SHEET, FREE)
        )
        assert iteration_cost(RESNET, here, method) == by_sheet
        assert by_sheet.compression_seconds > free.compression_seconds == 0

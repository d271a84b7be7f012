"""GPUs of several kinds: no sharing ends earlier, what each way yields, and the answer in words."""

import math
import re
from dataclasses import replace
from itertools import accumulate, combinations, pairwise

import pytest
from hypothesis import given, settings, strategies as st

import ddlnb
from benchmarks.unlike_ranks import SlowedModel, way_rows
from ddlnb.errors import InputError, UnknownName
from ddlnb.parallelism.heterogeneous import Kind, gpu_kinds, way_table, ways_to_share
from ddlnb.parallelism.model import llama
from ddlnb.parallelism.partition import (
    cut_layers,
    equal_shares,
    gradient_weights,
    share_batch,
    slowest_seconds,
    stage_seconds,
)
from ddlnb.parallelism.schedules import play, schedule
from ddlnb.units import GIB

SPEED = st.floats(0.1, 10.0)


def all_shares(samples, workers):
    """Return every way to deal samples to workers."""
    if workers == 1:
        return [(samples,)]
    return [
        (own, *rest)
        for own in range(samples + 1)
        for rest in all_shares(samples - own, workers - 1)
    ]


def all_cuts(layers, stages):
    """Return every way to cut layers into stages that hold at least one."""
    for marks in combinations(range(1, layers), stages - 1):
        ends = (0, *marks, layers)
        yield tuple(stop - first for first, stop in pairwise(ends))


@settings(max_examples=60)
@given(samples=st.integers(1, 12), speeds=st.lists(SPEED, min_size=1, max_size=4))
def test_no_other_sharing_of_a_batch_ends_earlier(samples, speeds):
    shares = share_batch(samples, speeds)
    assert sum(shares) == samples
    best = min(slowest_seconds(one, speeds) for one in all_shares(samples, len(speeds)))
    assert slowest_seconds(shares, speeds) == pytest.approx(best, rel=1e-12)


@given(each=st.integers(1, 50), workers=st.integers(1, 8), speed=SPEED)
def test_workers_that_are_alike_get_equal_shares(each, workers, speed):
    assert share_batch(each * workers, [speed] * workers) == equal_shares(each * workers, workers)


@settings(max_examples=60)
@given(
    costs=st.lists(st.integers(0, 9), min_size=4, max_size=8),
    speeds=st.lists(st.sampled_from([0.5, 1.0, 2.5]), min_size=1, max_size=4),
    micro_batches=st.integers(1, 9),
)
def test_no_other_cut_of_layers_ends_earlier_under_gpipe(costs, speeds, micro_batches):
    def played(cut):
        stages = stage_seconds(costs, speeds, cut)
        seconds = [{"F": one / 3, "B": one * 2 / 3} for one in stages]
        return play(schedule("gpipe", len(cut), micro_batches), seconds).seconds

    cut = cut_layers(costs, speeds, micro_batches)
    assert sum(cut) == len(costs)
    assert min(cut) >= 1
    stages = stage_seconds(costs, speeds, cut)
    formula = sum(stages) + (micro_batches - 1) * max(stages)
    assert played(cut) == pytest.approx(formula)
    assert played(cut) == pytest.approx(min(map(played, all_cuts(len(costs), len(speeds)))))


@settings(max_examples=60)
@given(
    sizes=st.lists(st.integers(1, 5), min_size=4, max_size=8),
    gpus=st.lists(
        st.tuples(st.sampled_from([0.5, 1.0, 2.5]), st.integers(2, 20)), min_size=1, max_size=4
    ),
    micro_batches=st.integers(1, 9),
)
def test_a_cut_keeps_to_the_memory_of_every_stage_where_any_does(sizes, gpus, micro_batches):
    """Layers cost as much as they hold; among the cuts that fit none is quicker."""
    speeds, room = zip(*gpus, strict=True)

    def fits(cut):
        ends = [0, *accumulate(cut)]
        return all(
            sum(sizes[a:b]) <= most for (a, b), most in zip(pairwise(ends), room, strict=True)
        )

    def seconds(cut):
        stages = stage_seconds(sizes, speeds, cut)
        return sum(stages) + (micro_batches - 1) * max(stages)

    every = list(all_cuts(len(sizes), len(speeds)))
    within = [cut for cut in every if fits(cut)]
    found = cut_layers(sizes, speeds, micro_batches, sizes, room)
    assert fits(found) or not within
    assert seconds(found) == pytest.approx(min(map(seconds, within or every)))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: equal_shares(10, 4), "take 8 or 12$"),
        (lambda: equal_shares(3, 4), "divide a batch of 3; take 4$"),
        (lambda: share_batch(0, [1.0]), "samples 0 must be a whole number"),
        (lambda: share_batch(4, []), "there are no workers"),
        (lambda: share_batch(4, [1.0, 0.0]), "speed 0.0 must be a finite number above 0"),
        (lambda: gradient_weights((0, 0)), "hold no samples"),
        (lambda: cut_layers([1.0], [1.0, 1.0], 2), "use at most 1 GPUs, or a model of at least 2"),
        (lambda: cut_layers([1.0, -1.0], [1.0], 2), "must be numbers from 0"),
        (lambda: cut_layers([1.0], [], 2), "there are no stages"),
        (lambda: stage_seconds([1.0] * 3, [1.0], (2,)), "must hold 3 layers in 1 stages"),
    ],
)
def test_what_cannot_be_shared_is_refused(call, message):
    with pytest.raises(InputError, match=message):
        call()


MODEL = llama("small", 8, 256, 4, 4, 1024, 1000, 128).shape
FAST, SLOW = Kind("fast", 2, 4e12, 1e10), Kind("slow", 2, 1e12, 1e10)


def seconds(kinds, samples=40):
    """Return the seconds of an iteration by way."""
    return {way.name: way.seconds for way in ways_to_share(MODEL, kinds, samples)}


def test_shares_by_speed_take_the_time_of_the_sum_of_speeds_where_they_divide():
    ways = {way.name: way for way in ways_to_share(MODEL, (SLOW, FAST), 40)}
    assert ways["shares by speed"].shares == (16, 16, 4, 4)
    together = MODEL.iteration_flops(40) / (FAST.total + SLOW.total)
    assert ways["shares by speed"].compute == pytest.approx(together)
    assert ways["equal shares"].compute == pytest.approx(MODEL.iteration_flops(10) / SLOW.speed)
    ring = 2 * 3 / 4 * MODEL.parameters * 2 / 1e10
    assert ways["equal shares"].communication == pytest.approx(ring)


@settings(max_examples=20)
@given(speed=st.floats(1e11, 4e12), port=st.floats(1e8, 1e11), samples=st.integers(1, 8))
def test_sharing_by_speed_is_never_slower_than_sharing_equally(speed, port, samples):
    slow = replace(SLOW, speed=speed, port=port)
    found = seconds((FAST, slow), 4 * samples)
    assert found["shares by speed"] <= found["equal shares"] * (1 + 1e-12)
    faster = seconds((FAST, replace(slow, port=2 * port)), 4 * samples)
    assert all(faster[way] <= found[way] * (1 + 1e-12) for way in found)  # bandwidth never hurts


def test_the_table_says_what_share_of_all_speeds_is_reached():
    ways = ways_to_share(MODEL, (FAST, SLOW), 40)
    table = way_table(ways, 40, MODEL).set_index("way")
    assert table.loc["shares by speed", "shares"] == "2 x 16, 2 x 4"
    pipelines = [way for way in table.index if way.startswith("pipeline")]
    kinds = {way: re.findall(r"(\w+): \d", table.loc[way, "shares"]) for way in pipelines}
    assert {way: sorted(names) for way, names in kinds.items()} == {
        way: ["fast", "slow"] for way in pipelines
    }
    assert (table["of_all"] < 1).all()
    assert table.loc["pipeline by speed", "of_all"] > table.loc["pipeline, equal layers", "of_all"]


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: ways_to_share(MODEL, (FAST, SLOW), 42), InputError, "take 40 or 44$"),
        (lambda: ways_to_share(MODEL, (FAST,), 9, 2), InputError, "divide a batch of 9; take 8 or"),
        (lambda: ways_to_share(MODEL, (), 8), InputError, "there are no GPUs"),
        (lambda: ways_to_share(MODEL, (FAST, FAST), 8), InputError, "'?fast'? is named twice"),
        (lambda: ways_to_share(MODEL, (replace(FAST, count=9),), 9), InputError, "at most 8 GPUs"),
        (lambda: gpu_kinds({}), InputError, "there are no GPUs"),
        (lambda: gpu_kinds(["4xA100"]), InputError, r"name at least one kind, such as {'A100'"),
        (lambda: gpu_kinds({"A100": 0}), InputError, "count 0"),
        (lambda: gpu_kinds({"A100": 1}, reached=1.5), InputError, "reached 1.5"),
        (lambda: gpu_kinds({"A1000": 1}), UnknownName, "unknown GPU"),
        (lambda: gpu_kinds({"V100": 1}, "bf16"), UnknownName, "unknown precision"),
    ],
)
def test_what_no_cluster_can_be_is_refused(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_all_gpus_reach_the_share_that_is_said():
    told = ddlnb.unlike("llama3-1b", {"H100": 2, "A100": 2}, samples=64, reached=0.4)  # old name
    assert "reach 40% of their peaks" in told.unknowns[0]
    alone = told.rows.set_index("way").loc["only A100-SXM4-80GB", "compute_seconds"]
    shape = ddlnb.parallelism.get_shape("llama3-1b").shape
    assert alone == pytest.approx(shape.iteration_flops(32) / (0.4 * 312e12))


def test_a_traced_model_is_shared_by_what_each_kind_does_alone():
    found = ddlnb.balance("resnet50", {"A100": 2, "V100": 2}, samples=256, precision="fp16")
    rows = found.rows.set_index("way")
    alone = {f"only {name}" for name in ("A100-SXM4-80GB", "V100-SXM2-32GB")}
    assert set(rows.index) == {"equal shares", "shares by speed", *alone}
    assert "between the layers of resnet50 is not traced" in found.unknowns[-1]
    with pytest.raises(InputError, match=r"reached 0\.4 is of large models"):
        ddlnb.balance("resnet50", {"A100": 2, "V100": 2}, reached=0.4, precision="fp16")


def test_rows_are_those_of_all_ways_and_the_first_holds_its_states():
    found = ddlnb.balance("llama3-8b", {"H100": 8, "A100": 8}, sequence=4096, samples=128)
    shape = ddlnb.parallelism.get_shape("llama3-8b")
    assert len(found.rows) == 6
    fits = found.rows["fits"].tolist()
    assert fits == sorted(fits, reverse=True)
    assert found.rows["seconds"].iloc[0] == found.rows.loc[found.rows["fits"], "seconds"].min()
    data = found.rows.set_index("way").loc["equal shares"]
    assert data["fits"]  # sharded among GPUs of its kind
    told = ddlnb.balance("llama3-8b", {"H100": 8, "A100": 8}, samples=128, reached=0.4)
    whole = told.rows.set_index("way").loc["equal shares"]
    assert whole["held_gib"] == pytest.approx(16 * shape.shape.parameters / GIB)
    assert not whole["fits"]  # 120 GiB of 80
    assert "Too much for a GPU" in str(told)


def test_kinds_with_ways_of_their_own_exchange_with_one_another_alone():
    """A reduction in two levels: every GPU sends its part of the gradients to the other kind's."""
    kinds = tuple(replace(one, way="dp2 zero1", held=1e9) for one in (FAST, SLOW))
    ways = {way.name: way for way in ways_to_share(MODEL, kinds, 40)}
    between = 2 * 1 / 2 * MODEL.parameters * 2 / (2 * 1e10)
    assert ways["shares by speed"].communication == pytest.approx(between)
    assert ways["only fast"].communication == 0
    assert ways["equal shares"].held == 1e9
    lacking = (kinds[0], replace(kinds[1], memory=5e8))
    fits = {way.name: way.fits for way in ways_to_share(MODEL, lacking, 40)}
    assert fits["only fast"]
    assert not fits["shares by speed"]


def test_stages_hold_the_states_of_their_layers():
    """Together the stages hold all states; each is judged by the memory of its own GPU."""
    shape = ddlnb.parallelism.get_shape("llama3-8b").shape
    kinds = gpu_kinds({"H100": 2, "A100": 2}, "bf16")
    way = {one.name: one for one in ways_to_share(shape, kinds, 32)}["pipeline by speed"]
    assert sum(way.shares) == len(shape.layers)
    assert 16 * shape.parameters / 4 <= way.held < 16 * shape.parameters
    tiny = (kinds[0], Kind("tiny", 2, kinds[1].speed, kinds[1].port, memory=1e9))
    lacking = {one.name: one for one in ways_to_share(shape, tiny, 32)}
    assert way.fits
    assert not lacking["pipeline, equal layers"].fits
    assert Kind("any", 1, 1e12, 1e9).memory == math.inf


@pytest.mark.parametrize("sequence", [1024, 2048])
def test_what_a_kind_does_by_itself_says_nothing_of_its_stages(sequence):
    """Alone three A10 gather, and compute again; in a pipeline they hold a part and do neither."""
    counts = {"T4": 2, "A10": 3}
    rows = ddlnb.balance("qwen3-4b", counts, samples=20, sequence=sequence, precision="fp16").rows
    ways = rows.set_index("way")
    assert ways.loc["pipeline by speed", "shares"] == "A10: 1 x 12, 2 x 11; T4: 1 x 3, 1 x 1"
    assert rows["way"].iloc[0] == "pipeline by speed"
    assert rows["fits"].iloc[0]
    assert (rows["of_all"] <= 1).all()  # nothing outdoes what all speeds add up to


def test_layers_go_where_memory_is_and_kinds_in_the_order_that_fits():
    """By speed alone an A10 would hold more than it has, in the quickest order as well."""
    for counts, samples in (({"A100": 3, "A10": 2}, 20), ({"A10": 3, "A100": 1}, 16)):
        rows = ddlnb.balance(
            "llama3-8b", counts, samples=samples, sequence=1024, precision="fp16"
        ).rows
        assert rows["way"].iloc[0] == "pipeline by speed"
        assert rows["fits"].iloc[0]
        other = dict(reversed(counts.items()))
        again = ddlnb.balance(
            "llama3-8b", other, samples=samples, sequence=1024, precision="fp16"
        ).rows
        assert again.equals(rows)


def test_the_batch_is_by_default_one_that_divides():
    found = ddlnb.balance("llama3-1b", {"H100": 3, "A100": 4})
    equal = found.rows.set_index("way").loc["equal shares", "shares"]
    count, each = (int(word) for word in equal.split(" x "))
    assert count == 7
    assert 0.9 < 7 * each * 8192 / (4 * 1024 * 1024) <= 1
    assert f"An iteration of {7 * each} samples" in str(found)


def test_more_gpus_than_blocks_have_no_pipeline_and_it_is_said():
    found = ddlnb.balance("llama3-1b", {"H100": 16, "A100": 16})
    assert not found.rows["way"].str.startswith("pipeline").any()
    assert any("32 GPUs are more stages" in one for one in found.unknowns)


def test_a_model_that_nothing_holds_is_refused_with_the_least():
    with pytest.raises(InputError, match=r"no way holds the model.*ddlnb layouts scale"):
        ddlnb.balance("llama3-70b", {"H100": 4, "A100": 4}, samples=8, sequence=2048)


QUICK = SlowedModel(layers=6, width=8, sample_seconds=1e-3)
ROUNDING = 1e-13  # of gradients over the largest of them, in 8 bytes


@pytest.mark.ranks
def test_gradients_are_those_of_one_worker_on_the_joined_batch(four_ranks):
    rows = way_rows(
        four_ranks, (2.5, 2.5, 1.0, 0.01), samples=16, micro_batches=4, model=QUICK, iterations=1
    ).set_index("way")
    assert rows.loc["shares by speed", "shares"] == "2 x 7, 1 x 2, 1 x 0"  # one is too slow
    assert (rows["gradient_error"] < ROUNDING).all()
    assert (rows["gradient_error"] > 0).any()  # sums in another order: it was computed
    assert len(rows) == 5
    assert (rows["forecast_seconds"] > 0.99 * rows["trivial_seconds"]).all()

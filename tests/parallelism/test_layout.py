"""Layouts and pipeline schedules: their text, refusals, groups, bubbles and memory."""

import re
from types import SimpleNamespace

import pytest
from hypothesis import given, strategies as st

from ddlnb.errors import InputError
from ddlnb.networks.topologies import Star
from ddlnb.parallelism.iteration import parts_of, play_iteration
from ddlnb.parallelism.layout import (
    AXES,
    CONTEXTS,
    GROUPS,
    RECOMPUTATIONS,
    SCHEDULES,
    Layout,
    group_size,
    groups,
    position,
)
from ddlnb.parallelism.memory import get_precision, kept_bytes, memory, pipeline_stages
from ddlnb.parallelism.model import Transformer
from ddlnb.parallelism.schedules import (
    Pass,
    in_flight,
    most_in_flight,
    play,
    schedule,
)
from ddlnb.parallelism.volumes import exchanges

DEGREES = st.integers(1, 4)


@st.composite
def layouts(draw):
    schedule = draw(st.sampled_from(sorted(SCHEDULES)))
    dp, tp, pp, cp = (draw(DEGREES) for _ in range(4))
    zero = draw(st.integers(0, 3))
    ep = draw(st.sampled_from([one for one in range(1, dp + 1) if dp % one == 0]))
    parts = [one for one in range(1, dp * cp + 1) if dp * cp % one == 0]
    return Layout(
        dp=dp,
        tp=tp,
        pp=pp,
        cp=cp,
        ep=ep,
        shard=draw(st.sampled_from(parts if ep == 1 and zero else [0])),
        lora=draw(st.sampled_from([0, 16])),
        vpp=draw(st.integers(2, 3)) if schedule == "interleaved" else SCHEDULES[schedule].chunks,
        zero=zero,
        sequence_parallel=tp > 1 and draw(st.booleans()),
        gather_again=draw(st.booleans()),
        recomputation=draw(st.sampled_from(RECOMPUTATIONS)),
        schedule=schedule,
        context=draw(st.sampled_from(CONTEXTS)),
        micro_batch=draw(DEGREES),
        micro_batches=pp * draw(DEGREES),
        order=tuple(draw(st.permutations(AXES))),
    )


@given(layouts())
def test_a_layout_is_read_back_from_its_text(layout):
    assert Layout.parse(str(layout)) == layout


@given(layouts(), st.sampled_from(GROUPS))
def test_every_rank_is_in_one_group_with_ranks_that_differ_along_the_axis_only(layout, axis):
    every = groups(layout, axis)
    members = [rank for group in every for rank in group]
    assert {len(group) for group in every} == {group_size(layout, axis)}
    assert len(members) == len(set(members))
    if axis != "ends":
        assert sorted(members) == list(range(layout.ranks))
    along = {"ep": ("dp",), "ends": ("pp",)}
    along |= dict.fromkeys(("data", "expert-data", "shard", "copies"), ("dp", "cp"))
    for group in every:
        where = [position(layout, rank) for rank in group]
        for other in set(AXES) - set(along.get(axis, (axis,))):
            assert len({one[other] for one in where}) == 1


@given(layouts())
def test_experts_are_shared_within_replicas_and_repeated_between_them(layout):
    for shared in groups(layout, "ep"):
        for repeated in groups(layout, "expert-data"):
            assert len(set(shared) & set(repeated)) <= 1


def test_tensor_ranks_are_neighbours_unless_the_order_says_otherwise():
    assert groups(Layout(dp=2, tp=2), "tp") == ((0, 1), (2, 3))
    assert groups(Layout(dp=2, tp=2, order=("dp", "cp", "tp", "pp")), "tp") == ((0, 2), (1, 3))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("dp8 tq2", "unknown word in a layout: 'tq2'; choose one of dpN, tpN"),
        ("dp8 dp4", "layout 'dp8 dp4' gives dp twice"),
        ("dp0", "dp 0 must be a whole number, at least 1"),
        ("dp6 ep4", "ep 4 does not divide dp 6; use one of 1, 2, 3, 6"),
        ("zero4", "zero 4 must be 0, 1, 2 or 3"),
        ("sp", "sequence parallelism (sp) splits what tensor parallelism repeats: give tp above 1"),
        ("interleaved", "the interleaved schedule needs vpp of 2 or more, not 1"),
        ("vpp2 1f1b", "vpp 2 needs the interleaved schedule, not '1f1b'"),
        ("pp4 vpp2 acc6", "micro_batches that are a multiple of pp 4, not 6; the next one is 8"),
        ("order=tp-pp", "order 'tp-pp' must name each of tp, cp, dp, pp once"),
    ],
)
def test_a_bad_layout_is_refused_with_what_would_do(text, message):
    with pytest.raises(InputError, match=re.escape(message)):
        Layout.parse(text)


SECONDS = {"F": 1.0, "B": 2.0, "W": 0.0}


@st.composite
def sizes(draw):
    name = draw(st.sampled_from(["gpipe", "1f1b", "interleaved", "zero-bubble"]))
    stages = draw(st.integers(1, 6))
    rounds = draw(st.integers(1, 4))
    if name == "interleaved":
        return name, stages, stages * rounds, draw(st.integers(1, 4))
    return name, stages, draw(st.integers(1, 4 * stages)), 1


@given(sizes())
def test_every_micro_batch_passes_every_chunk_once_each_way_and_it_ends(size):
    name, _, micro_batches, chunks = size
    kinds = "FBW" if name == "zero-bubble" else "FB"
    wanted = {(k, m, c) for k in kinds for m in range(micro_batches) for c in range(chunks)}
    passes = schedule(*size)
    for stage in passes:
        assert len(stage) == len(wanted)
        assert set(stage) == wanted
    played = play(passes, SECONDS, 0.5, chunks)
    assert played.seconds >= micro_batches * 3.0 - 1e-9


@given(sizes())
def test_memory_in_flight_is_what_counting_says(size):
    for stage, passes in enumerate(schedule(*size)):
        assert in_flight(*size, stage) == most_in_flight(passes)


@given(st.sampled_from(["gpipe", "1f1b"]), st.integers(1, 8), st.integers(1, 20))
def test_bubble_of_gpipe_and_1f1b(name, p, m):
    played = play(schedule(name, p, m), SECONDS)
    assert played.bubble == pytest.approx((p - 1) / (m + p - 1))
    assert played.overhead == pytest.approx((p - 1) / m)


@given(st.integers(2, 6), st.integers(1, 4), st.integers(2, 4))
def test_bubble_of_interleaving(p, rounds, v):
    m = p * rounds
    played = play(schedule("interleaved", p, m, v), SECONDS, chunks=v)
    assert played.overhead == pytest.approx((p - 1) / (v * m))


@given(st.integers(1, 8), st.integers(0, 10))
def test_bubble_of_zero_bubble(p, more):
    m = p + more  # arXiv 2401.10241, section 2.2: (p - 1)(F + B - W), the memory of 1f1b
    played = play(schedule("zero-bubble", p, m), {"F": 1.0, "B": 1.0, "W": 1.0})
    assert played.seconds == pytest.approx(3 * m + (p - 1))
    assert max(in_flight("zero-bubble", p, m, 1, stage) for stage in range(p)) == p


@pytest.mark.item("D08", how="simulated")
def test_published_bubbles():
    for m, v, published in ((8, 1, 0.875), (32, 1, 0.219), (32, 4, 0.055)):
        name = "interleaved" if v > 1 else "1f1b"
        overhead = play(schedule(name, 8, m, v), SECONDS, chunks=v).overhead
        assert overhead == pytest.approx(published, abs=0.0005)


def test_an_order_that_waits_for_itself_is_refused():
    stuck = ((Pass("B", 0), Pass("F", 0)),)
    with pytest.raises(InputError, match="never ends: its stages wait at"):
        play(stuck, SECONDS)
    with pytest.raises(InputError, match="must be a multiple of the 4 stages"):
        schedule("interleaved", 4, 6, 2)


@pytest.mark.parametrize(("p", "m", "v"), [(2, 4, 2), (4, 8, 2), (4, 4, 3), (3, 9, 2), (1, 3, 2)])
def test_interleaving_is_that_of_torch(p, m, v):
    torch_schedules = pytest.importorskip("torch.distributed.pipelining.schedules")
    given = SimpleNamespace(
        pp_group_size=p,
        n_local_stages=v,
        microbatches_per_round=p,
        number_of_rounds=m // p,
        _n_microbatches=m,
    )
    kind = torch_schedules.ScheduleInterleaved1F1B
    for stage, passes in enumerate(schedule("interleaved", p, m, v)):
        theirs = kind._calculate_single_rank_operations(given, stage)
        told = [
            Pass(one.computation_type.value, one.microbatch_index, one.stage_index // p)
            for one in theirs
            if one is not None
        ]
        assert list(passes) == told


@pytest.mark.parametrize("name", ["zb-v", "dualpipe-v"])
@pytest.mark.parametrize(("p", "m"), [(2, 4), (4, 8), (4, 19), (5, 10), (8, 16)])
def test_v_schedules_are_those_of_torch(name, p, m):
    torch_schedules = pytest.importorskip("torch.distributed.pipelining.schedules")
    kind = {
        "zb-v": torch_schedules.ScheduleZBVZeroBubble,
        "dualpipe-v": torch_schedules.ScheduleDualPipeV,
    }[name]
    given = object.__new__(kind)  # its process group is not needed for the order
    given.pp_group_size, given._n_microbatches, given.num_stages = p, m, 2 * p
    passes = schedule(name, p, m, 2)
    for stage in range(p):
        told: list[Pass] = []
        for action in given._calculate_single_rank_operations(stage):
            for one in (action.sub_actions or [action]) if action else ():
                kinds = {"F": "F", "I": "B", "W": "W", "B": "BW"}[one.computation_type.value]
                chunk = int(one.stage_index != stage)
                told += [Pass(each, one.microbatch_index, chunk) for each in kinds]
        assert list(passes[stage]) == [one for one in told if one.micro_batch < m]


def test_zb_v_has_no_bubble_where_passes_take_equally_long():
    for p, m in ((2, 4), (4, 8), (8, 16)):  # arXiv 2401.10241, section 6
        played = play(schedule("zb-v", p, m, 2), dict.fromkeys("FBW", 1.0), chunks=2, name="zb-v")
        for stage in played.stages:
            assert stage[-1][2] - stage[0][1] == pytest.approx(3 * m)


@pytest.mark.parametrize(("stages", "batches"), [(2, 1), (4, 3), (4, 7), (8, 9)])
@pytest.mark.parametrize("name", ["zb-v", "dualpipe-v"])
def test_v_schedules_of_few_micro_batches_end_and_lose_no_pass(name, stages, batches):
    every = {Pass(kind, batch, chunk) for kind in "FBW" for batch in range(batches)
             for chunk in (0, 1)}  # fmt: skip
    passes = schedule(name, stages, batches, 2)
    assert all(set(one) == every and len(one) == len(every) for one in passes)
    assert play(passes, dict.fromkeys("FBW", 1.0), chunks=2, name=name).seconds >= 3 * batches


@pytest.mark.parametrize(("name", "beyond"), [("zb-v", 0), ("dualpipe-v", 1)])
@pytest.mark.parametrize(("stages", "batches"), [(2, 4), (4, 8), (4, 17)])
def test_v_schedules_have_half_the_bubble_of_zero_bubble(name, beyond, stages, batches):
    seconds = {"F": 1.0, "B": 1.0, "W": 1.0}
    passes = schedule(name, stages, batches, 2)
    every = {(kind, batch, chunk) for kind in "FBW" for batch in range(batches) for chunk in (0, 1)}
    assert all(set(one) == every and len(one) == len(every) for one in passes)
    played = play(passes, seconds, chunks=2, name=name)
    straight = play(schedule("zero-bubble", stages, batches), seconds)
    idle = [one.seconds - 3 * batches for one in (played, straight)]
    assert idle == [(stages - 1) / 2, stages - 1]
    # Twice as many chunks, each of half a stage: what 1f1b keeps on its first stage.
    for stage in range(stages):
        assert in_flight(name, stages, batches, 2, stage) == 2 * stages + beyond


@pytest.mark.parametrize(
    "name", ["gpipe", "1f1b", "vpp2 interleaved", "zero-bubble", "zb-v", "dualpipe-v"]
)
@pytest.mark.parametrize(("stages", "layers"), [(2, 8), (4, 8), (4, 14)])
def test_activations_are_what_counting_through_the_passes_says(name, stages, layers):
    """Logits go with the gradients of activations (B), all else with the last backward pass."""
    model = Transformer("small", layers, 64, 8, 4096, 64, tied=False).shape
    layout = Layout.parse(f"pp{stages} {name} mb2 acc{3 * stages}")
    mixed = get_precision("mixed")
    logits = 2 * 64 * 4096 * mixed.logit
    passes = schedule(layout.schedule, stages, 3 * stages, layout.vpp)
    for number, held in enumerate(pipeline_stages(model, stages, layout.vpp, layout.schedule)):
        last = "W" if SCHEDULES[layout.schedule].splits else "B"
        now = peak = 0.0
        for one in passes[number]:
            each = {layer.name: n * kept_bytes(layer, layout, mixed) for layer, n in
                    held.chunks[one.chunk]}  # fmt: skip
            early = logits if "head" in each and last == "W" else 0.0
            gone = {"B": early, last: sum(each.values()) - early}
            now += sum(each.values()) if one.kind == "F" else -gone[one.kind]
            peak = max(peak, now)
        assert memory(model, layout, stage=number).activations == pytest.approx(peak)


@pytest.mark.parametrize("sequence", ["", " sp"])
def test_context_parallelism_divides_what_other_axes_exchange_of_activations(sequence):
    model = Transformer("small", 8, 64, 8, 512, 64, tied=False).shape

    def bytes_of(text):
        found = exchanges(model, Layout.parse(text + sequence), stage=0)
        return {
            (one.axis, one.what, one.when, one.primitive): one.bytes
            for one in found
            if one.axis in ("tp", "pp") and one.when != "update"
        }

    whole, parts = bytes_of("tp2 pp2 acc4"), bytes_of("tp2 pp2 cp4 acc4")
    assert {axis for axis, *_ in whole} == {"tp", "pp"}
    assert parts == {key: size / 4 for key, size in whole.items()}


def test_a_v_has_both_ends_of_the_model_on_its_first_stage():
    model = Transformer("small", 8, 64, 8, 512, 64, tied=True).shape
    layout = Layout.parse("pp2 zb-v acc4")
    assert (layout.vpp, Layout.parse(str(layout))) == (2, layout)
    first, last = pipeline_stages(model, 2, 2, "zb-v")
    assert [layer.name for layer, _ in first.layers] == ["embedding", "block", "block", "head"]
    assert [count for _, count in last.layers] == [2, 2]
    kinds = {(one.what, one.when) for one in exchanges(model, layout)}
    assert ("tied embedding", "update") not in kinds
    # Two boundaries between stages, each crossed once a micro batch; the turn is on one stage.
    sent = [one for stage in (0, 1) for one in exchanges(model, layout, stage=stage)]
    assert sum(one.times for one in sent if one.axis == "pp") == 4 * 4
    network = Star(2).network(bandwidth=1e15)
    line = play_iteration(model, layout, network, 1e12)
    zero = play_iteration(model, Layout.parse("pp2 zero-bubble acc4"), network, 1e12)
    assert parts_of(line)["computation"] == pytest.approx(parts_of(zero)["computation"])

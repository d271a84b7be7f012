"""Pipeline schedules: complete, possible, with the bubbles and the memory that papers state."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddlnb.errors import InputError
from ddlnb.parallelism.schedules import Pass, in_flight, most_in_flight, play, schedule

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

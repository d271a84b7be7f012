"""Interleaved pipelines in the search: what is offered, what it costs, what is refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ddlnb.errors import InputError
from ddlnb.parallelism.forecast.cases import Cases
from ddlnb.parallelism.forecast.forecast import micro_batches_kept
from ddlnb.parallelism.forecast.frameworks import FRAMEWORKS, saved_fit
from ddlnb.parallelism.forecast.layouts import Ranking, chunk_degrees, scale
from ddlnb.parallelism.forecast.step import passes_beside, step
from ddlnb.parallelism.layout import Layout
from ddlnb.parallelism.schedules import most_in_flight, play, schedule

MODEL, LAYERS, GPUS, BATCH = "llama3-70b", 80, 256, 512


@pytest.fixture(scope="module")
def ranking() -> Ranking:
    return scale(MODEL, "H100", GPUS // 8, framework="nemo", global_batch=BATCH)


@pytest.fixture(scope="module")
def plain() -> Ranking:
    return scale(MODEL, "H100", GPUS // 8, framework="nemo", global_batch=BATCH, vpp=1)


def chunked(ranking: Ranking) -> Cases:
    """Return the interleaved cases of a ranking."""
    cases = ranking.outlook.cases
    return cases.select(np.flatnonzero(cases.vpp > 1))


def test_chunks_divide_the_layers_of_a_stage_and_stages_the_micro_batches(
    ranking: Ranking,
) -> None:
    cases = chunked(ranking)
    assert set(cases.vpp) == {float(v) for v in range(2, 41) if 40 % v == 0}
    assert (LAYERS % (cases.pp * cases.vpp) == 0).all()
    assert (cases.micro_batches % cases.pp == 0).all()
    assert (cases.pp > 1).all()


def test_every_interleaved_layout_can_be_played_and_says_its_chunks(ranking: Ranking) -> None:
    """`Layout` and `schedule` refuse what Megatron-LM would refuse; text and layout are one."""
    which = np.flatnonzero(ranking.outlook.cases.vpp > 1)
    for index in which[:: len(which) // 20]:
        layout = ranking.layout(index)
        assert (layout.ranks, layout.samples) == (GPUS, BATCH)
        assert f"vpp{layout.vpp}" in str(layout)
        assert Layout.parse(str(layout)) == layout
        schedule(layout.schedule, layout.pp, layout.micro_batches, layout.vpp)


def test_one_chunk_is_forecast_as_if_no_others_were_looked_at(
    ranking: Ranking, plain: Ranking
) -> None:
    which = np.flatnonzero(ranking.outlook.cases.vpp == 1)
    assert len(which) == len(plain.outlook.cases)
    for name in ("seconds", "low", "high", "most_gib", "fits"):
        found, alone = getattr(ranking.outlook, name)[which], getattr(plain.outlook, name)
        assert (found == alone).all()


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_only_frameworks_that_interleave_are_offered_chunks(framework: str) -> None:
    able = FRAMEWORKS[framework].interleaves
    found = scale("llama3-8b", "H100", 4, framework=framework)
    assert (found.outlook.cases.vpp > 1).any() == able == (framework in ("megatron", "nemo"))
    if able:
        gpipe = scale("llama3-8b", "H100", 4, framework=framework, schedule="gpipe").outlook.cases
        assert (set(gpipe.vpp), set(gpipe.schedule)) == ({1}, {"gpipe"})


def test_chunks_divide_the_bubble(ranking: Ranking) -> None:
    """Of p equal stages, m micro batches and v chunks (p - 1) / (v m + p - 1) is bubble."""
    cases = replace(chunked(ranking), vocab=np.full(len(chunked(ranking)), 1e-9))
    found = step(cases, saved_fit())
    p, m, v = cases.pp, cases.micro_batches, cases.vpp
    busy = found.compute + found.tensor
    share = found.bubble / (found.bubble + busy)
    # A head without words still starts one kernel's worth on the last stage.
    assert share == pytest.approx((p - 1) / (v * m + p - 1), rel=0.02)


def test_more_chunks_wait_for_more_transfers_unless_they_are_beside_others(
    ranking: Ranking,
) -> None:
    cases = chunked(ranking)
    old = replace(cases, framework=np.full(len(cases), "megatron"))
    one = step(replace(old, vpp=np.ones(len(cases))), saved_fit()).transfers
    assert step(old, saved_fit()).transfers == pytest.approx(cases.vpp * one)
    single = replace(cases, micro_batches=np.ones(len(cases)))
    beside = step(cases, saved_fit()).transfers
    assert beside == pytest.approx(step(single, saved_fit()).transfers)
    assert (beside < one).all()


@pytest.mark.parametrize(("pp", "rounds", "chunks"), [(4, 8, 1), (4, 4, 3), (8, 16, 2), (2, 6, 4)])
def test_what_is_beside_exchanges_is_what_follows_when_the_schedule_is_played(
    ranking: Ranking, pp: int, rounds: int, chunks: int
) -> None:
    """From the start of the last pass of the chunk that is ready first to the end of the step."""
    numbers = {"pp": pp, "micro_batches": rounds, "vpp": chunks}
    columns = {name: np.array([float(value)]) for name, value in numbers.items()}
    one = replace(chunked(ranking).select(np.array([0])), **columns)
    name = "interleaved" if chunks > 1 else "1f1b"
    played = play(schedule(name, pp, rounds, chunks), {"F": 1.0, "B": 2.0}, chunks=chunks)
    starts = [
        start
        for operation, start, _ in played.stages[0]
        if operation.kind == "B" and operation.chunk == chunks - 1
    ]
    assert passes_beside(one)[0] * 2.0 == pytest.approx(played.seconds - max(starts))


def test_the_number_of_layouts_stays_bounded() -> None:
    """16,384 GPUs: no more than the divisors of a stage's layers times as many layouts."""
    asked = {"nodes": 2048, "framework": "nemo", "global_batch": 16384}
    found, plain = scale(MODEL, **asked), scale(MODEL, **asked, vpp=1)
    most = max(len(chunk_degrees(LAYERS, pp, pp)) for pp in range(2, 65))
    assert len(plain.outlook.cases) < len(found.outlook.cases) < most * len(plain.outlook.cases)
    assert len(found.outlook.cases) < 20_000


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"vpp": 0}, "vpp 0 must be a whole number"),
        ({"vpp": 3}, "vpp 3 divides the 32 layers of llama3-8b in no layout on 32 GPUs .* "
                     "use one of 1, 2, 4, 8, 16$"),
        ({"vpp": 2, "framework": "nanotron"},
         "vpp 2: nanotron runs no interleaved pipelines; use vpp 1, or one of the frameworks nemo, "
         "megatron"),
        ({"vpp": 2, "schedule": "gpipe"}, "the schedule gpipe has one chunk per stage; use vpp 1"),
    ],
)  # fmt: skip
def test_chunks_that_cannot_be_are_refused_with_those_that_can(asked: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        scale("llama3-8b", **({"nodes": 4, "framework": "nemo"} | asked))


def test_what_is_kept_is_what_schedules_keep_when_they_are_played(ranking: Ranking) -> None:
    """Of every stage: passes are counted, forward ones up and backward ones down."""
    cases = ranking.outlook.cases
    kinds = np.stack([cases.pp, cases.micro_batches, cases.vpp], axis=1)
    _, which = np.unique(kinds, axis=0, return_index=True)
    few = which[(cases.pp[which] <= 8) & (cases.micro_batches[which] <= 32)]
    assert (cases.vpp[few] > 1).sum() > 20
    for index in few:
        one, pp = cases.select(np.array([index])), int(cases.pp[index])
        v, rounds = int(cases.vpp[index]), int(cases.micro_batches[index])
        played = schedule("interleaved" if v > 1 else "1f1b", pp, rounds, v)
        counted = [most_in_flight(passes) / v for passes in played]
        assert micro_batches_kept(one, np.arange(pp))[0] == pytest.approx(counted)

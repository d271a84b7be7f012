"""The search: all that divides, the fastest first, with chunks where they can be."""

from dataclasses import replace

import numpy as np
import pytest

from ddlnb.errors import InputError, UnknownName
from ddlnb.parallelism.config import get_shape
from ddlnb.parallelism.forecast.cases import Cases
from ddlnb.parallelism.forecast.exchanges import (
    passes_beside,
)
from ddlnb.parallelism.forecast.forecast import micro_batches_kept
from ddlnb.parallelism.forecast.frameworks import FRAMEWORKS, saved_fit
from ddlnb.parallelism.forecast.layouts import Ranking, chunk_degrees, ranked, scale
from ddlnb.parallelism.forecast.question import LayoutQuestion, batch_for
from ddlnb.parallelism.forecast.step import (
    step,
)
from ddlnb.parallelism.layout import Layout
from ddlnb.parallelism.schedules import most_in_flight, play, schedule

MODEL, LAYERS, GPUS, BATCH = "llama3-70b", 80, 256, 512


@pytest.fixture(scope="module")
def ranking() -> Ranking:
    return scale(MODEL, "H100", GPUS // 8, framework="nemo", global_batch=BATCH)


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


def test_one_chunk_is_forecast_as_if_no_others_were_looked_at(ranking: Ranking) -> None:
    plain = scale(MODEL, "H100", GPUS // 8, framework="nemo", global_batch=BATCH, vpp=1)
    which = np.flatnonzero(ranking.outlook.cases.vpp == 1)
    assert len(which) == len(plain.outlook.cases)
    for name in ("seconds", "low", "high", "most_gib", "fits"):
        found, alone = getattr(ranking.outlook, name)[which], getattr(plain.outlook, name)
        assert (found == alone).all()


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_only_frameworks_that_interleave_are_offered_chunks(framework: str) -> None:
    able = FRAMEWORKS[framework].interleaves
    found = scale("llama3-8b", "H100", 4, framework=framework)
    assert (
        (found.outlook.cases.vpp > 1).any()
        == able
        == (framework in ("megatron", "nemo", "fsdp-compiled"))
    )
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
         "fsdp-compiled, megatron"),
        ({"vpp": 2, "schedule": "gpipe"}, "the schedule gpipe has one chunk per stage; use vpp 1"),
        ({"cp": 64}, "cp 64 must divide the sequence 8192 and the 32 GPUs"),
    ],
)  # fmt: skip
def test_what_divides_nothing_is_refused_with_what_can(asked: dict, message: str) -> None:
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


def test_layouts_use_all_gpus_and_the_whole_batch(ranking: Ranking) -> None:
    for index in ranking.order:
        layout = ranking.layout(index)
        assert (layout.ranks, layout.samples) == (GPUS, BATCH)


def test_the_fastest_comes_first_and_one_layout_stands_for_a_split(ranking: Ranking) -> None:
    rows = ranking.rows(100)
    rates = [row["tokens_per_s_per_gpu"] for row in rows]
    assert rates == sorted(rates, reverse=True)
    splits = [(one.tp, one.pp) for one in map(ranking.layout, ranking.best_of_splits())]
    assert len(splits) == len(set(splits)) == len(rows)


def test_the_reason_is_the_part_of_the_step_that_grows_most(ranking: Ranking) -> None:
    best = ranking.best_of_splits()
    for row, better, worse in zip(ranking.rows(100)[1:], best, best[1:], strict=False):
        more = {
            name: seconds - ranking.parts(better)[name]
            for name, seconds in ranking.parts(worse).items()
        }
        assert row["loses_by"].endswith(f"+{max(more.values()):.3g} s")
        assert sum(more.values()) == pytest.approx(
            ranking.outlook.seconds[worse] - ranking.outlook.seconds[better]
        )


def test_what_does_not_fit_is_not_ranked(ranking: Ranking) -> None:
    assert not ranking.outlook.fits.all()
    assert ranking.outlook.fits[ranking.order].all()


def test_one_gpu_has_nothing_to_exchange() -> None:
    found = scale("llama3-1b", "H100", nodes=1, gpus_per_node=1, sequence=4096)
    step = found.outlook.step
    for seconds in (step.bubble, step.transfers, step.reduction, step.slow):
        assert np.allclose(seconds, 0)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"nodes": 0}, "nodes 0 must be a whole number"),
        ({"model": "llama3-405b", "nodes": 2}, "fits on 16 x H100-SXM: the least needs"),
        ({"global_batch": 7, "nodes": 512, "framework": "fsdp"}, "use a multiple of 4096"),
        ({"global_batch": 4 * 1024**2}, "at most 1,000,000 sequences of a step; is it a number of"),
        ({"schedule": "interleaved"}, "unknown schedule of the search 'interleaved'"),
        ({"framework": "jax"}, "unknown framework 'jax'"),
        ({"precision": "fp7"}, "unknown precision of H100-SXM 'fp7'"),
        ({"batch": 256}, r"unknown argument 'batch'; .* \(did you mean 'global_batch'"),
        ({"model": "lama3-8b"}, "did you mean 'llama3-8b'"),
    ],
)
def test_what_cannot_be_is_said_with_what_can(asked: dict, message: str) -> None:
    with pytest.raises((InputError, UnknownName), match=message):
        scale(**({"model": "llama3-8b"} | asked))


def test_learned_positions_end_where_they_were_learned() -> None:
    shape = replace(get_shape("llama3-1b"), learned_positions=True, positions=2050)
    assert LayoutQuestion(shape, "H100", 1, sequence=2048).sequence == 2048
    with pytest.raises(InputError, match=r"sequence 4,096: llama3-1b has learned 2,050 positions"):
        LayoutQuestion(shape, "H100", 1, sequence=4096)


def test_schedule_and_overlap_are_asked_for_by_name() -> None:
    asked = {"gpu": "H100", "nodes": 8, "sequence": 4096, "framework": "nanotron"}
    usual, zero = scale("llama3-70b", **asked), scale("llama3-70b", **asked, schedule="zero-bubble")
    staged = zero.outlook.cases.pp > 1
    assert (zero.outlook.step.seconds[staged] < usual.outlook.step.seconds[staged]).all()
    assert "zero-bubble" in str(zero.layout(int(np.flatnonzero(staged)[0])))
    beside = scale("llama3-70b", **asked, overlap=True)
    assert (beside.outlook.step.reduction <= usual.outlook.step.reduction).all()


def test_a_question_that_is_changed_is_checked_again() -> None:
    asked = LayoutQuestion("llama3-8b", nodes=4, framework="nemo")
    assert replace(asked, vpp=2).interleaves
    with pytest.raises(InputError, match="nodes 0 must be a whole number"):
        replace(asked, nodes=0)


NODES = (12, 48, 192, 576)
PUBLISHED = 0.47, 0.42  # shares of the peak on the least and the most (Megatron-Core, readme 2024)


def largest(nodes: int, vpp: int | None = None) -> Ranking:
    """Return the layouts of GPT-3 on so many nodes, with NeMo's ways."""
    return scale("gpt3-175b", "H100", nodes, framework="nemo", global_batch=1152, vpp=vpp)


@pytest.fixture(scope="module")
def found() -> list[Ranking]:
    return [largest(nodes) for nodes in NODES]


@pytest.mark.item("D10", how="simulated")
def test_the_share_of_the_peak_falls_as_gpus_are_added_at_a_constant_batch(
    found: list[Ranking],
) -> None:
    """GPT-3 on 96 to 4608 H100, 1152 sequences: fewer micro batches, more bubble and reduction.

    On the fewest GPUs less fits in memory: their best layout is no better than the next ones'.
    """
    shares = [one.rows(1)[0]["mfu"] for one in found]
    assert shares[1:] == sorted(shares[1:], reverse=True)
    assert shares[1] < 1.02 * shares[0]
    assert shares[-1] < 0.85 * shares[0]
    cases = [one.outlook.cases.select(one.order[:1]) for one in found]
    assert cases[0].micro_batches / cases[0].pp > cases[-1].micro_batches / cases[-1].pp
    waits = [share(one, "bubble", "reduction") for one in found]
    assert waits[0] < waits[-1]


@pytest.mark.item("D10", how="simulated")
def test_interleaved_stages_make_up_for_a_part_of_it(found: list[Ranking]) -> None:
    """Most where a replica has few micro batches per stage; the published ends are in reach."""
    plain = [largest(nodes, vpp=1) for nodes in (NODES[0], NODES[-1])]
    gains = [
        one.rows(1)[0]["mfu"] / alone.rows(1)[0]["mfu"]
        for one, alone in zip((found[0], found[-1]), plain, strict=True)
    ]
    assert 1 < gains[0] < 1.05 < gains[1]
    assert share(found[-1], "bubble") < share(plain[-1], "bubble")
    for ranking, published in zip((found[0], found[-1]), PUBLISHED, strict=True):
        row = ranking.rows(1)[0]
        low, high = (row["mfu"] * row[end] / row["tokens_per_s_per_gpu"] for end in ("low", "high"))
        assert low < published < high


def share(ranking: Ranking, *names: str) -> float:
    """Return the share of a step that goes to these parts, in the best layout."""
    parts = ranking.parts(int(ranking.order[0]))
    return sum(parts[name] for name in names) / sum(parts.values())


def test_the_usual_batch_is_one_that_the_gpus_can_share_out():
    """A ninth node is no reason for pipelines of nine stages, nor a rack of 72 GPUs."""
    eight, nine = (scale("llama3-8b", "H100", nodes=nodes).rows(1)[0] for nodes in (8, 9))
    assert 9 * nine["tokens_per_s_per_gpu"] > 8.5 * eight["tokens_per_s_per_gpu"]
    assert batch_for(1031, 512) == 1031  # a prime
    assert batch_for(10**12, 512) == 512  # and nobody waits for all divisors


def test_embedding_and_head_count_as_layers_where_that_makes_stages_equal():
    asked = LayoutQuestion(
        "llama3-405b", "H100", 1024, framework="nemo", sequence=8192, global_batch=2048
    )
    found = [row["layout"] for row in ranked(asked).rows(3)]
    assert any("vpp" in layout for layout in found)


@pytest.mark.parametrize(("model", "ep"), [("qwen3-30b-a3b", 3), ("llama3-8b", 2)])
def test_experts_that_cannot_be_shared_out_are_the_reason(model, ep):
    with pytest.raises(InputError, match=f"ep {ep} shares out the .* experts of {model} in no"):
        scale(model, "H100", nodes=2, ep=ep)

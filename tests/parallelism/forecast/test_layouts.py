"""The search: everything that divides, the fastest first, and a reason for each step down."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ddlnb.errors import InputError, UnknownName
from ddlnb.parallelism.forecast.layouts import Ranking, scale
from ddlnb.parallelism.forecast.question import LayoutQuestion
from ddlnb.parallelism.model import SHAPES


@pytest.fixture(scope="module")
def ranking() -> Ranking:
    return scale("llama3-8b", "H100", nodes=8, sequence=4096, global_batch=256)


def test_layouts_use_all_gpus_and_the_whole_batch(ranking: Ranking) -> None:
    for index in ranking.order:
        layout = ranking.layout(index)
        assert (layout.ranks, layout.samples) == (64, 256)


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


def test_schedule_and_overlap_are_asked_for_by_name() -> None:
    asked = {"gpu": "H100", "nodes": 8, "sequence": 4096}
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
    with pytest.raises(InputError, match="nanotron runs no interleaved pipelines"):
        replace(asked, framework="nanotron", vpp=2)


@pytest.mark.parametrize(
    ("name", "billions"), [("llama3-8b", 8.03), ("llama3-70b", 70.6), ("llama3-405b", 405.9)]
)
def test_shapes_have_the_parameters_that_their_names_say(name: str, billions: float) -> None:
    assert SHAPES[name].shape.parameters / 1e9 == pytest.approx(billions, rel=0.005)

"""What a row, or a search, leaves open is a mixture: wide, said, and overruled by memory."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ddlnb.errors import InputError
from ddlnb.parallelism.forecast import fit
from ddlnb.parallelism.forecast.cases import FULL, NONE
from ddlnb.parallelism.forecast.frameworks import FRAMEWORKS, framework_in, saved_fit
from ddlnb.parallelism.forecast.layouts import Ranking, ranked, ranking_of
from ddlnb.parallelism.forecast.mixture import mixed
from ddlnb.parallelism.forecast.published import open_runs
from ddlnb.parallelism.forecast.question import LayoutQuestion
from ddlnb.parallelism.forecast.row import SPLITTING, Row
from ddlnb.parallelism.forecast.table import alternatives, forecast_table, read_open
from tests.parallelism.forecast.tables import RUN, write_table

GPT = {"model": "gpt", "params_b": "", "framework": "Megatron-LM", "network": "8x400GbIB"}


def row(**cells: str) -> Row:
    return Row(2, RUN | GPT | cells)


def width(found: Row) -> float:
    of = mixed(read_open([alternatives(found)]))
    return float(np.log(of.high / of.low)[0])


@pytest.mark.parametrize(
    ("words", "month", "name"),
    [
        ("Megatron-DeepSpeed / other", "2022", "megatron-deepspeed"),
        ("Megatron-Core / Megatron-Bridge", "2025-09", "nemo"),
        ("Megatron-LM", "2021-04", "megatron"),
        ("Megatron-LM", "", "megatron"),
        ("Megatron-LM", "2025-01", "nemo"),
        ("Megatron-LM core 0.9", "", "nemo"),
        ("PyTorch FSDP1 + compile", "", "fsdp-compiled"),
        ("Composer + PyTorch FSDP (MPT)", "", "fsdp"),
        ("InternEvo", "", "internevo"),
        ("JAX", "", ""),
    ],
)
def test_words_and_months_name_a_framework(words: str, month: str, name: str) -> None:
    assert framework_in(words, month) == name


def test_an_unknown_framework_is_wider_than_each_that_it_may_be_and_is_said(tmp_path: Path) -> None:
    for gpu, names in (("H100", SPLITTING), ("A100", ("nemo", "megatron"))):
        known = [width(row(framework=name, gpu=gpu, source_date="2021")) for name in names]
        assert width(row(framework="JAX", gpu=gpu)) > max(known)
    said: list[str] = []
    forecast_table(write_table(tmp_path / "runs.csv", {"framework": "JAX"}), say=said.append)
    assert any("a known framework (JAX)" in line and "mixture" in line for line in said)


def test_recomputation_that_is_not_said_is_what_fits() -> None:
    small, large = (
        row(seq_len="1024"),
        row(layers="64", hidden="8192", ffn="32768", micro_batch="2"),
    )
    for one, again in ((small, NONE), (large, FULL)):
        asked = read_open([alternatives(one)])
        found = mixed(asked)
        assert asked.cases.recomputation[found.likeliest[0]] == again
    assert width(row(activation_checkpointing="none")) < width(row())


def test_gpus_that_nvlink_joins_are_as_one_node() -> None:
    rack = {"gpu": "GB200", "gpus_per_node": "4", "num_gpus": "64", "tp": "16", "dp": "2"}
    joined, apart = (row(**rack, nvlink_domain=domain) for domain in ("72", "4"))
    found = mixed(read_open([alternatives(joined), alternatives(apart)]))
    assert found.outlook.cases.gpus_per_node[found.likeliest].tolist() == [64, 4]
    assert found.tokens_per_s_per_gpu[0] > 1.2 * found.tokens_per_s_per_gpu[1]


def test_hardly_a_run_that_ran_is_refused() -> None:
    runs, unread = open_runs()
    chances = np.concatenate([mixed(one.opened).chance_of_fit for one in runs.values()])
    assert (chances > 0.05).mean() > 0.99
    assert all("row " in line and "column " in line for line in unread)


ASKED = LayoutQuestion("llama3-8b", "A100", 8)  # of no framework


@pytest.fixture(scope="module")
def ranking() -> Ranking:
    return ranked(ASKED)


def test_a_layout_has_the_mean_throughput_of_runs_in_the_frameworks_that_run_it(
    ranking: Ranking,
) -> None:
    for index, row in zip(ranking.best_of_splits(), ranking.rows(), strict=False):
        names = ranking.frameworks(int(index))
        alone = [ranking_of(replace(ASKED, framework=one), ranking.layout(index)) for one in names]
        each = [one.outlook.each for one in alone if one is not None]
        assert len(names) > 1  # what a single one runs is no default
        assert {FRAMEWORKS[name].zero == 3 for name in names} == {"zero3" in row["layout"]}
        runs = np.mean(
            [
                (1 - one.chance) / one.step.seconds
                + one.chance / (one.step.seconds + one.step.slow)
                for one in each
            ]
        )
        assert 1 / row["seconds"] == pytest.approx(runs)
        assert sum(ranking.parts(int(index)).values()) == pytest.approx(row["seconds"])
        assert row["memory_gib"] == max(one.most_gib[0] for one in each)
        assert all(one.fits[0] for one in each)
        assert min(one.low[0] for one in each) <= row["low"] <= max(one.low[0] for one in each)


def test_a_draw_is_of_one_framework_for_all_layouts_and_each_has_its_share(
    ranking: Ranking, monkeypatch: pytest.MonkeyPatch
) -> None:
    which = [one for one in ranking.best_of_splits() if len(ranking.frameworks(one)) == 3][:2]
    monkeypatch.setattr(fit, "drawn_factors", lambda draws, rng: {})
    sure = dict.fromkeys(saved_fit().spread, 1e-9)
    drawn = fit.drawn_seconds(ranking.outlook, which, 900, fitted=replace(saved_fit(), spread=sure))
    each = [list(ranking.frameworks(one).values()) for one in which]
    rates = ASKED.tokens / ASKED.gpus / drawn.T
    meant = [np.abs(np.subtract.outer(a, b)).argmin(1) for a, b in zip(rates, each, strict=True)]
    assert meant[0].tolist() == meant[1].tolist()
    assert np.bincount(meant[0]) / 900 == pytest.approx(np.full(3, 1 / 3), abs=0.05)


def test_what_a_framework_has_not_is_of_the_others() -> None:
    assert list(replace(ASKED, vpp=2).by_framework) == ["nemo", "fsdp-compiled"]
    scheduled = replace(ASKED, schedule="zero-bubble").by_framework
    assert scheduled["fsdp"].schedule == "1f1b"  # it has no pipelines: a schedule changes nothing
    assert scheduled["nemo"].schedule == "zero-bubble"
    assert ASKED.overlaps == all(one.overlaps for one in ASKED.by_framework.values())
    with pytest.raises(InputError, match="other bytes than the 2 of a parameter"):
        replace(ASKED, precision="fp32")
    with pytest.raises(InputError, match="fsdp has none"):
        replace(ASKED, framework="fsdp", schedule="zero-bubble")

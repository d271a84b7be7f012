"""A run of so many tokens: days follow from throughput and goodput, and the cheapest is in time."""

import math
from dataclasses import replace

import pytest

import ddlnb
from ddlnb.advice.run import Run
from ddlnb.advice.splits import PricedQuestion
from ddlnb.errors import InputError
from ddlnb.parallelism.goodput.failures import DAY

TOKENS = 2e12


@pytest.fixture(scope="module")
def asked():
    return PricedQuestion(
        "llama3-1b", "H100", nodes=2, sequence=4096, prices=ddlnb.Prices(gpu_hour=2.0)
    )


@pytest.fixture(scope="module")
def rows(asked):
    return Run(asked, asked.prices, TOKENS).rows


def test_days_at_this_throughput_and_goodput_are_those_tokens(asked, rows):
    for row in rows.to_dict("records"):
        ranking = replace(asked, nodes=row["gpus"] // asked.gpus_per_node).ranking
        rates = {one["layout"]: one["tokens_per_s_per_gpu"] for one in ranking.rows(10)}
        useful = row["days"] * DAY * row["goodput"]
        assert useful * row["gpus"] * rates[row["layout"]] == pytest.approx(TOKENS)
        assert row["cost"] == pytest.approx(2.0 * row["gpus"] * row["days"] * 24)
        assert row["megawatt_hours"] == pytest.approx(row["gpu_hours"] * asked.gpu.power / 1e6)


def test_the_question_s_own_nodes_come_first_and_others_follow(asked, rows):
    assert rows["layout"].iloc[0] == asked.ranking.rows(1)[0]["layout"]
    assert rows["gpus"].tolist() == [16, 16, 8, 32, 64]


def test_an_interval_is_wider_than_that_of_the_throughput_alone(asked, rows):
    first, rate = rows.iloc[0], asked.ranking.rows(1)[0]
    assert first["days"] / first["low"] > rate["high"] / rate["tokens_per_s_per_gpu"]
    assert first["high"] / first["days"] > rate["tokens_per_s_per_gpu"] / rate["low"]


def test_twice_the_tokens_take_twice_as_long_and_cost_twice_as_much(asked, rows):
    twice = Run(asked, asked.prices, 2 * TOKENS).rows
    for key in ("days", "low", "high", "gpu_hours", "cost", "megawatt_hours"):
        assert (twice[key] / rows[key]).tolist() == pytest.approx([2.0] * len(rows))


def test_the_cheapest_run_is_one_whose_interval_ends_in_time(asked, rows):
    within = rows["high"].median()
    said = Run(asked, asked.prices, TOKENS, within).sentences[-1]
    in_time = rows[rows["high"] <= within]
    assert 0 < len(in_time) < len(rows)
    cheapest = in_time.loc[in_time["cost"].idxmin()]
    assert f"has {cheapest['gpus']} GPUs as {cheapest['layout']}: " in said


@pytest.mark.thorough
def test_where_none_ends_in_time_the_quickest_is_named(asked, rows):
    said = Run(asked, asked.prices, TOKENS, 0.01).sentences[-1]
    assert said.startswith("None of these intervals ends within 0.01 days; 64 GPUs are the ")
    assert (
        len(Run(asked, asked.prices, TOKENS).sentences)
        == len(Run(asked, asked.prices, TOKENS, 1.0).sentences) - 1
    )


@pytest.mark.thorough
def test_one_day_is_one(asked, rows):
    said = Run(asked, asked.prices, TOKENS, 1.0).sentences[-1]
    assert "within 1 day;" in said or "within 1 day has" in said


def test_without_a_price_it_counts_gpu_hours_and_without_watts_no_energy(asked):
    unknown = replace(asked, prices=ddlnb.Prices(), gpu=replace(asked.gpu, power=0.0))
    run = Run(unknown, unknown.prices, TOKENS)
    assert run.rows["cost"].isna().all()
    assert "GPU hours; failures" in run.sentences[0]
    assert "MWh" not in " ".join(run.sentences)
    assert {row["MWh"] for row in run.table.rows} == {"-"}


@pytest.mark.parametrize("options", [{"tokens": "many"}, {"tokens": "2T", "within_days": math.nan}])
def test_what_is_no_number_of_tokens_or_days_is_refused(options):
    with pytest.raises(InputError, match=r"'many' is no number above 0|within_days nan must be"):
        ddlnb.advise_layouts("llama3-1b", "H100", nodes=1, sequence=4096, draws=0, **options)

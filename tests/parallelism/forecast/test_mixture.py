"""What a row leaves open is a mixture: wide, said, and overruled by memory."""

from pathlib import Path

import numpy as np
import pytest

from ddlnb.parallelism.forecast.cases import FULL, NONE
from ddlnb.parallelism.forecast.frameworks import framework_in
from ddlnb.parallelism.forecast.mixture import mixed
from ddlnb.parallelism.forecast.published import open_runs
from ddlnb.parallelism.forecast.table import Row, alternatives, forecast_table, read_open
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
    known = [width(row(framework=name)) for name in ("nemo", "fsdp", "megatron")]
    assert width(row(framework="JAX")) > max(known)
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

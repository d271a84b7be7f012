"""The one call about unlike GPUs: ranked by what fits, and in words that are true."""

from __future__ import annotations

import math

import pytest

import ddlnb
from ddlnb.errors import InputError
from ddlnb.parallelism.heterogeneous import Kind, gpu_kinds, unlike_ways
from ddlnb.units import GIB


def test_rows_are_those_of_all_ways_and_the_first_holds_its_states():
    found = ddlnb.unlike("llama3-8b", {"H100": 8, "A100": 8}, sequence=4096, samples=128)
    shape = ddlnb.get_shape("llama3-8b")
    assert len(found.rows) == 6
    fits = found.rows["fits"].tolist()
    assert fits == sorted(fits, reverse=True)
    assert found.rows["seconds"].iloc[0] == found.rows.loc[found.rows["fits"], "seconds"].min()
    data = found.rows.set_index("way").loc["equal shares"]
    assert data["states_gib"] == pytest.approx(16 * shape.shape.parameters / GIB)
    assert not data["fits"]  # 120 GiB of 80
    assert "Not held by all GPUs" in str(found)


def test_stages_hold_the_states_of_their_layers():
    """Together the stages hold all states; each is judged by the memory of its own GPU."""
    shape = ddlnb.get_shape("llama3-8b").shape
    kinds = gpu_kinds({"H100": 2, "A100": 2}, "bf16")
    way = {one.name: one for one in unlike_ways(shape, kinds, 32)}["pipeline by speed"]
    assert sum(way.shares) == len(shape.layers)
    assert 16 * shape.parameters / 4 <= way.states < 16 * shape.parameters
    tiny = (kinds[0], Kind("tiny", 2, kinds[1].speed, kinds[1].port, memory=1e9))
    lacking = {one.name: one for one in unlike_ways(shape, tiny, 32)}
    assert way.fits
    assert not lacking["pipeline, equal layers"].fits
    assert Kind("any", 1, 1e12, 1e9).memory == math.inf


def test_the_batch_is_by_default_one_that_divides():
    found = ddlnb.unlike("llama3-1b", {"H100": 3, "A100": 4})
    equal = found.rows.set_index("way").loc["equal shares", "shares"]
    count, each = (int(word) for word in equal.split(" x "))
    assert count == 7
    assert 0.9 < 7 * each * 8192 / (4 * 1024 * 1024) <= 1
    assert f"An iteration of {7 * each} samples" in str(found)


def test_more_gpus_than_blocks_have_no_pipeline_and_it_is_said():
    found = ddlnb.unlike("llama3-1b", {"H100": 16, "A100": 16})
    assert not found.rows["way"].str.startswith("pipeline").any()
    assert any("32 GPUs are more stages" in one for one in found.unknowns)


def test_a_model_that_nothing_holds_is_refused_with_the_least():
    with pytest.raises(InputError, match=r"no way holds the states .*ddlnb scale"):
        ddlnb.unlike("llama3-70b", {"H100": 4, "A100": 4}, samples=8, sequence=2048)

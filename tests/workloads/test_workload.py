"""Workloads and units."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ddlnb.errors import InputError, UnknownName
from ddlnb.units import bytes_from, show_bytes
from ddlnb.workloads.workload import Layer, Workload, read_profile
from tests.toy import TOY


def test_times_of_the_toy_add_up():
    assert TOY.ready_seconds == (1.0, 3.0, 6.0)
    assert TOY.compute_seconds == 9.0
    assert TOY.gradient_bytes == 520


def test_a_profile_survives_the_disk(tmp_path):
    (tmp_path / "toy.json").write_text(TOY.to_json())
    assert read_profile("toy", tmp_path) == TOY


def test_an_unknown_profile_is_answered_with_those_there_are(tmp_path):
    (tmp_path / "toy.json").write_text(TOY.to_json())
    with pytest.raises(UnknownName, match="did you mean 'toy'"):
        read_profile("toi", tmp_path)


def test_another_batch_takes_proportional_seconds_and_the_same_gradients():
    workload = read_profile("bert-large_b8_rtx2080ti")
    larger = workload.at_batch(128)
    assert larger.compute_seconds == pytest.approx(16 * workload.compute_seconds)
    assert larger.gradient_bytes == workload.gradient_bytes
    assert "times 16" in larger.source
    with pytest.raises(InputError, match="local_batch"):
        workload.at_batch(0)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"model": 1}', "nonsense"])
def test_a_file_that_is_no_profile_is_refused(text):
    with pytest.raises(InputError, match="not a workload profile"):
        Workload.from_json(text)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"local_batch": 0}, "batch 0"),
        ({"gradients": ()}, "no gradients"),
        ({"layers": TOY.layers[:2]}, "names layer 'c'"),
        ({"layers": (*TOY.layers, TOY.layers[0])}, "unique"),
        ({"layers": (Layer("a", -1.0), *TOY.layers[1:])}, "negative"),
    ],
)
def test_a_workload_that_cannot_be_is_refused(changes, told):
    with pytest.raises(InputError, match=told):
        replace(TOY, **changes)


@pytest.mark.parametrize("text", ["", "MB", "-1", "0", "1.5.2", "4 potatoes", "1e3", "0.1"])
def test_a_size_that_is_none_is_refused(text):
    with pytest.raises(InputError, match="size"):
        bytes_from(text)


def test_sizes_read_back():
    assert bytes_from("4MB") == 4_000_000
    assert show_bytes(4_096_000) == "4.1 MB"

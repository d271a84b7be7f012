"""Workloads and units."""

import json
from dataclasses import replace

import pytest

from ddlnb.errors import InputError, UnknownName
from ddlnb.files import PROFILES
from ddlnb.units import bytes_from, show_bytes
from ddlnb.workloads.kept_traces import kept_trace
from ddlnb.workloads.resolve import resolve
from ddlnb.workloads.roofline import estimate
from ddlnb.workloads.tracing import trace
from ddlnb.workloads.workload import Layer, Workload, read_profile
from tests.toy import TOY


def test_times_of_the_toy_add_up():
    assert TOY.ready_seconds == (1.0, 3.0, 6.0)
    assert TOY.compute_seconds == 9.0
    assert TOY.gradient_bytes == 520


def test_a_profile_survives_the_disk(tmp_path):
    (tmp_path / "toy.json").write_text(TOY.to_json())
    assert read_profile("toy", tmp_path) == TOY


def test_shapes_and_hardware_survive_the_disk():
    measured = replace(trace("small-conv", 4), hardware="cpu-1thread")
    text = measured.to_json()
    assert '"shape": [10, 512]\n' in text  # on one line
    assert Workload.from_json(text) == measured


def test_a_profile_of_an_earlier_edition_is_read_without_shapes_and_hardware():
    fields = json.loads(replace(trace("small-conv", 4), hardware="cpu-1thread").to_json())
    del fields["hardware"]
    for gradient in fields["gradients"]:
        del gradient["shape"]
    old = Workload.from_json(json.dumps(fields))
    assert old.hardware == ""
    assert {gradient.shape for gradient in old.gradients} == {None}
    assert old.structure == trace("small-conv", 4).structure


@pytest.mark.parametrize("name", sorted(path.stem for path in PROFILES.glob("*.json")))
def test_every_profile_of_data_has_shapes_and_the_hardware_of_its_name(name):
    kept = read_profile(name)
    assert name.endswith(f"_b{kept.local_batch}_{kept.hardware}")
    shapes = {gradient.name: gradient.shape for gradient in trace(kept.model).gradients}
    assert {gradient.name: gradient.shape for gradient in kept.gradients} == shapes


def test_scaled_seconds_are_of_the_hardware_that_is_named():
    ours = replace(TOY, hardware="cpu-1thread")
    assert ours.scaled(0.5, "half").hardware == "cpu-1thread"
    there = ours.scaled(0.01, "100 times as fast", hardware="a100")
    assert (there.hardware, there.compute_seconds) == ("a100", pytest.approx(0.09))


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


@pytest.mark.parametrize("name", ["resnet50", "bert-large"])
def test_the_work_of_another_batch_is_what_tracing_shows_of_it(name):
    grown, traced = kept_trace(name, 32).at_batch(64), kept_trace(name, 64)
    assert grown.flops == pytest.approx(traced.flops)
    for mine, theirs in zip(grown.layers, traced.layers, strict=True):
        assert mine.forward.launches == theirs.forward.launches
    mine, theirs = (estimate(one, "T4").compute_seconds for one in (grown, traced))
    assert mine == pytest.approx(theirs, rel=0.02)  # bytes of weights do not grow


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"model": 1}', "nonsense"])
def test_a_file_that_is_no_profile_is_refused(text):
    with pytest.raises(
        InputError,
        match=r"(is not JSON|workload profile the text cannot be read): .*; `ddlnb measure",
    ):
        Workload.from_json(text)


def test_a_file_that_is_no_profile_is_named_with_the_way_to_one(tmp_path):
    path = tmp_path / "odd.json"
    path.write_text('{"gradients": []}')
    said = r"odd.json' cannot be read: it lacks 'layers'; `ddlnb measure profile --n"
    with pytest.raises(InputError, match=said):
        resolve(str(path))


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


@pytest.mark.parametrize("text", ["", "MB", "-1", "0", "1.5.2", "4 potatoes", "1e3", "0.1", "8Mb"])
def test_a_size_that_is_none_is_refused(text):
    with pytest.raises(InputError, match="size"):
        bytes_from(text)


def test_sizes_read_back():
    assert bytes_from("4MB") == 4_000_000
    assert show_bytes(4_096_000) == "4.1 MB"

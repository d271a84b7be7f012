"""Measured and derived seconds: what must add up, and what must stay as it was."""

from dataclasses import replace
from time import perf_counter

import pytest
import torch

from ddlnb.errors import InputError, ModelError
from ddlnb.files import cores
from ddlnb.workloads.profiling import Iteration, measure, profile, with_medians, write_profile
from ddlnb.workloads.resolve import get_task
from ddlnb.workloads.roofline import from_throughput
from ddlnb.workloads.tracing import trace
from ddlnb.workloads.workload import read_profile
from tests.toy import mlp


@pytest.mark.parametrize("name", ["small-conv", "small-transformer"])
def test_measured_seconds_add_up_to_about_the_wall_time(name):
    task = get_task(name)
    module, workload = task.build(), trace(name, 8)
    measure(task, module, workload, 1)
    begin = perf_counter()
    iterations = measure(task, module, workload, 5)
    wall_seconds = perf_counter() - begin
    # The rest of the wall time draws batches; a busy machine stretches both alike.
    assert wall_seconds / 2 < sum(map(whole_seconds, iterations)) < wall_seconds


def whole_seconds(iteration):
    return sum(iteration.forward_seconds.values()) + sum(iteration.backward_seconds.values())


def test_profiles_have_the_traced_structure_and_positive_seconds():
    measured, traced = profile("small-conv", 8, iterations=3, warmup=1), trace("small-conv", 8)
    assert [replace(layer, forward_seconds=0.0) for layer in measured.layers] == list(traced.layers)
    assert [replace(gradient, backward_seconds=0.0) for gradient in measured.gradients] == list(
        traced.gradients
    )
    assert all(layer.forward_seconds > 0 for layer in measured.layers)
    assert all(gradient.backward_seconds > 0 for gradient in measured.gradients)
    assert measured.source.startswith("measured on ")
    assert measured.source.endswith("3 iterations")


def test_profiling_uses_the_asked_threads_and_puts_them_back():
    before = torch.get_num_threads()
    assert "1 thread," in profile("small-conv", 1, iterations=1, warmup=0, threads=1).source
    assert torch.get_num_threads() == before


def test_a_loss_that_is_no_number_is_not_profiled():
    broken = replace(mlp([4]), loss=lambda module, batch: module(batch[0]).mean() / 0.0)
    with pytest.raises(ModelError, match=r"loss of model 'mlp' is -?(inf|nan), so that nothing"):
        profile(broken, 4, iterations=1, warmup=0)


def test_measuring_leaves_no_hook_and_no_changed_value_behind():
    task = get_task("small-conv")
    module = task.build()
    values = [parameter.detach().clone() for parameter in module.parameters()]
    (iteration,) = measure(task, module, trace(task, 2), 1)
    assert all(map(torch.equal, module.parameters(), values))
    assert not any(layer._forward_pre_hooks for layer in module.modules())
    assert not any(weight._post_accumulate_grad_hooks for weight in module.parameters())
    assert list(iteration.forward_seconds) == [layer.name for layer in trace(task).layers]


def test_seconds_are_medians_over_iterations_in_one_order():
    traced = trace("small-conv")
    order = [gradient.name for gradient in traced.gradients]
    runs = [
        Iteration({"conv1": seconds}, dict.fromkeys(order, seconds)) for seconds in (1.0, 9.0, 2.0)
    ]
    workload = with_medians(traced, runs, "by hand")
    assert [layer.forward_seconds for layer in workload.layers[:2]] == [2.0, 0.0]
    assert workload.backward_seconds == 2.0 * len(order)
    with pytest.raises(ModelError, match="arrive in another order"):
        with_medians(traced, [*runs, Iteration({}, dict.fromkeys(order[::-1], 1.0))], "by hand")


@pytest.mark.parametrize("flops_per_byte", [0.0, 20.0])
def test_throughput_gives_the_iteration_time_and_shares_it_by_work(flops_per_byte):
    traced = trace("bert-large", 8)
    workload = from_throughput(traced, 8 / 0.163, "survey, A11", flops_per_byte)
    assert workload.compute_seconds == pytest.approx(0.163)
    forward = {
        one.name: one.forward_flops + flops_per_byte * one.forward_bytes for one in traced.layers
    }
    backward = {
        one.name: one.backward_flops + flops_per_byte * one.backward_bytes for one in traced.layers
    }
    work = sum(forward.values()) + sum(backward.values())
    for layer in workload.layers:
        assert layer.forward_seconds == pytest.approx(0.163 * forward[layer.name] / work)
        seconds = [one.backward_seconds for one in workload.gradients if one.layer == layer.name]
        assert sum(seconds) == pytest.approx(0.163 * backward[layer.name] / work)
        assert sum(seconds[1:]) == 0
    assert workload.source == "survey, A11"


def test_throughput_needs_flops_and_a_positive_rate():
    traced = trace("small-conv")
    with pytest.raises(InputError, match="must be a finite number above 0"):
        from_throughput(traced, 0, "nowhere")
    bare = replace(
        traced,
        layers=tuple(replace(layer, forward_flops=0, backward_flops=0) for layer in traced.layers),
    )
    with pytest.raises(InputError, match=r"no FLOPs.*trace\(\)"):
        from_throughput(bare, 10, "nowhere")


def test_written_profiles_read_back_equal_and_alone(tmp_path):
    workload = from_throughput(trace("small-conv", 4), 100, "made up")
    write_profile(workload, "small", tmp_path)
    write_profile(workload, "small", tmp_path)
    assert read_profile("small", tmp_path) == workload
    assert [path.name for path in tmp_path.iterdir()] == ["small.json"]
    with pytest.raises(InputError, match="plain file name"):
        write_profile(workload, "../small", tmp_path)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"iterations": 0}, "iterations 0"),
        ({"threads": 0}, "threads 0"),
        ({"threads": 100_000}, rf"threads 100000 .* give at most {cores()}"),
    ],
)
def test_settings_that_measure_nothing_or_end_the_process_are_refused(options, told):
    with pytest.raises(InputError, match=told):
        profile("small-conv", 1, **options)


@pytest.mark.parametrize(
    ("name", "tensors"),
    [
        ("small-conv_b64_cpu-1thread", 28),
        ("small-transformer_b16_cpu-1thread", 54),
        ("resnet50_b4_cpu-2threads", 161),
        ("bert-base_b4_cpu-2threads", 206),
        ("bert-large_b4_cpu-2threads", 398),
        ("bert-large_b8_rtx2080ti", 398),
    ],
)
def test_the_profiles_of_this_edition_have_the_structure_of_today(name, tensors):
    kept = read_profile(name)
    today = trace(kept.model, kept.local_batch)
    assert len(kept.gradients) == tensors
    # Nobody counted operations when these were kept.
    uncounted = {"forward_operations": 0.0, "backward_operations": 0.0}
    assert [replace(one, forward_seconds=0.0, **uncounted) for one in kept.layers] == [
        replace(one, **uncounted) for one in today.layers
    ]
    assert [replace(one, backward_seconds=0.0) for one in kept.gradients] == list(today.gradients)
    assert kept.forward_seconds > 0
    assert kept.backward_seconds > 0

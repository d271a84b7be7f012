"""The traced structure against what torch really does, on models made to be awkward."""

import gc
import time
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from ddlnb.errors import InputError, ModelError
from ddlnb.workloads.memory import require_memory_for_training
from ddlnb.workloads.profiling import profile
from ddlnb.workloads.resolve import get_task
from ddlnb.workloads.task import task
from ddlnb.workloads.tracing import trace
from ddlnb.workloads.workload import Workload, read_profile

WIDTH = 8


def draw(local_batch, seed):
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(local_batch, 5, WIDTH, generator=generator),)


def mean_square(module, batch):
    output = module(batch[0])
    return (output[0] if isinstance(output, tuple) else output).pow(2).mean()


def traced(module, loss=mean_square):
    return trace(task(module, batch=draw, loss=loss), 2)


def layers_of(workload):
    return {gradient.name: gradient.layer for gradient in workload.gradients}


def arrivals_on_cpu(own):
    """Names of the gradients in the order a real backward pass produces them."""
    module, order = own.build(), []
    for name, parameter in module.named_parameters():
        parameter.register_post_accumulate_grad_hook(lambda _, name=name: order.append(name))
    own.loss(module, own.batch(2, 0)).backward()
    return order


class Model(nn.Module):
    """Parts under their names, and what a forward pass makes of them and of the inputs."""

    def __init__(self, run, **parts):
        super().__init__()
        for name, part in parts.items():
            setattr(self, name, part)
        self.run = run

    def forward(self, *inputs, **named):
        return self.run(self, *inputs, **named)


def linear():
    return nn.Linear(WIDTH, WIDTH)


def tied(run=lambda model, inputs: model.second(model.first(inputs))):
    model = Model(run, first=linear(), second=linear())
    model.second.weight = model.first.weight
    return model


def attends():
    return Model(
        lambda model, inputs: model.out(model.attention(inputs, inputs, inputs)[0]),
        attention=nn.MultiheadAttention(WIDTH, 2, batch_first=True),
        out=linear(),
    )


def owns_parameters():
    """Reads parameters of its own in a list and through a view, and calls a submodule twice."""

    def run(model, inputs):
        # Looking at the shape is not reading: the layer of twice.weight stays "twice".
        assert model.twice.weight.shape[0] == WIDTH
        shifted = model.twice(model.twice(inputs)) + torch.stack([model.shifts[0]])
        return shifted @ model.weight.T

    shifts, weight = nn.ParameterList([torch.zeros(WIDTH)]), nn.Parameter(torch.ones(4, WIDTH))
    return Model(run, twice=linear(), shifts=shifts, weight=weight)


def doubles_if_positive(model, inputs):
    output = model.inner(inputs)
    return output * 2 if output.sum() > 0 else output


def asks_for_the_device(model, inputs):
    """Run where there are values, or tensors that say so."""
    heads = inputs.unflatten(-1, (2, 4)).transpose(1, 2)
    mixed = nn.functional.scaled_dot_product_attention(heads, heads, heads)
    if inputs.device.type == "meta":
        raise NotImplementedError("no kernel for meta tensors")
    return model.inner(mixed.transpose(1, 2).flatten(-2))


def sparse():
    rows = nn.Embedding(10, WIDTH, sparse=True)
    return Model(lambda model, inputs: model.rows(inputs.long().clamp(0, 9)), rows=rows)


def two_types():
    return Model(
        lambda model, inputs: model.narrow(model.wide(inputs).bfloat16()).float(),
        wide=linear(),
        narrow=linear().bfloat16(),
    )


def unused():
    return Model(lambda model, inputs: model.used(inputs), used=linear(), spare=linear())


def goes_twice(model, inputs):
    for _ in range(2):
        inputs = checkpoint(model.second, model.first(inputs), use_reentrant=True)
    return inputs


AWKWARD = {
    "tied": tied,
    "attention": attends,
    "owns parameters": owns_parameters,
    "encoder": lambda: nn.TransformerEncoderLayer(WIDTH, 2, 16, dropout=0.0, batch_first=True),
    "weight norm": lambda: nn.utils.parametrizations.weight_norm(nn.Linear(WIDTH, WIDTH)),
}


@pytest.mark.parametrize("name", ["small-conv", "small-transformer"])
def test_gradients_stand_in_the_order_a_real_backward_pass_produces_them(name):
    workload = trace(name)
    assert [gradient.name for gradient in workload.gradients] == arrivals_on_cpu(get_task(name))


@pytest.mark.parametrize("name", AWKWARD)
def test_awkward_models_are_traced_on_meta_in_the_order_of_a_real_run(name):
    own = task(AWKWARD[name](), batch=draw, loss=mean_square)
    workload = trace(own, 2)
    assert [gradient.name for gradient in workload.gradients] == arrivals_on_cpu(own)
    assert workload.source == "traced on the meta device"
    assert workload.compute_seconds == 0


@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")
def test_what_cannot_be_copied_is_traced_where_a_function_makes_it():
    def old():
        layers = [nn.Linear(WIDTH, WIDTH) for _ in range(2)]
        return nn.Sequential(nn.utils.weight_norm(layers[0]), nn.utils.spectral_norm(layers[1]))

    own = task(old, batch=draw, loss=mean_square)
    assert [one.name for one in trace(own, 2).gradients] == arrivals_on_cpu(own)


@pytest.mark.parametrize("name", AWKWARD)
def test_the_layer_is_entered_before_the_parameter_is_needed(name):
    """Poison each layer's gradients' parameters until its forward pre-hook restores them."""
    own = task(AWKWARD[name](), batch=draw, loss=mean_square)
    module, reference = own.build(), own.build()
    gates = layers_of(trace(own, 2))
    for parameter, layer in gates.items():
        late = dict(module.named_parameters())[parameter]
        value = dict(reference.named_parameters())[parameter]
        late.data.fill_(float("nan"))

        def restore(*_, late=late, value=value):
            late.data.copy_(value.data)

        module.get_submodule(layer).register_forward_pre_hook(restore, prepend=True)
    batch = own.batch(2, 0)
    assert torch.equal(own.loss(module, batch), own.loss(reference, batch))


@pytest.mark.parametrize(
    ("model", "tensors", "parameters", "forward_gflops", "backward_gflops"),
    [
        ("resnet50", 161, 25_557_032, 8.178, 16.121),
        ("bert-base", 206, 110_106_428, 14.100, 28.199),
        ("bert-large", 398, 336_226_108, 43.194, 86.389),
    ],
)
def test_the_survey_models_have_the_known_sizes_and_flops(
    model, tensors, parameters, forward_gflops, backward_gflops
):
    workload = trace(model)
    assert len(workload.gradients) == tensors
    assert workload.parameters == parameters
    forward = sum(layer.forward_flops for layer in workload.layers) / 1e9
    backward = sum(layer.backward_flops for layer in workload.layers) / 1e9
    assert forward == pytest.approx(forward_gflops, abs=5e-4)
    assert backward == pytest.approx(backward_gflops, abs=5e-4)


def test_flops_grow_with_the_batch_and_sit_where_the_work_is():
    one, eight = trace("small-conv", 1), trace("small-conv", 8)
    assert eight.flops == 8 * one.flops
    flops = {layer.name: layer.forward_flops for layer in one.layers}
    assert flops["conv2"] == 2 * 24 * 24 * 9 * 16 * 16
    assert flops["norm2"] == 0


def test_bytes_of_a_linear_layer_are_inputs_weights_and_outputs():
    """By hand: Y = X W of 2 x 5 rows; backward makes dW of X and dY, and needs no dX."""
    module = nn.Sequential(nn.Linear(WIDTH, 3, bias=False))
    (layer,) = traced(module).layers
    inputs, weights, outputs = 2 * 5 * WIDTH, WIDTH * 3, 2 * 5 * 3
    assert layer.forward_matrix_bytes == 4 * (inputs + weights + outputs)
    assert layer.backward_matrix_bytes == 4 * (inputs + outputs + weights)
    assert layer.forward_flops == 2 * 2 * 5 * WIDTH * 3


def test_operations_of_a_layer_are_what_a_host_hands_over():
    """By hand: a product in the forward pass, one for the weights' gradient in the backward."""
    module = nn.Sequential(nn.Linear(WIDTH, 3, bias=False))
    (one,) = traced(module).layers
    (two, _) = traced(nn.Sequential(*module, nn.Linear(3, 3, bias=False))).layers
    assert two.forward_operations == 1
    assert one.forward_operations > 1  # and the loss
    assert one.backward_operations >= 1


def test_profiles_have_operations_where_they_were_counted():
    counted = traced(nn.Sequential(nn.Linear(WIDTH, 3)))
    assert Workload.from_json(counted.to_json()) == counted
    kept = read_profile("bert-base_b64_rtx2080ti")
    assert "operations" not in kept.to_json()
    assert kept.layers[0].forward_operations == 0


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (tied, {"second.bias": "second", "first.bias": "first", "first.weight": "first"}),
        # The forward pass of this projection is never called.
        (attends, {"attention.out_proj.weight": "attention", "out.weight": "out"}),
        # What a parent reads belongs to the parent.
        (owns_parameters, {"weight": "", "shifts.0": "", "twice.weight": "twice"}),
    ],
)
def test_a_gradient_s_layer_is_the_module_that_reads_its_parameter(model, expected):
    layers = layers_of(traced(model()))
    assert layers.items() >= expected.items()
    assert "second.weight" not in layers  # tied parameters are one gradient


def test_recurrent_layers_are_traced_whole_though_their_order_depends_on_the_device():
    own = task(nn.LSTM(WIDTH, WIDTH, 2, batch_first=True), batch=draw, loss=mean_square)
    workload = trace(own, 2)
    assert workload.flops > 0
    assert set(layers_of(workload).values()) == {""}
    measured = profile(own, 2, iterations=1, warmup=0)
    assert [gradient.name for gradient in measured.gradients] == arrivals_on_cpu(own)
    assert set(layers_of(measured)) == set(layers_of(workload))


def test_frozen_parameters_are_left_out():
    module = unused()
    module.spare.requires_grad_(False)
    assert set(layers_of(traced(module))) == {"used.weight", "used.bias"}


def to_double(module, batch):
    return mean_square(module, (batch[0].double(),))


def test_data_dependent_models_are_traced_on_the_cpu_and_say_so():
    workload = traced(Model(doubles_if_positive, inner=linear()))
    assert workload.source.startswith("traced on the CPU with one batch, as the meta device failed")
    assert len(workload.gradients) == 2


def test_models_that_meta_cannot_run_are_traced_on_fake_tensors():
    workload = traced(Model(asks_for_the_device, inner=linear()))
    assert "traced on fake tensors, as the meta device failed with NotImpl" in workload.source
    inputs = torch.randn(2, 5, WIDTH)  # by hand: scores and mixing of 2 heads, and the linear layer
    attention, product = 2 * (2 * 2 * 2 * 5 * 5 * 4), 2 * inputs.numel() * WIDTH
    assert sum(layer.forward_flops for layer in workload.layers) == attention + product
    assert workload.flops == attention + 2 * product  # inputs want no gradient


def test_forward_may_take_keyword_arguments():
    module = Model(lambda model, *, inputs, scale: model.inner(inputs) * scale, inner=linear())
    words = traced(module, lambda m, batch: m(inputs=batch[0], scale=2.0).mean())
    assert words.parameters == WIDTH * WIDTH + WIDTH


def test_types_of_parameters_show_in_the_bytes():
    assert {one.bytes_per_element for one in traced(tied().double(), to_double).gradients} == {8}
    sizes = {one.name: one.bytes_per_element for one in traced(two_types()).gradients}
    assert sizes == {"wide.weight": 4, "wide.bias": 4, "narrow.weight": 2, "narrow.bias": 2}


def test_a_model_that_needs_values_is_refused_where_they_do_not_fit(monkeypatch):
    class Small:
        available = 100

    own = task(Model(doubles_if_positive, inner=linear()), batch=draw, loss=mean_square)
    monkeypatch.setattr("psutil.virtual_memory", lambda: Small)
    monkeypatch.setattr("ddlnb.workloads.tracing.require_memory_for_batch", lambda *_: None)
    with pytest.raises(ModelError, match=r"does not run without values .* 100 B are free here"):
        trace(own, 2)


def test_tracing_twice_gives_the_same_and_leaves_random_numbers_alone():
    own = task(Model(doubles_if_positive, inner=linear()), batch=draw, loss=mean_square)
    torch.manual_seed(0)
    expected = torch.rand(1)
    torch.manual_seed(0)
    assert trace(own) == trace(own)
    copied = replace(get_task("small-conv"))  # built-in ones are traced once
    assert trace(copied) == trace(copied) == trace("small-conv")
    assert torch.equal(torch.rand(1), expected)


@pytest.mark.parametrize(
    ("module", "loss", "told"),
    [
        (sparse(), mean_square, r"sparse gradients in rows, .* set sparse=False"),
        (
            nn.Linear(WIDTH + 1, 2),
            mean_square,
            "does not run on a batch of 2: RuntimeError: mat1 and",
        ),
        (unused(), mean_square, r"for spare\.weight, spare\.bias; set requires_grad=False"),
        (
            tied(),
            lambda m, batch: m.first.weight.pow(2).sum() + mean_square(m, batch),
            r"reads first\.weight before or outside",
        ),
        (tied(goes_twice), mean_square, r"several gradients.*use_reentrant=False"),
        (tied(), lambda m, batch: m(batch[0]), r"returned \(2, 5, 8\), not one number"),
        (
            tied(),
            lambda m, batch: mean_square(m, batch).detach(),
            "does not depend on any trainable parameter",
        ),
    ],
)
def test_what_cannot_be_trained_is_refused_with_the_way_out(module, loss, told):
    with pytest.raises(ModelError, match=told):
        traced(module, loss)


@pytest.mark.parametrize(
    "shaped",
    [lambda one: one, lambda one: one.reshape(-1, WIDTH), lambda one: one.transpose(0, 1)],
    ids=["first", "end to end", "second"],
)
def test_samples_may_come_first_second_or_end_to_end(shaped):
    own = task(linear(), batch=lambda *asked: (shaped(draw(*asked)[0]),), loss=mean_square)
    assert trace(own, 64).local_batch == 64


@pytest.mark.parametrize(
    ("batch", "shapes"),
    [(lambda count, seed: draw(8, seed), r"\(8, 5, 8\)"), (lambda count, seed: (), "")],
)
def test_a_batch_that_does_not_grow_with_the_samples_is_refused(batch, shapes):
    with pytest.raises(ModelError, match=f"tensors of {shapes} when asked for 64 samples"):
        trace(task(linear(), batch=batch, loss=mean_square), 64)


def parameters_alive():
    gc.collect()
    return sum(type(one) is nn.Parameter for one in gc.get_objects())


@pytest.mark.thorough(but=1)
@pytest.mark.parametrize("look", [trace, require_memory_for_training])
def test_no_model_is_kept_when_it_was_looked_at(look):
    """A measurement looks at each run's model: kept ones filled its ranks within hours."""
    own = task(linear(), batch=draw, loss=mean_square)
    own = replace(own, build=lambda: nn.Sequential(linear(), nn.Tanh()))  # keeps its own result
    look(own, 2)
    before = parameters_alive()
    look(own, 2)
    assert parameters_alive() == before


class Endless(nn.Linear):
    def forward(self, values):
        while True:
            time.sleep(0.01)


def test_a_module_that_does_not_end_is_one_error(monkeypatch):
    monkeypatch.setenv("DDLNB_TRACE_SECONDS", "1")
    with pytest.raises(ModelError, match="ran for 1 s when it was traced, and had not ended"):
        trace(task(Endless(4, 2), batch=draw, loss=mean_square), 2)
    monkeypatch.setenv("DDLNB_TRACE_SECONDS", "never")
    with pytest.raises(InputError, match="DDLNB_TRACE_SECONDS 'never' must be a whole number"):
        trace(task(linear(), batch=draw, loss=mean_square), 2)

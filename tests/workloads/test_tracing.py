"""The traced structure against what torch really does, on models made to be awkward."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from ddlnb.errors import ModelError
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


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.second.weight = self.first.weight

    def forward(self, inputs):
        return self.second(self.first(inputs))


class Attends(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, 2, batch_first=True)
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, inputs):
        return self.out(self.attention(inputs, inputs, inputs)[0])


class OwnsParameters(nn.Module):
    """Reads parameters of its own in a list and through a view, and calls a submodule twice."""

    def __init__(self):
        super().__init__()
        self.twice = nn.Linear(WIDTH, WIDTH)
        self.shifts = nn.ParameterList([torch.zeros(WIDTH)])
        self.weight = nn.Parameter(torch.ones(4, WIDTH))

    def forward(self, inputs):
        # Looking at the shape is not reading: the layer of twice.weight stays "twice".
        assert self.twice.weight.shape[0] == WIDTH
        shifted = self.twice(self.twice(inputs)) + torch.stack([self.shifts[0]])
        return shifted @ self.weight.T


class DataDependent(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH)

    def forward(self, inputs):
        output = self.inner(inputs)
        return output * 2 if output.sum() > 0 else output


class AsksForTheDevice(DataDependent):
    """Runs where there are values, or tensors that say so."""

    def forward(self, inputs):
        heads = inputs.unflatten(-1, (2, 4)).transpose(1, 2)
        mixed = nn.functional.scaled_dot_product_attention(heads, heads, heads)
        if inputs.device.type == "meta":
            raise NotImplementedError("no kernel for meta tensors")
        return self.inner(mixed.transpose(1, 2).flatten(-2))


class TakesWords(DataDependent):
    def forward(self, *, inputs, scale):
        return self.inner(inputs) * scale


class Sparse(nn.Module):
    def __init__(self):
        super().__init__()
        self.rows = nn.Embedding(10, WIDTH, sparse=True)

    def forward(self, inputs):
        return self.rows(inputs.long().clamp(0, 9))


class TwoTypes(nn.Module):
    def __init__(self):
        super().__init__()
        self.wide, self.narrow = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH).bfloat16()

    def forward(self, inputs):
        return self.narrow(self.wide(inputs).bfloat16()).float()


class Unused(nn.Module):
    def __init__(self):
        super().__init__()
        self.used, self.spare = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, inputs):
        return self.used(inputs)


class Reentrant(Tied):
    def forward(self, inputs):
        for _ in range(2):
            inputs = checkpoint(self.second, self.first(inputs), use_reentrant=True)
        return inputs


AWKWARD = {
    "tied": Tied,
    "attention": Attends,
    "owns parameters": OwnsParameters,
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


def test_the_tied_embedding_of_bert_is_needed_first_and_produced_last():
    workload = trace("bert-base")
    embedding = "bert.embeddings.word_embeddings"
    assert workload.layers[0].name == embedding
    assert workload.gradients[-1].name == f"{embedding}.weight"
    assert layers_of(workload)["cls.predictions.bias"] == "cls.predictions.decoder"


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


def test_tied_parameters_are_one_gradient():
    workload = traced(Tied())
    assert layers_of(workload) == {
        "second.bias": "second",
        "first.bias": "first",
        "first.weight": "first",
    }


def test_attention_owns_the_projection_whose_forward_is_never_called():
    workload = traced(Attends())
    assert [layer.name for layer in workload.layers] == ["attention", "out"]
    assert layers_of(workload)["attention.out_proj.weight"] == "attention"


def test_parameters_read_by_a_parent_belong_to_the_parent():
    layers = layers_of(traced(OwnsParameters()))
    assert layers["weight"] == layers["shifts.0"] == ""
    assert layers["twice.weight"] == "twice"


def test_recurrent_layers_are_traced_whole_though_their_order_depends_on_the_device():
    own = task(nn.LSTM(WIDTH, WIDTH, 2, batch_first=True), batch=draw, loss=mean_square)
    workload = trace(own, 2)
    assert workload.flops > 0
    assert set(layers_of(workload).values()) == {""}
    measured = profile(own, 2, iterations=1, warmup=0)
    assert [gradient.name for gradient in measured.gradients] == arrivals_on_cpu(own)
    assert set(layers_of(measured)) == set(layers_of(workload))


def test_frozen_parameters_are_left_out():
    module = Unused()
    module.spare.requires_grad_(False)
    assert set(layers_of(traced(module))) == {"used.weight", "used.bias"}


def test_double_precision_shows_in_the_bytes():
    assert {
        gradient.bytes_per_element for gradient in traced(Tied().double(), to_double).gradients
    } == {8}


def to_double(module, batch):
    return mean_square(module, (batch[0].double(),))


def test_data_dependent_models_are_traced_on_the_cpu_and_say_so():
    workload = traced(DataDependent())
    assert workload.source.startswith("traced on the CPU with one batch, as the meta device failed")
    assert len(workload.gradients) == 2


def test_models_that_meta_cannot_run_are_traced_on_fake_tensors():
    workload = traced(AsksForTheDevice())
    assert "traced on fake tensors, as the meta device failed with NotImpl" in workload.source
    inputs = torch.randn(2, 5, WIDTH)  # by hand: scores and mixing of 2 heads, and the linear layer
    attention, linear = 2 * (2 * 2 * 2 * 5 * 5 * 4), 2 * inputs.numel() * WIDTH
    assert sum(layer.forward_flops for layer in workload.layers) == attention + linear
    assert workload.flops == attention + 2 * linear  # inputs want no gradient


def test_forward_may_take_keyword_arguments():
    words = traced(TakesWords(), lambda m, batch: m(inputs=batch[0], scale=2.0).mean())
    assert words.parameters == WIDTH * WIDTH + WIDTH


def test_several_types_are_traced_each_with_its_bytes():
    sizes = {one.name: one.bytes_per_element for one in traced(TwoTypes()).gradients}
    assert sizes == {"wide.weight": 4, "wide.bias": 4, "narrow.weight": 2, "narrow.bias": 2}


def test_a_model_that_needs_values_is_refused_where_they_do_not_fit(monkeypatch):
    class Small:
        available = 100

    own = task(DataDependent(), batch=draw, loss=mean_square)
    monkeypatch.setattr("psutil.virtual_memory", lambda: Small)
    monkeypatch.setattr("ddlnb.workloads.tracing.require_memory_for_batch", lambda *_: None)
    with pytest.raises(ModelError, match=r"does not run without values .* 100 B are free here"):
        trace(own, 2)


def test_tracing_twice_gives_the_same_and_leaves_random_numbers_alone():
    own = task(DataDependent(), batch=draw, loss=mean_square)
    torch.manual_seed(0)
    expected = torch.rand(1)
    torch.manual_seed(0)
    assert trace(own) == trace(own)
    assert trace("small-conv") == trace("small-conv")
    assert torch.equal(torch.rand(1), expected)


def reads_early(module, batch):
    return module.first.weight.pow(2).sum() + mean_square(module, batch)


def detached(module, batch):
    return mean_square(module, batch).detach()


def all_outputs(module, batch):
    return module(batch[0])


@pytest.mark.parametrize(
    ("module", "loss", "told"),
    [
        (Sparse(), mean_square, r"sparse gradients in rows, .* set sparse=False"),
        (
            nn.Linear(WIDTH + 1, 2),
            mean_square,
            "does not run on a batch of 2: RuntimeError: mat1 and",
        ),
        (Unused(), mean_square, r"for spare\.weight, spare\.bias; set requires_grad=False"),
        (Tied(), reads_early, r"reads first\.weight before or outside"),
        (Reentrant(), mean_square, r"several gradients.*use_reentrant=False"),
        (Tied(), all_outputs, r"returned \(2, 5, 8\), not one number"),
        (Tied(), detached, "does not depend on any trainable parameter"),
    ],
)
def test_what_cannot_be_trained_is_refused_with_the_way_out(module, loss, told):
    with pytest.raises(ModelError, match=told):
        traced(module, loss)


def flat(local_batch, seed):
    return (draw(local_batch, seed)[0].reshape(-1, WIDTH),)


def samples_second(local_batch, seed):
    return (draw(local_batch, seed)[0].transpose(0, 1),)


def same_always(local_batch, seed):
    return draw(8, seed)


def none_at_all(local_batch, seed):
    return ()


@pytest.mark.parametrize("batch", [draw, flat, samples_second])
def test_samples_may_come_first_second_or_end_to_end(batch):
    assert trace(task(nn.Linear(WIDTH, 2), batch=batch, loss=mean_square), 64).local_batch == 64


@pytest.mark.parametrize(("batch", "shapes"), [(same_always, r"\(8, 5, 8\)"), (none_at_all, "")])
def test_a_batch_that_does_not_grow_with_the_samples_is_refused(batch, shapes):
    with pytest.raises(ModelError, match=f"tensors of {shapes} when asked for 64 samples"):
        trace(task(nn.Linear(WIDTH, 2), batch=batch, loss=mean_square), 64)

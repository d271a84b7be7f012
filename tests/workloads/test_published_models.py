"""The models of other papers against their published sizes and closed forms of their work."""

import resource
import time

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from ddlnb.errors import ModelError
from ddlnb.workloads.hugging_face import balanced_experts
from ddlnb.workloads.models import TASKS, build_published
from ddlnb.workloads.resolve import get_task
from ddlnb.workloads.tracing import trace

PARAMETERS = {  # millions: of the papers, and of the published files of weights
    "resnet18": 11.69,
    "resnet101": 44.55,
    "resnet152": 60.19,
    "vgg16": 138.36,
    "vit-b": 86.57,
    "vit-l": 304.33,
    "gpt2": 124.44,
    "gpt2-medium": 354.82,
    "gpt2-large": 774.03,
    "gpt2-xl": 1557.61,
    "llama3-8b": 8030.26,
    "llama3-70b": 70553.71,
    "mixtral-8x7b": 46702.79,
    "t5": 222.90,
    "lstm": 66.03,
}
GMAC = {"resnet18": 1.814, "resnet101": 7.801, "resnet152": 11.514, "vgg16": 15.470, "vit-b": 17.56}


NO_MATRICES = ("vit.embeddings", "embeddings", "transformer.wpe")


def forward_flops(workload):
    return sum(layer.forward_flops for layer in workload.layers)


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameters_are_as_many_as_published(name):
    with torch.device("meta"):
        module = get_task(name).build()
    count = sum(parameter.numel() for parameter in module.parameters())
    assert count / 1e6 == pytest.approx(PARAMETERS[name], abs=0.006)


@pytest.mark.parametrize("name", ["resnet18", "vgg16", "vit-b"])
def test_one_image_takes_the_published_multiplications(name):
    """As torchvision and the papers count them: those of convolutions and matrices."""
    assert forward_flops(trace(name)) / 2e9 == pytest.approx(GMAC[name], rel=1e-3)


@pytest.mark.parametrize(("name", "layers", "width"), [("gpt2", 12, 768), ("vit-b", 12, 768)])
def test_the_work_of_a_transformer_is_the_closed_form(name, layers, width):
    """2 FLOPs per matrix element and token, and 4 s per unit of width in attention.

    The backward pass takes twice the matrices, but for the one that multiplies the input, and
    attention once more than twice, as a fused kernel computes its scores again.
    """
    task = get_task(name)
    workload = trace(task)
    matrices = sum(
        gradient.elements
        for gradient in workload.gradients
        if len(gradient.shape) >= 2 and not gradient.name.startswith(NO_MATRICES)
    )
    tokens = task.sequence or 14 * 14 + 1
    attention = 4 * layers * tokens**2 * width
    expected = 2 * tokens * matrices + attention
    if name == "vit-b":
        patches, classes = 14 * 14, 1000
        embedding = 2 * patches * 3 * 16 * 16 * width
        expected += embedding - 2 * (tokens - 1) * classes * width  # one token is classified
    assert forward_flops(workload) == pytest.approx(expected, rel=1e-9)
    backward = workload.flops - forward_flops(workload)
    first = 0 if name == "gpt2" else embedding
    assert backward == pytest.approx(2 * (expected - attention) - first + 2.5 * attention, rel=1e-9)


def _decoder(layers, hidden, heads, kv_heads, inner, words, sequence, chosen=1, router=0):
    """FLOPs forward of a gated decoder: matrices, the router of its experts, and attention."""
    kept = hidden * (2 * hidden + 2 * hidden * kv_heads // heads + 3 * chosen * inner + router)
    return 2 * sequence * (layers * kept + hidden * words) + 4 * layers * sequence**2 * hidden


def _t5_base(hidden=768, inner=3072, layers=12, words=32_128, sequence=512):
    """FLOPs forward of T5-Base: decoders have a second attention, and there are three in all."""
    encoder, decoder = (n * hidden**2 + 2 * hidden * inner for n in (4, 8))
    matrices = layers * (encoder + decoder) + hidden * words
    return 2 * sequence * matrices + 3 * 4 * layers * sequence**2 * hidden


@pytest.mark.parametrize(
    ("name", "flops"),
    [
        ("lstm", 2 * 35 * (2 * 4 * (2 * 1500 * 1500) + 1500 * 10_000)),  # four gates, two layers
        ("t5", _t5_base()),
        pytest.param(
            "llama3-8b", _decoder(32, 4096, 32, 8, 14_336, 128_256, 2048), marks=pytest.mark.slow
        ),
        pytest.param(
            "mixtral-8x7b",
            _decoder(32, 4096, 32, 8, 14_336, 32_000, 2048, chosen=2, router=8),
            marks=pytest.mark.slow,
        ),
    ],
    ids=["lstm", "t5", "llama3-8b", "mixtral-8x7b"],
)
def test_the_work_of_other_models_follows_from_the_sizes_of_their_papers(name, flops):
    assert forward_flops(trace(name, 1)) == pytest.approx(flops, rel=1e-3)


def test_of_the_experts_only_the_chosen_ones_compute():
    """Half as many experts in all is the same work, and half as many chosen ones half of it."""
    sizes = {
        "vocab_size": 64,
        "num_hidden_layers": 1,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
    }

    def experts_flops(experts, chosen):
        config = {**sizes, "num_local_experts": experts, "num_experts_per_tok": chosen}
        with torch.device("meta"):
            module = build_published("MixtralForCausalLM", config)
        layer = module.model.layers[0].mlp.experts
        with FlopCounterMode(display=False) as counter:
            hidden = torch.empty(16, 32, device="meta")
            index = torch.empty(16, chosen, device="meta", dtype=torch.long)
            balanced_experts(layer, hidden, index, torch.empty(16, chosen, device="meta"))
        return counter.get_total_flops()

    by_hand = 2 * 16 * 2 * (3 * 32 * 48)
    assert experts_flops(8, 2) == experts_flops(4, 2) == by_hand
    assert experts_flops(8, 1) == by_hand // 2


def test_fused_kernels_compute_what_transformers_does():
    """With values: the loss of a model with our kernels is that of one with transformers' own."""
    import transformers

    config = transformers.MixtralConfig(
        vocab_size=64,
        num_hidden_layers=2,
        hidden_size=32,
        intermediate_size=48,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_local_experts=4,
    )
    torch.manual_seed(0)
    theirs = transformers.MixtralForCausalLM._from_config(config, attn_implementation="eager")
    ours = build_published("MixtralForCausalLM", config.to_diff_dict())
    ours.load_state_dict(theirs.state_dict())
    tokens = torch.randint(64, (2, 10), generator=torch.Generator().manual_seed(1))
    expected = theirs(input_ids=tokens, labels=tokens).loss
    assert ours(input_ids=tokens, labels=tokens).loss.item() == pytest.approx(expected.item(), 1e-5)


def test_a_sequence_can_be_chosen_up_to_the_positions_of_the_model():
    gpt2 = get_task("gpt2")
    assert gpt2.with_sequence(128).batch(3, 0)[0].shape == (3, 128)
    assert gpt2.sequence == 1024
    with pytest.raises(ModelError, match=r"sequence 2,048 exceeds the 1,024 positions"):
        gpt2.with_sequence(2048)
    with pytest.raises(ModelError, match="'vgg16' has no sequences"):
        get_task("vgg16").with_sequence(8)


def test_names_are_known_before_a_module_is_built(monkeypatch):
    monkeypatch.setattr(nn.Module, "__init__", lambda *_: pytest.fail("a module was built"))
    assert {"resnet50", *PARAMETERS} <= set(TASKS)


@pytest.mark.slow
def test_seventy_billion_parameters_are_traced_in_seconds_and_without_memory():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.process_time()
    workload = trace("llama3-70b")
    took = time.process_time() - start
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    assert workload.parameters > 70e9
    assert took < 30  # 7 s on an idle core
    assert grown < 1e9  # the parameters alone would be 282 GB

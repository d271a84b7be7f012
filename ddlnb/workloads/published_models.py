"""Models of other papers by name, on random data: their published sizes, built by transformers.

Each row is a configuration of transformers with the sizes of its paper or of the published file of
weights; nothing is downloaded. Dropout is off, as in the survey's models. Where vocabularies are
published padded, they are padded here too.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import nn

from ddlnb.workloads.hugging_face import (
    build_from_config,
    image_loss,
    token_loss,
)
from ddlnb.workloads.random_samples import RandomImages, RandomTokens
from ddlnb.workloads.tasks import Task


def build_published(architecture: str, sizes: dict[str, Any]) -> nn.Module:
    """Return the model of transformers of this class, with these fields of its configuration."""
    import transformers

    model_class = getattr(transformers, architecture)
    return build_from_config(model_class.config_class(**sizes), architecture)


def _resnet(name: str, depths: list[int], block: str, widths: list[int]) -> Task:
    sizes = {"depths": depths, "layer_type": block, "hidden_sizes": widths, "num_labels": 1000}
    about = f"{name.replace('resnet', 'ResNet-')} (He et al. 2016) on random 224x224 images"
    return _images(name, "ResNetForImageClassification", sizes, 64, about)


def _vit(name: str, layers: int, width: int, heads: int, batch: int) -> Task:
    sizes = {
        "num_hidden_layers": layers,
        "hidden_size": width,
        "num_attention_heads": heads,
        "intermediate_size": 4 * width,
        "num_labels": 1000,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
    }
    about = f"ViT-{name[-1].upper()}/16 (Dosovitskiy et al. 2021) on random 224x224 images"
    return _images(name, "ViTForImageClassification", sizes, batch, about)


def _gpt2(name: str, layers: int, width: int, heads: int, batch: int) -> Task:
    sizes = {
        "n_layer": layers,
        "n_embd": width,
        "n_head": heads,
        "resid_pdrop": 0.0,
        "embd_pdrop": 0.0,
        "attn_pdrop": 0.0,
    }
    about = "GPT-2 (Radford et al. 2019), a causal language model on random tokens"
    return _tokens(name, "GPT2LMHeadModel", sizes, batch, 1024, 1024, 50_257, about)


def _llama3(name: str, layers: int, width: int, heads: int, inner: int) -> Task:
    sizes = {
        "vocab_size": 128_256,
        "num_hidden_layers": layers,
        "hidden_size": width,
        "num_attention_heads": heads,
        "num_key_value_heads": 8,
        "intermediate_size": inner,
        "max_position_embeddings": 8192,
        "tie_word_embeddings": False,
    }
    about = "Llama 3 (Grattafiori et al. 2024), a causal language model on random tokens"
    return _tokens(name, "LlamaForCausalLM", sizes, 1, 2048, 8192, 128_256, about)


def _mixtral() -> Task:
    sizes = {
        "vocab_size": 32_000,
        "num_hidden_layers": 32,
        "hidden_size": 4096,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "intermediate_size": 14_336,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "max_position_embeddings": 32_768,
        "tie_word_embeddings": False,
    }
    about = "Mixtral 8x7B (Jiang et al. 2024): of 8 experts, the 2 that a token goes to compute"
    name = "mixtral-8x7b"
    return _tokens(name, "MixtralForCausalLM", sizes, 1, 2048, 32_768, 32_000, about)


def _t5() -> Task:
    sizes = {
        "vocab_size": 32_128,
        "d_model": 768,
        "d_kv": 64,
        "d_ff": 3072,
        "num_layers": 12,
        "num_heads": 12,
        "dropout_rate": 0.0,
        "decoder_start_token_id": 0,
    }
    about = "T5-Base (Raffel et al. 2020) on random pairs of sequences"
    return _tokens("t5", "T5ForConditionalGeneration", sizes, 8, 512, None, 32_128, about)


def _images(name: str, architecture: str, sizes: dict[str, Any], batch: int, about: str) -> Task:
    build = partial(build_published, architecture, sizes)
    return Task(name, build, RandomImages(), image_loss, batch, "images", about)


def _tokens(
    name: str,
    architecture: str,
    sizes: dict[str, Any],
    batch: int,
    sequence: int,
    longest: int | None,
    vocabulary: int,
    about: str,
) -> Task:
    build = partial(build_published, architecture, sizes)
    samples = RandomTokens(sequence, vocabulary, longest)
    return Task(name, build, samples, token_loss, batch, "sequences", about)


PUBLISHED_TASKS = (
    _resnet("resnet18", [2, 2, 2, 2], "basic", [64, 128, 256, 512]),
    _resnet("resnet101", [3, 4, 23, 3], "bottleneck", [256, 512, 1024, 2048]),
    _resnet("resnet152", [3, 8, 36, 3], "bottleneck", [256, 512, 1024, 2048]),
    _vit("vit-b", 12, 768, 12, 64),
    _vit("vit-l", 24, 1024, 16, 32),
    _gpt2("gpt2", 12, 768, 12, 8),
    _gpt2("gpt2-medium", 24, 1024, 16, 4),
    _gpt2("gpt2-large", 36, 1280, 20, 2),
    _gpt2("gpt2-xl", 48, 1600, 25, 1),
    _llama3("llama3-8b", 32, 4096, 32, 14_336),
    _llama3("llama3-70b", 80, 8192, 64, 28_672),
    _mixtral(),
    _t5(),
)

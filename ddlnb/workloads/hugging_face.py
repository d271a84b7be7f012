"""Tasks of Hugging Face configurations: an architecture and its sizes, without any weights.

A configuration is a file ``config.json``, a folder that has one, or the name of an architecture,
whose defaults are those of transformers. Nothing is downloaded, and no code but transformers' runs.

Models are built with kernels in a form that needs no values to be traced. Attention runs as one
fused kernel, which never writes the matrix of scores to memory (Dao et al. 2022). Experts get
equally many tokens, as the load-balancing loss of training asks for (Shazeer et al. 2017): which
expert a token chooses is a value, and how many it has decides the shapes. On tensors with values
both run what transformers runs.
"""

from __future__ import annotations

import copy
import difflib
import math
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ddlnb.errors import ModelError
from ddlnb.reading import read_json, reading
from ddlnb.workloads.counters import aten, each_with_its_own
from ddlnb.workloads.task import Batch, RandomImages, RandomTokens, Task

FUSED = "ddlnb"  # the name of our kernels in configurations of transformers
TOKENS = 512  # of a sample, unless the model has fewer positions
PIXELS = 224  # of a side, unless the configuration says so
HEADS = ("Seq2SeqLM", "MaskedLM", "CausalLM", "ImageClassification")  # the first that there is


def is_architecture(name: str) -> bool:
    """Return whether transformers has an architecture or a type of models of this name."""
    return _config_class(name) is not None


def task_of_architecture(name: str) -> Task:
    """Return the task of an architecture with transformers' default sizes.

    ``name`` is that of a class, such as ``GPT2LMHeadModel``, or of a type of models, such as
    ``gpt2``. Raises ModelError if transformers does not have it.

    >>> from ddlnb.workloads.tracing import trace
    >>> trace(task_of_architecture("GPT2LMHeadModel")).parameters
    124439808
    """
    import transformers

    config = _config_class(name)
    if config is None:
        raise ModelError(_unknown(name))
    model_class = getattr(transformers, name, None)
    named = model_class.__name__ if isinstance(model_class, type) else None
    return task_of_config(config(), name, named)


def task_of_file(path: Path) -> Task:
    """Return the task of a ``config.json``. Raises ModelError for a file that is none."""
    fields = read_json(path, "give another file", ModelError)
    if isinstance(fields, dict) and "gradients" in fields:
        raise ModelError(
            f"{str(path)!r} is a profile: it has seconds, and nothing to run; give the model "
            f"itself, such as my.py:task, or the profile to `ddlnb forecast`"
        )
    if not isinstance(fields, dict) or "model_type" not in fields:
        raise ModelError(
            f"{str(path)!r} has no model_type, so that it is neither a Hugging Face configuration "
            f"nor a profile; give a config.json or a file that `ddlnb measure profile` wrote"
        )
    model_type = fields["model_type"]
    config_class = _config_class(str(model_type))
    if config_class is None:
        raise ModelError(f"{str(path)!r}: {_unknown(str(model_type))}")
    is_plain = path.name == "config.json"
    name = (path.resolve().parent.name if is_plain else path.stem) or str(model_type)
    way_out = "correct it, or leave out keys for the defaults of transformers"
    with reading(f"{str(path)!r}, a configuration of {model_type},", way_out, ModelError):
        config = config_class.from_dict(fields)
        return task_of_config(config, name, next(iter(fields.get("architectures") or ()), None))


def task_of_module(module: Any) -> Task:
    """Return the task of a model of transformers: its configuration, with random inputs."""
    return task_of_config(module.config, type(module).__name__, type(module).__name__)


def is_of_transformers(module: object) -> bool:
    """Return whether this is a model of transformers; nothing is imported to find out."""
    return any(
        (one.__module__, one.__name__) == ("transformers.modeling_utils", "PreTrainedModel")
        for one in type(module).__mro__
    )


def task_of_config(config: Any, name: str, architecture: str | None = None) -> Task:
    """Return the task of a configuration: its model, random inputs and the loss of its head."""
    build = partial(build_from_config, config, architecture)
    text = config.get_text_config()
    vocabulary = getattr(text, "vocab_size", None)
    model_class = _model_class(config, architecture)
    takes = model_class.main_input_name
    if takes == "pixel_values":
        sides = getattr(config, "image_size", None) or PIXELS
        height, width = sides if isinstance(sides, list | tuple) else (sides, sides)
        shape = (getattr(config, "num_channels", 3), height, width)
        images = RandomImages(shape, config.num_labels)
        about = f"{model_class.__name__} on random {height}x{width} images"
        return Task(name, build, images, image_loss, 32, "images", about)
    if takes != "input_ids" or vocabulary is None:
        raise ModelError(
            f"model {name!r} takes {takes}, and inputs are made up of tokens and images only; wrap "
            f"it with ddlnb.task(module, batch=..., loss=...)"
        )
    longest = getattr(text, "max_position_embeddings", None) or getattr(text, "n_positions", None)
    samples = RandomTokens(min(TOKENS, longest or TOKENS), vocabulary, longest)
    about = f"{model_class.__name__} on random sequences of tokens"
    return Task(name, build, samples, token_loss, 1, "sequences", about)


def build_from_config(config: Any, architecture: str | None = None) -> nn.Module:
    """Return a new model of a configuration, with attention and experts as fused kernels."""
    register_fused_kernels()
    build = _model_class(config, architecture)._from_config
    try:
        module = build(copy.deepcopy(config), attn_implementation=FUSED)
    except (ValueError, KeyError):  # an architecture that has attention of its own
        module = build(copy.deepcopy(config))
    if getattr(module, "loss_type", "") is None:
        module.loss_type = "ForCausalLM"  # what transformers takes then, with a warning
    if hasattr(module, "set_experts_implementation") and module._can_set_experts_implementation():
        module.set_experts_implementation(FUSED)
    built: nn.Module = module.train()
    return built


def token_loss(module: nn.Module, batch: Batch) -> Tensor:
    """Return the loss of a language model; of a model without a head, a mean of its outputs."""
    (tokens,) = batch
    options: dict[str, Tensor] = {"input_ids": tokens}
    if not _has_head(module):
        is_pair = getattr(module.config, "is_encoder_decoder", False)
        options |= {"decoder_input_ids": tokens} if is_pair else {}
        return _mean(module(**options, **_without_cache(module)))
    loss: Tensor = module(**options, labels=tokens, **_without_cache(module)).loss
    return loss


def image_loss(module: nn.Module, batch: Batch) -> Tensor:
    """Return the loss of a classifier; of a model without a head, a mean of its outputs."""
    images, labels = batch
    images = images.to(next(module.parameters()).dtype)
    if not _has_head(module):
        return _mean(module(pixel_values=images))
    loss: Tensor = module(pixel_values=images, labels=labels).loss
    return loss


def _has_head(module: nn.Module) -> bool:
    return any(head in type(module).__name__ for head in ("For", "LMHead"))


def _without_cache(module: Any) -> dict[str, bool]:
    return {"use_cache": False} if hasattr(module.config, "use_cache") else {}


def _mean(outputs: Any) -> Tensor:
    """Return a number that depends on every output."""
    parts = [
        part.float().square().mean()
        for part in outputs.to_tuple()
        if isinstance(part, Tensor) and part.requires_grad
    ]
    return torch.stack(parts).mean()


def _config_class(name: str) -> Any:
    """Return the class of configurations of a type of models or of an architecture, or None."""
    import transformers
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    if name in CONFIG_MAPPING_NAMES:
        return transformers.CONFIG_MAPPING[name]
    model_class = getattr(transformers, name, None) if name.isidentifier() else None
    if not isinstance(model_class, type) or not issubclass(
        model_class, transformers.PreTrainedModel
    ):
        return None
    return model_class.config_class


def _model_class(config: Any, architecture: str | None) -> Any:
    import transformers

    if architecture is not None:
        found = getattr(transformers, architecture, None)
        if found is None:
            raise ModelError(_unknown(architecture))
        return found
    for head in HEADS:
        mapping = getattr(transformers, f"AutoModelFor{head}")._model_mapping
        if type(config) in mapping:
            return _one(mapping[type(config)])
    mapping = transformers.AutoModel._model_mapping
    if type(config) not in mapping:
        raise ModelError(f"transformers has no model for a {type(config).__name__}; name another")
    return _one(mapping[type(config)])


def _one(found: Any) -> Any:
    return found[0] if isinstance(found, tuple) else found


def _unknown(name: str) -> str:
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    near = difflib.get_close_matches(name.casefold(), CONFIG_MAPPING_NAMES, n=3, cutoff=0.5)
    hint = f" (did you mean {' or '.join(map(repr, near))}?)" if near else ""
    return f"architecture {name!r} is none that this edition of transformers has{hint}"


@cache
def register_fused_kernels() -> None:
    """Let configurations of transformers name these kernels; without a mask, as GPUs run them."""
    from transformers import AttentionInterface
    from transformers.integrations.moe import ExpertsInterface

    AttentionInterface.register(FUSED, fused_attention)
    ExpertsInterface.register(FUSED, balanced_experts)


def fused_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Return attention as transformers' interface defines it: batch, positions, heads, width."""
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    bias = options.get("position_bias")
    if bias is None and attention_mask is not None and attention_mask.is_floating_point():
        bias = attention_mask  # some models add it to what a mask would be
    causal = options.get("is_causal")
    causal = getattr(module, "is_causal", True) if causal is None else causal
    if not query.is_meta:
        mixed, _ = sdpa_attention_forward(
            module, query, key, value, attention_mask, **{**options, "is_causal": causal}
        )
        return mixed, None
    key, value = each_with_its_own(query, key, value)
    if bias is None and value.shape[-1] == query.shape[-1]:
        mixed = aten._scaled_dot_product_flash_attention(query, key, value, 0.0, bool(causal))[0]
    else:
        bias = None if bias is None else bias.expand(query.shape[0], query.shape[1], -1, -1)
        mixed = aten._scaled_dot_product_efficient_attention(query, key, value, bias, True)[0]
    return mixed.transpose(1, 2).contiguous(), None


def balanced_experts(
    module: Any, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor
) -> Tensor:
    """Return what the chosen experts make of each token; only those compute."""
    from transformers.integrations.moe import grouped_mm_experts_forward

    if not hidden_states.is_meta:
        mixed: Tensor = grouped_mm_experts_forward(
            module, hidden_states, top_k_index, top_k_weights
        )
        return mixed
    tokens, width = hidden_states.shape
    chosen = top_k_index.shape[-1]
    each = math.ceil(tokens * chosen / module.num_experts)
    order = torch.sort(top_k_index.flatten())[1]
    padded = torch.nn.functional.pad(order, (0, each * module.num_experts - tokens * chosen))
    sent = hidden_states[padded // chosen].view(module.num_experts, each, width)
    up = module.gate_up_proj if module.has_gate else module.up_proj
    inner = _by_expert(sent, up, module.is_transposed)
    inner = module._apply_gate(inner) if module.has_gate else module.act_fn(inner)
    made = _by_expert(inner, module.down_proj, module.is_transposed)
    made = made.reshape(-1, width)[: tokens * chosen]
    weighted = made[order] * top_k_weights.reshape(-1, 1)
    return weighted.view(tokens, chosen, width).sum(1).to(hidden_states.dtype)


def _by_expert(sent: Tensor, weights: Tensor, is_transposed: bool) -> Tensor:
    """Return each expert's product; the gradient of its weights is laid out as they are."""
    if is_transposed:
        return torch.bmm(sent, weights)
    return torch.bmm(weights, sent.transpose(1, 2)).transpose(1, 2)

"""Kernels of GPUs for models of transformers, in a form that needs no values to be traced.

Attention runs as one fused kernel, which never writes the matrix of scores to memory (Dao et al.
2022). Experts get equally many tokens, as the load-balancing loss of training asks for (Shazeer et
al. 2017): which expert a token chooses is a value, and how many it has decides the shapes. On
tensors with values both run what transformers runs.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

NAME = "ddlnb"
aten = torch.ops.aten


@cache
def register_fused_kernels() -> None:
    """Let configurations of transformers name these kernels; without a mask, as GPUs run them."""
    from transformers import AttentionInterface
    from transformers.integrations.moe import ExpertsInterface

    AttentionInterface.register(NAME, fused_attention)
    ExpertsInterface.register(NAME, balanced_experts)


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
    if key.shape[1] != query.shape[1]:  # heads that share keys and values
        groups = query.shape[1] // key.shape[1]
        key, value = (one.repeat_interleave(groups, 1) for one in (key, value))
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

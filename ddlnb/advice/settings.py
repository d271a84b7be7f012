"""Settings: what one writes down after an answer, for PyTorch and for launchers of large models.

A layout is written by the tables of `ddlnb.parallelism.settings`, and left out where a format has
no words for it; PyTorch's own wrappers are lines of Python. NCCL's variables stay unset: forecasts
are of NCCL's own choice, and no other one is surely faster.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pandas as pd

from ddlnb.errors import InputError
from ddlnb.parallelism.forecast.question import LayoutQuestion
from ddlnb.parallelism.launch_files import written
from ddlnb.parallelism.layout import Layout
from ddlnb.parallelism.settings import MEGATRON, NANOTRON, TORCHTITAN, Format
from ddlnb.plans.methods import in_torch
from ddlnb.simulator.recommendation import TIE

UNSET = "Leave NCCL_ALGO and NCCL_PROTO unset: no choice is surely faster than NCCL's own."
# A bucket_cap_mb that is given, be it the default, is that of the first bucket, too.
DDP = """model = torch.nn.parallel.DistributedDataParallel(
    model, {cap}gradient_as_bucket_view=True
)"""
ZERO_1 = """from torch.distributed.optim import ZeroRedundancyOptimizer
optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=lr)"""
OURS = 'model = ddlnb.DistributedModel(model, optimizer, "{method}", task=task)'
HOOK = """from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
model.register_comm_hook(None, default_hooks.fp16_compress_hook)"""
FSDP = """from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
mesh = init_device_mesh("cuda", {mesh})
policy = MixedPrecisionPolicy(param_dtype=torch.{dtype}, reduce_dtype=torch.{dtype})
for name, block in model.layers.named_children():{again}
    fully_shard(block, mesh=mesh, mp_policy=policy, reshard_after_forward={reshard})
fully_shard(model, mesh=mesh, mp_policy=policy)"""
FLOAT8 = """from torchao.float8 import convert_to_float8_training
convert_to_float8_training(model)"""
WRAPPER = (
    "from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper"
)
AGAIN = """
    block = checkpoint_wrapper(block)
    model.layers.register_module(name, block)"""


def torch_code(layout: Layout, precision: str = "bf16") -> str:
    """Return the lines of Python that wrap a model, by what its replicas shard.

    ``model.layers`` stands for the blocks. Raises InputError for a layout that PyTorch's wrappers
    alone do not split.
    """
    if layout.ranks != layout.dp or layout.ep > 1:
        raise InputError(f"layout {str(layout)!r} splits more than replicas do; see torchtitan")
    again = layout.recomputation == "full"
    lines = [f"# {layout.micro_batch} samples per forward pass, {layout.micro_batches} per step"]
    if layout.zero >= 2:
        copies = layout.dp // layout.shards
        sizes = (layout.dp,) if copies == 1 else (copies, layout.shards)
        names = ("dp_shard",) if copies == 1 else ("dp_replicate", "dp_shard")
        wrap = FSDP.format(
            mesh=f"{sizes}, mesh_dim_names={names}",
            dtype={"fp16": "float16", "fp32": "float32"}.get(precision, "bfloat16"),
            again=AGAIN if again else "",
            reshard=layout.zero == 3,
        )
        before = [FLOAT8] if precision == "fp8" else []
        return "\n".join([*lines, *before, *([WRAPPER] if again else []), wrap])
    return "\n".join([*lines, DDP.format(cap=""), *([ZERO_1] if layout.zero else [])])


def written_for(asked: LayoutQuestion, layout: Layout, form: Format) -> str:
    """Return a layout of a question in a format. Raises InputError where it has no words for it."""
    return written(layout, form, **about(asked))


def about(asked: LayoutQuestion) -> dict[str, Any]:
    """Return what of a question stands in launch files beside the layout."""
    return {
        "layers": asked.model.layers,
        "sequence": asked.sequence,
        "precision": asked.precision,
        "overlap": asked.overlaps,
        "compiled": asked.framework != "fsdp",
        "gpus_per_node": asked.gpus_per_node,
    }


def layout_settings(asked: LayoutQuestion, layout: Layout, rows: pd.DataFrame) -> Iterator[str]:
    """Yield the settings of the first row's layout: with its gain, then a text for each format.

    That of the framework comes first, then those that many use.
    """
    yield f"Settings for {layout}{_over_next(rows)}. {UNSET}"
    if layout.zero == 3 and asked.framework in ("", "fsdp"):
        with suppress(InputError):
            yield f"PyTorch (fully_shard):\n{torch_code(layout, asked.precision)}"
    forms = (MEGATRON, TORCHTITAN, *((NANOTRON,) if asked.framework == "nanotron" else ()))
    for form in sorted(forms, key=lambda one: one.framework != asked.framework):
        named = replace(asked, framework=asked.framework or form.framework)
        with suppress(InputError):
            yield f"{form.name}:\n{written_for(named, layout, form)}"


def _over_next(rows: pd.DataFrame) -> str:
    """Say how much faster the first split is than the next one, and how sure that is."""
    splits = rows[rows["kind"] == "layout"]
    if len(splits) < 2 or math.isnan(splits["over_first_low"].iloc[1]):
        return ""
    low, times, high = (
        1 / splits[name].iloc[1] for name in ("over_first_high", "over_best", "over_first_low")
    )
    return (
        f", {times:.2f} times ({low:.2f} to {high:.2f}) the next split, the fastest in "
        f"{splits['chance_best'].iloc[0]:.0%} of the draws"
    )


def method_settings(rows: pd.DataFrame, best: pd.Series) -> Iterator[str]:
    """Yield the settings of PyTorch's own way, and of faster ones, with gains over DDP as it is."""
    from ddlnb.advice.options import BY_HOOK, Kind

    first = rows.iloc[0]
    if not in_torch(first["option"]):
        return
    size = first["option"].partition("(")[2].rstrip(")")
    cap = f"{size}, " if size else ""
    yield f"Settings{_over_ddp(first)}. {UNSET}\n{DDP.format(cap=cap)}"
    if not in_torch(best["option"]) and best["over_best"] > 1 + TIE and "PS" not in best["option"]:
        method = "searched" if best["kind"] == str(Kind.PLAN) else best["option"]
        yield f"Or{_over_ddp(best)}:\n{OURS.format(method=method)}"
    halves = rows[rows["option"].str.startswith(BY_HOOK) & (rows["over_best"] > 1 + TIE)]
    for times in halves["over_first"]:
        yield (
            f"With DDP's hook that rounds gradients to 16 bits, which changes learning, throughput "
            f"is {times:.2f} times DDP as it is:\n{HOOK}"
        )


def _over_ddp(row: pd.Series) -> str:
    if math.isnan(row["over_first_low"]) or row["option"] == "DDP":
        return f" for {row['option']}"
    chance = row["chance_best"]
    sure = "" if math.isnan(chance) else f", the fastest in {chance:.0%} of the draws"
    return (
        f" for {row['option']}, {row['over_first']:.2f} times DDP as it is "
        f"({row['over_first_low']:.2f} to {row['over_first_high']:.2f}){sure}"
    )

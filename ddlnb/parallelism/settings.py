"""What frameworks call a layout: options and the fields they are about, to write and to read.

A format is a table of options. Two functions beside it turn our fields into those that its options
are about, and back, where they cut otherwise: torchtitan counts shards, Megatron-LM the layers of a
chunk. A layout can be written for a format if what is written says the same when it is read again.

Options are those of Megatron-LM core 0.8 to 0.14 (megatron/training/arguments.py), torchtitan 0.1
and 0.2 (job_config.py), DeepSpeed 0.10 to 0.17 (runtime/config.py), nanotron 0.4
(config/config.py), and Hugging Face transformers 4.40 to 4.57 with accelerate 0.30 to 1.10.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ddlnb.errors import require, require_whole
from ddlnb.parallelism.layout import equal_parts

Fields = dict[str, Any]
MODEL = "model."  # before the keys of a Hugging Face configuration
LAYERS = f"{MODEL}num_hidden_layers"
SPLITS = ("embedding_counts", "head_counts", "first_layers", "last_layers")  # which layers go where
ON: Mapping[Any, Any] = {True: True, False: False}
AGAIN = {word: word for word in ("none", "selective", "full")}
RESHARD = {"always": True, "never": False}
TP_MODES = {"REDUCE_SCATTER": True, "ALL_REDUCE": False}
DTYPES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}


@dataclass(frozen=True)
class Option:
    """An option by its name and the field that it is about.

    ``says`` has the values that it may have, and what the field is then; without it, the value is
    that of the field. A flag that stands alone is true.
    """

    name: str
    field: str
    says: Mapping[Any, Any] | None = None


@dataclass(frozen=True)
class Format:
    """A kind of launch file: its options, and what turns fields into those of them, and back.

    ``kind`` is how it is written: flags, toml, json or yaml; ``framework`` whose steps are forecast
    for it. ``read`` are options that are read, too, and not written.
    """

    name: str
    kind: str
    framework: str
    options: tuple[Option, ...]
    read: tuple[Option, ...] = ()
    out: Callable[[Fields], Fields] = dict
    back: Callable[[Fields], Fields] = dict
    rest: str = ""  # what options begin with whose ends are keys of a model's configuration


def _flag(name: str, field: str, value: Any = True) -> Option:
    return Option(name, field, {True: value})


def _megatron_out(said: Fields) -> Fields:
    zero, vpp = said["zero"], said["vpp"]
    more: Fields = {"fsdp": True, "strategy": zero} if zero >= 2 else {}
    if zero >= 1:
        more["shards_states"] = True
    if vpp > 1:
        more["chunk_layers"] = _chunk(said)
    more |= _uneven(said[LAYERS], said["pp"])
    if said["recomputation"] == "full":
        more |= {"again": "uniform", "again_layers": 1}
    if said["precision"] == "fp8":
        more |= {"precision": "bf16", "fp8": True}
    return {**said, **more}


def _chunk(said: Fields) -> int:
    """Return the layers of a chunk. Raises InputError where chunks are not equal."""
    chunks = said["pp"] * said["vpp"]
    found = equal_parts(said[LAYERS], chunks)
    require(
        found > 0,
        f"{said[LAYERS]} layers make no {chunks} equal chunks, which is all that the format has "
        f"words for; take another vpp",
    )
    return found


def _uneven(layers: int, pp: int) -> Fields:
    """Return what Megatron-LM needs to be told where the stages do not divide the layers.

    Embedding and head may count as layers, or the first and the last stage have fewer than the
    others. Raises InputError where neither is possible.
    """
    if layers % pp == 0:
        return {}
    if equal_parts(layers, pp):
        return {"embedding_counts": True, "head_counts": True}
    others = -(-layers // pp)
    ends = layers - (pp - 2) * others
    require(
        2 <= ends <= 2 * others,
        f"Megatron-LM has no words for {layers} layers on {pp} stages, of which those amid have "
        f"as many layers each; take another number of stages",
    )
    return {"first_layers": -(-ends // 2), "last_layers": ends // 2}


def _expert_layers(said: Any) -> Fields:
    """Return which layers have experts: every so many, or all after some, as in ([0]*3+[1]*58)."""
    if isinstance(said, int) and not isinstance(said, bool):
        return {f"{MODEL}moe_layer_freq": said}
    match = re.fullmatch(r"\(?\[0\]\*(\d{1,4})\+\[1\]\*\d{1,4}\)?", str(said).replace(" ", ""))
    require(
        match is not None,
        f"moe_layer_freq {said!r} is neither a whole number nor like '([0]*3+[1]*58)', which has "
        f"experts in all but the first three layers; write one of both",
    )
    assert match is not None
    return {f"{MODEL}moe_layer_freq": 1, f"{MODEL}first_k_dense_replace": int(match[1])}


def _megatron_back(said: Fields) -> Fields:
    strategy = said.get("strategy", 0)
    said.setdefault("zero", strategy if "fsdp" in said else int("shards_states" in said))
    if said.pop("fp8", False):
        said["precision"] = "fp8"
    if "chunk_layers" in said and (layers := said.get(LAYERS)):
        whole = layers + said.get("embedding_counts", 0) + said.get("head_counts", 0)
        said["vpp"] = max(1, whole // (said.get("pp", 1) * said["chunk_layers"]))
    if "expert_layers" in said:
        said |= _expert_layers(said.pop("expert_layers"))
    gated = said.pop("gated", False)
    learned = said.pop("positions", "learned_absolute") == "learned_absolute"
    if f"{MODEL}hidden_size" in said:
        if "sequence" in said:  # as many positions have to be there
            said.setdefault(f"{MODEL}max_position_embeddings", said["sequence"])
        hidden = said[f"{MODEL}hidden_size"]
        wide = int(8 * hidden / 3) // 64 * 64 if gated else 4 * hidden
        said.setdefault(f"{MODEL}intermediate_size", wide)
        said.setdefault(f"{MODEL}tie_word_embeddings", True)
        bare = "nemotron" if said.get("biased") is False else "gpt_neox"
        family = "llama" if gated else "gpt2" if learned and bare == "gpt_neox" else bare
        said[f"{MODEL}model_type"] = family
        if not said.pop("grouped", False):
            said.pop(f"{MODEL}num_key_value_heads", None)
    return said


MEGATRON = Format(
    "Megatron-LM",
    "flags",
    "nemo",
    (
        Option("tensor_model_parallel_size", "tp"),
        _flag("sequence_parallel", "sequence_parallel"),
        Option("pipeline_model_parallel_size", "pp"),
        Option("num_layers_per_virtual_pipeline_stage", "chunk_layers"),
        _flag("account_for_embedding_in_pipeline_split", "embedding_counts"),
        _flag("account_for_loss_in_pipeline_split", "head_counts"),
        Option("decoder_first_pipeline_num_layers", "first_layers"),
        Option("decoder_last_pipeline_num_layers", "last_layers"),
        Option("context_parallel_size", "cp"),
        Option("cp_comm_type", "context", {"a2a": "all-to-all", "p2p": "ring"}),
        Option("expert_model_parallel_size", "ep"),
        _flag("use_tp_pp_dp_mapping", "order", ("tp", "cp", "pp", "dp")),
        _flag("use_distributed_optimizer", "shards_states"),
        Option("num_distributed_optimizer_instances", "copies"),
        _flag("use_megatron_fsdp", "fsdp"),
        Option(
            "data_parallel_sharding_strategy",
            "strategy",
            {"optim_grads_params": 3, "optim_grads": 2, "optim": 1, "no_shard": 0},
        ),
        Option("recompute_granularity", "recomputation", AGAIN),
        Option("recompute_method", "again", {"uniform": "uniform"}),
        Option("recompute_num_layers", "again_layers"),
        Option("micro_batch_size", "micro_batch"),
        Option("global_batch_size", "global_batch"),
        _flag("bf16", "precision", "bf16"),
        _flag("fp16", "precision", "fp16"),
        Option("fp8_format", "fp8", {"hybrid": True, "e4m3": True}),
        _flag("overlap_grad_reduce", "overlap"),
        Option("seq_length", "sequence"),
        Option("num_layers", LAYERS),
    ),
    (
        Option("num_virtual_stages_per_pipeline_rank", "vpp"),
        _flag("overlap_param_gather", "gathers"),
        _flag("use_custom_fsdp", "fsdp"),
        _flag("use_torch_fsdp2", "fsdp"),
        Option("zero_stage", "zero"),  # of Megatron-DeepSpeed
        _flag("recompute_activations", "recomputation", "selective"),
        Option("hidden_size", f"{MODEL}hidden_size"),
        Option("ffn_hidden_size", f"{MODEL}intermediate_size"),
        Option("num_attention_heads", f"{MODEL}num_attention_heads"),
        _flag("group_query_attention", "grouped"),
        Option("num_query_groups", f"{MODEL}num_key_value_heads"),
        Option("kv_channels", f"{MODEL}head_dim"),
        Option("vocab_size", f"{MODEL}vocab_size"),
        Option("max_position_embeddings", f"{MODEL}max_position_embeddings"),
        _flag("swiglu", "gated"),
        _flag("untie_embeddings_and_output_weights", f"{MODEL}tie_word_embeddings", False),
        Option("position_embedding_type", "positions", {
            "learned_absolute": "learned_absolute", "rope": "rope", "none": "none", "yarn": "rope",
        }),
        _flag("use_rotary_position_embeddings", "positions", "rope"),
        _flag("disable_bias_linear", "biased", False),
        _flag("add_qkv_bias", f"{MODEL}attention_bias"),
        _flag("qk_layernorm", f"{MODEL}use_qk_norm"),
        Option("num_experts", f"{MODEL}num_local_experts"),
        Option("moe_router_topk", f"{MODEL}num_experts_per_tok"),
        Option("moe_ffn_hidden_size", f"{MODEL}moe_intermediate_size"),
        Option(
            "moe_shared_expert_intermediate_size", f"{MODEL}moe_shared_expert_intermediate_size"
        ),
        Option("moe_layer_freq", "expert_layers"),
        _flag("multi_latent_attention", "latent"),
        Option("q_lora_rank", f"{MODEL}q_lora_rank"),
        Option("kv_lora_rank", f"{MODEL}kv_lora_rank"),
        Option("qk_head_dim", f"{MODEL}qk_nope_head_dim"),
        Option("qk_pos_emb_head_dim", f"{MODEL}qk_rope_head_dim"),
        Option("v_head_dim", f"{MODEL}v_head_dim"),
    ),
    _megatron_out,
    _megatron_back,
)  # fmt: skip


def _titan_out(said: Fields) -> Fields:
    """Return shards and copies; a rank's batch is that of its micro batches in a pipeline."""
    micro, piped = said["micro_batch"], said["pp"] > 1
    require(
        said["schedule"] != "dualpipe-v" or said["micro_batches"] >= 2 * said["pp"],
        f"torch refuses DualPipeV with {said['micro_batches']} micro batches on {said['pp']} "
        f"stages; take at least {2 * said['pp']}",
    )
    more: Fields = {"local_batch": micro * (said["micro_batches"] if piped else 1)}
    if said["precision"] == "fp8":
        more |= {"precision": "bf16", "converted": True}
    if piped:
        more |= {"piece": micro, "piped": said["schedule"]}
        if said["vpp"] > 1:
            more["chunk_layers"] = _chunk(said)
    whole = said["dp"] * said["cp"]
    sharded = said["zero"] and whole > said["copies"]
    more["shards"] = whole // said["copies"] // said["cp"] if sharded else 1
    more["copies"] = said["copies"] if sharded else said["dp"]
    return {**said, **more, "reshard": {3: True, 2: False}.get(said["zero"])}


def _titan_back(said: Fields) -> Fields:
    tp, pp, cp = (said.get(name, 1) for name in ("tp", "pp", "cp"))
    copies, shards = said.pop("copies", 1), said.pop("shards", -1)
    if shards == -1:
        require("gpus" in said, "shards are all that is left (-1): say how many GPUs there are")
        shards = said["gpus"] // (copies * tp * pp * cp)
    if said.get("global_batch") == -1:  # what one micro batch, or one pipeline, of each makes
        del said["global_batch"]
    reshards = said.pop("reshard", pp == 1)
    zero = 0 if shards * cp == 1 else 3 if reshards else 2
    if pp > 1:
        pieces = {"micro_batch": said.pop("piece", 1), "schedule": said.pop("piped", "1f1b")}
        local = said.pop("local_batch", 1)
        said |= {**pieces, "micro_batches": local // pieces["micro_batch"]}
        require(
            said.get("global_batch") in (None, local * copies * shards),
            f"a batch of {said.get('global_batch')} is not {copies * shards} pipelines times "
            f"{local} samples, which are filled and drained once a step; correct one of them",
        )
        chunks, layers = said.pop("chunk_layers", 0), said.get(LAYERS, 0)
        if said["schedule"] != "1f1b":
            whole = layers if layers % pp == 0 else layers + 2  # embedding and head
            said["vpp"] = whole // (pp * chunks) if chunks and layers else 2
    else:
        said["micro_batch"] = said.pop("local_batch", 1)
    if said.pop("converted", False):
        said["precision"] = "fp8"
    sharded = {"zero": zero, "copies": copies if zero else 1}
    return {**said, **sharded, "dp": copies * shards, "sequence_parallel": tp > 1}


_TITAN_SCHEDULES = {
    "1F1B": "1f1b", "GPipe": "gpipe", "Interleaved1F1B": "interleaved",
    "ZBVZeroBubble": "zb-v", "DualPipeV": "dualpipe-v",
}  # fmt: skip
TORCHTITAN = Format(
    "torchtitan",
    "toml",
    "fsdp-compiled",
    (
        Option("training.local_batch_size", "local_batch"),
        Option("training.global_batch_size", "global_batch"),
        Option("training.seq_len", "sequence"),
        Option("training.mixed_precision_param", "precision", DTYPES),
        Option("parallelism.data_parallel_replicate_degree", "copies"),
        Option("parallelism.data_parallel_shard_degree", "shards"),
        Option("parallelism.fsdp_reshard_after_forward", "reshard", RESHARD),
        Option("parallelism.tensor_parallel_degree", "tp"),
        Option("parallelism.context_parallel_degree", "cp"),
        Option("parallelism.expert_parallel_degree", "ep"),
        Option("parallelism.pipeline_parallel_degree", "pp"),
        Option("parallelism.pipeline_parallel_schedule", "piped", _TITAN_SCHEDULES),
        Option("parallelism.pipeline_parallel_microbatch_size", "piece"),
        Option("parallelism.pipeline_parallel_layers_per_stage", "chunk_layers"),
        Option("activation_checkpoint.mode", "recomputation", AGAIN),
        Option("compile.enable", "compiled", ON),
        Option("model.converters", "converted", {
            ("quantize.linear.float8",): True, ("float8",): True,
        }),
    ),
    (
        Option("training.compile", "compiled", ON),
        Option("model.name", "model"),
        Option("model.flavor", "flavor"),
        Option("training.batch_size", "local_batch"),
        Option("training.data_parallel_replicate_degree", "copies"),
        Option("training.data_parallel_shard_degree", "shards"),
        Option("training.tensor_parallel_degree", "tp"),
        Option("experimental.context_parallel_degree", "cp"),
        Option("experimental.pipeline_parallel_degree", "pp"),
        Option("experimental.pipeline_parallel_schedule", "piped", _TITAN_SCHEDULES),
    ),
    _titan_out,
    _titan_back,
)  # fmt: skip


def _deepspeed_back(said: Fields) -> Fields:
    """Return the micro batch that a batch leaves, as DeepSpeed does (`_batch_assertion`)."""
    if said.get("tp") == 0:  # its own "not split"
        del said["tp"]
    batch, rounds = said.get("global_batch"), said.get("micro_batches", 1)
    split = {name: said.get(name, 1) for name in ("tp", "pp", "cp")}
    require_whole(**split, gradient_accumulation_steps=rounds)
    replicas = said.get("gpus", 0) // math.prod(split.values())
    if batch and replicas and "micro_batch" not in said:
        require(
            batch % (replicas * rounds) == 0,
            f"a batch of {batch} does not divide among {replicas} replicas times {rounds} steps of "
            f"accumulation; say train_micro_batch_size_per_gpu",
        )
        said |= {"micro_batch": batch // (replicas * rounds), "micro_batches": rounds}
    return {**said, "context": "all-to-all" if said.get("cp", 1) > 1 else "ring"}


DEEPSPEED = Format(
    "DeepSpeed",
    "json",
    "fsdp",
    (
        Option("train_batch_size", "global_batch"),
        Option("train_micro_batch_size_per_gpu", "micro_batch"),
        Option("gradient_accumulation_steps", "micro_batches"),
        Option("zero_optimization.stage", "zero"),
        Option("zero_optimization.mics_shard_size", "shard"),
        Option("zero_optimization.overlap_comm", "overlap", ON),
        Option("bf16.enabled", "precision", {True: "bf16", False: None}),
        Option("fp16.enabled", "precision", {True: "fp16", False: None}),
        Option("tensor_parallel.autotp_size", "tp"),
        Option("sequence_parallel_size", "cp"),
    ),
    (
        Option("zero_optimization.zero_hpz_partition_size", "secondary", {0: None, 1: None}),
        Option("zero_optimization.allgather_partitions", "partitions", {True: None}),
        Option("activation_checkpointing.partition_activations", "partitions", {False: None}),
    ),
    back=_deepspeed_back,
)


def _nanotron_back(said: Fields) -> Fields:
    if f"{MODEL}hidden_size" in said:
        said[f"{MODEL}model_type"] = "qwen2" if said.get(f"{MODEL}is_qwen2_config") else "llama"
    return said


NANOTRON = Format(
    "nanotron",
    "yaml",
    "nanotron",
    (
        Option("parallelism.dp", "dp"),
        Option("parallelism.tp", "tp"),
        Option("parallelism.pp", "pp"),
        Option("parallelism.context_parallel_size", "cp"),
        Option("parallelism.expert_parallel_size", "ep"),
        Option("parallelism.pp_engine", "schedule", {"1f1b": "1f1b", "afab": "gpipe"}),
        Option("parallelism.tp_mode", "sequence_parallel", TP_MODES),
        Option("parallelism.recompute_layer", "recomputation", {True: "full", False: "none"}),
        Option("optimizer.zero_stage", "zero"),
        Option("tokens.micro_batch_size", "micro_batch"),
        Option("tokens.batch_accumulation_per_replica", "micro_batches"),
        Option("tokens.sequence_length", "sequence"),
        Option("model.dtype", "precision", DTYPES),
    ),
    back=lambda said: _nanotron_back(
        said if said.get("tp", 1) > 1 else {**said, "sequence_parallel": False}
    ),
    rest="model.model_config.",
)  # fmt: skip


def _accelerate_back(said: Fields) -> Fields:
    shards = said.pop("shards", 0)
    if shards:
        copies = said.get("copies", 1)
        said |= {"dp": copies * shards, "zero": said.get("zero", 3)}
    if said.pop("hybrid", False):
        gpus, nodes = said.get("gpus", 0), said.get("nodes") or 1
        of_each = gpus // nodes if gpus % nodes == 0 else 0
        said["shard"] = said.get("gpus_per_node") or of_each or 8
    return said


# By their names in accelerate; older files have their numbers, and the Trainer writes them small.
_FSDP = {
    "FULL_SHARD": 3, "SHARD_GRAD_OP": 2, "NO_SHARD": 0, "HYBRID_SHARD": 3, "HYBRID_SHARD_ZERO2": 2,
}  # fmt: skip
_FSDP_NUMBERS = {place: zero for place, zero in enumerate(_FSDP.values(), 1)}
_HYBRID = {"HYBRID_SHARD": True, "HYBRID_SHARD_ZERO2": True}


def _trainer(strategies: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the Trainer's words for strategies say, alone and with layers wrapped."""
    return {
        f"{name.lower()}{wrapped}": value
        for name, value in strategies.items()
        for wrapped in ("", " auto_wrap")
    }


ACCELERATE = Format(
    "Transformers",
    "yaml",
    "fsdp",
    (),
    (
        Option("per_device_train_batch_size", "micro_batch"),
        Option("gradient_accumulation_steps", "micro_batches"),
        _flag("bf16", "precision", "bf16"),
        _flag("fp16", "precision", "fp16"),
        Option("gradient_checkpointing", "recomputation", {True: "full", False: "none"}),
        Option("fsdp", "zero", {**_trainer(_FSDP), "": 0}),
        Option("fsdp", "hybrid", _trainer(_HYBRID)),
        Option("tp_size", "tp"),
        Option("model_name_or_path", "model"),
        Option("block_size", "sequence"),
        Option("max_seq_length", "sequence"),
        Option("max_length", "sequence"),
        Option("mixed_precision", "precision", {
            "bf16": "bf16", "fp16": "fp16", "fp8": "fp8", "no": None,
        }),
        Option("num_processes", "gpus"),
        Option("num_machines", "nodes"),
        Option("fsdp_config.fsdp_sharding_strategy", "zero", {**_FSDP, **_FSDP_NUMBERS}),
        Option("fsdp_config.fsdp_sharding_strategy", "hybrid", {**_HYBRID, 4: True, 5: True}),
        Option("fsdp_config.fsdp_reshard_after_forward", "zero", {True: 3, False: 2, **_FSDP}),
        Option("fsdp_config.fsdp_reshard_after_forward", "hybrid", _HYBRID),
        Option("fsdp_config.fsdp_activation_checkpointing", "recomputation", {
            True: "full", False: "none",
        }),
        Option("deepspeed_config.zero_stage", "zero"),
        Option("deepspeed_config.gradient_accumulation_steps", "micro_batches"),
        Option("parallelism_config.parallelism_config_tp_size", "tp"),
        Option("parallelism_config.parallelism_config_cp_size", "cp"),
        Option("parallelism_config.parallelism_config_dp_shard_size", "shards"),
        Option("parallelism_config.parallelism_config_dp_replicate_size", "copies"),
        Option("megatron_lm_config.megatron_lm_tp_degree", "tp"),
        Option("megatron_lm_config.megatron_lm_pp_degree", "pp"),
        Option("megatron_lm_config.megatron_lm_num_micro_batches", "micro_batches"),
        Option("megatron_lm_config.megatron_lm_sequence_parallelism", "sequence_parallel", ON),
    ),
    back=_accelerate_back,
)  # fmt: skip
FORMATS = (MEGATRON, TORCHTITAN, DEEPSPEED, NANOTRON, ACCELERATE)
# Of torchrun and its like, before the script that they start.
LAUNCHERS = (
    Option("nnodes", "nodes"),
    Option("nproc_per_node", "gpus_per_node"),
    Option("num_nodes", "nodes"),
    Option("num_gpus", "gpus_per_node"),
    Option("nodes", "nodes"),
    Option("ntasks_per_node", "tasks"),
    Option("gpus_per_node", "gpus_per_node"),
)

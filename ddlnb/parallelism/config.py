"""Large models as Hugging Face describes them: a ``config.json`` becomes the shape of a decoder.

Words of ours stand for the keys of many families; what a family does without a key for it is a
row of FAMILIES. A key that is neither read nor known to leave sizes alone is an error, and so is a
family without a row whose parameters are not those of its class in transformers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ddlnb.errors import DdlnbError, InputError, UnknownName, require
from ddlnb.files import MODELS
from ddlnb.parallelism.model import MOST_LAYERS, SHAPES, Block, Transformer
from ddlnb.parallelism.parts import (
    Experts,
    FeedForward,
    LatentAttention,
    LayerPart,
    SelfAttention,
    StateSpace,
)
from ddlnb.reading import read_json, reading

LARGE = MODELS / "large"  # a config.json for every name
LONGEST = 8192  # tokens of a sequence, where a model has more positions: few are trained with more
ALIKE = 1e-3  # relative difference of parameters by which a family without a row may be off

# Our words, and the keys of configurations that say them, the first that is there.
KEYS: Mapping[str, tuple[str, ...]] = {
    "layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    "hidden": ("hidden_size", "n_embd", "d_model"),
    "heads": ("num_attention_heads", "n_head", "n_heads", "num_heads"),
    "kv_heads": ("num_key_value_heads", "num_kv_heads", "n_head_kv"),
    "head_size": ("head_dim", "attention_head_dim"),
    "ffn": ("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size"),
    "dense_ffn": ("intermediate_size_mlp",),
    "vocab": ("vocab_size",),
    "positions": ("max_position_embeddings", "n_positions", "max_sequence_length", "seq_length"),
    "tied": ("tie_word_embeddings",),
    "qkv_bias": ("attention_bias", "qkv_bias", "use_bias", "enable_bias"),
    "mlp_bias": ("mlp_bias", "use_bias", "enable_bias"),
    "normed": ("use_qk_norm",),
    "window": ("sliding_window", "attention_chunk_size"),
    "windows": ("use_sliding_window",),
    "first_window": ("max_window_layers",),
    "pattern": ("sliding_window_pattern", "_sliding_window_pattern"),
    "kinds": ("layers_block_type", "layer_types", "hybrid_override_pattern"),
    "experts": ("n_routed_experts", "num_local_experts", "num_experts"),
    "top_k": ("num_experts_per_tok", "num_experts_per_token"),
    "expert_ffn": ("moe_intermediate_size",),
    "shared": ("n_shared_experts",),
    "shared_ffn": ("moe_shared_expert_intermediate_size", "shared_expert_intermediate_size"),
    "first_expert": ("first_k_dense_replace",),
    "every_expert": ("decoder_sparse_step", "moe_layer_freq", "interleave_moe_layer_step"),
    "without_experts": ("mlp_only_layers",),
    "with_experts": ("moe_layers",),
    "query_rank": ("q_lora_rank",),
    "key_rank": ("kv_lora_rank",),
    "plain": ("qk_nope_head_dim",),
    "rotated": ("qk_rope_head_dim",),
    "value": ("v_head_dim",),
    "state_heads": ("mamba_num_heads", "mamba_n_heads", "num_heads"),
    "state_head_size": ("mamba_head_dim", "mamba_d_head", "head_dim"),
    "groups": ("n_groups", "mamba_n_groups"),
    "state": ("ssm_state_size", "mamba_d_state", "state_size"),
    "kernel": ("conv_kernel", "mamba_d_conv"),
    "chunk": ("chunk_size", "mamba_chunk_size"),
    "state_bias": ("mamba_proj_bias", "use_bias"),
    "kernel_bias": ("use_conv_bias", "mamba_conv_bias"),
}

_GPT = {"norm": "layer", "gated": False, "qkv_bias": True, "mlp_bias": True}
_DEEPSEEK = {"every_expert": 1}
# What families do, by the model_type of their configurations, where no key says otherwise.
FAMILIES: Mapping[str, Mapping[str, Any]] = {
    "llama": {"positions": 2048},
    "mistral": {},
    "mixtral": {},
    "qwen2": {"qkv_bias": True, "output_bias": False, "windows": False},
    "qwen2_moe": {"qkv_bias": True, "output_bias": False, "windows": False, "weighed": True},
    "qwen3": {"normed": "head", "windows": False},
    "qwen3_moe": {"normed": "head", "windows": False},
    "deepseek_v2": {**_DEEPSEEK, "positions": 2048},
    "deepseek_v3": {**_DEEPSEEK, "positions": 4096},
    "kimi_k2": _DEEPSEEK,
    "glm4_moe": {"output_bias": False},
    "gpt_oss": {
        "qkv_bias": True, "mlp_bias": True, "router_bias": True, "sinks": True, "pattern": 2,
    },
    "llama4_text": {"normed": "", "shared": 1, "chunked": True, "pattern": 4},
    "nemotron": {"norm": "layer", "gated": False, "positions": 4096},
    "nemotron_h": {"gated": False, "output_bias": False, "positions": 4096},
    "mamba2": {"kinds": "M", "tied": True},
    "gemma": {"tied": True, "head_size": 256},
    "gemma2": {"tied": True, "head_size": 256, "norms": 2, "pattern": 2},
    "gemma3_text": {"tied": True, "head_size": 256, "norms": 2, "pattern": 6, "normed": "head"},
    "olmo2": {"normed": "all", "positions": 2048},
    "phi3": {"positions": 4096},
    "gpt2": {**_GPT, "tied": True, "learned_positions": True, "positions": 1024},
    "gpt_neox": {**_GPT, "positions": 2048},
    "starcoder2": {**_GPT, "tied": True, "positions": 4096},
    "opt": {
        **_GPT, "tied": True, "learned_positions": True, "positions": 2048, "further_positions": 2,
    },
}  # fmt: skip
# Keys that leave sizes alone: tokens, rotations, precision, losses, how something is computed.
NEUTRAL = re.compile(
    r"token_id|drop|pdrop|eps|epsilon|rope|rotary|yarn|theta|dtype|initializer|init_|_std|_act|"
    r"activation|architectures|_name|version|cache|auto_map|pretraining_tp|quantization|scaling|"
    r"output_|return_dict|router_(aux|jitter|z)|aux_loss|jitter|norm_topk_prob|score|scoring|topk_|n_group$|"
    r"routed_scaling|softcap|query_pre_attn|bos|eos|pad|unk|label|problem_type|task_specific|"
    r"summary_|is_encoder|use_mamba|time_step|chunk_size|residual|rescale|mtp|num_nextn|ep_size|"
    r"seq_aux|floor_scale|attn_scale|attn_temperature|_limit|swiglu|expert_capacity|for_llm|"
    r"transformers|_implementation|model_type|qk_head_dim|num_logits|initial_context|seed|"
    r"reorder_and|scale_attn|head_wise|position_embedding_type|parallel_residual|no_rope|"
    r"layer_norm_before|_remove_final|elementwise_affine|_overlap$|original_max|expand|norm_before_gate|hidden_bias|"
    r"^n_ctx$|^prefix$|gradient_checkpointing|torchscript|bfloat16|"
    r"^use_qk_norm$|^max_window_layers$|^moe_layer_freq$|^head_dim$|attn_implementation|tf_legacy"
)
PROJECTED = "word_embed_proj_dim"  # of OPT; another one than the hidden size adds projections
KINDS = {
    "M": "M", "mamba": "M", "linear_attention": "M",
    "*": "*", "attention": "*", "full_attention": "*",
    "sliding_attention": "w", "chunked_attention": "w",
    "-": "-", "mlp": "-", "E": "E", "moe": "E",
}  # fmt: skip


OF_YOUR_OWN = (
    "a model of your own is a Hugging Face config.json, or given by its sizes "
    "(docs/large_scale.md#a-model-of-your-own); one that a GPU can hold alone, such as "
    "my.py:task, is for `ddlnb advise`"
)


def names() -> dict[str, Path]:
    """Return the large models that are known by a configuration, by name."""
    return {path.stem: path for path in sorted(LARGE.glob("*.json"))}


def get_shape(name: str | Transformer) -> Transformer:
    """Return the shape of that name, or the shape itself; "llama-8b" is the newest Llama of it.

    A name is one of SHAPES or of data/models/large, also as the hub has it, or the file or folder
    of a Hugging Face ``config.json``. Raises UnknownName, and what `read_config` raises.

    >>> get_shape("llama-8b").name, get_shape("deepseek-v3").shape.active_parameters // 10**9
    ('llama3-8b', 37)
    >>> get_shape("meta-llama/Llama-3.1-8B-Instruct").name
    'llama3-8b'
    """
    if isinstance(name, Transformer):
        return name
    known = SHAPES | {
        shape.name.replace("llama3-", "llama-").replace("gpt3-", "gpt-"): shape
        for shape in SHAPES.values()
    }
    configured = names()
    path = configured.get(name.casefold(), Path(name))
    if path.suffix == ".json" or (path / "config.json").is_file():
        return read_config(path)
    if name.casefold() in known:
        return known[name.casefold()]
    called = {_plain(one): one for one in (*SHAPES, *configured)}
    if (hub := ON_THE_HUB.fullmatch(name)) and (one := called.get(_plain(hub[1]))):
        return get_shape(one)
    raise UnknownName("large model", name, [*SHAPES, *configured], otherwise=OF_YOUR_OWN)


# An owner, and a name that also says the tuning and the format.
ON_THE_HUB = re.compile(
    r"(?:meta-llama|mistralai|qwen|deepseek-ai|openai|nvidia|state-spaces)/"
    r"(?:meta-)?(.+?)(?:-(?:instruct|chat|base|hf|it|bf16|v\d\.\d))*",
    re.I,
)
# What the words of a table have and a name has not: remarks, minor versions, marks between words.
BESIDE_A_NAME = re.compile(r"\(.*|,.*|(?<=llama.[23])\.\d|(?<=llama[23])\.\d|[^a-z0-9.]")


OWNER = re.compile(r"^[\w.-]+/")
TUNED = re.compile(r"(?:[-_ ](?:instruct|chat|base|hf|it|bf16|v\d\.\d))+$", re.I)
IN_ALL = re.compile(r"[-_ ]\d+b$", re.I)  # parameters, of a name without them


def shape_in(words: str) -> Transformer | None:
    """Return the shape that words of a table name, in any spelling; None where they do not.

    Their beginning is enough, where one name alone has it.

    >>> shape_in("LLAMA3.1_405B").name, shape_in("Nemotron_3_Nano").name, shape_in("Qwen3")
    ('llama3-405b', 'nemotron3-nano-30b-a3b', None)
    >>> shape_in("deepseek-ai/DeepSeek-V3-Base 671B").name, shape_in("Mixtral-8x7B-v0.1").name
    ('deepseek-v3', 'mixtral-8x7b')
    """
    known = {_plain(name): name for name in (*SHAPES, *names())}
    bare = TUNED.sub("", OWNER.sub("", words.strip()))
    for spelled in (words, bare, TUNED.sub("", IN_ALL.sub("", bare))):
        said = _plain(spelled)
        found = [name for key, name in known.items() if said and key.startswith(said)]
        if name := known.get(said) or (found[0] if len(found) == 1 else ""):
            return get_shape(name)
    return None


def _plain(name: str) -> str:
    return BESIDE_A_NAME.sub("", name.casefold())


def find_shape(model: object, strict: bool = False) -> Transformer | None:
    """Return the shape of a large model by name or configuration, None for anything else.

    Raises InputError, if ``strict``, for the configuration of a family in FAMILIES that is refused.
    """
    try:
        return get_shape(str(model))
    except _OfNoFamily:
        return None
    except DdlnbError as error:
        if strict and not isinstance(error, UnknownName):
            raise
        return None


class _OfNoFamily(InputError):
    """A configuration of no family in FAMILIES, whose layers are not known."""


def read_config(path: Path) -> Transformer:
    """Return the shape that a ``config.json``, or a folder with one, describes.

    Sequences are as long as there are positions, at most 8,192 tokens. Of a model of images and
    text it is the text's part, which its name says. Raises InputError for a file that cannot be
    read, and for keys that are lacking or not understood.
    """
    path = path / "config.json" if path.is_dir() else path
    fields = read_json(path)
    is_config = isinstance(fields, dict) and "model_type" in fields
    require(is_config, f"{str(path)!r} has no model_type; give a Hugging Face config.json")
    name = path.resolve().parent.name if path.name == "config.json" else path.stem
    with reading(repr(str(path))):
        known = str(fields.get("text_config", fields).get("model_type")) in FAMILIES
        if known:
            return shape_of(fields, name)
        try:
            return _as_transformers_builds_it(fields, name, path)
        except InputError as error:
            raise _OfNoFamily(str(error)) from error


def _as_transformers_builds_it(fields: Mapping[str, Any], name: str, path: Path) -> Transformer:
    """Return the shape by the row that comes nearest to the class of transformers.

    Raises InputError where none has as many parameters.
    """
    from ddlnb.workloads.hugging_face import task_of_file
    from ddlnb.workloads.task import build_on_meta

    module = build_on_meta(task_of_file(path))
    require(
        not any(
            getattr(getattr(one, "config", None), "is_encoder_decoder", False)
            for one in module.modules()
        ),
        f"{str(path)!r} describes an encoder and a decoder, and layouts are those of a decoder; "
        f"`ddlnb advise` forecasts its replicas",
    )
    built = sum(one.numel() for one in module.parameters())
    found = [Transformer(name, 1, 1, 1, 1, 1)]
    for row in FAMILIES:
        with suppress(InputError):
            found.append(shape_of({**fields, "model_type": row}, name, strict=False))
    nearest = min(found, key=lambda one: abs(one.shape.parameters - built))
    require(
        abs(nearest.shape.parameters / built - 1) < ALIKE,
        f"{str(path)!r} describes a model with parts that are not known: transformers builds "
        f"{built:,} parameters, and none of {', '.join(FAMILIES)} has as many of its keys; "
        f"`ddlnb advise` forecasts its replicas, or give its layers in Python (Transformer.blocks)",
    )
    return nearest


def shape_of(fields: Mapping[str, Any], name: str, strict: bool = True) -> Transformer:
    """Return the shape that the fields of a configuration describe.

    Raises InputError for keys that are lacking and, if ``strict``, for those not understood.
    """
    if "text_config" in fields:
        text = {"tie_word_embeddings": fields.get("tie_word_embeddings")} | fields["text_config"]
        return shape_of(text, f"{name} (text)")
    said = _Said(name, fields, FAMILIES.get(str(fields.get("model_type")), {}))
    hidden, blocks = said.number("hidden"), _blocks(said)
    heads, positions = said.number("heads"), said.number("positions", 1 << 20)
    experts = said.get("experts") or 0
    shape = Transformer(
        name, len(blocks), hidden, heads, said.number("vocab"), min(positions, LONGEST),
        said.number("kv_heads", heads), said.get("expert_ffn") or said.number("ffn", 4 * hidden),
        said.get("head_size") or 0, said.get("gated", True), bool(said.get("tied", False)),
        said.get("learned_positions", False), norm=said.get("norm", "rms"),
        experts=experts, top_k=said.get("top_k") if experts else 0,
        positions=positions + said.get("further_positions", 0), blocks=blocks,
    )  # fmt: skip
    for word in ("ffn", "dense_ffn", "shared", "top_k", "windows"):
        said.get(word)  # not read of a model without such a part
    left = [key for key, value in fields.items() if value and key not in said.read]
    left = [key for key in left if key != PROJECTED or fields[key] != hidden]
    unread = [key for key in left if not NEUTRAL.search(key)]
    require(
        not (strict and unread),
        f"model {name!r}: what {', '.join(unread)} of its configuration does to its shape is not "
        f"known; leave out what changes no sizes, or give its layers in Python "
        f"(Transformer.blocks)",
    )
    return shape


@dataclass
class _Said:
    """The fields of a configuration by our words; ``read`` are keys that were asked for."""

    name: str
    fields: Mapping[str, Any]
    family: Mapping[str, Any]
    read: set[str] = field(default_factory=set)

    def get(self, word: str, default: Any = None) -> Any:
        """Return what the first key of a word says, or the family, or this default."""
        keys = [key for key in KEYS.get(word, ()) if self.fields.get(key) is not None]
        self.read.update(keys)
        return self.fields[keys[0]] if keys else self.family.get(word, default)

    def number(self, word: str, default: int | None = None) -> int:
        """Return a whole number above 0. Raises InputError where there is none."""
        found = self.get(word, default)
        require(
            isinstance(found, int) and found > 0,
            f"model {self.name!r}: key {KEYS[word][0]} must be a whole number above 0, not "
            f"{found!r}; add it or correct it",
        )
        return int(found)


def _blocks(said: _Said) -> tuple[Block, ...]:
    """Return the parts of every layer."""
    kinds = _kinds(said)
    layers = said.number("layers", len(kinds))
    require(
        len(kinds) == layers,
        f"model {said.name!r}: {layers} layers have {len(kinds)} kinds; give one for each",
    )
    alone = "-" in kinds or "E" in kinds or set(kinds) == {"M"}  # a layer is one of its parts
    return tuple(
        (_part(said, kind, at),) if alone else (_part(said, kind, at), _feeding(said, at))
        for at, kind in enumerate(kinds)
    )


def _kinds(said: _Said) -> list[str]:
    """Return the kind of every layer: attention (* or, with a window, w), M, - or E."""
    window, given = said.get("window"), said.get("kinds")
    pattern, first = said.get("pattern"), said.get("first_window", 0)
    if given and given != "M":
        unknown = set(given) - set(KINDS)
        require(
            not unknown,
            f"model {said.name!r}: layers of the kinds {', '.join(sorted(unknown))} are not known; "
            f"there are {', '.join(KINDS)}",
        )
        return [KINDS[kind] for kind in given]
    layers = said.number("layers")
    require(
        layers <= MOST_LAYERS,
        f"model {said.name!r}: {layers:,} layers exceed {MOST_LAYERS:,}, the most of a model",
    )
    if given or not window or not said.get("windows", True):
        return [given or "*"] * layers
    if pattern:
        return ["w" if (at + 1) % pattern else "*" for at in range(layers)]
    return ["w" if at >= first else "*" for at in range(layers)]


def _part(said: _Said, kind: str, at: int) -> LayerPart:
    if kind == "M":
        return StateSpace(
            said.number("state_heads"),
            said.number("state_head_size"),
            said.number("groups"),
            said.number("state"),
            said.number("kernel", 4),
            said.number("chunk", 256),
            bool(said.get("state_bias")),
            bool(said.get("kernel_bias", True)),
        )
    if kind in "-E":
        return _experts(said) if kind == "E" else _dense(said)
    heads, norms = said.number("heads"), said.get("norms", 1)
    if said.get("key_rank"):
        return LatentAttention(
            heads, said.get("query_rank") or 0, said.number("key_rank"), said.number("plain"),
            said.number("rotated"), said.number("value"), bool(said.get("qkv_bias")), norms,
        )  # fmt: skip
    bias, normed = bool(said.get("qkv_bias")), said.get("normed", "")
    window = said.get("window") or 0
    return SelfAttention(
        heads,
        said.number("kv_heads", heads),
        said.number("head_size", max(1, said.number("hidden") // heads)),
        window if kind == "w" else 0,
        said.get("chunked", False),
        bias,
        said.get("output_bias", bias),
        normed if isinstance(normed, str) else "head" * (normed and "normed" not in said.family),
        said.get("sinks", False),
        norms,
    )


def _feeding(said: _Said, at: int) -> LayerPart:
    """Return what follows the attention of a layer: experts, or what every token meets."""
    chosen = said.get("with_experts") or range(said.get("first_expert", 0), 1 << 20)
    every = said.get("every_expert", 1)
    is_dense = at not in chosen or (at + 1) % every or at in (said.get("without_experts") or ())
    return _experts(said) if said.get("experts") and not is_dense else _dense(said)


def _dense(said: _Said) -> LayerPart:
    usual = None if said.get("gated", True) else 4 * said.number("hidden")
    ffn = said.get("dense_ffn") or said.number("ffn", usual)
    return FeedForward(
        ffn, said.get("gated", True), bool(said.get("mlp_bias")), said.get("norms", 1)
    )


def _experts(said: _Said) -> LayerPart:
    ffn = said.get("expert_ffn") or said.number("ffn")
    return Experts(
        said.number("experts"),
        said.number("top_k"),
        ffn,
        said.get("gated", True),
        bool(said.get("mlp_bias")),
        said.get("router_bias", False),
        said.get("shared_ffn") or (said.get("shared") or 0) * ffn,
        said.get("weighed", False),
        said.get("norms", 1),
    )

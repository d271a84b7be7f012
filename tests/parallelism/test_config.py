"""Large models of Hugging Face configurations: published counts, transformers, and plain loops."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import ddlnb
from ddlnb.cli.app import app
from ddlnb.errors import InputError, UnknownName
from ddlnb.parallelism.config import (
    FAMILIES,
    LONGEST,
    find_shape,
    get_shape,
    names,
    read_config,
    shape_of,
)
from ddlnb.parallelism.layout import Layout
from ddlnb.parallelism.memory import memory
from ddlnb.parallelism.model import Transformer
from ddlnb.parallelism.parts import LatentAttention, SelfAttention, StateSpace
from ddlnb.parallelism.volumes import exchanges

# Billions of parameters, of those a token meets, and where that is published. Without a second
# number: a dense model.
PUBLISHED = {
    "mixtral-8x7b": (46.7, 12.9, "mistral.ai/news/mixtral-of-experts"),
    "mixtral-8x22b": (141, 39, "mistral.ai/news/mixtral-8x22b"),
    "qwen3-0.6b": (0.6, None, "huggingface.co/Qwen/Qwen3-0.6B"),
    "qwen3-1.7b": (1.7, None, "huggingface.co/Qwen/Qwen3-1.7B"),
    "qwen3-4b": (4.0, None, "huggingface.co/Qwen/Qwen3-4B"),
    "qwen3-8b": (8.2, None, "huggingface.co/Qwen/Qwen3-8B"),
    "qwen3-14b": (14.8, None, "huggingface.co/Qwen/Qwen3-14B"),
    "qwen3-32b": (32.8, None, "huggingface.co/Qwen/Qwen3-32B"),
    "qwen3-30b-a3b": (30.5, 3.3, "huggingface.co/Qwen/Qwen3-30B-A3B"),
    "qwen3-235b-a22b": (235, 22, "huggingface.co/Qwen/Qwen3-235B-A22B"),
    "deepseek-v3": (671, 37, "arXiv 2412.19437, section 1; without multi-token prediction"),
    "deepseek-v2": (236, 21, "arXiv 2405.04434, section 1"),
    "gpt-oss-20b": (20.91, 3.61, "arXiv 2508.10925, Table 1; active without the embedding"),
    "gpt-oss-120b": (116.83, 5.13, "arXiv 2508.10925, Table 1; active without the embedding"),
    "llama4-scout": (109, 17, "huggingface.co/meta-llama/Llama-4-Scout-17B-16E, with its vision"),
    "llama4-maverick": (400, 17, "huggingface.co/meta-llama/Llama-4-Maverick-17B-128E"),
    "nemotron4-15b": (12.5 + 3.2, None, "arXiv 2402.16819, section 2"),
    "nemotron4-340b": (331.6 + 9.4, None, "arXiv 2406.11704, section 2.1"),
    "nemotron-h-8b": (8.1, None, "arXiv 2504.03624, Table 1"),
    "nemotron-h-56b": (56, None, "arXiv 2504.03624, Table 1"),
    "nemotron3-nano-30b-a3b": (31.6, 3.6, "Nemotron 3 Nano report; active with embeddings"),
    "mamba2-2.7b": (2.7, None, "arXiv 2405.21060, section 9.2"),
}


def test_every_name_has_a_published_count() -> None:
    assert PUBLISHED.keys() == names().keys()


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_are_those_that_authors_publish(name: str) -> None:
    total, active, source = PUBLISHED[name]
    shape = get_shape(name).shape
    assert shape.parameters / 1e9 == pytest.approx(total, rel=0.012, abs=0.05)
    apart = shape.layers[0].parameters if "without the embedding" in source else 0
    assert (shape.active_parameters - apart) / 1e9 == pytest.approx(active or total, rel=0.02)


def built(path: Path) -> int:
    """Return the parameters of the class of transformers, without any weights."""
    from ddlnb.workloads.hugging_face import task_of_file
    from ddlnb.workloads.task import build_on_meta

    return sum(one.numel() for one in build_on_meta(task_of_file(path)).parameters())


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("meta-llama/Meta-Llama-3-8B", "llama3-8b"),
        ("mistralai/Mixtral-8x7B-v0.1", "mixtral-8x7b"),
        ("Qwen/Qwen3-30B-A3B", "qwen3-30b-a3b"),
        ("deepseek-ai/DeepSeek-V3-Base", "deepseek-v3"),
    ],
)
def test_models_go_by_the_names_that_the_hub_has(name: str, shape: str) -> None:
    assert get_shape(name).name == shape


@pytest.mark.parametrize("name", ["./llama3-8b", "checkpoints/llama3-8b", "Qwen/Qwen2-7B"])
def test_a_folder_that_is_not_there_is_no_model_of_the_hub(name: str) -> None:
    with pytest.raises(UnknownName, match="unknown large model"):
        get_shape(name)


@pytest.mark.parametrize("name", PUBLISHED)
def test_transformers_builds_as_many_parameters(name: str) -> None:
    assert get_shape(name).shape.parameters == built(names()[name])


SMALL = {
    "vocab_size": 1000, "hidden_size": 96, "num_hidden_layers": 4, "num_attention_heads": 6,
    "num_key_value_heads": 2, "intermediate_size": 200,
}  # fmt: skip
MIXED = {"num_experts_per_tok": 2, "moe_intermediate_size": 40}
LATENT = {
    "kv_lora_rank": 32, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16,
    "n_routed_experts": 8, "n_shared_experts": 2, "first_k_dense_replace": 1,
    "num_key_value_heads": 6, **MIXED,
}  # fmt: skip
ONE_KEY_EACH = {"num_key_value_heads": None}
# What differs from SMALL, by family; the two last are of families that have no row.
SIZES = (
    ("llama", {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}),
    ("mistral", {"sliding_window": 64}),
    ("mixtral", {"num_local_experts": 4}),
    ("qwen2", {}),
    ("qwen2_moe", {"num_experts": 6, "shared_expert_intermediate_size": 72,
                   "decoder_sparse_step": 2, **MIXED}),
    ("qwen3", {"head_dim": 32}),
    ("qwen3_moe", {"num_experts": 6, "mlp_only_layers": [1], **MIXED}),
    ("deepseek_v2", LATENT | {"q_lora_rank": None}),
    ("deepseek_v3", LATENT | {"q_lora_rank": 48, "attention_bias": True, "n_group": 2,
                              "topk_group": 1}),
    ("glm4_moe", {"n_routed_experts": 6, "n_shared_experts": 1, "first_k_dense_replace": 1,
                  "use_qk_norm": True, "attention_bias": True, **MIXED}),
    ("gpt_oss", {"num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 16}),
    ("llama4_text", {"num_local_experts": 4, "interleave_moe_layer_step": 2,
                     "intermediate_size_mlp": 300, "head_dim": 16}),
    ("nemotron", {"head_dim": 16, "attention_bias": True, "mlp_bias": True}),
    ("nemotron_h", {"hybrid_override_pattern": "M-*E", "mamba_num_heads": 4, "n_groups": 2,
                    "mamba_head_dim": 16, "ssm_state_size": 8, "n_routed_experts": 4,
                    "num_hidden_layers": None, "moe_shared_expert_intermediate_size": 80,
                    "head_dim": 16, **MIXED}),
    ("mamba2", {"num_heads": 12, "head_dim": 16, "n_groups": 2, "state_size": 16,
                "num_attention_heads": None, **ONE_KEY_EACH}),
    ("gemma", {"head_dim": 32}),
    ("gemma2", {"head_dim": 32}),
    ("gemma3_text", {"head_dim": 32}),
    ("olmo2", {}),
    ("phi3", {"pad_token_id": 0}),
    ("gpt2", {"intermediate_size": None, **ONE_KEY_EACH}),
    ("gpt_neox", ONE_KEY_EACH),
    ("starcoder2", {}),
    ("opt", {"ffn_dim": 200, "word_embed_proj_dim": 96, **ONE_KEY_EACH}),
    ("smollm3", {"pad_token_id": 0}),
    ("granite", {}),
)  # fmt: skip


@pytest.mark.parametrize(("family", "changed"), SIZES, ids=[name for name, _ in SIZES])
def test_all_keys_of_a_family_are_understood(family: str, changed: dict, tmp_path: Path) -> None:
    from transformers import CONFIG_MAPPING

    fields = CONFIG_MAPPING[family].from_dict(SMALL | changed).to_dict()
    (tmp_path / "config.json").write_text(json.dumps(fields, default=str))
    found = read_config(tmp_path)
    assert found.shape.parameters == built(tmp_path / "config.json")
    assert found.name == tmp_path.name


def test_every_row_of_a_family_is_compared_with_transformers() -> None:
    assert set(FAMILIES) - {name for name, _ in SIZES} == {"kimi_k2"}  # DeepSeek-V3 by its name


LLAMA = {**SMALL, "model_type": "llama"}


def test_positions_that_no_key_says_are_those_of_transformers() -> None:
    from transformers import CONFIG_MAPPING

    theirs = {
        name: getattr(CONFIG_MAPPING[name](), "max_position_embeddings", None) or LONGEST
        for name in set(FAMILIES) - {"kimi_k2"}
    }
    for name, positions in theirs.items():
        assert FAMILIES[name].get("positions", LONGEST) == min(positions, LONGEST), name
    fields = {key: value for key, value in LLAMA.items() if key != "max_position_embeddings"}
    assert shape_of(fields, "mine").sequence == 2048


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"moe_latent_size": 64}, "what moe_latent_size of its configuration does to its shape"),
        ({"num_hidden_layers": 10**30}, "layers exceed 10,000, the most of a model"),
        ({"hidden_size": None}, "key hidden_size must be a whole number above 0, not None"),
        ({"intermediate_size": [1, 2]}, "key intermediate_size must be a whole number"),
        ({"layer_types": ["lightning"] * 4}, "layers of the kinds lightning are not known"),
        ({"layer_types": ["mamba"] * 3}, "4 layers have 3 kinds"),
    ],
)
def test_what_is_not_understood_is_named(changed: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        shape_of(LLAMA | changed, "mine")


def test_a_family_without_a_row_is_refused_unless_transformers_agrees(tmp_path: Path) -> None:
    from transformers import CONFIG_MAPPING

    path = tmp_path / "mine.json"
    path.write_text(json.dumps(CONFIG_MAPPING["bert"].from_dict(SMALL).to_dict(), default=str))
    with pytest.raises(InputError, match=r"transformers builds 461,352 parameters"):
        read_config(path)
    path.write_text(json.dumps({"hidden_size": 4}))
    with pytest.raises(InputError, match="has no model_type"):
        read_config(path)
    with pytest.raises(InputError, match=r"absent.json cannot be read"):
        read_config(tmp_path / "absent.json")


def test_a_decoder_that_is_refused_is_not_taken_for_a_model_without_layouts(tmp_path: Path) -> None:
    (path := tmp_path / "mine.json").write_text(json.dumps(LLAMA | {"moe_latent_size": 64}))
    assert find_shape(path) is None
    assert find_shape("resnet50", strict=True) is None
    with pytest.raises(InputError, match="what moe_latent_size of its configuration"):
        find_shape(path, strict=True)
    for command in (["scale"], ["iteration", "--layout", "dp64"]):
        done = CliRunner().invoke(app, ["layouts", *command, "--model", str(path)])
        assert "what moe_latent_size" in str(done.exception)
    (encoder := tmp_path / "bert.json").write_text(json.dumps({"model_type": "bert"}))
    assert find_shape(encoder, strict=True) is None


def test_of_images_and_text_it_is_the_texts_part() -> None:
    whole = {"model_type": "llama4", "vision_config": {}, "text_config": LLAMA}
    assert shape_of(whole, "both").name == "both (text)"


def pairs(sequence: int, window: int, chunked: bool) -> float:
    """Return the pairs of tokens that attend, by a loop; a token itself counts half."""
    found = 0.0
    for token in range(sequence):
        for other in range(token + 1):
            near = token // window == other // window if chunked else token - other <= window
            edge = not chunked and token - other == window  # half of the farthest, too
            found += near * (0.5 if token == other or edge else 1)
    return found


@pytest.mark.parametrize(("window", "chunked"), [(8, False), (8, True), (12, True)])
def test_flops_of_attention_with_a_window_are_those_of_a_loop(window: int, chunked: bool) -> None:
    model = Transformer("small", 1, 48, 6, 100, 32)
    part = SelfAttention(6, 2, 16, window=window, chunked=chunked, qkv_bias=True)
    found = part.describe(model)
    matrices = 48 * (6 + 2 + 2) * 16 + 6 * 16 * 48
    assert found.flops - found.core_flops == 32 * 2 * matrices
    # Scores and values: twice 2 FLOPs per pair and element, and as many of masked pairs.
    assert found.core_flops == 2 * pairs(32, window, chunked) * 6 * 16 * 4


def test_flops_of_latent_attention_are_those_of_a_loop() -> None:
    model = Transformer("small", 1, 48, 4, 100, 16)
    found = LatentAttention(4, 12, 10, 8, 4, 6).describe(model)
    shapes = [(48, 12), (12, 4 * 12), (48, 10 + 4), (10, 4 * (8 + 6)), (4 * 6, 48)]
    flops = sum(2 * rows * columns for rows, columns in shapes for _ in range(16))
    assert found.flops - found.core_flops == flops
    assert found.core_flops == 2 * 16**2 * 4 * (8 + 4 + 6)


def test_flops_of_a_state_space_are_those_of_a_loop() -> None:
    model = Transformer("small", 1, 48, 4, 100, 32)
    part = StateSpace(heads=4, head_size=6, groups=2, state=5, kernel=3, chunk=8)
    found, scan = part.describe(model), 0
    for _chunk in range(32 // 8):
        scan += 2 * 8 * 8 * 5 * 2  # scores of tokens, for every group
        scan += 2 * 8 * 8 * 6 * 4  # their products, for every head
        scan += 2 * (2 * 8 * 5 * 6 * 4)  # states are written and read
    assert found.core_flops == scan
    mixed = 4 * 6 + 2 * 2 * 5
    matrices = 48 * (4 * 6 + mixed + 4) + mixed * 3 + 4 * 6 * 48
    assert found.flops - scan == 32 * 2 * matrices


def test_active_parameters_are_half_the_linear_flops_of_a_token() -> None:
    model = get_shape("deepseek-v3").shape
    linear = sum(one.forward_flops - one.core_flops for one in model.layers) / (2 * 4096)
    longer = sum(one.forward_flops - one.core_flops for one in model.layers) / (2 * 8192)
    assert linear != longer
    norms_and_embedding = model.active_parameters - longer
    assert 0 <= norms_and_embedding / model.layers[0].parameters - 1 < 0.01


@pytest.mark.parametrize("name", ["qwen3-30b-a3b", "nemotron-h-8b", "gpt-oss-20b"])
def test_memory_and_exchanges_of_a_model_whose_layers_differ(name: str) -> None:
    model = get_shape(name).shape
    whole = memory(model, Layout()).parameters
    assert whole == 2 * model.parameters
    split = Layout.parse("dp2 tp2 pp2 zero1 sp acc4")
    held = [memory(model, split, stage=stage).parameters for stage in range(2)]
    assert whole / 2 < 2 * sum(held) < 1.05 * whole
    assert {one.axis for one in exchanges(model, split)} >= {"tp", "pp", "data"}


def test_every_model_is_ranked_and_played(tmp_path: Path) -> None:
    for name, nodes in (("nemotron3-nano-30b-a3b", 4), ("llama4-scout", 32), ("mamba2-2.7b", 1)):
        row = ddlnb.scale(name, "H100", nodes, framework="nemo", global_batch=1024).rows(1)[0]
        assert 0.1 < row["mfu"] < 0.7
        assert math.isfinite(row["high"])
    path = tmp_path / "config.json"
    path.write_text(names()["qwen3-4b"].read_text())
    asked = ["layouts", "iteration", "--layout", "dp8 zero1", "--nodes", "1", "--model"]
    printed = CliRunner().invoke(app, [*asked, str(path), "--csv"])
    assert printed.exit_code == 0, printed.output
    assert printed.output == CliRunner().invoke(app, [*asked, "qwen3-4b", "--csv"]).output


def test_experts_have_replicas_of_their_own_in_forecasts() -> None:
    asked = {"framework": "nemo", "global_batch": 1024, "sequence": 4096}
    ranking = ddlnb.scale("qwen3-30b-a3b", "H100", 8, **asked)
    cases = ranking.outlook.cases
    alike = (cases.tp == 1) & (cases.pp == 1) & (cases.zero == 1) & (cases.micro_batch == 1)
    alike &= cases.recomputation == 2
    by_ep = {int(cases.ep[index]): index for index in np.flatnonzero(alike)}
    found = ranking.outlook
    memories = [found.most_gib[by_ep[ep]] for ep in (1, 2, 4, 8)]
    assert memories == sorted(memories, reverse=True)
    assert found.step.reduction[by_ep[8]] < found.step.reduction[by_ep[1]]
    assert found.step.tensor[by_ep[8]] > found.step.tensor[by_ep[1]]
    only = ddlnb.scale("qwen3-30b-a3b", "H100", 8, ep=8, **asked)
    assert (only.outlook.cases.ep == 8).all()


@pytest.mark.thorough
def test_a_configuration_is_advised_on_and_traced_like_its_name(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_text(names()["qwen3-32b"].read_text())
    cluster = ddlnb.cluster_of("H100", nodes=4)
    found = ddlnb.advise(str(path), cluster, draws=0, sequence=4096)
    assert found.verdict.fits is False
    named = ddlnb.advise("qwen3-32b", cluster, draws=0, sequence=4096).verdict
    assert named == found.verdict
    traced = CliRunner().invoke(app, ["models", "qwen3-0.6b", "--csv"])
    assert f"{get_shape('qwen3-0.6b').shape.parameters}" in traced.output, traced.output
    assert ",1,512,traced on the meta device" in traced.output  # a sample of 512 tokens
    listed = CliRunner().invoke(app, ["models", "--large", "--csv"])
    assert "mixtral-8x7b,46702792704,12879925248,32,2 of 8,8192" in listed.output


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (
            {"model_type": "opt", "hidden_size": 64, "num_hidden_layers": 2, "ffn_dim": 256,
             "num_attention_heads": 4, "vocab_size": 512, "word_embed_proj_dim": 32},
            "word_embed_proj_dim",
        ),
        (
            {"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2,
             "num_attention_heads": 4, "vocab_size": 512},
            "intermediate_size must be a whole number above 0, not None",
        ),
    ],
)  # fmt: skip
def test_sizes_that_a_configuration_does_not_say_are_not_guessed(fields, said):
    with pytest.raises(InputError, match=said):
        shape_of(fields, "mine")


def test_an_encoder_with_a_decoder_is_no_decoder_whatever_its_parameters(tmp_path):
    (file := tmp_path / "config.json").write_text(
        json.dumps(
            {
                "model_type": "t5",
                "architectures": ["T5ForConditionalGeneration"],
                "d_model": 64,
                "d_ff": 256,
                "num_layers": 2,
                "num_heads": 4,
                "d_kv": 16,
                "vocab_size": 512,
                "decoder_start_token_id": 0,
                "is_encoder_decoder": True,
            }
        )
    )
    with pytest.raises(InputError, match="an encoder and a decoder"):
        read_config(file)

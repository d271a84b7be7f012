"""Launch files: settings are read as the layout that was written, and files of others as theirs."""

import json
from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

from ddlnb.errors import InputError
from ddlnb.files import ROOT
from ddlnb.parallelism.config import get_shape
from ddlnb.parallelism.launch_files import (
    changes,
    counts_in,
    options_in,
    plain,
    read_launch,
    written,
)
from ddlnb.parallelism.layout import Layout
from ddlnb.parallelism.settings import (
    ACCELERATE,
    DEEPSPEED,
    FORMATS,
    LAUNCHERS,
    MEGATRON,
    NANOTRON,
    TORCHTITAN,
)

RUNS = ROOT / "docs" / "questions" / "runs"
WRITING = (MEGATRON, TORCHTITAN, DEEPSPEED, NANOTRON)
SUFFIX = {"flags": "sh", "toml": "toml", "json": "json", "yaml": "yaml"}
TWOS = st.sampled_from([1, 2, 4])


@st.composite
def layouts(draw):
    tp, pp, vpp = draw(TWOS), draw(TWOS), draw(st.sampled_from([1, 1, 2]))
    zero = draw(st.sampled_from([0, 1, 2, 3]))
    layout = Layout(
        dp=8,
        tp=tp,
        pp=pp,
        cp=draw(st.sampled_from([1, 2])),
        ep=draw(st.sampled_from([1, 2])),
        vpp=vpp if pp > 1 else 1,
        zero=zero,
        sequence_parallel=tp > 1 and draw(st.booleans()),
        recomputation=draw(st.sampled_from(["none", "selective", "full"])),
        schedule="interleaved" if pp > 1 and vpp > 1 else "1f1b",
        micro_batch=draw(TWOS),
        micro_batches=pp * draw(TWOS),
    )
    return replace(layout, shard=4) if zero and layout.ep == 1 and draw(st.booleans()) else layout


@pytest.mark.parametrize("form", WRITING, ids=lambda one: one.name)
@given(layout=layouts())
def test_settings_that_are_read_again_are_the_same_layout(form, layout, tmp_path_factory):
    try:
        text = written(layout, form, layers=32, sequence=4096, overlap=True)
    except InputError:  # says which words it lacks: below
        return
    path = tmp_path_factory.mktemp("run") / f"launch.{SUFFIX[form.kind]}"
    path.write_text(text.replace("--num-layers 32", "--num-layers 32 --hidden-size 64"))
    nodes = max(1, layout.ranks // 8)
    launch = read_launch(path, nodes=nodes, gpus_per_node=layout.ranks // nodes)
    if form is TORCHTITAN and layout.vpp > 1:  # which has the layers elsewhere
        path.write_text(f'[model]\nname = "llama3"\nflavor = "8B"\n{text}')
        launch = read_launch(path, nodes=nodes, gpus_per_node=layout.ranks // nodes)
    assert plain(launch.layout) == plain(layout)
    assert launch.formats == (form,)
    assert launch.unknown == ()


@pytest.mark.parametrize(
    ("form", "text"),
    [
        (MEGATRON, "dp2 tp2 pp2 vpp4 zero1 sp full acc4"),
        (MEGATRON, "dp8 zero3 shard4 cp2 mb2 order=tp-cp-pp-dp"),
        (TORCHTITAN, "dp4 tp2 pp2 vpp2 zero2 sp selective mb2 acc4"),
        (TORCHTITAN, "dp8 zero3 shard4 ep1 full acc2"),
        (DEEPSPEED, "dp8 zero3 shard4 mb2 acc2"),
        (NANOTRON, "dp4 tp2 pp2 zero1 sp full mb2 acc8 gpipe"),
    ],
)
def test_what_a_format_has_words_for_is_written(form, text):
    assert written(Layout.parse(text), form, layers=32, sequence=4096)


@pytest.mark.parametrize(
    ("form", "word"),
    [(TORCHTITAN, "zero1"), (DEEPSPEED, "tp2"), (NANOTRON, "selective"), (MEGATRON, "keep")],
)
def test_a_format_without_words_for_a_layout_names_them(form, word):
    layout = Layout.parse(f"dp4 tp2 sp zero1 selective {'keep' * (word == 'keep')} acc2")
    with pytest.raises(InputError, match=f"{form.name} has no words for .*{word}"):
        written(layout, form, layers=32, sequence=4096)


def test_what_torch_refuses_is_not_written_for_torchtitan():
    for rounds in (8, 4):
        layout = Layout.parse(f"dp2 pp4 dualpipe-v zero2 acc{rounds}")
        if rounds == 8:
            assert "DualPipeV" in written(layout, TORCHTITAN, layers=16, sequence=64)
        else:
            with pytest.raises(InputError, match="DualPipeV with 4 micro batches on 4 stages"):
                written(layout, TORCHTITAN, layers=16, sequence=64)


def test_an_option_has_one_meaning_in_a_format():
    for form in FORMATS:
        said = [(one.name, one.field) for one in (*form.options, *form.read, *LAUNCHERS)]
        assert len(said) == len(set(said))


def test_options_of_experts_that_change_their_work_are_not_neutral(tmp_path):
    script = (RUNS / "megatron.sh").read_text()
    (tmp_path / "run.sh").write_text(
        script.rstrip() + " --moe-router-num-groups 4 --moe-router-load-balancing-type aux_loss\n"
    )
    launch = read_launch(tmp_path / "run.sh")
    assert "moe_router_num_groups" in launch.unknown
    assert not any("balancing" in one for one in launch.unknown)


def test_a_script_of_megatron_says_layout_and_model():
    launch = read_launch(RUNS / "megatron.sh")
    assert str(launch.layout) == "dp4 tp4 zero1 sp acc32"
    assert launch.model.shape.parameters == get_shape("llama3-8b").shape.parameters
    assert (launch.said["sequence"], launch.said["precision"]) == (8192, "bf16")
    assert launch.unknown == ("moe_pad_expert_input_to_capacity",)


def test_a_toml_of_torchtitan_takes_the_gpus_that_are_left():
    launch = read_launch(RUNS / "titan.toml", nodes=16, gpus_per_node=8)
    assert str(launch.layout) == "dp128 zero3 selective"
    assert launch.model.name == "llama3-8b"
    assert launch.unknown == ("activation_checkpoint.selective_ac_option",)
    with pytest.raises(InputError, match="say how many GPUs there are"):
        read_launch(RUNS / "titan.toml")


DEEPSPEED_JSON = {
    "train_micro_batch_size_per_gpu": 4,
    "gradient_accumulation_steps": 8,
    "train_batch_size": 512,
    "zero_optimization": {"stage": 3, "overlap_comm": True, "reduce_bucket_size": 5e8},
    "bf16": {"enabled": True},
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
    "steps_per_print": 10,
    "flops_profiler": {"enabled": True},
    "amp": {"enabled": False},
}
NANOTRON_YAML = """
parallelism: {dp: 4, tp: 2, pp: 2, pp_engine: 1f1b, tp_mode: REDUCE_SCATTER, recompute_layer: true}
optimizer: {zero_stage: 1}
tokens: {micro_batch_size: 2, batch_accumulation_per_replica: 16, sequence_length: 4096}
model:
  dtype: bfloat16
  model_config: {hidden_size: 2048, intermediate_size: 8192, num_hidden_layers: 16,
    num_attention_heads: 32, num_key_value_heads: 8, vocab_size: 128256, is_llama_config: true,
    tie_word_embeddings: true, max_position_embeddings: 4096}
"""
ACCELERATE_YAML = """
distributed_type: FSDP
mixed_precision: bf16
num_machines: 2
num_processes: 16
fsdp_config: {fsdp_sharding_strategy: HYBRID_SHARD, fsdp_activation_checkpointing: true}
"""
TRAINER = """torchrun --nnodes=2 --nproc-per-node=8 run_clm.py --model_name_or_path \
meta-llama/Llama-3-8B --per_device_train_batch_size 2 --gradient_accumulation_steps 4 \
--bf16 True --fsdp "full_shard auto_wrap" --gradient_checkpointing --block_size 2048 \
--learning_rate 2e-5 --neftune_noise_alpha 5
"""


@pytest.mark.parametrize(
    ("name", "text", "form", "layout", "unknown"),
    [
        ("ds.json", json.dumps(DEEPSPEED_JSON), DEEPSPEED, "dp16 zero3 mb4 acc8", ("amp.enabled",)),
        ("run.yaml", NANOTRON_YAML, NANOTRON, "dp4 tp2 pp2 zero1 sp full mb2 acc16", ()),
        ("a.yaml", ACCELERATE_YAML, ACCELERATE, "dp16 zero3 shard8 full", ()),
        ("a.yaml", ACCELERATE_YAML.replace("SHARD,", "SHARD_ZERO2,"), ACCELERATE,
         "dp16 zero2 shard8 full", ()),
        ("a.yaml", ACCELERATE_YAML.replace("sharding_strategy", "reshard_after_forward"),
         ACCELERATE, "dp16 zero3 shard8 full", ()),
        ("a.yaml", ACCELERATE_YAML.replace("machines: 2", "machines: 0"), ACCELERATE,
         "dp16 zero3 shard8 full", ()),
        ("a.yaml", ACCELERATE_YAML.replace("HYBRID_SHARD,", "4,"), ACCELERATE,
         "dp16 zero3 shard8 full", ()),
        (
            "run.sh", TRAINER.replace("full_shard", "hybrid_shard"), ACCELERATE,
            "dp16 zero3 shard8 full mb2 acc4", ("neftune_noise_alpha",),
        ),
        (
            "run.sh", TRAINER, ACCELERATE, "dp16 zero3 full mb2 acc4", ("neftune_noise_alpha",),
        ),
    ],
)  # fmt: skip
def test_files_of_frameworks_are_read(name, text, form, layout, unknown, tmp_path):
    (tmp_path / name).write_text(text)
    counts = {} if name == "ds.json" else {"nodes": 2, "gpus_per_node": 8}
    launch = read_launch(tmp_path / name, **counts)
    assert launch.formats == (form,)
    assert str(launch.layout) == layout
    assert launch.unknown == unknown


def test_hybrid_sharding_is_within_a_node_of_the_file_s_own_counts(tmp_path):
    (tmp_path / "a.yaml").write_text(ACCELERATE_YAML.replace("machines: 2", "machines: 4"))
    assert read_launch(tmp_path / "a.yaml").layout.shard == 4


def test_a_model_s_sizes_and_names_are_read(tmp_path):
    (tmp_path / "run.yaml").write_text(NANOTRON_YAML)
    found = read_launch(tmp_path / "run.yaml").model
    assert found.shape.parameters == get_shape("llama3-1b").shape.parameters
    (tmp_path / "run.sh").write_text(TRAINER)
    assert read_launch(tmp_path / "run.sh").model.name == "llama3-8b"


def test_files_of_one_run_are_joined_and_may_not_contradict(tmp_path):
    script, config = tmp_path / "run.sh", tmp_path / "ds.json"
    script.write_text(
        "torchrun --nnodes 2 --nproc-per-node 8 run.py --gradient_accumulation_steps 8"
    )
    config.write_text(json.dumps(DEEPSPEED_JSON))
    assert str(read_launch([script, config]).layout) == "dp16 zero3 mb4 acc8"
    script.write_text(script.read_text().replace("steps 8", "steps 4"))
    with pytest.raises(InputError, match="says micro_batches 8, and another file 4"):
        read_launch([script, config])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("echo nothing", "has no option of Megatron-LM, torchtitan"),
        (
            "--micro-batch-size $SIZE --global-batch-size 8",
            "is '\\$SIZE', which is no whole number",
        ),
        (
            "--micro-batch-size 3 --global-batch-size 64",
            "is not 8 replicas times a micro batch of 3",
        ),
        ("--micro-batch-size 1 --tensor-model-parallel-size 3", "and not the 8 that there are"),
    ],
)
def test_what_cannot_be_is_said_with_its_numbers(text, said, tmp_path):
    (tmp_path / "run.sh").write_text(text)
    with pytest.raises(InputError, match=said):
        assert read_launch(tmp_path / "run.sh", nodes=1, gpus_per_node=8).layout


@pytest.mark.parametrize("quote", ['"', "'"])
def test_flags_in_a_string_are_flags_and_the_text_of_another_flag_is_none(quote):
    said = {"num_layers": 4, "bf16": True}
    text = f"ARGS={quote}--num-layers 4 --bf16{quote}\ntorchrun --nnodes 2 run.py $ARGS"
    assert options_in(text) == {**said, "nnodes": 2}
    assert options_in(f"bash -c {quote}torchrun run.py --num-layers 4 --bf16{quote}") == said
    noted = options_in(f"--num-layers 4 --wandb-notes {quote}as with --bf16{quote}")
    assert noted == {"num_layers": 4, "wandb_notes": "as with --bf16"}


def test_a_variable_is_its_value_or_what_stands_in_for_it():
    text = "A=${B:-4}\nC=$A\n--num-layers $C --bf16 # --fp16\n--seq-length ${NONE:-128}"
    assert options_in(text) == {"num_layers": 4, "bf16": True, "seq_length": 128}


TP = "\npretrain.py --lr $LR --tensor-model-parallel-size ${TP}"


@pytest.mark.parametrize(
    "text",
    [
        "if [ $S = 7b ]; then TP=1; else TP=8; fi",
        "case $S in\n 7b) TP=1;;\n 70b) TP=8;;\nesac",
        "TP=1\n[[ $S = 70b ]] && TP=8",
        "if a; then X=1\nelse X=8\nfi\nTP=$X",
    ],
)
def test_a_variable_that_differs_by_branch_has_no_value(text):
    with pytest.raises(InputError, match=r"tensor-model-parallel-size is 1 and 8 by branches"):
        options_in(text + TP)


@pytest.mark.parametrize(
    "text",
    [
        "if [ $S = 7b ]; then TP=8; else TP=8; fi",
        "if a; then TP=1; else TP=2; fi\nTP=8",
        "if [ -z $TP ]; then TP=8; fi; TP=${TP:-4}",
        "LR=1e-4; if a; then LR=2e-4; fi\nTP=8",
        "if [ ! -d log ]; then mkdir log; fi\nTP=1\nTP=8",
    ],
)
def test_branches_that_do_not_matter_are_no_reason_to_refuse(text):
    assert options_in(text + TP)["tensor_model_parallel_size"] == 8


def test_flags_that_differ_by_branch_have_no_value():
    text = 'if a; then ARGS="--seq-length 8"; else ARGS="--seq-length 2"; fi\nrun.py $ARGS'
    with pytest.raises(InputError, match="--seq-length is 8 and 2 by branches"):
        options_in(text)


@pytest.mark.parametrize(
    "gpus",
    [
        "--gres=gpu:4", '--gres="gpu:4"', "--gres=gpu:a100-sxm4-80gb:4", "--gres=gpu:4,nvme:1",
        "--gpus-per-node=4", "--gpus-per-node a100:4", "--gres=gpu:80gb:4",
    ],
)  # fmt: skip
def test_slurm_s_words_for_gpus_are_read(gpus, tmp_path):
    (tmp_path / "job.sh").write_text(
        f"#SBATCH {gpus} -N 2\n#SBATCH --cpus-per-task=8 --mem=0\n"
        "ip=$(srun --nodes=1 hostname)\nsrun pretrain_gpt.py --micro-batch-size 1"
    )
    assert counts_in([tmp_path / "job.sh"]) == {"nodes": 2, "gpus_per_node": 4}
    assert read_launch(tmp_path / "job.sh").unknown == ()


@pytest.mark.parametrize(
    ("start", "layout"),
    [
        ("accelerate launch --num_processes 32 --num_machines 4", "dp32"),
        ("torchrun --nproc-per-node=$(nvidia-smi -L | wc -l)", "do not say how many GPUs"),
        ("torchrun --nnodes 2 --nproc-per-node auto", "do not say how many GPUs"),
    ],
)
def test_tasks_of_slurm_are_no_gpus_where_others_say_them(start, layout, tmp_path):
    (tmp_path / "job.sh").write_text(
        f"#SBATCH --nodes=4 --ntasks-per-node=1\nsrun {start} run.py --micro-batch-size 1"
    )
    if "say" in layout:
        with pytest.raises(InputError, match=layout):
            assert read_launch(tmp_path / "job.sh").layout
    else:
        assert str(read_launch(tmp_path / "job.sh").layout) == layout


def test_a_job_of_slurm_says_its_nodes_and_gpus_and_not_its_launchers(tmp_path):
    script = tmp_path / "job.sh"
    script.write_text(
        "#!/bin/bash\n#SBATCH -N 4\n#SBATCH --ntasks-per-node=1\n#SBATCH --gres=gpu:h100:8\n"
        "# --bf16\nsrun torchrun --nnodes=$SLURM_NNODES --nproc-per-node=$SLURM_GPUS_ON_NODE "
        "pretrain_gpt.py --micro-batch-size 1 --num-layers 4\n"
    )
    assert counts_in([script]) == {"nodes": 4, "gpus_per_node": 8}
    assert str(read_launch(script).layout) == "dp32"
    assert read_launch(script).unknown == ()
    script.write_text("srun --nodes 2 --ntasks-per-node 8 pretrain_gpt.py --micro-batch-size 1")
    assert counts_in([script]) == {"nodes": 2, "gpus_per_node": 8}


@pytest.mark.parametrize(
    ("said", "layout", "unknown"),
    [
        ({"train_batch_size": 512, "gradient_accumulation_steps": 4}, "dp32 zero3 mb4 acc4", ()),
        ({"train_batch_size": 512}, "dp32 zero3 mb16", ()),
        ({"train_batch_size": 512, "tensor_parallel": {"autotp_size": 0}}, "dp32 zero3 mb16", ()),
        ({"train_batch_size": 512, "optimizer": {"params": {"lr": "auto"}}}, "dp32 zero3 mb16", ()),
        ({"train_batch_size": 500}, "500 does not divide among 32 replicas", ()),
        (
            {"train_batch_size": 64, "gradient_accumulation_steps": 0},
            "gradient_accumulation_steps 0 must be a whole number",
            (),
        ),
        (
            {"train_micro_batch_size_per_gpu": "auto", "train_batch_size": "auto"},
            "dp32 zero3",
            ("train_micro_batch_size_per_gpu auto",),
        ),
    ],
)
def test_deepspeed_s_micro_batch_follows_from_its_batch(said, layout, unknown, tmp_path):
    more = {
        "zero_hpz_partition_size": 1,
        "allgather_partitions": True,
        "reduce_bucket_size": "auto",
    }
    config = {**said, "zero_optimization": {"stage": 3, **more}}
    (tmp_path / "ds.json").write_text(json.dumps(config))
    if " " in layout and not layout.startswith("dp"):
        with pytest.raises(InputError, match=layout):
            read_launch(tmp_path / "ds.json", nodes=4, gpus_per_node=8)
        return
    launch = read_launch(tmp_path / "ds.json", nodes=4, gpus_per_node=8)
    assert (str(launch.layout), launch.unknown) == (layout, unknown)


@pytest.mark.parametrize("option", ["zero_hpz_partition_size", "zero_quantized_weights"])
def test_what_a_layout_has_no_word_for_is_named(option, tmp_path):
    config = {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 3, option: 8}}
    (tmp_path / "ds.json").write_text(json.dumps(config))
    assert option in read_launch(tmp_path / "ds.json", nodes=4, gpus_per_node=8).unknown[0]


TITAN_PIPELINE = """
[training]
local_batch_size = 8
global_batch_size = {}
[parallelism]
pipeline_parallel_degree = 4
"""


def test_torchtitan_s_batch_is_what_fills_its_pipelines_once(tmp_path):
    for batch in (-1, 64):
        (tmp_path / "run.toml").write_text(TITAN_PIPELINE.format(batch))
        launch = read_launch(tmp_path / "run.toml", nodes=4, gpus_per_node=8)
        assert str(launch.layout) == "dp8 pp4 zero2 acc8"
    (tmp_path / "run.toml").write_text(TITAN_PIPELINE.format(128))
    with pytest.raises(InputError, match="128 is not 8 pipelines times 8 samples"):
        read_launch(tmp_path / "run.toml", nodes=4, gpus_per_node=8)


def test_changes_make_a_launch_file_say_the_best_layout(tmp_path):
    """Torchtitan's file has no global batch: with a smaller micro batch it must be written."""
    path = tmp_path / "titan.toml"
    path.write_text(
        '[model]\nname = "llama3"\nflavor = "8B"\n'
        "[training]\nlocal_batch_size = 8\nseq_len = 4096\nmax_norm = 1.0\n"
        "[quantize.linear.float8]\nenable = false\n"
    )
    launch = read_launch(path, nodes=2, gpus_per_node=8)
    about = {"layers": 32, "sequence": 4096}
    lines = changes(launch, Layout.parse("dp16 zero3 mb2 acc4"), **about)
    assert "- training.local_batch_size = 8" in lines
    assert {"+ training.local_batch_size = 2", "+ training.global_batch_size = 128"} <= {*lines}
    added = [one.removeprefix("+ ") for one in lines if one.startswith("+")]
    again = tmp_path / "again.toml"
    again.write_text('model.name = "llama3"\nmodel.flavor = "8B"\n' + "\n".join(added))
    assert str(read_launch(again, nodes=2, gpus_per_node=8).layout) == "dp16 zero3 mb2 acc4"
    assert launch.framework == "fsdp"  # not compiled unless it says so


def test_changes_are_in_the_words_of_the_file(tmp_path):
    path = tmp_path / "run.sh"
    path.write_text(
        "torchrun pretrain_gpt.py --num-layers 32 --hidden-size 4096 --num-attention-heads 32 "
        "--vocab-size 32000 --seq-length 4096 --pipeline-model-parallel-size 4 "
        "--num-virtual-stages-per-pipeline-rank 4 --micro-batch-size 1 --global-batch-size 64\n"
    )
    launch = read_launch(path, nodes=2, gpus_per_node=8)
    wanted = Layout.parse("dp8 pp2 vpp8 interleaved acc8")
    lines = changes(launch, wanted, layers=32, sequence=4096)
    assert "- --num-virtual-stages-per-pipeline-rank 4" in lines
    assert "+ --num-layers-per-virtual-pipeline-stage 2" in lines


@pytest.mark.parametrize(
    ("layers", "layout", "written_as"),
    [
        (126, "tp8 pp8 zero1 sp acc16", {"account-for-embedding-in-pipeline-split"}),
        (126, "tp8 pp16 vpp4 zero1 sp acc16", {"num-layers-per-virtual-pipeline-stage 2"}),
        (32, "pp9 zero1 acc9", {"decoder-first-pipeline-num-layers 2"}),
        (96, "pp8 zero1 acc8", set()),
    ],
)
def test_stages_that_do_not_divide_the_layers_are_said_as_megatron_takes_them(
    layers, layout, written_as
):
    one = Layout.parse(layout)
    text = written(one, MEGATRON, layers=layers, sequence=4096, gpus_per_node=one.ranks)
    assert all(option in text for option in written_as)
    assert bool(written_as) == ("pipeline-split" in text or "decoder-first" in text)


def test_what_megatron_cannot_divide_is_refused_and_other_stages_take_their_words_along(tmp_path):
    with pytest.raises(InputError, match="no words for 61 layers on 32 stages"):
        written(Layout.parse("pp32 acc32"), MEGATRON, layers=61, sequence=4096)
    for form in (MEGATRON, TORCHTITAN):
        with pytest.raises(InputError, match="32 layers make no 12 equal chunks"):
            written(Layout.parse("dp2 pp4 vpp3 acc8"), form, layers=32, sequence=4096)
    path = tmp_path / "run.sh"
    path.write_text(
        "torchrun pretrain_gpt.py --num-layers 61 --pipeline-model-parallel-size 8 "
        "--decoder-first-pipeline-num-layers 7 --decoder-last-pipeline-num-layers 6 "
        "--seq-length 4096 --micro-batch-size 1 --global-batch-size 8 --bf16\n"
    )
    launch = read_launch(path, nodes=1, gpus_per_node=8)
    assert launch.unknown == ()
    lines = changes(launch, Layout.parse("dp2 pp4 acc4"), layers=61, sequence=4096)
    assert {
        "- --decoder-first-pipeline-num-layers 7",
        "- --decoder-last-pipeline-num-layers 6",
    } <= {*lines}
    assert "+ --decoder-first-pipeline-num-layers 15" in lines


def test_chunks_that_are_not_equal_can_be_left_behind(tmp_path):
    path = tmp_path / "run.sh"
    path.write_text(
        "torchrun pretrain_gpt.py --num-layers 32 --pipeline-model-parallel-size 4 "
        "--num-virtual-stages-per-pipeline-rank 3 --seq-length 4096 --micro-batch-size 1 "
        "--global-batch-size 16 --bf16\n"
    )
    launch = read_launch(path, nodes=1, gpus_per_node=8)
    assert launch.layout.vpp == 3
    lines = changes(launch, Layout.parse("dp2 pp4 acc8"), layers=32, sequence=4096)
    assert "- --num-virtual-stages-per-pipeline-rank 3" in lines


def test_which_layers_have_experts_is_read_as_the_scripts_of_deepseek_say_it(tmp_path):
    path = tmp_path / "run.sh"
    start = "torchrun pretrain_gpt.py --num-layers 61 --num-experts 256 --moe-layer-freq "
    path.write_text(start + "'([0]*3+[1]*58)' --bf16\n")
    said = read_launch(path, nodes=1, gpus_per_node=8).said
    assert said["model.first_k_dense_replace"] == 3
    assert said["model.moe_layer_freq"] == 1
    path.write_text(start + "'[0,1]*30' --bf16\n")
    with pytest.raises(InputError, match=r"is neither a whole number nor like '\(\[0\]\*3"):
        read_launch(path, nodes=1, gpus_per_node=8)


@pytest.mark.parametrize(
    ("converters", "precision", "unknown"),
    [
        ("float8", "fp8", ()),
        ("quantize.linear.float8", "fp8", ()),
        ("mx", None, ("model.converters ['mx']",)),
    ],
)
def test_what_changes_the_precision_is_read_or_named(tmp_path, converters, precision, unknown):
    """TorchTitan's float8 is a list of converters; a list of no option is nothing to report."""
    (file := tmp_path / "titan.toml").write_text(
        f'[model]\nname = "llama3"\nflavor = "8B"\nconverters = ["{converters}"]\n'
        "[training]\nlocal_batch_size = 1\nseq_len = 8192\n[parallelism]\n"
        "data_parallel_shard_degree = -1\n[experimental]\ncustom_args = []\n"
    )
    found = read_launch(file, nodes=2, gpus_per_node=8)
    assert (found.said.get("precision"), found.unknown) == (precision, unknown)


@pytest.mark.parametrize("precision", ["bf16", "fp8"])
@pytest.mark.parametrize(("compiled", "framework"), [(True, TORCHTITAN.framework), (False, "fsdp")])
def test_torchtitan_is_told_precision_and_compiler(tmp_path, precision, compiled, framework):
    text = written(
        Layout(dp=16, zero=3), TORCHTITAN, layers=32, sequence=4096, precision=precision,
        compiled=compiled,
    )  # fmt: skip
    (file := tmp_path / "titan.toml").write_text(text)
    found = read_launch(file, nodes=2, gpus_per_node=8)
    assert (found.said["precision"], found.framework) == (precision, framework)
    assert found.unknown == ()


@pytest.mark.parametrize(("offloads", "unknown"), [("true", True), ("false", False)])
def test_offloading_that_is_off_is_nothing_to_report(tmp_path, offloads, unknown):
    (file := tmp_path / "fsdp.yaml").write_text(
        "num_processes: 16\nnum_machines: 2\nfsdp_config:\n"
        f"  fsdp_sharding_strategy: FULL_SHARD\n  fsdp_offload_params: {offloads}\n"
    )
    assert ("fsdp_config.fsdp_offload_params" in read_launch(file).unknown) == unknown


@pytest.mark.parametrize(("device", "unknown"), [("cpu", True), ("none", False)])
def test_deepspeed_offloads_nothing_to_no_device(tmp_path, device, unknown):
    (file := tmp_path / "ds.json").write_text(
        '{"train_batch_size": 32, "train_micro_batch_size_per_gpu": 2, "zero_optimization": '
        f'{{"stage": 3, "offload_optimizer": {{"device": "{device}", "pin_memory": true}}}}}}'
    )
    assert bool(read_launch(file).unknown) == unknown


@pytest.mark.parametrize(
    ("flags", "unknown"),
    [
        ("--optimizer adam", ()),
        ("--optimizer sgd", ("optimizer sgd",)),
        ("--optim adamw_torch_fused", ()),
        ("--optim adamw_hf", ()),
        ("--optim adamw_bnb_8bit", ("optim adamw_bnb_8bit",)),
        ("--use-precision-aware-optimizer", ("use_precision_aware_optimizer",)),
        ("--use-distributed-optimizer --sgd-momentum 0.9", ()),
    ],
)
def test_an_optimizer_of_other_states_is_named(tmp_path, flags, unknown):
    (script := tmp_path / "run.sh").write_text(
        f"torchrun pretrain_gpt.py --num-layers 32 --bf16 {flags}\n"
    )
    assert read_launch(script, nodes=2, gpus_per_node=8).unknown == unknown


def test_a_script_without_positions_has_those_of_its_sequences(tmp_path):
    (script := tmp_path / "run.sh").write_text(
        "torchrun pretrain_gpt.py --num-layers 32 --hidden-size 4096 --num-attention-heads 32 "
        "--seq-length 8192 --vocab-size 50304 --bf16\n"
    )
    assert read_launch(script, nodes=2, gpus_per_node=8).model.positions == 8192


def test_files_that_are_read_alone_are_not_written(tmp_path):
    (file := tmp_path / "fsdp.yaml").write_text(
        "num_processes: 16\nnum_machines: 2\nfsdp_config:\n  fsdp_sharding_strategy: HYBRID_SHARD\n"
    )
    found = read_launch(file)
    assert found.layout.shard == 8
    with pytest.raises(InputError, match="are read here and not written; take dp16 zero3 into"):
        changes(found, Layout(dp=16, zero=3), layers=32, sequence=4096)

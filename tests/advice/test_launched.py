"""A run by its launch file and log: forecast, gap and suspects; settings are what was advised."""

import re
from collections import OrderedDict
from dataclasses import replace

import pytest
import torch
from torch import distributed as dist, nn

import ddlnb
from ddlnb.advice.launched import advise_launched, explained
from ddlnb.advice.settings import torch_code
from ddlnb.errors import InputError
from ddlnb.parallelism.forecast.layouts import ranking_of
from ddlnb.parallelism.launch_files import plain, read_launch
from ddlnb.parallelism.layout import Layout
from tests.parallelism.test_launch_files import RUNS
from tests.traces.test_training_logs import DEEPSPEED, MEGATRON, TRAINER

SCRIPT = RUNS / "megatron.sh"


@pytest.fixture(scope="module")
def cluster():
    return ddlnb.cluster_of("H100", nodes=2, network="8x400GbIB")


def logged(path, seconds):
    path.write_text("".join(MEGATRON.format(step=n, ms=1e3 * seconds) for n in range(20)))
    return path


def test_a_run_that_takes_what_is_forecast_has_no_suspects(cluster, tmp_path):
    asked = advise_launched(SCRIPT, cluster)
    forecast = asked.rows.iloc[0]
    alone = ranking_of(asked.question, Layout.parse("dp4 tp4 zero1 sp acc32"))
    assert forecast["seconds"] == pytest.approx(float(alone.outlook.seconds[0]))
    log = logged(tmp_path / "train.log", forecast["seconds"])
    found = advise_launched(SCRIPT, cluster, log)
    assert found.rows["tokens_per_s_per_gpu"].iloc[2] == pytest.approx(
        forecast["tokens_per_s_per_gpu"], rel=1e-3
    )
    assert "as forecast" in str(found)
    assert "Suspect" not in str(found)
    assert "Options that are not known: moe_pad_expert_input_to_capacity." in found.said


def test_what_was_made_worse_is_found_with_its_extent(cluster, tmp_path):
    asked = advise_launched(SCRIPT, cluster).question
    gpu, layout = asked.gpu, Layout.parse("dp4 tp4 zero1 sp acc32")
    slow = replace(gpu, flops={name: rate / 2 for name, rate in gpu.flops.items()})
    seconds = float(ranking_of(replace(asked, gpu=slow), layout).outlook.seconds[0])
    found = {one.circumstance.name: one for one in explained(asked, layout, seconds)}
    assert found["GPUs below their clock"].times == pytest.approx(2, rel=1e-2)
    again = float(ranking_of(asked, replace(layout, recomputation="full")).outlook.seconds[0])
    [first, *_] = explained(asked, layout, again)
    assert first.circumstance.name == "activations that are computed again"
    assert first.apart == pytest.approx(0)
    said = str(advise_launched(SCRIPT, cluster, logged(tmp_path / "slow.log", seconds)))
    assert "slower than it should be" in said
    assert re.search(r"Suspect \d: GPUs below their clock \(2\.0\d times slower", said)


def test_the_advice_on_a_run_is_what_has_to_change_in_its_file(cluster, tmp_path):
    found = advise_launched(SCRIPT, cluster)
    [settings] = found.settings
    lines = settings.splitlines()[1:]
    text = SCRIPT.read_text()
    for line in lines:
        if line.startswith("-"):
            name = line.split()[1]
            text = re.sub(rf"\n *{name}( \S+)?", "", text)
    text += " ".join(line[1:] for line in lines if line.startswith("+"))
    (tmp_path / "changed.sh").write_text(text.replace("--log-interval 1\n", "--log-interval 1 "))
    assert plain(read_launch(tmp_path / "changed.sh").layout) == plain(found.best)


def test_advice_on_layouts_ends_in_settings_that_say_it():
    found = ddlnb.advise_layouts("llama3-8b", "H100", 4, sequence=4096, framework="nemo", draws=50)
    first, megatron, *_ = found.settings
    assert found.said[-len(found.settings) :] == found.settings
    next_split = found.options.iloc[1]
    assert f"{1 / next_split['over_best']:.2f} times (" in first
    assert next_split["over_first_low"] < next_split["over_best"] < next_split["over_first_high"]
    flags = megatron.partition(":\n")[2]
    for word, flag in {"zero1": "--use-distributed-optimizer", "sp": "--sequence-parallel"}.items():
        assert (flag in flags) == (word in found.options["layout"].iloc[0].split())


@pytest.mark.thorough
def test_advice_on_methods_ends_in_lines_of_pytorch():
    found = ddlnb.advise("bert-large", "survey-10GbE", gpus=16, draws=20, most_plans=0)
    first, *more = found.settings
    assert "DistributedDataParallel(" in first
    size = found.options["option"].iloc[0].partition("(")[2].rstrip(")")
    assert size in first
    rows = found.options.set_index("option")
    assert rows.loc["DDP", "over_first"] == 1
    known = rows[(found.options["draws"] > 0).to_numpy() & rows["over_first_low"].notna()]
    assert set(known["gpus"]) > {16}  # fewer GPUs, of other samples a step
    assert (known["over_first"] > 0.98 * known["over_first_low"]).all()
    assert (known["over_first"] < 1.02 * known["over_first_high"]).all()
    hook = next(one for one in more if "fp16_compress_hook" in one)
    times = rows.loc["16-bit gradients by the hook of DDP", "over_first"]
    assert f"{times:.2f} times DDP as it is" in hook


@pytest.fixture
def alone(tmp_path):
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
@pytest.mark.parametrize("again", ["none", "full"])
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_lines_of_pytorch_wrap_a_model_that_then_trains(zero, again, alone):
    lines = torch_code(Layout(zero=zero, recomputation=again), "fp32").replace('"cuda"', '"cpu"')
    blocks = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    there = {"model": nn.Sequential(OrderedDict(layers=blocks)), "torch": torch, "lr": 0.1}
    exec(lines, there)
    there["model"](torch.ones(2, 4)).sum().backward()
    assert all(one.grad is not None for one in there["model"].parameters())
    kinds = {type(one).__name__ for one in there["model"].modules()}
    assert ("DistributedDataParallel" in kinds) == (zero < 2)
    assert ("FSDPLinear" in kinds or "FSDPCheckpointWrapper" in kinds) == (zero >= 2)
    assert ("optimizer" in there) == (zero == 1)


def test_hybrid_shards_have_a_mesh_of_copies_and_shards():
    assert "convert_to_float8_training(model)" in torch_code(Layout(dp=8, zero=3), "fp8")
    assert "(4, 8), mesh_dim_names=('dp_replicate', 'dp_shard')" in torch_code(
        Layout(dp=32, zero=3, shard=8)
    )
    with pytest.raises(InputError, match="splits more than replicas do"):
        torch_code(Layout(tp=2))


@pytest.mark.thorough
def test_replicas_of_a_small_model_are_compared_as_ddp(tmp_path):
    (tmp_path / "run.sh").write_text(
        "torchrun --nnodes 4 --nproc-per-node 4 train.py --per_device_train_batch_size 64"
    )
    on = ddlnb.get_cluster("survey-10GbE").with_workers(16)
    (tmp_path / "train.log").write_text(DEEPSPEED.format(step=1).replace("12.8", "900"))
    found = advise_launched(
        tmp_path / "run.sh", on, tmp_path / "train.log", model="resnet50", draws=20
    )
    assert (found.gap.measured, found.gap.method) == (900, "DDP")
    assert found.gap.suspects
    with pytest.raises(InputError, match="do not say which model it is; give --model"):
        advise_launched(tmp_path / "run.sh", on)


def test_machines_that_are_not_those_of_the_run_are_refused(cluster, tmp_path):
    fewer = cluster.with_workers(8)
    (tmp_path / "run.yaml").write_text("parallelism: {dp: 16, tp: 1, pp: 1}")
    with pytest.raises(InputError, match="and not the 8 that there are"):
        advise_launched(tmp_path / "run.yaml", fewer, model="llama3-8b")


def test_seconds_of_a_step_follow_from_samples_or_steps(cluster, tmp_path):
    for text, seconds in ((TRAINER.format(step=1), 2.5), (DEEPSPEED.format(step=1), 10.0)):
        (tmp_path / "train.log").write_text(text)
        found = advise_launched(SCRIPT, cluster, tmp_path / "train.log")
        assert found.rows["seconds"].iloc[2] == pytest.approx(seconds)


FSDP = """distributed_type: FSDP
mixed_precision: bf16
num_machines: 2
num_processes: 16
fsdp_config: {fsdp_sharding_strategy: %s}
"""
TRAINED = """torchrun --nnodes 2 --nproc_per_node 8 train.py --bf16 True \\
--per_device_train_batch_size %d --block_size %d
"""


@pytest.mark.parametrize("strategy", ["FULL_SHARD", "HYBRID_SHARD", "HYBRID_SHARD_ZERO2"])
def test_a_run_that_is_as_good_as_the_best_is_told_to_stay(strategy, cluster, tmp_path):
    """Also one that is not searched, and one that noise alone sets apart from the best."""
    files = tmp_path / "fsdp.yaml", tmp_path / "train.sh"
    files[0].write_text(FSDP % strategy)
    files[1].write_text(TRAINED % (1, 4096))
    found = advise_launched(files, cluster, model="llama3-8b")
    assert found.best == found.layout
    assert found.settings == ()
    assert "No layout of this batch that fits is forecast to be more than 1% faster." in str(found)
    files[1].write_text(TRAINED % (4, 8192))
    crowded = advise_launched(files, cluster, model="llama3-8b")
    assert crowded.best != crowded.layout
    assert crowded.both.outlook.fits.tolist() == [False, True]
    assert "fits, and is forecast to take" in str(crowded)
    assert len(crowded.settings) == 1


def test_the_steps_of_a_log_are_those_of_the_launch_files(cluster, tmp_path):
    path = tmp_path / "train.log"
    line = MEGATRON.format(step=1, ms=1e3)
    assert "global batch size" in line
    path.write_text(re.sub(r"global batch size: +\d+", "global batch size: 77", line) * 20)
    with pytest.raises(InputError, match=r"has steps of 77 samples .* give the launch files of"):
        str(advise_launched(SCRIPT, cluster, path))
    size = advise_launched(SCRIPT, cluster).question.global_batch
    rounded = f"global batch size: {size * 1.004:.2f}"  # as nanotron's 1.02K for 1,024
    path.write_text(re.sub(r"global batch size: +\d+", rounded, line) * 20)
    assert advise_launched(SCRIPT, cluster, path).measured_seconds == pytest.approx(1.0)


def test_what_is_offloaded_or_adapted_is_no_part_of_the_verdict(cluster, tmp_path):
    path = tmp_path / "ds.json"
    path.write_text(
        '{"train_micro_batch_size_per_gpu": 16, "bf16": {"enabled": true}, "zero_optimization": '
        '{"stage": 3, "offload_optimizer": {"device": "cpu"}}, "lora_r": 16}'
    )
    found = advise_launched(path, cluster, model="llama3-8b", sequence=8192)
    assert "Without what is offloaded it does not fit" in str(found)
    assert "As launched it" not in str(found)
    assert "Adapters are not forecast" in " ".join(found.remarks)


def test_a_framework_that_is_not_compiled_and_splits_layers_is_nobody_s(cluster, tmp_path):
    path = tmp_path / "run.toml"
    path.write_text(
        '[model]\nname = "llama3"\nflavor = "8B"\n[training]\nlocal_batch_size = 4\n'
        "seq_len = 8192\n[parallelism]\ntensor_parallel_degree = 8\n"
    )
    found = advise_launched(path, cluster)
    assert found.launch.framework == ""
    assert found.layout.tp == 8
    assert found.rows["tokens_per_s_per_gpu"].notna().all()

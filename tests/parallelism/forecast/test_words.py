"""Tables in the words of others: read as they are meant, and what is taken instead is said."""

from pathlib import Path

import pytest

from ddlnb.errors import InputError
from ddlnb.hardware.catalogue import get_gpu
from ddlnb.parallelism.forecast.frameworks import framework_in
from ddlnb.parallelism.forecast.mixture import mixed
from ddlnb.parallelism.forecast.row import Row, network_of
from ddlnb.parallelism.forecast.table import alternatives, case, forecast_table, read_open
from ddlnb.parallelism.forecast.words import month_in
from ddlnb.units import GB
from tests.command_line import ddlnb
from tests.parallelism.forecast.tables import RUN, write_table

NEMO = {"framework": "NeMo", "activation_checkpointing": "none"}


def noted(cells: dict[str, str]) -> tuple[list[dict], list[str]]:
    """Return what a row may mean, and what was taken for what is missing in it."""
    row = Row.of(2, cells, Row(2, {}).notes)
    return [columns for _, columns in alternatives(row)], [" ".join(one) for one in row.notes]


def forecast_of(path: Path, **cells: str) -> tuple[dict[str, str], str]:
    said: list[str] = []
    table = forecast_table(write_table(path / "runs.csv", cells), say=said.append)
    return table.rows[0], "\n".join(said)


def test_columns_may_have_the_names_of_others(tmp_path: Path) -> None:
    names = {
        "tp": "TP",
        "pp": "pipeline_parallel_size",
        "micro_batch": "mbs",
        "seq_len": "Sequence",
    }
    names |= {"num_gpus": "GPUs", "precision": "dtype", "activation_checkpointing": "recompute"}
    ours = RUN | NEMO | {"activation_checkpointing": "full"}
    theirs = {names.get(column, column): cell for column, cell in ours.items()}
    assert noted(theirs)[0] == noted(ours)[0]
    theirs = {column.capitalize(): cell for column, cell in theirs.items()}
    assert noted(theirs)[0] == noted(ours)[0]
    said = [one for one in noted(theirs)[1] if "column" in one]
    assert "the column precision that of 'Dtype'" in said
    assert not any("'Tp'" in one for one in said)  # capitals alone are no other name
    path = tmp_path / "theirs.csv"
    path.write_text(f"{','.join(theirs)}\n{','.join(theirs.values())}\n{',' * len(theirs)}\n")
    table = forecast_table(path)
    assert table.rows[0]["Mbs"] == ours["micro_batch"]
    assert not table.rows[1]["seconds"]  # of an empty line
    path.write_text(path.read_text().replace(",", ";"))
    with pytest.raises(InputError, match="separated by commas"):
        forecast_table(path)


def test_nodes_stand_for_gpus_where_a_table_has_those() -> None:
    ours = RUN | NEMO
    per_node, gpus = int(ours["gpus_per_node"]), int(ours["num_gpus"])
    theirs = {name: cell for name, cell in ours.items() if name != "num_gpus"}
    theirs |= {"Num nodes": str(gpus // per_node)}
    found, said = noted(theirs)
    assert found == noted(ours)[0]
    assert "num_gpus nodes * gpus_per_node" in said
    with pytest.raises(InputError, match=r"column seq_len: 1e\+300 must be at most 1e\+12"):
        noted(ours | {"seq_len": "1e300"})
    with pytest.raises(InputError, match="row 2, column num_gpus: is missing"):
        noted(ours | {"num_gpus": ""})


@pytest.mark.parametrize(
    ("words", "gpu", "gigabits"),
    [
        ("8x400 Gb/s NDR", "H100", 3200),
        ("8x50 GB/s InfiniBand", "H100", 3200),
        ("400 Gb/s InfiniBand", "H100", 3200),  # of a port
        ("400 Gb/s per GPU", "H100", 3200),
        ("NVLink 900 GB/s + 400 Gb/s NDR per GPU", "H100", 3200),
        ("900GB/s NVLink, 3200 Gb/s EFA", "H100", 3200),
        ("1x200 Gbps", "H100", 200),
        ("RoCEv2 2x200", "H100", 400),
        ("2xNDR", "H100", 800),
        ("3.2T IB", "H100", 3200),
        ("200 Gbps", "H100", 1600),
        ("800 Gbps", "H100", 3200),  # neither a port's nor a node's: as such nodes usually have
        ("100GbE", "A100", 100),
        ("EFA 400 Gb/s", "A100", 400),
        ("EFA-400", "A100", 400),
        ("2x HDR", "A100", 400),
        ("2x HDR 200 Gb/s", "A100", 400),
        ("4x Slingshot-11", "MI250X", 800),
        ("4x25 GB/s Slingshot", "MI250X", 800),
        ("10GbE", "RTX3090", 10),
    ],
)
def test_a_network_has_the_rate_of_a_node(words: str, gpu: str, gigabits: float) -> None:
    row = Row(2, {"network": words})
    assert network_of(row, get_gpu(gpu), 8)["across"] == pytest.approx(gigabits * GB / 8)
    is_taken = words in ("400 Gb/s InfiniBand", "200 Gbps", "800 Gbps")
    assert any(words in what for what, _ in row.notes) == is_taken


def test_a_framework_that_is_not_said_is_a_mixture_unless_the_table_has_no_such_column() -> None:
    without, said = noted(RUN)
    assert {one["framework"] for one in without} == {"nanotron"}
    blank, said = noted(RUN | {"framework": ""})
    unknown, _ = noted(RUN | {"framework": "MaxText"})
    assert blank == unknown
    assert len({one["framework"] for one in blank}) == 3
    assert any("a mixture of" in one for one in said)


def test_a_model_that_is_split_is_of_no_framework_that_splits_none() -> None:
    older = RUN | {"gpu": "A100", "framework": "MegaScale"}
    assert {one["framework"] for one in noted(older)[0]} == {"nemo", "megatron"}
    whole = older | {"tp": "1", "pp": "1", "dp": "16"}
    assert {one["framework"] for one in noted(whole)[0]} == {"nemo", "fsdp", "megatron"}


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ("DeepSpeed + Megatron", "megatron-deepspeed"),
        ("Megatron-LM zero-bubble", "megatron"),
        ("Zero bubble (Megatron fork)", "megatron"),
        ("Megatron-LM core_r0.8.0", "nemo"),
        ("Megatron-LM core_v0.13.0", "nemo"),
        ("Megatron LM 0.12", "nemo"),
        ("Megatron-LM v2.6", "megatron"),
        ("DeepSpeed ZeRO-3", "fsdp"),
    ],
)
def test_a_framework_is_what_its_words_say_first(words: str, name: str) -> None:
    assert framework_in(words) == name


def test_megatron_is_of_its_date_or_of_the_gpu_that_it_ran_on() -> None:
    for date, gpu, name in (
        ("June 2022", "H100", "megatron"),
        ("2025", "A100", "nemo"),
        ("06/2025", "A100", "nemo"),
        ("", "A100", "megatron"),
        ("", "H100", "nemo"),
    ):
        cells = {"framework": "Megatron-LM", "source_date": date, "gpu": gpu}
        found, said = noted(RUN | cells)
        assert {one["framework"] for one in found} == {name}, (date, gpu)
        assert any("the nemo of today" in one for one in said) == (not date and gpu == "H100")
    assert month_in("06/2025") == "2025-06"


def test_what_is_sharded_is_read_from_the_framework_too() -> None:
    fsdp = RUN | {"tp": "1", "pp": "1", "dp": "16", "zero_stage": ""}
    for words, zero in (("DeepSpeed ZeRO-1", 1), ("FSDP SHARD_GRAD_OP", 2), ("DeepSpeed", 3)):
        assert case(Row(2, fsdp | {"framework": words}))["zero"] == zero
    for words in ("HSDP", "hybrid_shard"):
        found = case(Row(2, fsdp | {"framework": "FSDP", "sharding": words}))
        assert (found["zero"], found["shard"]) == (3, 8)
    for words, zero in (("ZeRO 3", 3), ("stage 2", 2), ("dist-opt", 1), ("no", 0)):
        assert case(Row(2, fsdp | {"framework": "FSDP", "sharding": words}))["zero"] == zero


def test_words_after_no_say_the_opposite() -> None:
    for words, adapters, schedule in (
        ("Colorado cluster", 0, "1f1b"),
        ("full fine-tuning, no LoRA; not interleaved", 0, "1f1b"),
        ("QLoRA; interleaved local/global attention", 1, "1f1b"),
        ("zero bubble not used", 0, "1f1b"),
        ("interleaved", 0, "interleaved"),
    ):
        found = case(Row(2, RUN | NEMO | {"notes": words}))
        assert (found["adapters"], found["schedule"]) == (adapters, schedule), words


def test_what_is_computed_again_is_a_mixture_where_the_word_is_not_known() -> None:
    blank, _ = noted(RUN | NEMO | {"activation_checkpointing": ""})
    for words, again in (("enabled", "full"), ("every layer", "full"), ("full off", "none")):
        same = [noted(RUN | NEMO | {"activation_checkpointing": one})[0] for one in (words, again)]
        assert same[0] == same[1], words
    for words in ("unknown", "?", "as usual"):
        found, said = noted(RUN | NEMO | {"activation_checkpointing": words})
        assert found == blank
        assert any(words in one for one in said)


def test_a_precision_that_is_not_said_is_one_that_the_gpu_has() -> None:
    older = RUN | {"gpu": "V100-SXM2-32GB"}
    for words in ("", "half", "float16", "mixed"):
        found, said = noted(older | {"precision": words})
        assert found == noted(older | {"precision": "fp16"})[0], words
        assert any("precision" in one for one in said) == (not words)
    for words in ("w/o fp8", "bf16 + fp8 all-gather", "bf16, fp8 KV", "bfloat16"):
        assert noted(RUN | {"precision": words})[0] == noted(RUN)[0], words


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ("A100-40G", "A100-SXM4-40GB"),
        ("8xH100", "H100-SXM"),
        ("4x RTX 4090", "RTX4090"),
        ("NVIDIA GeForce RTX 4090 24GB", "RTX4090"),
        ("H100 PCIe Gen5 80GB", "H100-PCIe"),
        ("A100 PCIe 80 GB (Dell)", "A100-PCIe-80GB"),
    ],
)
def test_a_gpu_is_found_in_free_words(words: str, name: str) -> None:
    row = Row(2, RUN | {"gpu": words, "gpus_per_node": "8"})
    found, plain = (case(one) for one in (row, Row(2, RUN | {"gpu": name})))
    assert {k: found[k] for k in ("peak", "memory")} == {k: plain[k] for k in ("peak", "memory")}


def test_a_known_model_keeps_what_cells_leave_open() -> None:
    """Another vocabulary, or shared experts that are counted, make no other model."""
    llama = {"model": "Llama-3-70B", "layers": "80", "hidden": "8192", "heads": "64", "ffn": ""}
    llama |= {"kv_heads": "", "vocab": "128000", "params_b": ""}
    found = case(Row(2, RUN | llama))
    assert (found["kv_heads"], found["ffn"], found["vocab"]) == (8, 28672, 128000)
    experts = {"model": "DeepSeek-V3-Base 671B", "experts": "257", "layers": "61", "params_b": ""}
    experts |= {"hidden": "7168", "heads": "128", "kv_heads": "", "ffn": "", "vocab": "129280"}
    found = case(Row(2, RUN | NEMO | experts))
    assert (found["experts"], found["top_k"]) == (256, 8)
    _, said = noted(RUN | llama | {"layers": "40"})
    assert any("the shape of llama3-70b (other layers, vocab)" in one for one in said)
    sized = {"model": "Yi-34B", "layers": "60", "hidden": "7168", "heads": "56", "kv_heads": "8"}
    sized |= {"ffn": "20480", "vocab": "64000", "params_b": ""}
    assert (case(Row(2, RUN | sized))["gated"], case(Row(2, RUN | sized))["tied"]) == (1, 0)


def test_batches_and_experts_that_cannot_be_are_said() -> None:
    _, said = noted(RUN | {"global_batch_seqs": "100", "grad_accum": "", "micro_batch": "1"})
    assert not any("a multiple of dp" in one for one in said)
    _, said = noted(RUN | {"global_batch_seqs": "102", "grad_accum": "", "micro_batch": "4"})
    assert "a multiple of dp 4 * micro_batch 4 (batch 102) 96" in said
    with pytest.raises(InputError, match=r"row 2, column global_batch_seqs: 4,194,304 .* tokens"):
        case(Row(2, RUN | {"global_batch_seqs": "4194304"}))
    mixture = {"model": "qwen3-30b-a3b", "tp": "1", "pp": "1", "dp": "16", "ep": "64"}
    mixture |= dict.fromkeys(("layers", "hidden", "heads", "kv_heads", "ffn", "vocab"), "")
    found, said = noted(RUN | NEMO | mixture)
    assert found[0]["ep"] == 16
    assert any("experts and the ranks have (64)" in one for one in said)


def test_a_mixture_s_columns_are_of_one_forecast(tmp_path: Path) -> None:
    """Seconds and MFU are those of its tokens, and its chance of fitting is that of what it is."""
    gpt = {"layers": "64", "hidden": "8192", "heads": "64", "ffn": "32768", "params_b": ""}
    open_ = gpt | {"framework": "", "gpu": "A100", "kv_heads": "64", "num_gpus": "64", "dp": "16"}
    row, said = forecast_of(tmp_path, **open_)
    assert "activation_checkpointing is missing in 1 row:" in said  # of several frameworks
    tokens = float(row["tokens_per_s_per_gpu"]) * float(row["seconds"]) * 64
    assert tokens == pytest.approx(256 * 4096, rel=1e-3)
    found = mixed(read_open([alternatives(Row(2, RUN | open_))]))
    i = found.likeliest[0]
    whole = found.outlook.cases.model_flops[i] / found.outlook.cases.peak[i]
    assert float(row["mfu"]) == pytest.approx(float(row["tokens_per_s_per_gpu"]) * whole, rel=1e-2)
    assert (float(row["chance_of_fit"]) > 0.5) == (row["fits"] == "True")
    assert float(row["tokens_per_s_per_gpu_not_slow"]) >= float(row["tokens_per_s_per_gpu"])


def test_measurements_are_not_replaced_without_a_word(tmp_path: Path) -> None:
    _, said = forecast_of(tmp_path, seconds="3.5", mfu="")
    assert "seconds of the file are replaced by what is forecast" in said
    done = ddlnb(
        *("layouts", "scale", "--table"),
        *(str(tmp_path / "runs.csv"), "--out", str(tmp_path / "runs.csv")),
    )
    assert done.returncode == 2
    assert "is the table itself" in done.stderr


def test_cells_beyond_the_columns_are_refused_and_empty_ones_are_none(tmp_path: Path) -> None:
    table = write_table(tmp_path / "runs.csv", {})
    head, row = table.read_text().splitlines()
    table.write_text(f"{head}\n{row},,\n{row},192\n")
    with pytest.raises(InputError, match=r"row 3, column .*: is followed by '192', of no column"):
        forecast_table(table)
    found = forecast_table(table, keep_going=True)
    assert [bool(one["tokens_per_s_per_gpu"]) for one in found.rows] == [True, False]


def test_a_model_that_is_not_known_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="'Fable-9B' is no model that is known by name"):
        forecast_of(tmp_path, model="Fable-9B", layers="")
    row, said = forecast_of(tmp_path, model="gone.json")
    assert "the file 'gone.json' is missing in 1 row: taken as what the row says" in said
    assert float(row["tokens_per_s_per_gpu"]) > 0
    (broken := tmp_path / "broken.json").write_text("{}")
    with pytest.raises(InputError, match=r"row 2, column model: .*broken\.json' has no model_type"):
        forecast_of(tmp_path, model=str(broken))

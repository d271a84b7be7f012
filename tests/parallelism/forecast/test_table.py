"""A table of runs gets its forecasts; what is missing is said, what is wrong is named."""

from pathlib import Path

import pytest

from ddlnb.errors import InputError, UnknownName
from ddlnb.parallelism.config import get_shape
from ddlnb.parallelism.forecast.row import Row
from ddlnb.parallelism.forecast.table import ADDED, case, cases, forecast_table
from tests.parallelism.forecast.tables import RUN, write_table


def first(path: Path, **row: str) -> dict[str, str]:
    return forecast_table(write_table(path, row)).rows[0]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "runs.csv"


def test_rows_keep_their_cells_and_get_a_forecast_in_its_interval(path: Path) -> None:
    row = first(path)
    assert {name: row[name] for name in RUN} == RUN
    low, rate, high = (float(row[name]) for name in ("low", "tokens_per_s_per_gpu", "high"))
    assert 0 < low < rate < high
    assert row["fits"] == "True"


def test_answers_in_the_file_are_replaced(path: Path) -> None:
    assert first(path, tokens_per_s_per_gpu="7", fits="no") == first(path)


def test_numbers_written_with_a_point_and_columns_left_out_change_nothing(path: Path) -> None:
    plain = {name: first(path)[name] for name in ADDED}
    odd = first(path, tp="2.0", pp="2.0", cp="", vpp="nan", kv_heads="", dp="")
    assert {name: odd[name] for name in ADDED} == plain


def test_what_was_taken_for_missing_cells_is_said_once_with_its_rows(path: Path) -> None:
    said: list[str] = []
    forecast_table(write_table(path, {"network": ""}, {"network": "not stated"}), say=said.append)
    about = [line for line in said if "network" in line]
    assert about == [
        "the rate of the network is missing in 2 rows: taken as that of the ports usual for "
        "H100-SXM"
    ]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"tp": "two"}, "row 2, column tp: 'two' must be a number above 0"),
        ({"layers": "30000"}, "row 2, column layers: 30,000 exceed 10,000"),
        ({"tp": "1.5"}, "row 2, column tp: 1.5 must be a whole number"),
        ({"layers": ""}, "row 2, column layers: is missing, and 'llama-1B' is no model"),
        ({"dp": "3"}, r"row 2, column dp: dp 3 \* tp 2 \* pp 2 \* cp 1 is not num_gpus 16"),
        ({"tp": "3"}, r"row 2, column num_gpus: 16 is no multiple of tp 3"),
        ({"zero_stage": "4"}, "row 2, column zero_stage: '4' must be 0, 1, 2 or 3, or one of full"),
        ({"gpu": "A100", "precision": "fp8"}, r"row 2, column precision: .* no rate for fp8"),
    ],
)
def test_a_bad_cell_is_named_by_row_and_column(
    path: Path, row: dict[str, str], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        forecast_table(write_table(path, row))


def test_an_unknown_gpu_names_its_row_and_what_is_known(path: Path) -> None:
    with pytest.raises(UnknownName, match=r"unknown GPU in row 3 'H1000'.*did you mean"):
        forecast_table(write_table(path, {}, {"gpu": "H1000"}))


@pytest.mark.parametrize(
    ("words", "usual"),
    [
        ("A100-40GB-SXM", "A100-SXM4-40GB"),
        ("H100 SXM (DGX H100)", "H100"),
        ("B200-192GB-SXM", "B200"),
        ("GB200 NVL72", "GB200"),
    ],
)
def test_a_gpu_in_other_words_is_found_by_family_and_memory(
    path: Path, words: str, usual: str
) -> None:
    assert first(path, gpu=words)["seconds"] == first(path, gpu=usual)["seconds"]


@pytest.mark.parametrize(
    ("words", "zero"),
    [("FULL_SHARD", "3"), ("ZeRO-1", "1"), ("NO_SHARD", "0"), ("distributed optimizer", "1")],
)
def test_sharding_is_read_from_words(path: Path, words: str, zero: str) -> None:
    said = first(path, zero_stage="", sharding=words)
    number = first(path, zero_stage=zero)
    assert {name: said[name] for name in ADDED} == {name: number[name] for name in ADDED}


def test_hybrid_sharding_shards_within_a_node(path: Path) -> None:
    """And gathers nothing across the network, whatever that costs."""
    fsdp = {"tp": "1", "pp": "1", "dp": "16", "zero_stage": "", "framework": "PyTorch FSDP"}
    fsdp |= {"micro_batch": "1", "grad_accum": "16", "network": "25GbE"}
    whole, hybrid = (first(path, **fsdp, sharding=one) for one in ("FULL_SHARD", "HYBRID_SHARD"))
    assert float(hybrid["seconds"]) < float(whole["seconds"])
    assert float(hybrid["memory_gb"]) > float(whole["memory_gb"])
    two = [first(path, **fsdp, sharding=one) for one in ("SHARD_GRAD_OP", "HYBRID_SHARD_ZERO2")]
    assert float(two[0]["memory_gb"]) < float(two[1]["memory_gb"])
    assert float(two[1]["memory_gb"]) > float(hybrid["memory_gb"])  # which shards parameters, too


@pytest.mark.parametrize(
    ("words", "name"),
    [("ZB-H1", "zero-bubble"), ("zero bubble", "zero-bubble"), ("1F1B", "1f1b"), ("", "1f1b"),
     ("GPipe", "gpipe"), ("1F1B-I", "interleaved"), ("ZB-V", "zb-v")],
)  # fmt: skip
def test_a_schedule_is_read_from_words(words: str, name: str) -> None:
    row = cases([Row(2, RUN | {"schedule": words})])
    assert row.schedule[0] == name


def test_schedules_that_are_unknown_or_have_no_chunks_are_said(path: Path) -> None:
    said: list[str] = []
    rows = {"schedule": "chimera"}, {"schedule": "ZB-H1", "vpp": "2"}
    forecast_table(write_table(path, *rows), say=said.append)
    assert "a known schedule (chimera) is missing in 1 row: taken as 1f1b" in said
    assert any("with chunks (vpp) that is zero-bubble" in line for line in said)


@pytest.mark.parametrize(
    ("framework", "usual"), [("nanotron", "0"), ("Megatron-LM", "0"), ("FSDP", "1"), ("NeMo", "1")]
)
def test_overlap_is_what_the_row_says_or_the_framework_does(
    path: Path, framework: str, usual: str
) -> None:
    run = {"framework": framework, "source_date": "2021"}
    default = first(path, **run)["seconds"]
    by_word = {word: first(path, **run, overlap=word)["seconds"] for word in "01"}
    assert default == by_word[usual]
    assert float(by_word["1"]) < float(by_word["0"])
    with pytest.raises(InputError, match="row 2, column overlap: 'maybe' must be 0 or 1"):
        first(path, overlap="maybe")


def test_bad_rows_can_be_left_empty(path: Path) -> None:
    table = forecast_table(write_table(path, {"tp": "two"}, {}), keep_going=True)
    assert [row["fits"] for row in table.rows] == ["", "True"]
    assert table.failed == ("row 2, column tp: 'two' must be a number above 0",)


def test_columns_that_every_row_needs_are_named(path: Path) -> None:
    path.write_text("layers,hidden\n1,2\n")
    with pytest.raises(InputError, match="lacks the columns seq_len, gpu, num_gpus; add them"):
        forecast_table(path)


def test_more_stages_than_layers_do_not_fit(path: Path) -> None:
    assert first(path, pp="32", dp="1", num_gpus="64")["fits"] == "False"


def test_the_micro_batch_follows_from_the_batch(path: Path) -> None:
    given = first(path)["seconds"]
    assert first(path, micro_batch="")["seconds"] == given
    assert first(path, grad_accum="")["seconds"] == given


MIXTURE = {
    "model": "Mixtral-8x7B", "params_b": "46.7", "layers": "32", "hidden": "4096", "kv_heads": "8",
    "ffn": "14336", "vocab": "32000", "framework": "NeMo", "tp": "1", "pp": "2", "dp": "8",
    "micro_batch": "1", "grad_accum": "32",
}  # fmt: skip


def test_a_mixture_of_experts_computes_with_two_and_stores_all(path: Path) -> None:
    found = cases([Row(2, RUN | MIXTURE | {"ep": ep}) for ep in ("1", "8")])
    assert found.parameters[0] / 1e9 == pytest.approx(46.7, rel=0.01)
    assert found.model_flops[0] == found.model_flops[1]
    one, eight = (first(path, **(MIXTURE | {"ep": ep})) for ep in ("1", "8"))
    assert (one["fits"], eight["fits"]) == ("False", "True")
    dense = first(path, **(MIXTURE | {"model": "llama"}))
    assert float(dense["tokens_per_s_per_gpu"]) > float(eight["tokens_per_s_per_gpu"])


def test_less_power_is_a_slower_clock_by_its_cube_root() -> None:
    usual, held_back = (
        case(Row(2, RUN | {"gpu": words}))["sustained"] for words in ("H100", "H100 SXM (500 W)")
    )
    assert held_back / usual == pytest.approx((500 / 700) ** (1 / 3))


@pytest.mark.parametrize(
    ("cells", "column", "value"),
    [
        ({"precision": "see notes", "notes": "FP8 (no column)"}, "peak", 1978.9e12),
        ({"table": "24.07 / LoRA"}, "adapters", 1.0),
        ({"table": "24.07 / pre-training"}, "adapters", 0.0),
        ({"framework": "TorchTitan", "notes": "eager"}, "framework", "fsdp"),
        ({"framework": "TorchTitan", "notes": "torch.compile"}, "framework", "fsdp-compiled"),
        ({"framework": "TorchTitan", "software": "eager"}, "framework", "fsdp"),
        ({"grad_accum": "4"}, "micro_batches", 16),  # 256 sequences are 4 x 4 x 16
    ],
)
def test_what_cells_say_beside_their_columns_is_read(cells, column: str, value: object) -> None:
    assert case(Row(2, RUN | cells))[column] == value


BY_NAME = {"model": "Qwen3_30B_a3B", "params_b": "", "layers": "", "hidden": "", "heads": "",
           "kv_heads": "", "ffn": "", "vocab": "", "framework": "nemo"}  # fmt: skip


def test_a_model_without_sizes_is_the_one_of_that_name(path: Path) -> None:
    said: list[str] = []
    table = forecast_table(write_table(path, BY_NAME, BY_NAME | {"layers": "24"}), say=said.append)
    found = cases([Row(2, RUN | row) for row in (BY_NAME, BY_NAME | {"layers": "24"})])
    shape = get_shape("qwen3-30b-a3b").shape
    assert found.layers.tolist() == [48, 24]
    assert found.parameters[0] == pytest.approx(shape.parameters, rel=0.001)
    assert found.experts.tolist() == [128, 128]
    whole, half = (float(row["tokens_per_s_per_gpu"]) for row in table.rows)
    assert half > 1.5 * whole
    told = "the shape of Qwen3_30B_a3B is missing in 2 rows: taken as that of qwen3-30b-a3b"
    assert told in said
    said.clear()
    exactly = BY_NAME | {"model": "qwen3-30b-a3b"}
    forecast_table(write_table(path, exactly), say=said.append)
    assert not any("the shape of" in one for one in said)


def test_the_precision_of_a_recipe_is_read_and_another_one_is_said(path: Path) -> None:
    rates = [
        float(first(path, gpu="GB200", framework="nemo", precision=one)["tokens_per_s_per_gpu"])
        for one in ("BF16", "FP8-MX", "NVFP4")
    ]
    assert rates == sorted(set(rates))
    said: list[str] = []
    forecast_table(write_table(path, {"precision": "int3"}), say=said.append)
    assert "a known precision (int3) is missing in 1 row: taken as bf16" in said


def test_sizes_in_cells_overrule_the_name(path: Path) -> None:
    other = BY_NAME | {"layers": "48", "hidden": "4096", "ffn": "8192"}
    found = cases([Row(2, RUN | other)])
    assert (found.hidden[0], found.experts[0]) == (4096, 1)


def test_a_name_that_is_not_known_leaves_the_cell_missing(path: Path) -> None:
    with pytest.raises(InputError, match="row 2, column layers: is missing"):
        first(path, **(BY_NAME | {"model": "Qwen3"}))

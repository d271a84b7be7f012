"""Measuring: rows of all methods from real workers, resumable, with clear errors."""

import math
from dataclasses import dataclass
from functools import partial

import pandas as pd
import pytest
import torch

import ddlnb
from ddlnb.engines.bench import Bench
from ddlnb.engines.job import Report
from ddlnb.engines.measure import Measurement, measure, record_timelines
from ddlnb.errors import InputError, MissingPart, ModelError, UnknownName
from ddlnb.files import DATA
from ddlnb.launch.options import HERE, LaunchOptions
from ddlnb.plans.methods import METHODS
from ddlnb.results.rows import ResultsFile, speedups
from tests.toy import mlp

QUICK = {"workers": 2, "iterations": 2, "warmup": 1, "repetitions": 1}


@pytest.mark.ranks
def test_all_methods_and_baselines_give_one_row_each(six_ranks, tmp_path):
    rows = measure(mlp([16]), ranks=six_ranks, out=tmp_path / "rows.csv", servers=2, **QUICK)
    assert rows["method"].tolist() == ["single", "DDP", *METHODS]
    assert (rows["throughput_samples_per_s"] > 0).all()
    assert set(rows["source"]) == {"measured"}
    ps = rows["method"].str.endswith("-PS")
    assert (rows.loc[ps, "servers"] == 2).all()
    assert (rows.loc[~ps, "servers"] == 0).all()
    assert speedups(rows).loc[0, "speedup"] == 1.0


@pytest.mark.parametrize(("engines", "is_shown"), [(("ours", "horovod"), True), (("ours",), False)])
def test_a_table_of_several_engines_says_whose_each_row_is(engines, is_shown):
    kept = pd.read_csv(DATA / "measured" / "2026-11-21_two-cores_loopback" / "rows.csv").head(1)
    rows = pd.concat([kept.assign(engine=engine) for engine in engines], ignore_index=True)
    baseline = kept.assign(method="single", engine="single")
    (table,) = Measurement(pd.concat([baseline, rows], ignore_index=True)).tables
    said = ["single", *engines] if is_shown else [None, None]
    assert [row.get("engine") for row in table.rows] == said


@pytest.mark.ranks
def test_a_second_call_runs_only_what_is_missing(six_ranks, tmp_path):
    arguments = {"ranks": six_ranks, "out": tmp_path / "rows.csv", "baselines": False, **QUICK}
    task = mlp([16])
    measure(task, ["WFBP-A2A"], **arguments)
    first = ResultsFile(tmp_path / "rows.csv").runs
    rows = measure(task, ["WFBP-A2A", "BSP-PS"], **(arguments | {"repetitions": 2}))
    runs = ResultsFile(tmp_path / "rows.csv").runs
    assert rows["repetitions"].tolist() == [2, 2]
    assert len(runs) == 4
    assert runs.iloc[0]["time"] == first.iloc[0]["time"]
    assert measure(task, ["BSP-PS"], **arguments)["method"].tolist() == ["BSP-PS"]


@pytest.mark.ranks
def test_what_was_finished_before_a_failure_is_kept(six_ranks, tmp_path, monkeypatch):
    out = tmp_path / "rows.csv"
    run = Bench.run

    def interrupted(self, contender, **rest):
        if contender.name == "WFBP-PS":
            raise KeyboardInterrupt
        return run(self, contender, **rest)

    monkeypatch.setattr(Bench, "run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        measure(
            mlp([16]), ["BSP-PS", "WFBP-PS"], ranks=six_ranks, out=out, baselines=False, **QUICK
        )
    assert ResultsFile(out).rows["method"].tolist() == ["BSP-PS"]


@pytest.mark.ranks
def test_timelines_show_what_sets_the_methods_apart(six_ranks):
    lines = record_timelines(
        mlp([256, 256]),
        ["BSP-A2A", "WFBP-A2A", "ByteScheduler-PS"],
        ranks=six_ranks,
        workers=2,
        partition="16KB",
        local_batch=64,
    )
    last_backward, first_message = {}, {}
    for name, line in lines.items():
        spans = [span for span in line.on(0).spans if span.iteration == 1]
        last_backward[name] = max(s.stop_seconds for s in spans if s.kind == "backward")
        first_message[name] = min(s.start_seconds for s in spans if s.kind == "message")
    assert first_message["BSP-A2A"] >= last_backward["BSP-A2A"]
    assert first_message["WFBP-A2A"] < last_backward["WFBP-A2A"]
    waits = {s.name for s in lines["ByteScheduler-PS"].on(0).spans if s.kind == "wait"}
    assert waits == {"0", "2", "4"}  # every layer waits for itself
    count = [sum(s.kind == "message" for s in line.spans) for line in lines.values()]
    assert count[0] < count[1] < count[2]


@pytest.mark.parametrize(
    ("changes", "error", "told"),
    [
        ({"methods": "MGWFBP"}, UnknownName, "did you mean 'MG-WFBP'"),
        ({"methods": []}, InputError, "name at least one"),
        ({"methods": None}, InputError, "name at least one"),
        ({"backend": "glo"}, UnknownName, "did you mean 'gloo'"),
        ({"backend": "nccl"}, InputError, "device='cuda'"),
        ({"device": "gpu"}, UnknownName, "unknown device"),
        ({"engine": "horovd"}, UnknownName, "unknown engine"),
        ({"optimizer": "sdg"}, UnknownName, "did you mean 'sgd'"),
        ({"workers": 0}, InputError, "workers 0"),
        ({"servers": 0}, InputError, "servers 0"),
        ({"local_batch": -4}, InputError, "local_batch -4"),
        ({"iterations": 0}, InputError, "iterations 0"),
        ({"warmup": -1}, InputError, "warmup -1"),
        ({"repetitions": 1.5}, InputError, "repetitions 1.5"),
        ({"partition": "many"}, InputError, "size 'many'"),
        ({"out": "rows.txt"}, InputError, ".csv"),
        ({"launcher": "slurmm"}, UnknownName, "did you mean 'slurm'"),
    ],
)
def test_bad_arguments_are_refused_before_anything_starts(changes, error, told):
    with pytest.raises(error, match=told):
        measure("small-conv", **(QUICK | changes))


@pytest.mark.parametrize(
    ("place", "told"),
    [
        (".", r"is a folder; name a file in it, such as '.*rows\.csv'"),
        ("rows.csv", r"is a folder; name a file in it"),
        ("file/rows.csv", r"no file can be written in '.*file' \(.*\); name another folder"),
    ],
)
def test_a_place_for_no_file_is_refused_before_any_work(place, told, tmp_path, monkeypatch):
    monkeypatch.setattr("ddlnb.engines.measure.get_task", lambda model: pytest.fail("worked"))
    (tmp_path / "file").write_text("")
    (tmp_path / "rows.csv").mkdir()
    with pytest.raises(InputError, match=told):
        measure("small-conv", out=tmp_path / place, **QUICK)


class Unused(torch.nn.Module):
    """Has a layer that its forward pass never uses."""

    def __init__(self):
        super().__init__()
        self.used, self.spare = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)

    def forward(self, inputs):
        return self.used(inputs)


def _pairs(count, seed):
    return torch.ones(count, 2), torch.zeros(count, 2)


def _tensor(count, seed):
    return torch.ones(count, 2)


def _eight_at_most(count, seed):
    return tuple(part[:8] for part in _pairs(count, seed))


def _mean_square(module, batch):
    return ((module(batch[0]) - batch[1]) ** 2).mean()


def made(module, batch):
    return ddlnb.task(module, batch=batch, loss=_mean_square, name="made")


@pytest.mark.parametrize(
    ("model", "error", "told"),
    [
        ("resnet-50", UnknownName, "did you mean 'resnet50'"),
        (made(Unused(), _pairs), ModelError, r"spare\.weight.*requires_grad=False"),
        (torch.nn.Linear(2, 2), ModelError, r"ddlnb\.task"),
        (made(torch.nn.Linear(2, 2), _tensor), ModelError, "not a tuple of tensors"),
        # The rate counted 4,096 samples of an iteration that had 8.
        (made(torch.nn.Linear(2, 2), _eight_at_most), ModelError, r"\(8, 2\) when asked for 4,096"),
    ],
    ids=["unknown", "unused parameters", "a bare module", "no tuple", "too few samples"],
)
def test_a_model_that_cannot_be_measured_is_refused_before_anything_starts(model, error, told):
    with pytest.raises(error, match=told):
        measure(model, **(QUICK | {"local_batch": 4096}))


@dataclass
class Answers:
    """Ranks that answer any job with reports of these losses, and start nothing."""

    losses: tuple[float, ...]
    count: int = 6
    site: LaunchOptions = HERE

    def run(self, function, *arguments, count, timeout_seconds, callbacks):
        return [Report(rank, 1.0, 0.0, 0.0, self.losses, "same") for rank in range(count)]


@pytest.mark.parametrize(
    ("losses", "told"),
    [
        ((math.nan, math.nan), "loss of model 'mlp' is nan, so that nothing .*; check data and"),
        ((0.5, math.inf), "is inf after 1 step of sgd.*; take another optimizer or a smaller rate"),
    ],
)
def test_a_loss_that_is_no_number_is_not_measured(losses, told):
    with pytest.raises(ModelError, match=told):
        measure(mlp([4]), engine="ddp", ranks=Answers(losses), **QUICK)
    rows = measure(mlp([4]), engine="ddp", ranks=Answers((0.5, 0.4)), **QUICK)
    assert list(rows["method"]) == ["single", "DDP"]


@pytest.mark.ranks
def test_models_and_optimizers_of_the_same_name_are_not_taken_for_one_another(six_ranks, tmp_path):
    arguments = {"ranks": six_ranks, "out": tmp_path / "rows.csv", "baselines": False, **QUICK}
    fast, slow = (partial(torch.optim.SGD, lr=rate) for rate in (0.1, 0.2))
    measure(mlp([4]), "BSP-A2A", optimizer=fast, **arguments)
    measure(mlp([5]), "BSP-A2A", optimizer=fast, **arguments)
    measure(mlp([5]), "BSP-A2A", optimizer=slow, **arguments)
    assert len(ResultsFile(tmp_path / "rows.csv").rows) == 3


def _through_its_parts(module, batch):
    return ((module[2](module[1](module[0](batch[0]))) - batch[1]) ** 2).mean()


@pytest.mark.ranks
def test_batch_norm_and_a_loss_that_calls_parts_of_the_module_run_everywhere(six_ranks):
    layers = [torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 2)]
    module = torch.nn.Sequential(*layers)
    task = ddlnb.task(module, batch=_pairs, loss=_through_its_parts, name="parts")
    assert len(measure(task, "WFBP-A2A", ranks=six_ranks, local_batch=4, **QUICK)) == 3


def test_speed_ups_do_not_mix_machines():
    rows = pd.DataFrame(
        {
            "model": "m",
            "machine": ["fast", "fast", "slow", "slow"],
            "method": ["single", "DDP"] * 2,
            "throughput_samples_per_s": [100.0, 150.0, 10.0, 15.0],
        }
    )
    assert speedups(rows)["speedup"].tolist() == [1.0, 1.5, 1.0, 1.5]
    with pytest.raises(InputError, match="no row of 'single'"):
        speedups(rows.assign(model=["m", "m", "m", "n"]))


@pytest.mark.ranks
def test_a_backend_that_is_not_there_says_what_is_missing(six_ranks):
    with pytest.raises(MissingPart, match="needs an NVIDIA GPU"):
        measure(mlp([4]), "BSP-A2A", ranks=six_ranks, device="cuda", backend="nccl", **QUICK)


@pytest.mark.ranks
def test_too_few_ranks_are_named(six_ranks):
    with pytest.raises(InputError, match="needs 7 ranks, but there are 6"):
        measure(mlp([4]), "BSP-PS", ranks=six_ranks, baselines=False, **(QUICK | {"servers": 5}))

"""Runs, studies and what is made of them: repeatable, resumable, and plain about failures.

Rates are found on held-out training samples, with one budget, and only stable ones.
"""

import importlib
import json
import math
import multiprocessing
import os
import shutil
import signal
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from types import ModuleType

import numpy as np
import pandas as pd
import pytest
import torch

from ddlnb.calibration.statistics import mean_interval
from ddlnb.errors import InputError, RankError, ResultsError
from ddlnb.figures import learning_curves
from ddlnb.plans.requests import AllReduce
from ddlnb.survey.launchers import ranks_at, train_at
from ddlnb.training.executors.clock import Clock, get_straggler
from ddlnb.training.runs import runner, train as training
from ddlnb.training.runs.compare import (
    CONFIRM,
    EXTENSIONS,
    HALVINGS,
    SCAN,
    SCANNED,
    TUNING_SEEDS,
    Search,
    compare,
    is_stable,
    tuned,
)
from ddlnb.training.runs.fingerprint import fingerprint
from ddlnb.training.runs.runner import Runner, hand_to, in_parallel, key
from ddlnb.training.runs.summaries import runs_by, summary, to_target
from ddlnb.training.runs.train import run, train
from ddlnb.training.settings import TrainingSettings, training_settings
from ddlnb.training.tasks.built_in import quadratic
from ddlnb.training.tasks.catalogue import LEARNING_TASKS, get_learning_task
from ddlnb.training.tasks.task import SHARE, Samples, validation_task
from tests.launch.owner import Owner, wait_until

METHODS = ["bsp", "bsp + top-k(0.25) + feedback"]
QUICK = {"workers": 2, "steps": 20, "evaluate_every": 5, "jobs": 1}


def slower(rank: int, step: int, workers: int) -> float:
    return 2.0 if rank else 1.0


def wire(kind: type, bytes_: int, workers: int) -> float:
    return bytes_ / 1e3 if kind is AllReduce else 0.0


@pytest.mark.parametrize(
    ("method", "sent", "received"),
    [
        ("bsp on PS", 80, 80),
        ("bsp + top-k(0.25) + feedback", 3 * 40, 3 * 40),
        ("bsp + top-k(0.25) + feedback on PS", 40, 80),
        ("d-psgd(ring)", 2 * 80, 2 * 80),
    ],
)
def test_bytes_are_counted_both_ways(method, sent, received):
    """What a server answers is dense, whatever is pushed: a quadratic has 20 parameters."""
    end = train("quadratic", method, workers=4, steps=5).iloc[-1]
    assert end["bytes_sent"] == 5 * sent
    assert end["bytes_received"] == 5 * received


def test_a_curve_counts_steps_bytes_and_seconds_and_leaves_torch_as_it_was():
    before = torch.get_num_threads()
    state = torch.random.get_rng_state()
    train("digits", "bsp", workers=2, steps=1)
    assert torch.get_num_threads() == before
    assert torch.equal(torch.random.get_rng_state(), state)
    workers, steps = 4, 6
    curve = train(
        "quadratic",
        "bsp",
        workers=workers,
        steps=steps,
        evaluate_every=4,
        clock=Clock(slower, wire),
    )
    assert curve["step"].tolist() == [0, 4, 6]
    gradient = 4 * 20  # bytes of twenty float32 numbers
    assert curve["bytes_sent"].tolist() == pytest.approx(
        [0, *(step * gradient * 2 * (workers - 1) / workers for step in (4, 6))]
    )
    assert curve["seconds"].tolist() == pytest.approx([0, *(n * (2 + 0.08) for n in (4, 6))])
    assert (curve["consensus_distance"] == 0).all()
    assert math.isnan(curve["train_loss"][0])
    assert curve["train_loss"][1:].notna().all()
    assert not curve["diverged"].any()
    assert train("quadratic", "bsp", steps=2)["seconds"].isna().all(), "there is no clock"


@pytest.mark.ranks
def test_real_processes_learn_what_lockstep_learns(six_ranks):
    settings = {"workers": 3, "steps": 6, "evaluate_every": 2}
    how = {**settings, "optimizer": "momentum", "schedule": "warm-up(3)"}
    ours = train("quadratic", METHODS[1], **how)
    real = train("quadratic", METHODS[1], executor="distributed", ranks=six_ranks, **how)
    assert real["executor"].unique().tolist() == ["distributed"]
    same = ["step", "train_loss", "test_loss", "consensus_distance", "diverged", "learning_rate"]
    pd.testing.assert_frame_equal(real[same], ours[same], rtol=1e-5)
    assert real["bytes_sent"].iloc[-1] == ours["bytes_sent"].iloc[-1]
    assert real["seconds"].is_monotonic_increasing
    wild = train("quadratic", "bsp", lr=10.0, executor="distributed", ranks=six_ranks, **settings)
    assert wild["diverged"].iloc[-1]


def test_an_interrupted_study_goes_on_and_names_a_damaged_run(tmp_path, monkeypatch):
    ran: list[tuple[str, int]] = []

    def counted(stop_after: int, settings: TrainingSettings):
        if len(ran) == stop_after:
            raise KeyboardInterrupt
        ran.append((str(settings.method), settings.seed))
        return run(settings)

    monkeypatch.setattr(runner, "run", partial(counted, 3))
    with pytest.raises(KeyboardInterrupt):
        compare("quadratic", METHODS, seeds=3, folder=tmp_path, **QUICK)
    assert len(list((tmp_path / "runs").iterdir())) == 3
    monkeypatch.setattr(runner, "run", partial(counted, 99))
    resumed = compare("quadratic", METHODS, seeds=3, folder=tmp_path, **QUICK).curves
    assert len(ran) == len(set(ran)) == 6
    monkeypatch.undo()
    fresh = compare("quadratic", METHODS, seeds=3, **QUICK).curves
    pd.testing.assert_frame_equal(resumed, fresh, check_exact=True)
    assert len(pd.read_csv(tmp_path / "curves.csv")) == len(fresh)
    damaged = next((tmp_path / "runs").iterdir())
    damaged.write_text("nonsense")
    with pytest.raises(ResultsError, match=f"{damaged.name}.*move it away"):
        compare("quadratic", METHODS, seeds=3, folder=tmp_path, **QUICK)


def test_runs_of_other_settings_are_other_files(tmp_path):
    base = training_settings("digits", "bsp", workers=2, steps=10, lr=0.1)
    others = [
        replace(base, **change)
        for change in (
            {"lr": 0.2},
            {"seed": 1},
            {"workers": 3},
            {"split": "non-iid(0.1)"},
            {"steps": 11},
            {"evaluate_every": 2},
            {"method": "bsp + top-k(0.01)"},
            {"clock": Clock(slower)},
            {"task": quadratic()},
            {"task": quadratic(noise=1.0)},
        )
    ]
    keys = [key(one) for one in [base, *others]]
    assert len(set(keys)) == len(keys)
    assert key(replace(base)) == key(base)
    with pytest.raises(InputError, match="cannot travel"):
        key(replace(base, clock=Clock(lambda rank, step, workers: 1.0)))


def test_a_run_of_other_code_is_made_again(tmp_path, monkeypatch):
    """As after an upgrade: the kept losses were those of the old code, without a word."""
    compare("quadratic", ["bsp"], seeds=1, folder=tmp_path, **QUICK)
    made_before = training.made_by(get_learning_task("quadratic"))
    for module in (runner, training):
        monkeypatch.setattr(module, "made_by", lambda task: "ddlnb 9, sources of tomorrow")
    again = compare("quadratic", ["bsp"], seeds=1, folder=tmp_path, **QUICK).curves
    assert len(list((tmp_path / "runs").iterdir())) == 2
    assert set(again["made_by"]) == {"ddlnb 9, sources of tomorrow"}
    kept = pd.read_csv(tmp_path / "curves.csv")
    assert set(kept["made_by"]) == {made_before, "ddlnb 9, sources of tomorrow"}
    with pytest.raises(InputError, match="vary in made_by"):
        runs_by(kept, "method")


def test_the_sources_that_define_training_are_told_apart(tmp_path):
    package = tmp_path / "ddlnb"
    for part in training.ALGORITHMS:
        place = training.PACKAGE / part
        copy = shutil.copytree if place.is_dir() else shutil.copy
        (package / part).parent.mkdir(parents=True, exist_ok=True)
        copy(place, package / part)
    ours = training.source_hash(training.PACKAGE)
    assert training.source_hash(package) == ours
    assert ours in training.made_by(get_learning_task("quadratic"))
    changed = package / "compression" / "top_k.py"
    changed.write_text(changed.read_text() + "# other code\n")
    assert training.source_hash(package) != ours


def test_functions_of_a_caller_are_known_by_their_source(tmp_path, monkeypatch):
    """A clock's function with another body under the same name is another clock."""
    monkeypatch.syspath_prepend(tmp_path)
    found = []
    text = "from callers_other import PACE\ndef pace(rank, step):\n    return {}\n"
    for seconds, other in (("1.0", 1), ("2.0", 1), ("2.0", 2)):
        (tmp_path / "callers_other.py").write_text(f"PACE = {other}\n")
        (tmp_path / "callers_own.py").write_text(text.format(seconds))
        sys.modules.pop("callers_own", None)
        importlib.invalidate_caches()
        own = importlib.import_module("callers_own")
        found.append(fingerprint(Clock(partial(own.pace))))
    assert len({*found}) == 3
    assert found[2] == fingerprint(Clock(partial(own.pace)))


NOTEBOOK = """
import torch
from dataclasses import dataclass
from ddlnb.compression.top_k import TopK

LIMIT = 3
DATA = [torch.ones(2), {"rule": TopK(0.1)}]

def scaled(x):
    return [x * 2.0 if x in {"a", "b"} else LIMIT for _ in DATA]

@dataclass(frozen=True)
class Own(TopK):
    density: float = 0.1
    bits = 8

    def encode(self, *args):
        return scaled(super().encode(*args))
"""


@pytest.mark.parametrize("has_file", [False, True])
@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("scaled(super()", "scaled(1 + super()"),
        ("x * 2.0", "x * 5.0"),
        ("LIMIT = 3", "LIMIT = 4"),
        ("bits = 8", "bits = 4"),
        ("torch.ones(2)", "torch.ones(3)"),
        ("TopK(0.1)", "TopK(0.2)"),
        ("density: float = 0.1", "density: float = 0.2"),
        ("", "# a remark that changes nothing"),
    ],
)
def test_classes_of_a_cell_are_known_by_what_they_are_made_of(
    before, after, has_file, tmp_path, monkeypatch
):
    """A cell has no file, or is run by one that stays the same; nobody kept its lines."""
    module, found = ModuleType("a_cell"), []
    if has_file:
        module.__file__ = str(tmp_path / "run.py")
        (tmp_path / "run.py").write_text("exec(cell)")
    monkeypatch.setitem(sys.modules, "a_cell", module)
    for text in (NOTEBOOK, NOTEBOOK.replace(before, after, 1) if before else NOTEBOOK + after):
        exec(compile(text, "<cell>", "exec"), vars(module))
        found.append(fingerprint(module.Own))
    assert (found[0] == found[1]) == (not before)


def test_a_folder_that_a_shell_would_expand_is_refused():
    with pytest.raises(InputError, match="begins with ~"):
        compare("quadratic", ["bsp"], seeds=1, folder="~/kept", **QUICK)


def test_the_tables_of_a_folder_hold_all_that_is_kept(tmp_path):
    for method in ("bsp", "asp"):
        compare("quadratic", [method], seeds=1, folder=tmp_path, tune=True, **QUICK)
    curves, tuning = (pd.read_csv(tmp_path / f"{name}.csv") for name in ("curves", "tuning"))
    assert set(curves["method"]) == set(tuning["method"]) == {"bsp on A2A", "asp on PS"}
    assert set(curves["seed"]) == {0}
    assert len(runs_by(curves, "method")) == 2


def curve(method: str, seed: int, losses: list[float], diverged: bool = False) -> pd.DataFrame:
    count = len(losses)
    base = train("quadratic", "bsp", workers=2, steps=1).iloc[[0] * count].reset_index(drop=True)
    steps = np.arange(count) * 10
    return base.assign(
        method=method, seed=seed, step=steps, bytes_sent=100.0 * steps, test_loss=losses,
        test_accuracy=0.5, seconds=2.0 * steps, diverged=[False] * (count - 1) + [diverged],
    )  # fmt: skip


def test_summaries_count_what_did_not_get_there():
    curves = pd.concat(
        [
            curve("good", 0, [4.0, 2.0, 1.0]),
            curve("good", 1, [4.0, 1.5, 1.2]),
            curve("good", 2, [4.0, 3.0, 2.0]),
            curve("bad", 0, [4.0, 3.0, 2.9]),
            curve("bad", 1, [4.0, 9e9], diverged=True),
        ]
    )
    found = summary(curves, target=1.5).set_index("method")
    loss = mean_interval(np.array([1.0, 1.2, 2.0]))
    expected = {
        "seeds": [3, 2],
        "diverged": [0, 1],
        "reached": [2, 0],
        "steps_to_target": [20, math.inf],
        "bytes_to_target": [2000, math.inf],
        "seconds_to_target": [40, math.inf],
        "test_loss": [loss.estimate, math.inf],
        "test_loss_half_width": [loss.half_width, math.nan],
    }
    for column, values in expected.items():
        assert found.loc[["good", "bad"], column].tolist() == pytest.approx(values, nan_ok=True)
    assert to_target(curve("good", 0, [4.0, 2.0, 1.0]), 2.0) == 10


@pytest.mark.parametrize("judge", [to_target, summary])
@pytest.mark.parametrize(
    ("target", "told"), [(math.nan, "finite"), (4.0, "before training"), (math.inf, "finite")]
)
def test_targets_that_say_nothing_are_refused(judge, target, told):
    with pytest.raises(InputError, match=told):
        judge(curve("good", 0, [4.0, 2.0, 1.0]), target)


@pytest.mark.thorough
def test_long_work_goes_on_in_as_many_other_processes_as_a_variable_or_a_call_says(monkeypatch):
    assert in_parallel(_pid, [() for _ in range(3)], jobs=2) == [os.getpid()] * 3  # short work
    monkeypatch.setattr(runner, "START_SECONDS", -1.0)  # other processes, however short
    first, *others = in_parallel(_pid, [() for _ in range(4)], jobs=2)
    assert first == os.getpid()
    assert first not in others
    assert in_parallel(math.factorial, [(number,) for number in range(5)], 2) == [1, 1, 2, 6, 24]
    with pytest.raises(ValueError, match="negative"):
        in_parallel(math.factorial, [(0,), (-1,), (2,)], jobs=2)
    monkeypatch.setenv("DDLNB_JOBS", "1")
    assert in_parallel(_pid, [() for _ in range(3)]) == [os.getpid()] * 3
    monkeypatch.setenv("DDLNB_JOBS", "none")
    with pytest.raises(InputError, match="DDLNB_JOBS 'none' must be"):
        in_parallel(_pid, [()])
    assert in_parallel(_pid, [()], jobs=1) == [os.getpid()]


def _pid() -> int:
    return os.getpid()


@pytest.mark.ranks
def test_work_that_is_handed_to_engines_comes_back_as_if_it_was_done_here(tmp_path):
    few = {"workers": 2, "steps": 6, "evaluate_every": 3}
    runs = [training_settings("quadratic", "bsp", seed=seed, **few) for seed in range(3)]
    here = Runner(jobs=1).curves(runs, "runs")
    hand_to(ranks_at("local", 2))
    try:
        pids = in_parallel(_pid, [() for _ in range(5)])
        assert len(set(pids)) == 2
        assert os.getpid() not in pids
        kept: dict[int, int] = {}
        with pytest.raises(RankError, match="1 piece of work failed, rank 0: ValueError"):
            in_parallel(math.factorial, [(3,), (4,), (-1,), (5,)], kept=kept.__setitem__)
        assert kept == {0: 6, 1: 24, 3: 120}  # also what was done beside the piece that failed
        there = Runner(tmp_path).curves(runs, "runs")
        assert len(list((tmp_path / "runs").glob("*.json"))) == len(runs)
    finally:
        hand_to(None)
    for one, other in zip(here, there, strict=True):
        pd.testing.assert_frame_equal(one, other, check_exact=True)
    assert in_parallel(_pid, [()]) == [os.getpid()]


@pytest.mark.parametrize("where", ["slurm:engines=many", "local:engines=1.5", "mpi:engines=0"])
def test_a_number_of_engines_that_is_none_is_refused(where):
    with pytest.raises(InputError, match=r"engines=\S+ must be a whole number, such as engines=8"):
        train_at(where)


@pytest.mark.slow
def test_ctrl_c_while_work_is_handed_out_ends_the_processes_that_began(monkeypatch):
    handed_out = []
    submit = ProcessPoolExecutor.submit

    def interrupted(pool, *call):
        if len(handed_out) == 3:
            raise KeyboardInterrupt
        handed_out.append(submit(pool, *call))
        return handed_out[-1]

    monkeypatch.setattr(runner, "START_SECONDS", 0.0)
    monkeypatch.setattr(ProcessPoolExecutor, "submit", interrupted)
    with pytest.raises(KeyboardInterrupt):
        in_parallel(time.sleep, [(0.1,), *[(5.0,)] * 8], jobs=2)
    assert multiprocessing.active_children() == []


# Shells start what they put into the background with Ctrl-C ignored, and so may be this test.
INTERRUPTED = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
from ddlnb.training.runs.compare import compare
compare("digits", ["bsp"], seeds=40, workers=8, steps=100, folder={!r}, jobs=2)
"""


@pytest.mark.thorough(but=1)
@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_all_processes_end_and_finished_runs_are_kept(tmp_path, how):
    runs = tmp_path / "kept" / "runs"
    owner = Owner(tmp_path, INTERRUPTED.format(str(tmp_path / "kept")))
    wait_until(lambda: any(runs.glob("*.json")), 120)
    owner.process.send_signal(how)
    owner.assert_nothing_left(60)
    finished = list(runs.glob("*.json"))
    assert 0 < len(finished) < 40
    assert all(len(json.loads(path.read_text())["step"]) > 1 for path in finished)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"methods": []}, "at least one method"),
        ({"seeds": 0}, "at least one seed"),
        ({"seeds": [TUNING_SEEDS[1]]}, "are those for tuning"),
        ({"tune": True, "lr": 0.1}, "leave out lr 0.1"),
        ({"optimiser": "sgd"}, "unknown training setting 'optimiser'.*did you mean 'optimizer'"),
        ({"seed": 3}, "give seeds, not seed"),
        ({"workers": []}, "at least one number of workers"),
        ({"lr": []}, "at least one learning rate"),
        ({"lr": 1e9}, r"learning rate 1000000000.0 must be between .* leaves nothing of the model"),
        ({"lr": 1e-12}, r"learning rate 1e-12 must be .*no step changes a float32 parameter"),
        ({"jobs": 0}, "jobs 0"),
        (
            {"tune": True, "steps": 10, "schedule": "warm-up(6)"},
            "the search for a rate, with half of them, has 5",
        ),
        ({"steps": 0}, "steps 0"),
        ({"optimizer": "sdg"}, "did you mean 'sgd'"),
        ({"methods": ["bps"]}, "did you mean 'bsp'"),
    ],
)
def test_bad_options_are_refused_before_anything_runs(options, told, tmp_path):
    arguments = {"task": "quadratic", "methods": ["bsp"], **QUICK, "folder": tmp_path, **options}
    with pytest.raises(InputError, match=told):
        compare(**arguments)
    assert not list(tmp_path.iterdir())


def test_learning_curves_show_every_method_and_end_where_runs_diverge():
    curves = pd.concat(
        [
            curve("good", 0, [4.0, 2.0, 1.0]),
            curve("good", 1, [4.0, 1.5, 1.2]),
            curve("bad", 0, [4.0, 3.0, 9e9], diverged=True),
        ]
    )
    figure = learning_curves(curves, against=("step", "bytes", "seconds"), floor=0.5)
    assert len(figure.axes) == 6
    losses = {line.get_label(): line for line in figure.axes[0].lines}
    assert losses["good"].get_ydata().tolist() == pytest.approx([4.0, 1.75, 1.1])
    assert losses["bad"].get_xdata().tolist() == [0, 10]
    assert any(line.get_marker() == "x" for line in figure.axes[0].lines)


@pytest.mark.parametrize(
    ("changes", "options", "told"),
    [
        ({}, {"measures": ("test_los",)}, "did you mean 'test_loss'"),
        ({"seconds": math.nan}, {"against": ("seconds",)}, "have no seconds"),
        ({"task": ["digits", "text"]}, {}, "shows one task"),
    ],
)
def test_learning_curves_that_show_nothing_are_refused(changes, options, told):
    with pytest.raises(InputError, match=told):
        learning_curves(curve("good", 0, [4.0, 2.0]).assign(**changes), **options)


# Learning rates.


CELL = training_settings(quadratic(), "bsp", workers=2, steps=10, lr=1.0)


def number(count: int) -> Samples:
    values = torch.arange(float(count))
    return Samples((values,), values.long())


def held_mean(module: torch.nn.Module, batch: tuple) -> torch.Tensor:
    return batch[0].mean()


@pytest.mark.parametrize("count", [5, 1437, 4000])
def test_samples_are_kept_or_held_out_and_weigh_the_same(count):
    samples = partial(number, count)
    held = validation_task(replace(quadratic(), samples=samples, loss=held_mean))
    kept = held.samples().tensors[0]
    assert kept.unique().numel() == len(kept) == count - round(SHARE * count)
    others = set(range(count)) - set(kept.long().tolist())
    loss = held.evaluate(torch.nn.Identity()).loss
    assert loss == pytest.approx(np.mean(list(others)))


def test_tuning_never_looks_at_the_test_set_and_refuses_too_few_samples():
    def never(module: torch.nn.Module) -> None:
        raise AssertionError("tuning evaluated on the test set")

    task = replace(LEARNING_TASKS["digits"], evaluate=never)
    [search] = tuned([replace(CELL, task=task)], Runner(jobs=1))
    assert search.best > 0
    few = replace(quadratic(), samples=lambda: number(2))
    with pytest.raises(InputError, match="2 training samples are too few"):
        validation_task(few).samples()


def test_every_method_is_tuned_with_the_same_budget(tmp_path):
    result = compare("quadratic", METHODS, seeds=2, tune=True, folder=tmp_path, **QUICK)
    assert not set(TUNING_SEEDS) & set(result.curves["seed"])
    base = LEARNING_TASKS["quadratic"].learning_rate
    for method, tried in result.tuning.groupby("method"):
        scanned, confirmed = (tried[tried["stage"] == stage] for stage in (SCAN, CONFIRM))
        assert set(base * np.array(SCANNED)) <= set(scanned["learning_rate"])
        assert (scanned["steps"] == QUICK["steps"] // 2).all()
        assert (confirmed["steps"] == QUICK["steps"]).all()
        assert (confirmed["seeds"] == len(TUNING_SEEDS)).all()
        best = scanned.loc[scanned["validation_loss"].idxmin(), "learning_rate"]
        assert confirmed["learning_rate"].max() == best
        (chosen,) = tried.loc[tried["chosen"], "learning_rate"]
        used = result.curves.loc[result.curves["method"] == method, "learning_rate"]
        assert set(used) == {chosen}
    again = compare("quadratic", METHODS, seeds=2, tune=True, folder=tmp_path, **QUICK)
    pd.testing.assert_frame_equal(again.tuning, result.tuning, check_exact=True)
    rows = result.summary()
    assert (rows["rates_tried"] >= len(SCANNED) + 2).all()
    assert rows["rate_stable"].all()


@pytest.mark.parametrize("best", [0.01, 0.3, 0.4, 1.0, 2.5, 60.0, 1e-9, 1e9])
def test_a_scan_ends_within_a_factor_of_the_best_or_goes_beyond_an_end_and_stops(best):
    """Rates are a factor of 2 apart at last: none is nearer than the square root of it."""
    search = Search(CELL)
    while rates := search.next_scanned():
        search.scanned |= {rate: abs(math.log(rate / best)) for rate in rates}
    (found,) = search.next_confirmed()
    if 1e-3 < best < 1e3:
        assert abs(math.log2(found / best)) <= 0.5 + 1e-9
    else:
        assert len(search.scanned) == len(SCANNED) + EXTENSIONS + 2
        assert found == pytest.approx(4.0**-5 / 2 if best < 1 else 4.0**5 * 2)


def test_a_rate_that_is_not_stable_is_halved_until_one_is_or_none_is_said():
    search = Search(CELL, scanned={0.25: 3.0, 1.0: 1.0, 4.0: 2.0})
    tried = []
    while rates := search.next_confirmed():
        tried += rates
        search.confirmed[rates[0]] = 1.0 if rates[0] < 0.3 else math.inf
    assert tried == [1.0, 0.5, 0.25]
    assert (search.best, search.stable) == (0.25, True)
    frame = search.frame()
    assert frame.loc[frame["chosen"], "learning_rate"].tolist() == [0.25]
    search = Search(CELL, scanned={1.0: math.inf})
    while rates := search.next_confirmed():
        search.confirmed[rates[0]] = math.inf
    assert len(search.confirmed) == 1 + HALVINGS
    assert not search.stable
    assert not search.frame()["stable"].any()


@pytest.mark.parametrize(
    ("losses", "diverged", "stable"),
    [
        ([2.3, 0.5, 0.1], False, True),
        ([2.3, 0.1, 0.31], False, True),
        ([2.3, 0.1, 0.4], False, False),
        ([2.3, 0.3, 67.0], False, False),
        ([2.3, 0.3, 0.1], True, False),
        ([2.3, 2.4, 2.5], False, False),
        ([-1.0, -3.0, -2.9], False, True),
        ([2.3, math.nan, math.nan], False, False),
    ],
)
def test_a_stable_run_keeps_nine_tenths_of_its_gain(losses, diverged, stable):
    curve = pd.DataFrame({"test_loss": losses, "diverged": [False, False, diverged]})
    assert is_stable(curve) == stable


class Grows(Runner):
    """As ECD with coarse quantisation: a large rate is best in half the steps, and then explodes.

    With the second seed a rate that is half as large still does.
    """

    def curves(self, runs, what):
        found = []
        for one in runs:
            limit = 0.6 if one.seed == TUNING_SEEDS[0] else 0.3
            late = one.steps == CELL.steps and one.lr > limit
            losses = [2.3, 0.3 / one.lr, 67.0 if late else 0.29 / one.lr]
            found.append(pd.DataFrame({"test_loss": losses, "diverged": one.lr > 1}))
        return found


def test_a_rate_that_grows_after_half_the_steps_is_not_taken():
    [search] = tuned([CELL], Grows())
    assert min(search.scanned, key=search.scanned.__getitem__) == 1.0
    assert sorted(search.scanned) == [0.25, 0.5, 1.0, 2.0, 4.0]
    assert sorted(search.confirmed) == [0.25, 0.5, 1.0]
    assert (search.best, search.stable) == (0.25, True)


def test_a_study_is_the_runs_it_consists_of_whose_stragglers_are_drawn_anew_for_every_seed():
    clock = Clock(get_straggler("log-normal(0.5)"))
    ask = {"workers": 2, "steps": 8, "clock": clock}
    curves = compare("quadratic", ["bsp", "asp"], seeds=[2, 3, 4], jobs=1, **ask).curves
    ends = curves[curves["step"] == 8].groupby("method")["seconds"]
    assert (ends.nunique() == 3).all()
    alone = train("quadratic", "asp", seed=3, **ask)
    same = curves[(curves["seed"] == 3) & (curves["method"] == alone["method"][0])]
    pd.testing.assert_frame_equal(same.reset_index(drop=True), alone, check_exact=True)


def test_what_is_given_twice_or_by_numpy_is_run_once():
    ask = {"workers": [2, 2], "steps": 4, "lr": [0.1, np.float64(0.1)], "jobs": 1}
    found = compare("quadratic", "bsp", seeds=np.int64(2), **ask)
    assert len(found.curves.groupby(["workers", "learning_rate", "seed"])) == 2
    assert found.curves["step"].value_counts().eq(2).all()

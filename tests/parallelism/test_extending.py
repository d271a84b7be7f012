"""A schedule or a framework of one's own: one entry, and it is there wherever one is named."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from typer.testing import CliRunner

import ddlnb
from ddlnb.cli.app import app
from ddlnb.errors import InputError, UnknownName
from ddlnb.networks.topologies import Star
from ddlnb.parallelism import layout as layout_module
from ddlnb.parallelism.executed.table import DENSE, Case, strategy_rows
from ddlnb.parallelism.forecast.frameworks import (
    FRAMEWORKS,
    Framework,
    register_framework,
    saved_fit,
)
from ddlnb.parallelism.forecast.layouts import ranking_of, scale
from ddlnb.parallelism.forecast.question import LayoutQuestion
from ddlnb.parallelism.forecast.step import step, weight_seconds
from ddlnb.parallelism.forecast.table import forecast_table
from ddlnb.parallelism.heterogeneous import gpu_kinds
from ddlnb.parallelism.iteration import parts_of, play_iteration
from ddlnb.parallelism.layout import CONTEXTS, RECOMPUTATIONS, Layout
from ddlnb.parallelism.machines import machines_of
from ddlnb.parallelism.memory import memory
from ddlnb.parallelism.own_schedules import register_schedule
from ddlnb.parallelism.schedules import (
    SCHEDULES,
    SHIPPED,
    PipelineSchedule,
    in_flight,
    most_in_flight,
    play,
    schedule,
)
from tests.parallelism.forecast.tables import write_table

# Twice as far ahead as 1F1B, so that a late message holds up nobody.
EAGER = PipelineSchedule("eager", lambda stage, stages, *_: 2 * (stages - stage) - 1)
# Nobody's: its layers get less of a GPU than others'.
OWN = Framework("jaxpipe", r"jax", overlaps=True, parameters={"matrix_share": 0.5})


@pytest.fixture
def eager() -> Iterator[None]:
    register_schedule(EAGER)
    yield
    del SCHEDULES["eager"]


@pytest.fixture
def own() -> Iterator[None]:
    register_framework(OWN)
    yield
    del FRAMEWORKS["jaxpipe"]


@pytest.mark.usefixtures("eager")
def test_a_schedule_of_ones_own_is_played_counted_and_forecast(tmp_path):
    layout = Layout.parse("pp4 eager acc8")
    assert Layout.parse(str(layout)) == layout
    assert [most_in_flight(stage) for stage in schedule("eager", 4, 8)] == [7, 5, 3, 1]
    assert play(schedule("eager", 4, 8), {"F": 1.0, "B": 2.0}).bubble == pytest.approx(3 / 11)
    model = ddlnb.parallelism.get_shape("llama3-8b").shape
    usual = memory(model, Layout.parse("pp4 acc8"))
    assert memory(model, layout).activations > 1.5 * usual.activations
    line = play_iteration(model, layout, Star(4).network(bandwidth=1e11), 1e14)
    assert parts_of(line)["bubble"] > 0
    found = scale("llama3-70b", "H100", 16, schedule="eager", framework="megatron").outlook
    staged = found.cases.pp > 1
    assert (found.cases.schedule == "eager").all()
    plain = scale("llama3-70b", "H100", 16, framework="megatron", vpp=1).outlook
    assert (found.most_gib[staged] > plain.most_gib[staged]).any()
    path = write_table(tmp_path / "runs.csv", {"schedule": "Eager 1F1B"})
    assert not any("known schedule" in note for note in forecast_table(path).notes)
    with pytest.raises(UnknownName, match="eager"):
        schedule("lazy", 4, 8)


@pytest.mark.ranks
@pytest.mark.usefixtures("eager")
def test_a_schedule_of_ones_own_is_executed_on_real_ranks(four_ranks):
    own = Case("eager", DENSE, Layout(pp=4, micro_batches=8, schedule="eager"))
    rows = strategy_rows([own], four_ranks)
    assert len(rows) > 4
    assert rows["equal"].all()


def bubble_of(name: str, pp: int, rounds: int, vpp: int = 1) -> float:
    """Return the bubble of a step, in seconds, of a model whose stages are not all alike."""
    question = LayoutQuestion("llama3-8b", "H100", 4, framework="megatron")
    layout = Layout(pp=pp, tp=8, dp=4 // pp, micro_batches=rounds)
    cases = ranking_of(question, layout).outlook.cases
    cases = replace(cases, schedule=np.array([name]), vpp=np.array([float(vpp)]))
    return float(step(cases, saved_fit()).bubble[0])


@pytest.mark.parametrize("name", SHIPPED)
@pytest.mark.parametrize(("pp", "rounds"), [(2, 4), (4, 8), (4, 12), (4, 3), (4, 128)])
def test_a_copy_of_a_schedule_is_forecast_as_the_schedule_is(name, pp, rounds):
    """Whatever it is called. The formula of V schedules is that of others which split passes."""
    vpp = 2 if SHIPPED[name].chunked else 1
    register_schedule(replace(SHIPPED[name], name="mine"))
    try:
        own, shipped = (bubble_of(one, pp, rounds, vpp) for one in ("mine", name))
    finally:
        del SCHEDULES["mine"]
    if SHIPPED[name].vee:
        assert 0.2 * shipped < own < 1.5 * shipped
    else:
        assert own == pytest.approx(shipped, rel=1e-6)


@pytest.mark.parametrize(("pp", "rounds"), [(2, 4), (4, 8), (4, 128)])
def test_a_schedule_without_overlap_takes_as_long_as_its_stages_one_by_one(pp, rounds):
    register_schedule(PipelineSchedule("mine", lambda *_: 1))
    try:
        own, usual = bubble_of("mine", pp, rounds), bubble_of("1f1b", pp, rounds)
    finally:
        del SCHEDULES["mine"]
    assert own == pytest.approx(rounds * usual, rel=1e-6)


def test_a_schedule_of_ones_own_replaces_its_former_self():
    for ahead in (lambda *_: 1, lambda stage, stages, *_: stages - stage):
        register_schedule(PipelineSchedule("mine", ahead))
    assert in_flight("mine", 4, 8, 1, 0) == 4
    del SCHEDULES["mine"]


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        (PipelineSchedule("mine", lambda *_: 0), "whole numbers above 0"),
        (PipelineSchedule("mine", lambda *_: 1.5), "whole numbers above 0"),
        (PipelineSchedule("mine", lambda stage, stages: 1), "takes 2 positional arguments"),
        (PipelineSchedule("mine", lambda s, p, m, v: min(m, p - s)), "works on arrays"),
        (PipelineSchedule("mine", lambda stage, *_: 1 + stage), "never ends"),
        (
            PipelineSchedule("mine", lambda *_: 1, vee=lambda *_: [(8, "F0 F1 B0 B1 W W")]),
            "never ends",
        ),
        (PipelineSchedule("mine", lambda *_: 1, vee=lambda *_: [(8, "F0 B0")]), "not have every"),
        (PipelineSchedule("mine", lambda *_: 1, vee=lambda *_: [(8, "W")]), "put in order, raises"),
        (PipelineSchedule("mine", lambda *_: 1, vee=lambda s: []), "raises TypeError"),
        (PipelineSchedule("mine", lambda s, p, *_: p - s, chunked=True), "never ends"),
        (PipelineSchedule("mine", lambda *_: 1, words="("), "no pattern"),
        (PipelineSchedule("mine", lambda *_: 1, weights_behind=lambda s: -1), "from 0 on"),
        (
            PipelineSchedule("mine", lambda *_: 1, weights_behind=lambda s: 1 / s),
            "what lies behind, raises ZeroDivisionError",
        ),
        (PipelineSchedule("mine", lambda *_: 1, weights_behind=lambda: 0), "raises TypeError"),
        (PipelineSchedule("1f1b", lambda *_: 1), "registered with other choices"),
        (PipelineSchedule("full", lambda *_: 1), "name of another word in layouts"),
        (PipelineSchedule("zero2", lambda *_: 1), "name of another word in layouts"),
    ],
)
def test_a_schedule_that_cannot_be_carried_out_is_refused(entry, said):
    register_schedule(former := PipelineSchedule("mine", lambda *_: 1))
    known = dict(SCHEDULES)
    try:
        with pytest.raises(InputError, match=said):
            register_schedule(entry)
        assert known == SCHEDULES
        assert SCHEDULES["mine"] is former
    finally:
        del SCHEDULES["mine"]


@pytest.mark.usefixtures("own")
def test_a_framework_of_ones_own_is_forecast_with_what_its_entry_says(tmp_path):
    fast, slow = (
        scale("llama3-8b", "H100", 4, framework=name, overlap=True) for name in ("nemo", "jaxpipe")
    )
    assert slow.rows(1)[0]["seconds"] > fast.rows(1)[0]["seconds"]
    assert (slow.outlook.cases.vpp == 1).all()  # its entry names no chunks
    path = write_table(tmp_path / "runs.csv", {"framework": "JAX 0.7"})
    assert not any("known framework" in note for note in forecast_table(path).notes)
    done = CliRunner().invoke(
        app, ["scale", "--model", "llama3-8b", "--framework", "jaxpipe", "--nodes", "2"]
    )
    assert done.exit_code == 0, done.output
    assert "(jaxpipe)" in done.output
    advice = ddlnb.advise_layouts("llama3-8b", "H100", 2, framework="jaxpipe", draws=0)
    assert any("Nothing is fitted to runs of jaxpipe" in said for said in advice.unknowns)
    with pytest.raises(InputError, match="registered with other choices"):
        register_framework(Framework("nemo"))


def test_no_word_of_layouts_is_the_name_of_a_schedule():
    words = [f"{name}2" for name in layout_module._COUNTS] + list(layout_module._SWITCHES)
    words += [one for one in (*RECOMPUTATIONS, *CONTEXTS) if one != "none"]
    for word in words:
        with pytest.raises(InputError, match="name of another word in layouts"):
            register_schedule(PipelineSchedule(word, lambda *_: 1))


@pytest.mark.usefixtures("own")
def test_a_framework_of_ones_own_is_like_what_another_is_like():
    register_framework(Framework("jaxpipe", like="megatron-deepspeed"))  # a cell that runs again
    assert saved_fit().of("jaxpipe") == saved_fit().of("megatron")


@pytest.mark.parametrize(
    ("choice", "said"),
    [
        ({"like": "jaxpipe"}, "is like itself"),
        ({"gradient_bytes": -4}, "gradient_bytes"),
        ({"unstated": (2, -1, 0)}, "three that add up to 1"),
        ({"like": "nemmo"}, "unknown framework 'nemmo'.*did you mean 'nemo'"),
        ({"like": "nemo", "parameters": {"launch": 1e-5}}, "leave out one of them"),
        ({"parameters": {"bogus": 1.0}}, "unknown parameter of a framework 'bogus'"),
        ({"parameters": {"matrix_share": 7.0}}, "matrix_share"),
        ({"fitted": ("bogus",)}, "unknown parameter of a framework 'bogus'"),
        ({"words": "("}, "no pattern"),
        ({"zero": 5}, "give 0 to 3"),
        ({"gpus": ("H100",)}, "give their peak"),
    ],
)
def test_a_framework_that_cannot_be_is_refused(choice, said):
    known = dict(FRAMEWORKS)
    with pytest.raises(InputError, match=said):
        register_framework(Framework("jaxpipe", **choice))
    assert known == FRAMEWORKS


def test_a_gpu_sustains_the_same_in_every_forecast_of_a_large_model():
    """FLOP/s that matrices of layers get: of a search, of a play, of GPUs that share a batch."""
    played, own = machines_of("H100", 2).flops, machines_of("H100", 2, framework="nanotron").flops
    shared = gpu_kinds({"H100": 2}, "bf16")[0].speed
    one = scale("llama3-8b", "H100", 8, framework="nanotron").outlook.cases.select(np.array([0]))
    seconds = weight_seconds(one, saved_fit().of("nanotron"), one.layer_parameters)
    searched = 2 * one.layer_parameters * one.tokens / one.tp / seconds
    assert played == pytest.approx(shared)
    assert searched[0] == pytest.approx(own)

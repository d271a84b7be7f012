"""What a person adds outside the package works everywhere by its name, with no other edit.

Schedules and frameworks of large models are added in tests/parallelism/test_extending.py,
compressors and synchronisations in tests/training/test_extending.py.
"""

import math
import shutil
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import nbformat
import numpy as np
import pytest
import yaml
from typer.testing import CliRunner

import ddlnb
from ddlnb.advice.explain import explain_gap
from ddlnb.cli.app import app
from ddlnb.clusters.effects import (
    BANDWIDTH,
    EFFECTS,
    FACTOR,
    SECONDS,
    SHARE,
    Effect,
    register_effect,
    without,
)
from ddlnb.clusters.file import get_cluster, read_cluster, write_cluster
from ddlnb.engines.catalogue import support
from ddlnb.engines.measure import measure
from ddlnb.errors import InputError
from ddlnb.files import HARDWARE
from ddlnb.hardware.catalogue import families, get_gpu, gpus
from ddlnb.hardware.gpu import generations
from ddlnb.parallelism.forecast.layouts import scale
from ddlnb.plans.bucketing import Bucketing, message_of, per_tensor
from ddlnb.plans.methods import METHODS, Method, get_method, register_method
from ddlnb.plans.plan import Gate, Launch, Message
from ddlnb.simulator.draws import draw_clusters
from ddlnb.simulator.forecast import forecast
from ddlnb.simulator.simulate import Cell, breakdown, simulate, steady_seconds
from ddlnb.survey.execution import run_notebook
from ddlnb.survey.fig2_taxonomy import taxonomy
from ddlnb.survey.notebooks import catalogue
from ddlnb.training.cost.estimate import iteration_cost
from ddlnb.workloads.workload import Workload, read_profile
from tests.toy import TOY

# A lossless method: neighbouring tensors travel in pairs.


def in_pairs(workload: Workload) -> list[Message]:
    """Send every two tensors together, in the order in which backward produces them."""
    alone = per_tensor(workload)
    return [
        Message(
            tuple(piece for message in alone[start : start + 2] for piece in message.pieces),
            min(message.priority for message in alone[start : start + 2]),
        )
        for start in range(0, len(alone), 2)
    ]


PAIRS = Method(
    "Pairs-A2A",
    "tensor pairs",
    Bucketing(in_pairs),
    "all_reduce",
    Launch.WHEN_READY,
    False,
    Gate.ALL_LAYERS,
)


@pytest.fixture
def pairs() -> Iterator[Method]:
    register_method(PAIRS)
    yield PAIRS
    del METHODS[PAIRS.name]


def printed(*words: str) -> str:
    done = CliRunner().invoke(app, words, catch_exceptions=False)
    assert done.exit_code == 0
    return done.output


def test_a_method_from_outside_is_planned_and_named_everywhere(pairs):
    assert get_method(pairs.name) is pairs
    assert not pairs.needs_cost
    assert [len(message.pieces) for message in pairs.plan(TOY).messages] == [2, 1]
    assert ("Pairs-A2A", "torch", "") in support()
    assert ("Pairs-A2A", "horovod", "") in support()
    scheduling = next(aspect for aspect in taxonomy() if aspect.name == "scheduling")
    assert "Pairs-A2A" in {leaf.name for leaf in scheduling.leaves}
    assert "in pairs" in printed("methods", "--csv")
    words = ("--model", "resnet50", "--profile", "resnet50_b64_rtx2080ti", "--method", "Pairs-A2A")
    assert "Pairs-A2A: 81 messages" in printed("plan", *words)


def test_a_method_from_outside_is_simulated_and_forecast(pairs):
    workload = read_profile("resnet50_b64_rtx2080ti")
    timeline = simulate(workload, "survey-10GbE", pairs.name)
    rows = forecast(workload, "survey-10GbE", draws=0).set_index("method")
    assert timeline.method == pairs.name
    assert set(rows.index) == {"DDP", *METHODS}
    assert rows.loc["BSP-A2A", "messages"] == 1
    assert rows.loc[pairs.name, "messages"] == 81
    assert rows.loc["WFBP-A2A", "messages"] == 161


@pytest.mark.ranks
def test_a_method_from_outside_trains_on_real_ranks(pairs):
    rows = measure("small-conv", [pairs.name], workers=2, iterations=2, warmup=1, repetitions=1)
    assert pairs.name in set(rows["method"])
    assert (rows["throughput_samples_per_s"] > 0).all()


def test_a_method_whose_rule_is_defined_anew_replaces_its_former_self():
    """As in a notebook, or a file given with --with, that is edited and runs again."""

    def method(pieces: int) -> Method:
        def rule(workload):
            ends = [*range(0, len(workload.gradients), pieces), len(workload.gradients)]
            return [message_of(workload, workload.gradients[a:b]) for a, b in pairwise(ends)]

        return replace(METHODS["WFBP-A2A"], name="Edited", bucketing=Bucketing(rule))

    workload, cluster = read_profile("resnet50_b64_rtx2080ti"), get_cluster("survey-10GbE", 8)
    found = []
    try:
        for pieces in (1, 40):
            register_method(method(pieces))
            found.append(simulate(workload, cluster, "Edited").iteration_seconds)
        with pytest.raises(InputError, match="registered with other choices"):
            register_method(replace(METHODS["Edited"], gate=Gate.OWN_LAYER))
        with pytest.raises(InputError, match="registered with other choices"):
            register_method(replace(method(2), name="WFBP-A2A"))
        edited = replace(METHODS["Edited"], bucketing=Bucketing(lambda _: []))
        register_method(lambdas := replace(edited, name="Lambdas"))
        with pytest.raises(InputError, match="registered with other choices"):
            register_method(
                replace(lambdas, bucketing=Bucketing(lambda _: []), gate=Gate.OWN_LAYER)
            )
    finally:
        del METHODS["Edited"]
        METHODS.pop("Lambdas", None)
    assert found[0] != found[1]


@pytest.mark.parametrize("planner", [lambda *_: None, "x"])
def test_a_planner_that_makes_no_plan_is_told_so(planner):
    method = replace(METHODS["WFBP-A2A"], name="Planned", planner=planner)
    with pytest.raises(InputError, match="planner of 'Planned' makes a NoneType"):
        simulate("resnet50", "survey-10GbE", method)


def test_a_name_that_is_taken_is_refused(pairs):
    register_method(pairs)  # again, the same
    other = replace(pairs, gate=Gate.OWN_LAYER)
    with pytest.raises(InputError, match="'Pairs-A2A' is registered with other choices") as told:
        register_method(other)
    assert METHODS[pairs.name] is pairs
    exec(str(told.value).rpartition(": ")[2], {"ddlnb": ddlnb})  # the way out
    register_method(other)
    assert METHODS[pairs.name] is other


@pytest.mark.parametrize(
    ("choice", "said"),
    [
        ({"compression": "top-k(0.01)"}, "compression 'top-k.0.01.' .* would change nothing"),
        ({"bucketing": in_pairs}, r"is no Bucketing; write Bucketing\(RULE\)"),
        ({"partition_bytes": "256KB"}, "partition_bytes '256KB' must be a whole number"),
        ({"credit_bytes": -5}, "credit_bytes -5 must be a whole number, at least 1"),
    ],
)
def test_a_method_of_what_would_be_ignored_or_cannot_be_is_refused(choice, said):
    with pytest.raises(InputError, match=said):
        replace(PAIRS, **choice)


# Effects: checksums before a message is sent, an interrupt for every byte, its share of a link, a
# logger's part of the computation.

CHECKSUM = Effect(
    "checksum_bandwidth",
    BANDWIDTH,
    "software",
    "latency",
    "rate at which checksums of messages are computed",
    formulas={"message latency": lambda value, messages: messages.bytes / value},
)
OWN_EFFECTS = {
    CHECKSUM: "1 GB/s",
    Effect(
        "interrupt_bandwidth",
        BANDWIDTH,
        "software",
        "bandwidth",
        "rate at which interrupts are answered",
        formulas={"message work": lambda value, messages: messages.bytes / value},
    ): "1 GB/s",
    Effect(
        "interrupt_share",
        SHARE,
        "between",
        "contention",
        "share of a link that interrupts leave while the worker computes",
        formulas={"message share": lambda value, messages: value},
    ): "0.5",
    Effect(
        "rendezvous_latency",
        SECONDS,
        "software",
        "latency",
        "time until all ranks have met",
        formulas={"collective latency": lambda value, workers: value * math.log2(workers)},
    ): "1 ms",
    Effect(
        "logging_latency",
        SECONDS,
        "compute",
        "computation",
        "time that a logger takes of every task",
        formulas={"task seconds": lambda value, tasks: np.full(len(tasks.listed), value)},
    ): "100 us",
    Effect(
        "power_factor",
        FACTOR,
        "compute",
        "computation",
        "seconds of computation of a machine of so many workers that is capped",
        formulas={"task factor": lambda value, workers: value if workers > 4 else 1.0},
    ): "1.5",
}


@pytest.fixture
def own_effects() -> Iterator[None]:
    for effect in OWN_EFFECTS:
        register_effect(effect)
    yield
    for effect in OWN_EFFECTS:
        del EFFECTS[effect.name]


@pytest.mark.usefixtures("own_effects")
@pytest.mark.parametrize("effect", OWN_EFFECTS, ids=lambda effect: effect.name)
def test_an_effect_from_outside_costs_time_and_is_told_apart(effect, tmp_path):
    plain = get_cluster("survey-10GbE", 8)
    with_it = plain.with_effects(**{effect.name: OWN_EFFECTS[effect]})
    path = write_cluster(with_it, tmp_path / "mine.yaml")
    assert read_cluster(path).with_workers(8).effects == with_it.effects
    assert f"{effect.name}: {effect.meaning}" in printed("cluster", "show", str(path))
    workload = read_profile("resnet50_b64_rtx2080ti")
    methods = [METHODS[name] for name in ("BSP-A2A", "WFBP-A2A", "WFBP-PS")]

    def parts(cluster):
        return breakdown([Cell(workload, cluster, method, planned_on=plain) for method in methods])

    pairs = list(zip(parts(plain), parts(with_it), strict=True))
    assert all(one.iteration_seconds <= two.iteration_seconds for one, two in pairs)
    assert any(getattr(one, effect.group) < getattr(two, effect.group) for one, two in pairs)
    gone = without(effect.group)
    assert parts(with_it.with_effects(**gone)) == parts(plain.with_effects(**gone))
    assert with_it.assumed == (*plain.assumed, effect.name)
    drawn = {getattr(one.effects, effect.name) for one in draw_clusters(with_it, 20)}
    assert len(drawn) > 10


@pytest.mark.usefixtures("own_effects")
def test_an_effect_from_outside_explains_a_slow_measurement():
    cluster = get_cluster("survey-10GbE", 8).with_effects(checksum_bandwidth="1 GB/s")
    workload = read_profile("resnet50_b64_rtx2080ti")
    cell = Cell(workload, cluster, METHODS["WFBP-A2A"])
    measured = 0.7 * cell.samples / steady_seconds([cell])[0].iteration_seconds
    assert CHECKSUM.meaning in {one.meaning for one in explain_gap(cell, measured).suspects}


def test_an_effect_from_outside_has_a_name_of_its_own():
    with pytest.raises(InputError, match="'there' needs a name that an attribute"):
        register_effect(replace(CHECKSUM, name="there"))
    with pytest.raises(InputError, match="'rank_latency' is registered with other choices"):
        register_effect(replace(CHECKSUM, name="rank_latency"))


@pytest.mark.parametrize(
    ("where", "given", "said"),
    [
        ("mesage latency", 0.0, "unknown place of a cost 'mesage latency'.*'message latency'"),
        ("message share", 5.0, "'own_effect' gives 5.0 as message share"),
        ("task factor", 0.0, "'own_effect' gives 0.0 as task factor"),
        ("message work", None, "'own_effect' gives None as message work"),
        ("message latency", -1.0, "'own_effect' gives -1.0 as message latency"),
        ("collective latency", float("nan"), "'own_effect' gives nan as collective latency"),
    ],
)
def test_an_effect_from_outside_costs_what_there_can_be(where, given, said):
    def simulated() -> None:
        register_effect(replace(CHECKSUM, name="own_effect", formulas={where: lambda *_: given}))
        cluster = get_cluster("survey-10GbE", 8).with_effects(own_effect="1 GB/s")
        simulate("resnet50", cluster, "WFBP-A2A")

    try:
        with pytest.raises(InputError, match=said):
            simulated()
    finally:
        EFFECTS.pop("own_effect", None)


def test_what_is_registered_anew_changes_plans_and_sizes():
    """As in a notebook, where a cell that defines an effect or a rule is edited and runs again."""
    workload, found = read_profile("resnet50_b64_rtx2080ti"), {}
    try:
        for anew in (workload, replace(workload)):  # kept by the workload itself
            for times in (0.0, 50.0):
                formulas = {"message latency": lambda value, _, times=times: times / value * 1e6}
                register_effect(replace(CHECKSUM, name="tax", formulas=formulas))
                cluster = get_cluster("survey-10GbE", 8).with_effects(tax="1 MB/s")
                found[anew is workload, times] = [
                    simulate(anew, cluster, name).iteration_seconds
                    for name in ("ByteScheduler-A2A", "ByteScheduler-PS", "searched")
                ]
                pushed = iteration_cost(anew, cluster, "asp").iteration_seconds
                found[anew is workload, times].append(pushed)
    finally:
        del EFFECTS["tax"]
    assert found[True, 50.0] == found[False, 50.0] != found[True, 0.0]


# A generation of GPUs, and one of them: entries of files of data.

GENERATION = {"tuned_like": "Hopper"}
MORROW = {
    **{"family": "Z1", "generation": "Morrow", "year": 2030, "memory_GB": 200},
    **{"memory_GBps": 8000, "port_Gbps": 800, "source": "a data sheet of tomorrow"},
    "tflops": {"fp32": 100, "tf32": 1000, "fp16": 4000, "bf16": 4000},
    "pcie": {"generation": 6, "lanes": 16},
    "nvlink": {"name": "NVLink 6", "GBps": 1000, "switched": True, "reduces": True},
}


@pytest.fixture
def morrow(tmp_path, monkeypatch) -> Iterator[None]:
    folder = Path(shutil.copytree(HARDWARE, tmp_path / "hardware"))
    known = yaml.safe_load((folder / "generations.yaml").read_text())
    (folder / "generations.yaml").write_text(yaml.safe_dump(known | {"Morrow": GENERATION}))
    (folder / "gpus" / "morrow.yaml").write_text(yaml.safe_dump({"Z1": MORROW}))
    with monkeypatch.context() as there:
        for module in ("catalogue", "gpu"):
            there.setattr(f"ddlnb.hardware.{module}.HARDWARE", folder)
        for cached in (generations, gpus, families):
            cached.cache_clear()
        yield
    for cached in (generations, gpus, families):
        cached.cache_clear()


@pytest.mark.usefixtures("morrow")
def test_a_generation_of_gpus_from_outside_is_known_by_name():
    assert get_gpu("NVIDIA Z1").kin.tuned_like == "Hopper"
    assert "Z1" in printed("cluster", "list", "gpus", "--csv")
    cluster = ddlnb.cluster_of("Z1", nodes=4)
    assert (cluster.gpus_per_node, cluster.network) == (8, "8x800GbIB")
    rows = forecast("resnet50", cluster, "MG-WFBP", draws=20)
    assert 0 < rows["low"].iloc[0] < rows["high"].iloc[0]
    slower, faster = (
        scale("llama3-8b", name, 2, framework="megatron").rows(1)[0] for name in ("H100", "Z1")
    )
    assert faster["seconds"] < slower["seconds"]


# A figure, and a notebook that shows it.

FIGURE = """
import matplotlib.pyplot as plt
from ddlnb.figures.style import styled

@styled
def ladder(rows):
    \"\"\"More GPUs train faster.\"\"\"
    figure, axes = plt.subplots()
    axes.plot(rows["gpus"], rows["throughput_samples_per_s"])
    axes.set(xlabel="GPUs", ylabel="samples/s", title="A ladder")
    return figure
"""
KERNEL = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
CELLS = {
    "import ddlnb\nimport mine": [],
    "gpus = [4, 8]": ["parameters"],
    "found = ddlnb.forecast('resnet50', 'survey-10GbE', 'MG-WFBP', gpus=gpus, draws=0)": [],
    "mine.ladder(found.rows)": [],
    "assert found.rows['speedup'].is_monotonic_increasing": [],
}


@pytest.mark.notebook
def test_a_figure_and_a_notebook_from_outside_are_listed_run_and_shown(tmp_path):
    cells = [nbformat.v4.new_code_cell(cell, metadata={"tags": CELLS[cell]}) for cell in CELLS]
    about = {"section": "2", "claim": "More GPUs train faster.", "function": "forecast"}
    made = nbformat.v4.new_notebook(cells=cells, metadata={"ddlnb": about, **KERNEL})
    nbformat.write(made, tmp_path / "ladder.ipynb")
    (tmp_path / "mine.py").write_text(FIGURE)
    assert catalogue(tmp_path).loc["ladder", "claim"] == about["claim"]
    out = run_notebook("ladder", tmp_path / "out.ipynb", folder=tmp_path, gpus=[4, 8, 16])
    *_, shown, _ = nbformat.read(out, as_version=4).cells
    assert "A ladder. More GPUs train faster." in str(shown.outputs)
    assert any("image/png" in output.data for output in shown.outputs)

"""What a person adds outside the package works everywhere by its name, with no other edit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from ddlnb.cli.app import app
from ddlnb.engines.catalogue import support
from ddlnb.engines.measure import measure
from ddlnb.errors import InputError
from ddlnb.plans.bucketing import Bucketing, per_tensor
from ddlnb.plans.methods import METHODS, Method, get_method, register_method
from ddlnb.plans.plan import Gate, Launch, Message
from ddlnb.simulator.forecast import forecast
from ddlnb.simulator.simulate import simulate
from ddlnb.studies.fig2_taxonomy import taxonomy
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
    assert set(rows.index) == set(METHODS)
    assert rows.loc["BSP-A2A", "messages"] == 1
    assert rows.loc[pairs.name, "messages"] == 81
    assert rows.loc["WFBP-A2A", "messages"] == 161


@pytest.mark.ranks
def test_a_method_from_outside_trains_on_real_ranks(pairs):
    rows = measure("small-conv", [pairs.name], workers=2, iterations=2, warmup=1, repetitions=1)
    assert pairs.name in set(rows["method"])
    assert (rows["throughput_samples_per_s"] > 0).all()


def test_a_name_that_is_taken_is_refused(pairs):
    register_method(pairs)  # again, the same
    with pytest.raises(InputError, match="'Pairs-A2A' is registered with other choices"):
        register_method(replace(pairs, gate=Gate.OWN_LAYER))
    assert METHODS[pairs.name] is pairs

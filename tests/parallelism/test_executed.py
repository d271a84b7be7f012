"""Every strategy on real ranks: the result of one worker, and what it was said to exchange."""

from dataclasses import replace

import pytest

from ddlnb.errors import InputError, MissingPart
from ddlnb.parallelism.executed.counting import Counting
from ddlnb.parallelism.executed.table import (
    CASES,
    DENSE,
    MIXTURE,
    Case,
    _compared,
    _predicted,
    strategy_rows,
    strategy_table,
)
from ddlnb.parallelism.layout import SCHEDULES, Layout
from ddlnb.parallelism.memory import memory


@pytest.fixture(scope="module")
def rows(six_ranks):
    return strategy_rows(ranks=six_ranks)


@pytest.mark.thorough(but=8)
@pytest.mark.ranks
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.strategy)
def test_a_strategy_does_what_it_says(rows, case):
    own = rows[rows["strategy"] == case.strategy]
    quantities = set(own["quantity"])
    assert {"loss", "parameters", "memory activations", "memory optimizer"} <= quantities
    assert any(name.startswith("bytes") for name in quantities)
    assert (own[own["quantity"].str.startswith("bytes")]["counted"] > 0).all()
    assert own["equal"].all(), own[~own["equal"]].to_string()


@pytest.mark.ranks
def test_the_table_has_a_row_per_strategy(rows):
    table = strategy_table(rows)
    assert table["strategy"].tolist() == [case.strategy for case in CASES]
    assert table["bytes predicted"].equals(table["bytes counted"])
    assert table["calls predicted"].equals(table["calls counted"])
    assert table["memory off by"].max() < 0.05
    assert 0 < table["off one worker"].max() < 1e-12


@pytest.mark.parametrize(
    ("layout", "shape", "message"),
    [
        ("dp2 pp2 zero3", DENSE, "ZeRO-2 and 3 are executed without pipelines"),
        ("tp2 sp", DENSE, "say so with the word keep"),
        ("tp2 cp2", DENSE, "tensor parallelism is executed for dense layers"),
        ("dp2 ep2 zero1", MIXTURE, "shared experts are executed without ZeRO"),
        ("selective", DENSE, "needs a model that keeps its scores"),
        ("tp3", DENSE, "tp 3 does not divide heads 4"),
        ("dp2", replace(DENSE, gated=True), "is not executed here: it needs learned positions"),
    ],
)
def test_what_is_not_executed_is_refused(layout, shape, message):
    with pytest.raises(InputError, match=message):
        Case("refused", shape, Layout.parse(layout))


def test_the_executed_strategies_are_all_there_are():
    layouts = [case.layout for case in CASES]
    assert {one.schedule for one in layouts} == {
        name for name, one in SCHEDULES.items() if not one.vee
    }
    assert {one.zero for one in layouts} == {0, 1, 2, 3}
    for axis in ("dp", "tp", "pp", "cp", "ep", "vpp"):
        assert any(getattr(one, axis) > 1 for one in layouts)


def counted(case):
    """Return what ranks would have counted if everything had been as predicted."""
    from ddlnb.parallelism.executed.trainer import Counted

    found = []
    for rank in range(case.layout.ranks):
        stage = rank * case.layout.pp // case.layout.ranks
        told = memory(case.shape.shape, case.layout, "fp64", stage)
        parts = ("parameters", "gradients", "optimizer", "activations")
        times, size = _predicted(case, rank, stage)
        kept = {part: getattr(told, part) for part in parts}
        found.append(Counted(stage, 0.0, 0.0, times, size, kept))
    return found


@pytest.mark.parametrize("case", [CASES[0], CASES[7], CASES[12]], ids=lambda c: c.strategy)
def test_a_difference_is_seen(case):
    found = counted(case)
    assert all(equal for *_, equal in _compared(case, found))
    key = next(iter(found[0].bytes))
    for changed, quantity in (
        (replace(found[0], bytes={**found[0].bytes, key: found[0].bytes[key] + 8}), "bytes"),
        (replace(found[0], times={**found[0].times, key: 77}), "calls"),
        (replace(found[0], times={**found[0].times, ("broadcast", (0,)): 1}), "calls b"),
        (replace(found[0], parameter_error=1e-9), "parameters"),
        (replace(found[0], loss_error=1e-9), "loss"),
        (replace(found[0], memory={k: 1.3 * v for k, v in found[0].memory.items()}), "memory"),
    ):
        wrong = [name for name, _, _, equal in _compared(case, [changed, *found[1:]]) if not equal]
        assert wrong
        assert all(name.startswith(quantity) for name in wrong)


def test_too_few_ranks_or_strategies_are_refused():
    with pytest.raises(InputError, match="there are no strategies to execute"):
        strategy_rows([])
    with pytest.raises(InputError, match="seed -1 must be a whole number"):
        strategy_rows(seed=-1)


def test_the_small_models_are_those_of_their_shapes():
    from ddlnb.parallelism.executed.model import layers_of

    for shape in (DENSE, MIXTURE):
        for layer, said in zip(layers_of(shape, 0).values(), shape.shape.layers, strict=True):
            assert sum(one.numel() for one in layer.parameters()) == said.parameters


def test_an_operation_that_nobody_knows_is_named_and_not_counted_as_nothing():
    with pytest.raises(MissingPart, match=r"operator c10d\.all_to_nobody_ cannot be counted"):
        Counting()._count("c10d.all_to_nobody_", ())

"""Which engine runs which method, and what is said about those it cannot."""

import pytest

from ddlnb.engines.catalogue import ENGINES, require_runs, support
from ddlnb.engines.settings import MeasurementSettings
from ddlnb.engines.targets import left_out_on_gpus, targets_of
from ddlnb.errors import InputError
from ddlnb.plans.methods import METHODS

WITH_METHODS = [engine for engine in ENGINES.values() if engine.exchanges]


@pytest.mark.parametrize("engine", ENGINES.values(), ids=ENGINES)
def test_an_engine_s_code_exists_and_is_named_as_the_table_names_it(engine):
    assert ENGINES[engine.name] is engine
    assert engine.baseline or engine.exchanges
    assert callable(engine.starter())
    assert ("push_pull" in engine.exchanges) == bool(engine.serve)
    if engine.serve:
        assert callable(engine.server())


@pytest.mark.parametrize("engine", WITH_METHODS, ids=lambda engine: engine.name)
def test_the_support_matrix_is_what_contenders_offers(engine):
    expected = [m for m, e, reason in support() if e == engine.name and not reason]
    offered = targets_of("all", MeasurementSettings(engine=engine.name, baselines=False))
    assert [one.name for one in offered] == expected
    assert {one.engine for one in offered} == {engine.name}


@pytest.mark.parametrize(("method", "engine", "reason"), support())
def test_what_an_engine_cannot_run_it_refuses_with_the_reason(method, engine, reason):
    if not reason:
        require_runs(engine, METHODS[method])
        return
    with pytest.raises(InputError, match=r"engines that can: .*torch") as caught:
        targets_of(method, MeasurementSettings(engine=engine))
    assert reason in str(caught.value)


def test_credit_that_gpus_cannot_observe_is_refused_before_any_work():
    settings = MeasurementSettings(device="cuda", backend="nccl", baselines=False)
    assert left_out_on_gpus(settings) == ["ByteScheduler-A2A"]
    assert left_out_on_gpus(settings.changed(device="cpu", backend="gloo")) == []
    offered = {one.name for one in targets_of("all", settings)}
    assert offered == {*METHODS} - {"ByteScheduler-A2A"}
    with pytest.raises(InputError, match=r"'ByteScheduler-A2A': .* or take device 'cpu'"):
        targets_of(["BSP-A2A", "ByteScheduler-A2A"], settings)


def test_several_engines_run_a_method_each():
    names = [engine.name for engine in WITH_METHODS]
    offered = targets_of("BSP-A2A", MeasurementSettings(engine=names, baselines=False))
    able = [e.name for e in WITH_METHODS if not e.refuses(METHODS["BSP-A2A"])]
    assert [one.engine for one in offered] == able


def test_engines_without_methods_run_their_baseline_only():
    assert [
        c.name for c in targets_of("all", MeasurementSettings(engine="ddp", baselines=False))
    ] == ["DDP"]

"""Plans as files: what is written is read, and what was spoilt is refused in one sentence."""

import json
from dataclasses import replace

import pytest

import ddlnb
from ddlnb.errors import PlanError
from ddlnb.plans.methods import METHODS
from ddlnb.plans.plan_file import (
    fitted,
    method_of,
    plan_from_json,
    plan_to_json,
    read_plan,
    write_plan,
)
from tests.toy import COST, TOY


@pytest.mark.parametrize("name", METHODS)
def test_a_plan_is_read_as_it_was_written(name, tmp_path):
    plan = METHODS[name].tuned(partition="64 B", credit="128 B").plan(TOY, cost=COST, servers=2)
    assert read_plan(write_plan(plan, tmp_path / "plan.json")) == plan


def test_collectives_are_kept():
    plan = METHODS["WFBP-A2A"].plan(TOY)
    chosen = replace(plan, collectives=("", "ring", "tree"))
    assert plan_from_json(plan_to_json(chosen)) == chosen
    assert chosen.digest != plan.digest


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda said: said.pop("gate"), "it lacks .gate."),
        (lambda said: said.update(version=7), "no plan of version 1, but of 7"),
        (lambda said: said.update(gate="some layers"), "some layers"),
        (lambda said: said["messages"].pop(), "loses elements of gradient"),
        (lambda said: said["messages"][0].__setitem__(0, "first"), "'first' is not a int"),
        (lambda said: said.update(gate="own layer"), "was changed by hand: its digest is"),
    ],
)
def test_what_is_no_plan_is_refused(spoil, said):
    text = json.loads(plan_to_json(METHODS["WFBP-A2A"].plan(TOY)))
    spoil(text)
    with pytest.raises(PlanError, match=said):
        plan_from_json(json.dumps(text))


def test_a_kept_plan_fits_other_seconds_and_refuses_other_gradients():
    plan = METHODS["MG-WFBP"].plan(TOY, cost=COST)
    slower = TOY.scaled(2.0, "by hand")
    method = method_of(plan)
    assert method.plan(slower) == replace(plan, gradients=slower.gradients)
    assert method.name == "MG-WFBP (kept)"
    longer = replace(TOY, gradients=(replace(TOY.gradients[0], elements=7), *TOY.gradients[1:]))
    with pytest.raises(PlanError, match=r"'c\.weight' of 100 x 4 B where workload 'toy' has"):
        method.plan(longer)
    with pytest.raises(PlanError, match="has 3 gradients and workload 'toy' 2"):
        method.plan(replace(TOY, gradients=TOY.gradients[:2]))


def test_a_plan_fits_gradients_that_become_ready_in_another_order():
    plan = METHODS["WFBP-A2A"].plan(TOY)
    other = replace(TOY, gradients=TOY.gradients[::-1])
    assert fitted(plan, other).messages == plan.messages
    assert fitted(plan, other).gradients == other.gradients


def test_a_plan_stands_where_a_method_is_named():
    plan = ddlnb.get_method("WFBP-A2A").plan(TOY)
    here = ddlnb.get_cluster("survey-10GbE", workers=8)
    by_plan, by_name = (ddlnb.simulate(TOY, here, one) for one in (plan, "WFBP-A2A"))
    assert by_plan.iteration_seconds == by_name.iteration_seconds
    rows = ddlnb.forecast(TOY, here, [plan, "WFBP-A2A"], draws=0).rows
    assert rows["throughput_samples_per_s"].nunique() == 1

"""What the command says beneath its table."""

from ddlnb.engines.measure import takeovers
from ddlnb.plans.methods import get_method
from ddlnb.plans.plan_file import write_plan
from ddlnb.workloads.workload import read_profile
from tests.command_line import ddlnb


def row(plan, settings="replan=10 replayed", method="searched"):
    return {"method": method, "gpus": 2, "settings": settings, "plan": plan}


def test_plans_that_took_over_are_named_and_nothing_is_said_of_those_that_stay():
    assert takeovers([row("aaaa"), row("aaaa, bbbb from iteration 31"), row("several")]) == [
        "searched, 2 workers: plan aaaa, which no other took over from.",
        "searched, 2 workers: plan aaaa, then bbbb from iteration 31.",
        "searched, 2 workers: runs differ in their plans, and --out keeps those of each.",
    ]
    stays = row("aaaa", settings="replayed"), row("", settings=float("nan"), method="DDP")
    assert takeovers(stays) == []


def test_a_plan_of_another_model_is_refused_before_anything_starts(tmp_path):
    of_all = get_method("WFBP-A2A").plan(read_profile("small-conv_b64_cpu-1thread"))
    file = write_plan(of_all, tmp_path / "plan.json")
    refused = ddlnb("measure", "--model", "resnet50", "--plan", str(file), "--workers", "2")
    assert refused.returncode == 2
    assert "plan.json': plan 'WFBP-A2A' has 28 gradients and workload 'resnet50' 161" in (
        refused.stderr
    )

"""What the command says beneath its table."""

from ddlnb.engines.measure import takeovers


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

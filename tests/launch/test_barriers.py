"""Moments of a run: who acts, who waits, and how both end."""

import threading

import pytest
import torch.distributed as dist

from ddlnb.errors import DdlnbError, UnknownName
from ddlnb.launch.rank import RankContext, calling_back, reach


def test_the_owner_acts_before_a_rank_goes_on():
    store, done = dist.HashStore(), []
    actions = {"early": lambda: done.append("early"), "late": lambda: done.append("late")}
    with calling_back(lambda: store, actions):
        reach(store, "early")
        assert done == ["early"]
        reach(store, "late")
        assert done == ["early", "late"]


def test_a_moment_that_no_rank_reaches_does_not_hold_the_run():
    before = threading.active_count()
    with calling_back(dist.HashStore, {}):
        assert threading.active_count() == before
    store, done = dist.HashStore(), []
    with calling_back(lambda: store, {"never": lambda: done.append("never")}):
        assert threading.active_count() == before + 1
    assert threading.active_count() == before
    assert done == []


def test_what_the_owner_cannot_do_is_raised_where_it_was_asked_for():
    store = dist.HashStore()
    with (
        calling_back(lambda: store, {"half": lambda: 1 / 0}),
        pytest.raises(DdlnbError, match="barrier 'half' of the run: ZeroDivisionError"),
    ):
        reach(store, "half")


def test_a_moment_that_the_owner_was_not_given_is_refused():
    context = RankContext(0, 1, "", "", b"", "", "", 1, 1.0, barriers=("noon",))
    with pytest.raises(UnknownName, match=r"unknown barrier 'none'.*did you mean 'noon'"):
        context.reach("none")

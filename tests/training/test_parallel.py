"""Pieces of work in processes, and what Ctrl-C leaves of them."""

from __future__ import annotations

import multiprocessing
import time
from concurrent.futures import ProcessPoolExecutor

import pytest

from ddlnb.training.runs import runner as parallel
from ddlnb.training.runs.runner import in_parallel


@pytest.mark.slow
def test_ctrl_c_while_work_is_handed_out_ends_the_processes_that_began(monkeypatch):
    handed_out = []
    submit = ProcessPoolExecutor.submit

    def interrupted(pool, *call):
        if len(handed_out) == 3:
            raise KeyboardInterrupt
        handed_out.append(submit(pool, *call))
        return handed_out[-1]

    monkeypatch.setattr(parallel, "START_SECONDS", 0.0)
    monkeypatch.setattr(ProcessPoolExecutor, "submit", interrupted)
    with pytest.raises(KeyboardInterrupt):
        in_parallel(time.sleep, [(0.1,), *[(5.0,)] * 8], jobs=2)
    assert multiprocessing.active_children() == []

"""A job with a known amount of work and known failures, against an account of its own."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddlnb.errors import InputError
from ddlnb.parallelism.goodput.simulate import Job
from tests.parallelism.finish import finish, lives


def sweep(start, cell):
    """Return a job whose cells are written at once."""
    return Job(
        1,
        replica_gpus=1,
        checkpoint_seconds=0.0,
        restart_seconds=start,
        repair_seconds=0.0,
        interval_seconds=cell,
    )


def account(start, cell, cells, mean_life, seed):
    """Return when so many cells are done, counted cell by cell, and how often it failed."""
    now, done = 0.0, 0
    for failures, life in enumerate(lives(1 / mean_life, seed)):
        able = max(0, int((life - start) // cell))
        if done + able >= cells:
            return now + start + (cells - done) * cell, failures
        done += able
        now += life
    raise AssertionError


@settings(max_examples=12)
@given(
    start=st.floats(0.0, 10.0),
    cell=st.floats(1.0, 8.0),
    cells=st.integers(1, 20),
    mean_life=st.floats(30.0, 200.0),
    seed=st.integers(0, 99),
)
def test_a_sweep_is_done_when_an_account_cell_by_cell_says(start, cell, cells, mean_life, seed):
    found = finish(sweep(start, cell), cells * cell, 1 / mean_life, seed)
    seconds, failures = account(start, cell, cells, mean_life, seed)
    assert found.seconds == pytest.approx(seconds, rel=1e-9)
    assert found.failures == failures
    assert found.spent.useful * found.seconds == pytest.approx(cells * cell)


def test_jobs_that_would_not_end_are_refused():
    with pytest.raises(InputError, match="write checkpoints more often than every 1e\\+06 s"):
        finish(sweep(0.0, 1e6), 2e6, per_second=1.0, seed=0)
    with pytest.raises(InputError, match="repair_seconds 86400 must be 0"):
        finish(Job(8, replica_gpus=8), 10.0, 1e-9, seed=0)

"""Time lost: rates, checkpoint intervals, jobs that fail, and when their work is done."""

from dataclasses import asdict, replace

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from ddlnb.errors import InputError
from ddlnb.parallelism.goodput.compare import checkpoint_intervals, goodput_sentences, goodput_table
from ddlnb.parallelism.goodput.failures import (
    DAY,
    HOUR,
    FailureRate,
    best_interval,
    daly_interval,
    failure_records,
    fit_failure_rate,
    hardware_share,
    useful_share,
    young_interval,
)
from ddlnb.parallelism.goodput.simulate import (
    Job,
    fit_slow_downs,
    goodput,
    play,
    published_quantiles,
)
from tests.parallelism.finish import finish, lives

JOB = Job(gpus=2048, replica_gpus=128)


def test_what_one_gpu_loses_is_said_without_exponents_and_plurals_of_one():
    job = Job(gpus=1, gpus_per_node=1, replica_gpus=1, spare_nodes=1)
    said = " ".join(goodput_sentences(job, goodput_table([job], draws=20)))
    assert "A job on 1 GPU fails every 38800 hours" in said
    assert "with 1 spare node:" in said
    assert "e+0" not in said


def test_what_elastic_training_adds_is_a_share_of_what_waiting_has():
    jobs = [JOB, replace(JOB, elastic=True)]
    table = goodput_table(jobs, draws=20).assign(goodput=[0.5, 0.6], spare_nodes=0)
    *_, said = goodput_sentences(JOB, table)
    assert said == "With 0 spare nodes, elastic training pays, 20.0% more (60.0%)."


def test_llama_failed_every_three_hours():
    """419 unexpected interruptions in 54 days (arXiv 2407.21783, section 3.3.4)."""
    llama = failure_records()[0]
    assert llama.count == 419
    assert llama.seconds_between == pytest.approx(54 * DAY / 419)
    assert hardware_share() == pytest.approx(1 - (54 + 2 + 7) / 419)


def test_projected_rates_lie_in_the_interval_of_a_fit_that_did_not_see_them():
    rate = fit_failure_rate()
    projected = [one for one in failure_records() if one.is_projected]
    assert len(projected) == 2
    for one in projected:
        found = rate.mean_time_to_failure(one.gpus)
        assert found.low <= one.seconds_between <= found.high


def test_an_interval_from_few_clusters_holds_a_new_one_nine_times_in_ten():
    rng = np.random.default_rng(7)
    held, drawn = [], []
    for _ in range(2000):
        *seen, new = rng.normal(-20, 0.8, 6)
        rate = FailureRate(np.exp(np.mean(seen)), np.std(seen, ddof=1), len(seen))
        interval = rate.mean_time_to_failure(64)
        held.append(interval.low <= 1 / (np.exp(new) * 64) <= interval.high)
        seconds = 1 / (rate.draws(1, rng) * 64)
        drawn.append(interval.low <= seconds[0] <= interval.high)
    assert np.mean(held) == pytest.approx(0.9, abs=0.02)
    assert np.mean(drawn) == pytest.approx(0.9, abs=0.02)


def test_a_job_that_restarts_for_longer_than_it_lives_does_nothing():
    assert useful_share(600.0, 60.0, 7200.0, 7200.0 * 30) == 0


def test_stragglers_waste_what_is_published_although_the_mean_was_not_fitted():
    found = fit_slow_downs()
    for share, waste in published_quantiles().items():
        assert found.waste(share) == pytest.approx(waste, abs=0.015)
    assert found.mean_waste == pytest.approx(0.104, abs=0.01)


@given(st.floats(1.0, 300.0), st.floats(1000.0, 1e6), st.floats(0.0, 900.0))
@settings(max_examples=60, deadline=None)
def test_intervals_of_young_and_daly_lose_little_to_the_best(checkpoint, mean, restart):
    best = useful_share(best_interval(checkpoint, mean, restart), checkpoint, mean, restart)
    daly = useful_share(daly_interval(checkpoint, mean), checkpoint, mean, restart)
    assert best * 0.99 <= daly <= best * (1 + 1e-6)
    if checkpoint < mean / 100:
        young = useful_share(young_interval(checkpoint, mean), checkpoint, mean, restart)
        assert young >= 0.99 * best


def test_simulated_shares_are_those_of_the_closed_form():
    rows = checkpoint_intervals(JOB, (300.0, 1800.0, 7200.0), days=6000.0)
    assert (rows["simulated"] / rows["formula"] - 1).abs().max() < 0.01


@given(
    st.floats(1e-7, 1e-3),
    st.integers(0, 4),
    st.booleans(),
    st.floats(1.0, 2.0),
    st.integers(0, 1000),
)
@settings(max_examples=60, deadline=None)
def test_all_time_is_accounted_for(rate, spares, elastic, slow, seed):
    job = replace(JOB, spare_nodes=spares, elastic=elastic)
    spent, _ = play(job, rate, 10 * DAY, slow, np.random.default_rng(seed))
    assert sum(asdict(spent).values()) == pytest.approx(1.0)
    assert min(asdict(spent).values()) >= -1e-12


def test_a_repaired_node_of_an_elastic_job_need_not_wait_for_the_next_failure():
    """One replica of eight is out for as long as a repair takes, where all others would wait."""
    waits = goodput(Job(64, replica_gpus=8), seconds=90 * DAY)
    elastic = goodput(Job(64, replica_gpus=8, elastic=True), seconds=90 * DAY)
    assert elastic.spent.shrunk < waits.spent.waiting / 4
    assert elastic.goodput.estimate > waits.goodput.estimate


class Lives:
    """Failures after these seconds, each of which breaks a node."""

    def __init__(self, *lives):
        self.lives = list(lives)

    def exponential(self, _):
        return self.lives.pop(0) if self.lives else 1e12

    def random(self):
        return 0.0


def test_several_nodes_of_a_replica_come_back_together():
    """Two of eight are missing: the first that is repaired makes no replica whole."""
    job = Job(1024, elastic=True)
    shrunk = [
        play(job, 1 / (30 * DAY), 30 * DAY, 1.0, Lives(*lives))[0].shrunk
        for lives in ([HOUR], [HOUR, HOUR])
    ]
    assert shrunk[1] < 1.2 * shrunk[0]


def test_more_gpus_spares_and_elastic_training_do_what_they_should():
    def found(**changed):
        return goodput(replace(JOB, **changed), draws=60).goodput.estimate

    alone = found()
    assert found(gpus=8192) < alone
    assert found(spare_nodes=16) > alone
    assert found(elastic=True) > alone
    assert found(restart_seconds=2 * HOUR) < alone


def test_llamas_published_effective_time_is_forecast():
    """More than 90 % of the time on 16,384 GPUs (arXiv 2407.21783, section 3.3.4)."""
    llama = failure_records()[0]
    rate = replace(fit_failure_rate(), per_gpu_second=llama.per_gpu_second, spread=0.0)
    job = Job(llama.gpus, replica_gpus=128, spare_nodes=64)
    found = goodput(job, rate=rate, draws=40)
    assert 0.9 < found.effective.estimate < 0.95
    assert found.goodput.estimate < found.effective.estimate - 0.05  # stragglers
    assert goodput(job, draws=40).effective.high > 0.93  # of a cluster of which nothing is known


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: Job(gpus=100), r"take a multiple of 64.*\(replica_gpus, --replica\)"),
        (
            lambda: goodput(1024),
            r"job 1024 is no Job; give one, such as ddlnb.parallelism.Job\(gpus=1024\)",
        ),
        (lambda: Job(gpus=64, restart_seconds=-1), "restart_seconds -1"),
        (lambda: Job(gpus=512, interval_seconds=0.0), "interval_seconds 0"),  # would never end
        (lambda: goodput(Job(gpus=64_000_000), draws=1000), "ask for fewer draws, days or GPUs"),
        (lambda: fit_failure_rate(failure_records()[:2]), "2 sources of failures are too few"),
    ],
)
def test_what_no_job_can_be_is_refused_in_one_sentence(wrong, message):
    with pytest.raises(InputError, match=message):
        wrong()


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


def test_a_rate_of_failures_that_was_seen_counts_in_place_of_the_published_ones():
    job = Job(1024, repair_seconds=0.0)
    often, seldom = (FailureRate.seen(hours * HOUR, job.gpus) for hours in (2, 48))
    assert set(often.draws(5, np.random.default_rng(0))) == {1 / (2 * HOUR * job.gpus)}
    less, more = (goodput(job, draws=8, rate=one).goodput.estimate for one in (often, seldom))
    assert less < more
    table = goodput_table([job], draws=4, rate=often)
    assert table["failures"].iloc[0] == pytest.approx(30 * 24 / 2, rel=0.15)
    assert "fails every 2 hours (as told); write" in goodput_sentences(job, table, often)[0]

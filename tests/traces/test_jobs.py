"""Replays of jobs whose answers a plain simulation knows, and longest paths as of networkx."""

from functools import cache
from itertools import pairwise

import networkx as nx
import numpy as np
import pandas as pd
import pytest

from ddlnb.errors import InputError
from ddlnb.files import PUBLISHED
from ddlnb.traces.jobs.replay import Replay
from ddlnb.traces.jobs.table import job_of, read_job
from ddlnb.traces.jobs.what_if import sentences, what_if
from ddlnb.traces.longest_path import Cyclic, Dependencies, EarliestTimes, critical_path
from tests.traces.toy_jobs import SYNC, TRANSFER, ToyJob, usual


def explained(toy):
    return what_if(job_of(toy.rows(), "toy"))


def cost(found, cause):
    return found.causes.set_index("cause").loc[cause, "seconds"]


@cache
def published(name):
    return what_if(read_job(PUBLISHED / "traces" / f"bytedance-trace-{name}.csv.gz"))


def test_a_job_in_whole_seconds_is_explained(tmp_path):
    lines = ["dp_rank,stage,step,optype,start_ts,duration"]
    lines += [f"{rank},0,1,forward-compute,0,1" for rank in (0, 1)]
    lines += [f"{rank},0,1,backward-compute,1,{2 + rank}" for rank in (0, 1)]
    (path := tmp_path / "whole.csv").write_text("\n".join(lines) + "\n")
    assert cost(what_if(read_job(path)), "slow workers") == 1


@pytest.mark.parametrize("name", ["AR", "ST"])
def test_published_jobs_are_replayed_within_two_percent(name):
    """In every iteration; also without the launch delays, whose medians are of the same trace."""
    errors = published(name).iterations.filter(like="error").abs().max()
    assert errors["error"] < 0.001
    assert errors["error_without_pauses"] < 0.02
    assert errors["error_without_delays"] < 0.02
    assert published(name).job.clocks_set_seconds == 0


def test_the_job_with_a_slow_worker_is_explained_by_it():
    found = published("AR")
    assert cost(found, "slow workers") > 0.95 * cost(found, "all together")
    assert found.workers.loc[0, ["dp_rank", "stage"]].tolist() == [0, 0]
    assert found.workers.loc[0, "saves_seconds"] > 0.99 * cost(found, "slow workers")
    assert found.workers.loc[1, "factor"] < 1.01
    assert found.slowdown > 2


def test_the_job_with_a_slow_stage_is_explained_by_it():
    found = published("ST")
    assert cost(found, "slow stages") > 0.9 * cost(found, "all together")
    assert found.factors.of_stage.set_index("stage")["factor"].idxmax() == 3
    assert found.factors.of_worker["factor"].max() < 1.01


@pytest.mark.parametrize(
    "shape",
    [
        {},
        {"blocking": False},
        {"chunks": 2, "blocking": False},
        {"data": 1, "stages": 4, "batches": 7},
        {"data": 3, "stages": 1},
        {"data": 4, "stages": 2, "barrier": True},
    ],
    ids=str,
)
def test_a_toy_job_is_replayed_exactly_and_nobody_straggles(shape):
    toy = ToyJob(**shape)
    found = explained(toy)
    assert found.iterations["traced_seconds"][0] == pytest.approx(toy.seconds_of())
    np.testing.assert_allclose(found.iterations["error_without_delays"], 0, atol=1e-9)
    assert found.slowdown == pytest.approx(1)
    assert not found.replay.peers.lonely
    assert not found.replay.peers.early


@pytest.mark.parametrize("blocking", [True, False])
@pytest.mark.parametrize("barrier", [True, False])
def test_a_slow_worker_costs_what_the_job_with_a_usual_one_saves(blocking, barrier):
    slow = ToyJob(
        data=3,
        blocking=blocking,
        barrier=barrier,
        seconds=lambda kind, place, mb, step: (
            usual(kind, place, mb, step) * (1.7 if place == (2, 1) else 1)
        ),
    )
    healthy = ToyJob(data=3, blocking=blocking, barrier=barrier)
    found = explained(slow)
    assert cost(found, "slow workers") == pytest.approx(slow.seconds_of() - healthy.seconds_of())
    assert found.workers.loc[0, ["dp_rank", "stage", "factor"]].tolist() == pytest.approx(
        [2, 1, 1.7]
    )
    assert found.workers.loc[0, "saves_seconds"] == pytest.approx(cost(found, "slow workers"))
    assert cost(found, "slow stages") == pytest.approx(0)
    assert any("rank 2 of stage 1" in said for said in sentences(found))


def test_a_slow_stage_costs_what_shared_work_saves():
    factors = (1.0, 1.0, 1.6)

    def at_stage(kind, place, mb, step):
        return usual(kind, place, mb, step) * factors[place[1]]

    def shared(kind, place, mb, step):
        return usual(kind, place, mb, step) * np.mean(factors)

    slow, fair = ToyJob(seconds=at_stage), ToyJob(seconds=shared)
    found = explained(slow)
    assert cost(found, "slow stages") == pytest.approx(slow.seconds_of() - fair.seconds_of())
    assert cost(found, "slow workers") == pytest.approx(0)
    assert found.slowdown == pytest.approx(slow.seconds_of() / fair.seconds_of())


def test_uneven_sequences_are_told_from_slow_workers():
    lengths = np.random.default_rng(0).uniform(0.5, 1.5, (4, 3, 8))  # step, rank, micro batch

    def uneven(kind, place, mb, step):
        return usual(kind, place, mb, step) * (lengths[step, place[0], mb] if mb >= 0 else 1)

    found = explained(ToyJob(data=3, batches=8, steps=4, seconds=uneven))
    assert cost(found, "uneven sequences") == pytest.approx(cost(found, "all together"), rel=0.01)
    assert cost(found, "all together") > 0
    assert found.factors.of_worker["factor"].max() < 1.001
    assert found.factors.correlation > 0.99
    single = np.random.default_rng(0)
    noise = explained(
        ToyJob(data=3, batches=8, steps=4, seconds=lambda *a: usual(*a) * single.uniform(0.9, 1.1))
    )
    assert abs(noise.factors.correlation) < 0.4


def test_a_slow_transfer_costs_what_the_usual_one_saves():
    def slow_once(kind, place, step):
        return 100 * TRANSFER if kind == "grads-sync" and step == 1 else TRANSFER

    slow = ToyJob(steps=4, transfer=slow_once)
    found = explained(slow)
    assert found.iterations["network"].to_numpy() == pytest.approx([0, 99 * SYNC, 0, 0])
    assert cost(found, "interaction") == pytest.approx(0)


def test_a_pause_costs_what_it_delays():
    found = explained(ToyJob(steps=4, pause=lambda place, step: 3.0 if step == 2 else 0.0))
    assert found.iterations["pauses"].to_numpy() == pytest.approx([0, 0, 3, 0])
    assert found.iterations["error"].to_numpy() == pytest.approx(0)
    assert found.iterations.loc[2, "error_without_pauses"] < -0.1


def test_a_barrier_that_nobody_records_is_found():
    def slow(kind, place, mb, step):
        return usual(kind, place, mb, step) * (2 if place == (0, 1) else 1)

    found = explained(ToyJob(barrier=True, seconds=slow))
    assert found.replay.barriers.found == ("before grads-sync, all workers",)
    assert not explained(ToyJob(seconds=slow)).replay.barriers.found


def test_what_is_posted_together_ends_when_the_last_of_it_has_its_peer():
    """Worker 1 waits for both neighbours at once; one of them comes at 4, the other at 7."""
    rows = [
        (0, "forward-compute", 0.0, 4.0),
        (0, "forward-send", 4.0, 1.0),
        (1, "forward-recv", 0.0, 8.0),
        (1, "backward-recv", 0.0, 8.0),
        (2, "backward-compute", 0.0, 7.0),
        (2, "backward-send", 7.0, 1.0),
    ]
    columns = ["stage", "optype", "start_ts", "duration"]
    job = job_of(pd.DataFrame(rows, columns=columns).assign(dp_rank=0, step=0), "toy")
    replay = Replay.of(job)
    is_receive = job.rows["optype"].str.endswith("recv").to_numpy()
    assert replay.work[is_receive].tolist() == [1.0, 1.0]
    sooner = np.where(job.rows["optype"] == "backward-compute", 2.0, replay.work)
    _, ends = replay.instants(sooner, replay.launches.replayed)
    assert ends[is_receive].tolist() == [5.0, 5.0]


@pytest.mark.parametrize("most", [5e-3, 0.3])
def test_clocks_that_disagree_are_set(most):
    """By what they were off, so that the answer is that of agreeing clocks."""

    def slow(kind, place, mb, step):
        return usual(kind, place, mb, step) * (1.7 if place == (1, 2) else 1)

    rows = ToyJob(data=3, seconds=slow).rows()
    draw = np.random.default_rng(2)
    off = rows.groupby(["step", "rank"])["rank"].transform(lambda _: draw.uniform(-most, most))
    found = explained_rows(rows.assign(start_ts=rows["start_ts"] + off))
    agreeing = explained_rows(rows)
    assert found.job.clocks_set_seconds == pytest.approx(off.abs().max(), rel=0.5)
    assert agreeing.job.clocks_set_seconds == 0
    np.testing.assert_allclose(found.causes["seconds"], agreeing.causes["seconds"], atol=1e-9)
    assert any("Clocks of workers differed" in said for said in sentences(found))


def without_receives(rows):
    lost = rows[(rows["optype"] == "forward-recv") & (rows["step"] == 1)].index[[0, 3]]
    return rows.drop(lost)


@pytest.mark.parametrize(
    ("change", "most", "sentence"),
    [
        (without_receives, 0.02, "2 sends and receives lack"),
        (lambda rows: rows[(rows["rank"] != 4) | (rows["step"] != 1)], 0.02, ""),
        (lambda rows: rows.replace("optimizer", "swap-weights"), 1e-9, "kind 'swap-weights'"),
        (lambda _: ToyJob(stages=1).rows().query("optype == 'forward-compute'"), 1e-9, ""),
    ],
    ids=["operations", "a rank in a step", "a kind that is known", "all but forward passes"],
)
def test_what_is_missing_is_said_and_the_rest_is_replayed(change, most, sentence):
    found = explained_rows(change(ToyJob(steps=3).rows()))
    assert found.worst_error < most
    assert any(sentence in said for said in sentences(found))


def test_columns_that_only_some_files_have_may_be_missing():
    whole = explained(ToyJob(data=3))
    bare = explained_rows(ToyJob(data=3).rows().drop(columns=["rank", "seq_id", "mc"]))
    pd.testing.assert_frame_equal(bare.iterations, whole.iterations)


def explained_rows(rows):
    return what_if(job_of(rows, "toy"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda rows: rows.drop(columns="optype"), "lacks the columns optype; it has dp_rank"),
        (lambda rows: rows[:0], "has no operations"),
        (lambda rows: rows.assign(duration=-1.0), "duration -1.0 of operation 1 must be 0 or more"),
        (lambda rows: rows.assign(start_ts=np.inf), "must be a finite number"),
        (lambda rows: rows.assign(stage="first"), "stage first of operation 1 must be a finite"),
        (lambda rows: rows.assign(step=1.5), "step 1.5 of operation 1 must be a whole number"),
        (lambda rows: rows.assign(optype=None), "without an optype"),
    ],
)
def test_impossible_tables_are_refused(change, message):
    with pytest.raises(InputError, match=message):
        job_of(change(ToyJob(steps=1).rows()), "toy")


def test_files_that_cannot_be_read_are_refused(tmp_path):
    cut = tmp_path / "cut.csv.gz"
    whole = (PUBLISHED / "traces" / "bytedance-trace-ST.csv.gz").read_bytes()
    cut.write_bytes(whole[:1000])
    (tmp_path / "text.csv.gz").write_text("no gzip")
    (tmp_path / "empty.csv").write_text("")
    for name in ("cut.csv.gz", "text.csv.gz", "empty.csv", "missing.csv"):
        with pytest.raises(InputError, match="cannot be read"):
            read_job(tmp_path / name)


def random_graph(seed, nodes=60, edges=200):
    draw = np.random.default_rng(seed)
    ends = np.sort(draw.integers(0, nodes, (edges, 2)), axis=1)
    ends = ends[ends[:, 0] < ends[:, 1]]
    shuffled = draw.permutation(nodes)
    graph = Dependencies(nodes, *shuffled[ends].T, draw.random(len(ends)))
    return graph, draw.random(nodes)


def by_networkx(graph, delays):
    """Return the instants by plain recursion in topological order."""
    plain = nx.MultiDiGraph()
    plain.add_nodes_from(range(graph.nodes))
    for before, after, lag in zip(graph.before, graph.after, graph.lag, strict=True):
        plain.add_edge(int(before), int(after), lag=lag)
    at = np.array(delays, dtype=float)
    for node in nx.topological_sort(plain):
        arrives = [at[b] + d["lag"] for b, _, d in plain.in_edges(node, data=True)]
        at[node] = delays[node] + max(arrives, default=0.0)
    return at


@pytest.mark.parametrize("seed", range(20))
def test_instants_are_those_of_networkx(seed):
    graph, delays = random_graph(seed)
    at = EarliestTimes(graph)(delays)
    np.testing.assert_allclose(at, by_networkx(graph, delays), rtol=1e-12)


def test_scenarios_side_by_side_are_those_one_by_one():
    graph, delays = random_graph(3)
    player = EarliestTimes(graph)
    both = player(np.stack([delays, 2 * delays]))
    np.testing.assert_array_equal(both, [player(delays), player(2 * delays)])


@pytest.mark.parametrize("seed", range(5))
def test_the_critical_path_is_as_long_as_the_whole(seed):
    graph, delays = random_graph(seed)
    at = EarliestTimes(graph)(delays)
    path = critical_path(graph, at, delays)
    lag = {(int(b), int(a)): 0.0 for b, a in zip(graph.before, graph.after, strict=True)}
    for before, after, seconds in zip(graph.before, graph.after, graph.lag, strict=True):
        lag[int(before), int(after)] = max(lag[int(before), int(after)], seconds)
    length = delays[path].sum() + sum(lag[edge] for edge in pairwise(path))
    assert length == pytest.approx(at.max())


def test_a_circle_is_refused_and_its_nodes_are_named():
    circle = Dependencies(4, np.array([0, 1, 2, 2]), np.array([1, 2, 1, 3]), np.zeros(4))
    with pytest.raises(Cyclic) as raised:
        EarliestTimes(circle)
    assert raised.value.nodes.tolist() == [1, 2, 3]


def test_nodes_without_edges_come_at_their_own_delay():
    nothing = np.zeros(0, dtype=np.int64)
    graph = Dependencies(2, nothing, nothing, np.zeros(0))
    assert EarliestTimes(graph)(np.array([1.0, 2.0])).tolist() == [1.0, 2.0]

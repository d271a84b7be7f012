"""Traces of several ranks: one written by hand, HTA's two ranks, and our own that count."""

import gzip
import json
import os
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
import zstandard

import ddlnb
from ddlnb.errors import DdlnbError, InputError
from ddlnb.files import PUBLISHED, ROOT
from ddlnb.traces.jobs.profiled import profiled_job, sentences
from ddlnb.traces.kineto.events import recording
from ddlnb.traces.kineto.libraries import LIBRARIES, bytes_of, library_of, work_of
from ddlnb.traces.kineto.rank import _noted_in_time, _waits, rank_trace
from ddlnb.units import US
from tests.asked import is_asked
from tests.traces.gloo_ranks import RANKS, slowed
from tests.traces.gpu_traces import NCCL, call, event, events_in, header, kernel

HTA = [PUBLISHED / "traces" / f"hta-rank-{rank}.json.gz" for rank in (0, 1)]
ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def one_step(late=0, extra=(), sizes=(64, 1024)):
    """Return a rank's step: a kernel, an all-reduce beside another kernel, and one that is waited
    for.

    Computation from 100 to 200 and, with ``late`` more, from 200 to 400; all-reduces from when it
    came to 700, hidden until 400, and from 700 to 900; the optimizer's kernel from 900 to 950.
    """
    sent = {"Collective name": "allreduce", "dtype": "BFloat16", "Process Group Name": "0"}
    group = {"Group size": 2, "Process Group Ranks": "[0, 1]", **sent}
    first, second = ({"In msg nelems": size, "Out msg nelems": size} for size in sizes)
    return [
        event("user_annotation", "ProfilerStep#7", 0, 1000),
        *(call("cudaLaunchKernel", 1 + number, 1, number) for number in range(1, 6)),
        kernel("ampere_sgemm_128x64_nn", 100, 100 + late, 1),
        kernel(ALL_REDUCE, 200 + late, 500 - late, 2, NCCL, **group, **first),
        kernel("ampere_sgemm_32x128_tn", 200 + late, 200, 3),
        kernel(ALL_REDUCE, 700, 200, 4, NCCL, **group, **second),
        kernel("multi_tensor_apply_kernel", 900, 50, 5),
        *extra,
    ]


def rank_of(events, rank, shift=0.0):
    head = {**header(), "distributedInfo": {"rank": rank, "world_size": 2}}
    moved = [{**one, "ts": one["ts"] + shift} for one in events]
    return rank_trace(recording(events_in(moved), head, f"rank{rank}"))


def job_of(*ranks):
    return profiled_job(ranks, "toy")


def test_seconds_of_two_ranks_are_those_on_paper():
    job = job_of(rank_of(one_step(), 0), rank_of(one_step(late=150), 1))
    by = job.by_rank.set_index("rank") / US
    assert by["computation"].tolist() == pytest.approx([350, 500])
    assert by["communication"].tolist() == pytest.approx([700, 550])
    assert by["exposed"].tolist() == pytest.approx([500, 350])
    assert by["waiting"].tolist() == pytest.approx([150, 0])
    assert by["delays"].tolist() == pytest.approx([0, 150])
    assert rank_of(one_step(), 0).sent["exposed"].to_numpy() / US == pytest.approx([300, 200])
    sent = job.by_group.set_index("rank")
    assert sent["bytes"].tolist() == [2 * (64 + 1024)] * 2
    assert sent["wire"].to_numpy() / US == pytest.approx([550, 550])
    rank, why = job.slowest()
    assert rank == 1
    assert why.startswith("it computes 150 us longer")  # and not "in part"


def test_a_replay_takes_what_was_traced_and_what_ifs_what_paper_says():
    job = job_of(rank_of(one_step(), 0), rank_of(one_step(late=150), 1))
    what = job.what_ifs().set_index("what")["seconds"] / US
    assert what["as traced"] == pytest.approx(850)
    fair = 350 / 500  # of what the late rank computed, if it took as long as the other
    assert what["no stragglers"] == pytest.approx(850 - 250 * (1 - fair))
    assert what["no communication"] == pytest.approx(500)
    assert what["no communication"] < what["ten times the bandwidth"]
    assert what["ten times the bandwidth"] < what["twice the bandwidth"] < what["as traced"]
    # Of the late rank 250 are computed before and 50 after 550 of both all-reduces on the wire.
    for name in ("messages twice as large", "all gradients in one message"):
        assert what[name] == pytest.approx(850)
    # Both all-reduces have 200 of latency, by the line through their sizes. In halves each pays it
    # twice, and the first half goes 6.25 earlier: half of what 128 bytes take at the other's pace.
    assert what["messages half as large"] == pytest.approx(850 + 2 * 200 - 6.25)
    # Decoupled, 275 + 200 are gathered before the first 275 can be sent; then 200, and 50 computed.
    assert what["all-reduces decoupled"] == pytest.approx(475 + 275 + 200 + 50)
    assert what["gradients in half the bytes"] == pytest.approx(what["twice the bandwidth"])
    path = job.critical().set_index(["rank", "kind"])["seconds"] / US
    assert path[1, "compute"] >= 250 - 1e-6
    kinds = path.groupby("kind").sum()
    assert (kinds["compute"], kinds["all_reduce"]) == pytest.approx((300, 550))
    assert path.sum() == pytest.approx(850)


@pytest.mark.parametrize("shift", [0.0, 4321.0, -777.0])
def test_clocks_are_set_by_common_ends(shift):
    job = job_of(rank_of(one_step(), 0), rank_of(one_step(late=150), 1, shift))
    assert job.by_rank["waiting"].to_numpy() / US == pytest.approx([150, 0], abs=1)


def test_ranks_that_lack_a_collective_are_matched_by_its_end():
    """The second rank's trace was thinned: it lacks the first all-reduce of the step."""
    lacking = [one for one in one_step() if not (one["cat"] == "kernel" and one["ts"] == 200)]
    job = job_of(rank_of(one_step(), 0), rank_of(lacking, 1))
    assert job.sent["matched"].tolist() == [1, 2, 2]
    assert any("1 collective of 3 has no match" in said for said in sentences(job))


def sent_with(**changed):
    """Return a rank's step whose all-reduces have other arguments."""
    return [
        {**one, "args": {**one["args"], **changed}} if "dtype" in one["args"] else one
        for one in one_step()
    ]


@pytest.mark.parametrize(
    ("end", "gap", "waited"),
    [
        (0.045, 0.04, 0.035),  # within the gap
        (0.0535, 0.04, 0.04),  # noted 3.5 ms after the host had gone on, in its second operation
        (0.0523, 0.04, 0.0003),  # within the next gap, however short
        (0.059, 0.04, None),  # 9 ms: the host went on without it
        (0.0108, 0.0005, None),  # half a millisecond of Python is no wait for what lasts longer
    ],
)
def test_a_wait_whose_end_is_noted_late_is_one(end, gap, waited):
    """Its thread may wait for a core, which a busy host gives to others for some milliseconds."""
    start = 0.01 + gap
    before = [(-2.0, -1.5), (-1.0, -0.5)]
    busy = np.array([*before, (0.0, 0.01), (start, start + 0.002), (start + 0.0025, start + 0.01)])
    sent = pd.DataFrame({"start_ts": [0.009], "end_ts": [end]})
    found = [stop - begin for begin, stop, _ in _waits(busy, _noted_in_time(busy, sent))]
    assert found == ([] if waited is None else [pytest.approx(waited)])


def test_of_several_gaps_before_a_late_end_the_longest_was_the_wait():
    busy = np.array([(0.0, 0.01), (0.03, 0.0499), (0.0501, 0.0502), (0.054, 0.06)])
    sent = pd.DataFrame({"start_ts": [0.045], "end_ts": [0.0546]})
    ((begin, end, _),) = _waits(busy, _noted_in_time(busy, sent))
    assert (begin, end) == pytest.approx((0.0502, 0.054))


def test_a_host_of_no_operation_has_no_gap_in_which_it_waits():
    nothing = np.empty((0, 2))
    sent = pd.DataFrame({"start_ts": [0.0], "end_ts": [1.0]})
    assert not list(_waits(nothing, _noted_in_time(nothing, sent)))


def test_groups_with_other_names_or_ranks_do_not_wait_for_one_another():
    for changed in (
        {"Process Group Ranks": "[1, 2]"},
        {"Process Group Name": "1", "Process Group Ranks": ""},
        {"Collective name": "send"},
    ):
        job = job_of(rank_of(one_step(), 0), rank_of(sent_with(**changed), 1))
        assert job.sent["matched"].tolist() == [1, 1, 1, 1]
        assert job.by_rank["waiting"].tolist() == [0, 0]
    pair = {"Collective name": "recv", "Src Rank": 0, "Dst Rank": 1}
    job = job_of(rank_of(sent_with(**pair), 0), rank_of(sent_with(**pair), 1))
    assert job.sent["matched"].tolist() == [2, 2, 2, 2]
    assert set(job.sent["collective"]) == {"sendrecv"}


def test_ranks_that_send_nothing_have_a_table_and_no_slowest_one():
    silent = [one for one in one_step() if "dtype" not in one["args"]]
    job = job_of(rank_of(silent, 0), rank_of(silent, 1))
    assert job.by_rank["communication"].tolist() == [0, 0]
    assert job.slowest() is None
    assert job.what_ifs()["saves"].abs().max() < 1e-9
    assert len(list(sentences(job))) == 1


EXPERTS = "void deep_ep::internode::dispatch<true, 8, 2048>(int4*, float*)"


@pytest.mark.parametrize(
    ("name", "computes", "sends"),
    [
        (EXPERTS, 350, 740),
        ("my_fused_allgather_v3", 350, 700),
        ("my_own_kernel", 390, 700),
    ],
)
def test_kernels_of_libraries_communicate_and_unknown_ones_are_said(name, computes, sends):
    alone = kernel(name, 950, 40, 6, 50)
    job = job_of(rank_of(one_step(extra=[call("cudaLaunchKernel", 8, 1, 6), alone]), 0))
    (row,) = (job.by_rank.drop(columns="rank") / US).to_dict("records")
    assert row["computation"] == pytest.approx(computes)
    assert row["communication"] == pytest.approx(sends)
    said = [one for one in sentences(job) if one.startswith("Unknown kernel")]
    assert said == (
        [] if name == EXPERTS else [f"Unknown kernel, 40 us over all ranks and steps: {name}."]
    )


def steps_of(numbers, waits=0, sends=(80, 20)):
    """Return steps of 100: a GPU waits, computes for 40, and sends from and for so many."""
    begin, seconds = sends
    group = {"Process Group Name": "0", "Group size": 2, "Process Group Ranks": "[0, 1]"}
    sent = {"Collective name": "allreduce", "dtype": "BFloat16", "In msg nelems": 64, **group}
    return [
        one
        for number in numbers
        for at, first in [(100 * number, 2 * number + 1)]
        for one in (
            event("user_annotation", f"ProfilerStep#{number}", at, 100),
            call("cudaLaunchKernel", at + 1, 1, first),
            call("cudaLaunchKernel", at + 2, 1, first + 1),
            kernel("ampere_sgemm_128x64_nn", at + waits, 40, first),
            kernel(ALL_REDUCE, at + begin, seconds, first + 1, NCCL, **sent),
        )
    ]


def test_a_gpu_that_waits_for_its_host_waits_in_the_step_that_its_host_is_late_for():
    late = steps_of([1, 2, 3], waits=40)
    others = steps_of([1, 2, 3], sends=(40, 60))
    job = job_of(rank_of(others, 0), rank_of(late, 1))
    assert (job.by_rank["seconds"] / US).tolist() == pytest.approx([100, 100])
    assert (job.by_rank["idle"] / US).tolist() == pytest.approx([0, 40])
    assert job.slowest()[0] == 1
    assert "it does nothing for 40 us longer" in job.slowest()[1]
    assert job.what_ifs()["seconds"].iloc[0] / US == pytest.approx(100)


def test_steps_that_are_not_there_or_not_on_all_ranks_count_for_none():
    some, fewer = steps_of([0, 1, 3], sends=(40, 60)), steps_of([1, 3], sends=(40, 60))
    some[3] = {**some[3], "ts": some[3]["ts"] - 500, "dur": 540}  # a first step that warms up
    job = job_of(rank_of(some, 0), rank_of(fewer, 1))
    assert list(job.job.steps) == [1, 3]
    assert (job.by_rank["seconds"] / US).tolist() == pytest.approx([100, 100])


@pytest.mark.parametrize("without", [[0], [0, 1], [1], [2]])
def test_a_step_without_work_of_the_gpu_is_idle(without):
    events = steps_of([1, 2, 3])
    kept = [e for n, e in enumerate(events) if n // 5 not in without or n % 5 == 0]
    found = rank_of(kept, 0).seconds
    assert np.isfinite(found.to_numpy(float)).all()
    assert (found["seconds"] >= 0).all()


def test_a_copy_that_is_made_ahead_begins_no_step():
    """The host is a step ahead of its GPU, and copies the next inputs beside the last step."""
    late = [{**e, "ts": e["ts"] + 100 * (e["cat"] == "kernel")} for e in steps_of([1, 2, 3])]
    for number in (1, 2, 3):
        late.append(call("cudaMemcpyAsync", 100 * number + 3, 1, 100 + number))
        late.append(kernel("Memcpy HtoD", 100 * number + 30, 5, 100 + number, 9, "gpu_memcpy"))
    seconds = rank_of(late, 0).seconds["seconds"] / US
    assert seconds.tolist() == pytest.approx([100, 100, 100])


def test_what_runs_on_beside_the_next_step_is_hidden_by_it_and_said():
    job = job_of(*(rank_of(steps_of([1, 2, 3], sends=(80, 40)), rank) for rank in (0, 1)))
    exposed = job.by_rank["exposed"] / US  # 40 to 80 of a step is idle, and what the last one sends
    assert exposed.tolist() == pytest.approx([(20 + 20 + 40) / 3] * 2)
    assert any("run on for" in said for said in sentences(job))


def test_times_that_are_rounded_leave_collectives_of_a_stream_in_their_order():
    one = one_step()
    [place] = [n for n, event in enumerate(one) if event.get("ts") == 700]
    one[place] = {**one[place], "ts": 699, "dur": 201}
    job = job_of(rank_of(one, 0), rank_of(one, 1))
    assert "launching" not in set(job.critical()["kind"])


@pytest.mark.parametrize(
    ("kernel", "library"),
    [
        ("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclDevComm*, unsigned long)", "NCCL or RCCL"),
        ("ncclDevKernel_Generic_1(ncclDevComm*, channelMasks, ncclWork*)", "NCCL or RCCL"),
        ("mscclKernel_Sum_half_Simple_false(ncclDevComm*)", "MSCCL"),
        ("mscclpp::collective::allreduceNvls<__half>(void*)", "MSCCL++"),
        ("void deep_ep::intranode::combine<__nv_bfloat16, 8, 768>(int*)", "DeepEP"),
        ("nvshmemi_proxy_fence", "NVSHMEM"),
        ("multimem_all_reduce_kernel<c10::BFloat16, 16>", "symmetric memory"),
        ("two_shot_all_reduce_kernel<c10::BFloat16, 16, 8>", "symmetric memory"),
        ("void vllm::cross_device_reduce_2stage<__nv_bfloat16, 8>", "custom all-reduce"),
        ("userbuffers_fp16_sum_inplace_gpu_rr_rs_oop<4>", "user buffers"),
        ("Memcpy PtoP (Device -> Device)", "copies between GPUs"),
        ("void at::native::reduce_kernel<512, 1>", ""),
    ],
)
def test_the_registry_knows_names_of_libraries(kernel, library):
    assert library_of(kernel) == library
    assert library or work_of(kernel) == "computation"
    assert len({one.name for one in LIBRARIES}) == len(LIBRARIES)


# What HolisticTraceAnalysis 0.5.0 prints of its own test data, in us and per cent:
# get_temporal_breakdown() and get_comm_comp_overlap(), which leave the last step out.
OF_HTA = pd.DataFrame(
    {
        "idle": [321378.0, 328671.0],
        "computation": [106252.0, 135548.0],
        "seconds": [600058.0, 600674.0],
        "overlap": [11.81, 20.05],
    }
)


def test_hta_s_numbers_of_its_own_data_are_reproduced():
    job = ddlnb.read_trace(HTA)
    step = pd.concat([one.seconds[one.seconds["step"] == 551] for one in job.ranks])
    for name in ("idle", "computation", "seconds"):
        assert (step[name] / US).tolist() == pytest.approx(OF_HTA[name].tolist(), rel=0.01)
    overlap = 100 * (1 - step["exposed"] / step["communication"])
    assert overlap.tolist() == pytest.approx(OF_HTA["overlap"].tolist(), abs=0.01)
    replayed = job.what_ifs()["seconds"].iloc[0]
    assert replayed == pytest.approx(job.replay.traced_seconds.mean(), rel=1e-6)
    assert any("2 ranks of 128" in said for said in sentences(job))


@pytest.mark.parametrize(
    "args",
    [
        {"In msg nelems": "9" * 5_000},
        {"In msg nelems": 1, "Out msg nelems": float("inf")},
        {"Input Dims": [[2, "x"]], "Input type": ["float"]},
    ],
)
def test_a_size_that_is_no_count_is_said(args):
    with pytest.raises(InputError, match=r"of an event cannot be read: .*; record the trace again"):
        bytes_of(args)


def test_cut_and_broken_files_are_said_and_nothing_else_is_lost(tmp_path, monkeypatch):
    whole = {**header(), "distributedInfo": {"rank": 0, "world_size": 3}}
    text = json.dumps({**whole, "traceEvents": one_step()})
    (tmp_path / "rank0.json").write_text(text)
    (tmp_path / "rank1.json").write_text(text.replace('"rank": 0', '"rank": 1')[:-400])
    packed = gzip.compress(text.replace('"rank": 0', '"rank": 2').encode())
    (tmp_path / "rank2.json.gz").write_bytes(packed[:-9])
    (tmp_path / "rank3.json").write_text("no trace")
    job = ddlnb.read_trace(tmp_path)
    assert [one.rank for one in job.ranks] == [0, 1, 2]
    said = list(sentences(job))
    assert any(one.startswith("Left out: trace 'rank3.json' is not JSON") for one in said)
    [cut] = [one for one in said if one.startswith("Read as far as it goes: rank1, cut after")]
    assert cut.endswith("missing in the numbers of a step.")
    with pytest.raises(InputError, match="in two traces"):
        ddlnb.read_trace([tmp_path / "rank0.json", tmp_path / "rank0.json"])
    (tmp_path / "rank2.json.gz").unlink()
    (tmp_path / "rank2.json.zst").write_bytes(zstandard.compress(gzip.decompress(packed)))
    (tmp_path / "rank4.json.zst").write_bytes(b"no zstd")
    assert [one.rank for one in ddlnb.read_trace(tmp_path).ranks] == [0, 1, 2]
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(DdlnbError, match=r"install 'ddlnb\[zstd\]', or unpack it with `zstd -d`"):
        ddlnb.read_trace([tmp_path / "rank2.json.zst", tmp_path / "rank4.json.zst"])


ROUNDS = 20


@pytest.fixture(scope="module")
def trained(tmp_path_factory, request):
    """Return the folder of recorded rounds, and what each rank counted in each."""
    folder = tmp_path_factory.mktemp("gloo")
    rounds = ROUNDS if is_asked(request, "test_ranks_that_count_for_themselves_agree") else 0
    words = [sys.executable, "-m", "tests.traces.gloo_ranks", str(folder), str(rounds)]
    subprocess.run(words, cwd=ROOT, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    counted = [json.loads((folder / f"counted{rank}.json").read_text()) for rank in range(RANKS)]
    return folder, counted


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_ranks_that_count_for_themselves_agree(trained):
    """With their traces: bytes exactly, exposed seconds within 3 % in the median, who is slow.

    A busy machine makes others slow too: a round counts if the rank that is slow on purpose waited
    least by its own count. And it lets a rank sleep on when its wait is over, which no trace shows:
    hence medians.
    """
    folder, counted = trained
    exposed = np.zeros((2, ROUNDS, RANKS))
    made = 0
    for number in range(ROUNDS):
        job = ddlnb.read_trace(folder / f"round{number:02d}")
        own = [counts[number] for counts in counted]
        sent = job.sent.groupby("rank")["bytes"].sum()
        assert sent.tolist() == [one["bytes"] for one in own]
        exposed[0, number] = job.by_rank["exposed"] * len(job.job.steps)
        exposed[1, number] = [one["exposed"] for one in own]
        least = int(np.argmin([one["exposed"] for one in own]))
        slow, how = slowed(number)
        if least == slow:
            made += 1
            rank, why = job.slowest()
            assert rank == slow
            assert ("does nothing" if how == "sleeps" else "computes") in why
    assert (np.median(np.abs(exposed[0] / exposed[1] - 1), axis=0) < 0.03).all()
    assert made >= 0.8 * ROUNDS


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_nothing_hides_what_shards_wait_for_in_their_calls(trained):
    """A rank is watched for longer: copies in and out, and until a busy machine wakes it."""
    folder, counted = trained
    job = ddlnb.read_trace(folder / "shards")
    exposed = job.by_rank["exposed"]
    assert (exposed >= 0.95 * job.by_rank["communication"]).all()
    watched = np.array([counts[-1]["exposed"] for counts in counted])
    assert (exposed * len(job.job.steps) <= 1.01 * watched).all()
    assert job.slowest()[0] == 0

"""Logs as nccl-tests, the OSU micro-benchmarks and we ourselves write them."""

import json

import pytest

from ddlnb.calibration.collective_logs import Facts, read_collective_logs
from ddlnb.calibration.collective_tables import COLUMNS, MEASURED, read_collectives, with_seconds
from ddlnb.errors import InputError, ResultsError

DEVICES = """\
# Using devices
#  Rank  0 Group  0 Pid   1201 on     node-1 device  0 [0x18] NVIDIA H100 80GB HBM3
#  Rank  1 Group  0 Pid   1202 on     node-1 device  1 [0x2a] NVIDIA H100 80GB HBM3
#  Rank  2 Group  0 Pid    801 on     node-2 device  0 [0x18] NVIDIA H100 80GB HBM3
#  Rank  3 Group  0 Pid    802 on     node-2 device  1 [0x2a] NVIDIA H100 80GB HBM3
NCCL version 2.26.2+cuda12.8
"""
WITH_ROOT = """\
#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
     1048576        262144     float     sum      -1    60.00   17.48   26.21      0    50.00   20.97   31.46      0
node-1:1201:1250 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM
    33554432       8388608     float     sum      -1    400.0   83.89  125.83      0    390.0   86.04  129.06    N/A
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 78.14
#
"""
WITHOUT_ROOT = """\
#                                                       out-of-place                       in-place
#       size         count    type   redop     time   algbw   busbw  error     time   algbw   busbw  error
#        (B)    (elements)                     (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
     1048576         65536   float     sum    80.00   13.11    9.83  4e-07    70.00   14.98   11.23  4e-07
"""
STARTED = "# Collective test starting: all_reduce_perf\n"
OSU = """\
# OSU MPI-CUDA Allgather Latency Test v7.3
# Datatype: MPI_CHAR.
# Size       Avg Latency(us)   Min Latency(us)   Max Latency(us)  Iterations
1024                   10.50              9.80             11.20        1000
1048576               120.00            110.00            130.00         100
"""
PREFIXES = ["", "[1,0]<stdout>:", "[1,0]<stdout>: ", "node-1: ", "0: ", "[0]"]


def read(tmp_path, text, facts=None, name="run.log"):
    path = tmp_path / name
    path.write_text(text)
    return read_collective_logs(path, facts)


@pytest.mark.parametrize("prefix", PREFIXES)
def test_a_log_of_nccl_tests_is_read_behind_every_launcher(tmp_path, prefix):
    text = "".join(prefix + line for line in (STARTED + DEVICES + WITH_ROOT).splitlines(True))
    rows = read(tmp_path, text)
    assert list(rows.columns) == list(COLUMNS)
    assert rows["size_bytes"].tolist() == [1 << 20, 32 << 20]
    assert rows["time_us_out_of_place"].tolist() == [60.0, 400.0]
    assert rows["time_us_in_place"].tolist() == [50.0, 390.0]
    assert rows["busbw_in_place_GBps"].tolist() == [31.46, 129.06]
    first = rows.iloc[0]
    assert (first["nodes"], first["gpus_per_node"], first["ranks"]) == (2, 2, 4)
    assert (first["collective"], first["gpu"]) == ("all_reduce", "NVIDIA H100 80GB HBM3")
    assert (first["library"], first["dtype"]) == ("NCCL 2.26.2", "float")


def test_a_second_table_without_a_root_has_its_own_collective(tmp_path):
    second = "mpirun ./build/reduce_scatter_perf -b 1M -e 1M\n" + DEVICES + WITHOUT_ROOT
    rows = read(tmp_path, STARTED + DEVICES + WITH_ROOT + second)
    assert rows["collective"].tolist() == ["all_reduce", "all_reduce", "reduce_scatter"]
    assert rows["time_us_in_place"].tolist() == [50.0, 390.0, 70.0]
    assert rows["notes"].tolist() == ["", "", ""]


def test_wrong_results_are_noted(tmp_path):
    rows = read(tmp_path, STARTED + DEVICES + WITH_ROOT.replace("26.21      0", "26.21      7"))
    assert rows["notes"].tolist() == ["wrong results: 7", ""]


def test_groups_at_once_are_collectives_of_their_own(tmp_path):
    across = DEVICES.replace("Rank  1 Group  0", "Rank  1 Group  1").replace(
        "Rank  3 Group  0", "Rank  3 Group  1"
    )
    rows = read(tmp_path, STARTED + across + WITH_ROOT, Facts(nodes=2, gpus_per_node=2))
    first = rows.iloc[0]
    assert (first["nodes"], first["gpus_per_node"], first["ranks"]) == (2, 1, 2)
    assert first["settings"] == "2 groups at once"
    told = read(tmp_path, STARTED + across + WITH_ROOT, Facts(settings="Ring"))
    assert told["settings"].unique().tolist() == ["2 groups at once; Ring"]
    unlike = DEVICES.replace("Rank  1 Group  0", "Rank  1 Group  1")
    with pytest.raises(ResultsError, match=r"run\.log: its groups of ranks are not alike"):
        read(tmp_path, STARTED + unlike + WITH_ROOT)


def test_a_buffer_without_a_byte_for_each_rank_is_no_row(tmp_path):
    empty = WITH_ROOT.replace("     1048576        262144", "           0             0", 1)
    empty = empty.replace("60.00   17.48   26.21", " 0.10    0.00    0.00")
    assert read(tmp_path, STARTED + DEVICES + empty)["size_bytes"].tolist() == [32 << 20]
    empty = empty.replace(" 0.10 ", " 0.00 ")
    assert read(tmp_path, STARTED + DEVICES + empty)["size_bytes"].tolist() == [32 << 20]


def test_osu_says_whether_results_are_right(tmp_path):
    checked = OSU.replace("Iterations", "Iterations  Validation")
    checked = checked.replace("        1000\n", "  1000  Pass\n").replace(" 100\n", " 100  Fail\n")
    rows = read(tmp_path, checked, Facts(nodes=2, gpus_per_node=4))
    assert rows["size_bytes"].tolist() == [8 << 10, 8 << 20]
    assert rows["notes"].tolist() == ["", "wrong results"]


def test_what_a_log_does_not_say_is_given(tmp_path):
    facts = Facts("all_reduce", nodes=4, gpus_per_node=8, network="EFA 3200 Gb/s")
    rows = read(tmp_path, WITH_ROOT, facts)
    assert rows["ranks"].tolist() == [32, 32]
    assert set(rows["network"]) == {"EFA 3200 Gb/s"}


def test_sizes_of_the_osu_benchmarks_become_those_of_the_whole_buffer(tmp_path):
    rows = read(tmp_path, OSU, Facts(nodes=2, gpus_per_node=4))
    assert rows["collective"].unique().tolist() == ["all_gather"]
    assert rows["size_bytes"].tolist() == [1024 * 8, 1048576 * 8]
    assert rows["time_us_out_of_place"].tolist() == [10.5, 120.0]
    assert rows["algbw_GBps"].iloc[1] == pytest.approx(8 * 1048576 / 120e-6 / 1e9, rel=1e-4)
    assert rows["busbw_GBps"].iloc[1] == pytest.approx(rows["algbw_GBps"].iloc[1] * 7 / 8, rel=1e-4)


def test_osu_all_reduce_counts_the_buffer_of_one_rank(tmp_path):
    text = OSU.replace("Allgather", "Allreduce")
    rows = read(tmp_path, text, Facts(nodes=2, gpus_per_node=4))
    assert rows["size_bytes"].tolist() == [1024, 1048576]


def test_our_own_probe_is_read(tmp_path):
    one = {"workers": 4, "message_bytes": 4096, "seconds": 5e-4, "while_computing": True}
    rows = read(tmp_path, json.dumps([one]), name="all_reduces.json")
    [row] = rows.to_dict("records")
    assert (row["ranks"], row["time_us_out_of_place"]) == (4, pytest.approx(500.0))
    assert row["settings"] == "while computing"


def test_what_is_written_reads_back(tmp_path):
    rows = read(tmp_path, STARTED + DEVICES + WITH_ROOT)
    rows.to_csv(tmp_path / "rows.csv", index=False)
    seconds = read_collectives(tmp_path / "rows.csv")["seconds"]
    assert seconds.tolist() == pytest.approx([60e-6, 400e-6])


@pytest.mark.parametrize(
    ("text", "facts", "said"),
    [
        ("nothing of interest\n", None, "has no table of nccl-tests"),
        (STARTED + WITH_ROOT, None, "give --nodes and --gpus-per-node"),
        (DEVICES + WITH_ROOT, None, "does not name its collective; give --collective"),
        (OSU, None, "do not print the number of ranks"),
        (STARTED + DEVICES + WITH_ROOT, Facts(nodes=3), "4 ranks are not 3 nodes times 2 GPUs"),
        (
            STARTED + DEVICES + WITH_ROOT,
            Facts(gpu="A100"),
            "NVIDIA H100 80GB HBM3, and not on A100",
        ),
    ],
)
def test_a_log_that_does_not_say_enough_is_refused_with_the_way_out(tmp_path, text, facts, said):
    with pytest.raises((InputError, ResultsError), match=said):
        read(tmp_path, text, facts)


def test_a_time_computed_from_a_rate_is_the_published_time():
    rows = read_collectives().query("time_us_out_of_place > 0 and algbw_GBps > 10")
    without = rows.assign(time_us_out_of_place=float("nan"))
    again = MEASURED.checked(without.drop(columns="seconds"))
    assert (with_seconds(again)["seconds"] / rows["seconds"] - 1).abs().max() < 1e-3

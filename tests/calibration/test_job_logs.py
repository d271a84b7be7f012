"""What jobs log of their collectives; the files were made by hand in the formats' own words."""

import json
import pickle

import pytest

from ddlnb.calibration.collective_logs import Facts, read_collective_logs
from ddlnb.errors import InputError, ResultsError
from ddlnb.files import ROOT
from ddlnb.units import MIB
from tests.command_line import ddlnb

LOGS = ROOT / "docs" / "questions"
JOB = Facts(gpu="H100", nodes=2, gpus_per_node=8)


def rows_of(name, facts=JOB):
    rows = read_collective_logs(LOGS / name, facts)
    columns = ["collective", "ranks", "nodes", "size_bytes", "time_us_out_of_place"]
    return [tuple(row) for row in rows[columns].itertuples(index=False)]


def test_of_ranks_of_a_flight_recorder_the_one_that_came_last_counts():
    """The first all-reduce took rank 0 9.71 ms and rank 1 0.47 ms, the second 0.45 and 3.02 ms."""
    assert rows_of("recorder") == [
        ("all_reduce", 16, 2, 64 * MIB, pytest.approx(460)),
        ("all_gather", 16, 2, 256 * MIB, pytest.approx((2910 + 2950) / 2)),
        ("all_gather", 8, 1, 64 * MIB, pytest.approx(210)),
    ]
    alone = rows_of("recorder/rank0.json", Facts(gpu="H100", gpus_of_a_node=4))
    assert alone[0] == ("all_reduce", 16, 4, 64 * MIB, pytest.approx((9710 + 450) / 2))
    assert alone[2][:3] == ("all_gather", 8, 2)


def test_sizes_of_nccl_s_inspector_are_those_of_whole_buffers():
    assert rows_of("inspector.jsonl", Facts(gpu="H100")) == [
        ("all_reduce", 16, 2, 64 * MIB, pytest.approx((455 + 461) / 2)),
        ("all_gather", 16, 2, 256 * MIB, pytest.approx(790)),
        ("reduce_scatter", 16, 2, 256 * MIB, pytest.approx(3000)),
    ]


SPOKEN = "\n".join(
    f"[INFO] [Rank 0] comm op: all_reduce | time (ms): {ms} | msg size: 1.0 MB | algbw (Gbps): 1 | "
    f"busbw (Gbps): 2"
    for ms in (0.08, 0.07, 9.0)
)


def test_deepspeed_s_tables_and_lines_are_read_without_waiting_where_they_say_so(tmp_path):
    assert rows_of("comms.log") == [
        ("all_gather", 16, 2, 256 * MIB, pytest.approx(810)),
        ("all_reduce", 16, 2, 64 * MIB, pytest.approx(460)),
    ]
    means = (LOGS / "comms.log").read_text().partition("Breakdown")[0]
    for text, expected in ((means, [2410, 1520]), (SPOKEN, [80])):
        (tmp_path / "train.log").write_text(text)
        assert [row[-1] for row in rows_of(tmp_path / "train.log")] == pytest.approx(expected)
    with pytest.raises(InputError, match="DeepSpeed's comms logger, which do not print"):
        rows_of("comms.log", Facts(gpu="H100"))


def test_pickles_are_never_read_and_what_lacks_seconds_is_said(tmp_path):
    class Evil:
        def __reduce__(self):
            return (tmp_path.joinpath("done").touch, ())

    dump = tmp_path / "nccl_trace_rank_0"
    dump.write_bytes(pickle.dumps({"entries": [Evil()]}, protocol=2))
    with pytest.raises(InputError, match=r"is a pickle, .* never read here"):
        rows_of(dump)
    assert not (tmp_path / "done").exists()
    said = json.loads((LOGS / "recorder" / "rank0.json").read_text())
    for one in said["entries"]:
        one.pop("duration_ms", None)
    dump.write_text(json.dumps(said))
    with pytest.raises(ResultsError, match="record with TORCH_NCCL_ENABLE_TIMING=1"):
        rows_of(dump)
    whole = (LOGS / "inspector.jsonl").read_text()
    dump.write_text(whole[: len(whole) // 2])
    assert rows_of(dump)[0][:3] == ("all_reduce", 16, 2)


def test_a_rank_whose_file_was_cut_hides_no_other(tmp_path):
    alone = rows_of("recorder/rank1.json")
    for name in ("rank0", "rank1"):
        said = (LOGS / "recorder" / f"{name}.json").read_text()
        (tmp_path / f"{name}.json").write_text(said[: -100 if name == "rank0" else None])
    assert rows_of(tmp_path) == alone


def test_the_command_takes_a_folder_and_a_topology_beside_it(tmp_path):
    words = ("--gpu", "H100", "--nodes", "2", "--network", "8x400GbIB")
    topology = str(LOGS / "topology.xml")
    said = ddlnb("expect", str(LOGS / "recorder"), topology, *words, check=True).stdout
    assert "1 row of 3 took longer than forecast; the worst, all_gather on 16 ranks" in said
    assert "Pairs of GPUs are joined by NV18." in said
    assert "A node has 8 cards of 400 Gb/s." in said
    assert "one network card of several" not in said
    alone = ddlnb("expect", topology, *words, check=True).stdout
    assert "Nothing in it is measured; give a log beside it." in alone
    bomb = tmp_path / "bomb.xml"
    bomb.write_text('<!DOCTYPE a [<!ENTITY a "aa">]><system>&a;</system>')
    refused = ddlnb("expect", str(bomb), *words)
    assert (refused.returncode, len(refused.stderr.splitlines())) == (2, 1)
    assert "it has a DOCTYPE" in refused.stderr

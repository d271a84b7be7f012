"""Logs of collectives beside what their hardware should give, and what NCCL says of itself."""

import pandas as pd
import pytest

from ddlnb.calibration.expected import (
    AS_FORECAST,
    SLOW,
    SUSPECTS,
    UNKNOWN,
    UNTRACED,
    NcclFacts,
    judged,
    nccl_facts,
)
from ddlnb.calibration.logs import rows_of
from ddlnb.files import ROOT
from tests.command_line import ddlnb

LOGS = ROOT / "docs" / "questions"
NETWORK = "8x400 Gb/s InfiniBand"


def verdict_on(name, **changed):
    log = LOGS / f"{name}.log"
    rows = rows_of(log, "H100", None, None, NETWORK)
    return judged(rows.assign(**changed), "H100", NETWORK, nccl_facts(log.read_text()))


def test_a_log_that_is_as_it_should_be_is_said_to_be():
    found = verdict_on("as_it_should")
    assert set(found.rows["verdict"]) == {AS_FORECAST}
    assert not found.suspects
    assert (found.rows["low"] < found.rows["seconds"]).all()


@pytest.mark.parametrize(
    ("name", "suspect"),
    [("one_card", "one network card of several"), ("sockets", "sockets in place of RDMA")],
)
def test_what_slows_a_log_is_the_first_suspect_with_and_without_nccl_s_word(name, suspect):
    found = verdict_on(name)
    assert SLOW in set(found.rows["verdict"])
    assert found.suspects[0].name == suspect
    assert found.suspects[0].is_told
    rows = rows_of(LOGS / f"{name}.log", "H100", None, None, NETWORK)
    alone = judged(rows, "H100", NETWORK)
    assert alone.suspects[0].name == suspect
    assert not alone.suspects[0].is_told


def test_facts_rule_suspects_out():
    rows = rows_of(LOGS / "one_card.log", "H100", None, None, NETWORK)
    facts = NcclFacts(network="IB", cards=tuple(f"mlx5_{n}" for n in range(8)))
    names = {one.name for one in judged(rows, "H100", NETWORK, facts).suspects}
    assert not names & {"one network card of several", "sockets in place of RDMA"}
    assert names <= {one.name for one in SUSPECTS}


def test_what_has_no_forecast_and_what_was_seen_in_part_is_said():
    found = verdict_on("one_card", traced=2)
    assert set(found.rows["verdict"]) <= {AS_FORECAST, UNTRACED}
    found = verdict_on("one_card", collective="dispatch")
    assert set(found.rows["verdict"]) == {UNKNOWN}
    assert list(found.said) == ["No collective is of a kind that has a forecast."]


INFO = """\
node-1:1:2 [0] NCCL INFO NCCL_IB_HCA set by environment to mlx5
node-1:1:2 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB [RO]; OOB eth0:10.0.0.1<0>
node-1:1:2 [0] NCCL INFO Using network IB
node-1:1:2 [0] NCCL INFO NVLS multicast support is not available on dev 0
node-1:1:2 [0] NCCL INFO 24 coll channels, 24 collnet channels, 0 nvls channels, 32 p2p channels
node-1:1:2 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via SHM/direct/direct
node-1:1:2 [0] NCCL INFO Channel 00/0 : 8[0] -> 0[0] [receive] via NET/IB/0/GDRDMA
node-1:1:2 [0] NCCL INFO AllReduce: 1048576 Bytes -> Algo 1 proto 2 time 91.2
node-1:1:2 [0] NCCL INFO AllReduce: 4194304 Bytes -> Algo NVLS_TREE proto SIMPLE channel{0..15}
\tGPU0\tGPU1\tNIC0\tCPU Affinity
GPU0\t X \tNV18\tPIX\t0-47
GPU1\tNV18\t X \tSYS\t0-47
"""


def test_nccl_s_own_words_and_nvidia_smi_s_matrix_are_read():
    facts = nccl_facts(INFO)
    assert (facts.network, facts.cards) == ("IB", ("mlx5_0", "mlx5_1"))
    assert (facts.direct, facts.inside, facts.channels) == (True, "SHM", 24)
    assert facts.switches is False
    assert facts.links == {"NV18"}
    assert facts.nvlink
    assert facts.set_ == {"NCCL_IB_HCA": "mlx5"}
    assert facts.chosen == {
        ("AllReduce", 1048576): ("Ring", "Simple"),
        ("AllReduce", 4194304): ("NVLSTree", "Simple"),
    }
    assert nccl_facts("nothing") == NcclFacts()


def test_the_command_says_verdicts_and_suspects():
    words = ("expect", str(LOGS / "one_card.log"), "--gpu", "H100", "--network", "8x400GbIB")
    said = ddlnb(*words, check=True).stdout
    assert "Suspect 1: one network card of several (NCCL says so" in said
    assert "NCCL's network is IB by 1 card (mlx5_0), with GPUDirect RDMA." in said
    assert "verdict" in ddlnb("cluster", *words, "--csv", check=True).stdout.splitlines()[0]
    refused = ddlnb("cluster", "expect", str(LOGS / "one_card.log"), "--cluster", "survey-10GbE")
    assert (refused.returncode, len(refused.stderr.splitlines())) == (2, 1)


def test_a_suspect_explains_what_is_fine_as_well():
    """Sockets make large messages slow: where those are quick, they are no suspect."""
    sizes = [2.0**power for power in range(10, 31, 2)]
    rows = pd.DataFrame(
        {"collective": "all_reduce", "ranks": 32, "nodes": 4, "size_bytes": sizes, "seconds": 1.0}
    )
    expected = judged(rows, "H100", "8x400GbIB").rows["expected"]
    by_sockets = judged(rows, "H100", "TCP 1x400 Gb/s").rows["expected"]
    slow = judged(rows.assign(seconds=by_sockets), "H100", "8x400GbIB")
    assert slow.suspects[0].name == "sockets in place of RDMA"
    small = expected.where(rows["size_bytes"] > 2**20, 4 * expected)
    found = judged(rows.assign(seconds=small), "H100", "8x400GbIB")
    assert "sockets in place of RDMA" not in {one.name for one in found.suspects}
    assert found.suspects or "No single circumstance explains it." in found.said


def test_memory_by_way_of_the_host_is_a_suspect_where_nccl_says_so():
    rows = pd.DataFrame(
        {"collective": "all_reduce", "ranks": 16, "nodes": 2, "size_bytes": [2.0**30], "seconds": 1}
    )
    told = judged(rows, "H100", "8x400GbIB", NcclFacts(direct=False, gpu="NVIDIA A100-SXM4-80GB"))
    assert told.suspects[0].name == "GPUs' memory that goes to the network through the host's"
    assert next(told.said).startswith("The log is of NVIDIA A100-SXM4-80GB, and the forecast of H")
    quiet = judged(rows, "H100", "8x400GbIB", NcclFacts(direct=True))
    assert all("host's" not in one.name for one in quiet.suspects)


def test_a_log_that_does_not_name_its_collective_takes_it_from_the_command(tmp_path):
    text = (LOGS / "one_card.log").read_text()
    path = tmp_path / "bare.log"
    path.write_text("\n".join(line for line in text.splitlines() if "Collective" not in line))
    words = ("expect", str(path), "--gpu", "H100", "--network", "8x400GbIB")
    refused = ddlnb(*words)
    assert refused.returncode == 2
    assert "give --collective" in refused.stderr
    said = ddlnb(*words, "--collective", "all_reduce", check=True).stdout
    assert "all_reduce on 16 ranks" in said

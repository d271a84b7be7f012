"""Logs of collectives beside what their hardware should give, and what NCCL says of itself."""

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

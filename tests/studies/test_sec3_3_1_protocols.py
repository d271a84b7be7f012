"""Section 3.3.1: what is published, what is measured, and what this machine has of RDMA."""

from __future__ import annotations

import pytest

from ddlnb.errors import InputError, ResultsError
from ddlnb.studies import sec3_3_1_protocols
from ddlnb.studies.sec3_3_1_channels import KINDS


def test_the_surveys_table_has_its_words_and_the_lines_through_its_messages():
    table = sec3_3_1_protocols.survey_table()
    assert table["latency"].tolist() == ["high", "high", "medium", "low"]
    assert table.loc[("TCP/IP", "10GbE"), "latency_us"] == pytest.approx(95.6, abs=0.05)
    assert table.loc[("RDMA over InfiniBand", "100GbIB"), "latency_us"] < 7
    assert table.loc["RoCE", "latency_us"].isna().all()


def test_every_fact_has_a_tag_and_an_item():
    for fact in sec3_3_1_protocols.facts():
        assert fact["tag"].startswith("A ")
        assert all(fact.values())


def test_a_line_that_is_no_fact_is_refused(tmp_path):
    (tmp_path / "protocols.csv").write_text("id,section\nA1,2\n")
    with pytest.raises(ResultsError, match=r"protocols\.csv line 2"):
        sec3_3_1_protocols.facts(tmp_path / "protocols.csv")


def test_published_messages_name_their_protocol_and_are_labelled():
    rows = sec3_3_1_protocols.quoted_protocols()
    assert set(rows["source"]) == {"published"}
    assert "100GbIB, RDMA over InfiniBand" in set(rows["network"])


def test_parts_of_rdma_are_looked_for_where_they_would_be(tmp_path):
    none = sec3_3_1_protocols.rdma_parts(tmp_path)["here"].drop("libibverbs")
    assert not none.any()
    (tmp_path / "sys/class/infiniband/mlx5_0").mkdir(parents=True)
    (tmp_path / "dev/infiniband").mkdir(parents=True)
    (tmp_path / "proc/driver/nvidia").mkdir(parents=True)
    (tmp_path / "proc/driver/nvidia/version").write_text("NVRM")
    (tmp_path / "proc/modules").write_text("nvidia_peermem 16384 0 - Live 0x0\n")
    assert sec3_3_1_protocols.rdma_parts(tmp_path)["here"].drop("libibverbs").all()


@pytest.mark.ranks
def test_every_way_and_size_is_a_row_and_without_emulation_none_is_emulated(monkeypatch):
    monkeypatch.setattr(sec3_3_1_protocols, "emulated_ranks", lambda *_: None)
    rows = sec3_3_1_protocols.measure_protocols("1Gb/s 1ms", [8, 4096], trips=5, rounds=2)
    assert len(rows) == 2 * len(KINDS)
    assert set(rows["source"]) == {"measured"}
    assert (rows["seconds"] > 0).all()
    assert (rows["slowest_round"] >= rows["seconds"]).all()
    assert len(sec3_3_1_protocols.latency_table(rows)) == len(KINDS)


@pytest.mark.parametrize("asked", [{"trips": 0}, {"rounds": 0}, {"seconds": 0}])
def test_what_cannot_be_measured_is_refused(asked):
    with pytest.raises(InputError):
        sec3_3_1_protocols.measure_protocols("1Gb/s 1ms", **asked)

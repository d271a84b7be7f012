"""What the survey says of protocols, and what RDMA would need on this machine."""

from __future__ import annotations

import csv
import ctypes.util
from pathlib import Path

import pandas as pd

from ddlnb.errors import ResultsError
from ddlnb.paths import PUBLISHED
from ddlnb.studies.sec2_message_size import quoted_bandwidth, quoted_fits

FACT_COLUMNS = ("id", "section", "protocol", "property", "value", "tag")


def quoted_protocols() -> pd.DataFrame:
    """Return the survey's messages (A14, A15) by network and protocol, in columns of ours."""
    rows = quoted_bandwidth()
    carried = {fact["value"]: fact["protocol"] for fact in facts() if fact["property"] == "network"}
    return rows.assign(network=[f"{name}, {carried[name]}" for name in rows["network"]])


def facts(path: Path = PUBLISHED / "protocols.csv") -> list[dict[str, str]]:
    """Return what the survey says of protocols in words, line by line. Raises ResultsError."""
    with path.open(newline="") as file:
        found = list(csv.DictReader(file))
    for number, row in enumerate(found, start=2):
        if tuple(row) != FACT_COLUMNS or None in row.values():
            raise ResultsError(
                f"{path.name} line {number} is not a fact; write {','.join(FACT_COLUMNS)}"
            )
    return found


def survey_table() -> pd.DataFrame:
    """Return the survey's protocols: its word for the latency, and what quoted messages imply.

    Microseconds and Gb/s come from the line through two quoted messages each (`quoted_fits`): they
    are derived, not printed in the survey. RoCE has no measured network.
    """
    said = pd.DataFrame(facts())
    latency = said[said["property"] == "latency"]
    networks = said[said["property"] == "network"].rename(columns={"value": "network"})
    table = latency[["protocol", "value", "tag"]].rename(columns={"value": "latency"})
    table = table.merge(networks[["protocol", "network"]], on="protocol", how="left")
    table["network"] = table["network"].fillna("-")
    units = {"latency_us": "latency (us)", "gigabits_per_second": "bandwidth (Gb/s)"}
    fitted = quoted_fits()[[*units]].rename(columns=units).round(1)
    return table.join(fitted, on="network").set_index(["protocol", "network"])


def rdma_parts(root: Path = Path("/")) -> pd.DataFrame:
    """Return what RDMA and GPUDirect RDMA need, part by part, and whether it is here.

    Nothing is started. ``root`` is where /sys, /dev and /proc are looked for.
    """
    modules = root / "proc/modules"
    loaded = {line.split()[0] for line in _lines(modules)}
    devices = root / "sys/class/infiniband"
    cards = bool(devices.exists() and any(devices.iterdir()))
    gpu = (root / "proc/driver/nvidia/version").exists()
    parts = [
        ("a card that speaks InfiniBand or RoCE", "RDMA", cards),
        ("its verbs, open to programs", "RDMA", (root / "dev/infiniband").exists()),
        ("libibverbs", "RDMA", ctypes.util.find_library("ibverbs") is not None),
        ("an NVIDIA GPU and its driver", "GDR", gpu),
        ("nvidia_peermem: the GPU's memory, open to the card", "GDR", "nvidia_peermem" in loaded),
    ]
    return pd.DataFrame(parts, columns=["part", "for", "here"]).set_index("part")


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []

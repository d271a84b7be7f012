"""The bytes that compressed averages send among n workers, and what is quoted about them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pandas as pd

from ddlnb.studies.sec3_1_3_compression.messages import compressors_named
from ddlnb.training.cost.traffic import compression_ratio, requests, traffic_table
from ddlnb.workloads.workload import read_profile

PROFILE = "resnet50_b64_rtx2080ti"
DRAWN = (
    *("ef-sign", "qsgd(127)", "terngrad", "top-k(0.1)", "top-k(0.01)", "top-k(0.001)"),
    *("gtop-k(0.001)", "random-k(0.001)", "powersgd(4)"),
)


def traffic_of_resnet50(workers: Sequence[int]) -> pd.DataFrame:
    """Return the bytes that a worker sends per iteration of ResNet-50, by compressor."""
    named = dict(zip(DRAWN, compressors_named(DRAWN), strict=True))
    return traffic_table(read_profile(PROFILE), named, workers)


def traffic_claims(elements: int = 25_000_000, workers: int = 32) -> pd.DataFrame:
    """Return what is quoted about the traffic of one vector, beside what our requests make of it.

    One row per claim: claim, quoted, tag, computed; both numbers are ratios to a dense ring.
    """
    shape, n = [(elements,)], workers
    top, tree, sign = compressors_named(["top-k(0.001)", "gtop-k(0.001)", "ef-sign"])
    (even,) = compressors_named([f"top-k({1 / n!r})"])
    payload = requests(top, shape, n)[0].bytes
    sign_payload = requests(sign, shape, n)[0].bytes
    whole_tree = compression_ratio(tree, shape, n)
    rows = [
        ("top-k(0.001), one message: D / 2k", 500.0, "[d]", 4 * elements / payload),
        (
            f"top-k(0.001) gathered, {n} workers: D / nk",
            1000 / n,
            "[d]",
            compression_ratio(top, shape, n),
        ),
        (
            f"top-k(1/{n}) gathered, {n} workers",
            1.0,
            "[d]",
            compression_ratio(even, shape, n),
        ),
        (
            f"gtop-k(0.001), {n} workers, up the tree only",
            1000 * (n - 1) / n / math.log2(n),
            "[d]",
            2 * whole_tree,
        ),
        (
            f"gtop-k(0.001), {n} workers, and back down",
            500 * (n - 1) / n / math.log2(n),
            "[d]",
            whole_tree,
        ),
        ("signs, one message", 32.0, "[A s.3.1.3]", 4 * elements / sign_payload),
        (
            f"signs gathered, {n} workers: 64 / n",
            64 / n,
            "[d]",
            compression_ratio(sign, shape, n),
        ),
    ]
    return pd.DataFrame(rows, columns=["claim", "quoted", "tag", "computed"])


def traffic_claims_table() -> pd.DataFrame:
    """Return `traffic_claims`, rounded."""
    return traffic_claims().round(2)

"""Effective bandwidth by message size: measured here, and quoted by the survey (section 2)."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from ddlnb.engines.bench import Bench
from ddlnb.engines.settings import MEASURING, MeasurementSettings
from ddlnb.errors import require_whole
from ddlnb.figures.style import (
    MEASURED_COLOURS,
    NETWORK_COLOURS,
    doubling_axis,
    legend,
    say_source,
    styled,
)
from ddlnb.files import machine
from ddlnb.launch.rank import RankContext, process_group
from ddlnb.plans.alpha_beta import AlphaBeta, fit_alpha_beta as fit_alpha_beta, ring_all_reduce
from ddlnb.survey.items import Findings, findings
from ddlnb.survey.launchers import ranks_at
from ddlnb.survey.published import quoted
from ddlnb.units import BITS_PER_BYTE, GB, KIB, MIB, MS, US, gigabits_per_second, size_in_words

NETWORKS = ("10GbE", "100GbE", "100GbIB")
# The survey's "1 MB" and "16 KB" agree with the rates it gives only as powers of two.
QUOTED_SIZES = {"A14": ("1 MB", MIB), "A15": ("16 KB", 16 * KIB)}
# Half a unit of the last digit of each quoted value: time in ms, rate in Gb/s.
TIME_ROUNDING = {
    ("A14", "10GbE"): 0.005,
    ("A14", "100GbE"): 0.005,
    ("A14", "100GbIB"): 0.05,
    ("A15", "10GbE"): 0.005,
    ("A15", "100GbE"): 0.005,
    ("A15", "100GbIB"): 0.0005,
}
RATE_ROUNDING = (0.05, -0.05)
SIZES = (KIB, 4 * KIB, 16 * KIB, 64 * KIB, 256 * KIB, MIB, 4 * MIB)
BERT_LARGE_GPUS = 4


def measure_bandwidth(
    sizes: Sequence[int] = SIZES,
    *,
    workers: int = 2,
    repetitions: int = 9,
    where: str = "local",
) -> pd.DataFrame:
    """Return seconds and Gb/s by message size, of an all-reduce and of one message.

    The message goes from rank 0 to rank 1; its time is half of a round trip. Both are medians.
    """
    require_whole(2, workers=workers)
    require_whole(repetitions=repetitions, **{f"sizes[{i}]": size for i, size in enumerate(sizes)})
    with ranks_at(where, workers, MEASURING) as ranks:
        settings = MeasurementSettings(workers=workers)
        bench = Bench("small-conv", ranks, settings)  # Any model would do.
        reductions = bench.all_reduce_seconds(tuple(sizes), repetitions)
        trips = ranks.run(_time_round_trips, tuple(sizes), repetitions, count=2)[0]
    rows = [
        *_rows(f"{ranks.site.network_name}, all-reduce of {workers}", reductions, "measured"),
        *_rows(f"{ranks.site.network_name}, point to point", trips, "measured"),
    ]
    return pd.DataFrame(rows).assign(machine=machine())


def quoted_bandwidth() -> pd.DataFrame:
    """Return the survey's times (A14, A15) in the columns of `measure_bandwidth`."""
    rows = [
        row
        for network in NETWORKS
        for quote, (_, size) in sorted(QUOTED_SIZES.items(), reverse=True)
        for row in _rows(network, [(size, _quoted_seconds(quote, network))], "published")
    ]
    return pd.DataFrame(rows)


def beside_quoted(measured: pd.DataFrame) -> pd.DataFrame:
    """Return rows of `measure_bandwidth` followed by those of the survey."""
    return pd.concat([measured, quoted_bandwidth()], ignore_index=True)


def fits(rows: pd.DataFrame) -> dict[str, AlphaBeta]:
    """Return the fitted a + b M of every network in the rows."""
    return {
        str(network): fit_alpha_beta(part["bytes"].tolist(), part["seconds"].tolist())
        for network, part in rows.groupby("network", sort=False)
    }


def bandwidth_table(rows: pd.DataFrame) -> pd.DataFrame:
    """Return Gb/s by message size (down) and by network (across), to read beside the figure."""
    table = rows.pivot_table("gigabits_per_second", "bytes", "network", sort=False).sort_index()
    named = table.rename(index=size_in_words).rename_axis(index="message", columns=None)
    return named.add_suffix(" (Gb/s)").round(3)


def quoted_fits() -> pd.DataFrame:
    """Return the a + b M of the survey's two quoted messages, with what rounding allows.

    A quoted time and a quoted rate each bound the true time. The line goes through the middle of
    what both allow; low and high are the extremes of a and of the bandwidth 1 / b over all pairs of
    times within these bounds.
    """
    return pd.DataFrame([_quoted_fit(network) for network in NETWORKS]).set_index("network")


def quoted_table() -> pd.DataFrame:
    """Return `quoted_fits` with a range per quantity, to be read."""
    fitted = quoted_fits().round(2)
    columns = {
        "latency (us)": fitted["latency_us"],
        "latency between": _between(fitted, "latency_us"),
        "bandwidth (Gb/s)": fitted["gigabits_per_second"],
        "bandwidth between": _between(fitted, "gigabits_per_second"),
        "half of it at (KiB)": fitted["half_peak_KiB"],
    }
    return pd.DataFrame(columns)


def _between(fitted: pd.DataFrame, name: str) -> pd.Series:
    return fitted.apply(lambda row: f"{row[f'{name}_low']:.2f} and {row[f'{name}_high']:.2f}", 1)


def quoted_findings() -> Findings:
    """Compare the bandwidths that the survey's messages imply with the names of the networks."""
    rates = quoted_fits()["gigabits_per_second"]
    shares = [
        f"{quoted('A15', f'rate of a 16 KB message over {network}'):g} of "
        f"{quoted('A14', f'rate of a 1 MB message over {network}'):g} Gb/s on {network}"
        for network in NETWORKS
    ]
    return findings(
        f"A message of 16 KB reaches this much of the rate of one of 1 MB: {', '.join(shares)}.",
        f"100GbE, which is TCP over InfiniBand, saturates near {rates['100GbE']:.0f} Gb/s: "
        f"{rates['100GbE'] / rates['10GbE']:.1f} times the bandwidth of 10GbE, not 10 times.",
    )


def bert_large_example() -> pd.DataFrame:
    """Compute the survey's example, BERT-Large at batch 8 on 4 GPUs, from the quoted inputs.

    Times are the survey's (A11, A12); all that is computed follows from them and from the number
    of parameters. The last speed-up hides all communication behind the computation.
    """
    parameters = quoted("A10", "parameters of bert-large")
    computing = quoted("A11", "time of one bert-large iteration at batch 8 on RTX 2080 Ti") * MS
    work = quoted("A11", "work of one bert-large iteration at batch 8") * 1e9
    reducing = quoted("A12", "all-reduce of bert-large over 4 GPUs on PCIe 3.0") * MS
    gpus, size = BERT_LARGE_GPUS, parameters * 4
    per_byte = ring_all_reduce(AlphaBeta(0, 1), gpus).seconds_per_byte
    sizes = quoted("A10", "fp32 size of bert-large")
    speedup = quoted("A12", "speedup of bert-large on 4 GPUs on PCIe 3.0")
    most = quoted("A13", "most speedup of bert-large on 4 GPUs")
    per_link = per_byte * size / reducing
    hidden = gpus * computing / max(computing, reducing)
    rows = [
        ("size of the gradient (GB)", size / GB, sizes, "A10"),
        ("arithmetic of one GPU (TFLOP/s)", work / computing / 1e12, None, "A11"),
        ("throughput of one GPU (sentences/s)", 8 / computing, None, "A11"),
        ("rate of a link of the ring (GB/s)", per_link / GB, None, "A12"),
        ("speed-up without overlap", gpus * computing / (computing + reducing), speedup, "A12"),
        ("speed-up with everything hidden", hidden, most, "A13"),
    ]
    frame = pd.DataFrame(rows, columns=["quantity", "computed", "published", "item"])
    return frame.set_index("quantity").round(3)


def _rows(network: str, points: Sequence[tuple[int, float]], source: str) -> list[dict]:
    return [
        {
            "network": network,
            "bytes": size,
            "seconds": seconds,
            "gigabits_per_second": gigabits_per_second(size / seconds),
            "source": source,
        }
        for size, seconds in points
    ]


def _quoted_seconds(quote: str, network: str) -> float:
    size, _ = QUOTED_SIZES[quote]
    return quoted(quote, f"time of a {size} message over {network}") * MS


def _bounds(quote: str, network: str) -> tuple[float, float]:
    """Return the least and the most seconds that both the quoted time and rate allow."""
    text, size = QUOTED_SIZES[quote]
    rate = quoted(quote, f"rate of a {text} message over {network}")
    middle, rounding = _quoted_seconds(quote, network), TIME_ROUNDING[quote, network] * MS
    least, most = (size * BITS_PER_BYTE / (rate + half) / 1e9 for half in RATE_ROUNDING)
    return max(least, middle - rounding), min(most, middle + rounding)


def _line(small: float, large: float) -> tuple[float, float]:
    """Return a and b of the line through the times of the two quoted sizes."""
    size, larger = (QUOTED_SIZES[quote][1] for quote in ("A15", "A14"))
    slope = (large - small) / (larger - size)
    return small - slope * size, slope


def _quoted_fit(network: str) -> dict[str, object]:
    small, large = (_bounds(quote, network) for quote in ("A15", "A14"))
    latencies, slopes = zip(*(_line(s, t) for s in small for t in large), strict=True)
    line = AlphaBeta(*_line(statistics.mean(small), statistics.mean(large)))
    return {
        "network": network,
        "latency_us": line.latency_seconds / US,
        "latency_us_low": min(latencies) / US,
        "latency_us_high": max(latencies) / US,
        "gigabits_per_second": gigabits_per_second(line.bytes_per_second),
        "gigabits_per_second_low": gigabits_per_second(1 / max(slopes)),
        "gigabits_per_second_high": gigabits_per_second(1 / min(slopes)),
        "half_peak_KiB": line.half_peak_bytes / KIB,
    }


def _time_round_trips(
    context: RankContext, sizes: tuple[int, ...], repetitions: int
) -> list[tuple[int, float]]:
    """Return bytes and seconds of half a round trip between ranks 0 and 1, as rank 0 sees it."""
    import torch
    import torch.distributed as dist

    found = []
    other = 1 - context.rank
    with process_group(context, context.store(), context.count):
        for size in sizes:
            tensor = torch.zeros(size, dtype=torch.uint8)
            seconds = []
            for _ in range(repetitions + 1):
                start = time.perf_counter()
                for turn in (0, 1):
                    dist.send(tensor, other) if context.rank == turn else dist.recv(tensor, other)
                seconds.append((time.perf_counter() - start) / 2)
            found.append((size, statistics.median(seconds[1:])))
    return found


@styled
def effective_bandwidth(
    rows: pd.DataFrame, fits: Mapping[str, AlphaBeta] | None = None
) -> plt.Figure:
    """Effective bandwidth against message size, both logarithmic.

    ``rows`` have the columns network, bytes, gigabits_per_second and source. ``fits`` gives a
    network's a + b M, drawn dashed over the range of its points.
    """
    fits = fits or {}
    figure, ax = plt.subplots(figsize=(8.5, 4.6))
    measured = iter(MEASURED_COLOURS * len(rows))
    for (network, source), points in rows.groupby(["network", "source"], sort=False):
        colour = NETWORK_COLOURS.get(network) or next(measured)
        ax.plot(
            points["bytes"],
            points["gigabits_per_second"],
            marker="D" if source == "published" else "o",
            markerfacecolor="white" if source == "published" else colour,
            linestyle="none" if network in fits else "-",
            color=colour,
            label=f"{network} ({source})",
        )
        if network in fits:
            sizes = np.geomspace(points["bytes"].min(), points["bytes"].max(), 60)
            rates = [gigabits_per_second(m / fits[network].seconds(m)) for m in sizes]
            ax.plot(sizes, rates, linestyle="--", color=colour, label=f"{network}: {fits[network]}")
    ticks = [2**k for k in range(8, 30, 2) if rows["bytes"].min() <= 2**k <= rows["bytes"].max()]
    doubling_axis(ax, ticks, size_in_words)
    ax.set(
        yscale="log",
        xlabel="message size",
        ylabel="effective bandwidth (Gb/s)",
        title="Small messages do not fill the link",
    )
    legend(figure)
    return say_source(figure, rows, "dashed: a + M / B")

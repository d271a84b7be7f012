"""Small tables for every figure, and the figures drawn of them."""

import functools
import math
from collections.abc import Callable
from dataclasses import asdict
from itertools import product

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

import ddlnb
from benchmarks.pictures import drift_iterations
from ddlnb import figures
from ddlnb.clusters.cluster import Cluster, Fit
from ddlnb.clusters.effects import Effects
from ddlnb.parallelism.goodput.failures import failure_records, fit_failure_rate
from ddlnb.parallelism.goodput.simulate import Job, goodput
from ddlnb.plans.alpha_beta import AlphaBeta
from ddlnb.plans.methods import METHODS
from ddlnb.results.timeline import Span, Timeline
from ddlnb.survey.claims import Strength
from ddlnb.survey.convergence_rates import consensus_rounds, spectral_gaps
from ddlnb.survey.layers_codesign import CHOICES, gain_table, pair_table, slowdown_table
from ddlnb.survey.layers_overview import layout_traffic
from ddlnb.survey.scale_heterogeneous import by_ratio, ways_of
from ddlnb.survey.scale_strategies import played_layouts, played_schedules, split_table
from ddlnb.traces.jobs.table import job_of
from ddlnb.traces.jobs.what_if import what_if
from tests.traces.toy_jobs import ToyJob

RATE = "throughput_samples_per_s"


def table(columns: str, *rows: tuple, **same: object) -> pd.DataFrame:
    """The rows under these columns, and columns in which all rows are the same."""
    return pd.DataFrame(rows, columns=columns.split()).assign(**same)


def rows(source: str = "measured", methods: tuple[str, ...] = ("single", *METHODS)) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "model": "toy",
            "local_batch": 8,
            "network": "loopback",
            "method": methods,
            "gpus": [1 if name == "single" else 2 for name in methods],
            "throughput_samples_per_s": [100.0 + 10 * i for i in range(len(methods))],
            "std": 5.0,
            "source": source,
        }
    )


def timeline(method: str) -> Timeline:
    spans = [
        Span(0, "forward", "a", 1.000, 1.010, 0),
        Span(0, "backward", "a", 1.010, 1.030, 0),
        Span(0, "message", "m1", 1.012, 1.040, 0, bytes=1000),
        Span(0, "message", "m2", 1.020, 1.035, 0, bytes=1_000_000),
        Span(0, "wait", "all", 1.030, 1.040, 0),
        Span(0, "update", "all", 1.040, 1.042, 0),
        Span(0, "forward", "a", 1.042, 1.052, 1),
        Span(0, "backward", "a", 1.052, 1.060, 1),
    ]
    return Timeline(method, "measured", tuple(spans))


def steady(method: str) -> Timeline:
    """Four iterations of 100 ms with a message that reaches into the next one."""
    spans = []
    for i in range(4):
        at = 0.1 * i
        spans += [
            Span(0, "forward", "a", at, at + 0.02, i),
            Span(0, "backward", "a", at + 0.02, at + 0.06, i),
            Span(0, "message", "m", at + 0.05, at + 0.11, i, bytes=1000),
            Span(0, "message", "n", at + 0.05, at + 0.07, i, bytes=2000),
            Span(0, "wait", "all", at + 0.06, at + 0.1, i),
        ]
    return Timeline(method, "simulated", tuple(spans))


def forecasts(gpus: tuple[int, ...] = (4, 8, 16)) -> pd.DataFrame:
    """Forecasts of a panel, of every method with so many GPUs."""
    lines = [
        (name, count, count * (0.9 - 0.1 * number))
        for count, (number, name) in product(gpus, enumerate(METHODS))
    ]
    panel = {"model": "toy", "local_batch": 8, "network": "10GbE", "std": math.nan}
    found = table("method gpus speedup", *lines, **panel, source="simulated", machine="twin")
    bounds = {RATE: 50, "low": 40, "high": 55}
    return found.assign(**{name: factor * found["speedup"] for name, factor in bounds.items()})


def both_panels() -> pd.DataFrame:
    return pd.concat([forecasts(), forecasts().assign(network="100GbE")])


def published(gpus: tuple[int, ...] = (4,)) -> pd.DataFrame:
    """Cells of the same panel with one GPU alone, and one cell of another panel."""
    cells = forecasts(gpus).drop(columns=["speedup", "low", "high", "machine"])
    cells = cells.assign(throughput_samples_per_s=cells["throughput_samples_per_s"] * 1.1, std=2.0)
    alone = cells.iloc[:1].assign(method="single", gpus=1, throughput_samples_per_s=50.0)
    elsewhere = cells.iloc[:1].assign(network="100GbE", throughput_samples_per_s=9999.0)
    return pd.concat([alone, cells, elsewhere], ignore_index=True).assign(source="published")


BREAKDOWNS = table(
    "model network method",
    *product(("toy", "small"), ("10GbE", "100GbIB"), METHODS),
    **{"gpus": 8, "computation": 0.2, "contention": -0.01, "latency": 0.3, "bandwidth": 0.01},
    **{"iteration_seconds": 0.5, "source": "simulated"},
)
# Verdicts on three claims: one holds, one fails, one cannot be judged.
JUDGED = table(
    "claim holds deciding_support deciding_cells needed reason",
    ("A44", True, 9, 10, Strength.MOST.value, ""),
    ("A46", False, 4, 8, Strength.EVERY.value, ""),
    ("A57", None, 0, 0, "", "the table has no larger batches"),
    **{"section": "4.2", "text": "a is faster than b"},
).astype({"holds": object})


def fitted_cluster(name: str, **fits: Fit) -> Cluster:
    effects = Effects(between_latency=1e-5, between_bandwidth=1e9)
    return Cluster(name, name, 2, 4, effects, fits=fits)


SHARED = {"between_bandwidth": Fit(5e8, math.inf, "shared")}
OWN = {"between_latency": Fit(0.0, 3e-5, "own"), "priority_latency": Fit(0.0, 1e-3, "none")}
FITTED = [fitted_cluster("10GbE", **SHARED, **OWN), fitted_cluster("other", **SHARED)]
MISSES = table(
    "model network method gpus",
    *product(("resnet50", "toy"), ("10GbE", "100GbIB"), (*METHODS, None), (4, None)),
    **{"observed": 1.0, "source": "published"},
)
MISSES["relative_error"] = 0.01 * (MISSES.index % 9 - 4)
MISSES["predicted"] = 1 + MISSES["relative_error"]
EMULATED = {"network": "10Mb/s 1ms", "machine": "a box", "source": "emulated"}
ARCHITECTURES = table(
    "architecture workers servers iteration_seconds",
    ("PS", 2, 1, 0.2), ("A2A", 2, 0, 0.15), ("PS", 4, 1, 0.4), ("A2A", 4, 0, 0.2),
    ("PS", 4, 4, 0.15),
    **EMULATED,
)  # fmt: skip
ALL_REDUCES = table(
    "algorithm bytes seconds",
    *(
        (name, size, 0.01 + 1e-8 * size + 1e-3 * n)
        for name, size, n in product(("ring", "tree"), (1024, 65536), range(2))
    ),
    **EMULATED,
)
FORMULAS = {"ring": AlphaBeta(0.02, 1e-8), "tree": AlphaBeta(0.01, 3e-8)}
BANDWIDTHS = table(
    "network bytes gigabits_per_second source",
    ("here", 1024, 0.1, "measured"), ("here", 2**20, 10, "measured"),
    ("10GbE", 16384, 1.2, "published"), ("10GbE", 2**20, 8.2, "published"),
)  # fmt: skip
INTENSITIES = table(
    "model intensity published",
    ("resnet50", 480.0, 470.0), ("bert-base", 192.0, 249.0),
    convention="forward, FMA = 1",
)  # fmt: skip
PROTOCOLS = table(
    "network bytes seconds gigabits_per_second source",
    ("TCP, loopback", 8, 1e-5, 0.006, "measured"), ("TCP, loopback", 2**20, 1e-3, 8.0, "measured"),
    ("TCP, 10Mb/s 1ms", 8, 1e-3, 6e-5, "emulated"),
    ("10GbE, TCP/IP", 2**20, 1.02e-3, 8.2, "published"),
)  # fmt: skip
ACTIVITIES = table(
    "method rank kind iteration start_seconds stop_seconds",
    ("bsp on PS", 0, "compute", 0, 0.0, 1.0), ("bsp on PS", 0, "wait", 0, 1.0, 2.0),
    ("bsp on PS", 1, "compute", 0, 0.0, 2.0), ("asp on PS", 0, "compute", 0, 0.0, 1.0),
    ("asp on PS", 0, "compute", 1, 1.0, 3.0), ("asp on PS", 1, "compute", 0, 0.0, 2.0),
)  # fmt: skip
STALE = table("method staleness pushes", ("asp", 1, 1), ("asp", 3, 3), ("r2sp", 3, 8))
LARGE_BATCHES = table(
    "recipe batch test_loss test_loss_half_width test_accuracy",
    ("SGD", 64, 0.1, 0.2, 0.97), ("SGD", 1024, math.inf, math.nan, 0.5),
    ("LARS", 64, 0.1, 0.01, 0.97), ("LARS", 1024, 0.2, 0.05, 0.94),
    **{"seeds": 3, "test_accuracy_half_width": 0.01, "source": "measured in lockstep"},
)  # fmt: skip
PERIODS = table(
    "period bytes_sent test_loss test_accuracy",
    *((1, 8e6, 0.1, 0.98), (2, 4e6, 0.11, 0.97), (4, 2e6, 0.12, 0.97)),
    **{"seeds": 1, "test_loss_half_width": math.nan, "test_accuracy_half_width": math.nan},
    source="measured in lockstep",
).set_index("period")
SLOWED = table(
    "method factor", *product(("MG-WFBP", "asp on PS"), (1, 2, 4)),
    **{"model": "toy", "machine": "by hand", "workers": 4, "source": "simulated"},
    iteration_seconds=lambda rows: rows["factor"], computing_seconds=0.9,
)  # fmt: skip
CURVES = table(
    "method step",
    *product(("bsp on A2A", "bsp + dgc(0.001, 0.9, None, 0, True) on A2A"), (1, 10, 20)),
    **{"task": "digits", "workers": 4, "split": "iid", "optimizer": "sgd", "seed": 0},
    **{"learning_rate": 0.1, "executor": "lockstep", "bytes_received": 1e6, "diverged": False},
    test_loss=lambda rows: 2.0 / rows["step"],
    test_accuracy=lambda rows: 1 - 0.5 / rows["step"],
    bytes_sent=lambda rows: 1e6 * rows["step"],
)
SERVERS = table(
    f"place servers {RATE}",
    *((place, count, rate) for place, count, rate in (
        ("none", 0, 100.0), ("extra machines", 1, 40.0), ("extra machines", 4, 101.0),
        ("workers' nodes", 1, 50.0), ("workers' nodes", 4, 105.0),
    )),
    **{"model": "toy", "network": "10GbE", "gpus": 32},
)  # fmt: skip
BEST = table(
    "network bytes algorithm", *product(("star", "torus"), (1024, 4096), ("ring", "swing")),
    hosts=8, best=lambda rows: rows["algorithm"] == "ring",
    seconds=lambda rows: 1.5 - 0.5 * rows["best"],
)  # fmt: skip
LOSSES = table(
    "on compressor", *product(("gradient", "noise"), ("ef-sign", "random-k(0.01, False)")),
    loss=0.1, bound=0.9, source="measured",
)  # fmt: skip
RESIDUALS = table(
    "step residual", (1, 1), (2, 30), (3, 900),
    compressor="powersgd(4, False, True)", source="measured",
)  # fmt: skip
WAITS = table(
    "bound waiting_seconds", (0, 0.5), (1, 0.2), straggler="constant", seed=0, source="simulated"
)
LEFT_OUT = table(
    "kind left_out model forecast measured tokens_per_s_per_gpu",
    *(
        (*fold, model, forecast, rate, rate * share)
        for fold, model, (forecast, share), rate in product(
            (("model", "llama-1B"), ("tp", "tp 8")), ("llama-1B", "llama-3B"),
            (("ours", 1.03), ("constant MFU", 1.6)), (20.0, 1000.0, 50_000.0),
        )
    ),
    median=lambda rows: rows["tokens_per_s_per_gpu"] / rows["measured"] - 1,
)  # fmt: skip
SPLITS = pd.DataFrame([[900.0, 1000.0], [800.0, math.nan]], index=[1, 2], columns=[1, 2])
LAYERS = table(
    f"topology {' '.join(CHOICES)}",
    *(
        (name, *taken)
        for taken in product((False, True), repeat=len(CHOICES))
        for name in ("two-tier(2, 2, 4.0, 2)", "rail-optimised(4, 8, 2)")
    ),
)
TAKEN = LAYERS[list(CHOICES)].to_numpy()
TOGETHER = np.where(TAKEN[:, 0] & TAKEN[:, 1], 1.3, 1.0)
LAYERS["seconds"] = 1 / np.prod(np.where(TAKEN, (1.5, 1.0, 1.1, 1.2), 1.0), axis=1) / TOGETHER
# One option of every group that has a colour, and one without an interval.
OPTIONS = table(
    f"option kind server_machines learning {RATE}",
    ("MG-WFBP", "method", 0, "", 100.0),
    ("BSP-A2A", "method", 0, "", 80.0),
    ("WFBP-PS", "method", 2, "", 120.0),
    ("batch 128 per GPU, MG-WFBP", "larger batch", 0, "a step averages more", 150.0),
    ("local(4)", "local steps", 0, "nobody measured it", 140.0),
    ("8 GPUs, MG-WFBP", "fewer machines", 0, "", 55.0),
    low=lambda rows: (0.9 * rows[RATE]).where(rows["option"] != "local(4)"),
    high=lambda rows: (1.2 * rows[RATE]).where(rows["option"] != "local(4)"),
)
REASONS = table(
    "what times_as_fast can_be_bought",
    ("as it is", 1.0, False),
    ("twice the bandwidth between nodes", 1.3, True),
    ("no latency", 1.02, False),
    ("no communication", 1.6, False),
    iteration_seconds=lambda rows: 0.2 / rows["times_as_fast"],
)
SIZES = table(
    "method gpus efficiency",
    *(
        (name, 2**place, (0.99 - 0.02 * number) ** place)
        for (number, name), place in product(enumerate(METHODS), range(6))
    ),
    **{RATE: lambda rows: 50 * rows["gpus"] * rows["efficiency"]},
    efficiency_low=lambda rows: rows["efficiency"] ** 1.1,
    efficiency_high=lambda rows: rows["efficiency"] ** 0.8,
)
SEARCHED = table(
    "network model best_ms",
    *(
        (network, *best)
        for network in ("10GbE", "100GbIB")
        for best in (("resnet50", 12.0), ("bert-base", 18.0))
    ),
    **{"searched_ms": 11.0, "bound_ms": 10.0, "best of the seven": "ByteScheduler-A2A"},
)
DRIFTING = table(
    "contender repetition iteration seconds",
    *(
        (plan, repetition, i, seconds[i > 2])
        for (plan, seconds), repetition, i in product(
            (("kept", (0.1, 0.5)), ("made anew", (0.1, 0.3))), range(2), range(6)
        )
    ),
    **{"drift": "1Gb/s becomes 100Mb/s", "change": 3},
    takeover=lambda rows: rows["contender"].map({"made anew": 4.0}),
)
CHECKPOINTS = table(
    "interval_seconds formula", (60, 0.6), (240, 0.85), (900, 0.9), (3600, 0.8),
    simulated=lambda rows: rows["formula"] - 0.01,
)  # fmt: skip


def months() -> pd.DataFrame:
    """A month of a job that waits for nodes, and of an elastic one."""
    found = [goodput(Job(gpus=1024, elastic=elastic), draws=5) for elastic in (False, True)]
    return pd.DataFrame([one.goodput._asdict() | asdict(one.spent) for one in found]).rename(
        columns={"estimate": "goodput"}
    )


DRAWN: dict[str, Callable[[], Figure]] = {
    "traffic_maps": lambda: figures.traffic_maps(
        layout_traffic(["dp4", "pp4 acc2", "dp2 ep2"]), "formulas"
    ),
    "layer_gains": lambda: figures.layer_gains(gain_table(LAYERS), "simulated"),
    "layer_pairs": lambda: figures.layer_pairs(pair_table(LAYERS), "simulated"),
    "phase_slowdowns": lambda: figures.phase_slowdowns(slowdown_table([0.3, 0.6]), "simulated"),
    "layout_forecasts": lambda: figures.layout_forecasts(LEFT_OUT, "published"),
    "layout_errors": lambda: figures.layout_errors(
        LEFT_OUT.drop_duplicates(["left_out", "forecast"]), "published"
    ),
    "layout_map": lambda: figures.layout_map(SPLITS, "a model", "simulated"),
    "throughput_bars": lambda: figures.throughput_bars(pd.concat([rows(), rows("published")])),
    "timelines": lambda: figures.timelines({name: timeline(name) for name in METHODS}),
    "effective_bandwidth": lambda: figures.effective_bandwidth(
        BANDWIDTHS, {"here": AlphaBeta(1e-4, 1e-9)}
    ),
    "intensity_bars": lambda: figures.intensity_bars(INTENSITIES),
    "forecast_bars": lambda: figures.forecast_bars(forecasts(), published()),
    "forecast_bars alone": lambda: figures.forecast_bars(forecasts()),
    "forecast_panels": lambda: figures.forecast_panels(both_panels(), published()),
    "breakdown_bars": lambda: figures.breakdown_bars(BREAKDOWNS),
    "schedules": lambda: figures.schedules(
        {net: {name: steady(name) for name in METHODS} for net in ("10GbE", "100GbIB")}
    ),
    "claim_verdicts": lambda: figures.claim_verdicts(
        {"simulated": JUDGED, "published": JUDGED.assign(holds=None)}
    ),
    "simulated_against_measured": lambda: figures.simulated_against_measured(
        rows("simulated").assign(low=90.0, high=200.0, machine="twin"),
        rows().assign(machine="a box"),
    ),
    "gossip_mixing": lambda: figures.gossip_mixing(
        spectral_gaps([4, 8]),
        consensus_rounds(["d-psgd(ring)", "choco(torus) + top-k(0.1)"], workers=4, rounds=3),
    ),
    "parameter_intervals": lambda: figures.parameter_intervals(FITTED),
    "residuals": lambda: figures.residuals(MISSES),
    "architecture_bottleneck": lambda: figures.architecture_bottleneck(
        ARCHITECTURES, ARCHITECTURES.assign(source="formula")
    ),
    "all_reduce_times": lambda: figures.all_reduce_times(ALL_REDUCES, FORMULAS),
    "all_reduce_times without points": lambda: figures.all_reduce_times(
        ALL_REDUCES.iloc[:0], FORMULAS
    ),
    "protocol_times": lambda: figures.protocol_times(PROTOCOLS),
    "synchronisation_timelines": lambda: figures.synchronisation_timelines(ACTIVITIES),
    "staleness_histogram": lambda: figures.staleness_histogram(STALE),
    "large_batch_quality": lambda: figures.large_batch_quality(LARGE_BATCHES),
    "loss_against_traffic": lambda: figures.loss_against_traffic(PERIODS),
    "iteration_with_a_slow_worker": lambda: figures.iteration_with_a_slow_worker(SLOWED),
    "waiting_against_bound": lambda: figures.waiting_against_bound(WAITS),
    "pipeline_schedules": lambda: figures.pipeline_schedules(
        played_schedules(["pp4 1f1b acc8", "pp2 vpp2 acc4", "pp4 zero-bubble acc8"])
    ),
    "layout_times": lambda: figures.layout_times(
        split_table(played_layouts(["dp8 zero3", "tp8", "pp4 acc8"], nodes=1)), "simulated"
    ),
    "unlike_ways": lambda: figures.unlike_ways(
        ddlnb.unlike("llama3-8b", {"H100": 8, "A100": 8}, samples=64, sequence=2048).rows
    ),
    "unlike_shares": lambda: figures.unlike_shares(
        ways_of({"A100": 2, "V100": 2}, 32), by_ratio([1, 3], 2, 32)
    ),
    "job_stragglers": lambda: figures.job_stragglers(what_if(job_of(ToyJob().rows(), "toy"))),
    "learning_curves": lambda: figures.learning_curves(CURVES, log_loss=True),
    "servers_needed": lambda: figures.servers_needed(SERVERS),
    "best_collectives": lambda: figures.best_collectives(BEST),
    "compression_losses": lambda: figures.compression_losses(LOSSES),
    "feedback_residuals": lambda: figures.feedback_residuals(RESIDUALS),
    "advice_options": lambda: figures.advice_options(OPTIONS),
    "advice_options of layouts": lambda: figures.advice_options(
        OPTIONS.rename(columns={RATE: "throughput_tokens_per_s"})
    ),
    "advice_reasons": lambda: figures.advice_reasons(REASONS),
    "scaling_curves": lambda: figures.scaling_curves(SIZES, 0.8, "a model on a cluster"),
    "drift_iterations": lambda: drift_iterations(DRIFTING),
    "search_gains": lambda: figures.search_gains(SEARCHED),
    "time_spent": lambda: figures.time_spent(months(), ["waits", "elastic"]),
    "checkpoint_curve": lambda: figures.checkpoint_curve(
        CHECKPOINTS, {"Young": 700.0, "Daly": 650.0}
    ),
    "failure_times": lambda: figures.failure_times(failure_records(), fit_failure_rate()),
}


@functools.cache
def drawn(name: str) -> Figure:
    """The figure of that name, which tests only look at."""
    return DRAWN[name]()


def text_of(figure: Figure) -> str:
    return " ".join(text.get_text() for text in figure.findobj(mpl.text.Text))

"""Every reader of bytes or words from outside, with what it reads well."""

from __future__ import annotations

import gzip
import json
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ddlnb
from ddlnb.calibration.calibrated_model import read_micro_benchmark
from ddlnb.calibration.collective_logs import Facts, read_collective_logs
from ddlnb.calibration.collective_tables import (
    OPEN_ROWS,
    completed,
    read_collectives,
    read_questions,
)
from ddlnb.calibration.expected import topology_facts
from ddlnb.cli.options import parameters_from
from ddlnb.clusters.file import read_cluster
from ddlnb.compression.catalogue import get_compressor
from ddlnb.compression.profile import compression_profile
from ddlnb.errors import InputError
from ddlnb.files import CALIBRATION, CLUSTERS, DATA, ROOT
from ddlnb.hardware.catalogue import described, get_gpu
from ddlnb.launch.options import network_change
from ddlnb.networks.infragraph import read_infragraph, write_infragraph
from ddlnb.networks.topologies import get_topology
from ddlnb.parallelism.config import read_config
from ddlnb.parallelism.forecast.table import forecast_table
from ddlnb.parallelism.launch_files import read_launch
from ddlnb.parallelism.layout import Layout
from ddlnb.plans.plan_file import plan_to_json, read_plan
from ddlnb.reading import read_text, xml_of
from ddlnb.results.rows import read_rows, read_table
from ddlnb.results.schema import read_cells, read_frame
from ddlnb.survey.fig4_forecast import read_forecast
from ddlnb.survey.testbed import BATCHES, fig4_workload, read_setup
from ddlnb.traces.kineto.trace import KinetoTrace
from ddlnb.traces.read import read_trace
from ddlnb.traces.training_logs import read_training_log
from ddlnb.training.method import get_synchronisation
from ddlnb.training.runs.runner import _read as read_saved_run
from ddlnb.units import bandwidth_from, bytes_from, quantity_from, seconds_from
from ddlnb.workloads.hugging_face import task_of_file
from ddlnb.workloads.resolve import resolve
from tests.calibration import test_collective_logs as logs
from tests.parallelism.test_launch_files import (
    ACCELERATE_YAML,
    DEEPSPEED_JSON,
    NANOTRON_YAML,
    RUNS as LAUNCHES,
)
from tests.traces.gpu_traces import one_iteration, two_streams
from tests.traces.test_kineto import BYTEPS, HOROVOD

MEASURED = DATA / "measured" / "2026-11-22_two-cores_busy"
JOB = DATA / "published" / "traces" / "bytedance-trace-ST.csv.gz"
LOGGED = ROOT / "docs" / "questions"
GML = b"""graph [ directed 1 node [ id 0 label "a" ] node [ id 1 label "b" ]
edge [ source 0 target 1 ] ]"""
RUNS = b"layers,hidden,seq_len,gpu,num_gpus\n32,4096,2048,H100,64\n24,2048,1024,A100 80GB,8\n"
QUESTIONS = b"collective,nodes,gpus_per_node,size_bytes\nall_reduce,2,8,1048576\n"
Seeds = Callable[[], list[bytes]]


@dataclass(frozen=True)
class Reader:
    """What reads a file of this name, or words if there is none, and what it reads well."""

    read: Callable[[Any], object]
    seeds: Seeds
    file: str = ""


def _kept(*paths: Path, lines: int | None = None) -> Seeds:
    """Return the first lines of files, unpacked; the whole files without a number of lines."""

    def read(path: Path) -> bytes:
        content = path.read_bytes()
        if lines is None:
            return content
        content = gzip.decompress(content) if path.suffix == ".gz" else content
        return b"".join(content.splitlines(keepends=True)[:lines])

    return lambda: [read(path) for path in paths]


def _json(*things: Any) -> Seeds:
    return lambda: [json.dumps(thing).encode() for thing in things]


def _words(read: Callable[[str], object], *texts: str) -> Reader:
    return Reader(read, lambda: [text.encode() for text in texts])


def _traced(path: Path) -> object:
    found = read_trace(path)
    if isinstance(found, KinetoTrace):
        for ask in (KinetoTrace.timeline, lambda one: one.operations, lambda one: one.gpu_times):
            with suppress(InputError):  # not all is in every trace
                ask(found)
    return found


def _beside(name: str, read: Callable[[Path], object]) -> Callable[[Path], object]:
    """Read the folder of this path: other files of a measurement are as they are kept."""

    def reader(path: Path) -> object:
        for kept in MEASURED.iterdir():
            if kept.name != name and not (path.parent / kept.name).exists():
                (path.parent / kept.name).symlink_to(kept)
        return read(path.parent)

    return reader


def _measurement(name: str) -> Reader:
    return Reader(_beside(name, read_micro_benchmark), _kept(MEASURED / name), name)


def _plans() -> list[bytes]:
    workload = ddlnb.read_profile("small-conv_b64_cpu-1thread")
    plans = [ddlnb.get_method(name).plan(workload) for name in ("WFBP-A2A", "BSP-PS")]
    return [plan_to_json(plan).encode() for plan in plans]


def _infragraphs() -> list[bytes]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "network.yaml")
        write_infragraph(get_topology("two-tier(2, 2)").network(1.25e9, 1e-6), path)
        return [path.read_bytes()]


def _launched(path: Path) -> object:
    launch = read_launch(path, nodes=2, gpus_per_node=8)
    return launch.layout, launch.model


def _setup(path: Path) -> object:
    return read_setup(path, {name: fig4_workload(name) for name in BATCHES})


def _packed(seeds: Seeds) -> Seeds:
    return lambda: [gzip.compress(seed) for seed in seeds()]


_EVENTS = _json(
    *({"schemaVersion": 1, "traceEvents": made()} for made in (two_streams, one_iteration))
)
_LOGS = [logs.STARTED + logs.DEVICES + table for table in (logs.WITH_ROOT, logs.WITHOUT_ROOT)]
_PROFILE = _kept(DATA / "profiles" / "small-conv_b64_cpu-1thread.json")
_MODELS = _kept(*sorted((DATA / "models" / "large").glob("*.json"))[:4])
_TABLE = _kept(DATA / "forecasts" / "fig4.csv", lines=40)

READERS: dict[str, Reader] = {
    "plan": Reader(read_plan, _plans, "plan.json"),
    "profile": Reader(lambda path: resolve(str(path)), _PROFILE, "profile.json"),
    "profile by name": Reader(
        lambda path: ddlnb.read_profile(path.stem, path.parent), _PROFILE, "mine.json"
    ),
    "compression profile": Reader(
        lambda path: compression_profile(path.stem, path.parent),
        _kept(DATA / "profiles" / "compression" / "cpu-1thread.json"),
        "mine.json",
    ),
    "Hugging Face": Reader(task_of_file, _MODELS, "config.json"),
    "large model": Reader(read_config, _MODELS, "config.json"),
    "Horovod trace": Reader(_traced, _json(HOROVOD, {"traceEvents": HOROVOD}), "trace.json"),
    "BytePS trace": Reader(_traced, _json({"traceEvents": BYTEPS}), "comm.json"),
    "GPU trace": Reader(_traced, _EVENTS, "gpu.json"),
    "packed trace": Reader(_traced, _packed(_EVENTS), "gpu.json.gz"),
    "graph trace": Reader(_traced, lambda: [GML], "dag.gml"),
    "job trace": Reader(_traced, _kept(JOB, lines=200), "job.csv"),
    "packed job trace": Reader(_traced, _packed(_kept(JOB, lines=200)), "job.csv.gz"),
    "collective log": Reader(
        lambda path: read_collective_logs(path, Facts(nodes=2, gpus_per_node=2)),
        lambda: [log.encode() for log in (*_LOGS, logs.OSU)],
        "run.log",
    ),
    "job's log": Reader(
        lambda path: read_collective_logs(path, Facts(gpu="H100", nodes=2, gpus_per_node=8)),
        _kept(*(LOGGED / name for name in ("recorder/rank0.json", "inspector.jsonl", "comms.log"))),
        "job.log",
    ),
    "topology of NCCL": Reader(
        lambda path: topology_facts(xml_of(read_text(path), path), path),
        _kept(LOGGED / "topology.xml"),
        "topology.xml",
    ),
    "collective probe": Reader(
        read_collective_logs, _kept(MEASURED / "all_reduces.json"), "all_reduces.json"
    ),
    "micro benchmark, all-reduces": _measurement("all_reduces.json"),
    "micro benchmark, profile": _measurement("probe-deep_2-workers.json"),
    "micro benchmark, load": _measurement("load.csv"),
    "saved run": Reader(
        read_saved_run, _json({"task": ["a"], "method": ["b"], "learning_rate": [0.1]}), "run.json"
    ),
    "cluster": Reader(read_cluster, _kept(*sorted(CLUSTERS.glob("*.yaml"))), "mine.yaml"),
    "launch script": Reader(_launched, _kept(LAUNCHES / "megatron.sh"), "run.sh"),
    "launch TOML": Reader(_launched, _kept(LAUNCHES / "titan.toml"), "run.toml"),
    "launch JSON": Reader(_launched, _json(DEEPSPEED_JSON), "ds.json"),
    "launch YAML": Reader(
        _launched, lambda: [NANOTRON_YAML.encode(), ACCELERATE_YAML.encode()], "run.yaml"
    ),
    "training log": Reader(
        read_training_log, _kept(LAUNCHES / "megatron.log", LAUNCHES / "titan.log"), "train.log"
    ),
    "setup": Reader(_setup, _kept(CALIBRATION / "survey.yaml"), "setup.yaml"),
    "InfraGraph": Reader(read_infragraph, _infragraphs, "network.yaml"),
    "rows": Reader(read_rows, _kept(MEASURED / "rows.csv"), "rows.csv"),
    "table": Reader(read_table, _kept(DATA / "published" / "fig4.csv", lines=40), "table.csv"),
    "forecast": Reader(read_forecast, _TABLE, "forecast.csv"),
    "cells": Reader(read_cells, _TABLE, "cells.csv"),
    "frame": Reader(read_frame, _TABLE, "frame.csv"),
    "collectives": Reader(read_collectives, _kept(OPEN_ROWS, lines=50), "open.csv"),
    "collective questions": Reader(
        lambda path: completed(read_questions(path)), lambda: [QUESTIONS], "questions.csv"
    ),
    "table of runs": Reader(forecast_table, lambda: [RUNS], "runs.csv"),
    "--set": _words(
        lambda text: parameters_from([text]),
        *("iterations=4", "options={launcher: ssh, hosts: [a, b]}", "date=2001-01-01"),
    ),
    "bytes": _words(bytes_from, "4MB", "1 MiB", "4096"),
    "seconds": _words(seconds_from, "1.5 ms", "3e4 us"),
    "bandwidth": _words(bandwidth_from, "10Gb/s", "unlimited", "4.6 GB/s"),
    "quantity": _words(quantity_from, "34 us", "8 Gb/s"),
    "layout": _words(Layout.parse, "dp8 tp2 pp4 zero1 mb2 acc16", "dp4 order=tp-cp-dp-pp full"),
    "topology": _words(
        get_topology, "star(4)", "two-tier(2, 2, oversubscription=2.0)", "rail-optimised(2, 4)"
    ),
    "compressor": _words(get_compressor, "top-k(0.01)", "powersgd(4)", "dgc(0.001, warm_up=64)"),
    "synchronisation": _words(get_synchronisation, "ssp(3)", "local(8)", "bsp"),
    "method": _words(ddlnb.get_method, "MG-WFBP", "ByteScheduler-A2A"),
    "network change": _words(network_change, "1Gbps-50us from 3"),
    "interconnect": _words(described, "200 Gb/s InfiniBand", "100GbE", "200GbIB"),
    "GPU": _words(get_gpu, "H100", "A100 80GB"),
}

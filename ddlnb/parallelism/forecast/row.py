"""A row of a table of runs: its cells, and the hardware and the program that they name.

What a cell leaves open is taken from a default, which the row notes.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache

from ddlnb.clusters.named import usual_network
from ddlnb.errors import InputError, UnknownName
from ddlnb.hardware.catalogue import (
    get_gpu,
    get_interconnect,
    gpu_in,
    gpus,
    protocol_of,
    stated_rate,
)
from ddlnb.hardware.gpu import Gpu
from ddlnb.hardware.machine import Interconnect
from ddlnb.parallelism.forecast.cases import RECOMPUTATIONS
from ddlnb.parallelism.forecast.frameworks import FRAMEWORKS, Framework, framework_in
from ddlnb.parallelism.forecast.words import (
    SHARDING,
    again_in,
    columns_meant,
    meaning,
    month_in,
    precision_in,
    zero_in,
    zero_of_framework,
)
from ddlnb.units import GIB

EMPTY = {"", "nan", "none", "null", "na", "n/a", "not stated", "-"}
YES = {"1", "1.0", "true", "yes"}
NO = {"0", "0.0", "false", "no"}
MOST = 1e12  # of anything that runs count


@dataclass(frozen=True)
class Row:
    """A row of a table: its number, as an editor counts lines, and its cells.

    ``notes`` counts what rows left open by column and by what was taken instead.
    """

    line: int
    cells: Mapping[str, str]
    notes: Counter[tuple[str, str]] = field(default_factory=Counter)

    @classmethod
    def of(cls, line: int, columns: Mapping[str, str], notes: Counter[tuple[str, str]]) -> Row:
        """Return a row whose columns may have the names that others give them."""
        cells = columns_meant(columns)
        for column, cell in columns.items():
            name = meaning(column)
            if name not in (column, column.lower()) and name not in columns and cell:
                notes[f"the column {name}", f"that of {column!r}"] += 1
        return cls(line, cells, notes)

    def text(self, *columns: str) -> str:
        """Return the first of these columns that has a value, otherwise ''."""
        values = (str(self.cells.get(column) or "").strip() for column in columns)
        return next((value for value in values if value.lower() not in EMPTY), "")

    def number(self, *columns: str, default: float | None = None, told: str = "") -> float:
        """Return a number above 0; ``told`` says what a default is."""
        text = self.text(*columns)
        if not text:
            if default is None:
                raise self.error(columns[0], "is missing; fill it in")
            self.notes.update([(columns[0], told)] if told else [])
            return default
        try:
            value = float(text.replace(",", ""))
        except ValueError:
            value = math.nan
        if not 0 < value < math.inf:
            raise self.error(columns[0], f"{text!r} must be a number above 0")
        return value

    def whole(self, *columns: str, default: int | None = None, told: str = "") -> int:
        """Return a whole number above 0, also one written as 8.0."""
        value = self.number(*columns, default=default, told=told)
        if value != round(value):
            raise self.error(columns[0], f"{value!r} must be a whole number")
        if value > MOST:
            raise self.error(columns[0], f"{value:g} must be at most {MOST:g}")
        return round(value)

    def ranks(self, usual: int) -> int:
        """Return how many GPUs a run has: what a row says, or its nodes times those of each.

        ``usual`` are those of a node that the row does not tell.
        """
        if self.text("num_gpus") or not self.text("nodes"):
            ranks = self.whole("num_gpus")
            if self.text("nodes") and self.whole("nodes") != math.ceil(ranks / usual):
                self.notes["nodes, which do not fit num_gpus", "num_gpus"] += 1
            return ranks
        each = self.whole("gpus_per_node", default=usual, told=str(usual))
        self.notes["num_gpus", "nodes * gpus_per_node"] += 1
        return self.whole("nodes") * each

    def flag(self, *columns: str, usual: bool) -> bool:
        """Return whether a column says 1 rather than 0, and what is usual where none does."""
        said = self.text(*columns).lower()
        if said not in YES | NO | {""}:
            raise self.error(columns[0], f"{said!r} must be 0 or 1")
        return said in YES or (not said and usual)

    def error(self, column: str, problem: str) -> InputError:
        """Return an error that names the row and the column."""
        return InputError(f"row {self.line}, column {column}: {problem}")


def network_of(row: Row, gpu: Gpu, per_node: int) -> dict[str, float]:
    """Return bytes/s of a node to others: ``across`` by the line, ``sockets`` over TCP.

    And ``hop``, the seconds of the latency between nodes.

    A protocol that the words do not name is the usual one for the GPU.
    """
    words = row.text("network")
    named = _named(words)
    across = _line_rate(row, words, named, gpu.port, per_node)
    if across is None:
        told = f" (network {words!r})" if words else ""
        row.notes[f"the rate of the network{told}", f"that of the ports usual for {gpu.name}"] += 1
        across = gpu.port * per_node
    usual = get_interconnect(usual_network(gpu, per_node))
    joined = named or replace(usual, protocol=protocol_of(words) or usual.protocol)
    ports = max(1, round(across / joined.port_rate))
    sockets = replace(joined, ports=ports).socket_bandwidth
    return {"across": across, "sockets": sockets, "hop": joined.latency.value}


@lru_cache(maxsize=256)
def _named(words: str) -> Interconnect | None:
    try:
        return get_interconnect(words) if words else None
    except InputError:
        return None


def _line_rate(
    row: Row, words: str, named: Interconnect | None, port: float, per_node: int
) -> float | None:
    """Return the bytes/s of a node that words say, with ``port`` those of a GPU as it is sold.

    That of several ports is a node's, and so is one over EFA or TCP. Another one that is small for
    a node is that of a GPU's port, or says nothing of a node where a GPU's port has less.
    """
    stated = stated_rate(words)
    if named is not None:
        rate = named.line_rate
    elif stated is not None and stated.port_rate:
        rate = stated.port_rate * (stated.ports or 1)
    else:
        return None
    if "per gpu" in words.lower():
        return rate * per_node
    is_counted = stated.ports if stated else named and named.ports > 1
    is_of_node = named is not None and named.protocol.name in ("EFA", "TCP")
    if is_counted or is_of_node or "node" in words.lower() or rate >= port * per_node / 2:
        return rate
    if rate > port:
        return None
    row.notes[f"a rate per node (network {words!r})", "that of one GPU's port"] += 1
    return rate * per_node


# What takes the place of a framework that is not known: the kinds of those that are.
ANY = ("nemo", "fsdp", "megatron")
SPLITTING = ("nemo", "internevo", "fsdp-compiled")  # models, on newer GPUs
NEWER = 2022  # the year of GPUs that the kernels of 2021 were never run on
TODAY = "9999-12"  # later than any month since which a framework has been another


def frameworks_of(row: Row, gpu: Gpu) -> tuple[str, ...]:
    """Return the framework that a row names, or those that an unknown one may be like.

    One without a date, in its words or elsewhere, is today's on GPUs that the older was never run
    on.
    """
    words = row.text("framework")
    written = row.text("software") or ("eager" if "eager" in row.text("notes") else "")
    said = f"{words} {row.text('framework_version')} {written}"
    told = re.search(r"\((20[0-2]\d)\)", words)  # megatron (2021)
    month = month_in(row.text("source_date") or (told[1] if told else ""))
    found = framework_in(said, month)
    if found and not month and gpu.year >= NEWER and found != (newer := framework_in(said, TODAY)):
        row.notes[f"a date (framework {words!r}, {gpu.name})", f"the {newer} of today"] += 1
        return (newer,)
    if found:
        return (found,)
    if "framework" not in row.cells:
        row.notes["framework", "nanotron"] += 1
        return ("nanotron",)
    whole = row.whole("tp", default=1) * row.whole("pp", default=1) == 1
    some = tuple(
        name
        for name in ANY
        if (whole or FRAMEWORKS[name].splits_models)
        and (FRAMEWORKS[name].in_use or gpu.year < NEWER)
    )
    some = some if len(some) > 1 else SPLITTING
    what = f"a known framework ({words})" if words else "framework"
    row.notes[what, f"a mixture of {', '.join(some)}"] += 1
    return some


def recomputations_of(row: Row, ways: Framework) -> dict[int, float]:
    """Return what a run may compute again, with the share of runs that do."""
    said = str(row.cells.get("activation_checkpointing") or "").strip().lower()
    said = "" if said in EMPTY - {"none"} else said
    if said and (again := again_in(said)) is not None:
        return {again: 1.0}
    if said or max(ways.unstated) < 1:
        what = f"a known activation_checkpointing ({said})" if said else "activation_checkpointing"
        row.notes[what, "a mixture, by what fits"] += 1
    return dict(zip(RECOMPUTATIONS, ways.unstated, strict=True))


def zero_of(row: Row, ways: Framework) -> int:
    """Return the degree of ZeRO that a row says, in a number or in words, or its framework's."""
    column = next((one for one in ("zero_stage", "zero", "sharding") if row.text(one)), None)
    if column is None:
        said = zero_of_framework(row.text("framework"))
        return ways.zero if said is None else said
    text = row.text(column)
    zero = zero_in(text)
    if zero is None:
        listed = ", ".join(SHARDING)
        raise row.error(column, f"{text!r} must be 0, 1, 2 or 3, or one of {listed}")
    return zero


WATTS = re.compile(r"(\d+) W\b")  # H100 (500 W)


def gpu_of(row: Row) -> Gpu:
    """Return the GPU that a row names, with the power that it says. Raises InputError."""
    text = row.text("gpu")
    if not text:
        raise row.error("gpu", "is missing; fill it in")
    try:
        return get_gpu(text)
    except InputError:
        found = _gpu_in(text)
    if found is None:
        raise UnknownName(f"GPU in row {row.line}", text, gpus())
    if watts := WATTS.search(text):
        found = replace(found, power=float(watts[1]))
    row.notes[f"the usual name of the GPU {text!r}", found.name] += 1
    return found


@lru_cache(maxsize=256)
def _gpu_in(words: str) -> Gpu | None:
    """Return the GPU whose family these words have, with the memory that they name, if any."""
    families = sorted({gpu.family for gpu in gpus().values()}, key=len, reverse=True)
    said = words.upper()
    memory = re.search(r"(\d+)\s*G(?:I?B)?\b", said)
    whole = gpu_in(words)
    if whole and (not memory or whole.memory == int(memory[1]) * GIB):
        return whole
    for family in families:
        if not re.search(rf"(?<![A-WYZ0-9]){re.escape(family.upper())}(?![0-9])", said):
            continue
        for name in ([f"{family}-{memory[1]}GB"] if memory else []) + [family]:
            try:
                found = get_gpu(name)
            except UnknownName:
                continue
            return replace(found, memory=int(memory[1]) * GIB) if memory else found
    return None


def precision_of(row: Row, gpu: Gpu) -> str:
    """Return the precision that a row or its notes name, or what is usual on the GPU."""
    told = [row.text(one) for one in ("precision", "notes")]
    if found := next(filter(None, map(precision_in, told)), ""):
        return found
    usual = "bf16" if "bf16" in gpu.flops else "fp16"
    row.notes[f"a known precision ({told[0]})" if told[0] else "precision", usual] += 1
    return usual

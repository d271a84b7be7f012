"""Forecasts of a table of runs: a CSV in, the same rows with what is forecast out.

Every cell of a row is read and checked, or taken from a default, which is said.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from ddlnb.errors import InputError, require
from ddlnb.files import write_atomically
from ddlnb.hardware.machine import joined_by_nvlink
from ddlnb.parallelism.config import read_config, shape_in
from ddlnb.parallelism.forecast.cases import (
    DESCRIBED,
    Cases,
    gpu_columns,
    model_columns,
    shards_within,
)
from ddlnb.parallelism.forecast.forecast import rate
from ddlnb.parallelism.forecast.frameworks import FRAMEWORKS, Framework, framework_in
from ddlnb.parallelism.forecast.layouts import Ranking
from ddlnb.parallelism.forecast.mixture import Open, mixed
from ddlnb.parallelism.forecast.question import MOST_SEQUENCES, LayoutQuestion
from ddlnb.parallelism.forecast.row import (
    TODAY,
    Row,
    frameworks_of,
    gpu_of,
    network_of,
    precision_of,
    recomputations_of,
    zero_of,
)
from ddlnb.parallelism.forecast.words import (
    affirmed,
    has_adapters,
    meaning,
)
from ddlnb.parallelism.model import MOST_LAYERS, Transformer
from ddlnb.parallelism.schedules import INTERLEAVED, INTERLEAVES, SCHEDULES
from ddlnb.reading import read_text, reading
from ddlnb.units import counted

GATED = (
    *("llama", "mistral", "mixtral", "qwen", "gemma", "deepseek", "nemotron"),
    *("baichuan", "internlm", "olmo"),
)
EXPERTS = re.compile(r"(\d+)x\d+(?:\.\d+)?b", re.IGNORECASE)  # mixtral-8x7b
TOP_K = 2  # experts of a token, where nobody says


def case(row: Row) -> dict[str, Any]:
    """Return the columns of `Cases` for one row. Raises InputError that names row and column."""
    return alternatives(row)[0][1]


Weighted = tuple[float, dict[str, Any]]  # the share of runs, and columns of `Cases`


def alternatives(row: Row) -> list[Weighted]:
    """Return what a row may mean, the likeliest first: columns of `Cases` with their shares.

    Several where it names no framework that is known, or not what is computed again. Raises
    InputError that names row and column.
    """
    gpu = gpu_of(row)
    frameworks = frameworks_of(row, gpu)
    per_node = row.whole("gpus_per_node", default=gpu.gpus_per_node or 8)
    ranks = row.ranks(per_node)
    domain = row.whole("nvlink_domain", default=max(gpu.nvlink_domain, 1))
    together = joined_by_nvlink(domain, per_node, ranks)
    model = _model_named(row) or _model(row) | DESCRIBED
    row = replace(row, cells={**row.cells, "layers": str(model["layers"])})
    precision = precision_of(row, gpu)
    if precision not in gpu.flops:
        raise row.error("precision", f"{gpu.name} has no rate for {precision}; use another one")
    network = network_of(row, gpu, per_node)
    rates = {name: network[name] * together / per_node for name in ("across", "sockets")}
    machines = {"gpus_per_node": together, **gpu_columns(gpu, precision), **network, **rates}
    found = []
    for name in frameworks:
        ways = FRAMEWORKS[name]
        columns = {**model, **_layout(row, ways, ranks), **machines, "framework": name}
        columns["ep"] = _expert_ranks(row, columns)
        columns["shard"] = _shard(row, columns)
        batches = _batches(row, columns["dp"], columns["pp"])
        for (again, often), batch in product(recomputations_of(row, ways).items(), batches):
            share, *sizes = batch
            if ways.splits_batches and columns["pp"] > 1 and sizes[1] == 1:
                sizes.reverse()
            own = {"recomputation": again, "micro_batch": sizes[0], "micro_batches": sizes[1]}
            if often:
                found.append((share * often / len(frameworks), columns | own))
    return sorted(found, key=lambda one: -one[0])


def cases(rows: Sequence[Row]) -> Cases:
    """Return the cases of rows."""
    return joined([case(row) for row in rows])


def read_open(found: Sequence[Sequence[Weighted]]) -> Open:
    """Return rows, each with all that it may mean (`alternatives`)."""
    each = [(i, *one) for i, row in enumerate(found) for one in row]
    owner, share, columns = zip(*each, strict=True)
    return Open(joined(columns), np.array(owner), np.array(share))


def joined(columns: Sequence[Mapping[str, Any]]) -> Cases:
    """Return cases of columns with a number each."""
    return Cases.of(**{name: [one[name] for one in columns] for name in columns[0]})


SIZES = ("layers", "hidden", "heads", "kv_heads", "vocab", "experts")
SHARED = 2  # experts that every token goes through, which some count and some do not
OF_NAME = re.compile(r"(?<![\dx.])(\d+(?:\.\d+)?)\s*b\b", re.IGNORECASE)  # Yi-34B


def _model_named(row: Row) -> dict[str, Any] | None:
    """Return the columns of a model that has a name or a file, None where cells contradict it.

    Where cells give no more than layers, these are so many layers of it.
    """
    shape = _shape_of_file(row) or _shape_in(row.text("model"))
    if shape is None:
        return None
    tokens = row.whole("seq_len", "sequence")
    named = model_columns(replace(shape, sequence=tokens))
    sizes = SIZES if named["experts"] > 1 else (*SIZES, "ffn")
    given = {name: row.whole(name) for name in sizes if row.text(name)}
    if not given.keys() - {"layers"}:
        if row.text("model") not in (shape.name, f"{shape.name}.json"):
            row.notes[f"the shape of {row.text('model')}", f"that of {shape.name}"] += 1
        named |= given
    other = {name for name, value in given.items() if named[name] != value}
    if other == {"experts"} and abs(given["experts"] - named["experts"]) <= SHARED:
        return named
    if other <= {"vocab"}:  # which programs fill up, or cut
        return named | {name: given[name] for name in other}
    listed = ", ".join(sorted(other))
    row.notes[f"the shape of {shape.name} (other {listed})", "that of the cells alone"] += 1
    return None


_shape_in = lru_cache(maxsize=256)(shape_in)


def _shape_of_file(row: Row) -> Transformer | None:
    path = Path(row.text("model"))
    if path.suffix.lower() != ".json":
        return None
    if not path.is_file():
        row.notes[f"the file {str(path)!r}", "what the row says of the model"] += 1
        return None
    try:
        return read_config(path)
    except InputError as error:
        raise row.error("model", str(error)) from error


def _model(row: Row) -> dict[str, int]:
    if row.text("model") and not row.text("layers"):
        problem = f"is missing, and {row.text('model')!r} is no model that is known by name"
        raise row.error("layers", f"{problem} (`ddlnb models --large`); fill in layers and hidden")
    layers, hidden = row.whole("layers"), row.whole("hidden")
    if layers > MOST_LAYERS:
        raise row.error("layers", f"{layers:,} exceed {MOST_LAYERS:,}, the most of a model")
    heads = row.whole("heads", default=max(1, hidden // 128), told="hidden / 128")
    model = {
        "layers": layers,
        "hidden": hidden,
        "heads": heads,
        "kv_heads": row.whole("kv_heads", default=heads, told="heads"),
        "ffn": row.whole("ffn", default=4 * hidden, told="4 hidden"),
        "vocab": row.whole("vocab", default=51200, told="51200"),
        "sequence": row.whole("seq_len", "sequence"),
    }
    stated = OF_NAME.search(row.text("model")) if not row.text("params_b") else None
    billions = float(stated[1]) if stated else 0.0
    billions = row.number("params_b") if row.text("params_b") else billions
    gated, tied = _kind(row, model, billions)
    tied = 1 - gated if stated else tied  # the head is less than what a name rounds away
    experts = _experts(row, model, billions)
    top_k = row.whole("top_k", default=min(TOP_K, experts), told="2" if experts > TOP_K else "")
    return model | {"gated": gated, "tied": tied, "experts": experts, "top_k": top_k}


def _kind(row: Row, model: Mapping[str, float], billions: float) -> tuple[int, int]:
    """Return whether the model is gated and tied: what comes nearest to its parameters.

    A name of a gated family decides the first; two kinds can have the same number of parameters.
    """
    hidden, head = model["hidden"], model["vocab"] * model["hidden"]
    attention = 2 * hidden**2 * (1 + model["kv_heads"] / model["heads"])

    def off(kind: tuple[int, int]) -> float:
        gated, tied = kind
        layer = attention + (2 + gated) * hidden * model["ffn"]
        return abs(math.log((model["layers"] * layer + (2 - tied) * head) / 1e9 / billions))

    named = any(word in row.text("model").lower() for word in GATED)
    if not billions:
        return (1, 0) if named else (0, 1)
    return min(product((1,) if named else (0, 1), (0, 1)), key=off)


def _experts(row: Row, model: Mapping[str, float], billions: float) -> int:
    """Return the experts of a layer, 1 for a dense model.

    A name such as 8x7b says how many there are, otherwise the parameters do where ep is above 1.
    """
    if row.text("experts"):
        return row.whole("experts")
    if found := EXPERTS.search(row.text("model")):
        return int(found[1])
    if not billions or row.whole("ep", default=1) == 1:
        return 1
    gated, _ = _kind(row, model, 0.0)
    each = model["layers"] * (2 + gated) * model["hidden"] * model["ffn"] / 1e9
    return max(1, round(billions / each))


def _layout(row: Row, ways: Framework, ranks: int) -> dict[str, Any]:
    tp, pp, cp = (row.whole(axis, default=1) for axis in ("tp", "pp", "cp"))
    if ranks % (tp * pp * cp):
        raise row.error("num_gpus", f"{ranks} is no multiple of tp {tp} * pp {pp} * cp {cp}")
    dp = row.whole("dp", default=ranks // (tp * pp * cp))
    ep = row.whole("ep", default=1)
    if ep > 1 and dp * ep * tp * pp * cp == ranks:
        row.notes["a dp that counts the ranks that share experts", "dp * ep"] += 1
        dp *= ep
    if dp * tp * pp * cp != ranks:
        raise row.error("dp", f"dp {dp} * tp {tp} * pp {pp} * cp {cp} is not num_gpus {ranks}")
    schedule, chunks = _schedule(row, pp)
    checkpointing = row.text("activation_checkpointing").lower()
    split = "sequence" in checkpointing or ways.splits_sequences
    return {
        "tp": tp,
        "pp": pp,
        "dp": dp,
        "cp": cp,
        "ep": ep,
        "vpp": chunks,
        "schedule": schedule,
        "overlap": float(row.flag("overlap", usual=ways.overlaps)),
        "zero": zero_of(row, ways),
        "sequence_parallel": float(row.flag("sp", "sequence_parallel", usual=split)),
        "adapters": float(has_adapters(row.text("training", "table", "notes"))),
    }


def _expert_ranks(row: Row, columns: Mapping[str, Any]) -> int:
    """Return over how many ranks experts are spread: a divisor of both, where a row has more."""
    ep, experts = int(columns["ep"]), int(columns["experts"])
    if ep == 1 or experts == 1:
        return ep
    found = math.gcd(ep, math.gcd(experts, int(columns["dp"] * columns["tp"] * columns["cp"])))
    if found < ep:
        row.notes[f"an ep that {experts} experts and the ranks have ({ep})", f"{found}"] += 1
    return found


def _schedule(row: Row, pp: int) -> tuple[str, int]:
    """Return the pipeline schedule and the chunks of a stage, 1f1b and 1 where nothing is said.

    Interleaved stages of whose chunks nothing is said have one layer in each.
    """
    own = row.text("schedule").lower()
    said = affirmed(" ".join(row.text(one) for one in ("framework", "table", "notes"))).lower()
    named = [
        name
        for words in (own, said)
        for name, one in reversed(SCHEDULES.items())
        if re.search(one.words or re.escape(name), words)
    ]
    if own and not named:
        row.notes[f"a known schedule ({row.text('schedule')})", "1f1b"] += 1
    name = named[0] if named else "1f1b"
    chunks = row.whole("vpp", default=1)
    is_chunked = SCHEDULES[name].chunked
    if pp > 1 and is_chunked and not row.text("vpp"):
        row.notes[f"vpp (of an {name} schedule)", "one layer per chunk"] += 1
        chunks = -(-row.whole("layers") // pp)
    if chunks > 1 and not is_chunked and name != INTERLEAVES:
        row.notes[f"a schedule with chunks (vpp) that is {name}", "that schedule without them"] += 1
        chunks = 1
    if is_chunked != (chunks > 1):
        name = INTERLEAVES if is_chunked else INTERLEAVED
    return name, chunks


def _batches(row: Row, dp: int, pp: int) -> list[tuple[float, int, int]]:
    """Return the micro batch and how many of them a step has, with the share of runs that do so.

    What is missing follows from others. Where only the batch is known, replicas without a pipeline
    may compute all of theirs at once, or one sequence after the other; pipelines take one sequence.
    """
    columns = ("micro_batch", "grad_accum", "global_batch_seqs")
    micro, accumulated, whole = (row.whole(one) if row.text(one) else 0 for one in columns)
    if whole > MOST_SEQUENCES:
        problem = f"{whole:,} must be at most {MOST_SEQUENCES:,} sequences; is it tokens?"
        raise row.error("global_batch_seqs", f"{problem} Divide these by the sequence")
    each = max(1, whole // dp)
    if not micro and not accumulated and pp == 1 and each > 1:
        row.notes["micro_batch", "the whole batch of a replica, or 1"] += 1
        return [(0.5, each, 1), (0.5, 1, each)]
    if whole and accumulated and micro and dp * micro * accumulated != whole:
        row.notes["a grad_accum that makes the batch", "what the batch says"] += 1
        accumulated = 0
    if not micro and not (whole and accumulated):
        row.notes["micro_batch", "1"] += 1
    if not accumulated and not whole:
        row.notes["grad_accum", "1"] += 1
    micro = micro or max(1, whole // (dp * accumulated) if accumulated else 1)
    number = accumulated or max(1, round(whole / (dp * micro)))
    if whole and dp * micro * number != whole:
        multiple = f"a multiple of dp {dp} * micro_batch {micro} (batch {whole:,})"
        row.notes[multiple, f"{dp * micro * number:,}"] += 1
    return [(1.0, micro, number)]


def _shard(row: Row, columns: Mapping[str, Any]) -> int:
    """Return over how many ranks hybrid sharding shards: those of a host; 0 without."""
    replicas = columns["dp"] * columns["cp"]
    host = row.whole("gpus_per_node", default=int(columns["gpus_per_node"]))
    if not re.search("hybrid|hsdp", row.text("sharding").lower()) or not columns["zero"]:
        return 0
    shards = shards_within(host, columns["tp"], replicas) if columns["ep"] == 1 else 0
    if not shards and replicas > 1:
        row.notes["replicas that hybrid sharding divides", "sharding over all of them"] += 1
    return shards


def as_runs(
    asked: LayoutQuestion, ranking: Ranking, top: int, called: str = ""
) -> list[dict[str, Any]]:
    """Return the best splits of a ranking as rows of a table of runs, with what is forecast.

    `forecast_table` forecasts the same of them where framework and model are named, up to slow
    runs, over which throughput is a mean here and a median there. A model that tables do not know
    is told by its file where it is ``called`` by one (``.json``), otherwise by its sizes, of which
    some have no column: how wide heads are, shared experts. ``memory_gb`` is what runs report (GiB,
    of one rank).
    """
    model, reported = asked.model, ranking.outlook.memory_gib
    columns = model_columns(model) if _shape_in(model.name) != model else {}
    sizes = {name: round(columns[name]) for name in (*SIZES, "ffn", "top_k") if name in columns}
    sizes |= {"params_b": model.shape.parameters / 1e9} if sizes else {}
    path = Path(called, "config.json") if Path(called, "config.json").is_file() else Path(called)
    name = str(path) if sizes and path.suffix.lower() == ".json" else model.name
    told = {"model": name, **sizes, "seq_len": asked.sequence, "gpu": asked.gpu.name}
    told |= {"num_gpus": asked.gpus, "gpus_per_node": asked.gpus_per_node}
    told |= {"network": asked.joined.name, "framework": _told(asked.framework)}
    told |= {"precision": asked.precision}
    if asked.overlap is not None:
        told["overlap"] = int(asked.overlap)
    best = ranking.best_of_splits()[:top]
    rows = []
    for index, row in zip(best, ranking.rows(top), strict=True):
        one = ranking.layout(index)
        split = {axis: getattr(one, axis) for axis in ("dp", "tp", "pp", "cp", "ep", "vpp")}
        batch = {"micro_batch": one.micro_batch, "grad_accum": one.micro_batches}
        rows.append(
            {
                "layout": row["layout"],
                **told,
                **split,
                "schedule": one.schedule,
                "sp": int(one.sequence_parallel),
                "zero_stage": one.zero,
                "sharding": "hybrid_shard" if one.shard else "",
                **batch,
                "global_batch_seqs": asked.global_batch,
                "activation_checkpointing": one.recomputation,
                **{name: row[name] for name in ("tokens_per_s_per_gpu", "low", "high")},
                "memory_gb": float(reported[index]),
                "fits": True,
                **{name: row[name] for name in ("chance_of_slow", "seconds", "mfu", "loses_by")},
            }
        )
    return rows


def _told(framework: str) -> str:
    """Return the words for a framework that tables mean by it, also where a later one has them."""
    later = FRAMEWORKS.get(framework_in(framework, TODAY))
    if not framework or later is None or later.name == framework:
        return framework
    return f"{framework} ({int(later.later[0][:4]) - 1})"


ADDED = ("tokens_per_s_per_gpu", "low", "high", "memory_gb", "fits")
FURTHER = ("tokens_per_s_per_gpu_not_slow", "chance_of_slow", "chance_of_fit", "seconds", "mfu")
NEEDED = ("seq_len", "gpu", "num_gpus")


@dataclass(frozen=True)
class Table:
    """A table of runs with forecasts: its columns, its rows, and what was said while reading."""

    columns: tuple[str, ...]
    rows: tuple[dict[str, str], ...]
    notes: tuple[str, ...]
    failed: tuple[str, ...]

    def write(self, path: Path) -> Path:
        """Write it as CSV and return the path. Raises NotWritten."""
        text = io.StringIO()
        writer = csv.DictWriter(text, self.columns, lineterminator="\n", extrasaction="ignore")
        writer.writeheader()
        writer.writerows(self.rows)
        return write_atomically(path, text.getvalue())


def forecast_table(
    path: Path,
    *,
    keep_going: bool = False,
    say: Callable[[str], None] = lambda line: None,
) -> Table:
    """Return the rows of a CSV file, with throughput, its 90 % interval, memory and fit added.

    ``tokens_per_s_per_gpu`` is the median over slow runs and others; that of a run that is not slow
    and the chance of a slow one stand beside it. ``memory_gb`` is in GiB, of the rank that
    runs of the framework report: nanotron's of the first stage, others of the fullest. Answers that
    the file has already are replaced. ``say`` is called with every line of what was taken where
    cells are missing. With ``keep_going`` bad rows stay without a forecast.
    Raises InputError that names file, row and column.
    """
    columns, rows, surplus = _read(path)
    notes: Counter[tuple[str, str]] = Counter()
    known: dict[int, list[Weighted]] = {}
    failed: list[str] = []
    for index, cells in enumerate(rows):
        if not any(cells.values()):  # as a spreadsheet leaves them
            continue
        row = Row.of(index + 2, cells, Counter())
        try:
            if index in surplus:
                more = f"is followed by {', '.join(map(repr, surplus[index]))}, of no column"
                raise row.error(columns[-1], f"{more}; quote a cell that has a comma")
            known[index] = alternatives(row)
            notes.update([*row.notes])  # once, whatever the row may mean
        except InputError as error:
            if not keep_going:
                raise
            failed.append(str(error))
    lines = [
        f"{column} is missing in {counted(count, 'row')}: taken as {taken}"
        for (column, taken), count in notes.items()
    ]
    replaced = [name for name in (*ADDED, *FURTHER) if any(row.get(name) for row in rows)]
    if replaced:
        lines.append(f"{', '.join(replaced)} of the file are replaced by what is forecast")
    for line in (*lines, *failed):
        say(line)
    answers = dict(
        zip(known, _forecast(read_open([*known.values()])) if known else (), strict=True)
    )
    added = (*ADDED, *FURTHER)
    given = [name for name in columns if name not in added]
    empty = dict.fromkeys(added, "")
    return Table(
        (*given, *added),
        tuple({**cells, **answers.get(index, empty)} for index, cells in enumerate(rows)),
        tuple(lines),
        tuple(failed),
    )


def _read(path: Path) -> tuple[list[str], list[dict[str, str]], dict[int, list[str]]]:
    """Return columns, rows, and by the index of a row its cells beyond the last column."""
    text = read_text(path)
    with reading(path):
        reader = csv.DictReader(io.StringIO(text, newline=""))
        columns = [name.strip() for name in reader.fieldnames or ()]
        reader.fieldnames = columns
        read = list(reader)
    beyond = {index: row.pop(None, []) for index, row in enumerate(read)}
    surplus = {index: found for index, cells in beyond.items() if (found := [*filter(None, cells)])}
    rows = [{name: cell or "" for name, cell in row.items()} for row in read]
    meant = set(map(meaning, columns))
    missing = [name for name in NEEDED if name not in meant]
    if "nodes" in meant:
        missing = [name for name in missing if name != "num_gpus"]
    apart = " (cells are to be separated by commas)" if len(columns) == 1 else ""
    require(not missing, f"{path} lacks the columns {', '.join(missing)}; add them{apart}")
    require(bool(rows), f"{path} has no rows; add one per run")
    return columns, rows, surplus


def _forecast(asked: Open) -> list[dict[str, str]]:
    found = mixed(asked)
    of = found.outlook
    quick = rate(of.cases, of.step.seconds)
    # Of a mixture all are those of its tokens, which need not be the likeliest case's.
    longer = of.tokens_per_s_per_gpu[found.likeliest] / found.tokens_per_s_per_gpu
    return [
        {
            "tokens_per_s_per_gpu": f"{found.tokens_per_s_per_gpu[row]:.6g}",
            "low": f"{found.low[row]:.6g}",
            "high": f"{found.high[row]:.6g}",
            "memory_gb": f"{of.memory_gib[i]:.4g}",
            "fits": str(bool(found.fits[row])),
            "tokens_per_s_per_gpu_not_slow": f"{quick[i] / longer[row]:.6g}",
            "chance_of_slow": f"{of.chance[i]:.3f}",
            "chance_of_fit": f"{found.chance_of_fit[row]:.3f}",
            "seconds": f"{of.seconds[i] * longer[row]:.6g}",
            "mfu": f"{of.mfu[i] / longer[row]:.4f}",
        }
        for row, i in enumerate(found.likeliest)
    ]

"""A job that torch.profiler recorded on several ranks, as the table of a job that is replayed.

Every rank is cut into computation, all that it does without waiting for a collective, wherever one
begins and wherever the rank waited for one. A collective begins when the computation before it and
the collective before it on its stream have ended. All ranks of a group end together: what each had
to wait until the last one came is *waiting*, from then on the collective is *on the wire*.

Collectives of the ranks of a group are matched by their order; where a rank has more or others
than another one, as in a trace that was cut, by their common end.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from ddlnb.errors import InputError, require
from ddlnb.results.timeline import Span, Timeline
from ddlnb.traces.jobs.dependencies import Barriers, Order, find_peers
from ddlnb.traces.jobs.otherwise import COMPUTE, what_ifs
from ddlnb.traces.jobs.replay import Replay, with_agreeing_clocks
from ddlnb.traces.jobs.table import COLLECTIVE, JobTrace, ordered
from ddlnb.traces.kineto.rank import RankTrace, length, merged
from ddlnb.traces.longest_path import critical_path
from ddlnb.units import US, counted, show_seconds

ENDS_AGREE_SECONDS = 1e-3  # as far apart as ends of one collective may be by clocks not set
CLOCKS_AGREE_SECONDS = 50e-6  # ends of a kernel on two GPUs differ by less
LEAST = 1e-9  # seconds: what rounding leaves of a difference is none
LITTLE = 0.01  # of a step: a rank with at most this much more of something is not called slow
MUCH = 0.05  # of a step: what runs on for longer is worth a sentence
NOT_SHARED = ("dispatch", "combine", "sendrecv", "other", "alltoall")  # sizes differ by rank


@dataclass(frozen=True)
class ProfiledJob:
    """A job of ranks. ``job`` has their operations in common seconds, ``order`` who waits for whom.

    Beside the columns of a `JobTrace`, rows have library, group, size, bytes and exposed (seconds).
    """

    name: str
    ranks: tuple[RankTrace, ...]
    job: JobTrace
    order: Order
    left_out: tuple[str, ...] = ()

    @cached_property
    def replay(self) -> Replay:
        """The job, ready to be played again."""
        return Replay(self.job, find_peers(self.job), self.order, Barriers((), ()))

    @cached_property
    def sent(self) -> pd.DataFrame:
        """A row per collective of a rank: rank, step, ..., bytes, and seconds of it.

        ``seconds`` from its start to its end, ``waiting`` until the last rank of its group came,
        ``wire`` from then on, ``exposed`` and ``hidden``; ``last`` is the rank that came last, and
        ``matched`` how many of the group's ranks are in the traces. Of a collective that no other
        rank has, all is on the wire.
        """
        rows = self.job.rows[self.job.family == COLLECTIVE].copy()
        group = pd.Series(self.replay.peers.group, self.job.rows.index)[rows.index]
        known = group.where(group >= 0, -1 - np.arange(len(rows)))
        came = rows["start_ts"].groupby(known)
        latest = came.transform("max")
        last = rows.loc[came.idxmax(), "rank"].set_axis(came.idxmax().index)
        rows["waiting"] = (latest - rows["start_ts"]).clip(lower=0, upper=rows["duration"])
        rows["wire"] = rows["duration"] - rows["waiting"]
        rows["came"] = rows["start_ts"] + rows["waiting"]
        rows["hidden"] = (rows["duration"] - rows["exposed"]).clip(lower=0).round(9)
        rows["last"], rows["matched"] = known.map(last), came.transform("size")
        return rows.rename(columns={"duration": "seconds", "optype": "collective"})

    @cached_property
    def by_rank(self) -> pd.DataFrame:
        """A row per rank with the means of the steps that all ranks have, in seconds.

        ``waiting`` counts an instant once, however many collectives wait in it; ``delays`` is what
        others waited for the rank, added up over these.
        """
        steps = [one.seconds[one.seconds["step"].isin(self.job.steps)] for one in self.ranks]
        rows = [one.drop(columns="step").mean().to_dict() for one in steps]
        frame = pd.DataFrame(rows, index=pd.Index([one.rank for one in self.ranks], name="rank"))
        for name, late in (("waiting", "rank"), ("delays", "last")):
            spans = {
                (one, step, rank): length(merged(np.stack([own["start_ts"], own["came"]], axis=1)))
                for (one, step, rank), own in self.sent.groupby([late, "step", "rank"])
            }
            each = pd.Series(spans, dtype=float).groupby(level=0).sum() / len(self.job.steps)
            frame[name] = each.reindex(frame.index, fill_value=0.0)
        return frame.reset_index()

    @cached_property
    def beyond(self) -> float:
        """Seconds for which collectives run on after the end of their step, mean of all ranks.

        The replay plays every step for itself, and has nothing that hides them.
        """
        stops = {(one.rank, step.number): step.stop for one in self.ranks for step in one.steps}
        found = [
            max(0.0, ends.max() - stops[one.rank, step])
            for one in self.ranks
            for step, ends in one.sent.groupby("step")["end_ts"]
            if step in self.job.steps
        ]
        return float(sum(found)) / len(self.ranks) / len(self.job.steps)

    @cached_property
    def by_group(self) -> pd.DataFrame:
        """A row per rank, group and collective: calls, bytes and seconds of `sent`, per step."""
        keys = ["rank", "group", "library", "collective", "size"]
        sums = ["bytes", "seconds", "wire", "waiting", "hidden", "exposed"]
        by = self.sent.groupby(keys, sort=True)
        frame = by[sums].sum() / len(self.job.steps)
        frame.insert(0, "calls", by.size() / len(self.job.steps))
        return frame.reset_index()

    def by_size(self, gpus_per_node: int = 8) -> pd.DataFrame:
        """Return a row per kind of collective, ranks and nodes, and bytes: calls, and seconds.

        ``seconds`` are the median on the wire, ``traced`` on how many ranks it was seen at least.
        Columns are those of measured collectives.
        """
        rows = self.sent[self.sent["bytes"] > 0]
        nodes = [
            len({rank // gpus_per_node for rank in ranks}) or math.ceil(size / gpus_per_node)
            for ranks, size in zip(rows["group_ranks"], rows["size"], strict=True)
        ]
        rows = rows.assign(nodes=nodes).rename(columns={"size": "ranks", "bytes": "size_bytes"})
        by = rows.groupby(["collective", "ranks", "nodes", "size_bytes"])
        calls, seconds = by.size().rename("calls"), by["wire"].median().rename("seconds")
        return pd.concat(
            [calls, seconds, by["matched"].min().rename("traced")], axis=1
        ).reset_index()

    def slowest(self) -> tuple[int, str] | None:
        """Return the rank that the others wait for most, and why; None if nobody waits."""
        frame = self.by_rank.set_index("rank")
        if len(frame) < 2 or frame["delays"].max() <= 0:
            return None
        rank = int(frame["delays"].idxmax())
        own, others = frame.loc[rank], frame.drop(index=rank).median()
        more = {name: own[name] - others[name] for name in ("computation", "idle", "copies")}
        most = max(more, key=lambda name: more[name])
        # What the rank has more of is why it is late, if that is not far less than the others wait.
        each, little = own["delays"] / (len(frame) - 1), LITTLE * own["seconds"]
        if more[most] <= little and each <= 5 * little:
            return rank, "by little: it computes as long as the others, and comes last by chance"
        if more[most] <= little:
            return rank, (
                "it computes, copies and idles as long as the others: what it waits for itself may "
                "be in groups that these traces do not have"
            )
        where = show_seconds(more[most])
        part = "in part, " if more[most] < each / 2 else ""
        return rank, part + {
            "computation": f"it computes {where} longer in a step than the others' median",
            "idle": f"it does nothing for {where} longer in a step than the others' median: look "
            f"at its host (input data, Python, other programs)",
            "copies": f"its copies take {where} longer in a step than the others' median",
        }[most]

    def critical(self) -> pd.DataFrame:
        """Return the seconds of the critical path across ranks, per step, by rank and kind."""
        graph, rows = self.replay.graph, self.job.rows
        count, work = len(rows), self.replay.work
        delays = self.replay.launches.traced
        given = np.concatenate([delays, work, np.zeros(graph.nodes - 2 * count)])
        at = self.replay.player(given)
        found: dict[tuple[int, str], float] = {}
        steps = rows["step"].to_numpy()
        for step in self.job.steps:
            own = np.flatnonzero(steps == step)
            last = own[np.argmax(at[own + count])] + count
            shifted = np.where(np.arange(len(at)) == last, np.inf, at)
            for node in critical_path(graph, shifted, given):
                row = node if node < count else node - count
                if node >= 2 * count or not given[node]:
                    continue
                kind = str(rows["optype"].iloc[row]) if node >= count else "launching"
                key = int(rows["rank"].iloc[row]), kind
                found[key] = found.get(key, 0.0) + given[node] / len(self.job.steps)
        frame = pd.DataFrame(
            [(rank, kind, seconds) for (rank, kind), seconds in found.items() if seconds > LEAST],
            columns=["rank", "kind", "seconds"],
        )
        return frame.sort_values("seconds", ascending=False, ignore_index=True)

    @cached_property
    def spans(self) -> pd.DataFrame:
        """A row per span of all ranks, one step after the other: rank, kind, start, stop, name, ...

        Kinds are ``computing``, ``waiting`` for a late rank, and ``sending``; ``bytes`` and
        ``step`` are there, too.
        """
        rows = self.job.rows
        lasts = rows.groupby("step")["end_ts"].max()
        shift = rows["step"].map(lasts.cumsum() - lasts)
        sends = self.job.family == COLLECTIVE
        came = (self.sent["came"] + shift[sends]).reindex(rows.index)
        common = pd.DataFrame(
            {
                "rank": rows["rank"],
                "kind": np.where(sends, "sending", "computing"),
                "start": (rows["start_ts"] + shift).where(~sends, came),
                "stop": rows["end_ts"] + shift,
                "name": rows["optype"],
                "bytes": rows["bytes"],
                "step": rows["step"],
            }
        )
        waits = common[sends].assign(
            kind="waiting", start=rows["start_ts"] + shift, stop=came[sends], bytes=0
        )
        found = pd.concat([common, waits[waits["stop"] > waits["start"]]])
        return found.sort_values(["rank", "start"], ignore_index=True)

    def timeline(self) -> Timeline:
        """Return these spans as a timeline, which Perfetto opens."""
        kinds = {"computing": "compute", "waiting": "wait", "sending": "message"}
        spans = tuple(
            Span(row.rank, kinds[row.kind], row.label, row.start, row.stop, row.step, row.bytes)
            for row in self.spans.rename(columns={"name": "label"}).itertuples()
        )
        return Timeline(self.name, "traced", spans)

    def what_ifs(self) -> pd.DataFrame:
        """Return the mean seconds of a step, replayed as traced and with one thing otherwise.

        See `ddlnb.traces.jobs.otherwise`.
        """
        return what_ifs(self.replay)


def profiled_job(
    ranks: Sequence[RankTrace], name: str, left_out: tuple[str, ...] = ()
) -> ProfiledJob:
    """Return the job of these ranks. Raises InputError for ranks that are twice there.

    Steps are those that all ranks have in common.
    """
    numbers = [one.rank for one in ranks]
    twice = [one for one in sorted(set(numbers)) if numbers.count(one) > 1]
    require(
        not twice,
        f"{name!r} has rank {', '.join(map(str, twice))} in two traces; give one trace of each "
        f"rank of one run",
    )
    ranks = sorted(ranks, key=lambda one: one.rank)
    common = set.intersection(*({step.number for step in one.steps} for one in ranks))
    if not common:
        raise InputError(f"the ranks of {name!r} have no step in common; record the same steps")
    zero = min(one.began for one in ranks)
    rows: list[dict[str, object]] = []
    edges: list[tuple[int, int]] = []
    for one in ranks:
        own, waits_for = _rank_rows(one, common, one.began - zero, len(rows))
        rows += own
        edges += waits_for
    frame = pd.DataFrame(rows)
    unnamed = frame["group_ranks"].map(len) == 0
    frame["mc"] = frame["group"].where(unnamed, frame["group_ranks"].map(str)).factorize()[0]
    frame["size"] = frame["size"].where(~unnamed | (frame["size"] > 1), len(ranks))
    table = ordered(_numbered(frame))
    gpus = all(one.device != "CPU" for one in ranks)
    place = pd.Series(table.index, table["id"])
    ends = place.reindex(np.array(edges, dtype=np.int64).reshape(-1)).to_numpy().reshape(-1, 2)
    none = np.zeros(0, dtype=np.int64)
    order = Order(ends[:, 0], ends[:, 1], none, none, np.zeros(0))
    job = JobTrace(name, table)
    agree = CLOCKS_AGREE_SECONDS if gpus else 2e-3
    return ProfiledJob(name, tuple(ranks), with_agreeing_clocks(job, agree), order, left_out)


def _rank_rows(
    one: RankTrace, common: set[int], shift: float, first: int
) -> tuple[list[dict[str, object]], list[tuple[int, int]]]:
    """Return the operations of a rank, and pairs of which the second waits for the first."""
    rows: list[dict[str, object]] = []
    edges: list[tuple[int, int]] = []

    def add(step: int, kind: str, start: float, stop: float, about: Mapping[str, object]) -> int:
        rows.append(
            {
                **{"dp_rank": one.rank, "rank": one.rank, "stage": 0, "mb_id": -1, "mc": 0},
                **{
                    "step": step,
                    "optype": kind,
                    "start_ts": start + shift,
                    "id": first + len(rows),
                },
                **{"duration": stop - start, "group": "", "group_ranks": (), "size": 1, "bytes": 0},
                **{"exposed": 0.0, "library": ""},
                **about,
            }
        )
        return first + len(rows) - 1

    by_step: dict[int, dict[int, dict[str, Any]]] = {}
    for place, row in enumerate(one.sent.to_dict("records")):
        by_step.setdefault(row["step"], {})[place] = row
    for step in (step for step in one.steps if step.number in common):
        sent = by_step.get(step.number, {})
        ids = {
            place: add(step.number, row["collective"], row["start_ts"], row["end_ts"], _about(row))
            for place, row in sent.items()
        }
        edges += _of_streams(sent, ids)
        waits = [w for w in one.waits if w[2] in ids]
        starts = {place: row["start_ts"] for place, row in sent.items()}
        chain: list[tuple[float, int]] = []
        begin = min([step.start, *starts.values()])
        for start, stop, waited in _pieces(begin, step.stop, sorted(starts.values()), waits):
            piece = add(step.number, COMPUTE, start, stop, {})
            if chain:
                edges.append((chain[-1][1], piece))
            if waited is not None:
                edges.append((ids[waited], piece))
            chain.append((stop, piece))
        stops = [stop for stop, _ in chain]
        for place, number in ids.items():
            before = int(np.searchsorted(stops, starts[place] + 1e-9, side="right")) - 1
            if before >= 0:
                edges.append((chain[before][1], number))
    return rows, edges


def _about(row: Mapping[str, object]) -> dict[str, object]:
    names = ("library", "group", "group_ranks", "size", "bytes", "exposed")
    return {name: row[name] for name in names}


def _of_streams(
    sent: Mapping[int, Mapping[str, Any]], ids: Mapping[int, int]
) -> Iterator[tuple[int, int]]:
    """Yield collectives of a stream with the one before, where that had ended."""
    last: dict[str, tuple[float, int]] = {}
    for place, row in sent.items():
        end, before = last.get(row["thread"], (math.inf, -1))
        if end <= row["start_ts"] + 2 * US:  # start and end are both rounded
            yield before, ids[place]
        last[row["thread"]] = row["end_ts"], ids[place]


def _pieces(
    begin: float, end: float, starts: Sequence[float], waits: Sequence[tuple[float, float, int]]
) -> Iterator[tuple[float, float, int | None]]:
    """Yield start, end and the collective that was waited for of every piece of computation."""
    at, waited = begin, None
    gaps = [(max(begin, a), min(end, b), number) for a, b, number in sorted(waits) if b > begin]
    for gap, until, number in [*gaps, (end, end, None)]:
        for cut in [*(s for s in starts if at < s < gap), gap]:
            if cut > at:
                yield at, cut, waited
                at, waited = cut, None
        at, waited = max(at, until), number


def _numbered(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the rows with ``seq_id``: alike for operations of several ranks that belong together.

    By order where every rank has as many, of the same sizes; else by their common end.
    """
    frame["seq_id"] = frame.groupby(["step", "rank", "optype", "mc"]).cumcount()
    sends = frame[frame["optype"] != COMPUTE]
    sends = sends.assign(end=sends["start_ts"] + sends["duration"])
    keys = ["step", "optype", "mc"]
    calls = sends.groupby([*keys, "seq_id"])
    about = pd.DataFrame(
        {
            "ranks": calls["rank"].nunique(),
            "sizes": calls["bytes"].nunique(),
            # Nobody leaves before the last one has come.
            "together": calls["start_ts"].max() <= calls["end"].min() + ENDS_AGREE_SECONDS,
        }
    )
    by = about.groupby(keys)
    kind = by["sizes"].max().index.get_level_values("optype")
    alike = (by["ranks"].nunique() == 1) & ((by["sizes"].max() == 1) | kind.isin(NOT_SHARED))
    alike &= by["together"].all() | (kind != "alltoall")
    odd = sends[~alike.reindex(pd.MultiIndex.from_frame(sends[keys])).to_numpy()]
    numbers: dict[int, int] = {}
    for _, own in odd.sort_values("end").groupby(keys):
        number, last, seen = 0, -math.inf, set[int]()
        for place, end, rank in zip(own.index, own["end"], own["rank"], strict=True):
            if end - last > ENDS_AGREE_SECONDS or rank in seen:
                number, seen = number + 1, set()
            last = end
            seen.add(rank)
            numbers[place] = number
    frame.loc[list(numbers), "seq_id"] = list(numbers.values())
    return frame


def sentences(found: ProfiledJob) -> Iterator[str]:
    """Yield what a reader should know beside the tables."""
    yield from (f"Left out: {why}." for why in found.left_out)
    yield from (
        f"Read as far as it goes: {one.name}. What is missing is missing in the numbers of a step."
        for one in found.ranks
        if "cut" in one.name
    )
    frame, world = found.by_rank, max(one.ranks for one in found.ranks)
    step = frame["seconds"].mean()
    exposed, sent = frame["exposed"].mean(), frame["communication"].mean()
    yield (
        f"In a step of {show_seconds(step)} a rank communicates for {show_seconds(sent)}, of which "
        f"{show_seconds(exposed)} are exposed ({exposed / step:.0%} of the step) and "
        f"{show_seconds(frame['waiting'].mean())} are waiting for ranks that come late."
    )
    if found.beyond > MUCH * step:
        yield (
            f"Collectives run on for {show_seconds(found.beyond)} after the end of their step, "
            f"while the next step runs; the replay plays each step by itself and counts this as "
            f"exposed."
        )
    slowest = found.slowest()
    if slowest:
        seconds = frame.set_index("rank").loc[slowest[0], "delays"]
        yield (
            f"Rank {slowest[0]} keeps the others waiting most ({show_seconds(seconds)} of a step, "
            f"all of them together): {slowest[1]}."
        )
    if len(frame) < world:
        yield (
            f"The traces have {counted(len(frame), 'rank')} of {world}: the others may have come "
            f"later, so what is on the wire may be less."
        )
    alone = int((found.sent["matched"] == 1).sum())
    if alone and len(frame) > 1:
        has, counts = ("has", "counts") if alone == 1 else ("have", "count")
        yield (
            f"{counted(alone, 'collective')} of {len(found.sent)} {has} no match on another rank "
            f"and {counts} as being on the wire."
        )
    if found.job.clocks_set_seconds:
        yield (
            f"Clocks of ranks differed by up to {show_seconds(found.job.clocks_set_seconds)} from "
            f"their mean, and were set by the ends of collectives."
        )
    unsized = int((found.sent["bytes"] == 0).sum())
    if unsized:
        yield (
            f"{counted(unsized, 'collective')} of {len(found.sent)} does not say its bytes; record "
            f"with record_shapes=True."
        )
    unknown: dict[str, float] = {}
    for one in found.ranks:
        for name, seconds in one.unknown.items():
            unknown[name] = unknown.get(name, 0.0) + seconds
    for name, seconds in sorted(unknown.items(), key=lambda item: -item[1]):
        yield f"Unknown kernel, {show_seconds(seconds)} over all ranks and steps: {name}."

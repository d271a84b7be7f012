"""What a replay found, in sentences."""

from __future__ import annotations

import math
from collections.abc import Iterator

from ddlnb.traces.jobs.what_if import CAUSES, WhatIf
from ddlnb.units import counted, show_seconds

CLEAR_FACTOR = 1.02  # a worker or stage slower than this is named
ALIKE = 0.9  # correlation of forward and backward above which sequences are the reason (the paper)
TOLERATED = 0.02  # an error of replayed iterations that is said to be large beyond it


def sentences(found: WhatIf) -> Iterator[str]:
    """Yield what a reader should know beside the tables."""
    yield from _errors(found)
    yield (
        f"If nobody straggled, an iteration would take "
        f"{show_seconds(found.iterations['ideal_seconds'].mean())} instead of "
        f"{show_seconds(found.iterations['replayed_seconds'].mean())}: S = {found.slowdown:.3f} "
        f"(S = {found.mean_slowdown:.3f} with every computation at the mean of its kind and every "
        f"transfer at the median, as arXiv 2505.05713 defines it)."
    )
    yield from _reasons(found)
    if found.job.data_ranks == 1:
        yield "With one data-parallel rank, a slow worker cannot be told from a slow stage."
    yield from _remarks(found)


def _errors(found: WhatIf) -> Iterator[str]:
    errors = found.iterations.filter(like="error").abs().max()
    yield (
        f"The replay is off by at most {errors['error']:.2%} of an iteration; without the pauses "
        f"that it found by {errors['error_without_pauses']:.2%}, without any launch delay (from "
        f"durations and dependencies alone) by {errors['error_without_delays']:.2%}. Adding up the "
        f"work of the busiest worker would be off by {errors['error_of_busiest']:.1%}."
    )
    if errors["error"] > TOLERATED:
        yield f"That is more than {TOLERATED:.0%}: take what follows with care."


def _reasons(found: WhatIf) -> Iterator[str]:
    alone = found.causes.set_index("cause").loc[list(CAUSES), "seconds"]
    most = str(alone.idxmax())
    if alone[most] > 0:
        total = found.iterations["replayed_seconds"].mean()
        yield f"The largest cause is {most}: {alone[most] / total:.1%} of an iteration."
    worker = found.workers.iloc[0]
    if worker["factor"] > CLEAR_FACTOR:
        yield (
            f"The slowest worker is data-parallel rank {worker['dp_rank']:.0f} of stage "
            f"{worker['stage']:.0f}: it computes {worker['factor']:.2f} times as long as the "
            f"others of its stage, and replacing it alone saves "
            f"{show_seconds(max(0.0, worker['saves_seconds']))} per iteration."
        )
    stages = found.factors.of_stage
    stage = stages.loc[stages["factor"].idxmax()]
    if stage["factor"] > CLEAR_FACTOR:
        yield (
            f"Stage {stage['stage']:.0f} computes {stage['factor']:.2f} times as long as the "
            f"average stage."
        )
    correlation = found.factors.correlation
    if not math.isnan(correlation):
        verdict = "micro batches differ" if correlation >= ALIKE else "no sign of uneven sequences"
        yield (
            f"Forward and backward times of micro batches correlate by {correlation:.2f}: "
            f"{verdict}."
        )


def _remarks(found: WhatIf) -> Iterator[str]:
    job, peers, launches = found.job, found.replay.peers, found.replay.launches
    if job.clocks_set_seconds:
        yield (
            f"Clocks of workers differed by up to {show_seconds(job.clocks_set_seconds)} from "
            f"their mean, and were set by the ends of messages and collectives."
        )
    for barrier in found.replay.barriers.found:
        yield f"A barrier that the trace does not record was found {barrier}."
    pauses = launches.pauses[launches.pauses > 0]
    if len(pauses):
        yield (
            f"Workers paused {counted(len(pauses), 'time')} for {show_seconds(pauses.mean())} on "
            f"average (longest {show_seconds(pauses.max())}), kept by nothing that the trace "
            f"records."
        )
    for kind, count in job.unknown_kinds.items():
        yield (
            f"Replayed as work of one worker: {counted(count, 'operation')} of the unknown kind "
            f"{kind!r}."
        )
    if peers.lonely:
        yield (
            f"{peers.lonely:,} sends and receives lack the other half; they are replayed with the "
            f"time they took."
        )
    if peers.early:
        share = peers.early / len(job.rows)
        yield (
            f"Replayed alone, as they ended before a peer had begun: "
            f"{counted(peers.early, 'operation')} ({share:.1%}), whose numbers (seq_id) may not "
            f"match."
        )

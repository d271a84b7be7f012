"""What runs on a rank: a worker trains and reports, a parameter server serves."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from ddlnb.engines.catalogue import get_engine
from ddlnb.engines.job import Job, Report, Tracer
from ddlnb.errors import PlanError
from ddlnb.launch.options import barrier_before
from ddlnb.launch.rank import RankContext, local_device, process_group
from ddlnb.plans.plan import Plan


def run_job(context: RankContext, job: Job) -> Report | None:
    """Return the report of this rank, None from a parameter server; called on every rank."""
    store = context.store()
    if context.rank >= job.workers:
        get_engine(job.engine).server()(context, job, store)
        return None
    with process_group(context, store, job.workers, job.backend):
        return _train(context, job, store)


def _train(context: RankContext, job: Job, store: Any) -> Report:
    device = local_device(context, job.device)
    torch.manual_seed(job.seed)
    module = job.task.build().to(device)
    total = job.warmup + job.iterations + job.traced
    batches = [
        tuple(tensor.to(device) for tensor in job.task.batch(job.local_batch, seed))
        for seed in (step * job.workers + context.rank for step in range(min(total, job.batches)))
    ]
    if job.plan is not None:
        _require_same_plan(context, job.plan, store)
    trainer, loss = get_engine(job.engine).starter()(context, job, store, module)
    replanner = job.replanning.follow(context, job, store, trainer) if job.replanning else None
    losses: list[float] = []
    step_seconds: list[float] = []

    def run(count: int, each: Callable[[int], None] = lambda step: None) -> None:
        for step in range(count):
            each(step)
            if context.rank == 0 and len(losses) in job.changes:
                context.reach(barrier_before(len(losses)))
            batch = batches[len(losses) % len(batches)]
            begin = time.perf_counter()
            losses.append(trainer.step(partial(loss, batch)).item())
            step_seconds.append(time.perf_counter() - begin)
            if replanner is not None:
                replanner.after_step(len(losses))

    def finish() -> None:
        trainer.synchronize()
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    # The clock starts and stops between two iterations whose messages overlap, as those of a long
    # run do: it would otherwise count a forward pass that waits for nothing, and the last messages.
    filling = min(1, job.warmup)
    run(job.warmup - filling)
    finish()
    dist.barrier()
    sent = trainer.bytes_sent
    run(filling)
    waited, start = trainer.waited_seconds, time.perf_counter()
    run(job.iterations)
    if not filling:
        finish()
    seconds, waited = time.perf_counter() - start, trainer.waited_seconds - waited
    finish()
    sent = (trainer.bytes_sent - sent) * job.iterations / (filling + job.iterations)
    spans = _trace(context, job, store, trainer, run, finish) if job.traced else ()
    dist.barrier()
    # Not on failure: closing waits for messages, and a failed rank is ended with its process.
    trainer.close()
    state = {name: value.detach().cpu() for name, value in module.named_parameters()}
    return Report(
        rank=context.rank,
        seconds=seconds,
        waited_seconds=waited if device.type == "cpu" else float("nan"),  # GPUs wait, not hosts
        bytes_sent=sent,
        losses=tuple(losses),
        digest=_digest(state),
        spans=spans,
        parameters=state if job.keep_parameters else None,
        switches=tuple(replanner.switches) if replanner is not None else (),
        step_seconds=tuple(step_seconds),
        sync_points=tuple(replanner.sync_points) if replanner is not None else (),
    )


def _require_same_plan(context: RankContext, plan: Plan, store: Any) -> None:
    if context.rank == 0:
        store.set("plan", plan.digest)
    theirs = store.get("plan").decode()
    if theirs != plan.digest:
        raise PlanError(
            f"rank {context.rank} has plan {plan.digest} and rank 0 has {theirs}; "
            f"make the plan once and send it to all ranks"
        )


def _trace(
    context: RankContext,
    job: Job,
    store: Any,
    trainer: Any,
    run: Callable[..., None],
    finish: Callable[[], None],
) -> tuple:
    dist.barrier()
    tracer = Tracer(context.rank, _shared_zero(context, store))
    trainer.trace(tracer)

    def number(step: int) -> None:
        tracer.iteration = step

    run(job.traced, number)
    finish()
    trainer.trace(None)
    # A waiter may be woken before the transport has noted the end of the message.
    plan = trainer.plan if job.replanning else job.plan  # which may be another one by now
    expected = job.traced * len(plan.legs) if plan else 0
    patience = time.perf_counter() + 1.0
    while sum(span.kind == "message" for span in list(tracer.spans)) < expected:
        if time.perf_counter() > patience:
            raise TimeoutError(f"not all of {expected} messages were seen to end")
        time.sleep(0.001)
    return tuple(tracer.spans)


def _shared_zero(context: RankContext, store: Any) -> float:
    """Return a reading of time.perf_counter that all ranks take as zero.

    Ranks on rank 0's machine share its clock; others take the moment they left the barrier.
    """
    now = time.perf_counter()
    boot = Path("/proc/sys/kernel/random/boot_id")
    machine = boot.read_text().strip() if boot.exists() else f"unknown to rank {context.rank}"
    if context.rank == 0:
        store.set("zero", f"{machine} {now!r}")
    theirs, zero = store.get("zero").decode().rsplit(" ", 1)
    return float(zero) if theirs == machine else now


def _digest(state: dict[str, torch.Tensor]) -> str:
    digest = hashlib.sha256()
    for name, value in state.items():
        digest.update(name.encode())
        digest.update(value.contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]

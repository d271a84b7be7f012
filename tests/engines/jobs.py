"""Jobs that tests of engines run, what one worker alone makes of them, and what stays behind."""

import os
import signal
import threading
import time
from functools import cache

import psutil
import torch

from ddlnb.engines.job import Job, Report
from ddlnb.engines.settings import OPTIMIZERS
from ddlnb.engines.worker import run_job
from ddlnb.plans.methods import METHODS
from ddlnb.workloads.tracing import trace
from ddlnb.workloads.workload import Gradient, Layer, Workload
from tests.toy import COST, in_double, train_alone

STEPS, BATCH = 10, 2
A2A = [name for name, method in METHODS.items() if method.architecture == "A2A"]
PS = [name for name in METHODS if name not in A2A]
ENDLESS = {"iterations": 100_000, "batches": 1}


def made_up(*elements: int, forward: float = 4e-3, backward: float = 8e-3) -> Workload:
    """Return a recorded model of layers with a weight each, which take so many seconds each."""
    names = [f"block.{index}" for index in range(len(elements))]
    layers = tuple(Layer(name, forward_seconds=forward) for name in names)
    gradients = tuple(
        Gradient(f"{name}.weight", name, size, backward_seconds=backward)
        for name, size in reversed(list(zip(names, elements, strict=True)))
    )
    return Workload("made-up", 4, layers, gradients, "typed in for a test")


def job_of(task, method, workers, servers=1, optimizer="sgd", engine="torch", **changes) -> Job:
    """Return ten steps of a method, or of the engine's own default where it is None."""
    plan = None
    if method is not None:
        tuned = METHODS[method].tuned(partition="100KB", credit="300KB")
        plan = tuned.plan(trace(task, 4), cost=COST, servers=servers)
    given = {"iterations": STEPS, "batches": STEPS, "plan": plan, **changes}
    return Job(task, engine, workers, BATCH, make_optimizer=OPTIMIZERS[optimizer], **given)


def train(ranks, job: Job) -> list[Report]:
    """Return the reports of the workers."""
    return ranks.run(run_job, job, count=job.ranks, timeout_seconds=120)[: job.workers]


@cache
def alone(model, optimizer, workers) -> dict[str, torch.Tensor]:
    """Return one worker's parameters after training on the joined batches."""
    return train_alone(in_double(model), OPTIMIZERS[optimizer], workers, BATCH, STEPS)


def require_lossless(ranks, model, job: Job, optimizer="sgd") -> list[Report]:
    """Train; all workers must end with one worker's parameters, and with the same bits."""
    reports = train(ranks, job)
    assert len({report.digest for report in reports}) == 1
    for name, value in alone(model, optimizer, job.workers).items():
        torch.testing.assert_close(reports[0].parameters[name], value, rtol=1e-5, atol=1e-9)
    return reports


def train_and_kill(context, job: Job, holder: int, child=False, number=signal.SIGKILL):
    """Train, and two seconds later send a signal to a rank, or to the only child of it."""

    def kill() -> None:
        process = psutil.Process()
        (process.children()[0] if child else process).send_signal(number)

    if context.rank == holder:
        threading.Timer(2.0, kill).start()
    return run_job(context, job)


def left_behind(context, prefixes) -> tuple:
    """Return variables, children, files, listening sockets and busy threads of this process."""
    process = psutil.Process()
    variables = sorted(name for name in os.environ if name.startswith(prefixes))
    children = [" ".join(child.cmdline()) for child in process.children()]
    connections = process.net_connections()
    listening = sorted(entry.laddr.port for entry in connections if entry.status == "LISTEN")
    start = time.process_time()
    time.sleep(0.3)
    is_busy = time.process_time() - start > 0.1
    return variables, children, len(process.open_files()), listening, is_busy

"""Record iterations of several models by torch.profiler, as `ddlnb trace` reads them.

    python -m benchmarks.gpu_traces FOLDER                     # all cases, on a GPU
    python -m benchmarks.gpu_traces FOLDER --case small-conv --device cpu

An iteration is a forward and a backward pass, a step of SGD with momentum, and the value of the
loss on the host. Beside each trace stand the seconds of an iteration without the profiler.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.command import command
from benchmarks.repeated import seconds_of
from ddlnb.errors import require
from ddlnb.units import show_bytes, show_seconds
from ddlnb.workloads.resolve import get_task

WARMUP, ALONE, RECORDED = 5, 10, 3
BATCH = 64
SIDE_COPY_ELEMENTS = 4_000_000


class Case(NamedTuple):
    """A model and how it is trained: layers by stacks, autocast, DDP, copies on a second stream."""

    model: str
    with_stack: bool = False
    autocast: bool = False
    ddp: bool = False
    side_stream: bool = False


CASES = {
    "small-conv": Case("small-conv", with_stack=True),
    "resnet18": Case("resnet18", with_stack=True),
    "bert-base-amp": Case("bert-base", autocast=True),
    "resnet50-side": Case("resnet50", side_stream=True),
    "resnet18-ddp": Case("resnet18", ddp=True),
}


def iteration(case: Case, device: str) -> Callable[[], None]:
    """Return a function that trains one iteration and fetches the loss."""
    torch.manual_seed(0)
    task = get_task(case.model)
    with torch.device(device):
        module = task.build()
    data = tuple(part.to(device) for part in task.batch(BATCH, 0))
    if case.ddp:
        ids = [torch.cuda.current_device()] if device == "cuda" else None
        module = torch.nn.parallel.DistributedDataParallel(module, device_ids=ids)
    optimizer = torch.optim.SGD(module.parameters(), 0.01, momentum=0.9)
    copied = side_copy() if case.side_stream else lambda: None

    def once() -> None:
        optimizer.zero_grad(set_to_none=True)
        copied()
        with torch.autocast(device, torch.bfloat16, enabled=case.autocast):
            loss = task.loss(module, data)
        loss.backward()
        optimizer.step()
        loss.item()

    return once


def side_copy() -> Callable[[], None]:
    """Return a function that copies on a second stream what the first one then waits for."""
    stream = torch.cuda.Stream()
    host = torch.randn(SIDE_COPY_ELEMENTS).pin_memory()

    def copied() -> None:
        with torch.cuda.stream(stream):
            there = host.to("cuda", non_blocking=True)
        torch.cuda.current_stream().wait_stream(stream)
        there.mul_(2)

    return copied


def record(name: str, folder: Path, device: str) -> str:
    """Write the trace of a case and return a line about it."""
    case = CASES[name]
    once = iteration(case, device)
    for _ in range(WARMUP):
        once()
    alone = seconds_of(lambda: [once() for _ in range(ALONE)]) / ALONE
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device == "cuda" else [])]
    events = torch._C._profiler._ExperimentalConfig(enable_cuda_sync_events=True)
    with profile(
        activities=activities,
        record_shapes=True,
        with_stack=case.with_stack,
        experimental_config=events,
    ) as profiler:
        for _ in range(RECORDED):
            once()
        if device == "cuda":
            torch.cuda.synchronize()
    path = folder / f"{name}.json.gz"
    profiler.export_chrome_trace(str(path))
    size = show_bytes(path.stat().st_size)
    return f"{path}: {size}; an iteration without the profiler takes {show_seconds(alone)}"


def main(
    folder: Path,
    *,
    case: Sequence[Literal[*CASES]] = tuple(CASES),
    device: Literal["cuda", "cpu"] = "cuda",
) -> None:
    """Record the cases that are asked for."""
    require(
        device == "cpu" or torch.cuda.is_available(),
        "there is no GPU here; give --device cpu, which records no kernels",
    )
    without = [name for name in case if CASES[name].side_stream]
    require(device == "cuda" or not without, f"{', '.join(without)} needs a GPU's streams")
    folder.mkdir(parents=True, exist_ok=True)
    if any(CASES[name].ddp for name in case):  # in a process group of one rank
        backend, store = "nccl" if device == "cuda" else "gloo", torch.distributed.HashStore()
        torch.distributed.init_process_group(backend, store=store, rank=0, world_size=1)
    for name in case:
        print(record(name, folder, device), flush=True)
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    command(main)

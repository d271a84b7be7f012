"""Training on four ranks that count for themselves what they send and how long they wait.

Run as a program: ``python -m tests.traces.gloo_ranks FOLDER ROUNDS`` records a folder of traces per
round, in which one rank is slow, and writes what each rank counted into ``countedRANK.json``; the
last one is of shards, whose waits `ddlnb.watch` counts.
"""

import json
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing
from torch.distributed.fsdp import fully_shard
from torch.profiler import ProfilerActivity, profile, record_function

import ddlnb

RANKS, STEPS, WIDTH, LAYERS = 4, 2, 192, 4
SLOW_SECONDS = 0.15


def slowed(number: int) -> tuple[int, str]:
    """Return the rank that is slow in a round, and how."""
    return number % RANKS, "sleeps" if number % 2 else "computes"


def train(rank: int, folder: str, rounds: int) -> None:
    """Train on one rank."""
    torch.set_num_threads(1)
    store = f"file://{folder}/store"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=RANKS)
    module = torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)))
    for parameter in module.parameters():
        dist.broadcast(parameter.data, 0)
    batch, heavy = torch.randn(64, WIDTH), torch.randn(384, 384)
    works = []
    counts = {"bytes": 0, "exposed": 0.0}

    def send(parameter: torch.Tensor) -> None:
        counts["bytes"] += parameter.grad.numel() * parameter.grad.element_size()
        works.append(dist.all_reduce(parameter.grad, async_op=True))

    for parameter in module.parameters():
        parameter.register_post_accumulate_grad_hook(send)

    def step(slow: str) -> None:
        if slow == "sleeps":
            time.sleep(SLOW_SECONDS)
        elif slow == "computes":
            until = time.perf_counter() + SLOW_SECONDS
            while time.perf_counter() < until:
                heavy @ heavy
        module(batch).sum().backward()
        began = time.perf_counter()
        for work in works:
            work.wait()
        counts["exposed"] += time.perf_counter() - began
        works.clear()
        for parameter in module.parameters():
            parameter.data -= 1e-4 * parameter.grad
            parameter.grad = None

    with profile(activities=[ProfilerActivity.CPU], record_shapes=True):  # the first one is slow
        step("")
    counted = []
    for number in range(rounds):
        who, how = slowed(number)
        path = Path(folder) / f"round{number:02d}"
        path.mkdir(exist_ok=True)
        dist.barrier()
        counts |= {"bytes": 0, "exposed": 0.0}
        with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
            for place in range(STEPS):
                with record_function(f"ProfilerStep#{place}"):
                    step(how if rank == who else "")
        counted.append(dict(counts))
        profiler.export_chrome_trace(str(path / f"rank{rank}.json.gz"))
    counted.append(sharded(Path(folder) / "shards", rank))
    (Path(folder) / f"counted{rank}.json").write_text(json.dumps(counted))
    dist.destroy_process_group()


def sharded(path: Path, rank: int) -> dict[str, float]:
    """Record shards of which the first rank sleeps; return what `ddlnb.watch` says of them."""
    path.mkdir(exist_ok=True)
    module = torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)))
    for one in (*module, module):
        fully_shard(one)
    with ddlnb.watch(module) as seen:
        module(torch.randn(64, WIDTH)).sum().backward()
        with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
            for place in range(STEPS):
                with record_function(f"ProfilerStep#{place}"):
                    time.sleep(SLOW_SECONDS if rank == 0 else 0)
                    module(torch.randn(64, WIDTH)).sum().backward()
    profiler.export_chrome_trace(str(path / f"rank{rank}.json.gz"))
    return {"exposed": float(seen.rows["exposed_seconds"].sum())}


if __name__ == "__main__":
    torch.multiprocessing.spawn(train, (sys.argv[1], int(sys.argv[2])), nprocs=RANKS)

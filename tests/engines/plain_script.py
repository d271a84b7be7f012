"""What a user's training script does, by DistributedModel and by DDP: ``torchrun -m`` starts it.

Rank 0 prints a line for every way of training that is named: how far its parameters are from DDP's,
whether all ranks have the same bits, and the number of messages.
"""

import os
import sys
from functools import partial

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ddlnb.engines.distributed_model import DistributedModel
from ddlnb.plans.alpha_beta import AlphaBeta
from ddlnb.plans.methods import get_method
from ddlnb.workloads.task import task
from ddlnb.workloads.tracing import trace

STEPS, BATCH, PARTS = 6, 4, 2
MEASURED = "MG-WFBP", "searched"  # whose plans are made from what the ranks measure
COST = AlphaBeta(1e-4, 1e-9)


def draw(local_batch, seed):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(3, (local_batch,), generator=generator)
    return torch.randn(local_batch, 16, generator=generator), labels


def loss(module, batch):
    return nn.functional.cross_entropy(module(batch[0]), batch[1])


def toy():
    torch.manual_seed(0)
    layers = nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 24), nn.Tanh(), nn.Linear(24, 3)
    return task(nn.Sequential(*layers), batch=draw, loss=loss, name="toy", local_batch=BATCH)


def train(start, *, parts=1, clip=None, decay=1.0):
    """Return the parameters after training by what ``start`` makes of a module and optimizer."""
    module = toy().build()
    if dist.get_rank():  # they start as rank 0 has them, whatever they were
        nn.init.zeros_(module[0].weight)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.2, momentum=0.9, weight_decay=1e-3)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, decay)
    model = start(module, optimizer)
    step = getattr(model, "step", None) or partial(_plain_step, module, optimizer)
    for number in range(STEPS):
        for part in range(parts):
            seed = (number * parts + part) * dist.get_world_size() + dist.get_rank()
            if part < parts - 1:
                with model.no_sync():
                    loss(model, draw(BATCH, seed)).backward()
            else:
                value = loss(model, draw(BATCH, seed))
                value.backward()
        if clip:
            own = getattr(model, "clip_grad_norm_", None)
            own(clip) if own else nn.utils.clip_grad_norm_(module.parameters(), clip)
        step()
        dist.all_reduce(value.detach())  # a script's own collectives, while ours may be on the way
        schedule.step()
    state = torch.cat([value.detach().flatten() for value in model.state_dict().values()])
    if hasattr(model, "close"):
        model.close()
    return state


def _plain_step(module, optimizer):
    optimizer.step()
    optimizer.zero_grad()


def planned(name):
    """Return the plan of a method, made without measuring anything."""
    method = get_method(name)
    if name == "ByteScheduler-A2A":
        method = method.tuned(partition="256B", credit="1KB")
    return method.plan(trace(toy()), cost=COST)


def report(name, plan, **how):
    """Train by ours and by DDP; say how far apart they end."""
    made = []

    def start(module, optimizer):
        made.append(DistributedModel(module, optimizer, plan, task=toy()))
        return made[0]

    ours, theirs = (
        train(start, **how),
        train(lambda module, _: DistributedDataParallel(module), **how),
    )
    copies = [torch.empty_like(ours) for _ in range(dist.get_world_size())]
    dist.all_gather(copies, ours)
    same = all(torch.equal(copies[0], other) for other in copies)
    if dist.get_rank() == 0:
        far = (ours - theirs).abs().max().item()
        print("by", name, far, same, len(made[0].plan.messages), flush=True)  # noqa: T201


def main(names):
    dist.init_process_group("gloo")
    if names == ["other on rank 1"]:
        report("different", planned(("WFBP-A2A", "BSP-A2A")[dist.get_rank()]))
    for name in names:
        report(name, name if name in MEASURED or name.endswith(".json") else planned(name))
    report("accumulated", planned("MG-WFBP"), parts=PARTS)
    report("clipped", planned("MG-WFBP"), clip=0.1)
    report("scheduled", planned("DeAR"), decay=0.5)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1:])
    # torch keeps gloo's threads beyond its groups. One that asks for the interpreter's lock while
    # the interpreter ends, as on a machine under load, aborts the process.
    os._exit(0)

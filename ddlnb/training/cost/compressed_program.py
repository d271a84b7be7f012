"""A program with compressed messages: the same players simulate it, overlap included.

The worker compresses every message before it leaves and decompresses it after it has come back.
Both are tasks of the computation, so that they delay what the worker computes after them; on the
network a message is the requests of its compressor.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ddlnb.errors import InputError, require
from ddlnb.simulator.computation import Task, Tasks
from ddlnb.simulator.program import Program
from ddlnb.training.cost.requests import RequestCost


@dataclass(frozen=True)
class CompressedMessage:
    """What compression makes of one message: seconds of the worker, and its cost on the network.

    ``bytes`` are those that one worker sends; it receives as many.
    """

    encode_seconds: float
    decode_seconds: float
    cost: RequestCost
    bytes: float


def compressed(program: Program, messages: Sequence[CompressedMessage]) -> Program:
    """Return the program with every all-reduce replaced by its compressed message.

    Raises InputError for a program that goes through parameter servers.
    """
    require(
        len(program.stages) == 1,
        "only all-to-all programs can be compressed; choose a base method that ends in A2A",
    )
    if len(messages) != len(program.message_bytes):
        raise InputError(
            f"{len(messages)} compressed messages do not fit a program of "
            f"{len(program.message_bytes)}; give one for each"
        )
    (stage,) = program.stages
    stage = replace(
        stage,
        name="compressed",
        latency=np.array([one.cost.latency + one.cost.copies for one in messages]),
        work=np.array([one.cost.work for one in messages]),
    )
    tasks, seconds = _with_compression(program, messages)
    return replace(
        program,
        tasks=tasks,
        task_seconds=np.array(seconds),
        stages=(stage,),
        message_bytes=np.array([round(message.bytes) for message in messages], dtype=np.int64),
    )


def _with_compression(
    program: Program, messages: Sequence[CompressedMessage]
) -> tuple[Tasks, list[float]]:
    """Return tasks with a compression before and a decompression after every message."""
    listed: list[Task] = []
    seconds: list[float] = []
    came_from: list[int] = []  # the task of the program, or -1

    def add(task: Task, taken: float, number: int = -1) -> None:
        listed.append(task)
        seconds.append(taken)
        came_from.append(number)

    for number, task in enumerate(program.tasks.listed):
        for message in task.waits_for:
            taken = messages[message].decode_seconds
            add(Task("decompress", str(message), waits_for=(message,)), taken)
        add(Task(task.kind, task.name), float(program.task_seconds[number]), number)
        for message in task.readies:
            taken = messages[message].encode_seconds
            add(Task("compress", str(message), readies=(message,)), taken)

    def kept(values: np.ndarray) -> np.ndarray:
        return np.array([values[number] if number >= 0 else 0.0 for number in came_from])

    old = program.tasks
    tasks = replace(
        old,
        listed=tuple(listed),
        own_seconds=np.array(seconds),
        readied=np.array([float(len(task.readies)) for task in listed]),
        updated_tensors=kept(old.updated_tensors),
        updated_bytes=kept(old.updated_bytes),
    )
    return tasks, seconds

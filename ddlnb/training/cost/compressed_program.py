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
from ddlnb.simulator.path import ALL_REDUCE
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


def compressed(program: Program, messages: Sequence[CompressedMessage | None]) -> Program:
    """Return the program with every all-reduce replaced by its compressed message.

    Messages that are None stay as they are; where all are, so does the program. A compressed one
    occupies the network for all of its latency. Raises InputError
    for a program that goes through parameter servers.
    """
    if all(message is None for message in messages):
        return program
    require(
        program.stages[0].name == ALL_REDUCE,
        "only all-to-all programs can be compressed; choose a base method that ends in A2A",
    )
    if len(messages) != len(program.message_bytes):
        raise InputError(
            f"{len(messages)} compressed messages do not fit a program of "
            f"{len(program.message_bytes)}; give one for each"
        )
    stage, *later = program.stages
    latency, work = stage.latency.astype(float), stage.work.astype(float)
    is_dense = np.array([message is None for message in messages], float)
    later = [replace(one, latency=one.latency * is_dense) for one in later]
    sent = program.message_bytes.copy()
    for number, message in enumerate(messages):
        if message is not None:
            latency[number] = message.cost.latency + message.cost.copies
            work[number] = message.cost.work
            sent[number] = round(message.bytes)
    stage = replace(stage, name="compressed", latency=latency, work=work)
    tasks, seconds = _with_compression(program, messages)
    return replace(
        program,
        tasks=tasks,
        task_seconds=np.array(seconds),
        stages=(stage, *later),
        message_bytes=sent,
    )


def _with_compression(
    program: Program, messages: Sequence[CompressedMessage | None]
) -> tuple[Tasks, list[float]]:
    """Return tasks with a compression before and a decompression after every compressed message.

    It is decompressed once, for the first layer that waits for it; the others find it done.
    """
    listed: list[Task] = []
    seconds: list[float] = []
    came_from: list[int] = []  # the task of the program, or -1
    decompressed: set[int] = set()

    def add(task: Task, taken: float, number: int = -1) -> None:
        listed.append(task)
        seconds.append(taken)
        came_from.append(number)

    for number, task in enumerate(program.tasks.listed):
        plain = []
        for message in task.waits_for:
            made = messages[message]
            if made is None or message in decompressed:
                plain.append(message)
                continue
            decompressed.add(message)
            add(Task("decompress", str(message), waits_for=(message,)), made.decode_seconds)
        dense = tuple(one for one in task.readies if messages[one] is None)
        add(
            Task(task.kind, task.name, tuple(plain), dense),
            float(program.task_seconds[number]),
            number,
        )
        for message in task.readies:
            made = messages[message]
            if made is not None:
                add(Task("compress", str(message), readies=(message,)), made.encode_seconds)

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

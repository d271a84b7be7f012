"""Executes a plan: starts messages when the plan allows and lets the training loop wait for them.

It knows nothing of models: something says that a gradient is ready, be it the hook of a real
backward pass or a replayed one. The gradients of a worker are in one block of memory laid out in
backward order. A message whose pieces are neighbours in that order is a view of the block and is
sent without a copy; this holds for all methods by name. Any other valid plan is gathered and
scattered.
"""

from __future__ import annotations

import heapq
import threading
import time
from functools import partial
from typing import Any, Protocol

import torch

from ddlnb.engines.base import Handle, Transport
from ddlnb.engines.job import Tracer
from ddlnb.errors import ModelError
from ddlnb.plans.plan import Launch, Order, Plan
from ddlnb.plans.requests import EXCHANGES, Flow
from ddlnb.plans.transfers import joined


class GradientMemory:
    """Flat storage for the gradients of a plan, and the part of it that each message sends."""

    def __init__(self, plan: Plan, dtype: torch.dtype, device: torch.device | str = "cpu"):
        self._offset: dict[str, int] = {}
        total = 0
        for gradient in plan.gradients:
            if gradient.bytes_per_element != dtype.itemsize:
                raise ModelError(
                    f"gradient {gradient.name!r} has {gradient.bytes_per_element} bytes per "
                    f"element in the plan, but the model trains in {dtype}; make the plan from a "
                    f"workload of this model, in one dtype throughout"
                )
            self._offset[gradient.name] = total
            total += gradient.elements
        self._flat = torch.zeros(total, dtype=dtype, device=device)
        self._elements = {gradient.name: gradient.elements for gradient in plan.gradients}
        self._spans = [
            joined(
                (
                    self._offset[piece.gradient] + piece.start,
                    self._offset[piece.gradient] + piece.stop,
                )
                for piece in message.pieces
            )
            for message in plan.messages
        ]
        self._staging = [
            None if len(spans) == 1 else self._flat.new_empty(sum(b - a for a, b in spans))
            for spans in self._spans
        ]

    def gradient(self, name: str) -> torch.Tensor:
        """Return the flat view of one gradient."""
        offset = self._offset[name]
        return self._flat[offset : offset + self._elements[name]]

    def collect(self, index: int) -> torch.Tensor:
        """Return what message ``index`` sends: a view where possible, else a gathered copy."""
        staging = self._staging[index]
        if staging is None:
            ((start, stop),) = self._spans[index]
            return self._flat[start:stop]
        torch.cat([self._flat[start:stop] for start, stop in self._spans[index]], out=staging)
        return staging

    def store(self, index: int, average: torch.Tensor) -> None:
        """Put the average of message ``index`` where its gradients are."""
        if average.data_ptr() == self._flat[self._spans[index][0][0] :].data_ptr():
            return
        taken = 0
        for start, stop in self._spans[index]:
            self._flat[start:stop].copy_(average[taken : taken + stop - start])
            taken += stop - start


class Compressing(Protocol):
    """Averages messages that are compressed; ``step`` counts iterations from 1."""

    step: int

    def __contains__(self, message: int) -> bool:
        """Return whether a message is compressed."""

    def average(self, message: int, gradients: torch.Tensor) -> Flow:
        """Yield the requests of a message and return the average; its gradients come unscaled."""


class MessageScheduler:
    """Starts and awaits the messages of one worker, iteration after iteration."""

    def __init__(
        self,
        plan: Plan,
        memory: GradientMemory,
        transport: Transport,
        timeout_seconds: float = 120.0,
        compressing: Compressing | None = None,
    ):
        self.plan, self.memory, self.transport = plan, memory, transport
        self._compressing = compressing
        self._timeout_seconds = timeout_seconds
        self.tracer: Tracer | None = None
        self._exchange = EXCHANGES[plan.exchange]
        self._names = {
            (leg.message, leg.is_gather): name
            for leg, name in zip(plan.legs, plan.leg_names, strict=True)
        }
        self._waiting_on: dict[int, list[int]] = {i: [] for i in range(len(plan.gradients))}
        for message, positions in enumerate(plan.gradients_of):
            for position in positions:
                self._waiting_on[position].append(message)
        # Reentrant: a transport may call `done` before its `start` returns.
        self._lock = threading.RLock()
        self._round = 0
        self._failure: Exception | None = None
        self.begin()

    def begin(self) -> None:
        """Get ready for the gradients of a new iteration; the messages of the last are done."""
        count = len(self.plan.messages)
        with self._lock:
            if self._compressing is not None:
                self._compressing.step = self._round
            self._round += 1
            self._iteration = self.tracer.iteration if self.tracer else 0
            self._missing = [len(positions) for positions in self.plan.gradients_of]
            self._arrived: set[int] = set()
            self._open = self.plan.launch is Launch.WHEN_READY
            self._ready: list[tuple[int, int]] = []
            self._next = self._flying = 0
            self._flows: list[tuple[Flow, Handle] | None] = [None] * count
            self._is_gathering = not self.plan.is_split
            # With a credit a message may start on another thread than the one that waits for it.
            delayed = self.plan.credit_bytes is not None
            self._started = [threading.Event() for _ in range(count)] if delayed else []

    def has(self, position: int) -> bool:
        """Return whether gradient ``position`` has arrived in this iteration."""
        return position in self._arrived

    def gradient_ready(self, position: int) -> None:
        """Note that gradient ``position`` is in memory, and start what may start now."""
        with self._lock:
            self._arrived.add(position)
            for message in self._waiting_on[position]:
                self._missing[message] -= 1
                if not self._missing[message] and self.plan.order is Order.PRIORITY:
                    priority = self.plan.messages[message].priority
                    heapq.heappush(self._ready, (priority, message))
            if self._open:
                self._start_what_may()

    def backward_done(self) -> list[str]:
        """Start what waited for the end of the backward pass; the names of absent gradients."""
        absent = [g.name for i, g in enumerate(self.plan.gradients) if i not in self._arrived]
        if not absent:
            with self._lock:
                self._open = True
                self._start_what_may()
        return absent

    def wait(self, message: int) -> None:
        """Block until message ``message`` is answered and its average is in memory."""
        if self._started and not self._started[message].wait(self._timeout_seconds):
            raise TimeoutError(
                f"message {message} ({self.plan.messages[message]}) was not started within "
                f"{self._timeout_seconds} s: the messages before it were not answered"
            )
        if self._failure is not None:
            raise self._failure
        if not self._is_gathering:
            self._gather()
        under_way = self._flows[message]
        if under_way is None:
            return
        flow, handle = under_way
        while True:
            answer = handle.wait()
            try:
                handle = self._request(message, flow.send(answer), first=False)
            except StopIteration as finished:
                self.memory.store(message, finished.value)
                self._flows[message] = None
                return

    def _gather(self) -> None:
        """Start the second halves of all messages, as listed among the legs of the plan.

        They start alike on all ranks: when a rank has the first halves of all.
        """
        self._is_gathering = True
        scattered = {}
        for leg in self.plan.legs:
            under_way = self._flows[leg.message]
            assert under_way is not None
            flow, handle = under_way
            if not leg.is_gather:
                scattered[leg.message] = handle.wait()
                continue
            request = flow.send(scattered.pop(leg.message))
            self._flows[leg.message] = flow, self._request(leg.message, request, first=False)

    def _start_what_may(self) -> None:
        while (message := self._startable()) is not None:
            if self.plan.order is Order.PRIORITY:
                heapq.heappop(self._ready)
            self._next += 1
            self._flying += self.plan.message_bytes[message]
            flow = self._flow(message)
            self._flows[message] = (flow, self._request(message, next(flow)))
            if self._started:
                self._started[message].set()

    def _flow(self, message: int) -> Flow:
        gradients = self.memory.collect(message)
        if self._compressing is not None and message in self._compressing:
            return self._compressing.average(message, gradients)
        return self._exchange(gradients)

    def _startable(self) -> int | None:
        if self.plan.order is Order.PRIORITY:
            message = self._ready[0][1] if self._ready else None
        else:
            at_end = self._next == len(self.plan.messages)
            message = None if at_end or self._missing[self._next] else self._next
        credit = self.plan.credit_bytes
        if message is None or credit is None or not self._flying:
            return message
        fits = self._flying + self.plan.message_bytes[message] <= credit
        return message if fits else None

    def _request(self, message: int, request: Any, first: bool = True) -> Handle:
        released = answered = None
        if first and self.plan.credit_bytes is not None:
            released = partial(self._released, message, self._round)
        if (tracer := self.tracer) is not None:
            start, iteration = time.perf_counter(), self._iteration
            name = self._names[message, not first and self.plan.is_split]
            answered = partial(self._answered, tracer, message, name, start, iteration)
        return self.transport.start(message, request, released, answered)

    def _released(self, message: int, round_number: int) -> None:
        """Take the credit back. Called on a transport's thread, where nobody sees exceptions."""
        with self._lock:
            # The waiter may have been woken first and begun the next round already.
            if round_number != self._round:
                return
            self._flying -= self.plan.message_bytes[message]
            try:
                if self._open:
                    self._start_what_may()
            except Exception as error:
                self._failure = error
                for started in self._started:
                    started.set()

    def _answered(
        self, tracer: Tracer, message: int, name: str, start: float, iteration: int
    ) -> None:
        size = self.plan.message_bytes[message]
        tracer.record("message", name, start, time.perf_counter(), size, iteration)

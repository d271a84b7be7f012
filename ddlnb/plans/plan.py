"""A plan: which pieces of which gradients travel together, when, in what order, and who waits.

A plan is data. The simulator and the real engines execute the same one; it checks itself when it
is made, prints as a table, and is the same on every rank.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ddlnb.errors import PlanError, require_known
from ddlnb.plans.requests import EXCHANGES, SPLIT
from ddlnb.units import counted, show_bytes
from ddlnb.workloads.workload import Gradient

MOST_ELEMENTS = 2**53  # of a gradient: those that floats count one by one
REDUCE_SCATTER, ALL_GATHER = "reduce-scatter", "all-gather"


class Launch(Enum):
    """When a message may start."""

    AFTER_BACKWARD = "after backward"
    WHEN_READY = "when ready"


class Order(Enum):
    """Which message starts next.

    LISTED takes them as the plan lists them, waiting for the next one if it is not ready.
    PRIORITY takes, of those ready, the one with the smallest priority; each worker decides for
    itself, so the exchange must not depend on workers agreeing.
    """

    LISTED = "as listed"
    PRIORITY = "by priority"


class Gate(Enum):
    """What the next forward pass of a layer waits for."""

    ALL_LAYERS = "all layers"
    OWN_LAYER = "own layer"


@dataclass(frozen=True)
class Piece:
    """Elements ``start`` to ``stop`` (exclusive) of one flattened gradient."""

    gradient: str
    start: int
    stop: int

    @property
    def elements(self) -> int:
        """Number of elements."""
        return self.stop - self.start


@dataclass(frozen=True)
class Message:
    """Pieces that travel together. A smaller priority is needed sooner by the forward pass."""

    pieces: tuple[Piece, ...]
    priority: int = 0

    @cached_property
    def elements(self) -> int:
        """Number of elements."""
        return sum([piece.elements for piece in self.pieces])

    def __str__(self) -> str:
        first, last = self.pieces[0], self.pieces[-1]
        if len(self.pieces) == 1:
            return f"{first.gradient}[{first.start}:{first.stop}]"
        return f"{first.gradient} .. {last.gradient} ({len(self.pieces)} pieces)"


class Pieces(NamedTuple):
    """Pieces as arrays: the numbers of their messages and gradients, their starts and stops."""

    message: NDArray[np.int64]
    gradient: NDArray[np.int64]
    start: NDArray[np.int64]
    stop: NDArray[np.int64]

    @property
    def elements(self) -> NDArray[np.int64]:
        """How many elements each has."""
        return self.stop - self.start


class Leg(NamedTuple):
    """One trip of message number ``message`` over the network: all of its exchange, or a half."""

    message: int
    primitive: str

    @property
    def is_gather(self) -> bool:
        """Whether this is the second half of a split all-reduce."""
        return self.primitive == ALL_GATHER


@dataclass(frozen=True)
class Plan:
    """The messages of one iteration and their rules.

    ``servers`` is 0 when the exchange uses none; else ``placement`` holds one server per message.
    ``credit_bytes`` bounds the bytes in flight; one message may always be. ``message_bytes`` are
    those of each message, ``digest`` is a text that equal plans share, and printing shows a table.
    ``collectives`` names how the all-reduce of every message travels (``ddlnb cluster list
    topologies`` lists them), "" as the cluster or the engine has it; empty, all do as those have
    it. ``compressions`` says how each message is compressed ("top-k(0.01) + feedback"), "" for one
    that goes as it is; empty, all do; a message that is compressed holds whole tensors. With the
    exchange "split_all_reduce" messages are reduced and scattered as the launch says, and gathered
    after the backward pass.
    Raises PlanError unless every element of every gradient is in exactly one message.

    >>> import ddlnb
    >>> workload = ddlnb.read_profile("small-conv_b64_cpu-1thread")
    >>> print(ddlnb.get_method("WFBP-A2A").plan(workload))  # doctest: +ELLIPSIS
    WFBP-A2A: 28 messages, 3.82 MB, all_reduce; start when ready, as listed; ...
       0      40 B  priority  13  classes.bias[0:10]
    ...
    """

    method: str
    gradients: tuple[Gradient, ...]
    messages: tuple[Message, ...]
    exchange: str
    launch: Launch
    order: Order
    gate: Gate
    credit_bytes: int | None = None
    servers: int = 0
    placement: tuple[int, ...] = ()
    collectives: tuple[str, ...] = ()
    compressions: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        require_known("exchange", self.exchange, EXCHANGES)
        if self.exchange != "push_pull" and self.order is Order.PRIORITY:
            raise PlanError(
                f"plan {self.method!r} lets each worker choose its next all-reduce, but "
                f"collectives must start in the same order on all ranks; list the messages in "
                f"that order and use Order.LISTED"
            )
        if self.credit_bytes is not None and self.credit_bytes < 1:
            raise PlanError(f"credit of {self.credit_bytes} bytes must be at least 1, or None")
        if self.is_split and self.credit_bytes is not None:
            raise PlanError(
                f"plan {self.method!r} splits all-reduces and bounds the bytes in flight by a "
                f"credit of {self.credit_bytes} bytes; gathers wait for all scatters: leave one out"
            )
        self._check_coverage()
        self._check_placement()
        self._check_names("collectives", self.collectives)
        self._check_names("compressions", self.compressions)
        self._check_compressed()

    def _check_names(self, what: str, names: tuple[str, ...]) -> None:
        if names and (self.exchange != "all_reduce" or len(names) != len(self.messages)):
            raise PlanError(
                f"plan {self.method!r} with exchange {self.exchange!r} names {what} for "
                f"{len(names)} of {len(self.messages)} messages; all-reduces take one "
                f"for each or none at all, other exchanges none"
            )

    def _check_compressed(self) -> None:
        sizes = {gradient.name: gradient.elements for gradient in self.gradients}
        for index, compression in enumerate(self.compressions):
            for piece in self.messages[index].pieces if compression else ():
                if piece.elements != sizes[piece.gradient]:
                    raise PlanError(
                        f"plan {self.method!r} compresses a part of {piece.gradient!r} by "
                        f"{compression}, and compressors take whole tensors; cut none of those "
                        f"that are compressed"
                    )
            if compression and self.collectives and self.collectives[index]:
                raise PlanError(
                    f"plan {self.method!r} names collective {self.collectives[index]!r} for a "
                    f"message that is compressed by {compression}, whose requests are the "
                    f"compressor's; name none for it"
                )

    def _check_coverage(self) -> None:
        if not all(message.pieces for message in self.messages):
            raise PlanError(f"plan {self.method!r} has a message without pieces")
        whole = {gradient.name: gradient.elements for gradient in self.gradients}
        for name, elements in whole.items():
            if elements > MOST_ELEMENTS:
                raise PlanError(
                    f"plan {self.method!r} has a gradient {name!r} of {elements:,} elements; no "
                    f"plan has more than {MOST_ELEMENTS:,}"
                )
        for piece in (piece for message in self.messages for piece in message.pieces):
            if piece.gradient not in whole:
                raise PlanError(f"plan {self.method!r} sends unknown {piece.gradient!r}")
            if not 0 <= piece.start < piece.stop <= whole[piece.gradient]:
                raise PlanError(
                    f"piece {piece.gradient}[{piece.start}:{piece.stop}] is not inside the "
                    f"gradient's {counted(whole[piece.gradient], 'element')}"
                )
        sizes = np.array([gradient.elements for gradient in self.gradients], dtype=np.int64)
        _, of, start, stop = pieces = self.pieces
        order = np.lexsort((start, of))
        follows = of[order][1:] == of[order][:-1]
        overlaps = of[order][1:][follows & (start[order][1:] < stop[order][:-1])]
        sent = np.bincount(of, pieces.elements, len(sizes)).astype(np.int64)
        for amiss in sorted({*overlaps.tolist(), *np.flatnonzero(sent != sizes).tolist()}):
            verb = "repeats" if amiss in overlaps else "loses"
            raise PlanError(
                f"plan {self.method!r} {verb} elements of gradient "
                f"{self.gradients[amiss].name!r}: {sizes[amiss]:,} in the workload, "
                f"{sent[amiss]:,} in the messages"
            )

    def _check_placement(self) -> None:
        needed = len(self.messages) if self.servers else 0
        if (self.servers > 0) != (self.exchange == "push_pull") or len(self.placement) != needed:
            raise PlanError(
                f"plan {self.method!r} with exchange {self.exchange!r} and "
                f"{counted(self.servers, 'server')} places {len(self.placement)} of "
                f"{counted(len(self.messages), 'message')}; push_pull needs at least "
                f"one server and every message placed, all-reduces need neither"
            )
        if any(not 0 <= server < self.servers for server in self.placement):
            raise PlanError(f"placement {self.placement} names a server that does not exist")

    @cached_property
    def _position(self) -> dict[str, int]:
        return {gradient.name: index for index, gradient in enumerate(self.gradients)}

    @cached_property
    def pieces(self) -> Pieces:
        """All pieces as arrays: of which message and gradient, by number, from where to where."""
        listed = [piece for message in self.messages for piece in message.pieces]
        counts = [len(message.pieces) for message in self.messages]
        position = self._position
        return Pieces(
            np.repeat(np.arange(len(counts)), counts),
            np.array([position[piece.gradient] for piece in listed], dtype=np.int64),
            np.array([piece.start for piece in listed], dtype=np.int64),
            np.array([piece.stop for piece in listed], dtype=np.int64),
        )

    @cached_property
    def message_bytes(self) -> tuple[int, ...]:
        """Bytes of every message, as listed."""
        each = np.array([gradient.bytes_per_element for gradient in self.gradients])
        found = np.zeros(len(self.messages), dtype=np.int64)
        np.add.at(found, self.pieces.message, self.pieces.elements * each[self.pieces.gradient])
        return tuple(found.tolist())

    @cached_property
    def last_gradients(self) -> tuple[int, ...]:
        """For every message, the position of the last gradient that it waits for."""
        found = np.zeros(len(self.messages), dtype=np.int64)
        np.maximum.at(found, self.pieces.message, self.pieces.gradient)
        return tuple(found.tolist())

    @cached_property
    def gradients_of(self) -> tuple[frozenset[int], ...]:
        """For every message, the positions of the gradients it waits for."""
        position = self._position
        return tuple(
            [
                frozenset([position[piece.gradient] for piece in message.pieces])
                for message in self.messages
            ]
        )

    @cached_property
    def messages_of_layer(self) -> dict[str, tuple[int, ...]]:
        """For every layer with gradients, the messages that carry them, as listed."""
        carried: dict[str, dict[int, None]] = {gradient.layer: {} for gradient in self.gradients}
        layers = [carried[gradient.layer] for gradient in self.gradients]
        message, of, *_ = self.pieces
        for index, position in zip(message.tolist(), of.tolist(), strict=True):
            layers[position][index] = None
        return {layer: tuple(indices) for layer, indices in carried.items()}

    @property
    def compressed_by(self) -> tuple[str, ...]:
        """The compressions of its messages, each once; empty where all go as they are."""
        return tuple(dict.fromkeys(one for one in self.compressions if one))

    @property
    def is_split(self) -> bool:
        """Whether all-reduces go in two halves, of which the second is gathered later."""
        return self.exchange == SPLIT

    @cached_property
    def legs(self) -> tuple[Leg, ...]:
        """What the network carries, in the order in which it starts where messages are listed.

        Each message once; or, of a split all-reduce, all first halves as listed and then all second
        ones, those first that the forward pass needs first.
        """
        every = range(len(self.messages))
        if not self.is_split:
            return tuple([Leg(index, self.exchange) for index in every])
        needed = sorted(every, key=lambda index: self.messages[index].priority)
        return (
            *(Leg(index, REDUCE_SCATTER) for index in every),
            *(Leg(index, ALL_GATHER) for index in needed),
        )

    @cached_property
    def leg_names(self) -> tuple[str, ...]:
        """What timelines call each leg."""
        names = (str(self.messages[leg.message]) for leg in self.legs)
        if not self.is_split:
            return tuple(names)
        return tuple(f"{leg.primitive} of {n}" for leg, n in zip(self.legs, names, strict=True))

    @property
    def digest(self) -> str:
        """A fingerprint of what is sent and how: equal on all ranks, or the run must not start.

        Measured seconds do not enter it.
        """
        shape = [(g.name, g.layer, g.elements, g.bytes_per_element) for g in self.gradients]
        rules = (self.exchange, self.launch, self.order, self.gate, self.credit_bytes)
        said: tuple[object, ...] = (self.method, shape, self.messages, rules)
        said += (self.servers, self.placement)
        said += (self.collectives,) if self.collectives else ()
        said += (("compressed", *self.compressions),) if self.compressions else ()
        text = repr(said)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def __str__(self) -> str:
        by = " and ".join(self.compressed_by)
        compressed = f", compressed by {by}" if by else ""
        credit = f", credit {show_bytes(self.credit_bytes)}" if self.credit_bytes else ""
        to = f" on {counted(self.servers, 'server')}" if self.servers else ""
        lines = [
            f"{self.method}: {counted(len(self.messages), 'message')}, "
            f"{show_bytes(sum(self.message_bytes))}, "
            f"{self.exchange}{to}{compressed}; start {self.launch.value}, "
            f"{self.order.value}{credit}; forward waits for {self.gate.value}"
        ]
        for index, message in enumerate(self.messages):
            where = f"  server {self.placement[index]}" if self.servers else ""
            if self.collectives:
                where = f"  {self.collectives[index] or 'as it is':>16}"
            if self.compressions:
                where += "  compressed" if self.compressions[index] else "       dense"
            lines.append(
                f"{index:4d}  {show_bytes(self.message_bytes[index]):>8}  "
                f"priority {message.priority:3d}{where}  {message}"
            )
        return "\n".join(lines)

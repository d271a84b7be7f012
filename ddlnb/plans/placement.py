"""Which server keeps which message."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Sequence

from ddlnb.plans.plan import Message


def balanced(messages: Sequence[Message], servers: int) -> tuple[int, ...]:
    """Place the largest message first, each on the server with the least load so far.

    >>> from ddlnb.plans.plan import Piece
    >>> balanced([Message((Piece(name, 0, n),)) for name, n in zip("abcd", [5, 4, 3, 2])], 2)
    (0, 1, 1, 0)
    """
    sizes = [message.elements for message in messages]
    load = [(0, server) for server in range(servers)]
    placement = [0] * len(sizes)
    for index in sorted(range(len(sizes)), key=lambda index: (-sizes[index], index)):
        least, server = load[0]
        placement[index] = server
        heapq.heapreplace(load, (least + sizes[index], server))
    return tuple(placement)


def hashed(messages: Sequence[Message], servers: int) -> tuple[int, ...]:
    """Place every message by a hash of its key, as BytePS does; the load is uneven.

    The key of part i of the j-th tensor by name is j * 2**16 + i; the hash is djb2 over its decimal
    digits. A message of several tensors has the key of its first one.

    >>> from ddlnb.plans.plan import Piece
    >>> hashed([Message((Piece("w", 4 * i, 4 * i + 4),)) for i in range(6)], 2)
    (1, 0, 1, 0, 1, 0)
    """
    names = sorted({message.pieces[0].gradient for message in messages})
    number = {name: index for index, name in enumerate(names)}
    parts: Counter[str] = Counter()
    placement = []
    for message in messages:
        name = message.pieces[0].gradient
        placement.append(_djb2(str((number[name] << 16) + parts[name])) % servers)
        parts[name] += 1
    return tuple(placement)


def _djb2(text: str) -> int:
    value = 5381
    for character in text:
        value = (value * 33 + ord(character)) % 2**64
    return value


PLACEMENTS = {"balanced": balanced, "hashed": hashed}

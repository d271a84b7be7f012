"""Connections between all workers of a run: one for each two."""

from __future__ import annotations

import hmac
import secrets
import socket
import time

import torch
import torch.distributed as dist

_TOKEN_BYTES, _RANK_BYTES, _CARD_BYTES = 16, 4, 128


def group_or_default(group: dist.ProcessGroup | None) -> dist.ProcessGroup:
    """Return the group, or the default one that `process_group` makes."""
    found = group if group is not None else dist.group.WORLD
    assert found is not None
    return found


def connect_to_peers(
    host: str, timeout_seconds: float, group: dist.ProcessGroup
) -> dict[int, socket.socket]:
    """Return this rank's connection to every other rank of the process group, by rank.

    Every rank listens on a free port of its machine's address ``host`` for the ranks above it. Who
    does not know the token that rank 0 drew for this run is turned away.
    """
    rank, workers = group.rank(), group.size()
    with socket.create_server((host, 0), backlog=workers) as listener:
        cards = _all_cards(secrets.token_bytes(_TOKEN_BYTES), listener.getsockname(), group)
        token = cards[0][0]
        found = {}
        for other, (_, address) in enumerate(cards[:rank]):
            found[other] = socket.create_connection(address, timeout_seconds)
            found[other].sendall(token + rank.to_bytes(_RANK_BYTES, "little"))
        give_up = time.monotonic() + timeout_seconds
        while len(found) < workers - 1:
            listener.settimeout(max(0.0, give_up - time.monotonic()))
            caller, _ = listener.accept()
            caller.settimeout(timeout_seconds)
            hello = _received(caller, _TOKEN_BYTES + _RANK_BYTES)
            if not hmac.compare_digest(hello[:_TOKEN_BYTES], token):
                caller.close()
                continue
            found[int.from_bytes(hello[_TOKEN_BYTES:], "little")] = caller
    for connection in found.values():
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return found


def _all_cards(
    token: bytes, own: tuple[str, int], group: dist.ProcessGroup
) -> list[tuple[bytes, tuple[str, int]]]:
    """Return token and address of every rank."""
    card = token + f"{own[0]} {own[1]}".encode().ljust(_CARD_BYTES - len(token))
    cards = [torch.empty(_CARD_BYTES, dtype=torch.uint8) for _ in range(group.size())]
    group.allgather([cards], [torch.frombuffer(bytearray(card), dtype=torch.uint8)]).wait()
    found = []
    for one in cards:
        said = bytes(one.tolist())
        host, port = said[_TOKEN_BYTES:].decode().split()
        found.append((said[:_TOKEN_BYTES], (host, int(port))))
    return found


def _received(caller: socket.socket, count: int) -> bytes:
    """Return so many bytes, or fewer if the caller hangs up before."""
    hello = b""
    while len(hello) < count and (more := caller.recv(count - len(hello))):
        hello += more
    return hello

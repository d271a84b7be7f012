"""What is done to a good file: bytes, words, numbers and structure become odd."""

from __future__ import annotations

import json
import random
import re
from typing import Any

ODD_VALUES: list[Any] = [
    *(None, True, -1, 0, 1e308, 10**400, -(10**30), 2**63, 0.5, float("nan"), float("inf")),
    *("", "x", "nan", "inf", "\x00", "\x1b[31m", "<b>", "1" * 5000),
    *([], {}, [[]], {"a": 1}, [1] * 50, {"": None}),
]
ODD_WORDS = [
    *(b"", b"-1", b"0", b"nan", b"inf", b"1e999", b"9" * 400, b"9" * 5000, b"1_000", b"0x"),
    *(b"\xff\xfe", b"\xc3", b"\x00", b"\r", b"\n", b"\x85", b"\xef\xbb\xbf", b"\xe2\x80\xa8"),
    *(
        b"'",
        b'"',
        b"{",
        b"}",
        b"[",
        b"]",
        b"(",
        b")",
        b",",
        b":",
        b"~",
        b"\\ud800",
        b"\x1b]0;x\x07",
    ),
    *(b"&a [*a]", b"*a", b"<<: *a", b"? [a]", b"{[a]: b}", b"!!set {a}", b"!!binary =", b".inf"),
    *(b"!!timestamp 2001-99-99", b"2001-99-99", b"1:99:99", b"!!int x", b"!!float x"),
    *(b"!!python/name:os.system", "é".encode(), b"\x1b]0;x\x07"),
]
_TOKEN = re.compile(rb"[-+.\w]+|[^\s\w]")
DEPTH = 100_000


def mutated(seed: bytes, chance: random.Random) -> bytes:
    """Return the bytes, changed in one to four ways; the same for the same chance."""
    for _ in range(chance.choice((1, 1, 1, 2, 4))):
        seed = chance.choice(_WAYS)(seed, chance)
    return seed


def _flipped(seed: bytes, chance: random.Random) -> bytes:
    changed = bytearray(seed)
    for _ in range(chance.randint(1, 8)):
        if changed:
            changed[chance.randrange(len(changed))] = chance.randrange(256)
    return bytes(changed)


def _cut(seed: bytes, chance: random.Random) -> bytes:
    start, stop = sorted(chance.randrange(len(seed) + 1) for _ in "ab")
    return chance.choice((seed[:start], seed[stop:], seed[:start] + seed[stop:]))


def _repeated(seed: bytes, chance: random.Random) -> bytes:
    start = chance.randrange(len(seed) + 1)
    part = seed[start : start + chance.choice((1, 10, 100))]
    return seed[:start] + part * chance.choice((1, 2, 50)) + seed[start:]


def _word(seed: bytes, chance: random.Random) -> bytes:
    words = list(_TOKEN.finditer(seed, 0, min(len(seed), 100_000)))
    if not words:
        return chance.choice(ODD_WORDS)
    at = chance.choice(words)
    return seed[: at.start()] + chance.choice(ODD_WORDS) + seed[at.end() :]


def _swapped(seed: bytes, chance: random.Random) -> bytes:
    lines = seed.splitlines(keepends=True)
    if len(lines) < 2:
        return seed[::-1]
    one, other = (chance.randrange(len(lines)) for _ in "ab")
    lines[one], lines[other] = lines[other], lines[one]
    return b"".join(lines)


def _nested(seed: bytes, chance: random.Random) -> bytes:
    opening = chance.choice((b"[", b"{", b"(", b'{"a":', b"- ", b"a: [", b"a("))
    depth = chance.choice((50, 1_000, DEPTH))
    at = chance.choice((0, chance.randrange(len(seed) + 1)))
    return seed[:at] + opening * depth + seed[at:]


def _value(seed: bytes, chance: random.Random) -> bytes:
    """Replace, drop or rename one value of a JSON text, wherever it is."""
    try:
        tree = json.loads(seed)
    except (ValueError, RecursionError):
        return _word(seed, chance)
    places: list[tuple[Any, Any]] = []
    pending = [tree]
    while pending and len(places) < 3_000:
        one = pending.pop(chance.randrange(len(pending)))
        if isinstance(one, dict | list):
            items = list(one.items() if isinstance(one, dict) else enumerate(one))
            places += [(one, key) for key, _ in items]
            pending += [value for _, value in items]
    if not places or chance.random() < 0.02:
        return json.dumps(chance.choice(ODD_VALUES)).encode()
    parent, key = chance.choice(places)
    if chance.random() < 0.2:
        del parent[key]
    else:
        parent[key] = chance.choice(ODD_VALUES)
    return json.dumps(tree).encode()


def _bomb(seed: bytes, chance: random.Random) -> bytes:
    lines = ["a: &a [x, x, x, x, x, x, x, x, x]"]
    for one, before in zip("bcdefghij", "abcdefghi", strict=True):
        lines.append(f"{one}: &{one} [{', '.join([f'*{before}'] * 9)}]")
    return "\n".join(lines).encode() + b"\n" + seed


_WAYS = (_flipped, _cut, _repeated, *[_word] * 4, _swapped, _nested, *[_value] * 6, _bomb)

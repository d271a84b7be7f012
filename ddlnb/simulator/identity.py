"""A key for caches of what was made of large frozen values, whose own hashes take too long."""

from __future__ import annotations

from typing import Any


class Identity:
    """A tuple of objects that hashes and compares by which objects they are.

    >>> first, second = [1], [1]
    >>> Identity((first,)) == Identity((first,)), Identity((first,)) == Identity((second,))
    (True, False)
    """

    def __init__(self, parts: tuple[Any, ...]):
        self.parts = parts
        self._key = tuple(map(id, parts))

    def __hash__(self) -> int:
        return hash(self._key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Identity) and self._key == other._key

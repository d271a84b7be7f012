"""What our own micro-benchmark keeps of its all-reduces (`ddlnb calibrate here`)."""

from __future__ import annotations

import json
from collections.abc import Iterator

_KEYS = {"workers", "message_bytes", "seconds", "while_computing"}


def is_probe(text: str) -> bool:
    """Return whether a text is a list of timed all-reduces."""
    try:
        listed = json.loads(text)
    except ValueError:
        return False
    return isinstance(listed, list) and bool(listed) and all(set(one) == _KEYS for one in listed)


def tables(text: str) -> Iterator[dict[str, object]]:
    """Yield a row for every all-reduce. The workers are ranks of one node unless told otherwise."""
    for one in json.loads(text):
        yield {
            "collective": "all_reduce",
            "nodes": 1,
            "gpus_per_node": one["workers"],
            "ranks": one["workers"],
            "library": "gloo",
            "settings": "while computing" if one["while_computing"] else "",
            "size_bytes": one["message_bytes"],
            "dtype": "float",
            "time_us_out_of_place": one["seconds"] * 1e6,
        }

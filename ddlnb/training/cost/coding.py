"""Seconds that a worker spends on compressing and decompressing, from a profile of compressors."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from ddlnb.compression.profile import CompressionProfile
from ddlnb.training.cost.tensors import CompressedPiece


def coding_seconds(
    group: Sequence[CompressedPiece],
    profile: CompressionProfile,
    workers: int,
    feedback: bool = False,
) -> tuple[float, float]:
    """Return the seconds of one worker before and after the requests for these pieces.

    ``workers`` is the number of payloads that it decodes. Raises InputError for a compressor that
    the profile lacks.
    """
    before, after = 0.0, 0.0
    for (compressor, shape), count in Counter(group).items():  # layers repeat
        seconds, size = profile.of(compressor), math.prod(shape)
        own = profile.feedback.seconds(size) if feedback else 0.0
        before += count * (seconds.before(size) + own)
        after += count * seconds.after(size, workers)
    return before, after


def coding_source(group: Sequence[CompressedPiece], profile: CompressionProfile) -> str:
    """Return where the seconds of these pieces come from, and how far they are extrapolated."""
    return profile.source_for(max((math.prod(shape) for _, shape in group), default=0))

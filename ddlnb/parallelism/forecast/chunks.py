"""Chunks of layers that a pipeline stage may hold: what interleaved schedules can run.

Megatron-LM (arXiv 2104.04473, section 2.2) deals the layers of every stage to ``vpp`` chunks of the
same size, and starts micro batches in groups of as many as there are stages.
"""

from __future__ import annotations

from ddlnb.errors import InputError, require
from ddlnb.parallelism.forecast.frameworks import FRAMEWORKS, Framework

INTERLEAVED = "interleaved"
INTERLEAVES = "1f1b"  # the schedule of which chunks make the interleaved one


def chunk_degrees(layers: int, pp: int, micro_batches: int) -> list[int]:
    """Return how many chunks a stage can hold, from 1 to a layer in each.

    More than 1 where stages have the same number of layers, which the chunks divide, and micro
    batches are a multiple of the stages.

    >>> chunk_degrees(96, 8, 16), chunk_degrees(96, 8, 12), chunk_degrees(126, 4, 16)
    ([1, 2, 3, 4, 6, 12], [1], [1])
    """
    each, left = divmod(layers, pp)
    if pp == 1 or left or micro_batches % pp:
        return [1]
    return [chunks for chunks in range(1, each + 1) if each % chunks == 0]


def searched_chunks(framework: Framework, schedule: str, vpp: int | None) -> bool:
    """Return whether a search looks at interleaved pipelines.

    Raises InputError where ``vpp`` asks for them, and framework or schedule have none.
    """
    if vpp is not None and vpp > 1:
        able = [one.name for one in FRAMEWORKS if one.interleaves]
        require(
            framework.interleaves,
            f"vpp {vpp}: {framework.name} runs no interleaved pipelines; use vpp 1, or one of the "
            f"frameworks {', '.join(able)}",
        )
        require(
            schedule == INTERLEAVES,
            f"vpp {vpp}: the schedule {schedule} has one chunk per stage; use vpp 1, or the "
            f"schedule {INTERLEAVES}",
        )
    return framework.interleaves and schedule == INTERLEAVES and vpp != 1


def no_such_chunks(vpp: int, model: str, layers: int, gpus: int, offered: set[int]) -> InputError:
    """Return the error for a degree that no layout has, with those that some have."""
    return InputError(
        f"vpp {vpp} divides the {layers} layers of {model} in no layout on {gpus} GPUs (chunks "
        f"divide the layers of a stage, stages the micro batches); use one of "
        f"{', '.join(map(str, sorted(offered)))}"
    )

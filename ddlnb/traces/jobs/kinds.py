"""The kinds of operations that job traces name: what they do, and with which peers.

Names and groups are those of Megatron-LM, as in the traces published with "Understanding
Stragglers in Large Model Training Using What-if Analysis" (arXiv 2505.05713, section 3).
"""

from __future__ import annotations

from dataclasses import dataclass

COMPUTE, POINT_TO_POINT, COLLECTIVE, OTHER = "compute", "point-to-point", "collective", "other"
# Who takes part in a collective: workers that share all but one coordinate, or everyone.
DATA, TENSOR, PIPELINE, JOB = "data", "tensor", "pipeline", "job"


@dataclass(frozen=True)
class OperationKind:
    """``scopes`` are the groups that the kind may synchronise, the widest first.

    Of several, the first that agrees with the trace holds: nobody leaves a collective before the
    last one has come.
    """

    name: str
    family: str
    scopes: tuple[str, ...] = ()


KINDS = {
    kind.name: kind
    for kind in (
        OperationKind("forward-compute", COMPUTE),
        OperationKind("backward-compute", COMPUTE),
        OperationKind("forward-send", POINT_TO_POINT),
        OperationKind("forward-recv", POINT_TO_POINT),
        OperationKind("backward-send", POINT_TO_POINT),
        OperationKind("backward-recv", POINT_TO_POINT),
        OperationKind("params-all-gather", COLLECTIVE, (DATA,)),
        OperationKind("params-sync", COLLECTIVE, (DATA,)),
        OperationKind("grads-reduce-scatter", COLLECTIVE, (DATA,)),
        OperationKind("grads-all-reduce", COLLECTIVE, (DATA,)),
        OperationKind("grads-sync", COLLECTIVE, (DATA,)),
        OperationKind("layernorm-grads-all-reduce", COLLECTIVE, (TENSOR,)),
        OperationKind("embedding-grads-all-reduce", COLLECTIVE, (PIPELINE,)),
        OperationKind("optimizer-clip-main-grad", COLLECTIVE, (JOB, PIPELINE, DATA)),
        OperationKind("optimizer", OTHER),
        OperationKind("gc", OTHER),
    )
}
# A message is a send and the receive of the same number on the next stage in this direction.
MESSAGES = (("forward-send", "forward-recv", 1), ("backward-send", "backward-recv", -1))


def family_of(name: str) -> str:
    """Return the family of a kind by its name; a kind that nobody knows is OTHER."""
    return KINDS[name].family if name in KINDS else OTHER

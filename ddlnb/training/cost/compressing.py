"""A plan whose messages are compressed, each by what the plan names: its program, and its seconds.

What compression makes of one message is said in `ddlnb.training.cost.overlapped`, for plans and
for the fixed methods alike.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from ddlnb.clusters.cluster import Cluster
from ddlnb.compression.profile import CompressionProfile
from ddlnb.errors import require
from ddlnb.plans.plan import Plan
from ddlnb.simulator.program import lower_as_dense
from ddlnb.simulator.unlike.team import Slowness
from ddlnb.training.cost.compressed_program import CompressedMessage, compressed
from ddlnb.training.cost.overlapped import compressed_message, require_float32
from ddlnb.training.cost.tensors import (
    CompressedPiece,
    compressed_pieces,
    require_shapes,
    tensor_shapes,
)
from ddlnb.training.cost.uneven import PlayedIteration, play_uneven
from ddlnb.training.method import TrainingMethod, training_method
from ddlnb.training.synchronisation.catalogue import SYNCHRONISATIONS
from ddlnb.workloads.workload import Workload


def compressing_method(compression: str) -> TrainingMethod:
    """Return BSP with a compression as plans name it, such as "top-k(0.01) + feedback".

    Raises UnknownName for a compressor that there is not, InputError for one that does not fit.
    """
    first = compression.partition("+")[0].strip()
    require(
        first not in SYNCHRONISATIONS,
        f"compression {compression!r} begins with a synchronisation, and plans are for bsp; leave "
        f"{first!r} out",
    )
    method = training_method(f"bsp + {compression}")
    require(
        method.compressor is not None,
        f"compression {compression!r} compresses nothing; name a compressor, or leave it out",
    )
    require(
        not method.whole_model,
        f"compression {compression!r} makes one message of the whole model, which leaves nothing "
        f"to plan; leave whole-model out",
    )
    return method


@dataclass(frozen=True)
class Compressing:
    """The compressed messages of a workload on a cluster, with the seconds of a profile.

    Raises InputError for gradients other than float32.
    """

    workload: Workload
    cluster: Cluster
    profile: CompressionProfile
    _pieces: dict[str, dict[str, CompressedPiece]] = field(default_factory=dict, repr=False)
    _made: dict[tuple[str, tuple[str, ...]], CompressedMessage] = field(
        default_factory=dict, repr=False
    )

    def __post_init__(self) -> None:
        require_float32(self.workload)

    def pieces(self, compression: str) -> dict[str, CompressedPiece]:
        """Return every tensor as a compression takes it, by name.

        Raises InputError for a compressor that needs shapes of tensors that are not known.
        """
        if compression not in self._pieces:
            compressor = compressing_method(compression).compressor
            assert compressor is not None
            require_shapes(self.workload, compressor)
            shapes = tensor_shapes(self.workload)
            listed = compressed_pieces(compressor, shapes.values())
            self._pieces[compression] = dict(zip(shapes, listed, strict=True))
        return self._pieces[compression]

    def message(self, compression: str, gradients: tuple[str, ...]) -> CompressedMessage:
        """Return what a compression makes of the message that carries these gradients.

        Raises InputError for a compressor whose seconds the profile lacks.
        """
        key = compression, gradients
        if key not in self._made:
            by_name = self.pieces(compression)
            self._made[key] = self.maker(compression)([by_name[name] for name in gradients])
        return self._made[key]

    def maker(self, compression: str) -> Callable[[Sequence[CompressedPiece]], CompressedMessage]:
        """Return what makes a message of tensors with their compressors."""
        feedback = compressing_method(compression).feedback
        return partial(
            compressed_message, cluster=self.cluster, profile=self.profile, feedback=feedback
        )

    def messages(self, plan: Plan) -> list[CompressedMessage | None]:
        """Return what compression makes of every message of a plan; None where it is dense."""
        if not plan.compressions:
            return [None] * len(plan.messages)
        return [
            self.message(compression, tuple(piece.gradient for piece in message.pieces))
            if compression
            else None
            for message, compression in zip(plan.messages, plan.compressions, strict=True)
        ]

    def played(
        self,
        plan: Plan,
        messages: Sequence[CompressedMessage | None],
        slower: Slowness | None = None,
        steps: int = 1,
    ) -> PlayedIteration:
        """Return the seconds of a plan with these messages; stragglers hold everybody up."""
        program = lower_as_dense(self.workload, self.cluster, plan, keep=False)
        finish = partial(compressed, messages=messages)
        return play_uneven(program, finish, self.cluster, slower, steps)

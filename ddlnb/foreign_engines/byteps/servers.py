"""BytePS's servers for training methods: its two modes are two of our rules.

A synchronous server of BytePS answers when all workers have pushed, with the sum of the round, the
rule of BSP and of local SGD. An asynchronous one (``BYTEPS_ENABLE_ASYNC=1``) adds every push to a
sum that is zero at first, and answers a pull at once: the rule of ASP. A worker pulls when its push
has been added, so the answer holds its own push, and perhaps some that came in between. BytePS has
nothing between the two modes, and the methods that need it are refused.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ddlnb.engines.base import Callback, Handle
from ddlnb.foreign_engines.byteps import runtime
from ddlnb.foreign_engines.byteps.engine import KINDS, BytePSTransport, uncut
from ddlnb.foreign_engines.byteps.runtime import Membership
from ddlnb.foreign_engines.catalogue import require_summed
from ddlnb.launch.rank import RankContext
from ddlnb.plans.requests import PushPull
from ddlnb.plans.server_rules import BulkSynchronous, Rule
from ddlnb.training.executors.distributed import ParameterServers
from ddlnb.training.method import Arrival, TrainingJob, TrainingMethod
from ddlnb.training.server_rules import BoundedStaleness
from ddlnb.training.worker import Worker


class OneMessagePerSize(BytePSTransport):
    """Answers the pushes of a loop. Messages of BytePS keep their size, so each size has its own.

    In either mode all workers push a new size for the first time together.
    """

    def __init__(self, membership: Membership):
        super().__init__(membership)
        self._numbers: dict[int, int] = {}

    def prepare(self, tensor: Tensor) -> int:
        """Return the number of the message for tensors of this size, declared if it is new."""
        size = tensor.numel()
        if size not in self._numbers:
            self._numbers[size] = self.declare(f"{size} elements", tensor)
        return self._numbers[size]

    def start(
        self, message: int, request: PushPull, released: Callback = None, answered: Callback = None
    ) -> Handle:
        """Push the request's tensor; it holds the answer once the handle's wait returns."""
        return super().start(self.prepare(request.tensor), request, released, answered)


def _connect_byteps(
    context: RankContext, store: Any, job: TrainingJob, worker: Worker
) -> OneMessagePerSize:
    """Return this worker's connection to the server; all workers call it together.

    Raises ModelError, BytePSError and MissingPart.
    """
    require_summed("BytePS", worker.module, KINDS)
    whole = uncut(worker.parameters.nbytes)
    asynchronous = bool(_is_asynchronous(job.method))
    membership = Membership(
        context, store, job.workers, job.servers, whole, asynchronous=asynchronous
    )
    transport = OneMessagePerSize(membership)
    transport.prepare(worker.parameters)
    return transport


def _serve_byteps(context: RankContext, store: Any, job: TrainingJob) -> tuple[Arrival, ...]:
    """Serve until all workers have left. BytePS does not report in which order they pushed."""
    asynchronous = bool(_is_asynchronous(job.method))
    runtime.serve(context, store, job.workers, job.servers, asynchronous)
    return ()


def _byteps_refuses(method: TrainingMethod) -> str:
    """Return why BytePS's servers cannot run a training method; "" if they can."""
    if method.architecture != "PS":
        return f"BytePS has parameter servers only, and the method runs on {method.architecture}"
    if method.compressor is not None:
        return f"BytePS's servers add what they receive, and cannot decode {method.compressor}"
    if _is_asynchronous(method) is None:
        return (
            f"BytePS's servers answer when all workers have pushed, as bsp wants, or at once, as "
            f"asp does, and {method.synchronisation} wants neither"
        )
    return ""


def _is_asynchronous(method: TrainingMethod) -> bool | None:
    """Return the mode that is the method's rule; None if neither is."""
    rule: Rule | None = method.synchronisation.rule(1)
    if isinstance(rule, BulkSynchronous):
        return False
    if isinstance(rule, BoundedStaleness) and rule.bound is None:
        return True
    return None


SERVERS = ParameterServers("byteps", _connect_byteps, _serve_byteps, _byteps_refuses)

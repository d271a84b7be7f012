"""The survey's one-sentence description of a method, from its choice in each of the six aspects.

The seven methods of the survey and DeAR, each one row, and the plan that follows from a row.

The survey describes a method by six aspects (section 3, levels 1-3): synchronisation,
compression, scheduling, architecture, protocol, topology. `Method.sentence` prints its sentence.

>>> import ddlnb
>>> [name for name, method in ddlnb.METHODS.items() if method.architecture == "PS"]
['BSP-PS', 'WFBP-PS', 'ByteScheduler-PS']
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any, ClassVar, Protocol

from ddlnb.errors import (
    InputError,
    UnknownName,
    require,
    require_known,
    require_whole,
)
from ddlnb.plans.alpha_beta import AlphaBeta
from ddlnb.plans.bucketing import (
    BUFFERED,
    DDP_BUCKETS,
    MERGED,
    ONE_BUCKET,
    PER_TENSOR,
    PLACEMENTS,
    Bucketing,
    by_priority,
    ddp_buckets,
    partitioned,
)
from ddlnb.plans.plan import Gate, Launch, Order, Plan
from ddlnb.plans.requests import EXCHANGES, SPLIT
from ddlnb.registry import enter, supplied, supplied_names
from ddlnb.units import MB, MIB, bytes_from
from ddlnb.workloads.workload import Workload

# How names of the catalogue are spelt in the literature; the others are spelt as they are.
SPOKEN = {
    "local": "local SGD",
    "post-local": "post-local SGD",
    "adaptive-local": "adaptive local SGD",
    "choco": "CHOCO-SGD",
}
IN_CAPITALS = ("bsp", "ssp", "dssp", "asp", "r2sp", "d-psgd", "dcd-psgd", "ecd-psgd")
TOPOLOGY = {"PS": "a star", "A2A": "a ring"}


def spoken(synchronisation: str) -> str:
    """Return the name of a synchronisation as it is said.

    >>> spoken("ssp"), spoken("local"), spoken("new-one")
    ('SSP', 'local SGD', 'new-one')
    """
    if synchronisation.casefold() in IN_CAPITALS:
        return synchronisation.upper()
    return SPOKEN.get(synchronisation, synchronisation)


def sentence(
    synchronisation: str,
    compression: str | None,
    scheduling: str | None,
    architecture: str,
    protocol: str = "TCP/IP",
    topology: str | None = None,
) -> str:
    """Section 3 of the survey in one sentence. A server makes a star, all others make a ring.

    >>> sentence("SSP", "top-k compression", None, "PS")
    'it exploits SSP with top-k compression and no scheduling, running on PS built on TCP/IP and a star'
    """  # noqa: E501
    topology = topology or TOPOLOGY.get(architecture, "a ring")
    return (
        f"it exploits {spoken(synchronisation)} with {compression or 'no compression'} "
        f"and {scheduling or 'no scheduling'}, running on {architecture} "
        f"built on {protocol} and {topology}"
    )


MOST_MESSAGES = 100_000  # a stated budget: planned, lowered and played in some ten seconds
BYTEPS_PARTITION = 4_096_000  # the default of BytePS, which the survey's PS methods ran on
RESERVED = ("all", "single")  # every method, and none
OF_TRAINING = (  # first words of training methods, which are named where methods are
    *("bsp", "local", "post-local", "adaptive-local", "ssp", "dssp", "asp", "r2sp"),
    *("d-psgd", "dcd-psgd", "ecd-psgd", "choco"),
)
SPLITS_MODELS = "FSDP, HSDP and ZeRO split the model: `ddlnb layouts scale` ranks splits"


CHOICES: dict[str, tuple[type, str]] = {  # of a method, by its field: what it is, and how to say so
    "launch": (Launch, " or ".join(map(str, Launch))),
    "gate": (Gate, " or ".join(map(str, Gate))),
    "bucketing": (Bucketing, "Bucketing(RULE)"),
}


class Planner(Protocol):
    """Makes a plan where a row's rules do not say it: one that is kept, or that is searched.

    ``cluster`` is a `ddlnb.clusters.cluster.Cluster`, of which this room knows nothing, or None
    where the caller has none.
    """

    def __call__(self, workload: Workload, cluster: Any = None) -> Plan:
        """Return the plan. Raises InputError without a cluster, if it takes one."""


@dataclass(frozen=True)
class Method:
    """How gradients are exchanged. ``scheduling`` is the survey's word, None for plain BSP.

    ``bucketing`` groups gradients into messages, ``exchange`` is "push_pull", "all_reduce" or
    "split_all_reduce", ``launch`` says when messages may start, ``priority`` whether those of early
    layers go first, and ``gate`` what the next forward pass waits for. ``partition_bytes`` is the
    largest message and ``credit_bytes`` the most bytes in flight, None for no limit. What is sent
    is dense, unless a ``planner`` compresses, as ``compression`` says. A method that ``tunes`` has
    those for which it is quickest on the cluster that it is planned for
    (`ddlnb.simulator.simulate`), and without a cluster, as in a measurement, those that stand here.
    ``planner`` makes the plan instead of all these, if there is one. ``plan(workload)`` returns the
    `Plan`, ``sentence()`` the survey's description, ``tuned(partition="1MB")`` another partition.

    >>> import ddlnb
    >>> workload = ddlnb.read_profile("small-conv_b64_cpu-1thread")
    >>> wfbp, merged = ddlnb.get_method("WFBP-A2A"), ddlnb.get_method("MG-WFBP")
    >>> len(wfbp.plan(workload).messages)
    28
    >>> len(merged.plan(workload, cost=ddlnb.plans.AlphaBeta(1e-3, 1e-9)).messages)
    5
    """

    name: str
    scheduling: str | None
    bucketing: Bucketing
    exchange: str
    launch: Launch
    priority: bool
    gate: Gate
    partition_bytes: int | None = None
    credit_bytes: int | None = None
    tunes: bool = False
    compression: str | None = None
    planner: Planner | None = None
    synchronisation: ClassVar[str] = "BSP"

    def __post_init__(self) -> None:
        for what, (kind, way) in CHOICES.items():
            require(
                isinstance(choice := getattr(self, what), kind),
                f"{what} {choice!r} of method {self.name!r} is no {kind.__name__}; write {way}",
            )
        require_known("exchange", self.exchange, EXCHANGES)
        require_whole(
            **{
                name: size
                for name in ("partition_bytes", "credit_bytes")
                if (size := getattr(self, name)) is not None
            }
        )
        require(
            self.compression is None or self.planner is not None,
            f"compression {self.compression!r} of method {self.name!r} would change nothing: a "
            f"method's messages are dense; a lossy one is named, such as 'bsp + top-k(0.01)', and "
            f"takes a compressor of yours by its name",
        )

    @property
    def architecture(self) -> str:
        """PS or A2A."""
        return "PS" if self.exchange == "push_pull" else "A2A"

    @property
    def needs_cost(self) -> bool:
        """Say whether the plan depends on the time of an all-reduce."""
        return self.bucketing.needs_cost or self._is_ordered_in_advance

    @property
    def _is_ordered_in_advance(self) -> bool:
        return self.priority and self.exchange == "all_reduce"

    @property
    def sizes(self) -> str:
        """Its partition and credit, for the tidy column ``settings``; empty without any.

        >>> METHODS["ByteScheduler-PS"].tuned(credit="64MB").sizes
        'partition=4096000B credit=64000000B'
        """
        sizes = {"partition": self.partition_bytes, "credit": self.credit_bytes}
        return " ".join(f"{name}={size}B" for name, size in sizes.items() if size)

    def sentence(self, protocol: str = "TCP/IP", topology: str | None = None) -> str:
        """Return the survey's one-sentence description of the method.

        >>> METHODS["BSP-A2A"].sentence()
        'it exploits BSP with no compression and no scheduling, running on A2A built on TCP/IP and a ring'
        """  # noqa: E501
        return sentence(
            self.synchronisation,
            self.compression,
            self.scheduling,
            self.architecture,
            protocol,
            topology,
        )

    def planned(self, *known: Any) -> Plan:
        """Return what its planner makes of a workload, and of a cluster if it is given."""
        plan = self.planner(*known) if callable(self.planner) else None
        require(
            isinstance(plan, Plan),
            f"the planner of {self.name!r} makes a {type(plan).__name__}; let it return a Plan",
        )
        return plan  # type: ignore[return-value]

    def plan(
        self,
        workload: Workload,
        *,
        cost: AlphaBeta | None = None,
        servers: int = 1,
        placement: str = "balanced",
    ) -> Plan:
        """Return the plan of this method for a workload.

        ``cost`` is the time of one all-reduce of M bytes among the workers; MG-WFBP and
        ByteScheduler-A2A need it and raise InputError without. ``servers`` counts parameter
        servers; the all-to-all methods ignore it. No message exceeds the share of one server, so
        that all servers have work if they are balanced. ``placement`` is one of PLACEMENTS.
        """
        require_whole(servers=servers)
        if self.planner is not None:
            return self.planned(workload)
        require_known("placement", placement, PLACEMENTS)
        element_bytes = _element_size(workload)
        messages = self.bucketing.messages(workload, cost)
        limit = self.partition_bytes
        if self.exchange == "push_pull":
            share = math.ceil(workload.gradient_bytes / servers)
            limit = min(limit or share, share)
        if limit is not None:
            parts = sum(math.ceil(m.elements / max(1, limit // element_bytes)) for m in messages)
            require(
                max(parts, servers) <= MOST_MESSAGES,
                f"the plan of {self.name!r} would have {max(parts, servers):,} messages or "
                f"servers, and planning and simulating more than {MOST_MESSAGES:,} takes minutes "
                f"and gigabytes; choose a larger partition or fewer servers",
            )
            messages = partitioned(messages, element_bytes, limit)
        if self._is_ordered_in_advance:
            if cost is None:
                raise InputError(
                    f"ordering the messages of {self.name!r} by priority needs the cost of an "
                    f"all-reduce; pass cost=AlphaBeta(a, b)"
                )
            messages = by_priority(messages, workload, cost, self.credit_bytes)
        plan_servers = servers if self.exchange == "push_pull" else 0
        return Plan(
            method=self.name,
            gradients=workload.gradients,
            messages=tuple(messages),
            exchange=self.exchange,
            launch=self.launch,
            order=Order.PRIORITY if self.priority and plan_servers else Order.LISTED,
            gate=self.gate,
            credit_bytes=self.credit_bytes,
            servers=plan_servers,
            placement=PLACEMENTS[placement](messages, plan_servers) if plan_servers else (),
        )

    def tuned(
        self, *, partition: str | int | None = None, credit: str | int | None = None
    ) -> Method:
        """Return the method with another partition size or credit where it has one, else itself.

        With a size given by hand it tunes none.
        """
        given: dict[str, Any] = {
            name: bytes_from(size)
            for name, size in (("partition_bytes", partition), ("credit_bytes", credit))
            if size is not None and getattr(self, name) is not None
        }
        return replace(self, **given, tunes=False) if given else self


def require_tunable(
    methods: Iterable[Method],
    *,
    partition: str | int | None = None,
    credit: str | int | None = None,
) -> None:
    """Raise InputError for a size that none of the methods has, so that it would change nothing.

    >>> require_tunable([METHODS["MG-WFBP"]], partition="1MB")
    Traceback (most recent call last):
    ddlnb.errors.InputError: partition '1MB' changes nothing: MG-WFBP has none; leave it out, or \
take one of BSP-PS, WFBP-PS, ByteScheduler-PS, ByteScheduler-A2A
    """
    chosen = list(methods)
    for what, size in (("partition", partition), ("credit", credit)):
        has = [name for name, one in METHODS.items() if getattr(one, f"{what}_bytes") is not None]
        names = ", ".join(method.name for method in chosen) or "a baseline"
        require(
            size is None or any(getattr(one, f"{what}_bytes") is not None for one in chosen),
            f"{what} {size!r} changes nothing: {names} has none; leave it out, or take one of "
            f"{', '.join(has)}",
        )


def _element_size(workload: Workload) -> int:
    sizes = {gradient.bytes_per_element for gradient in workload.gradients}
    require(
        len(sizes) <= 1,
        f"workload {workload.model!r} mixes gradients of {sorted(sizes)} bytes per element, "
        f"which one message cannot carry; convert the model to one dtype, or send all of them "
        f"in one (--gradients fp16, or workload.sent_as('fp16'))",
    )
    return sizes.pop()


_ROWS = [
    # name, scheduling, messages, exchange, launch, priority, gate, partition, credit, tunes
    Method("BSP-PS", None, ONE_BUCKET, "push_pull",
           Launch.AFTER_BACKWARD, False, Gate.ALL_LAYERS, BYTEPS_PARTITION),
    Method("BSP-A2A", None, ONE_BUCKET, "all_reduce",
           Launch.AFTER_BACKWARD, False, Gate.ALL_LAYERS),
    Method("WFBP-PS", "pipelining", PER_TENSOR, "push_pull",
           Launch.WHEN_READY, False, Gate.ALL_LAYERS, BYTEPS_PARTITION),
    Method("WFBP-A2A", "pipelining", PER_TENSOR, "all_reduce",
           Launch.WHEN_READY, False, Gate.ALL_LAYERS),
    Method("MG-WFBP", "tensor fusion", MERGED, "all_reduce",
           Launch.WHEN_READY, False, Gate.ALL_LAYERS),
    Method("ByteScheduler-PS", "tensor partition", PER_TENSOR, "push_pull",
           Launch.WHEN_READY, True, Gate.OWN_LAYER, BYTEPS_PARTITION, 4 * BYTEPS_PARTITION, True),
    Method("ByteScheduler-A2A", "tensor partition", PER_TENSOR, "all_reduce",
           Launch.WHEN_READY, True, Gate.OWN_LAYER, 4 * MB, 16 * MB, True),
    Method("DeAR", "tensor fusion", BUFFERED, SPLIT,
           Launch.WHEN_READY, False, Gate.OWN_LAYER),
]  # fmt: skip
# The methods by name: the seven of the survey, in its order, then one that came after it (DeAR:
# Zhang et al. 2023, arXiv 2302.12445), then those of `register_method`.
# Whatever takes the name of a method looks it up here.
METHODS: dict[str, Method] = {method.name: method for method in _ROWS}
SURVEYED: dict[str, Method] = {method.name: method for method in _ROWS[:7]}  # its section 4
# What others run, by name: planned and forecast beside the methods. To measure it is to run theirs
# (ddlnb.engines.torch_engine), so that it is no method of our engines.
BASELINES = {
    "DDP": Method("DDP", "tensor fusion", DDP_BUCKETS, "all_reduce",
                  Launch.WHEN_READY, False, Gate.ALL_LAYERS),
}  # fmt: skip


def in_torch(name: str) -> bool:
    """Say whether a method of this name is PyTorch's own, whatever its buckets.

    >>> in_torch(ddp_of(100).name), in_torch("DDP"), in_torch("DeAR")
    (True, True, False)
    """
    return name.partition("(")[0] in BASELINES


@cache
def ddp_of(bucket_cap_mb: int) -> Method:
    """Return DistributedDataParallel with buckets of so many MiB, the first one as the others.

    >>> ddp_of(100).name
    'DDP(bucket_cap_mb=100)'
    """
    size = bucket_cap_mb * MIB
    bucketing = Bucketing(partial(ddp_buckets, first=size, others=size))
    name = f"DDP(bucket_cap_mb={bucket_cap_mb})"
    return replace(BASELINES["DDP"], name=name, bucketing=bucketing)


SHIPPED = dict(METHODS)


def register_method(method: Method) -> None:
    """Add a method to METHODS, as if it were a row of this file.

    It is then planned, simulated, forecast, measured and listed by name like the others, in this
    process. A method whose rule is defined anew, as in a notebook whose cell runs again, replaces
    its former self; ``del METHODS[name]`` removes it. Raises InputError if another method has its
    name, and for a name that means something else wherever methods are named.

    >>> import ddlnb
    >>> from dataclasses import replace
    >>> wfbp = ddlnb.get_method("WFBP-A2A")
    >>> ddlnb.register_method(replace(wfbp, name="WFBP-2MB", partition_bytes=2_000_000))
    >>> workload = ddlnb.read_profile("small-conv_b64_cpu-1thread")
    >>> len(ddlnb.get_method("WFBP-2MB").plan(workload).messages)
    29
    >>> del ddlnb.METHODS["WFBP-2MB"]
    """
    former = METHODS.get(method.name, BASELINES.get(method.name, method))
    require(
        former == method or (method.name not in SHIPPED and _is_anew(former, method)),
        f"method {method.name!r} is registered with other choices; give yours another name, or "
        f"remove it first, if it is yours: del ddlnb.METHODS[{method.name!r}]",
    )
    is_word = bool(method.name) and not re.search(r"^\s|\s$|[,;]", method.name)
    require(
        is_word
        and method.name not in (*RESERVED, *supplied_names("method"))
        and re.split(r"[\s(+]", method.name.casefold())[0] not in OF_TRAINING,
        f"method {method.name!r} has a name that is taken, or no word; give yours another one",
    )
    enter(method.name, method, METHODS)


def _is_anew(former: Method, method: Method) -> bool:
    """Return whether its rule, or its planner, is another one that stands in the same place.

    Functions without a name of their own have one place together: then all else must be equal.
    """
    pairs = (
        (former.bucketing.group, method.bucketing.group),
        (former.planner, method.planner),
    )
    places = [(_place(one), _place(other)) for one, other in pairs if one is not other]
    is_named = all("<lambda>" not in one for one, _ in places)
    like = replace(former, bucketing=method.bucketing, planner=method.planner)
    return bool(places) and all(a == b for a, b in places) and (is_named or like == method)


def _place(rule: Any) -> str:
    """Return the module and name of a function, or of the class of another rule."""
    rule = getattr(rule, "func", rule)  # of a functools.partial
    named = rule if hasattr(rule, "__qualname__") else type(rule)
    return f"{named.__module__}.{named.__qualname__}"


def get_method(name: str | Method) -> Method:
    """Return the method of this name, or the Method itself. Raises UnknownName with a suggestion.

    Besides METHODS there is "DDP": what PyTorch's DistributedDataParallel does by default, without
    its broadcast of buffers; and "searched": the plan that `ddlnb.search_plan` finds on a cluster.

    >>> import ddlnb
    >>> ddlnb.get_method("MG-WFBP").scheduling
    'tensor fusion'
    >>> workload = ddlnb.read_profile("resnet50_b64_rtx2080ti")
    >>> len(ddlnb.get_method("DDP").plan(workload).messages)
    5
    """
    if isinstance(name, Method):
        return name
    here, elsewhere = {**BASELINES, **METHODS}, supplied_names("method")
    if name in here:
        return here[name]
    if name not in elsewhere:
        is_split = str(name).casefold().startswith(("fsdp", "hsdp", "zero"))
        known, otherwise = [*METHODS, *BASELINES, *elsewhere], SPLITS_MODELS if is_split else ""
        raise UnknownName("method", name, known, otherwise=otherwise)
    method: Method = supplied(f"method {name}")
    return method


def require_served(methods: Iterable[Method], servers: int | None) -> None:
    """Raise InputError for servers where no method goes through any: they would change nothing.

    >>> require_served([METHODS["MG-WFBP"]], 2)
    Traceback (most recent call last):
    ddlnb.errors.InputError: servers 2 change nothing: MG-WFBP goes without; leave them out, or \
take one of BSP-PS, WFBP-PS, ByteScheduler-PS
    """
    if servers is None:
        return
    require_whole(servers=servers)
    chosen = list(methods)
    has = [name for name, one in METHODS.items() if one.architecture == "PS"]
    require(
        any(one.architecture == "PS" for one in chosen),
        f"servers {servers} change nothing: {', '.join(one.name for one in chosen)} "
        f"{'goes' if len(chosen) == 1 else 'go'} without; leave them out, or take one of "
        f"{', '.join(has)}",
    )

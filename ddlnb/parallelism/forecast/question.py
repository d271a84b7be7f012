"""What is asked about the layouts of a large model: machines, a batch, the ways of a framework.

Every function and command about layouts takes these arguments; they are written and checked here.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, Self

from ddlnb.clusters.named import usual_network
from ddlnb.errors import UnknownName, require, require_whole
from ddlnb.hardware.catalogue import get_gpu, get_interconnect
from ddlnb.hardware.gpu import Gpu
from ddlnb.hardware.interconnect import Interconnect
from ddlnb.parallelism.forecast.chunks import searched_chunks
from ddlnb.parallelism.forecast.frameworks import FRAMEWORKS, NAMES, Framework
from ddlnb.parallelism.forecast.parameters import Fitted, kept
from ddlnb.parallelism.forecast.shapes import get_shape
from ddlnb.parallelism.transformer import Transformer

BATCH_TOKENS = 4 * 1024 * 1024  # of a step, where nobody says
MOST_SEQUENCES = 1_000_000  # of a step; the largest published batches have some ten thousand
FSDP = "fsdp"  # which shards all, and has no stages
SEARCHED = ("1f1b", "zero-bubble", "gpipe")  # chunks (vpp) make 1f1b the interleaved one


@dataclass(frozen=True)
class LayoutQuestion:
    """A large model on machines: which of its layouts is the fastest?

    - model, gpu, nodes, gpus_per_node: what is trained, and on what.
    - sequence, global_batch: tokens of a sequence, sequences of a step.
    - network: what joins nodes; None for the ports that nodes with such a GPU usually have.
    - framework: nanotron, fsdp, megatron or nemo, whose ways and fitted parameters are taken.
    - precision: one that the GPU has a rate for.
    - schedule: of pipelines: 1f1b, zero-bubble or gpipe.
    - vpp: chunks of layers per stage, which make 1f1b the interleaved schedule; None for all that
      divide the layers of a stage, where the framework can run them and micro batches are a
      multiple of the stages.
    - overlap: whether replicas reduce gradients and gather parameters while the GPU computes; None
      for the framework's way.
    - fitted: the parameters of the forecast.

    Raises UnknownName for unknown names, and InputError for numbers that cannot be.
    """

    model: Transformer
    gpu: Gpu
    nodes: int
    sequence: int
    global_batch: int
    network: Interconnect | None = None
    gpus_per_node: int = 8
    framework: str = "nanotron"
    precision: str = "bf16"
    schedule: str = "1f1b"
    vpp: int | None = None
    overlap: bool | None = None
    fitted: Fitted = field(default_factory=kept)

    def __post_init__(self) -> None:
        require_whole(
            nodes=self.nodes,
            gpus_per_node=self.gpus_per_node,
            vpp=1 if self.vpp is None else self.vpp,
            sequence=self.sequence,
            global_batch=self.global_batch,
        )
        require(
            self.global_batch <= MOST_SEQUENCES,
            f"global_batch {self.global_batch:,} must be at most {MOST_SEQUENCES:,} sequences of a "
            f"step; is it a number of tokens? Divide these by the sequence, {self.sequence:,}",
        )
        if self.framework not in NAMES:
            raise UnknownName("framework", self.framework, NAMES)
        if self.schedule not in SEARCHED:
            raise UnknownName("schedule of the search", self.schedule, SEARCHED)
        require(
            self.framework != FSDP or self.schedule == SEARCHED[0],
            f"schedule {self.schedule} is one of pipelines, and {FSDP} has none; leave it out, or "
            f"take another framework",
        )
        self.gpu.peak(self.precision)
        searched_chunks(self.ways, self.schedule, self.vpp)

    @classmethod
    def of(
        cls,
        model: str | Transformer,
        gpu: str | Gpu = "H100",
        nodes: int = 8,
        *,
        network: str | Interconnect | None = None,
        sequence: int | None = None,
        global_batch: int | None = None,
        **options: Any,
    ) -> Self:
        """Return the question about things by their names; ``options`` are the other fields.

        ``sequence`` is by default the model's own, ``global_batch`` four million tokens.

        >>> asked = LayoutQuestion.of("llama3-8b", nodes=4, sequence=4096, framework="fsdp")
        >>> str(asked), asked.global_batch, asked.overlaps
        ('llama3-8b on 32 x H100-SXM (fsdp)', 1024, True)
        """
        known = [one.name for one in fields(cls)]
        for name in options:
            if name not in known:
                raise UnknownName("option", name, known)
        shape = get_shape(model)
        long = shape.sequence if sequence is None else sequence
        require_whole(sequence=long)
        return cls(
            model=shape,
            gpu=get_gpu(gpu),
            nodes=nodes,
            network=get_interconnect(network) if network else None,
            sequence=long,
            global_batch=max(BATCH_TOKENS // long, 1) if global_batch is None else global_batch,
            **options,
        )

    @property
    def gpus(self) -> int:
        """GPUs of all nodes."""
        return self.nodes * self.gpus_per_node

    @property
    def tokens(self) -> int:
        """Tokens of a step."""
        return self.global_batch * self.sequence

    @property
    def across(self) -> float:
        """Bytes per second of a node to others, by the line."""
        return self.network.line_rate if self.network else self.gpu.port * self.gpus_per_node

    @property
    def sockets(self) -> float:
        """Bytes per second of a node to others over TCP; infinite for networks with RDMA."""
        joined = self.network or get_interconnect(usual_network(self.gpu, self.gpus_per_node))
        return joined.socket_bandwidth

    @property
    def ways(self) -> Framework:
        """What the framework does differently from others."""
        return FRAMEWORKS[NAMES.index(self.framework)]

    @property
    def overlaps(self) -> bool:
        """Whether replicas exchange while the GPU computes."""
        return self.ways.overlaps if self.overlap is None else self.overlap

    @property
    def interleaves(self) -> bool:
        """Whether the search looks at interleaved pipelines."""
        return searched_chunks(self.ways, self.schedule, self.vpp)

    def __str__(self) -> str:
        joined = f", {self.network.name}" if self.network and self.nodes > 1 else ""
        return f"{self.model.name} on {self.gpus:,} x {self.gpu.name}{joined} ({self.framework})"

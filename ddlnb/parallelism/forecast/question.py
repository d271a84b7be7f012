"""What is asked about the layouts of a large model: declared once, for Python and the command line.

It is light: names are looked up when a question is made, and the command line takes its options
from here.
"""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, replace
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any

from ddlnb.errors import require, require_known
from ddlnb.questions import Asked, LaterWhole, MaybeWhole, Whole, question

if TYPE_CHECKING:
    from ddlnb.hardware.gpu import Gpu
    from ddlnb.hardware.machine import Interconnect
    from ddlnb.parallelism.forecast.frameworks import Fitted, Framework
    from ddlnb.parallelism.model import Transformer
else:  # what these are is checked where they are looked up
    Fitted = Gpu = Interconnect = Transformer = Any

BATCH_TOKENS = 4 * 1024 * 1024  # of a step, where nobody says
TRAINED_IN = ("bf16", "fp16", "fp8")  # with parameters and activations of 2 bytes
MOST_SEQUENCES = 1_000_000  # of a step; the largest published batches have some ten thousand


def batch_for(ranks: int, wanted: int) -> int:
    """Return the batch next to the wanted one that ranks can share out: a multiple or a divisor.

    >>> batch_for(64, 512), batch_for(72, 512), batch_for(160, 512), batch_for(1152, 512)
    (512, 504, 480, 576)
    """
    if ranks <= wanted:
        found = [ranks * (wanted // ranks), ranks * (wanted // ranks + 1)]
    else:
        near = range(1, min(ranks, 8 * wanted) + 1)
        found = [number for number in near if ranks % number == 0]
    return min(found, key=lambda batch: abs(math.log(batch / wanted)))


@question
class LayoutQuestion:
    """A large model on machines: which of its layouts is the fastest?

    Models, GPUs, networks and frameworks may be given by their names; the fields then hold what
    these stand for, but for the framework. Without one the answer is a mixture of those in use
    (`by_framework`). What is left out is looked up: the tokens of a sequence
    are the model's own, the sequences of a step 4 Mi tokens, ``fitted`` the kept
    parameters of the forecast. ``network`` is what joins nodes, None for the ports that nodes with
    such a GPU usually have; ``precision`` one that the GPU has a rate for, which computes on
    parameters of two bytes. ``vpp`` is the number of
    chunks of layers per stage, which make 1f1b the interleaved schedule: None for all that divide
    the layers of a stage, where the framework can run them and micro batches are a multiple of the
    stages.

    Raises UnknownName for unknown names, and InputError for numbers that cannot be.

    >>> asked = LayoutQuestion("llama3-8b", nodes=4, sequence=4096, framework="fsdp")
    >>> str(asked), asked.global_batch, asked.overlaps
    ('llama3-8b on 32 x H100-SXM (fsdp)', 1024, True)
    """

    model: Annotated[Transformer, Asked("A large model, such as llama3-8b or gpt3-175b.")]
    gpu: Annotated[Gpu, Asked("A GPU by name.")] = "H100"  # type: ignore[assignment]
    nodes: Annotated[Whole, Asked("How many nodes.")] = 8
    _: KW_ONLY
    gpus_per_node: Annotated[Whole, Asked("GPUs of a node.")] = 8
    network: Annotated[
        Interconnect | None,
        Asked("What joins nodes, such as 8x400GbIB; default: usual for the GPU."),
    ] = None
    sequence: Annotated[LaterWhole, Asked("Tokens of a sequence; default: the model's own.")] = None  # type: ignore[assignment]
    global_batch: Annotated[LaterWhole, Asked("Sequences of a step; default: 4 Mi tokens.")] = None  # type: ignore[assignment]
    framework: Annotated[
        str,
        Asked(
            "Whose steps are forecast: nanotron, nemo (Megatron-Core), megatron (2021), "
            "megatron-deepspeed, internevo, fsdp or fsdp-compiled (TorchTitan); default: a mixture "
            "of those in use today."
        ),
    ] = ""
    precision: Annotated[
        str, Asked("bf16, fp16 or fp8; default: bf16, or fp16 on GPUs without it.")
    ] = ""
    schedule: Annotated[str, Asked("Of pipelines: 1f1b, zero-bubble or gpipe.")] = "1f1b"
    vpp: Annotated[
        MaybeWhole,
        Asked(
            "Chunks of layers per pipeline stage, 1 for none; default: all that the framework can "
            "run and that divide."
        ),
    ] = None
    cp: Annotated[Whole, Asked("Ranks that share a sequence (context parallelism).")] = 1
    ep: Annotated[
        MaybeWhole, Asked("Ranks that share the experts; default: all numbers that divide.")
    ] = None
    overlap: Annotated[
        bool | None,
        Asked(
            "Reduce gradients and gather parameters while GPUs compute; default: as the framework "
            "does."
        ),
    ] = None
    fitted: Fitted = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        from ddlnb.hardware.catalogue import get_gpu, get_interconnect
        from ddlnb.parallelism.config import get_shape
        from ddlnb.parallelism.forecast.frameworks import saved_fit

        self._set("model", get_shape(self.model))
        self._set("gpu", get_gpu(self.gpu))
        self._set("network", get_interconnect(self.network) if self.network else None)
        if not self.precision:
            self._set("precision", "bf16" if "bf16" in self.gpu.flops else "fp16")
        if self.sequence is None:
            self._set("sequence", self.model.sequence)
        if self.global_batch is None:
            wanted = max(BATCH_TOKENS // self.sequence, 1)
            self._set("global_batch", batch_for(max(1, self.gpus // self.cp), wanted))
        if self.fitted is None:
            self._set("fitted", saved_fit())
        self._check()

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    def _check(self) -> None:
        from ddlnb.clusters.named import MOST_IN_A_NODE
        from ddlnb.parallelism.forecast.frameworks import FRAMEWORKS
        from ddlnb.parallelism.schedules import INTERLEAVES, SCHEDULES

        require(
            self.gpus_per_node <= MOST_IN_A_NODE,
            f"gpus_per_node {self.gpus_per_node:,} exceeds the {MOST_IN_A_NODE} GPUs of the "
            f"largest nodes; take more nodes",
        )
        require(
            self.global_batch <= MOST_SEQUENCES,
            f"global_batch {self.global_batch:,} must be at most {MOST_SEQUENCES:,} sequences of a "
            f"step; is it a number of tokens? Divide these by the sequence, {self.sequence:,}",
        )
        searched = [name for name, one in SCHEDULES.items() if not (one.chunked or one.vee)]
        require_known("schedule of the search", self.schedule, searched)
        self.gpu.peak(self.precision)
        require(
            self.precision in TRAINED_IN,
            f"precision {self.precision!r} keeps and sends other bytes than the 2 of a parameter "
            f"that layouts count; take {', '.join(TRAINED_IN)}",
        )
        most = self.model.positions if self.model.learned_positions else 0
        require(
            not most or self.sequence <= most,
            f"sequence {self.sequence:,}: {self.model.name} has learned {most:,} positions; take "
            f"at most as many tokens, or a config.json with more positions",
        )
        require(
            self.sequence % self.cp == 0 and self.gpus % self.cp == 0,
            f"cp {self.cp} must divide the sequence {self.sequence} and the {self.gpus} GPUs",
        )
        chunked = self.vpp is not None and self.vpp > 1
        require(
            not chunked or self.schedule == INTERLEAVES,
            f"vpp {self.vpp}: the schedule {self.schedule} has one chunk per stage; use vpp "
            f"1, or the schedule {INTERLEAVES}",
        )
        if not self.framework:
            return
        require(
            self.ways.splits_models or self.schedule == INTERLEAVES,
            f"schedule {self.schedule} is one of pipelines, and {self.framework} has none; leave "
            f"it out, or take another framework",
        )
        able = [name for name, one in FRAMEWORKS.items() if one.interleaves]
        require(
            not chunked or self.ways.interleaves,
            f"vpp {self.vpp}: {self.framework} runs no interleaved pipelines; use vpp 1, or "
            f"one of the frameworks {', '.join(able)}",
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
    def joined(self) -> Interconnect:
        """What joins the nodes: the network, or the usual one for the GPU."""
        from ddlnb.clusters.named import usual_network
        from ddlnb.hardware.catalogue import get_interconnect

        return self.network or get_interconnect(usual_network(self.gpu, self.gpus_per_node))

    @cached_property
    def by_framework(self) -> dict[str, LayoutQuestion]:
        """The question to the framework, or, without one, to each in use that can be asked it.

        A schedule is one of pipelines: frameworks without any are asked without it.
        """
        from ddlnb.parallelism.forecast.frameworks import FRAMEWORKS, frameworks_meant
        from ddlnb.parallelism.schedules import INTERLEAVES

        if self.framework:
            return {self.framework: self}
        return {
            name: replace(
                self,
                framework=name,
                schedule=self.schedule if one.splits_models else INTERLEAVES,
            )
            for name, one in ((name, FRAMEWORKS[name]) for name in frameworks_meant())
            if one.interleaves or self.vpp in (None, 1)
        }

    @property
    def ways(self) -> Framework:
        """What the framework, which is named, does differently from others."""
        from ddlnb.parallelism.forecast.frameworks import get_framework

        return get_framework(self.framework)

    @property
    def overlaps(self) -> bool:
        """Whether replicas exchange while the GPU computes: of a mixture, in all frameworks."""
        if self.overlap is not None:
            return self.overlap
        return all(one.ways.overlaps for one in self.by_framework.values())

    @property
    def interleaves(self) -> bool:
        """Whether the search looks at interleaved pipelines."""
        from ddlnb.parallelism.schedules import INTERLEAVES

        return self.ways.interleaves and self.schedule == INTERLEAVES and self.vpp != 1

    def __str__(self) -> str:
        joined = f", {self.network.name}" if self.network and self.nodes > 1 else ""
        steps = self.framework or "framework not named"
        return f"{self.model.name} on {self.gpus:,} x {self.gpu.name}{joined} ({steps})"

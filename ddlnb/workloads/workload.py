"""A workload: what one worker computes in one iteration, and the gradients that come out of it.

Layers stand in the order the forward pass runs them, gradients in the order the backward pass
produces them. A gradient names the layer whose forward pass first reads its parameter: that layer
is the one that must wait for the update. Model intensity and the ratio of communication to
computation are those of the survey's section 2.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any

from ddlnb.errors import InputError, UnknownName, require, require_known, require_whole
from ddlnb.files import PROFILES
from ddlnb.reading import json_of, read_text, reading
from ddlnb.units import counted, show_bytes, show_seconds

SHAPE = re.compile(r"(?<=\"shape\": )\[[\d,\s]*\]")  # in a profile, where it takes one line

ELEMENT_BYTES = {"fp32": 4, "fp16": 2, "bf16": 2}  # of gradients on their way
MICRO_BATCHES = "(earlier micro-batches)"


@dataclass(frozen=True)
class Work:
    """What is counted of a pass through a layer.

    FLOPs are counted with FMA = 2. ``matrix_bytes`` are those that operations with FLOPs read from
    and write to memory: weights and activations of matrix products, convolutions and attention;
    ``bytes`` are those of operations without (normalisations, activations, embeddings).
    ``operations`` are what a host hands over to its GPU, 0 where nobody counted; ``kernels`` are
    launched by a library inside of one. Of the FLOPs, ``winograd_flops`` are those of convolutions
    of 3 x 3 that have a faster algorithm.

    >>> Work(2.0, operations=1.0) + Work(1.0) - Work(0.5)
    Work(flops=2.5, matrix_bytes=0.0, bytes=0.0, operations=1.0, winograd_flops=0.0, kernels=0.0)
    """

    flops: float = 0.0
    matrix_bytes: float = 0.0
    bytes: float = 0.0
    operations: float = 0.0
    winograd_flops: float = 0.0
    kernels: float = 0.0

    def __add__(self, other: Work) -> Work:
        return Work(*(getattr(self, name) + getattr(other, name) for name in COUNTED))

    def __sub__(self, other: Work) -> Work:
        return self + other.times(-1)

    @property
    def launches(self) -> float:
        """How many operations the host hands over: one at least where nobody counted them."""
        has_work = bool(self.flops or self.matrix_bytes or self.bytes)
        return max(self.operations, 1.0) if has_work else 0.0

    def computed(self, winograd: float) -> float:
        """Return the FLOPs that are left where ``winograd_flops`` are so many times fewer."""
        return self.flops - self.winograd_flops * (1 - 1 / winograd)

    def times(self, all: float) -> Work:
        """Return so many times the work."""
        return Work(*(all * getattr(self, name) for name in COUNTED))


COUNTED = tuple(field.name for field in fields(Work))
GROWING = "flops", "matrix_bytes", "bytes", "winograd_flops"  # with the samples
LATER = COUNTED[3:]  # what profiles of earlier editions do not have


@dataclass(frozen=True)
class Layer:
    """One step of the forward pass: its seconds, and the `Work` of its passes."""

    name: str
    forward_seconds: float = 0.0
    forward_flops: float = 0.0
    backward_flops: float = 0.0
    forward_bytes: float = 0.0
    backward_bytes: float = 0.0
    forward_matrix_bytes: float = 0.0
    backward_matrix_bytes: float = 0.0
    forward_operations: float = 0.0
    backward_operations: float = 0.0
    forward_winograd_flops: float = 0.0
    backward_winograd_flops: float = 0.0
    forward_kernels: float = 0.0
    backward_kernels: float = 0.0

    @classmethod
    def of(cls, name: str, forward: Work, backward: Work) -> Layer:
        """Return the layer with this work, and without seconds."""
        passes = {"forward": forward, "backward": backward}
        return cls(
            name,
            **{
                f"{way}_{what}": getattr(work, what)
                for way, work in passes.items()
                for what in COUNTED
            },
        )

    @property
    def forward(self) -> Work:
        """The work of its forward pass."""
        return Work(*(getattr(self, f"forward_{what}") for what in COUNTED))

    @property
    def backward(self) -> Work:
        """The work of its backward pass."""
        return Work(*(getattr(self, f"backward_{what}") for what in COUNTED))

    def grown(self, factor: float) -> Layer:
        """Return the layer with so many times the work in as many operations."""
        grown = (f"{way}_{what}" for way in ("forward", "backward") for what in GROWING)
        return replace(self, **{name: factor * getattr(self, name) for name in grown})


WRITTEN_BY = "`ddlnb measure profile --name` and `ddlnb trace --out` write some"


@dataclass(frozen=True)
class Gradient:
    """One gradient tensor. ``backward_seconds`` runs from the gradient before it to this one.

    ``bytes_per_element`` are sent, ``made_bytes`` the backward pass makes, None if they are the
    same. ``shape`` is that of the tensor, None where nobody kept it. Raises InputError for a shape
    of another number of elements.
    """

    name: str
    layer: str
    elements: int
    bytes_per_element: int = 4
    backward_seconds: float = 0.0
    shape: tuple[int, ...] | None = None
    made_bytes: int | None = None

    def __post_init__(self) -> None:
        if self.shape is not None and math.prod(self.shape) != self.elements:
            raise InputError(
                f"gradient {self.name!r} of shape {self.shape} cannot have "
                f"{counted(self.elements, 'element')}"
            )

    @property
    def bytes(self) -> int:
        """Size of the tensor in bytes."""
        return self.elements * self.bytes_per_element


@dataclass(frozen=True)
class Workload:
    """A model at one local batch size. ``source`` says where the seconds come from.

    ``hardware`` is what takes these seconds: "cpu-1thread", "rtx2080ti" or the name of a GPU; it is
    empty where nobody knows. Forecasts refuse a cluster of other hardware.

    ``layers`` stand in the order of the forward pass, ``gradients`` in that of the backward pass,
    with seconds, FLOPs and elements each. ``spread`` says how well all seconds together are known:
    a relative standard deviation. ``parameters``, ``gradient_bytes``, ``compute_seconds`` and
    ``flops`` are totals of one iteration. Raises InputError for values that no model has.

    >>> import ddlnb
    >>> workload = ddlnb.read_profile("small-conv_b64_cpu-1thread")
    >>> workload.parameters, workload.gradient_bytes
    (954002, 3816008)
    >>> workload.gradients[0].layer == workload.layers[-1].name
    True
    """

    model: str
    local_batch: int
    layers: tuple[Layer, ...]
    gradients: tuple[Gradient, ...]
    source: str
    spread: float = 0.0
    hardware: str = ""

    def __post_init__(self) -> None:
        require(self.local_batch >= 1, f"local batch {self.local_batch} must be at least 1")
        require(0 <= self.spread < 1, f"spread {self.spread} must be from 0 to below 1")
        require(bool(self.gradients), f"workload {self.model!r} has no gradients to exchange")
        layers = [layer.name for layer in self.layers]
        names = [gradient.name for gradient in self.gradients]
        for what, listed in (("layer", layers), ("gradient", names)):
            twice = sorted(name for name, count in Counter(listed).items() if count > 1)
            require(not twice, f"{what} names must be unique; twice in {self.model!r}: {twice}")
        known = set(layers)
        for gradient in self.gradients:
            if gradient.layer not in known:
                raise InputError(
                    f"gradient {gradient.name!r} names layer {gradient.layer!r}, "
                    f"which workload {self.model!r} does not have"
                )
            require(gradient.elements >= 1, f"gradient {gradient.name!r} has no elements")
        seconds = [layer.forward_seconds for layer in self.layers]
        seconds += [gradient.backward_seconds for gradient in self.gradients]
        require(
            all(math.isfinite(value) and value >= 0 for value in seconds),
            f"workload {self.model!r} has a negative or non-finite duration",
        )

    @property
    def parameters(self) -> int:
        """Number of trained parameters, D in the survey."""
        return sum(gradient.elements for gradient in self.gradients)

    @property
    def gradient_bytes(self) -> int:
        """Bytes of one full gradient."""
        return sum(gradient.bytes for gradient in self.gradients)

    @property
    def forward_seconds(self) -> float:
        """Seconds of one forward pass."""
        return sum(layer.forward_seconds for layer in self.layers)

    @property
    def backward_seconds(self) -> float:
        """Seconds of one backward pass."""
        return sum(gradient.backward_seconds for gradient in self.gradients)

    @property
    def compute_seconds(self) -> float:
        """Seconds of one forward and one backward pass."""
        return self.forward_seconds + self.backward_seconds

    @property
    def flops(self) -> float:
        """FLOPs of one forward and one backward pass over the local batch, FMA = 2."""
        return sum(layer.forward_flops + layer.backward_flops for layer in self.layers)

    @cached_property
    def layer_position(self) -> dict[str, int]:
        """Where each layer stands in the forward pass, from 0."""
        return {layer.name: index for index, layer in enumerate(self.layers)}

    @cached_property
    def ready_seconds(self) -> tuple[float, ...]:
        """When each gradient is ready, in seconds from the start of the backward pass."""
        return tuple(accumulate(gradient.backward_seconds for gradient in self.gradients))

    def with_seconds(
        self,
        forward: Mapping[str, float],
        backward: Mapping[str, float],
        source: str,
        hardware: str = "",
    ) -> Workload:
        """Return the workload with these seconds of layers and of gradients, by name.

        A layer or gradient that is not named takes no time. The seconds are of this hardware.
        """
        layers = tuple(
            replace(layer, forward_seconds=forward.get(layer.name, 0.0)) for layer in self.layers
        )
        gradients = tuple(
            replace(gradient, backward_seconds=backward.get(gradient.name, 0.0))
            for gradient in self.gradients
        )
        return replace(self, layers=layers, gradients=gradients, source=source, hardware=hardware)

    def scaled(self, factor: float, source: str, hardware: str | None = None) -> Workload:
        """Return the workload with all of its seconds multiplied by a factor.

        ``hardware`` is what takes so many seconds, by default the same as before: to carry seconds
        to another processor, give the ratio of their speeds and the name of the other one.
        """
        return self.with_seconds(
            {layer.name: layer.forward_seconds * factor for layer in self.layers},
            {one.name: one.backward_seconds * factor for one in self.gradients},
            source,
            self.hardware if hardware is None else hardware,
        )

    def on_hardware(self, hardware: str) -> Workload:
        """Return the workload with the same seconds, of hardware by this name."""
        return replace(self, hardware=hardware)

    def at_batch(self, local_batch: int) -> Workload:
        """Return the workload at another batch, if all seconds and bytes grow with the samples.

        The operations stay as many: each does more.
        """
        require_whole(local_batch=local_batch)
        factor = local_batch / self.local_batch
        source = f"seconds at batch {self.local_batch} times {factor:g}; {self.source}"
        layers = tuple(layer.grown(factor) for layer in self.layers)
        return replace(self, layers=layers, local_batch=local_batch).scaled(factor, source)

    def sent_as(self, gradients: str) -> Workload:
        """Return the workload with every element of a gradient sent in this type: fp16, bf16, fp32.

        Computation stays as it is, and so do the buckets of DDP, whose hooks convert what they
        hold (``made_bytes``): converting costs nothing here.
        """
        require_known("type of gradients", gradients, ELEMENT_BYTES)
        size = ELEMENT_BYTES[gradients]
        sent = tuple(
            replace(
                one,
                bytes_per_element=size,
                made_bytes=made
                if (made := one.made_bytes or one.bytes_per_element) != size
                else None,
            )
            for one in self.gradients
        )
        source = f"{self.source}; gradients sent as {gradients}"
        return replace(self, gradients=sent, source=source)

    def accumulated(self, micro_batches: int) -> Workload:
        """Return the workload of an iteration that adds up gradients of several micro-batches.

        Each is as large as the batch was. Gradients are exchanged during the last backward pass,
        so that only this one hides communication; the passes before it stand between the first
        forward pass and it, as a layer without gradients.
        """
        require_whole(micro_batches=micro_batches)
        if micro_batches == 1:
            return self
        more = micro_batches - 1
        work = sum((layer.forward + layer.backward for layer in self.layers), Work()).times(more)
        before = sum(layer.name.startswith(MICRO_BATCHES) for layer in self.layers)
        passes = Layer.of(MICRO_BATCHES + f" {before + 1}" * (before > 0), work, Work())
        passes = replace(passes, forward_seconds=more * self.compute_seconds)
        return replace(
            self,
            layers=(*self.layers, passes),
            local_batch=micro_batches * self.local_batch,
            source=f"{self.source}; {micro_batches} micro-batches of {self.local_batch} between "
            f"exchanges",
        )

    @property
    def structure(self) -> str:
        """A fingerprint of layers, gradients and FLOPs: of what is trained, not of how fast."""
        layers = [(layer.name, layer.forward_flops) for layer in self.layers]
        gradients = [(g.name, g.layer, g.elements, g.bytes_per_element) for g in self.gradients]
        return hashlib.sha256(repr((layers, gradients)).encode()).hexdigest()[:8]

    def __repr__(self) -> str:
        return (
            f"Workload({self.model!r}, batch={self.local_batch}, "
            f"{counted(len(self.gradients), 'gradient')}, "
            f"{show_bytes(self.gradient_bytes)}, {show_seconds(self.compute_seconds)})"
        )

    def to_json(self) -> str:
        """Return the workload as JSON text, the form kept in data/profiles."""
        values = asdict(self)
        values["gradients"] = [
            {name: value for name, value in one.items() if value is not None}
            for one in values["gradients"]
        ]
        for layer in values["layers"]:
            for what in LATER:
                if not (layer[f"forward_{what}"] or layer[f"backward_{what}"]):
                    del layer[f"forward_{what}"], layer[f"backward_{what}"]
        text = json.dumps(values, indent=1, default=lambda one: one.item())  # NumPy's numbers
        return SHAPE.sub(lambda found: "".join(found.group().split()).replace(",", ", "), text)

    @classmethod
    def from_json(cls, text: str, source: str = "the text") -> Workload:
        """The workload that to_json wrote. Raises InputError if the text is anything else.

        ``source`` is what the error calls it, such as a file's name.
        Profiles of earlier editions have no shapes, hardware, matrix bytes or operations, and are
        read without.
        """
        return cls.from_fields(json_of(text, source, WRITTEN_BY), source)

    @classmethod
    def from_fields(cls, fields: Any, source: str) -> Workload:
        """Return the workload of what a profile says. Raises InputError if it is none."""
        with reading(f"workload profile {source}", WRITTEN_BY):
            layers = tuple(Layer(**layer) for layer in fields["layers"])
            gradients = tuple(_gradient(row) for row in fields["gradients"])
            return cls(**{**fields, "layers": layers, "gradients": gradients})


def _gradient(row: dict[str, Any]) -> Gradient:
    shape = {"shape": tuple(row["shape"])} if "shape" in row else {}
    return Gradient(**{**row, **shape})


def read_profile(name: str, folder: str | Path = PROFILES) -> Workload:
    """Return the named profile of data/profiles, or of another folder.

    Raises UnknownName with the names that exist, InputError for a file that is no profile.

    >>> import ddlnb
    >>> ddlnb.read_profile("small-conv_b64_cpu-1thread")
    Workload('small-conv', batch=64, 28 gradients, 3.82 MB, 28.1 ms)
    """
    folder = Path(folder)
    path = folder / f"{name}.json"
    if not path.is_file():
        raise UnknownName(
            "profile",
            name,
            sorted(file.stem for file in folder.glob("*.json")),
            otherwise="a file of yours is given as the model (--model mine.json)",
        )
    return Workload.from_json(read_text(path), repr(str(path)))


FLOPS_PER_MAC = 2  # workloads count a multiply and an add; FMA = 1 counts them as one


def intensity(workload: Workload, flops_per_fma: int = 1) -> float:
    """FLOPs per parameter and sample, forward and backward as counted; an FMA is 1 by default."""
    require(flops_per_fma in (1, 2), f"an FMA counts as 1 or 2 FLOPs, not {flops_per_fma}")
    work = workload.flops / FLOPS_PER_MAC * flops_per_fma
    return work / workload.local_batch / workload.parameters


def c2c(intensity: float, batch: int, traffic: float = 1.0) -> float:
    """Communication per computation, D f(n) / (batch C) = f(n) / (batch I).

    ``traffic`` is f(n): how many times its D parameters a worker sends with n workers.

    >>> c2c(248, batch=8) / c2c(249, batch=64)  # doctest: +ELLIPSIS
    8.03...
    """
    require(intensity > 0, f"intensity {intensity} must be positive")
    require(batch >= 1, f"batch {batch} must be at least 1")
    return traffic / (batch * intensity)

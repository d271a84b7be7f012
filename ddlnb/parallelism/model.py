"""A model as its layers: what each stores, computes and keeps per sample, and what splits it.

Everything that a strategy says is a sum over these layers; no formula here is of one architecture.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ddlnb.errors import InputError, require
from ddlnb.workloads.workload import Workload

SPLITS = ("tensor", "expert", "none")


@dataclass(frozen=True)
class Weight:
    """A parameter tensor. ``split`` is what divides it: tensor, expert (and tensor), or none.

    ``pieces`` is the most ways that tensor parallelism can divide it (0: no limit); with more
    ranks some hold the same piece, as with fewer key heads than ranks. ``tied``: the first and the
    last layer both use it; a stage that has both holds it once.
    """

    name: str
    elements: int
    split: str = "none"
    pieces: int = 0
    tied: bool = False


@dataclass(frozen=True)
class Kept:
    """Something that the backward pass needs of every sample, ``elements`` of it.

    ``bytes`` each, 0 for those of the precision's activations and -1 for those of its logits.
    ``split``: tensor parallelism divides it (tensor), sequence parallelism does (sequence), or only
    where gathered inputs are not kept (gathered). ``core``: belongs to the core of attention, which
    selective recomputation computes again. ``pieces`` as in Weight.
    """

    name: str
    elements: float
    split: str = "tensor"
    bytes: float = 0
    core: bool = False
    pieces: int = 0


@dataclass(frozen=True)
class Region:
    """Where tensor parallelism works: what enters and leaves it, in elements per sample.

    What enters is whole on every rank, and its gradients are added up; what leaves is added up, and
    its gradients are whole. 0 elements: nothing enters or leaves here.
    """

    name: str
    enters: int = 0
    leaves: int = 0


@dataclass(frozen=True)
class Attention:
    """What attention exchanges where a sequence is shared: elements of one sample."""

    query: int
    key_value: int
    pieces: int = 0  # the most ways that tensor parallelism divides keys and values


@dataclass(frozen=True, eq=False)  # compared by identity, which is quick: blocks are one object
class LayerShape:
    """One layer: an embedding, a block, a head. FLOPs and elements are those of one sample.

    ``core_flops``, a part of ``forward_flops``, is the core of attention. A backward pass takes
    twice the FLOPs of a forward pass. ``dispatched`` are elements that are sent to experts and come
    back. ``loss_values`` are values per sample which a loss over split logits adds up over ranks.
    """

    name: str
    weights: tuple[Weight, ...]
    forward_flops: float
    output_elements: int
    core_flops: float = 0.0
    kept: tuple[Kept, ...] = ()
    regions: tuple[Region, ...] = ()
    attention: Attention | None = None
    dispatched: int = 0
    loss_values: int = 0

    @property
    def parameters(self) -> int:
        """Number of parameters."""
        return sum(weight.elements for weight in self.weights)


@dataclass(frozen=True, eq=False)
class ModelShape:
    """Layers in the order of the forward pass, and what must divide.

    ``blocks`` says which layers are alike and can be dealt to pipeline stages; those before them go
    to the first stage, those behind to the last one. ``divided`` names what an axis divides, such
    as ("tp", "heads", 32).
    """

    name: str
    layers: tuple[LayerShape, ...]
    blocks: tuple[int, int]  # the first, and the one after the last
    divided: tuple[tuple[str, str, int], ...] = ()

    def __post_init__(self) -> None:
        require(bool(self.layers), f"model {self.name!r} has no layers")
        first, stop = self.blocks
        require(
            0 <= first < stop <= len(self.layers),
            f"blocks {self.blocks} are not layers of model {self.name!r}, 0 to {len(self.layers)}",
        )

    @property
    def parameters(self) -> int:
        """Number of parameters, a tied embedding once."""
        tied = sum(one.elements for layer in self.layers for one in layer.weights if one.tied)
        return sum(layer.parameters for layer in self.layers) - tied // 2

    @property
    def forward_flops(self) -> float:
        """FLOPs of the forward pass of one sample, FMA = 2."""
        return sum(layer.forward_flops for layer in self.layers)

    def iteration_flops(self, samples: int, recomputation: str = "none") -> float:
        """Return the FLOPs of one iteration: 3 forward passes' worth, and what is recomputed.

        Whole layers are computed again in blocks only, as in arXiv 2104.04473, section 5.1 (there
        with the head's FLOPs once: 96 B q L h^2 (1 + q/(6h) + V/(16 L h))).
        """
        again = sum(recomputed_flops(layer, recomputation) for layer in self.block_layers)
        return samples * (3 * self.forward_flops + again)

    @property
    def block_layers(self) -> tuple[LayerShape, ...]:
        """The layers that are alike, such as the blocks of a transformer."""
        return self.layers[slice(*self.blocks)]


def recomputed_flops(layer: LayerShape, recomputation: str) -> float:
    """Return the FLOPs that one sample's backward pass computes again in a block."""
    return {"none": 0.0, "selective": layer.core_flops, "full": layer.forward_flops}[recomputation]


def model_of(workload: Workload, outputs: Mapping[str, int] | None = None) -> ModelShape:
    """Return the layers of a traced workload, for what splits no layer: data, ZeRO, pipelines.

    ``outputs`` gives the elements per sample that leave layers, by name: a pipeline that is cut
    behind a layer without them has unknown messages, and its volumes raise InputError. What layers
    keep for the backward pass is not traced.

    >>> import ddlnb
    >>> model_of(ddlnb.read_profile("small-conv_b64_cpu-1thread")).parameters
    954002
    """
    outputs = outputs or {}
    unknown = set(outputs) - set(workload.layer_position)
    if unknown:
        raise InputError(f"workload {workload.model!r} has no layers {', '.join(sorted(unknown))}")
    weights: dict[str, list[Weight]] = {}
    for gradient in workload.gradients:
        weights.setdefault(gradient.layer, []).append(Weight(gradient.name, gradient.elements))
    layers = tuple(
        LayerShape(
            layer.name,
            tuple(weights.get(layer.name, ())),
            layer.forward_flops / workload.local_batch,
            outputs.get(layer.name, 0),
        )
        for layer in workload.layers
    )
    divided = (("tp", "splittable layers", 1), ("cp", "splittable layers", 1))
    return ModelShape(workload.model, layers, (0, len(layers)), divided)

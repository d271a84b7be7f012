"""What a layer is made of: parameter tensors, what is kept of samples, what is exchanged."""

from __future__ import annotations

from dataclasses import dataclass


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

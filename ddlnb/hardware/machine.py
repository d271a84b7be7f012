"""A machine as it is sold or rented: which GPUs, how many, and its network."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict, Field

from ddlnb.hardware.gpu import Gpu
from ddlnb.hardware.interconnect import Interconnect


@dataclass(frozen=True)
class Machine:
    """A node: its GPU, how many of them, and what joins it to others.

    >>> import ddlnb
    >>> ddlnb.get_machine("p4d")
    Machine('p4d.24xlarge', 8 x A100-SXM4-40GB, EFA-400)
    """

    name: str
    gpu: Gpu
    gpus: int
    interconnect: Interconnect
    source: str
    aliases: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"Machine({self.name!r}, {self.gpus} x {self.gpu.name}, {self.interconnect.name})"


class MachineEntry(BaseModel):
    """The keys of a machine in data/hardware/machines."""

    model_config = ConfigDict(extra="forbid")

    aliases: tuple[str, ...]
    gpu: str
    gpus: int = Field(ge=1, le=72)
    network: str
    source: str = Field(min_length=8)

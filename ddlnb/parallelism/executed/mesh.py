"""The process groups of a layout on the ranks that run, and where this rank stands in them."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from ddlnb.parallelism.groups import groups, position
from ddlnb.parallelism.layout import Layout


@dataclass
class Mesh:
    """One rank's groups by axis, made when first asked for: every rank must ask alike."""

    layout: Layout
    rank: int
    _groups: dict[str, dist.ProcessGroup] = field(default_factory=dict)
    _whole: DeviceMesh | None = None

    @property
    def where(self) -> dict[str, int]:
        """Where this rank stands on every axis."""
        return position(self.layout, self.rank)

    def members(self, axis: str) -> tuple[int, ...]:
        """Return the ranks of this rank's group along an axis."""
        return next(group for group in groups(self.layout, axis) if self.rank in group)

    def group(self, axis: str) -> dist.ProcessGroup:
        """Return this rank's process group along an axis."""
        if axis not in self._groups:
            made = [(ranks, dist.new_group(list(ranks))) for ranks in groups(self.layout, axis)]
            self._groups[axis] = next(group for ranks, group in made if self.rank in ranks)
        return self._groups[axis]

    def device_mesh(self, axis: str) -> DeviceMesh:
        """Return the ranks along an axis as torch's parallel parts want them.

        All are slices of one mesh, so that tensor parallelism and FSDP can be combined.
        """
        if self._whole is None:
            outer_first = self.layout.order[::-1]
            sizes = tuple(getattr(self.layout, one) for one in outer_first)
            self._whole = init_device_mesh("cpu", sizes, mesh_dim_names=outer_first)
        if axis != "data":
            return self._whole[axis]
        both = tuple(one for one in self.layout.order[::-1] if one in ("dp", "cp"))
        return self._whole["dp"] if self.layout.cp == 1 else self._whole[both]._flatten("data")

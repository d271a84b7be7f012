"""Two-dimensional torus: one half of the message goes along rows first, the other along columns."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ddlnb.networks.collectives.base import ALL_REDUCE, Algorithm, misfit, over_dimensions, squarest
from ddlnb.plans.transfers import Collective, Primitive


@dataclass(frozen=True)
class Torus(Algorithm):
    """Rings along rows and columns of a torus, both at the same time.

    Worker r is in row r // columns. 2 (rows - 1) + 2 (columns - 1) steps; 2 (n - 1) / n M bytes
    from every worker, on a square half of them on its row's links and half on its column's. By
    default the shape is the squarest one. Source: survey, section 3.3.2; Ying et al. 2018.
    """

    rows: int | None = None
    columns: int | None = None

    name = "torus"

    def shape(self, workers: int) -> tuple[int, int]:
        """Return rows and columns; one that is not given follows from the other."""
        if self.rows is None and self.columns is None:
            return squarest(workers)
        rows = self.rows if self.rows is not None else workers // max(1, self.columns or 1)
        columns = self.columns if self.columns is not None else workers // max(1, rows)
        return rows, columns

    def refuses(self, workers: int, per_node: int = 1) -> str:
        """Return that the shape does not hold the workers, if it does not."""
        return misfit(self.name, self.shape(workers), workers)

    def collective(
        self, workers: int, per_node: int = 1, primitive: Primitive = ALL_REDUCE
    ) -> Collective:
        """Return the transfers."""
        ranks = np.arange(workers).reshape(self.shape(workers))
        by_rows = over_dimensions(ranks, (1, 0), 0, workers)
        by_columns = over_dimensions(ranks, (0, 1), workers, workers)
        return self.made(primitive, workers, 2 * workers, by_rows, by_columns)

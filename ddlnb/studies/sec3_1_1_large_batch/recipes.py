"""The recipes that are compared: an optimizer, and a rule for its learning rate."""

from __future__ import annotations

from dataclasses import dataclass

from ddlnb.errors import UnknownName

SCALINGS = ("same", "linear", "tuned")
WARM_UP_SHARE = 0.2  # Share of the steps in which the learning rate rises.


@dataclass(frozen=True)
class Recipe:
    """A rule for how the learning rate follows the batch.

    ``scaling`` "same" keeps the rate that was tuned at the smallest batch, "linear" multiplies it
    by the ratio of the batches (Goyal et al. 2017), "tuned" tunes one at every batch. A warm-up
    is linear over WARM_UP_SHARE of the steps, and starts from the unscaled rate with linear
    scaling, else from zero.
    """

    name: str
    optimizer: str
    scaling: str
    warm_up: bool = False

    def __post_init__(self) -> None:
        if self.scaling not in SCALINGS:
            raise UnknownName("scaling", self.scaling, SCALINGS)

    def schedule(self, times: float, steps: int) -> str:
        """Return the schedule, as text, for a batch ``times`` as large and this number of steps."""
        over = max(1, round(WARM_UP_SHARE * steps))
        linear = self.scaling == "linear"
        if not self.warm_up or (linear and times == 1):
            return "constant"
        return f"linear-scaling({times!r}, {over})" if linear else f"warm-up({over})"


SAME = Recipe("SGD, same rate", "momentum", "same")
LINEAR = Recipe("SGD, linear scaling", "momentum", "linear")
WARM = Recipe("SGD, linear scaling, warm-up", "momentum", "linear", warm_up=True)
TUNED = Recipe("SGD, tuned, warm-up", "momentum", "tuned", warm_up=True)
LARS = Recipe("LARS, tuned, warm-up", "lars", "tuned", warm_up=True)
LAMB = Recipe("LAMB, tuned, warm-up", "lamb", "tuned", warm_up=True)
RECIPES = (SAME, LINEAR, WARM, TUNED, LARS, LAMB)


def tuned_at(recipe: Recipe, batch: int, smallest: int) -> tuple[Recipe, int]:
    """Return the recipe and batch to tune for this cell; untuned recipes share the smallest one."""
    if recipe.scaling == "tuned":
        return recipe, batch
    return Recipe("at the smallest batch", recipe.optimizer, "tuned"), smallest

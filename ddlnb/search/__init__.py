"""Searches plans: merging, partition, order, gate, halves and collectives for a cluster.

The survey's challenge 5.4. Every plan found comes with a lower bound of the seconds that any plan
would take there, and is no slower in simulation than the best method of `ddlnb.plans.methods`.
"""

from __future__ import annotations

from ddlnb.registry import loader

__getattr__ = loader(
    __name__,
    Space="space",
)

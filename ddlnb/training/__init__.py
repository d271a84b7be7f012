"""Training with lossy methods: what is synchronised when, and what it costs in convergence.

A method (`method`) is one choice per aspect. Its synchronisation is a generator, the training loop
that each worker runs, which yields what it needs. Two executors answer: `executors.lockstep`, all
workers in this process on a virtual clock, and `executors.distributed`, real processes and sockets.
"""

from __future__ import annotations

from ddlnb.registry import loader

__getattr__ = loader(
    __name__,
    Compressed="cost.searched",
    TrainingSettings="settings",
)

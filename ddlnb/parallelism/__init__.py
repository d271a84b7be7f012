"""Ways to split the training of a model over ranks: what each rank stores, computes and sends."""

from __future__ import annotations

from ddlnb.registry import loader

__getattr__ = loader(
    __name__,
    get_shape="config",
    Job="goodput.simulate",
    Layout="layout",
    play_iteration="iteration",
)

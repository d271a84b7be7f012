"""Which convolutions libraries compute with fewer multiplications than FLOPs are counted.

Winograd's minimal filtering transforms tiles of the input and the filter, multiplies the two value
by value, and transforms back. An output tile of m x m from a filter of 3 x 3 takes (m + 2)^2
products in place of 9 m^2: 2.25 times fewer for F(2x2, 3x3), 4 times for F(4x4, 3x3). The
transforms are paid once per channel, so that few channels gain nothing. The same holds for the
gradients of inputs and of weights, which are such convolutions as well.

cuDNN has them for filters of 3 x 3 with stride 1 and without dilation. That it takes them in single
precision, and plain products where matrix units round to tf32, fp16 or bf16, is assumed. Groups are
left out: a group has few channels. FLOPs stay what they are everywhere; only seconds are fewer.

Source: A. Lavin, S. Gray, "Fast algorithms for convolutional neural networks", CVPR 2016, sections
4 and 6; cuDNN API, CUDNN_CONVOLUTION_FWD_ALGO_WINOGRAD and _WINOGRAD_NONFUSED.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

FEW = 16  # channels, of which transforms cost as much as they save: assumed
_FILTER = {  # which argument is the filter; stride, dilation and groups follow it
    torch.ops.aten.convolution: 1,
    torch.ops.aten.convolution_backward: 2,
}


def takes_winograd(operation: Any, arguments: Sequence[Any]) -> bool:
    """Return whether an operation is a convolution of this kind, forward or backward.

    >>> import torch
    >>> image, filters = torch.ones(1, 64, 8, 8), torch.ones(64, 64, 3, 3)
    >>> rest = (None, [1, 1], [1, 1], [1, 1], False, [0, 0])
    >>> [takes_winograd(torch.ops.aten.convolution, (image, filters, *rest, n)) for n in (1, 2)]
    [True, False]
    """
    if operation not in _FILTER:
        return False
    _, stride, _, dilation, transposed, _, groups, *_ = arguments[_FILTER[operation] + 1 :]
    outputs, inputs, *size = arguments[_FILTER[operation]].shape
    return (
        size == [3, 3]
        and all(one == 1 for one in (*stride, *dilation, groups))
        and not transposed
        and min(outputs, inputs) >= FEW
    )

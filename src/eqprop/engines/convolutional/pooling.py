"""Max pooling that remembers its winners: the way back goes through them."""

from __future__ import annotations

import torch
from torch import Tensor

from eqprop.engines.convolutional.layers import empty_layer
from eqprop.types import Shape

_pool = torch.ops.aten.max_pool2d_with_indices.out
_spread = torch.ops.aten.max_pool2d_with_indices_backward.grad_input


class Pooling:
    """Windows of `size` × `size`; the first of equal maxima wins. Size 1 leaves all as it is.

    Args:
        size: height and width of a window.
        drive: where the maxima go, [members, batch, channels, height, width].
        convolved: the height and width before the pooling.
    """

    def __init__(self, size: int, drive: Tensor, convolved: Shape) -> None:
        self.trivial = size == 1
        self._windows = ([size, size], [size, size], [0, 0], [1, 1], False)
        self._drive = drive
        if not self.trivial:
            _, batch, channels, _, _ = drive.shape
            self._winners = torch.zeros_like(drive, dtype=torch.long)
            self._whole = empty_layer(1, batch, (channels, *convolved), drive)[0]

    def pool(self, member: int, convolved: Tensor) -> None:
        """The drive of one member from what it convolved, [batch, channels, height, width]."""
        drive = self._drive[member]
        if self.trivial:
            drive.copy_(convolved)
        else:
            # kernels on a GPU take for granted that both lie alike; under autocast the type differs
            convolved = convolved.to(drive.dtype, memory_format=torch.channels_last)
            _pool(convolved, *self._windows, out=drive, indices=self._winners[member])

    def spread(self, member: int, post: Tensor) -> Tensor:
        """What one member's `post` holds, at the positions that won, and zero at the others.

        It stands in one place for all members, until the next call.
        """
        if self.trivial:
            return post
        whole, winners = self._whole, self._winners[member]
        _spread(post, whole, *self._windows, winners, grad_input=whole)  # of its input: the shape
        return whole

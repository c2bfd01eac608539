"""Windows of max pooling: their maxima drive a layer, and its state goes back to the winners.

On a GPU one kernel does both, and moves the layer in between (`fused.py`).
"""

from __future__ import annotations

import torch
from torch import Tensor

from eqprop.activations import HARD_SIGMOID, SIGMOID, TANH, Activation
from eqprop.engines.convolutional.layers import empty_layer
from eqprop.types import Shape

_pool = torch.ops.aten.max_pool2d_with_indices.out
_spread = torch.ops.aten.max_pool2d_with_indices_backward.grad_input


class Windows:
    """Windows of `size` × `size`; the first of equal maxima wins.

    Size 1 means no pooling: every position wins, and nothing is spread.

    Args:
        size: height and width of a window.
        drive: memory for the maxima plus bias, [members, batch, channels, height, width].
        convolved: height and width before pooling.
        sigma: activation of the layer after.
        precision: dtype of what convolutions read and return.
    """

    _counted = torch.long  # dtype of the positions that won, here as `max_pool2d` counts them

    def __init__(
        self,
        size: int,
        drive: Tensor,
        convolved: Shape,
        sigma: Activation,
        precision: torch.dtype,
    ) -> None:
        self.size, self.drive, self.sigma = size, drive, sigma
        members, batch, channels, _, _ = drive.shape
        self._windows = ([size, size], [size, size], [0, 0], [1, 1], False)
        self._winners = torch.zeros_like(drive, dtype=self._counted) if size > 1 else None
        like = drive.new_empty((), dtype=precision)
        self.spread = empty_layer(members, batch, (channels, *convolved), like).zero_()

    def pool(self, i: int, convolved: Tensor, bias: Tensor | None, post: Tensor) -> None:
        """Drive member i, and spread what its layer holds.

        Args:
            i: number of the member.
            convolved: [batch, channels, height, width] before pooling.
            bias: [channels], or None.
            post: values of the layer, [batch, channels, height, width].
        """
        self._drive(i, convolved, bias)
        if self.size > 1:
            self._spread(i, post, self.spread[i])

    def turn(
        self,
        i: int,
        convolved: Tensor,
        bias: Tensor | None,
        back: Tensor | None,
        nudge: Tensor | None,
        post: Tensor,
        operand: Tensor,
    ) -> None:
        """Drive the layer of member i, move it, and spread its new values.

        Args:
            i: number of the member.
            convolved: [batch, channels, height, width] before pooling.
            bias: [channels], or None.
            back: drive from the layer after, shaped like `post`, or None.
            nudge: what the nudge takes away, shaped like `post`, or None.
            post: values of the layer.
            operand: their copy for convolutions, or the same tensor.
        """
        self._drive(i, convolved, bias)
        self.move(i, back, nudge, post, operand)
        if self.size > 1:
            self._spread(i, post, self.spread[i])

    def move(
        self, i: int, back: Tensor | None, nudge: Tensor | None, post: Tensor, operand: Tensor
    ) -> None:
        """Move the layer of member i by the drive that is there. Arguments are those of `turn`."""
        drive = self.drive[i]
        activate(self.sigma, drive if back is None else drive + back, out=post)
        if nudge is not None:
            post.sub_(nudge)
        if operand is not post:
            operand.copy_(post)

    def at_winners(self, values: Tensor) -> Tensor:
        """Return values at the positions that won last, and zeros elsewhere.

        `values` is shaped like the layer of all members; the result has height and width before
        pooling.
        """
        if self._winners is None:
            return values
        members, batch, *shape = self.spread.shape
        whole = empty_layer(members, batch, tuple(shape), values).zero_()
        for i in range(members):
            self._spread(i, values[i], whole[i])
        return whole

    def _drive(self, i: int, convolved: Tensor, bias: Tensor | None) -> None:
        drive = self.drive[i]
        if self._winners is None:
            drive.copy_(convolved)
        else:
            # some kernels require that both have the same layout
            convolved = convolved.to(drive.dtype, memory_format=torch.channels_last)
            _pool(convolved, *self._windows, out=drive, indices=self._winners[i])
        if bias is not None:  # after pooling this takes less time
            drive.add_(bias[:, None, None])

    def _spread(self, i: int, post: Tensor, whole: Tensor) -> None:
        assert self._winners is not None
        post = post.to(whole.dtype, memory_format=torch.channels_last)
        # of its input, the kernel reads the shape alone
        _spread(post, whole, *self._windows, self._winners[i], grad_input=whole)


def activate(sigma: Activation, drive: Tensor, out: Tensor) -> None:
    """Write σ(drive) to `out`."""
    if sigma == HARD_SIGMOID:
        torch.clamp(drive, 0, 1, out=out)
    elif sigma == TANH:
        torch.tanh(drive, out=out)
    elif sigma == SIGMOID:
        torch.mul(drive, 4, out=out).sub_(2).sigmoid_()
    else:
        out.copy_(drive)

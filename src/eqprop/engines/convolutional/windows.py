"""Windows of max pooling: their maxima drive a layer, and its state goes back to the winners.

On a GPU one kernel does both, and moves the layer in between (`fused.py`).
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import max_pool2d, pad

from eqprop.engines.convolutional.advance import Advance
from eqprop.engines.convolutional.layers import (
    Neurons,
    Placed,
    Product,
    empty_layer,
    phase_by_phase,
    unit,
)
from eqprop.types import Shape

_pool = torch.ops.aten.max_pool2d_with_indices.out
_spread = torch.ops.aten.max_pool2d_with_indices_backward.grad_input


class Windows:
    """Windows of `size` × `size`; the first of equal maxima wins.

    Size 1 means no pooling: every position wins, and nothing is spread.

    With an origin, the same windows in the state from which neurons are measured, `spread` is the
    difference from what is spread there, in units of `unit(precision)`. If convolutions round what
    they return, they make ties. The winner of the origin wins a tie there, or else phases that
    differ little would get different winners.

    Args:
        size: height and width of a window.
        drive: memory for the maxima plus bias, [members, batch, channels, height, width].
        convolved: height and width before pooling.
        advance: how the layer after moves.
        precision: dtype of what convolutions read and return.
        origin: the windows in the state from which neurons are measured, or None.
    """

    _counted = torch.long  # dtype of the positions that won, here as `max_pool2d` counts them

    def __init__(
        self,
        size: int,
        drive: Tensor,
        convolved: Shape,
        advance: Advance,
        precision: torch.dtype,
        origin: Windows | None = None,
    ) -> None:
        self.size, self.drive, self.advance, self.origin = size, drive, advance, origin
        self._rounds = precision != drive.dtype
        members, batch, channels, _, _ = drive.shape
        self._windows = ([size, size], [size, size], [0, 0], [1, 1], False)
        self.winners = torch.zeros_like(drive, dtype=self._counted) if size > 1 else None
        like = drive.new_empty((), dtype=precision)
        self.spread = empty_layer(members, batch, (channels, *convolved), like).zero_()

    def pool(self, i: int, convolved: Product, bias: Tensor | None, post: Neurons) -> None:
        """Drive member i, and spread what its layer holds.

        Args:
            i: number of the member.
            convolved: [batch, channels, height, width] before pooling.
            bias: [channels], or None.
            post: the layer of this member.
        """
        self._drive(i, convolved, bias)
        self._spread_layer(i, post, convolved)

    def turn(
        self,
        i: int,
        convolved: Product,
        bias: Tensor | None,
        back: Product | None,
        nudge: Tensor | None,
        post: Neurons,
    ) -> None:
        """Drive the layer of member i, move it, and spread its new values.

        Args:
            i: number of the member.
            convolved: [batch, channels, height, width] before pooling.
            bias: [channels], or None.
            back: drive from the layer after, shaped like `post`, or None.
            nudge: what the nudge takes away, shaped like `post`, or None.
            post: the layer of this member.
        """
        self._drive(i, convolved, bias)
        self.move(i, back, nudge, post)
        self._spread_layer(i, post, convolved)

    def move(self, i: int, back: Product | None, nudge: Tensor | None, post: Neurons) -> None:
        """Move the layer of member i by the drive that is there. Arguments are those of `turn`."""
        drive = self.drive[i]
        whole = drive if back is None else drive + back.total(drive.dtype)
        self.advance.move(whole, nudge, post)

    def at_winners(self, placed: Placed, less: Placed | None, dtype: torch.dtype) -> Tensor:
        """Return values at the positions that won, and zeros elsewhere.

        Args:
            placed: the layer of all members.
            less: the same in another state, to be subtracted; or None.
            dtype: that of the result, [members, batch, channels, height, width] before pooling.
        """
        if self.size == 1:
            return (placed.values if less is None else placed.values - less.values).to(dtype)
        members, batch = placed.values.shape[:2]
        like = placed.values.new_empty((), dtype=dtype)
        whole = empty_layer(members, batch, tuple(self.spread.shape[2:]), like)
        if any(length % self.size for length in whole.shape[3:]):
            whole.zero_()  # windows leave a rest
        for i in range(members):
            self._place(i, placed, less, whole[i])
        return whole

    def _place(self, i: int, placed: Placed, less: Placed | None, whole: Tensor) -> None:
        """Write values of member i to the positions that won, [batch, channels, height, width]."""
        assert placed.winners is not None
        if less is None:
            self._spread(placed.values[i], placed.winners[i], whole)
            return
        here, there = (
            self.at_winners(it.member(i), None, it.values.dtype)[0] for it in (placed, less)
        )
        torch.sub(here, there, out=whole)

    def _drive(self, i: int, convolved: Product, bias: Tensor | None) -> None:
        drive, total = self.drive[i], convolved.total(self.drive.dtype)
        if self.winners is None:
            drive.copy_(total)
        else:
            if convolved.origin is not None and self._rounds:
                ties = self._ties(i, convolved.origin)
                total = phase_by_phase(_without, total, ties, 0)
            # some kernels require that both have the same layout
            total = total.contiguous(memory_format=torch.channels_last)
            _pool(total, *self._windows, out=drive, indices=self.winners[i])
        if bias is not None:  # after pooling this takes less time
            drive.add_(bias[:, None, None])

    def _ties(self, i: int, convolved: Tensor) -> Tensor:
        """Return where the origin of member i has a maximum that did not win, shaped like it."""
        assert self.origin is not None
        largest = max_pool2d(convolved, self.size)
        for axis in (-2, -1):
            largest = largest.repeat_interleave(self.size, axis)
        rest = [it - made for it, made in zip(convolved.shape[2:], largest.shape[2:], strict=True)]
        largest = pad(largest, (0, rest[1], 0, rest[0]), value=torch.nan)  # in no window
        won = self.origin._at_own_winners(i, torch.ones_like(self.origin.drive[i])) > 0
        return (convolved == largest) & ~won

    def _spread_layer(self, i: int, post: Neurons, convolved: Product) -> None:
        """Spread a layer, measured as what drives it is."""
        if self.size == 1:
            return
        if convolved.origin is None:
            assert self.winners is not None
            self._spread(post.value, self.winners[i], self.spread[i])
            return
        assert self.origin is not None
        assert post.origin is not None
        here = self._at_own_winners(i, post.value)
        there = self.origin._at_own_winners(i, post.origin)
        moved = phase_by_phase(torch.sub, here, there, 0)
        torch.div(moved, unit(self.spread.dtype), out=self.spread[i])

    def _at_own_winners(self, i: int, post: Tensor) -> Tensor:
        """Return values of member i at the positions that won last."""
        assert self.winners is not None
        placed = Placed(post[None], self.winners[i, None])
        return self.at_winners(placed, None, post.dtype)[0]

    def _spread(self, post: Tensor, winners: Tensor, whole: Tensor) -> None:
        post = post.to(whole.dtype, memory_format=torch.channels_last)
        # some kernels require that both have the same layout
        winners = winners.contiguous(memory_format=torch.channels_last)
        # of its input, the kernel reads the shape alone
        _spread(post, whole, *self._windows, winners, grad_input=whole)


def _without(given: Tensor, ties: Tensor) -> Tensor:
    return given.masked_fill(ties, -torch.inf)

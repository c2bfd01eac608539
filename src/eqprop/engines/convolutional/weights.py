"""Weights as products read them."""

from __future__ import annotations

import torch
from torch import Tensor

from eqprop.engines.convolutional.layers import unit


class Weights:
    """A copy of weights with the precision of products, and what they have moved by.

    Args:
        like: their shape, layout and dtype, [members, ...].
        precision: dtype of what products multiply.
        moving: whether they move away from those of an origin.
    """

    _start: Tensor
    change: Tensor  # since the start, in units of `unit(precision)`; if they move

    def __init__(self, like: Tensor, precision: torch.dtype, moving: bool) -> None:
        self.operand = torch.empty_like(like, dtype=precision)
        self.moving = moving
        if moving:
            self._start, self.change = torch.empty_like(like), torch.empty_like(self.operand)

    def read(self, values: Tensor, start: bool) -> None:
        """Read the values, shaped like the weights. `start`: they are those of the origin."""
        self.operand.copy_(values)
        if self.moving:
            if start:
                self._start.copy_(values)
            torch.div(values - self._start, unit(self.change.dtype), out=self.change)

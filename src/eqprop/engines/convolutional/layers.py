"""How layers lie in memory: images with their channels last, everything else row by row."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from eqprop.types import Shape


@dataclass(frozen=True)
class Neurons:
    """The values of a layer, [members, batch, *shape], and what convolutions read of them.

    `operand` is `value` itself, or a copy with less precision.
    """

    value: Tensor
    operand: Tensor

    @classmethod
    def zeros(
        cls, members: int, batch: int, shape: Shape, like: Tensor, precision: torch.dtype
    ) -> Neurons:
        """Return a layer at rest, with the dtype and device of `like`."""
        value = empty_layer(members, batch, shape, like).zero_()
        return cls(value, value.to(precision))

    def member(self, i: int) -> tuple[Tensor, Tensor]:
        """Return values and operand of one member; one tensor twice, if they are the same."""
        value = self.value[i]
        return value, value if self.operand is self.value else self.operand[i]

    def refresh(self) -> None:
        """Copy the values to the operand, after they have changed."""
        if self.operand is not self.value:
            self.operand.copy_(self.value)


@dataclass(frozen=True)
class Change:
    """A layer in one step: its values before, [members, batch, *shape], and the difference that the
    step made, shaped like them. None: the layer stayed.
    """

    before: Tensor
    difference: Tensor | None = None


@dataclass(frozen=True)
class Ends:
    """What ∂φ/∂θ of a synapse depends on, in one state.

    `pre` and `post` are the layers that it joins, [members, batch, *shape]. `spread` is `post` at
    the positions that won the pooling; without pooling it is `post` itself.
    """

    pre: Tensor
    post: Tensor
    spread: Tensor

    def split(self, batch: int) -> list[Ends]:
        """Return the ends of each phase, which lie in a row along the batch."""
        parts = (it.split(batch, 1) for it in (self.pre, self.post, self.spread))
        return [Ends(*part) for part in zip(*parts, strict=True)]


def empty_layer(members: int, batch: int, shape: Shape, like: Tensor) -> Tensor:
    """Return memory [members, batch, *shape], with the channels of an image last."""
    if len(shape) != 3:
        return like.new_empty(members, batch, *shape)
    channels, height, width = shape
    return like.new_empty(members, batch, height, width, channels).movedim(-1, 2)


def flat(layer: Tensor) -> Tensor:
    """Return a layer as [members, batch, n] in the order of its memory, without a copy."""
    return (layer.movedim(2, -1) if layer.ndim == 5 else layer).flatten(2)


def scaled(layer: Tensor, factor: Tensor) -> Tensor:
    """Return a layer [members, batch, *shape] times one factor per sample, [members, batch]."""
    return layer * factor.view(*factor.shape, *(1,) * (layer.ndim - 2))


def memory_order(shape: Shape, device: torch.device) -> Tensor:
    """Return which neuron of a layer, counted row by row, lies at each place of `flat`: [n]."""
    numbers = torch.arange(torch.Size(shape).numel(), device=device).reshape(shape)
    return (numbers.movedim(0, -1) if len(shape) == 3 else numbers).flatten()

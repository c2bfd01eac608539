"""How layers lie in memory, and what products of them with weights are measured from.

Images lie with their channels last, everything else row by row. Nudged phases differ little from
a state of the free phase, their origin. Products with weights are linear, so those of the
differences are added to those of the origin. Differences are rounded relative to themselves:
a nudge survives arithmetic of few bits, although it is small beside the state.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import repeat

import torch
from torch import Tensor

from eqprop.types import Shape


@dataclass(frozen=True)
class Neurons:
    """The values of a layer, [members, batch, *shape], and what convolutions read of them.

    `operand` is `value` itself, or a copy with less precision. With an `origin`, earlier values, it
    is the difference from them in units of `unit(dtype)`. The batch may be several times that of
    the origin, phase after phase.
    """

    value: Tensor
    operand: Tensor
    origin: Tensor | None = None
    axis: int = 1  # of the batch

    @classmethod
    def zeros(
        cls,
        members: int,
        batch: int,
        shape: Shape,
        like: Tensor,
        precision: torch.dtype,
        origin: Tensor | None = None,
    ) -> Neurons:
        """Return a layer at rest, with the dtype and device of `like`."""
        value = empty_layer(members, batch, shape, like).zero_()
        return cls(value, value.to(precision, copy=origin is not None), origin)

    def member(self, i: int) -> Neurons:
        """Return the neurons of one member, without its axis."""
        value = self.value[i]
        operand = value if self.operand is self.value else self.operand[i]
        return Neurons(value, operand, None if self.origin is None else self.origin[i], 0)

    @property
    def moved(self) -> Tensor:
        """The values, or their difference from the origin."""
        if self.origin is None:
            return self.value
        return phase_by_phase(torch.sub, self.value, self.origin, self.axis)

    def refresh(self) -> None:
        """Make the operand that of the values, after they have changed."""
        if self.origin is not None:
            torch.div(self.moved, unit(self.operand.dtype), out=self.operand)
        elif self.operand is not self.value:
            self.operand.copy_(self.value)


@dataclass(frozen=True)
class Product:
    """What weights make of layers: `origin` + `unit` · `moved`, or `moved` if there is no origin.

    `moved` is [members, batch, *shape], or [batch, *shape] with axis 0. Its batch may be several
    times that of the origin, phase after phase.
    """

    moved: Tensor
    origin: Tensor | None = None
    unit: float = 1.0
    axis: int = 1  # of the batch

    def member(self, i: int) -> Product:
        """Return the product of one member, without its axis."""
        return Product(self.moved[i], None if self.origin is None else self.origin[i], self.unit, 0)

    def total(self, dtype: torch.dtype) -> Tensor:
        """Return the sum, shaped like `moved`."""
        moved = self.moved.to(dtype)
        if self.origin is None:
            return moved
        if self.unit != 1:
            moved = moved * self.unit
        return phase_by_phase(torch.add, moved, self.origin, self.axis)


@dataclass(frozen=True)
class Change:
    """A layer in one step: its values before, [members, batch, *shape], and the difference that the
    step made, shaped like them. None: the layer stayed.
    """

    before: Tensor
    difference: Tensor | None = None


@dataclass(frozen=True)
class Placed:
    """Values of a layer, [members, batch, *shape], and the positions that won its windows.

    `winners` is shaped like `values`, as `Windows` counts positions. None: nothing is pooled.
    """

    values: Tensor
    winners: Tensor | None = None

    def member(self, i: int) -> Placed:
        """Return those of one member, whose axis stays."""
        return Placed(self.values[i, None], None if self.winners is None else self.winners[i, None])

    def scaled(self, factor: Tensor) -> Placed:
        """Return the values times one factor per sample, [members, batch]."""
        return Placed(scaled(self.values, factor), self.winners)

    def split(self, batch: int) -> list[Placed]:
        """Return those of each phase, which lie in a row along the batch."""
        values = self.values.split(batch, 1)
        winners = repeat(None) if self.winners is None else self.winners.split(batch, 1)
        return [Placed(*part) for part in zip(values, winners, strict=False)]


@dataclass(frozen=True)
class Ends:
    """What ∂φ/∂θ of a synapse depends on, in one state: the layers that it joins.

    `pre` is [members, batch, *shape].
    """

    pre: Tensor
    post: Placed

    def split(self, batch: int) -> list[Ends]:
        """Return the ends of each phase, which lie in a row along the batch."""
        parts = zip(self.pre.split(batch, 1), self.post.split(batch), strict=True)
        return [Ends(*part) for part in parts]


def unit(dtype: torch.dtype) -> float:
    """Return what differences from an origin are divided by. float16 lacks small numbers."""
    return 2.0**-6 if dtype == torch.float16 else 1.0


def phase_by_phase(
    work: Callable[[Tensor, Tensor], Tensor], given: Tensor, origin: Tensor, axis: int
) -> Tensor:
    """Return work(phase, origin) of each phase; they lie in a row along the axis of the batch."""
    phases = given.unflatten(axis, (-1, origin.shape[axis]))
    return work(phases, origin.unsqueeze(axis)).flatten(axis, axis + 1)


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

"""Synapses of all members as the engine computes them, for one batch size, with their buffers.

A connection computes its drive on the layer after it once per state and weight. What it computes
on the way serves the way back. One with an origin, the same connection in the state from which its
layers are measured, adds to the products of that one: W s = W₀ s₀ + W (s − s₀) + (W − W₀) s₀. The
last term is there if its parameters move.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from functools import reduce
from importlib.util import find_spec
from typing import Self

import torch
from torch import Tensor
from torch.nn.functional import conv2d, conv_transpose2d
from torch.nn.grad import conv2d_weight

from eqprop.engines.convolutional.advance import Advance
from eqprop.engines.convolutional.layers import (
    Change,
    Ends,
    Neurons,
    Placed,
    Product,
    empty_layer,
    flat,
    memory_order,
    phase_by_phase,
    scaled,
    unit,
)
from eqprop.engines.convolutional.weights import Weights
from eqprop.engines.convolutional.windows import Windows
from eqprop.synapses import Conv2d, Dense, Synapses

MOST = 2**31  # numbers that a kernel of `fused.py` can count
FEW = 8  # channels: a GPU takes ten times as long for weight gradients of fewer in 16 bits


class Connection(ABC):
    """A synapse between two layers. `drive` is that on the layer after.

    Args:
        synapse: the synapse, whose parameters it reads.
        advance: how the layer after moves.
        batch: number of samples.
        origin: the same connection in the state from which its layers are measured, or None.
        moving: whether its parameters move away from those of the origin.
    """

    weight: Weights
    backward: Weights  # laid out as `weight`, which it is if tied
    _back_origin: Tensor | None = None  # the drive of the origin on the layer before
    _ends_origin: tuple[Neurons, Neurons]  # both layers, at the origin

    def __init__(
        self,
        synapse: Synapses,
        advance: Advance,
        batch: int,
        origin: Self | None = None,
        moving: bool = False,
    ) -> None:
        self.synapse, self.members, self.advance = synapse, math.prod(synapse.ensemble), advance
        self.origin, self.moving = origin, moving
        self.drive = empty_layer(self.members, batch, synapse.ends[1], synapse.weight)
        self.driven = False  # whether `drive` is that of the layer before and the weights
        self._spread = False  # whether what goes back is that of both layers and the weights

    def _by_member(self, parameter: Tensor) -> Tensor:
        return parameter.view(self.members, *parameter.shape[len(self.synapse.ensemble) :])

    def read(self) -> None:
        """Read the parameters again, after they have moved. With an origin: after that one has."""
        if self.origin is None or self.moving:
            self._read(start=True)
        self.pre_moved()
        self._forget_origin()

    def follow(self) -> None:
        """Read the parameters again, which have moved since the origin read them."""
        self._read(start=False)
        self.pre_moved()

    def pre_moved(self) -> None:
        """Forget what depends on the layer before, which has moved."""
        self.driven = self._spread = False

    def _forget_origin(self) -> None:
        self._back_origin = None

    def refer(self, pre: Neurons, post: Neurons, back: bool) -> None:
        """Make sure that the products of the origin are there.

        Args:
            pre: the layer before, at the origin.
            post: the layer after, at the origin.
            back: whether the drive on the layer before is asked for, too.
        """
        assert self.origin is not None
        self._ends_origin = pre, post
        self._refer(self.origin, pre, post)
        if back and self._back_origin is None:
            self._back_origin = self.origin.back(pre, post).moved

    @abstractmethod
    def _refer(self, origin: Self, pre: Neurons, post: Neurons) -> None:
        """Make sure that what the drive on the layer after is measured from is there."""

    def post_moved(self) -> None:
        """Forget what depends on the layer after, which another connection has moved."""
        self._spread = False

    @abstractmethod
    def _read(self, start: bool) -> None: ...

    def _measures(self, pre: Neurons) -> bool:
        """Whether products with the layer before are measured from those of the origin."""
        return self.moving or pre.origin is not None

    def _factors(self, pre: Neurons) -> list[tuple[Neurons, Tensor]]:
        """Return layers and weights, whose products add up to what is measured."""
        if not self.moving:
            return [(pre, self.weight.operand)]
        stayed = self._ends_origin[0], self.weight.change
        return [stayed] if pre.origin is None else [(pre, self.weight.operand), stayed]

    @abstractmethod
    def forward(self, pre: Neurons, post: Neurons) -> None:
        """Make sure that `drive` is that of the layer before."""

    @abstractmethod
    def back(self, pre: Neurons, post: Neurons) -> Product:
        """Return the drive on the layer before, [members, batch, *shape]; ∂φ/∂pre if tied."""

    @abstractmethod
    def move(self, pre: Neurons, post: Neurons, back: Product | None, nudge: Tensor | None) -> None:
        """Move the layer after, by drive + back, and nudge it.

        `back` is the drive of all other synapses on it. Both are shaped like the layer, or None.
        """

    def winners(self, pre: Neurons, post: Neurons) -> Tensor | None:
        """Return the positions that win in this state, as in `Placed`."""
        return None

    def add_contrast(
        self,
        before: Ends,
        after: Ends,
        pre_moved: bool,
        factor: Tensor,
        into: Mapping[str, Tensor],
    ) -> None:
        """Add Σ factor · (∂φ/∂θ(after) − ∂φ/∂θ(before)) over the batch. Tied only.

        φ is bilinear in both ends, so its change is that of one end times the other as it was, plus
        that of the other times the first as it is. Changes lose less to rounding than ∂φ/∂θ does.

        Args:
            before: ends in one state.
            after: ends in the other, with the same weights.
            pre_moved: whether the layer before differs.
            factor: [members, batch].
            into: a tensor per parameter.
        """
        self._add(before.pre, after.post, before.post, factor, into["weight"])
        if pre_moved:
            self._add(after.pre - before.pre, after.post, None, factor, into["weight"])
        if self.synapse.bias is not None:
            change = after.post.values - before.post.values
            self._add_bias(scaled(change, factor), into["bias"])

    def add_step(
        self, pre: Change, post: Change, factor: Tensor, into: Mapping[str, Tensor]
    ) -> None:
        """Add Σ factor · (∂drive/∂θ)ᵀ·d over the batch, for the changes d of the latest step.

        A synapse with `shared_update` adds both updates to the tensor of `weight`.

        Args:
            pre: the layer before in this step.
            post: the layer after in this step.
            factor: [members, batch].
            into: a tensor per parameter.
        """
        # a step finds the winners of the state before it, for the drive or for the way back
        if post.difference is not None:
            change = Placed(post.difference, self._last_winners)
            self._add(pre.before, change, None, factor, into["weight"])
            if self.synapse.bias is not None:
                self._add_bias(scaled(post.difference, factor), into["bias"])
        if pre.difference is not None:
            apart = self.synapse.untied and not self.synapse.shared_update
            own = self.synapse.reverse(into["backward_weight"]) if apart else into["weight"]
            stayed = Placed(post.before, self._last_winners)
            self._add(pre.difference, stayed, None, factor, own)

    @property
    def _last_winners(self) -> Tensor | None:
        """The positions that won last, as in `Placed`."""
        return None

    @abstractmethod
    def _add(
        self, pre: Tensor, post: Placed, less: Placed | None, factor: Tensor, into: Tensor
    ) -> None:
        """Add Σ factor · ∂/∂W of ((post − less) · W pre) over the batch.

        Args:
            pre: values of the layer before.
            post: values of the layer after, at the positions that won.
            less: the same in another state, or None.
            factor: [members, batch].
            into: a tensor like the weight.
        """

    @abstractmethod
    def _add_bias(self, post: Tensor, into: Tensor) -> None:
        """Add the sum over batch and positions to a tensor like the bias."""


class Convolution(Connection):
    """A `Conv2d`, one member after another: groups of many channels take more time.

    Args:
        synapse: the synapse.
        advance: how the layer after moves.
        batch: number of samples.
        precision: dtype of what it multiplies. Sums have the dtype of the parameters.
        origin: the same connection in the state from which its layers are measured, or None.
        moving: whether its parameters move away from those of the origin.
    """

    windows: Windows
    _convolved_origin: list[Tensor] | None = None

    def __init__(
        self,
        synapse: Conv2d,
        advance: Advance,
        batch: int,
        precision: torch.dtype,
        origin: Convolution | None = None,
        moving: bool = False,
    ) -> None:
        super().__init__(synapse, advance, batch, origin, moving)
        slow = synapse.ends[0][0] < FEW
        # PyTorch 2.13 on a CPU reads memory that nothing wrote, for small images
        wrong = precision == torch.bfloat16 and not self.drive.is_cuda and synapse.stride > 1
        self._gradient_precision = self.drive.dtype if slow or wrong else precision
        self.stride, self.padding, self.left_out = (
            synapse.stride,
            synapse.padding,
            synapse.left_out,
        )
        weight = self._by_member(synapse.weight)
        members, channels, *kernel = weight.shape
        if origin is None or moving:
            place = empty_layer(members, channels, tuple(kernel), weight)
            self.weight = Weights(place, precision, moving)
            self.backward = Weights(place, precision, moving) if synapse.untied else self.weight
        else:
            self.weight, self.backward = origin.weight, origin.backward
        # a sum over batch and positions of products of at most one, times this, fits float16
        self._room = 2.0 ** (15 - math.ceil(math.log2(self.drive[0, :, 0].numel())))
        convolved = synapse.convolved(synapse.ends[0])
        several = batch * channels * math.prod(convolved) < MOST
        kind = _fused() if self.drive.is_cuda and several else Windows
        windows = None if origin is None else origin.windows
        self.windows = kind(synapse.pool, self.drive, convolved, advance, precision, windows)
        self._won = False  # whether the winners are those of the layer before and the weights

    def pre_moved(self) -> None:
        super().pre_moved()
        self._won = False

    def _forget_origin(self) -> None:
        super()._forget_origin()
        self._convolved_origin = None

    def _refer(self, origin: Self, pre: Neurons, post: Neurons) -> None:
        if self._convolved_origin is None:
            self._convolved_origin = origin.pool(pre, post)

    def _read(self, start: bool) -> None:
        self.weight.read(self._by_member(self.synapse.weight), start)
        if self.synapse.backward_weight is not None:
            self.backward.read(self._by_member(self.synapse.backward_weight), start)

    def _bias(self, i: int) -> Tensor | None:
        bias = self.synapse.bias
        return None if bias is None else self._by_member(bias)[i]

    def _convolve(self, i: int, pre: Neurons) -> Product:
        moved = _sum(
            conv2d(layer.operand[i], weight[i], None, self.stride, self.padding)
            for layer, weight in self._factors(pre)
        )
        if not self._measures(pre):
            return Product(moved, axis=0)
        assert self._convolved_origin is not None
        return Product(moved, self._convolved_origin[i], unit(moved.dtype), 0)

    def forward(self, pre: Neurons, post: Neurons) -> None:
        if not self.driven:
            self.pool(pre, post)

    def pool(self, pre: Neurons, post: Neurons) -> list[Tensor]:
        """Find the winners and the drive, and spread the layer after. Return what was convolved,
        of each member.
        """
        convolved = [self._convolve(i, pre) for i in self._all]
        for i, it in enumerate(convolved):
            self.windows.pool(i, it, self._bias(i), post.member(i))
        self.driven = self._spread = self._won = True
        return [it.moved for it in convolved]

    def back(self, pre: Neurons, post: Neurons) -> Product:
        factors = [(self._spreading(pre, post), self.backward.operand)]
        if self.moving:
            assert self.origin is not None
            factors.append((self.origin._spreading(*self._ends_origin), self.backward.change))
        geometry = (None, self.stride, self.padding, self.left_out)
        found = [
            _sum(conv_transpose2d(spread[i], weight[i], *geometry) for spread, weight in factors)
            for i in self._all
        ]
        moved = found[0][None] if self.members == 1 else torch.stack(found)
        if self._back_origin is None:
            return Product(moved)
        return Product(moved, self._back_origin, unit(moved.dtype))

    @property
    def _all(self) -> range:
        return range(self.members)

    def _spreading(self, pre: Neurons, post: Neurons) -> Tensor:
        """Return the values of the layer after, at the positions that won, else zero."""
        if self.windows.size == 1:  # every position won
            return post.operand
        if not self._spread:
            self.pool(pre, post)
        return self.windows.spread

    def move(self, pre: Neurons, post: Neurons, back: Product | None, nudge: Tensor | None) -> None:
        for i in self._all:
            others = None if back is None else back.member(i)
            here = others, None if nudge is None else nudge[i], post.member(i)
            if self.driven:
                self.windows.move(i, *here)
            else:
                self.windows.turn(i, self._convolve(i, pre), self._bias(i), *here)
        self._spread, self._won = not self.driven, True

    def winners(self, pre: Neurons, post: Neurons) -> Tensor | None:
        if not self._won and self.windows.size > 1:
            self.pool(pre, post)
        return self._last_winners

    @property
    def _last_winners(self) -> Tensor | None:
        return self.windows.winners

    def _add(
        self, pre: Tensor, post: Placed, less: Placed | None, factor: Tensor, into: Tensor
    ) -> None:
        total, precision = self._by_member(into), self._gradient_precision
        most = factor.abs().amax(1)  # applied to the sum: float16 has no room for small numbers
        even = self._room * factor / most[:, None]  # before values are spread: they are fewer then
        less = None if less is None else less.scaled(even)
        spread = self.windows.at_winners(post.scaled(even), less, precision)
        rest = (most / self._room)[:, None]  # with an axis, so that products become float32
        for i in self._all:
            total[i] += self._product(pre[i].to(precision), spread[i]) * rest[i]

    def _product(self, pre: Tensor, spread: Tensor) -> Tensor:
        """Return ∂/∂W of Σ spread · conv(pre) for one member, summed over the batch."""
        shape = self.weight.operand.shape[1:]
        found: Tensor = conv2d_weight(pre, shape, spread, self.stride, self.padding)
        return found

    def _add_bias(self, post: Tensor, into: Tensor) -> None:
        self._by_member(into).add_(post.sum((1, 3, 4)))


class AllToAll(Connection):
    """A `Dense` as a product of matrices, with rows and columns in the order of memory.

    Args:
        synapse: the synapse.
        advance: how the layer after moves.
        batch: number of samples.
        origin: the same connection in the state from which its layers are measured, or None.
        moving: whether its parameters move away from those of the origin.
    """

    bias: Weights

    def __init__(
        self,
        synapse: Dense,
        advance: Advance,
        batch: int,
        origin: AllToAll | None = None,
        moving: bool = False,
    ) -> None:
        super().__init__(synapse, advance, batch, origin, moving)
        like = self._by_member(synapse.weight)
        rows, columns = (memory_order(shape, like.device) for shape in synapse.ends)
        self.here = (slice(None), rows[:, None], columns)  # of the weight, as it is read
        self.columns = columns
        if origin is None or moving:
            self.weight = Weights(like, like.dtype, moving)
            self.backward = Weights(like, like.dtype, moving) if synapse.untied else self.weight
            self.bias = Weights(like.new_empty(self.members, 1, len(columns)), like.dtype, moving)
            self.bias.read(torch.zeros_like(self.bias.operand), start=True)
        else:
            self.weight, self.backward, self.bias = origin.weight, origin.backward, origin.bias

    def _refer(self, origin: Self, pre: Neurons, post: Neurons) -> None:
        origin.forward(pre, post)

    def _read(self, start: bool) -> None:
        self.weight.read(self._by_member(self.synapse.weight)[self.here], start)
        if self.synapse.backward_weight is not None:
            backward = self._by_member(self.synapse.backward_weight).mT
            self.backward.read(backward[self.here], start)
        if self.synapse.bias is not None:
            self.bias.read(self._by_member(self.synapse.bias)[:, None, self.columns], start)

    def forward(self, pre: Neurons, post: Neurons) -> None:
        if self.driven:
            return
        product = _sum(flat(layer.moved) @ weight for layer, weight in self._factors(pre))
        if not self._measures(pre):
            product += self.bias.operand
        else:
            assert self.origin is not None
            if self.moving:
                product += self.bias.change
            product = phase_by_phase(torch.add, product, flat(self.origin.drive), 1)
        flat(self.drive).copy_(product)
        self.driven = True

    def back(self, pre: Neurons, post: Neurons) -> Product:
        found = empty_layer(self.members, post.value.shape[1], self.synapse.ends[0], self.drive)
        torch.bmm(flat(post.moved), self.backward.operand.mT, out=flat(found))
        if self.moving:
            _, there = self._ends_origin
            flat(found).baddbmm_(flat(there.value), self.backward.change.mT)
        return Product(found, self._back_origin)

    def move(self, pre: Neurons, post: Neurons, back: Product | None, nudge: Tensor | None) -> None:
        self.forward(pre, post)
        drive = self.drive if back is None else self.drive + back.total(self.drive.dtype)
        self.advance.move(drive, nudge, post)

    def _add(
        self, pre: Tensor, post: Placed, less: Placed | None, factor: Tensor, into: Tensor
    ) -> None:
        change = post.values if less is None else post.values - less.values
        self._by_member(into)[self.here] += flat(pre).mT @ flat(scaled(change, factor))

    def _add_bias(self, post: Tensor, into: Tensor) -> None:
        self._by_member(into)[:, self.columns] += flat(post).sum(1)


def connect(
    synapse: Synapses,
    advance: Advance,
    batch: int,
    precision: torch.dtype,
    origin: Connection | None = None,
    moving: bool = False,
) -> Connection:
    """Return the connection of a synapse. The arguments are those of `Convolution`."""
    if isinstance(synapse, Conv2d):
        assert isinstance(origin, Convolution | None)
        return Convolution(synapse, advance, batch, precision, origin, moving)
    assert isinstance(synapse, Dense)
    assert isinstance(origin, AllToAll | None)
    return AllToAll(synapse, advance, batch, origin, moving)


def _sum(terms: Iterable[Tensor]) -> Tensor:
    return reduce(torch.add, terms)


def _fused() -> type[Windows]:
    """Return the windows for a GPU. Builds of PyTorch without Triton use those for a CPU."""
    if find_spec("triton") is None:
        return Windows
    from eqprop.engines.convolutional.fused import FusedWindows

    return FusedWindows

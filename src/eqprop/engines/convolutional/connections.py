"""Synapses of all members as the engine computes them, for one batch size, with their buffers.

A connection computes its drive on the layer after it once per state and weight. What it computes
on the way serves the way back.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from importlib.util import find_spec

import torch
from torch import Tensor
from torch.nn.functional import conv2d, conv_transpose2d
from torch.nn.grad import conv2d_weight

from eqprop.activations import Activation
from eqprop.engines.convolutional.layers import (
    Change,
    Ends,
    Neurons,
    empty_layer,
    flat,
    memory_order,
    scaled,
)
from eqprop.engines.convolutional.windows import Windows, activate
from eqprop.synapses import Conv2d, Dense, Synapses

MOST = 2**31  # numbers that a kernel of `fused.py` can count


class Connection(ABC):
    """A synapse between two layers. `drive` is that on the layer after.

    Args:
        synapse: the synapse, whose parameters it reads.
        sigma: activation of the layer after.
        batch: number of samples.
    """

    def __init__(self, synapse: Synapses, sigma: Activation, batch: int) -> None:
        self.synapse, self.members, self.sigma = synapse, math.prod(synapse.ensemble), sigma
        self.drive = empty_layer(self.members, batch, synapse.ends[1], synapse.weight)
        self.driven = False  # whether `drive` is that of the layer before and the weights
        self._spread = False  # whether what goes back is that of both layers and the weights

    def _by_member(self, parameter: Tensor) -> Tensor:
        return parameter.view(self.members, *parameter.shape[len(self.synapse.ensemble) :])

    def read(self) -> None:
        """Read the parameters again, after they have moved."""
        self._read()
        self.pre_moved()

    def pre_moved(self) -> None:
        """Forget what depends on the layer before, which has moved."""
        self.driven = self._spread = False

    def post_moved(self) -> None:
        """Forget what depends on the layer after, which another connection has moved."""
        self._spread = False

    @abstractmethod
    def _read(self) -> None: ...

    @abstractmethod
    def forward(self, pre: Neurons, post: Neurons) -> None:
        """Make sure that `drive` is that of the layer before."""

    @abstractmethod
    def back(self, pre: Neurons, post: Neurons) -> Tensor:
        """Return the drive on the layer before, [members, batch, *shape]; ∂φ/∂pre if tied."""

    @abstractmethod
    def move(self, pre: Neurons, post: Neurons, back: Tensor | None, nudge: Tensor | None) -> None:
        """Move the layer after: σ(drive + back) − nudge.

        `back` is the drive of all other synapses on it. Both are shaped like the layer, or None.
        """

    @abstractmethod
    def ends(self, pre: Neurons, post: Neurons) -> Ends:
        """Return a copy of what ∂φ/∂θ depends on."""

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
        self._add(before.pre, after.spread - before.spread, factor, into["weight"])
        if pre_moved:
            self._add(after.pre - before.pre, after.spread, factor, into["weight"])
        if self.synapse.bias is not None:
            self._add_bias(scaled(after.post - before.post, factor), into["bias"])

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
        if post.difference is not None:
            self._add(pre.before, self._at_winners(post.difference), factor, into["weight"])
            if self.synapse.bias is not None:
                self._add_bias(scaled(post.difference, factor), into["bias"])
        if pre.difference is not None:
            apart = self.synapse.untied and not self.synapse.shared_update
            own = self.synapse.reverse(into["backward_weight"]) if apart else into["weight"]
            self._add(pre.difference, self._at_winners(post.before), factor, own)

    def _at_winners(self, post: Tensor) -> Tensor:
        """Return values of the layer after at the positions that won last. Dense: all of them."""
        return post

    @abstractmethod
    def _add(self, pre: Tensor, spread: Tensor, factor: Tensor, into: Tensor) -> None:
        """Add Σ factor · ∂/∂W of (spread · W pre) over the batch, to a tensor like the weight."""

    @abstractmethod
    def _add_bias(self, post: Tensor, into: Tensor) -> None:
        """Add the sum over batch and positions to a tensor like the bias."""


class Convolution(Connection):
    """A `Conv2d`, one member after another: groups of many channels take more time.

    Args:
        synapse: the synapse.
        sigma: activation of the layer after.
        batch: number of samples.
        precision: dtype of what it multiplies. Sums have the dtype of the parameters.
    """

    def __init__(
        self, synapse: Conv2d, sigma: Activation, batch: int, precision: torch.dtype
    ) -> None:
        super().__init__(synapse, sigma, batch)
        self.stride, self.padding, self.left_out = (
            synapse.stride,
            synapse.padding,
            synapse.left_out,
        )
        weight = self._by_member(synapse.weight)
        members, channels, *kernel = weight.shape
        like = weight.new_empty((), dtype=precision)
        self.weight = empty_layer(members, channels, tuple(kernel), like)
        # a sum over batch and positions of products of at most one, times this, fits float16
        self._room = 2.0 ** (15 - math.ceil(math.log2(self.drive[0, :, 0].numel())))
        self.backward = torch.empty_like(self.weight) if synapse.untied else self.weight
        convolved = synapse.convolved(synapse.ends[0])
        several = batch * channels * math.prod(convolved) < MOST
        kind = _fused() if self.drive.is_cuda and several else Windows
        self.windows = kind(synapse.pool, self.drive, convolved, sigma, precision)
        self._won = False  # whether the winners are those of the layer before and the weights

    def pre_moved(self) -> None:
        super().pre_moved()
        self._won = False

    def _read(self) -> None:
        self.weight.copy_(self._by_member(self.synapse.weight))
        if self.synapse.backward_weight is not None:
            self.backward.copy_(self._by_member(self.synapse.backward_weight))

    def _bias(self, i: int) -> Tensor | None:
        bias = self.synapse.bias
        return None if bias is None else self._by_member(bias)[i]

    def _convolve(self, i: int, pre: Neurons) -> Tensor:
        return conv2d(pre.operand[i], self.weight[i], None, self.stride, self.padding)

    def forward(self, pre: Neurons, post: Neurons) -> None:
        if not self.driven:
            self._pool(pre, post)

    def _pool(self, pre: Neurons, post: Neurons) -> None:
        for i in self._all:
            self.windows.pool(i, self._convolve(i, pre), self._bias(i), post.value[i])
        self.driven = self._spread = self._won = True

    def back(self, pre: Neurons, post: Neurons) -> Tensor:
        spread = self._spreading(pre, post)
        geometry = (None, self.stride, self.padding, self.left_out)
        found = [conv_transpose2d(spread[i], self.backward[i], *geometry) for i in self._all]
        return found[0][None] if self.members == 1 else torch.stack(found)

    @property
    def _all(self) -> range:
        return range(self.members)

    def _spreading(self, pre: Neurons, post: Neurons) -> Tensor:
        """Return the values of the layer after, at the positions that won, else zero."""
        if self.windows.size == 1:  # every position won
            return post.operand
        if not self._spread:
            self._pool(pre, post)
        return self.windows.spread

    def move(self, pre: Neurons, post: Neurons, back: Tensor | None, nudge: Tensor | None) -> None:
        for i in self._all:
            here = _of(back, i), _of(nudge, i), *post.member(i)
            if self.driven:
                self.windows.move(i, *here)
            else:
                self.windows.turn(i, self._convolve(i, pre), self._bias(i), *here)
        self._spread, self._won = not self.driven, True

    def ends(self, pre: Neurons, post: Neurons) -> Ends:
        if not self._won and self.windows.size > 1:
            self._pool(pre, post)
        copied = post.value.clone()
        return Ends(pre.value.clone(), copied, self._at_winners(copied))

    def _at_winners(self, post: Tensor) -> Tensor:
        # of a step: it has found those of the state before it, for the drive or for the way back
        return self.windows.at_winners(post)

    def _add(self, pre: Tensor, spread: Tensor, factor: Tensor, into: Tensor) -> None:
        total, precision = self._by_member(into), self.weight.dtype
        most = factor.abs().amax(1)  # applied to the sum: float16 has no room for small numbers
        spread = scaled(spread, self._room * factor / most[:, None])
        for i in self._all:
            operands = pre[i].to(precision), spread[i].to(precision)
            total[i] += self._product(*operands) * (most[i] / self._room)

    def _product(self, pre: Tensor, spread: Tensor) -> Tensor:
        """Return ∂/∂W of Σ spread · conv(pre) for one member, summed over the batch."""
        shape = self.weight.shape[1:]
        found: Tensor = conv2d_weight(pre, shape, spread, self.stride, self.padding)
        return found

    def _add_bias(self, post: Tensor, into: Tensor) -> None:
        self._by_member(into).add_(post.sum((1, 3, 4)))


class AllToAll(Connection):
    """A `Dense` as a product of matrices, with rows and columns in the order of memory."""

    def __init__(self, synapse: Dense, sigma: Activation, batch: int) -> None:
        super().__init__(synapse, sigma, batch)
        device = synapse.weight.device
        rows, columns = (memory_order(shape, device) for shape in synapse.ends)
        self.here = (slice(None), rows[:, None], columns)  # of the weight, as it is read
        self.there = (slice(None), columns[:, None], rows)  # of the backward weight
        self.columns = columns
        self.weight = torch.empty_like(self._by_member(synapse.weight))
        self.backward = torch.empty_like(self.weight.mT) if synapse.untied else self.weight.mT
        self.bias = self.weight.new_zeros(self.members, 1, len(columns))

    def _read(self) -> None:
        self.weight.copy_(self._by_member(self.synapse.weight)[self.here])
        if self.synapse.backward_weight is not None:
            self.backward.copy_(self._by_member(self.synapse.backward_weight)[self.there])
        if self.synapse.bias is not None:
            self.bias.copy_(self._by_member(self.synapse.bias)[:, None, self.columns])

    def forward(self, pre: Neurons, post: Neurons) -> None:
        if not self.driven:
            torch.baddbmm(self.bias, flat(pre.value), self.weight, out=flat(self.drive))
            self.driven = True

    def back(self, pre: Neurons, post: Neurons) -> Tensor:
        found = empty_layer(self.members, post.value.shape[1], self.synapse.ends[0], self.drive)
        torch.bmm(flat(post.value), self.backward, out=flat(found))
        return found

    def move(self, pre: Neurons, post: Neurons, back: Tensor | None, nudge: Tensor | None) -> None:
        self.forward(pre, post)
        move_layer(self.sigma, self.drive if back is None else self.drive + back, nudge, post)

    def ends(self, pre: Neurons, post: Neurons) -> Ends:
        copied = post.value.clone()
        return Ends(pre.value.clone(), copied, copied)

    def _add(self, pre: Tensor, spread: Tensor, factor: Tensor, into: Tensor) -> None:
        self._by_member(into)[self.here] += flat(pre).mT @ flat(scaled(spread, factor))

    def _add_bias(self, post: Tensor, into: Tensor) -> None:
        self._by_member(into)[:, self.columns] += flat(post).sum(1)


def connect(synapse: Synapses, sigma: Activation, batch: int, precision: torch.dtype) -> Connection:
    """Return the connection of a synapse. The arguments are those of `Convolution`."""
    if isinstance(synapse, Conv2d):
        return Convolution(synapse, sigma, batch, precision)
    assert isinstance(synapse, Dense)
    return AllToAll(synapse, sigma, batch)


def move_layer(sigma: Activation, drive: Tensor, nudge: Tensor | None, layer: Neurons) -> None:
    """Move a layer: σ(drive) − nudge, both shaped like it."""
    activate(sigma, drive, out=layer.value)
    if nudge is not None:
        layer.value.sub_(nudge)
    layer.refresh()


def _of(given: Tensor | None, i: int) -> Tensor | None:
    return None if given is None else given[i]


def _fused() -> type[Windows]:
    """Return the windows for a GPU. Builds of PyTorch without Triton use those for a CPU."""
    if find_spec("triton") is None:
        return Windows
    from eqprop.engines.convolutional.fused import FusedWindows

    return FusedWindows

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
from eqprop.engines.convolutional.layers import Neurons, empty_layer, flat, memory_order
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
        """Return ∂φ/∂pre, the drive on the layer before, [members, batch, *shape]."""

    @abstractmethod
    def move(self, pre: Neurons, post: Neurons, back: Tensor | None, nudge: Tensor | None) -> None:
        """Move the layer after: σ(drive + back) − nudge.

        `back` is the drive of all other synapses on it. Both are shaped like the layer, or None.
        """

    @abstractmethod
    def add_gradient(
        self, pre: Neurons, post: Neurons, factor: Tensor, into: Mapping[str, Tensor]
    ) -> None:
        """Add Σ factor · ∂φ/∂θ over the batch to the tensor of each parameter.

        `factor` is [members, batch].
        """


class Convolution(Connection):
    """A `Conv2d`, one member after another: on a CPU that takes 30 % less time than groups of
    channels (32 → 64, 5×5), and on a GPU groups of many channels are slow.

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
        convolved = synapse.convolved(synapse.ends[0])
        several = batch * channels * math.prod(convolved) < MOST
        kind = _fused() if self.drive.is_cuda and several else Windows
        self.windows = kind(synapse.pool, self.drive, convolved, sigma, precision)

    def _read(self) -> None:
        self.weight.copy_(self._by_member(self.synapse.weight))

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
        self.driven = self._spread = True

    def back(self, pre: Neurons, post: Neurons) -> Tensor:
        spread = self._spreading(pre, post)
        geometry = (None, self.stride, self.padding, self.left_out)
        found = [conv_transpose2d(spread[i], self.weight[i], *geometry) for i in self._all]
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
        self._spread = not self.driven

    def add_gradient(
        self, pre: Neurons, post: Neurons, factor: Tensor, into: Mapping[str, Tensor]
    ) -> None:
        spread, total = self._spreading(pre, post), self._by_member(into["weight"])
        for i in self._all:
            shared = factor[i].view(-1, 1, 1, 1) * spread[i]
            shape = total[i].shape
            total[i] += conv2d_weight(pre.value[i], shape, shared, self.stride, self.padding)
        if self.synapse.bias is not None:
            shared = factor[:, :, None] * post.value.sum((3, 4))
            self._by_member(into["bias"]).add_(shared.sum(1))


class AllToAll(Connection):
    """A `Dense` as a product of matrices, with rows and columns in the order of memory."""

    def __init__(self, synapse: Dense, sigma: Activation, batch: int) -> None:
        super().__init__(synapse, sigma, batch)
        device = synapse.weight.device
        rows, columns = (memory_order(shape, device) for shape in synapse.ends)
        self.here = (slice(None), rows[:, None], columns)  # of the weight, as it is read
        self.columns = columns
        self.weight = torch.empty_like(self._by_member(synapse.weight))
        self.bias = self.weight.new_zeros(self.members, 1, len(columns))

    def _read(self) -> None:
        self.weight.copy_(self._by_member(self.synapse.weight)[self.here])
        if self.synapse.bias is not None:
            self.bias.copy_(self._by_member(self.synapse.bias)[:, None, self.columns])

    def forward(self, pre: Neurons, post: Neurons) -> None:
        if not self.driven:
            torch.baddbmm(self.bias, flat(pre.value), self.weight, out=flat(self.drive))
            self.driven = True

    def back(self, pre: Neurons, post: Neurons) -> Tensor:
        found = empty_layer(self.members, post.value.shape[1], self.synapse.ends[0], self.drive)
        torch.bmm(flat(post.value), self.weight.mT, out=flat(found))
        return found

    def move(self, pre: Neurons, post: Neurons, back: Tensor | None, nudge: Tensor | None) -> None:
        self.forward(pre, post)
        move_layer(self.sigma, self.drive if back is None else self.drive + back, nudge, post)

    def add_gradient(
        self, pre: Neurons, post: Neurons, factor: Tensor, into: Mapping[str, Tensor]
    ) -> None:
        shared = factor[..., None] * flat(post.value)
        self._by_member(into["weight"])[self.here] += flat(pre.value).mT @ shared
        if self.synapse.bias is not None:
            self._by_member(into["bias"])[:, self.columns] += shared.sum(1)


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

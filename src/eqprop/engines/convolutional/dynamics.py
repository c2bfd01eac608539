"""The dynamics of a chain of convolutional and dense layers, in memory that stays in its place.

The drive of the input is computed once. A hidden synapse costs two convolutions per sweep over the
layers: its drive, whose pooling winners also serve the way back, and the way back. In turn, the
winners found when the layer after moved still hold when the layer before moves next.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from eqprop.engines.convolutional.connections import connect
from eqprop.engines.convolutional.layers import Change, Neurons, scaled
from eqprop.network import Network
from eqprop.readouts import Readout
from eqprop.types import State


class Dynamics:
    """The state of all members for one batch, and how it moves.

    Args:
        net: the network, whose parameters stay in their place.
        readout: output of the network, and how it is nudged.
        batch: number of samples.
        precision: dtype of what convolutions multiply.
    """

    def __init__(self, net: Network, readout: Readout, batch: int, precision: torch.dtype) -> None:
        self.net, self.readout, self.batch = net, readout, batch
        self.members = math.prod(net.ensemble)
        like = net.synapses[0].weight

        def layer(shape: tuple[int, ...]) -> Neurons:
            return Neurons.zeros(self.members, batch, shape, like, precision)

        self.x = layer(net.input.shape)
        self.s = [layer(shape) for shape in net.layer_shapes]
        self.y = like.new_zeros(*net.ensemble, batch, readout.width)
        pairs = zip(net.synapses, net.activations, strict=True)
        self.connections = [connect(synapse, sigma, batch, precision) for synapse, sigma in pairs]

    @property
    def state(self) -> State:
        """The state as views, one tensor [*ensemble, batch, *shape] per layer."""
        values = (s.value for s in self.s)
        return tuple(s.view(*self.net.ensemble, *s.shape[1:]) for s in values)

    def read(self) -> None:
        """Read the parameters again, after they have moved."""
        for connection in self.connections:
            connection.read()

    def rest(self) -> None:
        """Set every neuron to zero."""
        for k, s in enumerate(self.s):
            s.value.zero_()
            s.operand.zero_()
            self._moved(k)

    def copy(self, other: Dynamics) -> None:
        """Take inputs, targets and state of another, once or several times in a row."""
        for mine, its in zip((self.x, *self.s), (other.x, *other.s), strict=True):
            _repeat(its.value, mine.value, 1)
            mine.refresh()
        _repeat(other.y, self.y, -2)
        for connection in self.connections:
            connection.pre_moved()

    def step(self, layers: Sequence[int], beta: Tensor | None = None) -> None:
        """Move some layers. With β [members, batch], the read-out nudges those that it sees."""
        nudges = {} if beta is None else self._nudges(beta)
        for k in layers:
            if k == 0 or k - 1 in layers:  # what drives it stays for long, or is about to move
                self.connections[k].forward(self._pre(k), self.s[k])
        backs = {k: self._back(k) for k in layers}
        for k in layers:
            self.connections[k].move(self._pre(k), self.s[k], backs[k], nudges.get(k))
        for k in layers:
            self._moved(k)

    def _nudges(self, beta: Tensor) -> dict[int, Tensor]:
        gradients = self.readout.nudge(self.state, self.y)
        return {k: scaled(it.reshape(self.s[k].value.shape), beta) for k, it in gradients.items()}

    def _pre(self, k: int) -> Neurons:
        return self.s[k - 1] if k else self.x

    def _back(self, k: int) -> Tensor | None:
        if k + 1 == len(self.s):
            return None
        return self.connections[k + 1].back(self.s[k], self.s[k + 1])

    def _moved(self, k: int) -> None:
        if k + 1 < len(self.s):
            self.connections[k + 1].pre_moved()

    def add_gradients(self, factor: Tensor, into: Sequence[Mapping[str, Tensor]]) -> None:
        """Add Σ factor · ∂Φ/∂θ over the batch, for each synapse. `factor` is [members, batch]."""
        for k, (connection, own) in enumerate(zip(self.connections, into, strict=True)):
            connection.add_gradient(self._pre(k), self.s[k], factor, own)

    def values(self, layers: Sequence[int]) -> dict[int, Tensor]:
        """Return copies of the values of some layers, by number."""
        return {k: self.s[k].value.clone() for k in layers}

    def add_step(
        self,
        synapses: Sequence[int],
        before: Mapping[int, Tensor],
        factor: Tensor,
        into: Sequence[Mapping[str, Tensor]],
    ) -> None:
        """Add Σ factor · (∂drive/∂θ)ᵀ·(s − before) over the batch, for some synapses.

        Args:
            synapses: their numbers.
            before: `values` of the layers that the latest step has moved, before it.
            factor: [members, batch].
            into: a tensor per parameter, for each synapse of the network.
        """
        changes = [
            Change(before[k], s.value - before[k]) if k in before else Change(s.value)
            for k, s in enumerate(self.s)
        ]
        for k in synapses:
            pre = changes[k - 1] if k else Change(self.x.value)
            self.connections[k].add_step(pre, changes[k], factor, into[k])

    def largest_change(self, before: Mapping[int, Tensor]) -> Tensor:
        """Return the largest change of the layers in `before` since then, [members, batch]."""
        each = [(self.s[k].value - it).abs().flatten(2).amax(-1) for k, it in before.items()]
        return torch.stack(each).amax(0)


def _repeat(given: Tensor, out: Tensor, axis: int) -> None:
    """Copy a tensor to one that is as long or several times as long along the axis."""
    for part in out.split(given.shape[axis], axis):
        part.copy_(given)

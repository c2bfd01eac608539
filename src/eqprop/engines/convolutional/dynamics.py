"""The dynamics of convolutional and dense layers, in memory that stays in its place.

The drive of the input is computed once. A hidden synapse costs two convolutions per sweep over the
layers: its drive, whose pooling winners also serve the way back, and the way back. In turn, the
winners found when the layer after moved still hold when the layer before moves next. Where several
synapses lead to a layer, one of them moves it, with the drives of the others. In turn, pooling
costs those others one more convolution: the layer has moved, and their winners are not stored.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence

import torch
from torch import Tensor

from eqprop.engines.convolutional.advance import Advance
from eqprop.engines.convolutional.connections import Connection, connect
from eqprop.engines.convolutional.layers import Change, Ends, Neurons, Placed, Product, scaled
from eqprop.engines.convolutional.streams import Streams
from eqprop.network import Network
from eqprop.readouts import Readout
from eqprop.types import Shape, State


class Dynamics:
    """The state of all members for one batch, and how it moves.

    Args:
        net: the network, whose parameters stay in their place.
        readout: output of the network, and how it is nudged.
        batch: number of samples.
        precision: dtype of what convolutions multiply.
        origin: the state from which this one is measured, or None. It may have several times fewer
            samples.
        moving: whether the parameters move away from those of the origin, if there is one.
    """

    s: list[Neurons]
    connections: list[Connection]

    def __init__(
        self,
        net: Network,
        readout: Readout,
        batch: int,
        precision: torch.dtype,
        origin: Dynamics | None = None,
        moving: bool = False,
    ) -> None:
        self.net, self.readout, self.batch = net, readout, batch
        self.origin, self._moving = origin, moving and origin is not None
        self.members = math.prod(net.ensemble)
        like = net.synapses[0].weight

        def layer(shape: Shape, origin: Neurons | None = None) -> Neurons:
            start = None if origin is None else origin.value
            return Neurons.zeros(self.members, batch, shape, like, precision, start)

        origins = origin.s if origin else [None] * len(net.layers)
        self.x = layer(net.input.shape)
        self.s = [layer(*both) for both in zip(net.layer_shapes, origins, strict=True)]
        self.y = like.new_zeros(*net.ensemble, batch, readout.width)
        self._advance = [Advance.of(net, k) for k in range(len(self.s))]
        same = origin.connections if origin else [None] * len(net.edges)
        self.connections = [
            connect(synapse, self._advance[post], batch, precision, other, self._moving)
            for synapse, (_, post), other in zip(net.synapses, net.edges, same, strict=True)
        ]
        self._ends = [(self.x if i is None else self.s[i], self.s[k]) for i, k in net.edges]
        self._streams = Streams(max(len(self.s), len(net.edges)), like.device)
        self._into, self._out_of = (
            [[c for c, edge in enumerate(net.edges) if edge[end] == k] for k in range(len(self.s))]
            for end in (1, 0)
        )

    @property
    def state(self) -> State:
        """The state as views, one tensor [*ensemble, batch, *shape] per layer."""
        values = (s.value for s in self.s)
        return tuple(s.view(*self.net.ensemble, *s.shape[1:]) for s in values)

    def read(self) -> None:
        """Read the parameters again, after they have moved."""
        self._each_connection(lambda connection: connection.read())

    def follow(self) -> None:
        """Read the parameters again, which have moved since the origin read them."""
        self._each_connection(lambda connection: connection.follow())

    def _each_connection(self, work: Callable[[Connection], None]) -> None:
        self._streams.each(range(len(self.connections)), lambda c: work(self.connections[c]))

    def rest(self) -> None:
        """Set every neuron to zero."""
        for s in self.s:
            s.value.zero_()
            s.operand.zero_()
        self.forget()

    def copy(self, other: Dynamics) -> None:
        """Take inputs, targets and state of another, once or several times in a row."""
        for mine, its in zip((self.x, *self.s), (other.x, *other.s), strict=True):
            _repeat(its.value, mine.value, 1)
            mine.refresh()
        _repeat(other.y, self.y, -2)
        self.forget()

    def forget(self) -> None:
        """Forget what has been computed from the state, which has changed."""
        for connection in self.connections:
            connection.pre_moved()

    def step(self, layers: Sequence[int], beta: Tensor | None = None) -> None:
        """Move some layers. With β [members, batch], the read-out nudges those that it sees."""
        self._refer(layers)
        nudges = {} if beta is None else self._nudges(beta)
        heard: dict[int, tuple[int | None, Product | None]] = {}

        def drive(k: int) -> None:
            for c in self._into[k]:
                pre, _ = self.net.edges[c]
                if pre is None or pre in layers:  # it stays for long, or is about to move
                    self._drive(c)

        def hear(k: int) -> None:
            mover = self._mover(k)
            heard[k] = mover, self._others(k, mover)

        def move(k: int) -> None:
            self._move(k, *heard[k], nudges.get(k))

        def hear_and_move(k: int) -> None:
            hear(k)
            move(k)

        self._streams.each(layers, drive)
        if any(i in layers and k in layers for i, k in self.net.edges):
            self._streams.each(layers, hear)  # each other's states, before any of them moves
            self._streams.each(layers, move)
        else:
            self._streams.each(layers, hear_and_move)
        for k in layers:
            for c in self._out_of[k]:
                self.connections[c].pre_moved()

    def _refer(self, layers: Collection[int]) -> None:
        """Make sure that the products of the origin with which some layers move are there."""
        origin = self.origin
        if origin is None:
            return

        def refer(c: int) -> None:
            back = self.net.edges[c][0] in layers
            self.connections[c].refer(*origin._ends[c], back)

        self._streams.each([c for c in self._at(layers) if self._measured(c)], refer)

    def _measured(self, c: int) -> bool:
        """Whether products of a synapse are measured from those of the origin."""
        return self._moving or self.net.edges[c][0] is not None  # x stays, and is its own origin

    def _at(self, layers: Collection[int]) -> list[int]:
        """Return the synapses that lead to or from some layers."""
        return [c for c, (i, k) in enumerate(self.net.edges) if i in layers or k in layers]

    def _mover(self, k: int) -> int | None:
        """Return the connection that moves layer k: if possible, one with its drive to come."""
        return min(self._into[k], key=lambda c: self.connections[c].driven, default=None)

    def _others(self, k: int, mover: int | None) -> Product | None:
        """Return the drive of all other connections on layer k, shaped like it, or None."""
        drives = [Product(self._drive(c)) for c in self._into[k] if c != mover]
        drives += [self.connections[c].back(*self._ends[c]) for c in self._out_of[k]]
        if len(drives) < 2:
            return drives[0] if drives else None
        first, *rest = (drive.total(self.y.dtype) for drive in drives)
        return Product(sum(rest, first))

    def _drive(self, c: int) -> Tensor:
        self.connections[c].forward(*self._ends[c])
        return self.connections[c].drive

    def _move(
        self, k: int, mover: int | None, others: Product | None, nudge: Tensor | None
    ) -> None:
        if mover is not None:
            self.connections[mover].move(*self._ends[mover], others, nudge)
        elif others is not None:  # no synapse leads here
            drive = others.total(self.y.dtype)
            self._advance[k].move(drive, nudge, self.s[k])
        for c in self._into[k]:
            if c != mover:
                self.connections[c].post_moved()

    def _nudges(self, beta: Tensor) -> dict[int, Tensor]:
        gradients, strength = self.readout.nudge(self.state, self.y), beta * self.net.nudge_scale
        return {
            k: scaled(it.reshape(self.s[k].value.shape), strength) for k, it in gradients.items()
        }

    def ends(self, layers: Collection[int], copied: bool = False) -> dict[int, Ends]:
        """Return the ends of each synapse at one of some layers, by its number.

        Args:
            layers: their numbers.
            copied: whether these layers are about to move.
        """
        self._refer(layers)
        values = [
            s.value.clone() if copied and k in layers else s.value for k, s in enumerate(self.s)
        ]
        found = {}

        def find(c: int) -> None:
            i, k = self.net.edges[c]
            winners = self.connections[c].winners(*self._ends[c])
            if copied and i in layers and winners is not None:
                winners = winners.clone()
            pre = self.x.value if i is None else values[i]
            found[c] = Ends(pre, Placed(values[k], winners))

        self._streams.each(self._at(layers), find)
        return found

    def add_contrast(
        self,
        layers: Collection[int],
        before: Mapping[int, Ends],
        after: Mapping[int, Ends],
        factor: Tensor,
        into: Sequence[Mapping[str, Tensor]],
    ) -> None:
        """Add Σ factor · (∂Φ/∂θ(after) − ∂Φ/∂θ(before)) over the batch.

        Args:
            layers: those that differ between the two states.
            before: `ends(layers)` of one state.
            after: the same of the other.
            factor: [members, batch].
            into: a tensor per parameter, for each synapse of the network.
        """

        def add(c: int) -> None:
            pre_moved = self.net.edges[c][0] in layers
            self.connections[c].add_contrast(before[c], after[c], pre_moved, factor, into[c])

        self._streams.each(before, add)

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

        def add(c: int) -> None:
            i, k = self.net.edges[c]
            pre = Change(self.x.value) if i is None else changes[i]
            self.connections[c].add_step(pre, changes[k], factor, into[c])

        self._streams.each(synapses, add)

    def largest_change(self, before: Mapping[int, Tensor]) -> Tensor:
        """Return the largest change of the layers in `before` since then, [members, batch]."""
        each = [(self.s[k].value - it).abs().flatten(2).amax(-1) for k, it in before.items()]
        return torch.stack(each).amax(0)


def _repeat(given: Tensor, out: Tensor, axis: int) -> None:
    """Copy a tensor to one that is as long or several times as long along the axis."""
    for part in out.split(given.shape[axis], axis):
        part.copy_(given)

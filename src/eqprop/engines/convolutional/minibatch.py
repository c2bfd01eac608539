"""One minibatch of a chain of convolutional and dense layers, in memory that stays in its place.

The drive of the input is computed once. A hidden synapse costs two convolutions per sweep over the
layers: its drive, whose pooling winners also serve the way back, and the way back. In turn, the
winners found when the layer after moved still hold when the layer before moves next.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from eqprop.activations import HARD_SIGMOID, SIGMOID, TANH, Activation
from eqprop.dynamics import Relaxation
from eqprop.engines.convolutional.connections import connect
from eqprop.engines.convolutional.layers import empty_layer
from eqprop.engines.graphs import Graphs
from eqprop.network import Network
from eqprop.readouts import Readout
from eqprop.rules import Rule
from eqprop.types import State
from eqprop.updates import Mover


class Minibatch:
    """Free and nudged phases, and the gradients that EP and C-EP read from them.

    Nothing in them waits for the device. On a GPU they are captured as graphs.

    Args:
        net: the network, whose parameters stay in their place.
        rule: EP or C-EP.
        readout: what is answered, and how it is nudged.
        mover: moves the parameters within the phases of C-EP.
        batch: how many samples.
    """

    def __init__(
        self, net: Network, rule: Rule, readout: Readout, mover: Mover, batch: int
    ) -> None:
        self.net, self.rule, self.readout, self.mover = net, rule, readout, mover
        self.batch, self.members = batch, math.prod(net.ensemble)
        like = net.synapses[0].weight
        shapes = net.layer_shapes

        def layers() -> list[Tensor]:
            return [empty_layer(self.members, batch, shape, like) for shape in shapes]

        self.x = empty_layer(self.members, batch, net.input.shape, like)
        self.y = like.new_zeros(*net.ensemble, batch, readout.width)
        self.beta = like.new_ones(self.members)
        self.residual = like.new_zeros(self.members, batch)
        self.gradients = {name: torch.zeros_like(p) for name, p in net.named_parameters()}
        self._s, self._free, self._drives = layers(), layers(), layers()
        self._connections = [connect(synapse, batch) for synapse in net.synapses]
        self._own = [
            {field: self.gradients[f"synapses.{k}.{field}"] for field, _ in s.named_parameters()}
            for k, s in enumerate(net.synapses)
        ]
        everything: tuple[Sequence[int], ...] = (range(len(shapes)),)
        self._free_turns = net.split() if rule.in_turn else everything
        self._nudged_turns = net.split() if rule.nudged_in_turn else everything
        assert rule.nudging is not None
        self._signs = [float(sign) for sign in rule.nudging.betas(1.0)]  # type: ignore[arg-type]
        self._graphs = Graphs(like.device, list(net.parameters()))

    # what the engine asks for

    def relax(self, steps: int) -> None:
        """The free phase of x."""
        self._graphs.replay(f"relax {steps}", lambda: self._relax(steps))

    def learn(self) -> None:
        """Learn from x, y and β: `gradients` of EP; C-EP has moved the parameters along its own."""
        self._graphs.replay("learn", self._continual if self.rule.continual else self._contrast)

    @property
    def free(self) -> State:
        """The free state, one tensor [*ensemble, batch, *shape] per layer, as views."""
        return self._public(self._free)

    @property
    def latest(self) -> State:
        """The state at the end of the latest phase, as views."""
        return self._public(self._s)

    def relaxation(self, steps: int) -> Relaxation:
        """The free phase, in memory of its own."""
        ensemble = self.net.ensemble
        residual = self.residual.clone().reshape(*ensemble, self.batch)
        return Relaxation(
            state=tuple(s.clone(memory_format=torch.contiguous_format) for s in self.free),
            residual=float(residual.max()),
            steps=steps,
            sample_residual=residual,
            member_steps=torch.full(ensemble, steps, device=residual.device),
        )

    def _public(self, layers: Sequence[Tensor]) -> State:
        return tuple(s.view(*self.net.ensemble, *s.shape[1:]) for s in layers)

    # phases

    def _relax(self, steps: int) -> None:
        for connection in self._connections:
            connection.read()
        for s in self._s:
            s.zero_()
        self.residual.zero_()
        turns = self._free_turns
        for t in range(steps):
            layers = turns[t % len(turns)]
            before = [self._s[k].clone() for k in layers] if steps - t <= len(turns) else []
            self._step(layers)
            for k, s in zip(layers, before, strict=False):
                change = s.sub_(self._s[k]).abs_().amax(tuple(range(2, s.ndim)))
                torch.maximum(self.residual, change, out=self.residual)
        for kept, s in zip(self._free, self._s, strict=True):
            kept.copy_(s)

    def _step(self, layers: Sequence[int], beta: Tensor | None = None) -> None:
        """Move some layers; with β, the read-out nudges those of them that it sees."""
        nudges = {} if beta is None else self.readout.nudge(self.latest, self.y)
        drives = {k: self._drive(k) for k in layers}  # of the state before any of them moves
        for k, drive in drives.items():
            s = self._s[k]
            gradient = nudges[k].reshape(s.shape) if k in nudges else None
            _activate(self.net.activations[k], drive, out=s)
            if gradient is not None and beta is not None:
                s.sub_(gradient * beta.view(-1, *(1 for _ in s.shape[1:])))
            if k + 1 < len(self._s):
                self._connections[k + 1].pre_moved()

    def _pre(self, k: int) -> Tensor:
        return self._s[k - 1] if k else self.x

    def _drive(self, k: int) -> Tensor:
        """The whole drive on a layer."""
        forward = self._connections[k].forward(self._pre(k))
        if k + 1 == len(self._s):
            return forward
        self._connections[k + 1].back(self._s[k], self._s[k + 1], forward, out=self._drives[k])
        return self._drives[k]

    def _restart(self) -> None:
        """Back to the free state."""
        for s, kept in zip(self._s, self._free, strict=True):
            s.copy_(kept)
        for connection in self._connections[1:]:
            connection.pre_moved()

    # learning rules

    def _contrast(self) -> None:
        """EP: g = −(1/n) Σ (∂Φ/∂θ(s^β) − ∂Φ/∂θ(s_*)) / β over n nudged phases, batch mean."""
        self._relax(self.rule.free_steps)
        self._clear()
        opposite = -sum(1 / sign for sign in self._signs)
        if opposite:  # centred, the free state has no share
            self._add(opposite / self.beta)
        for phase, sign in enumerate(self._signs):
            if phase:
                self._restart()
            beta = sign * self.beta
            for t in range(self.rule.horizon):
                self._step(self._nudged_turns[t % len(self._nudged_turns)], beta)
            self._add(1 / beta)
        self._add_readout()

    def _continual(self) -> None:
        """C-EP: θ moves along −(∂Φ/∂θ(s_{t+1}) − ∂Φ/∂θ(s_t)) / β at every step of each phase."""
        self._relax(self.rule.free_steps)
        for phase, sign in enumerate(self._signs):
            self._restart()
            beta = sign * self.beta
            for t in range(self.rule.horizon):
                self._clear()
                self._add(-1 / beta)
                self._step(self._nudged_turns[t % len(self._nudged_turns)], beta)
                self._add(1 / beta)
                if phase == t == 0:
                    self._add_readout()
                self.mover.move(self.gradients)
                for connection in self._connections:
                    connection.read()

    def _clear(self) -> None:
        for gradient in self.gradients.values():
            gradient.zero_()

    def _add(self, share: Tensor) -> None:
        """Add −share · ∂Φ/∂θ of the state to the gradients, as mean over batch and phases."""
        factor = share / (-self.batch * len(self._signs))
        for k, (connection, into) in enumerate(zip(self._connections, self._own, strict=True)):
            connection.add_gradient(self._pre(k), self._s[k], factor, into)

    def _add_readout(self) -> None:
        for field, gradient in self.readout.gradients(self.free, self.y).items():
            self.gradients[f"readout.{field}"].copy_(gradient)


def _activate(sigma: Activation, drive: Tensor, out: Tensor) -> None:
    if sigma == HARD_SIGMOID:
        torch.clamp(drive, 0, 1, out=out)
    elif sigma == TANH:
        torch.tanh(drive, out=out)
    elif sigma == SIGMOID:
        torch.mul(drive, 4, out=out).sub_(2).sigmoid_()
    else:
        out.copy_(drive)

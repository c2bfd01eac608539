"""One minibatch of convolutional and dense layers: what EP and C-EP do with it.

Nothing here waits for the device. On a GPU the work is captured as graphs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property

import torch
from torch import Tensor

from eqprop.dynamics import Relaxation
from eqprop.engines.convolutional.dynamics import Dynamics
from eqprop.engines.graphs import Graphs
from eqprop.network import Network
from eqprop.readouts import Readout
from eqprop.rules import Rule
from eqprop.updates import Mover


class Minibatch:
    """Free and nudged phases, and the gradients that EP and C-EP read from them.

    EP runs its nudged phases side by side, as a larger batch. C-EP runs them one after another,
    because its parameters move.

    Args:
        net: the network, whose parameters stay in their place.
        rule: EP or C-EP.
        readout: output of the network, and how it is nudged.
        mover: moves the parameters within the phases of C-EP.
        batch: number of samples.
        precision: dtype of what convolutions multiply.
    """

    def __init__(
        self,
        net: Network,
        rule: Rule,
        readout: Readout,
        mover: Mover,
        batch: int,
        precision: torch.dtype,
    ) -> None:
        self.net, self.rule, self.readout, self.mover = net, rule, readout, mover
        self.batch, self._precision = batch, precision
        self.free = Dynamics(net, readout, batch, precision)
        like = net.synapses[0].weight
        self.beta = like.new_ones(self.free.members)
        self.residual = like.new_zeros(self.free.members, batch)
        self.gradients = {name: torch.zeros_like(p) for name, p in net.named_parameters()}
        self._own = [
            {field: self.gradients[f"synapses.{k}.{field}"] for field, _ in s.named_parameters()}
            for k, s in enumerate(net.synapses)
        ]
        everything: tuple[Sequence[int], ...] = (range(len(net.layers)),)
        self._free_turns = net.split() if rule.in_turn else everything
        self._nudged_turns = net.split() if rule.nudged_in_turn else everything
        assert rule.nudging is not None
        self._signs = [float(sign) for sign in rule.nudging.betas(1.0)]  # type: ignore[arg-type]
        self._graphs = Graphs(like.device, list(net.parameters()))

    @cached_property
    def nudged(self) -> Dynamics:
        """The state of the nudged phases: with EP, all of them, one after another in the batch."""
        phases = 1 if self.rule.continual else len(self._signs)
        return Dynamics(self.net, self.readout, phases * self.batch, self._precision)

    # what the engine asks for

    @property
    def free_groups(self) -> int:
        """Number of steps that move every layer once in the free phase."""
        return len(self._free_turns)

    def relax(self, steps: int) -> None:
        """Run the free phase of x."""
        self._replay(f"relax {steps}", lambda: self._relax(steps))

    def learn(self) -> None:
        """Learn from x, y and β: `gradients` of EP; C-EP has moved the parameters along its own."""
        assert self.nudged  # its memory exists before a graph is captured
        self._replay("learn", self._continual if self.rule.continual else self._contrast)

    def _replay(self, name: str, work: Callable[[], None]) -> None:
        """Run the work with the same numbers every time, so that a run resumes exactly."""
        before = torch.backends.cudnn.deterministic
        torch.backends.cudnn.deterministic = True
        try:
            self._graphs.replay(name, work)
        finally:
            torch.backends.cudnn.deterministic = before

    def relaxation(self, steps: int) -> Relaxation:
        """Return the free phase, in memory of its own."""
        ensemble = self.net.ensemble
        residual = self.residual.clone().reshape(*ensemble, self.batch)
        return Relaxation(
            state=tuple(s.clone(memory_format=torch.contiguous_format) for s in self.free.state),
            residual=float(residual.max()),
            steps=steps,
            sample_residual=residual,
            member_steps=torch.full(ensemble, steps, device=residual.device),
        )

    # phases

    def _relax(self, steps: int) -> None:
        free, turns = self.free, self._free_turns
        free.read()
        free.rest()
        self.residual.zero_()
        for t in range(steps):
            layers = turns[t % len(turns)]
            last = steps - t <= len(turns)  # the residual is the change of the latest turns
            before = [free.s[k].value.clone() for k in layers] if last else []
            free.step(layers)
            if last:
                change = free.changes(layers, before)
                torch.maximum(self.residual, change, out=self.residual)

    def _nudge(self, t: int, beta: Tensor) -> None:
        self.nudged.step(self._nudged_turns[t % len(self._nudged_turns)], beta)

    def _contrast(self) -> None:
        """EP: g = −(1/n) Σ (∂Φ/∂θ(s^β) − ∂Φ/∂θ(s_*)) / β over n nudged phases, batch mean."""
        self._relax(self.rule.free_steps)
        self._clear()
        opposite = -sum(1 / sign for sign in self._signs)
        if opposite:  # with centred nudging the free state drops out
            self._add(self.free, opposite / self._per_sample([1.0]))
        beta = self._per_sample(self._signs)
        self.nudged.read()
        self.nudged.copy(self.free)
        for t in range(self.rule.horizon):
            self._nudge(t, beta)
        self._add(self.nudged, 1 / beta)
        self._add_readout()

    def _continual(self) -> None:
        """C-EP: θ moves along −(∂Φ/∂θ(s_{t+1}) − ∂Φ/∂θ(s_t)) / β at every step of each phase."""
        self._relax(self.rule.free_steps)
        self.nudged.read()
        for phase, sign in enumerate(self._signs):
            self.nudged.copy(self.free)
            beta = self._per_sample([sign])
            for t in range(self.rule.horizon):
                self._clear()
                self._add(self.nudged, -1 / beta)
                self._nudge(t, beta)
                self._add(self.nudged, 1 / beta)
                if phase == t == 0:
                    self._add_readout()
                self.mover.move(self.gradients)
                self.nudged.read()

    def _per_sample(self, signs: Sequence[float]) -> Tensor:
        """Return sign · β for each sample of some phases, [members, phases · batch]."""
        phases = [(sign * self.beta)[:, None].expand(-1, self.batch) for sign in signs]
        return torch.cat(phases, 1)

    def _clear(self) -> None:
        for gradient in self.gradients.values():
            gradient.zero_()

    def _add(self, dynamics: Dynamics, share: Tensor) -> None:
        """Add −share · ∂Φ/∂θ of a state to the gradients, as mean over batch and phases."""
        dynamics.add_gradients(share / (-self.batch * len(self._signs)), self._own)

    def _add_readout(self) -> None:
        for field, gradient in self.readout.gradients(self.free.state, self.free.y).items():
            self.gradients[f"readout.{field}"].copy_(gradient)

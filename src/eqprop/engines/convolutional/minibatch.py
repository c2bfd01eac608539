"""One minibatch of convolutional and dense layers: what the rules do with it.

Convolutions of 16 bits round so much that a network which pools never quite settles. Centred
nudging takes the difference of two phases that have this in common. One nudged phase would divide
it by β. There the last third of the free phase is measured from the state before it, as the nudged
phase is: what is left to settle is rounded, not the state.

On a GPU the work is captured as graphs. It waits for the device only with a tolerance, at each step
of the free phase.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property, partial

import torch
from torch import Tensor

from eqprop.dynamics import Relaxation
from eqprop.engines.convolutional.dynamics import Dynamics
from eqprop.engines.convolutional.layers import Ends
from eqprop.engines.convolutional.settling import Settling
from eqprop.engines.graphs import Graphs
from eqprop.network import Network
from eqprop.readouts import Readout
from eqprop.rules import Rule
from eqprop.updates import Mover


class Minibatch:
    """Free and nudged phases, and the gradients that EP, C-EP, VF and C-VF read from them.

    EP and VF run their nudged phases side by side, as a larger batch. C-EP and C-VF run them one
    after another, because their parameters move.

    Inputs and targets are given to `origin`. `free` holds the state at the end of the free phase.

    Args:
        net: the network, whose parameters stay in their place.
        rule: EP, C-EP, VF or C-VF.
        readout: output of the network, and how it is nudged.
        mover: moves the parameters within the phases of C-EP and C-VF. If the rule rescales, they
            return after the last phase.
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
        assert rule.nudging is not None
        self._signs = [float(sign) for sign in rule.nudging.betas(1.0)]  # type: ignore[arg-type]
        self._samples = batch * len(self._signs)
        like = net.synapses[0].weight
        self.origin = self.free = Dynamics(net, readout, batch, precision)
        if len(self._signs) == 1 and results_round(like, precision):
            self.free = Dynamics(net, readout, batch, precision, self.origin)
        self.beta = like.new_ones(self.free.members)
        self.gradients = {name: torch.zeros_like(p) for name, p in net.named_parameters()}
        self._own = [
            {field: self.gradients[f"synapses.{k}.{field}"] for field, _ in s.named_parameters()}
            for k, s in enumerate(net.synapses)
        ]
        everything: tuple[Sequence[int], ...] = (range(len(net.layers)),)
        self._free_turns = net.split() if rule.in_turn else everything
        self._nudged_turns = net.split() if rule.nudged_in_turn else everything
        self.settling = Settling(self.free, len(self._free_turns), rule.tolerance)
        self._all = range(len(net.synapses))
        self._graphs = Graphs(like.device, list(net.parameters()))

    @cached_property
    def nudged(self) -> Dynamics:
        """The state of the nudged phases: if θ is fixed, all of them, in a row along the batch."""
        moving = self.rule.continual
        batch = self.batch if moving else self._samples
        # while θ moves, an origin costs twice as many convolutions
        measured = not moving or convolutions_round(self.beta, self._precision)
        origin = self.origin if measured else None
        return Dynamics(self.net, self.readout, batch, self._precision, origin, moving)

    # what the engine asks for

    def relax(self, steps: int) -> None:
        """Run the free phase of x, of at most so many steps."""
        name = f"relax {steps}"
        with repeatable():
            if self.rule.tolerance is None:
                self._graphs.replay(name, partial(self._relax, steps))
            else:
                self.settling.begin()
                phase = partial(self._free_phase, steps)
                self._graphs.replay_until(name, phase, self.settling.ended)
                self.settling.end()

    def learn(self) -> None:
        """Learn from x, y and β: find `gradients`. C-EP and C-VF move the parameters, too."""
        assert self.nudged  # its memory exists before a graph is captured
        if self.rule.tolerance is not None:
            self.relax(self.rule.free_steps)
        with repeatable():
            self._graphs.replay("learn", self._learn)

    def relaxation(self, steps: int) -> Relaxation:
        """Return the free phase of at most so many steps, in memory of its own."""
        ensemble = self.net.ensemble
        residual = self.settling.residual().reshape(*ensemble, self.batch)
        taken = self.settling.steps(steps).reshape(ensemble)
        return Relaxation(
            state=tuple(s.clone(memory_format=torch.contiguous_format) for s in self.free.state),
            residual=float(residual.max()),
            steps=int(taken.max()),
            sample_residual=residual,
            member_steps=taken,
            tolerance=self.rule.tolerance,
        )

    # phases

    def _relax(self, steps: int) -> None:
        for _ in self._free_phase(steps):
            self._graphs.step()

    def _free_phase(self, steps: int) -> Iterator[None]:
        """Run the free phase; yield before each step."""
        phase, turns = self.origin, self._free_turns
        phase.read()
        phase.rest()
        self.settling.rest()
        for t in range(steps):
            yield
            if t == 2 * steps // 3 and self.free is not self.origin:
                phase = self.free
                phase.read()
                phase.copy(self.origin)
            layers = turns[t % len(turns)]
            counts = self.settling.counts(after=steps - t - 1)
            before = phase.values(layers) if counts else {}
            phase.step(layers)
            if counts:
                self.settling.add(t, phase.largest_change(before))

    def _learn(self) -> None:
        if self.rule.tolerance is None:
            self._relax(self.rule.free_steps)
        else:
            self.free.forget()  # where it ended is not known when this is captured
        self._clear()
        if self.rule.continual:
            self._continual()
        elif self.rule.vector_field:
            self._sum_of_steps()
        else:
            self._contrast()

    def _moving(self, t: int) -> Sequence[int]:
        """Return the layers that nudged step t moves."""
        return self._nudged_turns[t % len(self._nudged_turns)]

    def _contrast(self) -> None:
        """EP: g = −(1/n) Σ (∂Φ/∂θ(s^β) − ∂Φ/∂θ(s_*)) / β over n nudged phases, batch mean."""
        beta = self._per_sample(self._signs)
        self.nudged.read()
        self.nudged.copy(self.free)
        for t in range(self.rule.horizon):
            self._graphs.step()
            self.nudged.step(self._moving(t), beta)
        layers = range(len(self.net.layers))
        ends = self.nudged.ends(layers)
        if len(self._signs) == 1:
            before, after = self.free.ends(layers), ends
        else:  # of centred nudging: the free state drops out
            phases = {c: it.split(self.batch) for c, it in ends.items()}
            after, before = ({c: both[k] for c, both in phases.items()} for k in (0, 1))
        self._add_contrast(layers, before, after, beta[:, : self.batch])
        self._add_readout()

    def _sum_of_steps(self) -> None:
        """VF: g = −(1/n) Σ_t (∂F/∂θ(s_t))ᵀ·(s_{t+1} − s_t) / β over n nudged phases, batch mean.

        The input and its winners stay, so its synapses need only the change of the whole phase.
        """
        beta = self._per_sample(self._signs)
        self.nudged.read()
        self.nudged.copy(self.free)
        start = self.nudged.values(range(len(self.net.layers)))
        inner = [k for k, synapse in enumerate(self.net.synapses) if not synapse.from_input]
        for t in range(self.rule.horizon):
            self._graphs.step()
            self._step(t, beta, inner)
        self._add_changes([k for k in self._all if k not in inner], start, beta)
        self._share_updates()
        self._add_readout()

    def _continual(self) -> None:
        """θ moves at every step of each phase.

        C-EP: along −(∂Φ/∂θ(s_{t+1}) − ∂Φ/∂θ(s_t)) / β.
        C-VF: along −(∂F/∂θ(s_t))ᵀ·(s_{t+1} − s_t) / β.

        A step may be less than the rounding of θ. So the gradients add up over the steps, and θ
        moves along their sum from where it started. If the rule rescales, θ returns at the end, and
        the caller moves it along `gradients`.
        """
        start = [(p, p.clone()) for p in self.net.parameters()]
        self.nudged.read()
        for phase, sign in enumerate(self._signs):
            self.nudged.copy(self.free)
            beta = self._per_sample([sign])
            for t in range(self.rule.horizon):
                self._graphs.step()
                if self.rule.vector_field:
                    self._step(t, beta, self._all)
                    self._share_updates()
                else:
                    layers = self._moving(t)
                    before = self.nudged.ends(layers, copied=True)
                    self.nudged.step(layers, beta)
                    self._add_contrast(layers, before, self.nudged.ends(layers), beta)
                if phase == t == 0:
                    self._add_readout()
                for p, value in start:
                    p.copy_(value)
                self.mover.move(self.gradients)
                self.nudged.follow()
        if self.rule.moving_share < 1:
            for p, value in start:
                p.copy_(value)

    def _step(self, t: int, beta: Tensor, synapses: Sequence[int]) -> None:
        """Take nudged step t, and add its vector-field update of some synapses."""
        before = self.nudged.values(self._moving(t))
        self.nudged.step(self._moving(t), beta)
        self._add_changes(synapses, before, beta)

    def _per_sample(self, signs: Sequence[float]) -> Tensor:
        """Return sign · β for each sample of some phases, [members, phases · batch]."""
        phases = [(sign * self.beta)[:, None].expand(-1, self.batch) for sign in signs]
        return torch.cat(phases, 1)

    def _clear(self) -> None:
        for gradient in self.gradients.values():
            gradient.zero_()

    def _add_contrast(
        self,
        layers: Collection[int],
        before: Mapping[int, Ends],
        after: Mapping[int, Ends],
        beta: Tensor,
    ) -> None:
        """Add −(∂Φ/∂θ(after) − ∂Φ/∂θ(before)) / β, as mean over batch and phases."""
        factor = -1 / (beta * self._samples)
        self.nudged.add_contrast(layers, before, after, factor, self._own)

    def _add_changes(
        self, synapses: Sequence[int], before: Mapping[int, Tensor], beta: Tensor
    ) -> None:
        """Add −(∂F/∂θ)ᵀ·(s − before) / β of some synapses, as mean over batch and phases."""
        self.nudged.add_step(synapses, before, -1 / (beta * self._samples), self._own)

    def _share_updates(self) -> None:
        for synapse, own in zip(self.net.synapses, self._own, strict=True):
            if synapse.shared_update:  # the gradient of `weight` holds the sum of both
                own["backward_weight"].copy_(synapse.reverse(own["weight"]))

    def _add_readout(self) -> None:
        for field, gradient in self.readout.gradients(self.free.state, self.free.y).items():
            self.gradients[f"readout.{field}"].copy_(gradient)


@contextmanager
def repeatable() -> Iterator[None]:
    """Compute the same numbers every time, so that a run resumes exactly."""
    before = torch.backends.cudnn.deterministic
    torch.backends.cudnn.deterministic = True
    try:
        yield
    finally:
        torch.backends.cudnn.deterministic = before


def results_round(like: Tensor, precision: torch.dtype) -> bool:
    """Return whether convolutions round what they return, for parameters like this one."""
    return precision != like.dtype


def convolutions_round(like: Tensor, precision: torch.dtype) -> bool:
    """Return whether convolutions round what they multiply, for parameters like this one."""
    tf32 = like.is_cuda and like.dtype == torch.float32 and torch.backends.cudnn.allow_tf32
    return tf32 or results_round(like, precision)

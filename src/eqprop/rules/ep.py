"""Equilibrium propagation: one update after the second phase (Alg. ep).

Δ_θ = (1/β) (∂Φ/∂θ(x, s_*^β, θ) − ∂Φ/∂θ(x, s_*, θ))                          Eq. (ep-grad)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from eqprop.model import Gradients
from eqprop.rules.continual_ep import contrastive_steps
from eqprop.rules.rule import Step, Trial
from eqprop.rules.two_phase import TwoPhase, nudge, synapse_updates


@dataclass(frozen=True, kw_only=True)
class EP(TwoPhase):
    """Equilibrium propagation: one gradient per minibatch, from the two ends of the nudged phase.

    It needs a primitive function Φ: tied synapses, or a `Primitive`.
    """

    def applied(self, trial: Trial) -> Iterator[Gradients]:
        s = trial.free.state  # s_0^β = s_*, which EP has to store
        for t in range(self.nudged_steps):
            s = nudge(trial, s, t)
        before = trial.model.phi_gradient(trial.x, trial.free.state)
        after = trial.model.phi_gradient(trial.x, s)
        yield synapse_updates(trial, {name: after[name] - before[name] for name in after})

    def resolved(self, trial: Trial) -> Iterator[Step]:
        """Δ^EP(β, t) of Eq. (ep-updates): C-EP at fixed θ, the terms of the telescopic sum."""
        return contrastive_steps(trial, self.nudged_steps)

"""Equilibrium propagation: one update after the second phase (Alg. ep).

Δ_θ = (1/β) (∂Φ/∂θ(x, s_*^β, θ) − ∂Φ/∂θ(x, s_*, θ))                          Eq. (ep-grad)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from eqprop.nudging import Beta
from eqprop.rules.continual_ep import contrastive_steps
from eqprop.rules.rule import Step, Trial
from eqprop.rules.two_phase import TwoPhase, mean_over_phases, nudge, synapse_updates
from eqprop.types import Gradients


@dataclass(frozen=True, kw_only=True)
class EP(TwoPhase):
    """Equilibrium propagation: one gradient per minibatch, from the free and the nudged state.

    It needs a primitive function Φ: tied synapses, or a `Primitive`.
    """

    def applied(self, trial: Trial) -> Iterator[Gradients]:
        before = trial.model.phi_gradient(trial.x, trial.free.state)  # EP has to store it
        phases = self.phases(trial)
        yield mean_over_phases([self._contrast(each, beta, before) for each, beta in phases])

    def _contrast(self, trial: Trial, beta: Beta, before: Gradients) -> Gradients:
        s = trial.free.state  # s_0^β = s_*
        for t in range(self.nudged_steps):
            s = nudge(trial, s, beta, t)
        after = trial.model.phi_gradient(trial.x, s)
        change = {name: after[name] - before[name] for name in after}
        return synapse_updates(trial, change, beta)

    def phase(self, trial: Trial, beta: Beta) -> Iterator[Step]:
        """Return Δ^EP(β, t) of Eq. (ep-updates): C-EP at fixed θ, which telescopes to EP."""
        return contrastive_steps(trial, beta, self.nudged_steps)

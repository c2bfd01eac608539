"""Continual equilibrium propagation: an update at every step of the second phase (Alg. cep).

s_{t+1} = ∂Φ/∂s(x, s_t, θ_t) − β ∂ℓ/∂s(s_t, y)
θ_{t+1} = θ_t + (η/β) (∂Φ/∂θ(x, s_{t+1}, θ_t) − ∂Φ/∂θ(x, s_t, θ_t))          Eq. (C-EP)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from eqprop.nudging import Beta
from eqprop.rules.rule import Step, Trial
from eqprop.rules.two_phase import Continual, neuron_updates, nudge, synapse_updates


@dataclass(frozen=True, kw_only=True)
class ContinualEP(Continual):
    """Continual EP: K small gradients per minibatch, one per step of the nudged phase.

    It needs a primitive function Φ: tied synapses, or a `Primitive`. Use it with plain gradient
    descent: an adaptive optimiser rescales each of the K gradients, so their sum is no gradient.
    """

    def phase(self, trial: Trial, beta: Beta) -> Iterator[Step]:
        return contrastive_steps(trial, beta, self.nudged_steps)


def contrastive_steps(trial: Trial, beta: Beta, K: int) -> Iterator[Step]:
    s = trial.free.state
    for t in range(K):
        s_next = nudge(trial, s, beta, t)  # Eq. (C-EP), neurons
        # both at the current θ: it may have moved since the last step, and ∂Φ/∂θ with it
        before = trial.model.phi_gradient(trial.x, s)
        after = trial.model.phi_gradient(trial.x, s_next)
        change = {name: after[name] - before[name] for name in after}
        neurons = neuron_updates(trial, s, s_next, beta)
        yield Step(neurons, synapse_updates(trial, change, beta))  # Eq. (C-EP), synapses
        s = s_next

"""The continual vector field: C-EP for networks that derive from no Φ (appendix D).

s_{t+1} = F(x, s_t, W_t) − β ∂ℓ/∂s(s_t, y)
W_{t+1} = W_t + (η/β) (∂F/∂W(s_t, W_t))ᵀ · (s_{t+1} − s_t)                 Eq. (c-vf-2nd-phase)

In discrete time the paper drops the factor σ' from ∂F/∂W, W += (η/β) s_tᵀ · (s_{t+1} − s_t),
and so does `Network`. A `Primitive` or `VectorField` keeps it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from eqprop.model import Gradients
from eqprop.rules.rule import Step, Trial
from eqprop.rules.two_phase import Continual, neuron_updates, nudge, synapse_updates


@dataclass(frozen=True, kw_only=True)
class ContinualVF(Continual):
    """C-VF needs no primitive function: forward and backward weights may differ."""

    def applied(self, trial: Trial) -> Iterator[Gradients]:
        return (step.synapses for step in self.resolved(trial))

    def resolved(self, trial: Trial) -> Iterator[Step]:
        return vector_field_steps(trial, self.nudged_steps)


def vector_field_steps(trial: Trial, K: int) -> Iterator[Step]:
    s = trial.free.state
    for t in range(K):
        s_next = nudge(trial, s, t)  # Eq. (c-vf-2nd-phase), neurons
        ds = tuple(b - a for a, b in zip(s, s_next, strict=True))
        change = trial.model.vector_field_gradient(trial.x, s, ds)
        yield Step(neuron_updates(trial, s, s_next), synapse_updates(trial, change))  # synapses
        s = s_next

"""The vector-field rule: the updates of C-VF at fixed θ, summed and applied once.

Δ_θ = Σ_t (1/β) (∂F/∂θ(x, s_t, θ))ᵀ · (s_{t+1} − s_t)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from eqprop.model import Gradients
from eqprop.rules.continual_vf import vector_field_steps
from eqprop.rules.rule import Step, Trial, total
from eqprop.rules.two_phase import TwoPhase


@dataclass(frozen=True, kw_only=True)
class VF(TwoPhase):
    """VF needs no primitive function: forward and backward weights may differ."""

    def applied(self, trial: Trial) -> Iterator[Gradients]:
        yield total(self.resolved(trial))

    def resolved(self, trial: Trial) -> Iterator[Step]:
        return vector_field_steps(trial, self.nudged_steps)

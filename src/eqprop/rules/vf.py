"""The vector-field rule: the updates of C-VF at fixed θ, summed and applied once.

Δ_θ = Σ_t (1/β) (∂F/∂θ(x, s_t, θ))ᵀ · (s_{t+1} − s_t)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from eqprop.rules.rule import Trial, total
from eqprop.rules.vector_field import VectorFieldRule
from eqprop.types import Gradients


@dataclass(frozen=True, kw_only=True)
class VF(VectorFieldRule):
    """The vector-field rule: one gradient per minibatch, the updates of C-VF at fixed weights.

    It needs no primitive function: forward and backward weights may differ.
    """

    def applied(self, trial: Trial) -> Iterator[Gradients]:
        yield total(self.resolved(trial))

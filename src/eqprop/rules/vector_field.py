"""The common part of VF and C-VF: updates from ∂F/∂W, with a setting for its factor σ′.

Δ_W(t) = (1/β) (∂F/∂W(s_t, W_t))ᵀ · (s_{t+1} − s_t)                          Eq. (c-vf-2nd-phase)

In discrete time the paper drops the factor σ′ from ∂F/∂W: Δ_W(t) = (1/β) s_tᵀ · (s_{t+1} − s_t).
`update_slope` restores it (see `UpdateSlope`). A `Primitive` or `VectorField` always has it.
"""

from __future__ import annotations

from abc import ABC
from collections.abc import Iterator
from dataclasses import dataclass

from eqprop.model import Model
from eqprop.nudging import Beta
from eqprop.rules.rule import Step, Trial
from eqprop.rules.two_phase import TwoPhase, neuron_updates, nudge, synapse_updates
from eqprop.update_slope import UpdateSlope, as_update_slope


@dataclass(frozen=True, kw_only=True)
class VectorFieldRule(TwoPhase, ABC):
    """A rule with updates from ∂F/∂W.

    Args:
        update_slope: where σ′ is evaluated in the update of a discrete-time network: "none"
            (default; the paper's text and release), "own" (its published results) or "full"
            (exactly ∂F/∂W).
    """

    update_slope: UpdateSlope | str = UpdateSlope.NONE

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "update_slope", as_update_slope(self.update_slope))

    def check_model(self, model: Model) -> None:
        super().check_model(model)
        model.check_update_slope(self.update_slope)

    @property
    def vector_field(self) -> bool:
        return True

    def phase(self, trial: Trial, beta: Beta) -> Iterator[Step]:
        s = trial.free.state
        for t in range(self.nudged_steps):
            s_next = nudge(trial, s, beta, t)  # Eq. (c-vf-2nd-phase), neurons
            ds = tuple(b - a for a, b in zip(s, s_next, strict=True))
            change = trial.model.vector_field_gradient(trial.x, s, ds, self.update_slope)
            neurons = neuron_updates(trial, s, s_next, beta)
            yield Step(neurons, synapse_updates(trial, change, beta))  # synapses
            s = s_next

"""Backpropagation through time (Alg. bptt): all time-resolved gradients from one backward pass.

∇_s(0)  = ∂ℓ/∂s(s_T, y)                                                     Eq. (bptt-init)
∇_s(t)  = (∂F/∂s(x, s_{T−t}, θ))ᵀ · ∇_s(t−1)                                Eq. (bptt-state)
∇_θ(t)  = ∂L/∂θ_{T−t} = (∂F/∂θ(x, s_{T−t−1}, θ))ᵀ · ∇_s(t)                  Eq. (bptt-param)

∇_θ is indexed from t = 0, as the paper defines it; the paper's Eq. (bptt-param) starts at t = 1.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from eqprop.dynamics import check_steps, relax
from eqprop.model import Model, vjp
from eqprop.readouts import Readout
from eqprop.rules.rule import Rule, Step, Trial, total
from eqprop.types import Gradients, State


@dataclass(frozen=True, kw_only=True)
class BPTT(Rule):
    """Backpropagation through time: the gradient of L = ℓ(s_T, y) after T steps from s_0 = 0.

    Args:
        backward_steps: K, the number of steps to go back from the end; at most `free_steps`.
            Default None: all of them, the full gradient.
    """

    backward_steps: int | None = None

    def __post_init__(self) -> None:
        check_steps("free_steps", self.free_steps)
        if self.backward_steps is not None:
            check_steps("backward_steps", self.backward_steps)
            if self.backward_steps > self.free_steps:
                raise ValueError(
                    f"backward_steps ({self.backward_steps}) must not exceed "
                    f"free_steps ({self.free_steps})"
                )

    @property
    def horizon(self) -> int:
        return self.backward_steps or self.free_steps

    def present(
        self, model: Model, x: Tensor, y: Tensor, readout: Readout, sign: Tensor | None
    ) -> Trial:
        free = relax(model, x, self.free_steps, keep=self.horizon)
        return Trial(model, x, y, readout, free)

    def resolved(self, trial: Trial) -> Iterator[Step]:
        nabla_s = loss_gradient(trial)  # Eq. (bptt-init)
        for s in reversed(trial.free.history):  # s_{T−1}, s_{T−2}, …
            earlier, nabla_theta = vjp(trial.model, trial.x, s, nabla_s)
            yield Step(nabla_s, nabla_theta)  # Eq. (bptt-param)
            nabla_s = earlier  # Eq. (bptt-state)

    def applied(self, trial: Trial) -> Iterator[Gradients]:
        yield total(self.resolved(trial))


def loss_gradient(trial: Trial) -> State:
    """Return ∂ℓ/∂s at the end of the free phase; zero for layers without a nudge."""
    s = trial.free.state
    nudges = trial.readout.nudge(s, trial.y)
    return tuple(nudges.get(i, torch.zeros_like(layer)) for i, layer in enumerate(s))

"""Recurrent backpropagation of Almeida and Pineda (Alg. rbp). It stores only s_*.

∇_s(0)   = ∂ℓ/∂s(s_*, y)                                                     Eq. (rbp-init)
∇_s(t+1) = (∂F/∂s(x, s_*, θ))ᵀ · ∇_s(t)                                      Eq. (rbp-state)
∇_θ(t+1) = (∂F/∂θ(x, s_*, θ))ᵀ · ∇_s(t)                                      Eq. (rbp-param)

∇_θ is indexed from t = 0 here, as in BPTT: one less than in Eq. (rbp-param).
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from eqprop.dynamics import (
    NotSettled,
    check_steps,
    check_tolerance,
    relax,
    warn_unless_settled,
)
from eqprop.model import Model, beside, vjp
from eqprop.readouts import Readout
from eqprop.rules.bptt import loss_gradient
from eqprop.rules.rule import Rule, Step, Trial, total
from eqprop.types import Gradients


@dataclass(frozen=True, kw_only=True)
class RBP(Rule):
    """Recurrent backpropagation: the gradient of the loss at the steady state, L* = ℓ(s_*, y).

    Args:
        backward_steps: number of iterations of the backward pass. Default None: `free_steps`,
            since both passes converge at the same rate.
        tolerance: stop each pass once nothing moves by more than this. Default None: do not stop
            early.
        in_turn: update the layers of the free phase in turn (see `relax`). Default False.
    """

    backward_steps: int | None = None
    tolerance: float | None = None
    in_turn: bool = False

    def __post_init__(self) -> None:
        check_steps("free_steps", self.free_steps)
        if self.backward_steps is not None:
            check_steps("backward_steps", self.backward_steps)
        check_tolerance(self.tolerance)

    @property
    def horizon(self) -> int:
        return self.backward_steps or self.free_steps

    def present(
        self, model: Model, x: Tensor, y: Tensor, readout: Readout, sign: Tensor | None
    ) -> Trial:
        free = relax(model, x, self.free_steps, self.tolerance, in_turn=self.in_turn)
        warn_unless_settled(free)
        return Trial(model, x, y, readout, free)

    def resolved(self, trial: Trial) -> Iterator[Step]:
        nabla_s = loss_gradient(trial)  # Eq. (rbp-init)
        for _ in range(self.horizon):
            later, nabla_theta = vjp(trial.model, trial.x, trial.free.state, nabla_s)
            yield Step(nabla_s, nabla_theta)  # Eq. (rbp-param)
            nabla_s = later  # Eq. (rbp-state)
            if self.tolerance is not None:
                axes = len(trial.model.ensemble)
                left = torch.stack([v.abs().flatten(axes).amax(-1) for v in nabla_s]).amax(0)
                going = left > self.tolerance  # a member that has converged adds nothing
                nabla_s = tuple(v * beside(going, v) for v in nabla_s)
                if not bool(going.any()):
                    return
        if self.tolerance is not None:
            warnings.warn(
                f"RBP not settled: ∇_s is still {float(left.max()):.2g} > tolerance "
                f"{self.tolerance:g}; raise backward_steps",
                NotSettled,
                stacklevel=2,
            )

    def applied(self, trial: Trial) -> Iterator[Gradients]:
        yield total(self.resolved(trial))

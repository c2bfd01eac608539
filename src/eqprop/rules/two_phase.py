"""What EP, C-EP, VF and C-VF have in common: a free phase, then K nudged steps from s_*."""

from __future__ import annotations

from abc import ABC
from dataclasses import dataclass

import torch
from torch import Tensor

from eqprop.costs import Cost
from eqprop.dynamics import (
    check_steps,
    check_tolerance,
    nudged_step,
    relax,
    warn_unless_settled,
)
from eqprop.model import Gradients, Model, State, per_member
from eqprop.rules.rule import Rule, Trial


@dataclass(frozen=True, kw_only=True)
class TwoPhase(Rule, ABC):
    """A free phase, then a nudged one.

    Args:
        beta: β, the strength of the nudge, not 0; a number, or a tensor [*ensemble] with one per
            member. It may be negative.
        nudged_steps: K, the steps of the second phase, from the steady state; a positive integer.
        tolerance: end the free phase once no neuron moves by more than this in a step. Default
            None: take exactly `free_steps` steps.
        in_turn: update the layers of the free phase in turn, every second one per step (see
            `relax`). Default False: all at once.
        random_sign: draw the sign of β for each minibatch, + or − with probability ½. Default
            False.
    """

    beta: float | Tensor
    nudged_steps: int
    tolerance: float | None = None
    in_turn: bool = False
    random_sign: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.beta, (int, float, Tensor)):
            raise ValueError(f"beta must be a number or a tensor, not {self.beta!r}")
        beta = torch.as_tensor(self.beta)
        if not bool((torch.isfinite(beta) & (beta != 0)).all()):
            raise ValueError(f"beta must be finite and not 0 (no second phase), not {self.beta}")
        check_steps("free_steps", self.free_steps)
        check_steps("nudged_steps", self.nudged_steps)
        check_tolerance(self.tolerance)

    @property
    def horizon(self) -> int:
        return self.nudged_steps

    def present(self, model: Model, x: Tensor, y: Tensor, cost: Cost, sign: Tensor | None) -> Trial:
        beta = self.signed_beta(model, sign)
        free = relax(model, x, self.free_steps, self.tolerance, in_turn=self.in_turn)
        warn_unless_settled(free)
        return Trial(model, x, y, cost, beta, free)

    def signed_beta(self, model: Model, sign: Tensor | None) -> float | Tensor:
        """β times the sign given, or drawn."""
        beta = self.beta
        if isinstance(beta, Tensor) and beta.ndim and tuple(beta.shape) != model.ensemble:
            raise ValueError(
                f"beta has shape {list(beta.shape)}, but the ensemble is {list(model.ensemble)}"
            )
        if sign is None and self.random_sign:
            sign = 2 * torch.randint(0, 2, model.ensemble) - 1
        if sign is None:
            return beta
        sign = torch.as_tensor(sign)
        if tuple(sign.shape) != model.ensemble or not bool((sign.abs() == 1).all()):
            raise ValueError(
                f"sign must be +1 or -1 for each member, shape {list(model.ensemble)}, "
                f"not {sign.tolist()}"
            )
        return beta * sign.double()


@dataclass(frozen=True, kw_only=True)
class Continual(TwoPhase, ABC):
    """θ moves at every step of the second phase.

    Args:
        rescale: η_tiny/η in (0, 1] asks for the procedure of appendix F.2: whoever consumes the
            stream moves θ by that share of η within the phase, and rescales the total after it.
            Default None: by all of η.
    """

    rescale: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rescale is not None and not 0 < self.rescale <= 1:
            raise ValueError(f"rescale (η_tiny/η) must lie in (0, 1], not {self.rescale}")

    @property
    def moving_share(self) -> float:
        return 1.0 if self.rescale is None else self.rescale


def nudge(trial: Trial, s: State, t: int) -> State:
    """s_{t+1} from s_t: Eq. (C-EP), neurons."""
    return nudged_step(trial.model, trial.x, trial.y, s, trial.beta, trial.cost, t + 1)


def neuron_updates(trial: Trial, s: State, s_next: State) -> State:
    """−Δ_s(t) = −(s_{t+1} − s_t) / (β ε), a sample: Eq. (updates-cep)."""
    return tuple((a - b) / _strength(trial, a) for a, b in zip(s, s_next, strict=True))


def synapse_updates(trial: Trial, change: Gradients) -> Gradients:
    """−Δ_θ = −change / (β ε), where the change is what the nudge brought about."""
    return {name: -value / _strength(trial, value) for name, value in change.items()}


def _strength(trial: Trial, like: Tensor) -> float | Tensor:
    return per_member(trial.beta, like, trial.model.ensemble) * trial.model.nudge_scale

"""The common part of EP, C-EP, VF and C-VF: a free phase, then K nudged steps from s_*.

There may be several nudged phases (see `Nudging`). Each starts from s_*, and the rule takes their
mean.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from eqprop.dynamics import (
    check_steps,
    check_tolerance,
    check_turns,
    nudged_step,
    relax,
    warn_unless_settled,
)
from eqprop.model import Model, complex_copy, per_member
from eqprop.nudging import Beta, Nudging, OneSided, RandomSign
from eqprop.readouts import Readout
from eqprop.rules.rule import Rule, Step, Trial
from eqprop.types import Gradients, State


@dataclass(frozen=True, kw_only=True)
class TwoPhase(Rule, ABC):
    """A rule with a free phase and one or more nudged phases.

    Args:
        beta: β, the strength of the nudge, not 0; a number, or a tensor [*ensemble] with one per
            member. It may be negative. `beta=0.2` means `nudging=OneSided(0.2)`. Default None: give
            `nudging`.
        nudging: how the second phase is nudged: `OneSided`, `RandomSign`, `Centred` or
            `Holomorphic`. Default None: give `beta`.
        nudged_steps: K, the number of steps of the second phase, from the steady state; a positive
            integer.
        tolerance: stop the free phase once no neuron moves by more than this in a step. Default
            None: take exactly `free_steps` steps.
        in_turn: update the layers of the free phase in turn, one group per step (see `relax`).
            Default False: all at once.
        nudged_in_turn: the same in the nudged phase. The nudge acts on the layers that move.
            Default False.
        random_sign: with `beta`, means `nudging=RandomSign(beta)`: draw the sign of β per
            minibatch, + or − with probability ½. Default False.
    """

    beta: float | Tensor | None = None
    nudging: Nudging | None = None  # not None after __post_init__
    nudged_steps: int
    tolerance: float | None = None
    in_turn: bool = False
    nudged_in_turn: bool = False
    random_sign: bool = False

    def __post_init__(self) -> None:
        nudging = self._nudging()
        object.__setattr__(self, "nudging", nudging)
        object.__setattr__(self, "beta", nudging.beta)
        object.__setattr__(self, "random_sign", nudging.draws_sign)
        check_steps("free_steps", self.free_steps)
        check_steps("nudged_steps", self.nudged_steps)
        check_tolerance(self.tolerance)

    def _nudging(self) -> Nudging:
        if self.nudging is None or getattr(self.nudging, "_by_beta", False):
            if self.beta is None:
                raise ValueError("beta is missing: give beta=..., or nudging=Centred(...)")
            nudging = RandomSign(self.beta) if self.random_sign else OneSided(self.beta)
            object.__setattr__(nudging, "_by_beta", True)  # dataclasses.replace may change beta
            return nudging
        if not isinstance(self.nudging, Nudging):
            raise ValueError(
                f"nudging must be OneSided(...), RandomSign(...), Centred(...) or "
                f"Holomorphic(...), not {self.nudging!r}"
            )
        if self.beta is not None and self.beta is not self.nudging.beta:
            raise ValueError("beta and nudging are both given: leave one out")
        if self.random_sign and not self.nudging.draws_sign:
            raise ValueError("random_sign: give nudging=RandomSign(beta) instead")
        return self.nudging

    @property
    def horizon(self) -> int:
        return self.nudged_steps

    def present(
        self, model: Model, x: Tensor, y: Tensor, readout: Readout, sign: Tensor | None
    ) -> Trial:
        assert self.nudging is not None
        betas = self.nudging.betas(self.nudging.signed(model.ensemble, sign))
        turns = model.split() if self.nudged_in_turn else (None,)
        free = relax(model, x, self.free_steps, self.tolerance, in_turn=self.in_turn)
        warn_unless_settled(free)
        return Trial(model, x, y, readout, free, betas, turns)

    def check_model(self, model: Model) -> None:
        super().check_model(model)
        if self.nudged_in_turn:
            check_turns("nudged_steps", self.nudged_steps, model.split(), "nudged_in_turn")
        assert self.nudging is not None
        if self.nudging.is_complex:
            model.check_holomorphic()

    @abstractmethod
    def phase(self, trial: Trial, beta: Beta) -> Iterator[Step]:
        """Yield the steps of one nudged phase, t = 0 … K−1."""

    def resolved(self, trial: Trial) -> Iterator[Step]:
        """Run all phases in step; yield their mean at each time t."""
        phases = [self.phase(each, beta) for each, beta in self.phases(trial)]
        return (_mean_step(steps) for steps in zip(*phases, strict=True))

    def phases(self, trial: Trial) -> list[tuple[Trial, Beta]]:
        """Return the trial and the β of each nudged phase.

        With a complex β, the trial has a complex copy of the model, whose parameters do not move.
        """
        assert self.nudging is not None
        if self.nudging.is_complex:
            free = replace(trial.free, state=tuple(layer + 0j for layer in trial.free.state))
            trial = replace(trial, model=complex_copy(trial.model), x=trial.x + 0j, free=free)
        return [(trial, beta) for beta in trial.betas]


@dataclass(frozen=True, kw_only=True)
class Continual(TwoPhase, ABC):
    """A rule under which θ moves at every step of the second phase.

    If there are several nudged phases, they run one after another.

    Args:
        rescale: η_tiny/η in (0, 1], for the procedure of appendix F.2: the consumer of the stream
            moves θ by this share of η during the phase. After it, θ returns, and one update of any
            kind moves it along the total. Default None: θ moves by η.
    """

    rescale: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rescale is not None and not 0 < self.rescale <= 1:
            raise ValueError(f"rescale (η_tiny/η) must lie in (0, 1], not {self.rescale}")
        assert self.nudging is not None
        if self.nudging.is_complex:
            raise ValueError(
                f"{type(self).__name__} cannot nudge with a complex β: weights would move along "
                "complex numbers; use EP or VF"
            )

    @property
    def moving_share(self) -> float:
        return 1.0 if self.rescale is None else self.rescale

    def applied(self, trial: Trial) -> Iterator[Gradients]:
        n = len(trial.betas)
        for beta in trial.betas:
            for step in self.phase(trial, beta):
                items = step.synapses.items()
                yield step.synapses if n == 1 else {name: value / n for name, value in items}


def nudge(trial: Trial, s: State, beta: Beta, t: int) -> State:
    """Return s_{t+1} from s_t: Eq. (C-EP), neurons."""
    layers = trial.turns[t % len(trial.turns)]
    return nudged_step(trial.model, trial.x, trial.y, s, beta, trial.readout, t + 1, layers)


def neuron_updates(trial: Trial, s: State, s_next: State, beta: Beta) -> State:
    """Return −Δ_s(t) = −(s_{t+1} − s_t) / (β ε) per sample: Eq. (updates-cep)."""
    return tuple((a - b) / _strength(trial, a, beta) for a, b in zip(s, s_next, strict=True))


def synapse_updates(trial: Trial, change: Gradients, beta: Beta) -> Gradients:
    """Return −Δ_θ = −change / (β ε), where the nudge caused the change."""
    return {name: -value / _strength(trial, value, beta) for name, value in change.items()}


def _strength(trial: Trial, like: Tensor, beta: Beta) -> Beta:
    return per_member(beta, like, trial.model.ensemble) * trial.model.nudge_scale


def mean_over_phases(phases: Sequence[Gradients]) -> Gradients:
    """Return the mean over phases; its real part if β is complex."""
    return {name: _mean([phase[name] for phase in phases]) for name in phases[0]}


def _mean(values: Sequence[Tensor]) -> Tensor:
    if len(values) == 1:
        return values[0]
    mean = torch.stack(tuple(values)).mean(0)
    return mean.real if mean.is_complex() else mean


def _mean_step(steps: Sequence[Step]) -> Step:
    layers = zip(*(step.neurons for step in steps), strict=True)
    return Step(
        tuple(_mean(layer) for layer in layers),
        mean_over_phases([step.synapses for step in steps]),
    )

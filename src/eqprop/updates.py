"""Updates: how parameters move along a gradient.

An update is linear if it is θ ← θ − η g. Then the updates of a continual rule telescope, and fast
engines rely on it. Every other update is an optimiser of `torch.optim`.
"""

from __future__ import annotations

import copy
import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim.lr_scheduler import LRScheduler

from eqprop.model import Model, per_member
from eqprop.types import Gradients, Parameters

Rates = Mapping[str, float | Tensor]  # η per parameter that moves; a number, or [*ensemble]
Schedule = Callable[[torch.optim.Optimizer], LRScheduler]


class Mover(ABC):
    """Moves the parameters of one model and keeps the state of the update, such as momentum."""

    @abstractmethod
    def move(self, gradients: Gradients) -> None:
        """Take one step downhill."""

    def next_epoch(self) -> None:  # noqa: B027 (most have no schedule)
        """Advance the schedule of the learning rates."""

    def state(self, members: Sequence[int] | None = None) -> dict[str, Any]:
        """Return a copy of its state. With `members`, only theirs: for ensembles with one axis."""
        return {}

    def restore(self, state: dict[str, Any]) -> None:  # noqa: B027 (most remember nothing)
        """Restore a state that `state()` returned."""


class Update(ABC):
    """How parameters move. Your own update defines `linear` and `mover`."""

    @property
    @abstractmethod
    def linear(self) -> bool:
        """Whether θ moves by exactly −η times the gradient."""

    @abstractmethod
    def mover(self, model: Model, rates: Rates) -> Mover:
        """Return the `Mover` for the parameters of `model` that `rates` names."""


@dataclass(frozen=True)
class Optimiser(Update):
    """An update by any optimiser of `torch.optim`: `Optimiser(torch.optim.Adam)`.

    Args:
        make: a function that takes a list of parameter groups, each with its "lr", and returns
            the optimiser.
        schedule: a function that takes the optimiser and returns a scheduler of
            `torch.optim.lr_scheduler`. `engine.next_epoch()` advances it once per epoch. Default
            None: constant rates.
    """

    make: Callable[..., torch.optim.Optimizer]
    schedule: Schedule | None = None

    @property
    def linear(self) -> bool:
        return False

    def mover(self, model: Model, rates: Rates) -> Mover:
        return _optimised(model, rates, self.make, self.schedule)


@dataclass(frozen=True)
class SGD(Update):
    """Stochastic gradient descent, `torch.optim.SGD`. Without arguments it is plain descent.

    Args:
        momentum: μ of v ← μ v + g, 0 to 1. Default 0.
        weight_decay: λ; λ θ is added to the gradient of every parameter that moves. Default 0.
        nesterov: whether to use Nesterov momentum. Default False.
        schedule: a function that takes the optimiser and returns a scheduler of
            `torch.optim.lr_scheduler`. `engine.next_epoch()` advances it once per epoch. Default
            None: constant rates.
    """

    momentum: float = 0.0
    weight_decay: float = 0.0
    nesterov: bool = False
    schedule: Schedule | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.momentum < 1:
            raise ValueError(f"momentum must lie in [0, 1), not {self.momentum}")
        if not 0 <= self.weight_decay < float("inf"):
            raise ValueError(f"weight_decay must not be negative, not {self.weight_decay}")
        if self.nesterov and self.momentum == 0:
            raise ValueError("nesterov needs momentum")

    @property
    def linear(self) -> bool:
        return self.momentum == 0 and self.weight_decay == 0 and self.schedule is None

    def mover(self, model: Model, rates: Rates) -> Mover:
        if self.linear:
            return Descent(model, rates)
        return _optimised(model, rates, self._make, self.schedule)

    def _make(self, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
        return torch.optim.SGD(
            groups,
            momentum=self.momentum,
            weight_decay=self.weight_decay,
            nesterov=self.nesterov,
        )


class Descent(Mover):
    """Plain gradient descent: θ ← θ − η g."""

    def __init__(self, model: Model, rates: Rates) -> None:
        self._model = model
        theta = self.theta()
        self.eta = {
            name: per_member(rate, theta[name], model.ensemble) for name, rate in rates.items()
        }

    def theta(self) -> Parameters:
        """Return the current parameters: the user may have replaced some since the last step."""
        return dict(self._model.named_parameters())

    @torch.no_grad()
    def move(self, gradients: Gradients) -> None:
        theta = self.theta()
        for name, eta in self.eta.items():
            theta[name].sub_(eta * gradients[name])


class _Optimised(Mover):
    """An optimiser of `torch.optim`.

    If a parameter has one rate per member, each member's part is a parameter of the optimiser.
    """

    def __init__(
        self,
        model: Model,
        rates: Rates,
        make: Callable[..., torch.optim.Optimizer],
        schedule: Schedule | None,
    ) -> None:
        self._model = model
        self._apart = {name for name, rate in rates.items() if torch.as_tensor(rate).ndim}
        theta = dict(model.named_parameters())
        self._parts = {name: self._split(name, theta[name].detach()) for name in rates}
        groups = [
            {"params": [part], "lr": eta}
            for name, parts in self._parts.items()
            for part, eta in zip(parts, _each(rates[name]), strict=True)
        ]
        self._optimiser = make(groups)
        self._scheduler = None if schedule is None else schedule(self._optimiser)

    def _split(self, name: str, whole: Tensor) -> tuple[Tensor, ...]:
        """Split a tensor into one view per member if its parameter has one rate per member."""
        if name not in self._apart:
            return (whole,)
        return whole.view(-1, *whole.shape[len(self._model.ensemble) :]).unbind()

    @torch.no_grad()
    def move(self, gradients: Gradients) -> None:
        theta = dict(self._model.named_parameters())
        for name, parts in self._parts.items():
            now = self._split(name, theta[name].detach())
            changes = self._split(name, gradients[name].contiguous())
            for part, place, gradient in zip(parts, now, changes, strict=True):
                part.data = place  # the user may have replaced the parameter
                part.grad = gradient
        self._optimiser.step()

    def next_epoch(self) -> None:
        if self._scheduler is not None:
            with warnings.catch_warnings():  # a run may resume after the last step of an epoch
                warnings.filterwarnings("ignore", "Detected call of `lr_scheduler.step")
                self._scheduler.step()

    def state(self, members: Sequence[int] | None = None) -> dict[str, Any]:
        state = {"optimiser": self._optimiser.state_dict()}
        if self._scheduler is not None:
            state["schedule"] = self._scheduler.state_dict()
        return copy.deepcopy(state if members is None else self._of(state, members))

    def _of(self, state: dict[str, Any], members: Sequence[int]) -> dict[str, Any]:
        """Select the state of some members. Every list has one entry per part of a parameter."""
        if self._apart != set(self._parts):
            raise ValueError("members cannot be told apart: give one learning rate per member")
        each = math.prod(self._model.ensemble)
        kept = [k * each + i for k in range(len(self._parts)) for i in members]
        remembered, groups = state["optimiser"]["state"], state["optimiser"]["param_groups"]
        found: dict[str, Any] = {
            "optimiser": {
                "state": {n: remembered[k] for n, k in enumerate(kept) if k in remembered},
                "param_groups": [{**groups[k], "params": [n]} for n, k in enumerate(kept)],
            }
        }
        if "schedule" in state:
            found["schedule"] = {
                name: [value[k] for k in kept] if isinstance(value, list) else value
                for name, value in state["schedule"].items()
            }
        return found

    def restore(self, state: dict[str, Any]) -> None:
        self._optimiser.load_state_dict(copy.deepcopy(state["optimiser"]))
        if self._scheduler is not None:
            self._scheduler.load_state_dict(copy.deepcopy(state["schedule"]))


def _optimised(
    model: Model,
    rates: Rates,
    make: Callable[..., torch.optim.Optimizer],
    schedule: Schedule | None,
) -> Mover:
    """Return the mover of an optimiser; of plain descent if every parameter is frozen."""
    return _Optimised(model, rates, make, schedule) if rates else Descent(model, rates)


def _each(rate: float | Tensor) -> list[float]:
    return torch.as_tensor(rate, dtype=torch.float64).flatten().tolist()

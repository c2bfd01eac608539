"""Updates: how parameters move along a gradient. The only place where they do.

An update says whether it is linear: θ ← θ − η g, and nothing else. Then the updates of a
continual rule telescope, which fast engines rely on. Every other update is one of `torch.optim`.
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

Rates = Mapping[str, float | Tensor]  # η of each parameter that moves; a number, or [*ensemble]
Schedule = Callable[[torch.optim.Optimizer], LRScheduler]


class Mover(ABC):
    """Moves the parameters of one model, and remembers what its update has to."""

    @abstractmethod
    def move(self, gradients: Gradients) -> None:
        """One step downhill."""

    def next_epoch(self) -> None:  # noqa: B027 (most have no schedule)
        """Advance the schedule of the learning rates."""

    def state(self, members: Sequence[int] | None = None) -> dict[str, Any]:
        """What it remembers, as a copy; of some members of an ensemble with one axis alone."""
        return {}

    def restore(self, state: dict[str, Any]) -> None:  # noqa: B027 (most remember nothing)
        """Go back to what `state` returned."""


class Update(ABC):
    """How parameters move. An update of your own defines `linear` and `mover`."""

    @property
    @abstractmethod
    def linear(self) -> bool:
        """Whether θ moves by −η times the gradient, and by nothing else."""

    @abstractmethod
    def mover(self, model: Model, rates: Rates) -> Mover:
        """What moves the parameters of a model that `rates` names."""


@dataclass(frozen=True)
class Optimiser(Update):
    """Any optimiser of `torch.optim`.

    Args:
        make: a function of a list of parameter groups, each with its "lr", that returns the
            optimiser: `Optimiser(torch.optim.Adam)`.
        schedule: a function of the optimiser that returns a scheduler of
            `torch.optim.lr_scheduler`, advanced once per epoch by `engine.next_epoch()`. Default
            None: rates stay.
    """

    make: Callable[..., torch.optim.Optimizer]
    schedule: Schedule | None = None

    @property
    def linear(self) -> bool:
        return False

    def mover(self, model: Model, rates: Rates) -> Mover:
        return _Optimised(model, rates, self.make, self.schedule)


@dataclass(frozen=True)
class SGD(Update):
    """Stochastic gradient descent, `torch.optim.SGD`. Without arguments it is plain descent.

    Args:
        momentum: μ of v ← μ v + g, 0 to 1. Default 0.
        weight_decay: λ, added to the gradient as λ θ, for every parameter that moves. Default 0.
        nesterov: whether the momentum is Nesterov's. Default False.
        schedule: a function of the optimiser that returns a scheduler of
            `torch.optim.lr_scheduler`, advanced once per epoch by `engine.next_epoch()`. Default
            None: rates stay.
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
        return _Optimised(model, rates, self._make, self.schedule)

    def _make(self, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
        return torch.optim.SGD(
            groups,
            momentum=self.momentum,
            weight_decay=self.weight_decay,
            nesterov=self.nesterov,
        )


class Descent(Mover):
    """θ ← θ − η g."""

    def __init__(self, model: Model, rates: Rates) -> None:
        self._model = model
        theta = self.theta()
        self.eta = {
            name: per_member(rate, theta[name], model.ensemble) for name, rate in rates.items()
        }

    def theta(self) -> Parameters:
        """The parameters as they are now: whoever holds the model may have replaced some."""
        return dict(self._model.named_parameters())

    @torch.no_grad()
    def move(self, gradients: Gradients) -> None:
        theta = self.theta()
        for name, eta in self.eta.items():
            theta[name].sub_(eta * gradients[name])


class _Optimised(Mover):
    """An optimiser of `torch.optim`. Where members have rates of their own, each member's share of
    a parameter is a parameter of the optimiser.
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
        """One part per member, in the same memory, where members have rates of their own."""
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
                part.data = place  # whoever holds the model may have replaced the parameter
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
        """Its share of some members: each part of a parameter has a place in every list."""
        if self._apart != set(self._parts):
            raise ValueError("members can be told apart only where each has rates of its own")
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


def _each(rate: float | Tensor) -> list[float]:
    return torch.as_tensor(rate, dtype=torch.float64).flatten().tolist()

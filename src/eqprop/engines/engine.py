"""What every engine is: a model, a rule and learning rates, trained a minibatch at a time."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

import torch
from torch import Tensor

from eqprop.costs import Cost
from eqprop.dynamics import Relaxation
from eqprop.model import Model
from eqprop.rules import Rule, TwoPhase
from eqprop.seeds import generator


class Engine(ABC):
    """Trains one model in place. `relaxation` is the free phase of the latest minibatch."""

    def __init__(
        self, model: Model, rule: Rule, rates: Mapping[str, float | Tensor], cost: Cost
    ) -> None:
        self.model, self.rule, self.rates, self.cost = model, rule, rates, cost
        self.relaxation: Relaxation | None = None
        self._sign_sources = [generator(seed, "beta sign") for seed in model.seeds]

    @abstractmethod
    def step(self, x: Tensor, y: Tensor, sign: Tensor | None = None) -> Tensor:
        """Learn from one minibatch; return the output of the free phase, [*ensemble, batch, n].

        `sign` of β (±1 a member) is drawn if the rule asks for it and none is given. A step that
        raises leaves the parameters as they were.
        """

    def draw_sign(self) -> Tensor | None:
        """The sign of β, drawn for each member from its own seed, if the rule asks for it."""
        if not (isinstance(self.rule, TwoPhase) and self.rule.random_sign):
            return None
        bits = [int(torch.randint(2, (), generator=source)) for source in self._sign_sources]
        return (2.0 * torch.tensor(bits) - 1).reshape(self.model.ensemble)

"""The reference engine: the plain composition of model, rule and descent, for any model."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from eqprop.costs import Cost
from eqprop.dynamics import Relaxation
from eqprop.engines.descent import descend
from eqprop.model import Model
from eqprop.rules import Continual, Rule, TwoPhase
from eqprop.seeds import generator


class ReferenceEngine:
    """Trains one model with one rule, a minibatch a call."""

    def __init__(
        self, model: Model, rule: Rule, rates: Mapping[str, float | Tensor], cost: Cost
    ) -> None:
        self.model, self.rule, self.rates, self.cost = model, rule, rates, cost
        self.relaxation: Relaxation | None = None  # the free phase of the latest minibatch
        self._sign_sources = [generator(seed, "beta sign") for seed in model.seeds]

    def step(self, x: Tensor, y: Tensor) -> Tensor:
        """Learn from one minibatch; return the output of the free phase, [*ensemble, batch, n]."""
        stream = self.rule.gradients(self.model, x, y, self.cost, sign=self._draw_sign())
        rescale = self.rule.rescale if isinstance(self.rule, Continual) else None
        descend(self.model, stream, self.rates, rescale)
        self.relaxation = stream.free
        return self.model.output(stream.free.state)

    def _draw_sign(self) -> Tensor | None:
        """The sign of β, drawn for each member from its own seed."""
        if not (isinstance(self.rule, TwoPhase) and self.rule.random_sign):
            return None
        bits = [int(torch.randint(2, (), generator=source)) for source in self._sign_sources]
        return (2.0 * torch.tensor(bits) - 1).reshape(self.model.ensemble)

"""The reference engine: the plain composition of model, rule and descent, for any model."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from eqprop.costs import Cost
from eqprop.dynamics import NonFinite, Relaxation
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

    def step(self, x: Tensor, y: Tensor, sign: Tensor | None = None) -> Tensor:
        """Learn from one minibatch; return the output of the free phase, [*ensemble, batch, n].

        `sign` of β (±1 a member) is drawn if the rule asks for it and none is given. A step that
        raises leaves the parameters as they were.
        """
        sign = self._draw_sign() if sign is None else sign
        before = {name: p.clone() for name, p in self.model.named_parameters()}
        try:
            stream = self.rule.gradients(self.model, x, y, self.cost, sign=sign)
            rescale = self.rule.rescale if isinstance(self.rule, Continual) else None
            descend(self.model, stream, self.rates, rescale)
            self._check_weights()
        except BaseException:
            for name, p in self.model.named_parameters():
                p.copy_(before[name])
            raise
        self.relaxation = stream.free
        return self.model.output(stream.free.state)

    def _check_weights(self) -> None:
        for name, p in self.model.named_parameters():
            finite = torch.isfinite(p.reshape(*self.model.ensemble, -1).sum(-1))
            if not bool(finite.all()):
                raise NonFinite(f"parameter {name}", "the update", ~finite)

    def _draw_sign(self) -> Tensor | None:
        """The sign of β, drawn for each member from its own seed."""
        if not (isinstance(self.rule, TwoPhase) and self.rule.random_sign):
            return None
        bits = [int(torch.randint(2, (), generator=source)) for source in self._sign_sources]
        return (2.0 * torch.tensor(bits) - 1).reshape(self.model.ensemble)

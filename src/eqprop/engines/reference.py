"""The reference engine: the plain composition of model, rule and descent, for any model."""

from __future__ import annotations

import torch
from torch import Tensor

from eqprop.dynamics import NonFinite
from eqprop.engines.descent import descend
from eqprop.engines.engine import Engine
from eqprop.rules import Continual


class ReferenceEngine(Engine):
    def step(self, x: Tensor, y: Tensor, sign: Tensor | None = None) -> Tensor:
        sign = self.draw_sign() if sign is None else sign
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

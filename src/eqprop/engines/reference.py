"""The reference engine: the plain composition of model, rule and descent, for any model."""

from __future__ import annotations

from torch import Tensor

from eqprop.dynamics import Relaxation
from eqprop.engines.engine import Engine


class ReferenceEngine(Engine):
    """Trains any model with any rule. Tests compare the other engines with it."""

    contiguous = False
    gathers = False

    def learn(self, x: Tensor, y: Tensor, sign: Tensor | None) -> Relaxation:
        return self._learn_plainly(x, y, sign)

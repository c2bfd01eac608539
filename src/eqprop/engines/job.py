"""The description of what an engine runs."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from eqprop.model import Model
from eqprop.readouts import Readout
from eqprop.rules import Rule
from eqprop.updates import Rates, Update


@dataclass(frozen=True)
class Job:
    """A model, its learning rule and its update.

    Args:
        model: the network, or another `Model`.
        rule: the learning rule.
        rates: {parameter name: η} for the parameters that move.
        readout: output, loss and nudge of the model.
        update: how parameters move along a gradient.
        threads: number of threads for the engine. None: the engine chooses.
        precision: dtype of what convolutions multiply. None: that of the model.
    """

    model: Model
    rule: Rule
    rates: Rates
    readout: Readout
    update: Update
    threads: int | None = None
    precision: torch.dtype | None = None

    @property
    def device(self) -> str:
        """The type of the parameters' device: "cpu", "cuda"."""
        return next(self.model.parameters()).device.type

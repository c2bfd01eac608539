"""What an engine is asked to run."""

from __future__ import annotations

from dataclasses import dataclass

from eqprop.model import Model
from eqprop.readouts import Readout
from eqprop.rules import Rule
from eqprop.updates import Rates, Update


@dataclass(frozen=True)
class Job:
    """A model that learns by a rule, with what it answers and how its parameters move.

    Args:
        model: the network, or another `Model`.
        rule: the learning rule.
        rates: η of each parameter that moves, by name.
        readout: what the model answers, and how it is nudged.
        update: how parameters move along a gradient.
        threads: how many an engine may use. None: as it likes.
    """

    model: Model
    rule: Rule
    rates: Rates
    readout: Readout
    update: Update
    threads: int | None = None

    @property
    def device(self) -> str:
        """The kind of device that the parameters are on: "cpu", "cuda"."""
        return next(self.model.parameters()).device.type

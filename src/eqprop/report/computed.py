"""An item that needs no training: computed at once and stored in one JSON file."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from eqprop.report.blocks import Block, Text
from eqprop.report.item import Item, Order
from eqprop.report.results import Completeness, Results


class Computed(Item):
    stored: str  # name of the JSON file; items may share one

    @abstractmethod
    def compute(self, order: Order) -> dict[str, Any]: ...

    @abstractmethod
    def draw(self, found: dict[str, Any]) -> tuple[Block, ...]:
        """Return the blocks that show a computed result."""

    def run(self, order: Order) -> None:
        if order.results.read(self.stored, order.quick) is not None:
            order.say(f"{self.name}: {self.stored}.json is there already")
            return
        order.say(f"{self.name}: computing")
        order.results.store(self.stored, order.quick, self.compute(order))

    def completeness(self, results: Results) -> Completeness:
        return results.best(self.stored)[0]

    def blocks(self, results: Results) -> tuple[Block, ...]:
        completeness, found = results.best(self.stored)
        if completeness == "missing":
            return ()
        quick = Text(f"Quick: a smaller network. `eqprop paper run {self.name}` for the full one.")
        return (quick, *self.draw(found)) if completeness == "quick" else self.draw(found)

    def found(self, results: Results) -> dict[str, Any]:
        """Return the full result, else the quick one, else an empty dict."""
        return results.best(self.stored)[1]

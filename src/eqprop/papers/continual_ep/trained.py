"""An item that needs only training runs."""

from __future__ import annotations

from collections.abc import Sequence

from eqprop.papers.continual_ep import training
from eqprop.report.item import Item, Order
from eqprop.report.results import Completeness, Results


class Trained(Item):
    def __init__(self, name: str, title: str, place: str, needs: str, runs: Sequence[str]) -> None:
        self.name, self.title, self.place, self.needs = name, title, place, needs
        self.runs = tuple(dict.fromkeys(runs))

    def run(self, order: Order) -> None:
        for name in self.runs:
            training.RUNS[name].run(order)

    def completeness(self, results: Results) -> Completeness:
        return training.completeness(self.runs, results)

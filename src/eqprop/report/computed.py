"""An item that needs no training: computed in one go, kept in one JSON file."""

from __future__ import annotations

import json
from abc import abstractmethod
from datetime import UTC, datetime
from typing import Any

from eqprop.report.blocks import Block, Text
from eqprop.report.item import Item, Order, Results, State
from eqprop.runs.files import write_whole
from eqprop.runs.machine import describe


class Computed(Item):
    stored: str  # name of the JSON file; items may share one

    @abstractmethod
    def compute(self, order: Order) -> dict[str, Any]: ...

    @abstractmethod
    def draw(self, found: dict[str, Any]) -> tuple[Block, ...]:
        """What the report shows of what was computed."""

    def run(self, order: Order) -> None:
        if order.results.read(self.stored, order.quick) is not None:
            order.say(f"{self.name}: {self.stored}.json is there already")
            return
        order.say(f"{self.name}: computing")
        where = {**describe("cpu"), "when": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"}
        found = {"machine": where, "quick": order.quick, **self.compute(order)}
        folder = order.results.folder(order.quick)
        folder.mkdir(parents=True, exist_ok=True)
        text = json.dumps(found, ensure_ascii=False, separators=(",", ":"))
        write_whole(folder / f"{self.stored}.json", f"{text}\n".encode())

    def state(self, results: Results) -> State:
        return results.best(self.stored)[0]

    def blocks(self, results: Results) -> tuple[Block, ...]:
        state, found = results.best(self.stored)
        if state == "missing":
            return ()
        quick = Text(f"Quick: a smaller network. `eqprop paper run {self.name}` for the full one.")
        return (quick, *self.draw(found)) if state == "quick" else self.draw(found)

    def found(self, results: Results) -> dict[str, Any]:
        """What was computed, full before quick; empty where nothing was."""
        return results.best(self.stored)[1]

"""The description of a paper for its report."""

from __future__ import annotations

import difflib
from dataclasses import dataclass

from eqprop.report.item import Item, SharedRun, Task
from eqprop.runs.recipe import UserError


@dataclass(frozen=True)
class Catalogue:
    """All items of a paper, in its order, and the training runs that they share."""

    title: str
    authors: str
    address: str
    items: tuple[Item, ...]
    runs: tuple[SharedRun, ...]
    parts: tuple[SharedRun, ...]  # parts of runs that are trained in several parts
    first: tuple[str, ...]  # items to run first: "NAME", "NAME --quick"
    by_itself: str  # example of a run to name on its own

    def find(self, name: str) -> Task:
        """Return the item, the shared training run or the part of one with this name."""
        known: dict[str, Task] = {it.name: it for it in (*self.runs, *self.parts, *self.items)}
        if name in known:
            return known[name]
        close = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {close[0]}?" if close else "see `eqprop paper list`"
        raise UserError(f"{name!r} is neither an item of the paper nor one of its runs: {hint}")

"""A paper as its report sees it."""

from __future__ import annotations

import difflib
from dataclasses import dataclass

from eqprop.report.item import Item, SharedRun, Task
from eqprop.runs.recipe import UserError


@dataclass(frozen=True)
class Catalogue:
    """Every item of a paper, in its order, and the runs that items share."""

    title: str
    authors: str
    address: str
    items: tuple[Item, ...]
    runs: tuple[SharedRun, ...]
    parts: tuple[SharedRun, ...]  # of runs that are trained in several
    first: tuple[str, ...]  # what to run first: "NAME", "NAME --quick"
    by_itself: str  # a run that is worth naming by itself

    def find(self, name: str) -> Task:
        """An item, or one of the training runs that items share, or a part of one."""
        known: dict[str, Task] = {it.name: it for it in (*self.runs, *self.parts, *self.items)}
        if name in known:
            return known[name]
        close = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {close[0]}?" if close else "see `eqprop paper list`"
        raise UserError(f"{name!r} is neither an item of the paper nor one of its runs: {hint}")

"""Every item, in the order of the paper."""

from __future__ import annotations

import difflib

from eqprop.papers.continual_ep import (
    algorithms,
    angles,
    curves,
    gdd,
    psi,
    speed,
    story,
    tables,
    toy,
    updates,
)
from eqprop.papers.continual_ep.training import BY_NAME, TrainingRun
from eqprop.report.item import Item
from eqprop.runs.recipe import UserError

_results, _full, _rescaled = tables.ITEMS
_ep_to_cvf_b, *_appendix_e6 = gdd.ITEMS


def items() -> tuple[Item, ...]:
    return (
        *toy.ITEMS,
        _results,
        *psi.ITEMS,
        *angles.ITEMS,
        _ep_to_cvf_b,
        *speed.ITEMS,
        *algorithms.ITEMS,
        *_appendix_e6,
        _full,
        _rescaled,
        *curves.ITEMS,
        *story.ITEMS,
        *updates.ITEMS,
    )


def find(name: str) -> Item | TrainingRun:
    """An item, or one of the training runs that items share, or a part of one."""
    known: dict[str, Item | TrainingRun] = {**BY_NAME, **{it.name: it for it in items()}}
    if name in known:
        return known[name]
    close = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {close[0]}?" if close else "see `eqprop paper list`"
    raise UserError(f"{name!r} is neither an item of the paper nor one of its runs: {hint}")

"""All items, in the order of the paper."""

from __future__ import annotations

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
from eqprop.papers.continual_ep.training import BY_NAME, RUNS
from eqprop.report.catalogue import Catalogue

_results, _full, _rescaled = tables.ITEMS
_ep_to_cvf_b, *_appendix_e6 = gdd.ITEMS

CATALOGUE = Catalogue(
    title="Equilibrium propagation with continual weight updates",
    authors="Ernoult, Grollier, Querlioz, Bengio, Scellier, 2020",
    address="https://arxiv.org/abs/2005.04168",
    items=(
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
    ),
    runs=tuple(RUNS.values()),
    parts=tuple(run for name, run in BY_NAME.items() if name not in RUNS),
    first=("toy-model", "rescaled --quick"),
    by_itself="c-vf-1h-in-turn",
)

"""One step of the procedure: what it saw, what it did, and a figure of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from eqprop.report.blocks import Chart


@dataclass(frozen=True)
class Step:
    """Result of one step.

    Args:
        chosen: {field of the recipe: value}, what the step decided.
        lines: what it saw and did, in a line or two.
        measured: all its numbers, as JSON has them.
        chart: the figure; its name is that of the step.
    """

    chosen: dict[str, Any]
    lines: tuple[str, ...]
    measured: dict[str, Any]
    chart: Chart


def short(value: float) -> float:
    """Five digits, which is what a curve is read by."""
    return float(f"{value:.5g}")

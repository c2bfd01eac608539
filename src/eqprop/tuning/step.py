"""One step of the procedure: its measurements, its choice and its figure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from eqprop.report.blocks import Chart


@dataclass(frozen=True)
class Step:
    """Result of one step.

    Args:
        chosen: {field of the recipe: value}, the choice of the step.
        lines: a summary of one or two lines.
        measured: all measurements, as plain values for JSON.
        chart: the figure. Its name is the name of the step.
    """

    chosen: dict[str, Any]
    lines: tuple[str, ...]
    measured: dict[str, Any]
    chart: Chart


def short(value: float) -> float:
    """Round to five digits, enough for a curve."""
    return float(f"{value:.5g}")

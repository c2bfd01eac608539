"""The parts of a report: text, tables, charts. `html` and `markdown` render them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from eqprop.measured import Measured

Style = Literal["solid", "dashed", "points"]


@dataclass(frozen=True)
class Text:
    """A paragraph. `code` in backticks is the only markup."""

    text: str


@dataclass(frozen=True)
class Table:
    caption: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Line:
    """A curve or a set of points; NaN makes a gap. `low` and `high` bound a shaded band."""

    label: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    style: Style = "solid"
    color: int = 0  # index into the palette; lines that belong together share it
    low: tuple[float, ...] | None = None
    high: tuple[float, ...] | None = None

    @classmethod
    def measured(
        cls,
        label: str,
        x: Iterable[float],
        values: Sequence[Measured],
        style: Style = "solid",
        color: int = 0,
    ) -> Line:
        """Return a line of the means, with a band of ± one standard deviation."""
        mean = tuple(it.mean for it in values)
        low, high = tuple(it.low for it in values), tuple(it.high for it in values)
        return cls(label, tuple(x), mean, style, color, low, high)

    @classmethod
    def over_epochs(
        cls, label: str, curves: Sequence[Sequence[float]], style: Style = "solid", color: int = 0
    ) -> Line:
        """Return mean and standard deviation of curves [epochs][networks], from epoch 1 on."""
        epochs = (float(epoch + 1) for epoch in range(len(curves)))
        return cls.measured(label, epochs, [Measured.of(each) for each in curves], style, color)


@dataclass(frozen=True)
class Panel:
    title: str
    x_label: str
    y_label: str
    lines: tuple[Line, ...]
    x_log: bool = False
    y_log: bool = False
    y_range: tuple[float, float] | None = None


@dataclass(frozen=True)
class Chart:
    """Panels side by side, or below each other on a narrow page."""

    name: str  # name of its file: results/paper/figures/NAME.svg
    caption: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True)
class Matrix:
    """A table of numbers, each with a colour on a scale from `low` to `high`."""

    caption: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    values: tuple[tuple[float, ...], ...]
    low: float = 0.0
    high: float = 1.0


Block = Text | Table | Chart | Matrix

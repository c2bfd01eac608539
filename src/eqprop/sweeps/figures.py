"""Figure of a sweep: the error against each setting."""

from __future__ import annotations

import io
from pathlib import Path

from eqprop.measured import Measured
from eqprop.runs.figures import pyplot, save
from eqprop.runs.files import write_whole
from eqprop.sweeps.table import Table, short, text


def kinds(table: Table) -> str:
    """Return the splits on which the networks were measured, as text."""
    return " or ".join(sorted(table.measured))


def errors(table: Table, file: Path) -> Path:
    """Draw one panel per setting; return the file.

    A panel shows the last error of each network, and mean ± standard deviation per value of the
    setting, over all values of the other settings.
    """
    plt = pyplot()
    varied = table.varied or ["seed"]
    figure, axes = plt.subplots(
        1, len(varied), figsize=(4 * len(varied) + 1, 3.6), squeeze=False, constrained_layout=True
    )
    for axis, column in zip(axes[0], varied, strict=True):
        values = {text(row[column]): row[column] for row in table.rows}
        numbers = all(type(value) in (int, float) for value in values.values())
        ordered = sorted(values, key=values.__getitem__) if numbers else list(values)
        found: dict[str, list[float | None]] = {it: [] for it in ordered}
        for row in table.rows:
            found[text(row[column])].append(row[f"final_{row['measured']}_error"])
        for place, name in enumerate(ordered):
            known = [error for error in found[name] if error is not None]
            axis.plot([place] * len(known), known, "o", color="C0", alpha=0.3, ms=4, mew=0)
        spread = [Measured.of(found[name]) for name in ordered]
        axis.errorbar(
            range(len(ordered)),
            [it.mean for it in spread],
            yerr=[it.std or 0.0 for it in spread],
            fmt="o-",
            color="C1",
            capsize=3,
        )
        turned = 30 if len(ordered) > 4 else 0
        axis.set_xticks(range(len(ordered)), ordered, rotation=turned, parse_math=False)
        axis.set(xlabel=short(column), ylabel=f"{kinds(table)} error (%)")
        axis.grid(alpha=0.3)
    picture = io.BytesIO()
    save(plt, figure, file, picture)
    write_whole(file, picture.getvalue())
    return file

"""Figures of a run, drawn from its folder."""

from __future__ import annotations

import io
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from eqprop.measured import Measured
from eqprop.runs.folder import RunFolder
from eqprop.runs.recipe import UserError


class NoMatplotlib(UserError):
    """Figures need matplotlib, which is not installed."""


def pyplot() -> Any:
    """Return `matplotlib.pyplot`, set up for no display; raise `NoMatplotlib` if it is missing."""
    try:
        import matplotlib
    except ImportError:
        raise NoMatplotlib("figures need matplotlib: pip install 'eqprop[train]'") from None
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    return plt


def series(metrics: Sequence[dict[str, Any]], key: str, name: str | None = None) -> Tensor:
    """Return one quantity over the epochs, [epochs, members], NaN for members without a value.

    Args:
        metrics: one record per epoch.
        key: the quantity, such as "test_error".
        name: the layer or parameter, for quantities that have several. Default None.
    """
    rows = []
    for record in metrics:
        value = record.get(key)
        value = value.get(name) if isinstance(value, dict) and name is not None else value
        width = len(record["train_error"])
        rows.append([float("nan") if v is None else v for v in value or [None] * width])
    return torch.tensor(rows, dtype=torch.float64)


def _band(axis: Any, epochs: list[int], values: Tensor, colour: str, label: str, ls: str) -> None:
    """Draw the mean over the members as a line, ± one standard deviation as a band.

    `values` is [epochs, members].
    """
    spread = [Measured.of(members) for members in values.tolist()]
    shown = f" {label}" if label.startswith("_") else label  # matplotlib hides labels with _
    axis.plot(epochs, [it.mean for it in spread], color=colour, ls=ls, lw=1.5, label=shown)
    low, high = [it.low for it in spread], [it.high for it in spread]
    axis.fill_between(epochs, low, high, color=colour, alpha=0.2, lw=0)


def _error_axis(axis: Any, label: str) -> None:
    from matplotlib.ticker import LogLocator, NullFormatter

    axis.set(xlabel="epoch", ylabel=label)
    axis.grid(alpha=0.3)
    if any((line.get_ydata() > 0).any() for line in axis.lines):  # a log scale needs one
        axis.set_yscale("log")
        axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.yaxis.set_major_formatter("{x:g}")
        axis.yaxis.set_minor_formatter(NullFormatter())


def curves(folder: RunFolder) -> Path:
    """Draw curves.png: train error and test or validation error over the epochs."""
    plt = pyplot()
    metrics, recipe = folder.metrics(), folder.recipe()
    if not metrics:
        raise UserError(f"{folder.path}: no epoch is complete yet, so there is nothing to draw")
    epochs = [record["epoch"] for record in metrics]
    figure, axis = plt.subplots(figsize=(6.4, 4), constrained_layout=True)
    groups = recipe.settings()
    for colour, (label, chosen) in enumerate(groups.items()):
        for split, ls in ((recipe.data.measured, "-"), ("train", "--")):
            text = f"{split} error{f', {label}' if label else ''}"
            values = series(metrics, f"{split}_error")[:, chosen]
            _band(axis, epochs, values, f"C{colour}", text, ls)
    _error_axis(axis, "error (%)")
    n = len(recipe.members())
    title = f"{recipe.name}: mean ± standard deviation, {n} network{'s' * (n > 1)}"
    axis.set_title(title, parse_math=False)
    _legend(axis)
    return _keep(plt, figure, folder, "curves.png")


def health(folder: RunFolder) -> Path:
    """Draw health.png: residuals, unsettled samples, saturation, weight norms, weight angles."""
    plt = pyplot()
    metrics, measured = folder.metrics(), folder.recipe().data.measured
    epochs = [record["epoch"] for record in metrics]
    panels: list[tuple[str, list[tuple[str, Tensor]]]] = [
        ("largest residual of the free phase", [("", series(metrics, "residual"))]),
        (f"unsettled {measured} samples (%)", [("", 100 * series(metrics, "unsettled"))]),
    ]
    for title, key, factor in (
        ("saturated neurons (%)", "saturated", 100.0),
        ("norm of the weights", "weight_norm", 1.0),
        ("angle between forward and backward weights (°)", "weight_angle", 1.0),
    ):
        names = metrics[0].get(key) or {}
        if names:
            panels.append((title, [(n, factor * series(metrics, key, n)) for n in names]))
    rows = (len(panels) + 1) // 2
    figure, axes = plt.subplots(rows, 2, figsize=(9, 2.8 * rows), constrained_layout=True)
    for axis, (title, lines) in zip(axes.flat, panels, strict=False):
        for colour, (name, values) in enumerate(lines):
            _band(axis, epochs, values, f"C{colour}", name, "-")
        axis.set(title=title, xlabel="epoch")
        axis.grid(alpha=0.3)
        if len(lines) > 1:
            _legend(axis, fontsize=8)
    for axis in list(axes.flat)[len(panels) :]:
        axis.set_visible(False)
    return _keep(plt, figure, folder, "health.png")


def confusion(folder: RunFolder, table: Tensor) -> Path:
    """Draw confusion.png. `table` has counts by label and answer, [classes, classes]."""
    plt = pyplot()
    share = 100 * table.double() / table.sum(-1, keepdim=True).clamp(min=1)
    classes = len(table)
    figure, axis = plt.subplots(figsize=(5.6, 5), constrained_layout=True)
    wrong = share.clone()
    wrong.fill_diagonal_(0)
    image = axis.imshow(wrong.numpy(), cmap="Oranges")
    for i in range(classes):
        for j in range(classes):
            if share[i, j] > 0:
                axis.text(j, i, f"{share[i, j]:.1f}", ha="center", va="center", fontsize=7)
    axis.set(xlabel="answer", ylabel="label", xticks=range(classes), yticks=range(classes))
    axis.set_title("answers for each label (%); colour: mistakes")
    figure.colorbar(image, shrink=0.8)
    return _keep(plt, figure, folder, "confusion.png")


def comparison(folders: Sequence[RunFolder], file: Path) -> Path:
    """Draw test or validation error over the epochs, one line per setting of each run."""
    plt = pyplot()
    if not any(folder.metrics() for folder in folders):
        raise UserError("no run has a complete epoch yet, so there is nothing to draw")
    figure, axis = plt.subplots(figsize=(6.4, 4), constrained_layout=True)
    colours = itertools.count()
    kinds = {folder.recipe().data.measured for folder in folders}
    for folder in folders:
        metrics, split = folder.metrics(), folder.recipe().data.measured
        epochs = [record["epoch"] for record in metrics]
        for label, chosen in folder.recipe().settings().items() if metrics else ():
            values = series(metrics, f"{split}_error")[:, chosen]
            kind = split if len(kinds) > 1 else ""
            name = ", ".join(filter(None, (folder.path.name, label, kind)))
            _band(axis, epochs, values, f"C{next(colours)}", name, "-")
    _error_axis(axis, f"{' or '.join(sorted(kinds))} error (%)")
    _legend(axis)
    return save(plt, figure, file, file)


def _legend(axis: Any, **more: Any) -> None:
    """Draw a legend. A $ in a name starts no formula."""
    for text in axis.legend(frameon=False, **more).get_texts():
        text.set_parse_math(False)


def _keep(plt: Any, figure: Any, folder: RunFolder, name: str) -> Path:
    picture = io.BytesIO()
    save(plt, figure, folder.path / name, picture)
    return folder.write_picture(name, picture.getvalue())


def save(plt: Any, figure: Any, file: Path, target: Path | io.BytesIO) -> Path:
    """Write a figure to `target` and close it; return `file`, which errors name."""
    try:
        figure.savefig(target, dpi=120)
    except ValueError as error:  # a file type that matplotlib does not know
        raise UserError(f"{file}: {error}") from None
    finally:
        plt.close(figure)
    return file

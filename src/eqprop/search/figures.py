"""Optuna's figures of a search."""

from __future__ import annotations

import importlib.util
import io
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import optuna
from optuna.trial import TrialState

from eqprop.runs.figures import pyplot
from eqprop.runs.files import write_whole
from eqprop.search.study import Trials

MOST = 4  # parameters in the contour figure, which has one panel per pair


def draw(trials: Trials) -> Iterator[Path | str]:
    """Draw history.png, importances.png and contour.png; yield each path, or why there is none."""
    plt = pyplot()
    study = trials.study
    complete = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    parameters = [*trials.plan.space.parameters()]
    if len(complete) < 2 or len({trial.value for trial in complete}) < 2:
        yield "no pictures: they need two complete trials that differ"
        return
    with warnings.catch_warnings(), plt.rc_context():  # Optuna sets its style for all figures
        warnings.simplefilter("ignore")  # experimental, constant parameters, tight layouts
        from optuna.visualization import matplotlib as visualization

        label: dict[str, Any] = {"target_name": "validation error (%)"}
        history = visualization.plot_optimization_history(study, **label)
        history.set_yscale("log")  # errors differ by factors
        yield _kept(plt, trials, "history", history)
        if len(parameters) < 2:
            yield "no importances and no contour: they need two parameters"
            return
        ranked = [*optuna.importance.get_param_importances(study)]
        yield _kept(plt, trials, "importances", visualization.plot_param_importances(study))
        chosen = ranked[:MOST]
        if importlib.util.find_spec("scipy") is None:
            yield "no contour: it needs SciPy: pip install 'eqprop[search]'"
            return
        yield _kept(plt, trials, "contour", visualization.plot_contour(study, chosen, **label))


def _kept(plt: Any, trials: Trials, name: str, axes: Any) -> Path:
    figure = plt.gcf()
    panels = getattr(axes, "size", 1)
    side = 3.2 * panels**0.5
    if panels > 1:
        figure.set_size_inches(side, side)
    picture, file = io.BytesIO(), trials.folder.path / f"{name}.png"
    figure.savefig(picture, dpi=120, bbox_inches="tight")
    plt.close(figure)
    write_whole(file, picture.getvalue())
    return file

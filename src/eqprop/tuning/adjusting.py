"""The scale of the learning rates, then β, by the train error.

"The typical range of learning rates is [10⁻³, 10⁻¹] … Hyperparameters where adjusted until having a
train error the closest to zero" (appendix F.1). The appendix leaves the order open. Here the scale
comes first, then β. All values of one hyperparameter train as one ensemble.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from eqprop.measured import Measured
from eqprop.report.blocks import Chart, Line, Panel
from eqprop.runs import UserError
from eqprop.tuning.choices import Choices, one_two_five
from eqprop.tuning.ratio import learning_rates
from eqprop.tuning.step import Step, short
from eqprop.tuning.trials import Trials


def choose_scale(
    trials: Trials, found: Mapping[str, Any], magnitudes: Sequence[float], choices: Choices
) -> Step:
    """Choose the learning rates with the smallest train error.

    Args:
        trials: trains the networks.
        found: {field: value} of T, K and β so far.
        magnitudes: magnitudes of the gradients, input → output. They give the ratio of the rates.
        choices: gives the range of the largest rate.
    """
    scales = one_two_five(choices.rates)
    rates = [list(learning_rates(magnitudes, scale)) for scale in scales]
    errors = trials.errors("5-scale", {**found, "update.learning_rates": rates})
    best = _least(errors)
    written = ", ".join(f"{rate:g}" for rate in rates[best])
    return Step(
        chosen={"update.learning_rates": rates[best]},
        lines=(
            f"train error after {trials.epochs} epochs is least, {errors[best]} %, at a largest "
            f"rate of {scales[best]:g}{_end(best, scales, '--rates')}",
            f"learning rates {written}, input to output",
        ),
        measured={
            "trials": [
                {"learning_rates": each, **recorded(error)}
                for each, error in zip(rates, errors, strict=True)
            ]
        },
        chart=_chart("5-scale", "largest η", scales, errors, trials.epochs),
    )


def adjust_beta(
    trials: Trials, found: Mapping[str, Any], betas: Sequence[float]
) -> tuple[Step, Measured]:
    """Choose the β with the smallest train error; return the step and that error.

    Args:
        trials: trains the networks.
        found: {field: value} of T, K and the learning rates so far.
        betas: the values to try, those with equal signs.
    """
    errors = trials.errors("6-beta", {**found, "nudging.beta": list(betas)})
    best = _least(errors)
    step = Step(
        chosen={"nudging.beta": betas[best]},
        lines=(
            f"train error is least, {errors[best]} %, at β = {betas[best]:g}"
            f"{_end(best, betas, '--beta')}, of {', '.join(f'{beta:g}' for beta in betas)}",
        ),
        measured={
            "trials": [
                {"beta": beta, **recorded(error)} for beta, error in zip(betas, errors, strict=True)
            ]
        },
        chart=_chart("6-beta", "β", betas, errors, trials.epochs),
    )
    return step, errors[best]


def _least(errors: Sequence[Measured]) -> int:
    """Return the index of the smallest known error."""
    finite = [i for i, error in enumerate(errors) if error.n]
    if not finite:
        raise UserError("rates: every network became non-finite: lower --rates or --beta")
    return min(finite, key=lambda i: errors[i].mean)


def _end(best: int, tried: Sequence[float], option: str) -> str:
    """Return a note if the best value is the first or the last: a better one may lie beyond."""
    if len(tried) == 1 or 0 < best < len(tried) - 1:
        return ""
    return f" (the {'largest' if best else 'smallest'} tried: see {option})"


def _chart(
    name: str, label: str, values: Sequence[float], errors: Sequence[Measured], epochs: int
) -> Chart:
    line = Line.measured("train error", values, errors)
    title = f"after {epochs} epochs"
    panel = Panel(title, label, "train error (%)", (line,), x_log=True, y_log=True)
    return Chart(name, f"Train error against {label}, mean ± standard deviation.", (panel,))


def recorded(error: Measured) -> dict[str, Any]:
    """Return a train error as plain values for JSON; None if a network became non-finite."""
    mean = None if math.isnan(error.mean) else short(error.mean)
    std = None if error.std is None else short(error.std)
    return {"train_error": mean, "std": std}

"""The scale of the learning rates, and β, by the train error.

"The typical range of learning rates is [10⁻³, 10⁻¹] … Hyperparameters where adjusted until having a
train error the closest to zero" (appendix F.1).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from eqprop.measured import Measured
from eqprop.report.blocks import Chart, Line, Panel
from eqprop.runs import UserError
from eqprop.tuning.choices import Choices, one_two_five
from eqprop.tuning.ratio import learning_rates
from eqprop.tuning.step import Step, short
from eqprop.tuning.trials import Trials


def adjust(
    trials: Trials,
    T: int,
    K: int,
    betas: Sequence[float],
    magnitudes: Sequence[float],
    choices: Choices,
) -> tuple[Step, Measured]:
    """The β and the largest rate whose networks have the least train error; and that error.

    Args:
        trials: trains them, all as one ensemble.
        T, K: the steps of both phases.
        betas: the candidates.
        magnitudes: of the gradients, which give the ratio of the rates.
        choices: the range of the rates.
    """
    scales = one_two_five(choices.rates)
    rates = [learning_rates(magnitudes, scale) for scale in scales]
    found = trials.errors(
        "5-scale",
        {
            "rule.free_steps": T,
            "rule.nudged_steps": K,
            "nudging.beta": list(betas),
            "update.learning_rates": [list(each) for each in rates],
        },
    )
    settings = [(i, beta) for i in range(len(scales)) for beta in betas]
    errors = dict(zip(settings, found, strict=True))
    finite = {key: error for key, error in errors.items() if error.n}
    if not finite:
        raise UserError("rates: every network became non-finite: lower --rates or --beta")
    (best, beta), error = min(finite.items(), key=lambda item: item[1].mean)
    chosen = rates[best]
    edge = (
        ", the end of the range: --rates LOW,HIGH moves it"
        if len(scales) > 1 and best in (0, len(scales) - 1)
        else ""
    )
    lines = tuple(
        Line.measured(f"β = {b:g}", scales, [errors[i, b] for i in range(len(scales))], color=color)
        for color, b in enumerate(betas)
    )
    step = Step(
        chosen={"nudging.beta": beta, "update.learning_rates": list(chosen)},
        lines=(
            f"train error after {trials.epochs} epochs is least, {error} %, at β = {beta:g} and a "
            f"largest rate of {scales[best]:g}{edge}",
            f"β = {beta:g}, learning rates {', '.join(f'{rate:g}' for rate in chosen)}",
        ),
        measured={
            "trials": [
                {"beta": b, "learning_rates": list(rates[i]), **recorded(error)}
                for (i, b), error in errors.items()
            ]
        },
        chart=Chart(
            "5-scale",
            "Train error against the largest learning rate, mean ± standard deviation.",
            (
                Panel(
                    f"after {trials.epochs} epochs",
                    "largest η",
                    "train error (%)",
                    lines,
                    x_log=True,
                    y_log=True,
                ),
            ),
        ),
    )
    return step, error


def recorded(error: Measured) -> dict[str, Any]:
    """A train error as JSON has it; None where a network became non-finite."""
    mean = None if math.isnan(error.mean) else short(error.mean)
    std = None if error.std is None else short(error.std)
    return {"train_error": mean, "std": std}

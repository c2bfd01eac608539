"""T: the number of steps until the free phase converges.

"A first guess of the recurrent hyperparameters T and β is found by plotting the Δ and ∇ processes"
(appendix F.1). Both start from s_*, so T is the number of steps to reach s_*.
"""

from __future__ import annotations

from torch import Tensor

from eqprop.dynamics import relax
from eqprop.model import Model
from eqprop.report.blocks import Chart, Line, Panel
from eqprop.runs import UserError
from eqprop.tuning.choices import Choices, within
from eqprop.tuning.step import Step, short


def residuals(
    model: Model, x: Tensor, most: int, tolerance: float, *, in_turn: bool = False
) -> dict[int, float]:
    """Return {t: largest change of any neuron at step t} for a free phase from s_0 = 0.

    The phase ends after `most` steps, or at the first residual of at most `tolerance`. With
    `in_turn`, each entry covers one update of every layer.

    Args:
        model: the network, or another `Model`.
        x: inputs, [batch, *shape] or [*ensemble, batch, *shape].
        most: maximum number of steps.
        tolerance: the residual to reach.
        in_turn: whether the layers move in turn. Default False.
    """
    stride = len(model.split()) if in_turn else 1
    found: dict[int, float] = {}
    state = None
    for t in range(stride, most + 1, stride):
        free = relax(model, x, stride, in_turn=in_turn, state=state)
        found[t], state = free.residual, free.state
        if free.residual <= tolerance:
            break
    return found


def choose_free_steps(model: Model, x: Tensor, in_turn: bool, choices: Choices) -> Step:
    """Choose T: the number of steps until the free phase converges, times a margin."""
    most = choices.free_steps[1]
    curve = residuals(model, x, most, choices.settled, in_turn=in_turn)
    settled, last = max(curve), list(curve.values())[-1]
    if last > choices.settled:
        raise UserError(
            f"free_steps: the network does not settle within {most} steps (residual {last:.1e}): "
            "set rule.in_turn=true, another activation or init, or a larger --settled"
        )
    T = within(choices.margin * settled, choices.free_steps)
    low, high = choices.free_steps
    line = Line("residual", tuple(map(float, curve)), tuple(curve.values()))
    limit = Line(
        "settled", (1.0, float(settled)), (choices.settled, choices.settled), "dashed", color=1
    )
    return Step(
        chosen={"rule.free_steps": T},
        lines=(
            f"the free phase of the untrained network comes below a residual of "
            f"{choices.settled:g} after {settled} steps",
            f"T = {T}: {choices.margin:g} times as many, within {low} to {high}",
        ),
        measured={
            "settled_after": settled,
            "residual": {str(t): short(value) for t, value in curve.items()},
        },
        chart=Chart(
            "1-free-steps",
            "Largest change of any neuron at each step of the free phase.",
            (Panel("free phase", "t", "residual", (line, limit), y_log=True),),
        ),
    )

"""K: the number of steps until the gradients converge.

"K can also be found out of the plots as the number of steps which are required for the gradients
to converge" (appendix F.1).
"""

from __future__ import annotations

from torch import Tensor

from eqprop.network import Network
from eqprop.report.blocks import Chart, Line, Panel
from eqprop.rules import BPTT
from eqprop.tuning.choices import Choices, within
from eqprop.tuning.processes import labels, norms
from eqprop.tuning.step import Step, short

VISIBLE = 1e-9  # share of the largest value; smaller values are rounding errors


def steps_to_decay(norms: Tensor, share: float) -> int:
    """Return the fewest steps after which at most a share of Σ_t ‖∇(t)‖ is left in every column.

    Args:
        norms: ‖∇(t)‖, [K, groups].
        share: share of the sum of each column.
    """
    left = norms.flip(0).cumsum(0).flip(0)  # from step t on, [K, groups]
    unfinished = (left > share * left[0]).any(dim=1).nonzero()
    return int(unfinished.max()) + 1 if len(unfinished) else 1


def choose_nudged_steps(
    net: Network, x: Tensor, y: Tensor, free_steps: int, choices: Choices
) -> Step:
    """Choose K: the number of steps until ∇ has decayed, times a margin."""
    horizon = min(choices.nudged_steps[1], free_steps)
    curve = norms(net, BPTT(free_steps=free_steps, backward_steps=horizon), x, y)
    decayed = steps_to_decay(curve, choices.decayed)
    K = within(choices.margin * decayed, choices.nudged_steps)
    low, high = choices.nudged_steps
    return Step(
        chosen={"rule.nudged_steps": K},
        lines=(
            f"∇(t) has decayed after {decayed} steps: less than {100 * choices.decayed:g} % of it "
            "comes later, in every layer",
            f"K = {K}: {choices.margin:g} times as many, within {low} to {high}",
        ),
        measured={"decayed_after": decayed, "norm_of_nabla": recorded(net, curve)},
        chart=Chart(
            "2-nudged-steps",
            "Norm of the gradient of BPTT at each step of the second phase, layer by layer.",
            (Panel("BPTT", "t", "‖∇(t)‖", curves(net, curve), y_log=True),),
        ),
    )


def recorded(net: Network, values: Tensor) -> dict[str, list[float]]:
    """Return values [n, groups] as {name of a group: list}."""
    columns = zip(labels(net), values.T.tolist(), strict=True)
    return {label: list(map(short, column)) for label, column in columns}


def curves(net: Network, values: Tensor) -> tuple[Line, ...]:
    """Return one line per group for values [K, groups] over t = 0 … K−1.

    It omits zeros: in a chain, a gradient reaches each layer at every other step.
    """
    lines = []
    for i, (label, column) in enumerate(recorded(net, values).items()):
        shown = {float(t): v for t, v in enumerate(column) if v > VISIBLE * max(column)}
        lines.append(Line(label, tuple(shown), tuple(shown.values()), color=i))
    return tuple(lines)

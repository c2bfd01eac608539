"""β: the largest at which updates and gradients have equal signs.

"… by conjointly computing the proportions of synapses whose Δ_W processes have the same sign as
its ∇_W processes" (appendix F.1). Here the sign of a synapse's process is the sign of its total
over t, which is the total change of the synapse.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from eqprop.analysis import sign_agreement, total_update
from eqprop.dynamics import NonFinite
from eqprop.network import Network
from eqprop.report.blocks import Chart, Line, Panel
from eqprop.rules import BPTT, Rule
from eqprop.tuning.choices import Choices, one_two_five
from eqprop.tuning.decay import curves, recorded
from eqprop.tuning.processes import grouped, labels, norms
from eqprop.tuning.step import Step

RuleAt = Callable[[float], Rule]  # the rule with a given β


def equal_signs(net: Network, rule: Rule, x: Tensor, y: Tensor) -> Tensor:
    """Return the proportion of synapses per group whose Δ has the sign of −∇, [groups].

    It is the mean over the ensemble, and 0 if the nudged phase diverges.

    Args:
        net: the network.
        rule: a two-phase rule. BPTT uses the same T and K.
        x: inputs, [batch, *shape].
        y: targets, [batch, n].
    """
    bptt = BPTT(free_steps=rule.free_steps, backward_steps=min(rule.horizon, rule.free_steps))
    try:
        ours = grouped(net, total_update(net, rule, x, y))
    except NonFinite:
        return torch.zeros(len(net.parameter_groups()))
    exact = grouped(net, total_update(net, bptt, x, y))
    shares = (sign_agreement(a, b, net.ensemble) for a, b in zip(ours, exact, strict=True))
    return torch.stack([share.mean() for share in shares])


def agreeing(shares: Mapping[float, Tensor], slack: float) -> list[float]:
    """Return the β whose proportions of equal signs are close to the best in every group.

    Args:
        shares: {β: proportions [groups]}.
        slack: largest difference from the best.
    """
    best = torch.stack(list(shares.values())).amax(0)
    return [beta for beta, share in shares.items() if bool((share >= best - slack).all())]


def choose_beta(net: Network, rule_at: RuleAt, x: Tensor, y: Tensor, choices: Choices) -> Step:
    """Choose β: the largest at which the signs agree."""
    shares = {beta: equal_signs(net, rule_at(beta), x, y) for beta in one_two_five(choices.beta)}
    good = agreeing(shares, choices.signs) or [min(shares)]
    beta, table = good[-1], torch.stack(list(shares.values()))
    rule = rule_at(beta)
    bptt = BPTT(free_steps=rule.free_steps, backward_steps=min(rule.horizon, rule.free_steps))
    nabla, delta = norms(net, bptt, x, y), norms(net, rule, x, y)
    found = {label: list(column) for label, column in recorded(net, table).items()}
    seen = ", ".join(
        f"{label} {100 * share:.1f} %"
        for label, share in zip(labels(net), shares[beta], strict=True)
    )
    lines = tuple(
        Line(label, tuple(shares), tuple(column), color=i)
        for i, (label, column) in enumerate(found.items())
    )
    both = (
        *(replace(line, label=f"{line.label}, ∇") for line in curves(net, nabla)),
        *(replace(line, label=f"{line.label}, Δ", style="dashed") for line in curves(net, delta)),
    )
    return Step(
        chosen={"nudging.beta": beta},
        lines=(
            f"equal signs of Δ and −∇ at β = {beta:g}: {seen}",
            f"β = {beta:g}: the largest of {', '.join(f'{b:g}' for b in shares)} within "
            f"{100 * choices.signs:g} points of the best in every layer",
        ),
        measured={
            "beta": list(shares),
            "equal_signs": found,
            "agreeing": good,
            "norm_of_nabla": recorded(net, nabla),
            "norm_of_delta": recorded(net, delta),
        },
        chart=Chart(
            "3-beta",
            f"Left: synapses with equal signs against β. Right: the processes at β = {beta:g}.",
            (
                Panel("equal signs", "β", "proportion", lines, x_log=True, y_range=(0.0, 1.0)),
                Panel("processes", "t", "‖∇(t)‖, ‖Δ(t)‖", both, y_log=True),
            ),
        ),
    )

"""Check before training: the angle between the recipe's update and the gradient, and its causes.

The angle is Ψ(Δ(tot), −∇(tot)) of the paper's Fig. "ep-to-cvf". The check removes one cause after
another: fixed weights (η → 0), then β → 0, then symmetric weights, then update_slope full. The rest
has a cause that none of these removes. For each synapse, the check also finds the η at which the
moving weights turn its update away from the gradient.
"""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from eqprop.analysis import GddReport, angle, gddcheck, total_update
from eqprop.dynamics import NonFinite
from eqprop.engines import resolve_rates
from eqprop.network import Network
from eqprop.rules import Rule
from eqprop.runs.parts import Member
from eqprop.runs.recipe import Recipe, UserError
from eqprop.types import Gradients
from eqprop.update_slope import UpdateSlope

SMALL_BETA = 1e-4
TURN = 10.0  # degrees by which an update has turned when it "leaves" the gradient
WARNING = 90.0  # the paper: tune so that updates stay within 90° of the gradient
NOTHING = 0.05  # degrees; smaller values print as 0.0
UNSETTLED = 1e-3 * SMALL_BETA  # a residual that changes Δ = (s_{t+1} − s_t)/β by 10⁻³ or more


@dataclass(frozen=True)
class Angles:
    """Angles in degrees between an update and BPTT's gradient: of all parameters, per synapse."""

    whole: float
    synapses: tuple[float, ...]


@dataclass(frozen=True)
class Check:
    """Result of `check`. `str` gives the text that `eqprop check` prints."""

    recipe: Recipe
    member: Member
    batch: int
    report: GddReport
    trained: Angles  # as in training
    opposite: Angles | None  # the same with −β, if the sign of β is random
    still: Angles  # η → 0
    small: Angles  # and β → 0
    symmetric: Angles  # and backward weights equal to forward weights
    full: Angles | None  # and update_slope full, if the recipe could choose it but does not
    leaving: tuple[float | None, ...]  # η per synapse; None: far above. Empty if not continual

    @property
    def angle(self) -> float:
        """The angle as trained, the larger of both signs of β."""
        return max(self.trained.whole, self.opposite.whole if self.opposite else 0.0)

    @property
    def warning(self) -> bool:
        return not self.angle < WARNING  # True for NaN, too

    def __str__(self) -> str:
        names = [f"synapses.{k}" for k in range(len(self.trained.synapses))]
        names[-1:] = ["readout"] if self.recipe.network.softmax else names[-1:]
        rows = [
            ("as trained", self.trained),
            *([("as trained, −β", self.opposite)] if self.opposite else []),
            ("weights held still (η → 0)", self.still),
            ("and β → 0", self.small),
            ("and symmetric weights", self.symmetric),
            *([("and update_slope full", self.full)] if self.full else []),
        ]
        lines = [
            f"{self.recipe.name}, seed {self.member.seed}, one minibatch of {self.batch}, "
            "before training",
            "",
            str(self.report),
            "",
            "angle between the total update and the gradient of BPTT",
            f"{'':28}{'all':>8}" + "".join(f"{name:>12}" for name in names),
        ]
        for title, angles in rows:
            each = "".join(f"{a:11.1f}°" for a in angles.synapses)
            lines.append(f"{title:28}{angles.whole:7.1f}°{each}")
        lines.append(self._parts())
        if self.leaving:
            lines += ["", f"η at which moving weights turn a synapse's update by {TURN:g}°"]
            rates = map(float, self.recipe.rates([self.member]))
            for name, eta, leaves in zip(names, rates, self.leaving, strict=True):
                verdict = (
                    "far above" if leaves is None else f"{leaves:.2g}, {leaves / eta:.2g} times"
                )
                lines.append(f"  {name}: {verdict} the recipe's {eta:g}")
        lines.append("")
        if self.warning:
            lines.append(
                f"WARNING: the update is {self.angle:.0f}° from the gradient; the paper "
                "advises to stay below 90°: lower the learning rates or the weight angle"
            )
        else:
            lines.append(f"below 90°, as the paper advises: {self.angle:.1f}°")
        return "\n".join(lines)

    def _parts(self) -> str:
        """Return the share of each cause in the angle, and the cause of the rest."""
        parts = [
            f"η adds {_degrees(self.trained.whole - self.still.whole)}",
            f"β {_degrees(self.still.whole - self.small.whole)}",
            f"asymmetry {_degrees(self.small.whole - self.symmetric.whole)}",
        ]
        rest = self.symmetric.whole
        if self.full:
            slope = f"update_slope {self.recipe.rule.update_slope}"
            parts.append(f"{slope} {_degrees(rest - self.full.whole)}")
            rest = self.full.whole
        cause = _cause(self.recipe, self.member, self.report.residual)
        cause = f" ({cause})" if rest >= NOTHING else ""
        return f"of the angle, {', '.join(parts)}; {_degrees(rest)} is left{cause}"


def check(
    recipe: Recipe,
    member: Member,
    x: Tensor,
    y: Tensor,
) -> Check:
    """Check one member of the recipe on one minibatch, in float64.

    Args:
        recipe: the recipe. Its nudged_steps must not exceed free_steps.
        member: one of its members.
        x: inputs, [batch, *shape].
        y: one-hot targets, [batch, classes].
    """
    T, K = recipe.rule.free_steps, recipe.rule.nudged_steps
    if K > T:
        raise UserError(
            f"{recipe.name}: nudged_steps ({K}) must not exceed free_steps ({T}) for a comparison "
            "with BPTT"
        )
    if recipe.rule.nudged_in_turn:
        raise UserError(
            f"{recipe.name}: BPTT goes back through steps of all layers: compare with it with "
            "--set nudged_in_turn=false"
        )
    net = recipe.network.build([member], torch.float64)
    rule, bptt = recipe.learning_rule([member]), recipe.rule.gradient()

    def rates(factor: float) -> dict[str, float | Tensor] | None:
        """Return the recipe's learning rates times a factor; None for 0: the weights are fixed."""
        scaled = [rate * factor for rate in recipe.rates([member])]
        return resolve_rates(net, scaled, recipe.update.frozen) if factor else None

    def angles(
        net: Network, beta: float | None, factor: float = 0.0, slope: UpdateSlope | None = None
    ) -> Angles:
        rule: Any = recipe.learning_rule([replace(member, beta=beta)])
        if slope is not None:
            rule = replace(rule, update_slope=slope)
        ours = total_update(net, rule, x, y, learning_rates=rates(factor))
        return _angles(ours, total_update(net, bptt, x, y))

    @functools.cache
    def moved(factor: float) -> Angles:
        try:
            return angles(net, member.beta, factor)
        except NonFinite:
            return Angles(180.0, (180.0,) * len(recipe.network.leads_to))

    small = None if member.beta is None else math.copysign(SMALL_BETA, member.beta)
    leaving: list[float | None] = []
    if rule.continual:
        for k, eta in enumerate(recipe.rates([member])):
            factor = _leaving(moved, k)
            leaving.append(None if factor is None else factor * float(eta))
    draws_sign = rule.nudging is not None and rule.nudging.draws_sign
    flipped = -member.beta if draws_sign and member.beta is not None else None
    symmetric = _symmetrised(net)
    has_slope = _has_slope(recipe, rule) and rule.update_slope != UpdateSlope.FULL
    return Check(
        recipe=recipe,
        member=member,
        batch=net.batch(x),
        report=gddcheck(net, rule, x, y, learning_rates=rates(1.0)),
        trained=moved(1.0),
        opposite=None if flipped is None else angles(net, flipped, 1.0),
        still=moved(0.0),
        small=angles(net, small),
        symmetric=angles(symmetric, small),
        full=angles(symmetric, small, slope=UpdateSlope.FULL) if has_slope else None,
        leaving=tuple(leaving),
    )


def _has_slope(recipe: Recipe, rule: Rule) -> bool:
    """Return whether the rule's update can have a factor σ′."""
    return rule.vector_field and recipe.network.discrete


def _cause(recipe: Recipe, member: Member, residual: float) -> str:
    """Return why an update with η, β → 0, symmetric weights and update_slope full is not exact.

    After a settled free phase it equals the gradient if F = ∂Φ/∂s (Theorem 1) or if ∂F/∂s is
    symmetric (Theorem 2).
    """
    causes, network = [], recipe.network
    if _has_slope(recipe, recipe.learning_rule([member])):
        causes.append("symmetric weights do not make the Jacobian σ′·W symmetric")
    elif recipe.nudging and network.discrete:
        causes.append("the σ′ that Φ leaves out in discrete time")
    elif recipe.nudging and network.slope != "all":
        causes.append(f"the σ′ that slope {network.slope} leaves out of the dynamics")
    if residual > UNSETTLED or not causes:
        causes.append("a free phase that has not settled")
    return ", and ".join(causes)


def _degrees(value: float) -> str:
    return f"{round(value, 1) + 0.0:.1f}°"  # + 0.0: no minus sign before a zero


def _angles(ours: Gradients, exact: Gradients) -> Angles:
    synapses: dict[str, list[str]] = {}
    for name in ours:
        synapses.setdefault(name.rpartition(".")[0], []).append(name)
    each = (
        angle({n: ours[n] for n in names}, {n: exact[n] for n in names})
        for names in synapses.values()
    )
    return Angles(float(angle(ours, exact)), tuple(float(a) for a in each))


def _leaving(moved: Callable[[float], Angles], k: int) -> float | None:
    """Return the factor on all learning rates that turns synapse k by TURN; None above 2¹⁰."""

    def turned(factor: float) -> bool:
        return moved(factor).synapses[k] >= moved(0.0).synapses[k] + TURN

    exponent = 0
    while not turned(2.0**exponent):
        exponent += 1
        if exponent > 10:
            return None
    while turned(2.0 ** (exponent - 1)):
        exponent -= 1
    low, high = 2.0 ** (exponent - 1), 2.0**exponent
    for _ in range(4):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if turned(middle) else (middle, high)
    return high


def _symmetrised(net: Network) -> Network:
    net = copy.deepcopy(net)
    for synapse in net.synapses:
        if synapse.backward_weight is not None:
            synapse.backward_weight.copy_(synapse.reverse(synapse.weight))
    return net

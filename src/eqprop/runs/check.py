"""Before training: how far is the recipe's update from the gradient, and whose fault is it?

The angle Ψ(Δ(tot), −∇(tot)) of the paper's Fig. "ep-to-cvf", taken apart: the weights held
still (η → 0), then β → 0, then symmetric weights. What is left is the σ′ that the rule leaves out
in discrete time. And, for each synapse, the η at which the moving weights turn its update away.
"""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from eqprop.analysis import GddReport, angle, gddcheck, total_update
from eqprop.costs import Cost, SquaredError
from eqprop.dynamics import NonFinite
from eqprop.engines import resolve_rates
from eqprop.model import Gradients
from eqprop.network import Network
from eqprop.rules import BPTT
from eqprop.runs.recipe import Member, Recipe, UserError
from eqprop.synapses import Dense

SMALL_BETA = 1e-4
TURN = 10.0  # degrees by which an update has turned when it "leaves" the gradient
WARNING = 90.0  # the paper: tune so that updates stay within 90° of the gradient


@dataclass(frozen=True)
class Angles:
    """Degrees between an update and BPTT's gradient: whole, and of each synapse."""

    whole: float
    synapses: tuple[float, ...]


@dataclass(frozen=True)
class Check:
    recipe: Recipe
    member: Member
    batch: int
    report: GddReport
    trained: Angles  # as in training
    opposite: Angles | None  # the same with −β, where the sign of β is random
    still: Angles  # η → 0
    small: Angles  # and β → 0
    symmetric: Angles  # and backward weights equal to forward ones
    leaving: tuple[float | None, ...]  # η of each synapse; None: it never does

    @property
    def angle(self) -> float:
        """The larger of the two signs of β."""
        return max(self.trained.whole, self.opposite.whole if self.opposite else 0.0)

    @property
    def warning(self) -> bool:
        return self.angle >= WARNING

    def __str__(self) -> str:
        names = [f"synapses.{k}" for k in range(len(self.trained.synapses))]
        rows = [
            ("as trained", self.trained),
            *([("as trained, −β", self.opposite)] if self.opposite else []),
            ("weights held still (η → 0)", self.still),
            ("and β → 0", self.small),
            ("and symmetric weights", self.symmetric),
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
        lines.append(
            f"of the angle, η adds {self.trained.whole - self.still.whole:.1f}°, "
            f"β {self.still.whole - self.small.whole:.1f}°, "
            f"asymmetry {self.small.whole - self.symmetric.whole:.1f}°; "
            f"{self.symmetric.whole:.1f}° is left (the σ′ that discrete-time rules drop)"
        )
        if self.recipe.rule.startswith("continual"):
            lines += ["", f"η at which moving weights turn a synapse's update by {TURN:g}°"]
            rates = self.member.learning_rates
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


def check(
    recipe: Recipe,
    member: Member,
    x: Tensor,
    y: Tensor,
    cost: Cost = SquaredError(),  # noqa: B008 (frozen)
) -> Check:
    """Check one member of the recipe on one minibatch, in float64."""
    if recipe.nudged_steps > recipe.free_steps:
        raise UserError(
            f"{recipe.name}: nudged_steps ({recipe.nudged_steps}) must not exceed free_steps "
            f"({recipe.free_steps}) for a comparison with BPTT"
        )
    net = recipe.network([member], torch.float64)
    continual = recipe.rule.startswith("continual")
    bptt = BPTT(free_steps=recipe.free_steps, backward_steps=recipe.nudged_steps)

    def rates(factor: float) -> dict[str, float | Tensor] | None:
        """The recipe's learning rates times a factor; 0 holds the weights still."""
        scaled = [rate * factor for rate in recipe.rates([member])]
        return resolve_rates(net, scaled, recipe.frozen) if factor else None

    def angles(net: Network, beta: float | None, factor: float) -> Angles:
        rule = recipe.learning_rule([replace(member, beta=beta)])
        ours = total_update(net, rule, x, y, cost, learning_rates=rates(factor))
        return _angles(ours, total_update(net, bptt, x, y, cost))

    @functools.cache
    def moved(factor: float) -> Angles:
        try:
            return angles(net, member.beta, factor)
        except NonFinite:
            return Angles(180.0, (180.0,) * len(member.learning_rates))

    trained = (recipe.rescale or 1.0) if continual else 0.0
    small = None if member.beta is None else math.copysign(SMALL_BETA, member.beta)
    leaving: list[float | None] = [None] * len(member.learning_rates)
    if continual:
        for k, eta in enumerate(member.learning_rates):
            factor = _leaving(moved, k)
            leaving[k] = None if factor is None else factor * eta
    flipped = -member.beta if recipe.random_sign and member.beta is not None else None
    return Check(
        recipe=recipe,
        member=member,
        batch=x.shape[-2],
        report=gddcheck(
            net, recipe.learning_rule([member]), x, y, cost, learning_rates=rates(trained)
        ),
        trained=moved(trained),
        opposite=None if flipped is None else angles(net, flipped, trained),
        still=moved(0.0),
        small=angles(net, small, 0.0),
        symmetric=angles(_symmetrised(net), small, 0.0),
        leaving=tuple(leaving),
    )


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
    """The factor on all learning rates at which synapse k has turned by TURN; None above 2¹⁰."""

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
        if isinstance(synapse, Dense) and synapse.backward_weight is not None:
            synapse.backward_weight.copy_(synapse.weight.mT)
    return net

"""Fig. "toy-model": s' = ½(s + θ), ℓ = ½s². Points are from the rules, lines from appendix C."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from eqprop.analysis import time_resolved
from eqprop.dynamics import relax
from eqprop.papers.continual_ep.sources import TOY_MODEL
from eqprop.primitive import toy_model
from eqprop.report.blocks import Block, Chart, Line, Panel, Table, Text
from eqprop.report.computed import Computed
from eqprop.report.item import Item, Order, Row
from eqprop.report.results import Results
from eqprop.rules import BPTT, EP, RBP, ContinualEP

THETA, BETA, ETA = 1.0, 0.1, 0.1
T, K = 60, 12  # 2⁻⁶⁰ is below the rounding error of θ: s_T = s_*
TOLERANCE = 1e-12  # the rounding error of s is 1e-16 per step, and Δ divides it by β
SHRINKING = (0.1, 0.01, 0.001)  # values of β, with η = β²
X = Y = torch.zeros(1, 1, dtype=torch.float64)  # the model ignores x, and ℓ = ½(s − 0)²
ALGORITHMS = ("C-EP", "EP", "RBP", "BPTT")

Curves = dict[str, dict[str, Tensor]]  # {algorithm: {quantity: values over time}}


def measured() -> Curves:
    """Return the curves that the library's rules compute."""
    model = toy_model(THETA)
    nudged: dict[str, Any] = {"beta": BETA, "free_steps": T, "nudged_steps": K}
    free = relax(model, X, T, keep=T)
    curves: Curves = {"first phase": {"s": torch.cat([s[0][0] for s in free.history])}}
    for name, rule, eta in (
        ("C-EP", ContinualEP(**nudged), ETA),
        ("EP", EP(**nudged), None),
        ("RBP", RBP(free_steps=T, backward_steps=K), None),
        ("BPTT", BPTT(free_steps=T, backward_steps=K), None),
    ):
        process = time_resolved(model, rule, X, Y, learning_rates=eta)
        delta_s, delta_theta = -process.neurons["s"].flatten(), -process.synapses["theta"]
        curves[name] = {"Δ_s": delta_s, "Δ_θ": delta_theta}
        if name in ("C-EP", "EP"):  # Eq. (updates-cep): s moves by β Δ_s, θ by η Δ_θ
            curves[name]["s"] = _walk(process.free.state[0].flatten(), BETA * delta_s)
        if eta is not None:
            curves[name]["θ"] = _walk(torch.tensor([THETA]).double(), eta * delta_theta)
    return curves


def closed_forms() -> Curves:
    """Return the curves of appendix C, with −∇, so that all four algorithms share one curve."""
    t = torch.arange(K, dtype=torch.float64)
    later = torch.arange(K + 1, dtype=torch.float64)
    factor = 1 - 2 * BETA + ETA / (2 * BETA)
    rest = 1 - ETA / (2 * BETA)
    s = THETA / (rest + 2 * BETA) * (rest + 2 * BETA * (factor / 2) ** later)
    back = -THETA / 2**t  # s_T = s_* = θ
    ep = -THETA / 2**t * (1 - 2 * BETA) ** t
    cep = -THETA / 2**t * factor**t
    s_ep = THETA / (1 + 2 * BETA) * (1 + 2 * BETA * (0.5 - BETA) ** later)
    return {
        "first phase": {"s": THETA * (1 - 0.5 ** torch.arange(T, dtype=torch.float64))},
        "C-EP": {"Δ_s": cep, "Δ_θ": cep / 2, "s": s, "θ": THETA + ETA / (2 * BETA) * (s - THETA)},
        "EP": {"Δ_s": ep, "Δ_θ": ep / 2, "s": s_ep},
        "RBP": {"Δ_s": back, "Δ_θ": back / 2},
        "BPTT": {"Δ_s": back, "Δ_θ": back / 2},
    }


def _walk(start: Tensor, moves: Tensor) -> Tensor:
    return torch.cat([start, start + torch.cumsum(moves, 0)])


def _distance_to_bptt(beta: float) -> float:
    """Return the largest |Δ^C-EP(t) + ∇^BPTT(t)| of neuron and synapse, at η = β²."""
    rule = ContinualEP(beta=beta, free_steps=T, nudged_steps=K)
    ours = time_resolved(toy_model(THETA), rule, X, Y, learning_rates=beta**2)
    exact = time_resolved(toy_model(THETA), BPTT(free_steps=T, backward_steps=K), X, Y)
    neurons = ours.neurons["s"] - exact.neurons["s"]
    synapses = ours.synapses["theta"] - exact.synapses["theta"]
    return max(float(neurons.abs().max()), float(synapses.abs().max()))


class ToyModel(Computed):
    name = stored = "toy-model"
    title = "Four algorithms on one neuron and one synapse"
    place = 'Fig. "toy-model", appendix C'
    needs = "a second on one core, also quick"

    def compute(self, order: Order) -> dict[str, Any]:
        points = measured()
        return {
            "theta": THETA,
            "beta": BETA,
            "eta": ETA,
            "curves": [
                {
                    "algorithm": algorithm,
                    "quantity": quantity,
                    "points": points[algorithm][quantity].tolist(),
                    "formula": formula.tolist(),
                }
                for algorithm, formulas in closed_forms().items()
                for quantity, formula in formulas.items()
            ],
            "limit": [{"beta": beta, "distance": _distance_to_bptt(beta)} for beta in SHRINKING],
        }

    def rows(self, results: Results) -> tuple[Row, ...]:
        found = self.found(results)
        rows = []
        for name in ("first phase", *ALGORITHMS):
            off = [_deviation(c) for c in found.get("curves", ()) if c["algorithm"] == name]
            rows.append(
                Row(
                    name=f"{name}: largest deviation from its closed form",
                    paper="0",
                    ours=f"{max(off):.1e}" if off else None,
                    passed=max(off) <= TOLERANCE if off else None,
                    note=f"passes up to {TOLERANCE:g}, the rounding of float64 divided by β",
                    reading="the closed forms",
                    source=TOY_MODEL,
                )
            )
        far = [entry["distance"] for entry in found.get("limit", ())]
        falls = [a / b for a, b in pairwise(far)]
        rows.append(
            Row(
                name="C-EP against BPTT, with β a hundred times smaller and η = β²",
                paper="→ 0",
                ours=f"{far[0]:.1e} → {far[-1]:.1e}" if far else None,
                passed=all(fall >= 8 for fall in falls) if far else None,
                note="passes if a tenth of β leaves no more than an eighth of the distance",
                reading="the closed forms",
                source=TOY_MODEL,
            )
        )
        return tuple(rows)

    def draw(self, found: dict[str, Any]) -> tuple[Block, ...]:
        curves = {(c["algorithm"], c["quantity"]): c for c in found["curves"]}

        def pair(algorithm: str, quantity: str, color: int, steps: int = K + 1) -> list[Line]:
            curve = curves[algorithm, quantity]
            t = tuple(float(i) for i in range(len(curve["points"])))[:steps]
            line = Line(f"{algorithm}, formula", t, tuple(curve["formula"][:steps]), color=color)
            points = tuple(curve["points"][:steps])
            return [line, Line(f"{algorithm}, computed", t, points, "points", color)]

        def panel(title: str, label: str, lines: Sequence[list[Line]]) -> Panel:
            return Panel(title, "t", label, tuple(line for two in lines for line in two))

        def updates(quantity: str) -> list[list[Line]]:
            return [pair(name, quantity, color) for color, name in enumerate(ALGORITHMS)]

        values = f"θ = {found['theta']:g}, β = {found['beta']:g}, η = {found['eta']:g}"
        return (
            Text(
                "One neuron, one synapse: s′ = ½(s + θ), ℓ = ½s². Points are what the library's "
                f"rules do ({values}), lines are the formulas of appendix C. RBP and BPTT lie on "
                "each other; β pushes EP to one side of them, and η pushes C-EP to the other: each "
                "step shrinks Δ by half of 1 − 2β + η/(2β)."
            ),
            Chart(
                "toy-model-trajectories",
                f"Trajectories of the toy model, {values}.",
                (
                    panel("First phase", "s_t", [pair("first phase", "s", 4)]),
                    panel(
                        "Second phase, neuron", "s_t", [pair("C-EP", "s", 0), pair("EP", "s", 1)]
                    ),
                    panel("Second phase, synapse", "θ_t", [pair("C-EP", "θ", 0)]),
                ),
            ),
            Chart(
                "toy-model-updates",
                f"Updates Δ of C-EP and EP, and −∇ of RBP and BPTT, {values}.",
                (
                    panel("Neuron", "Δ_s(t), −∇_s(t)", updates("Δ_s")),
                    panel("Synapse", "Δ_θ(t), −∇_θ(t)", updates("Δ_θ")),
                ),
            ),
            Table(
                "The theorem: as β and η = β² shrink, C-EP comes to BPTT.",
                ("β", "η", "largest |Δ(t) + ∇(t)|"),
                tuple(
                    (f"{e['beta']:g}", f"{e['beta'] ** 2:g}", f"{e['distance']:.1e}")
                    for e in found["limit"]
                ),
            ),
        )


def _deviation(curve: dict[str, Any]) -> float:
    pairs = zip(curve["points"], curve["formula"], strict=True)
    return max(abs(float(a) - float(b)) for a, b in pairs)


ITEMS: tuple[Item, ...] = (ToyModel(),)

"""Four algorithms, one gradient (appendix A): BPTT, RBP, EP and C-EP on the same minibatch."""

from __future__ import annotations

import copy
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from eqprop import data
from eqprop.analysis import total_update
from eqprop.dynamics import relax
from eqprop.engines.descent import descend, resolve_rates
from eqprop.network import Network, layered
from eqprop.papers.continual_ep.sources import ALGORITHMS
from eqprop.peak import Peak
from eqprop.report.blocks import Block, Matrix, Table, Text
from eqprop.report.computed import Computed
from eqprop.report.item import Item, Order, Row
from eqprop.report.results import Results
from eqprop.rules import BPTT, EP, RBP, ContinualEP, Rule
from eqprop.runs import recipe as recipes
from eqprop.timesteps import RealTime
from eqprop.types import Gradients
from eqprop.updates import Descent

SAMPLES = 20
TINY = 1e-11  # η → 0: weights move by a negligible amount
SETTLED = 1e-9  # rounding error of float64 in a settled network
SAME = 1e-6  # relative difference of order η/β²
CLOSE = 0.01  # of order β
GRADIENTS = ("BPTT", "RBP", "EP", "C-EP, η → 0", "C-EP, η > 0")

# what an algorithm keeps between steps besides θ: (states, gradients of θ)
CARRIED: Mapping[str, Callable[[int], tuple[int, int]]] = {
    "BPTT": lambda K: (K + 1, 1),  # the last K states, and ∇_s; Σ ∇_θ
    "RBP": lambda K: (2, 1),  # s_*, and ∇_s; Σ ∇_θ
    "EP": lambda K: (2, 0),  # s_*, and s_t
    "C-EP": lambda K: (1, 0),  # s_t
}


@dataclass(frozen=True)
class Setting:
    """A network and the settings of its rules."""

    name: str
    layers: tuple[int, ...]
    ep: Mapping[str, Any]  # β, T and K, also for BPTT and RBP
    cep: Mapping[str, Any]  # β, T and K of C-EP in training
    rates: float | tuple[float, ...]  # η of C-EP
    exact: bool  # whether F = ∂Φ/∂s

    def network(self) -> Network:
        kind: dict[str, Any] = {"init": "fan_in", "dtype": torch.float64}
        if self.exact:
            kind["time"] = RealTime(0.5)
        return layered(*self.layers, **kind)

    def rules(self) -> dict[str, Rule]:
        T, K = self.ep["free_steps"], self.ep["nudged_steps"]
        return {
            "BPTT": BPTT(free_steps=T, backward_steps=K),
            "RBP": RBP(free_steps=T, backward_steps=K),
            "EP": EP(**self.ep),
            "C-EP": ContinualEP(**self.ep),
        }

    def gradients(self, x: Tensor, y: Tensor) -> dict[str, Gradients]:
        """Return the total gradient of each algorithm, by its name in GRADIENTS."""
        net, rules = self.network(), self.rules()
        totals = (
            *(next(rules[name].gradients(net, x, y)) for name in ("BPTT", "RBP", "EP")),
            total_update(net, rules["C-EP"], x, y, learning_rates=TINY),
            total_update(net, ContinualEP(**self.cep), x, y, learning_rates=self.rates),
        )
        return dict(zip(GRADIENTS, totals, strict=True))

    def costs(self, x: Tensor, y: Tensor, rounds: int) -> dict[str, dict[str, float]]:
        """Return the costs of one minibatch: median milliseconds and peak bytes."""
        net = self.network()
        rates = resolve_rates(net, self.rates)
        state = SAMPLES * sum(net.layer_sizes)
        weights = sum(p.numel() for p in net.parameters())
        seconds: dict[str, list[float]] = {name: [] for name in CARRIED}
        costs: dict[str, dict[str, float]] = {}
        for r in range(rounds + 1):  # interleaved: the speed of a machine drifts
            for name, rule in self.rules().items():
                own = copy.deepcopy(net)
                started = time.perf_counter()
                descend(rule.gradients(own, x, y), Descent(own, rates))
                if r > 0:
                    seconds[name].append(time.perf_counter() - started)
        for name, rule in self.rules().items():
            own = copy.deepcopy(net)
            with Peak() as peak:
                descend(rule.gradients(own, x, y), Descent(own, rates))
            states, gradients = CARRIED[name](rule.horizon)
            costs[name] = {
                "milliseconds": 1e3 * statistics.median(seconds[name]),
                "peak_bytes": peak.bytes,
                "states": states,
                "gradients": gradients,
                "carried_bytes": 8 * (states * state + gradients * weights),
            }
        return costs


def _flat(gradients: Gradients) -> Tensor:
    return torch.cat([gradients[name].flatten() for name in sorted(gradients)])


def _settings(quick: bool) -> tuple[Setting, ...]:
    settings = []
    for depth, count in (("1h", "one hidden layer"), ("2h", "two hidden layers")):
        ep, cep = recipes.load(f"ep-{depth}"), recipes.load(f"c-ep-{depth}")
        hidden = (64 if quick else 512,) * (len(ep.network.layers) - 2)
        layers = (784, *hidden, 10)
        discrete = Setting(
            f"discrete time, {count}", layers, _phases(ep), _phases(cep), _rates(cep), False
        )
        phases = {"beta": 0.01, "free_steps": 400, "nudged_steps": 80}
        real = Setting(f"real time, {count}", layers, phases, phases, 1.5e-5, True)
        settings += [discrete, real]
    return tuple(settings)


def _phases(recipe: recipes.Recipe) -> dict[str, Any]:
    rule = recipe.rule
    (member, *_) = recipe.members()
    steps = {"free_steps": rule.free_steps, "nudged_steps": rule.nudged_steps}
    return {"beta": member.beta, **steps}


def _rates(recipe: recipes.Recipe) -> tuple[float, ...]:
    (member, *_) = recipe.members()
    return member.learning_rates


def _rows(setting: Setting, entry: Mapping[str, Any] | None) -> list[Row]:
    def row(
        name: str,
        paper: str,
        value: Callable[[Mapping[str, Any]], float],
        low: float = 0.0,
        high: float = math.inf,
    ) -> Row:
        limits = f"passes from {low:g} on" if high == math.inf else f"passes up to {high:g}"
        ours = None if entry is None else value(entry)
        return Row(
            name=f"{setting.name}: {name}",
            paper=paper,
            ours=None if ours is None else f"{ours:.2g}",
            passed=None if ours is None else low <= ours <= high,
            note=limits,
            reading="the algorithms as they are written",
            source=ALGORITHMS,
        )

    def off_bptt(column: int) -> Callable[[Mapping[str, Any]], float]:
        return lambda entry: float(abs(1 - entry["cosines"][0][column]))

    def off_ep(entry: Mapping[str, Any]) -> float:
        return float(entry["cep_from_ep"])

    rows = [
        row("1 − cosine of BPTT and RBP", "0", off_bptt(1), high=SETTLED),
        row(f"C-EP at η = {TINY:g} against EP", "0 for η → 0", off_ep, high=SAME),
    ]
    if setting.exact:
        name = f"1 − cosine of BPTT and EP at β = {setting.ep['beta']:g}"
        return [*rows, row(name, "0 for β → 0", off_bptt(2), high=CLOSE)]
    return [*rows, row("time of C-EP over EP", "slower: θ moves at every step", _slowdown, low=1)]


def _slowdown(entry: Mapping[str, Any]) -> float:
    costs = entry["costs"]
    return float(costs["C-EP"]["milliseconds"] / costs["EP"]["milliseconds"])


class FourAlgorithms(Computed):
    name = stored = "four-algorithms"
    title = "Four algorithms, one gradient"
    place = "appendix A"
    needs = "a minute on one core; quick 10 s"

    def compute(self, order: Order) -> dict[str, Any]:
        train = data.load("mnist", order.data).train.shaped((784,))
        x, y = train.batch(torch.arange(SAMPLES), torch.float64)
        found = []
        for setting in _settings(order.quick):
            order.say(f"  {setting.name}")
            gradients = {name: _flat(g) for name, g in setting.gradients(x, y).items()}
            unit = torch.stack([g / g.norm() for g in gradients.values()])
            ep, tiny = gradients["EP"], gradients["C-EP, η → 0"]
            entry = {
                "name": setting.name,
                "layers": setting.layers,
                "exact": setting.exact,
                "ep": dict(setting.ep),
                "cep": dict(setting.cep),
                "rates": setting.rates,
                "residual": relax(setting.network(), x, setting.ep["free_steps"]).residual,
                "cosines": (unit @ unit.T).tolist(),
                "cep_from_ep": float((tiny - ep).norm() / ep.norm()),
            }
            if not setting.exact:
                entry["costs"] = setting.costs(x, y, rounds=3 if order.quick else 15)
            found.append(entry)
        return {"settings": found}

    def rows(self, results: Results) -> tuple[Row, ...]:
        found = {entry["name"]: entry for entry in self.found(results).get("settings", ())}
        return tuple(
            row
            for setting in _settings(quick=False)
            for row in _rows(setting, found.get(setting.name))
        )

    def draw(self, found: dict[str, Any]) -> tuple[Block, ...]:
        blocks: list[Block] = [
            Text(
                f"The first {SAMPLES} training images of MNIST, weights as drawn from ±1/√fan_in, "
                "float64. Cosine between the total gradients of all weights and "
                "biases, each over the same K steps. BPTT and RBP agree because the network has "
                "settled; C-EP at η → 0 is EP. In discrete time EP is not exactly BPTT, however "
                "small β: the paper's Φ ignores σ, and its update drops the factor σ′. In real "
                "time (ε = 0.5) F = ∂Φ/∂s, and all four are one gradient."
            )
        ]
        for entry in found["settings"]:
            ep, cep = entry["ep"], entry["cep"]
            blocks.append(
                Matrix(
                    f"Cosines, {entry['name']} ({'-'.join(map(str, entry['layers']))}): "
                    f"{_values(ep)}; the last row {_values(cep)}, η = {_list(entry['rates'])}. "
                    f"The free phase ended with residual {entry['residual']:.0e}.",
                    GRADIENTS,
                    GRADIENTS,
                    tuple(tuple(row) for row in entry["cosines"]),
                )
            )
            if "costs" in entry:
                blocks.append(_cost_table(entry))
        return tuple(blocks)


def _cost_table(entry: Mapping[str, Any]) -> Table:
    def cells(name: str, cost: Mapping[str, float]) -> tuple[str, ...]:
        states, gradients = int(cost["states"]), int(cost["gradients"])
        carried = f"{states} state{'s' * (states > 1)}" + " and one gradient" * gradients
        return (
            name,
            f"{cost['milliseconds']:.1f}",
            f"{carried}: {cost['carried_bytes'] / 2**20:.2f}",
            f"{cost['peak_bytes'] / 2**20:.1f}",
        )

    return Table(
        f"Cost of learning from one minibatch, {entry['name']}, with the reference rules. Time: "
        "median, first phase included. Carried: what the algorithm has to keep from step to step "
        "beside the weights, counted. Peak: tensors alive at once, measured; it is made of arrays "
        "of the size of the weights that the reference rules make in passing.",
        ("", "ms", "carried, MiB", "peak, MiB"),
        tuple(cells(name, cost) for name, cost in entry["costs"].items()),
    )


def _values(phases: Mapping[str, Any]) -> str:
    return f"T = {phases['free_steps']}, K = {phases['nudged_steps']}, β = {phases['beta']:g}"


def _list(rates: float | Sequence[float]) -> str:
    return f"{rates:g}" if isinstance(rates, float) else ", ".join(f"{r:g}" for r in rates)


ITEMS: tuple[Item, ...] = (FourAlgorithms(),)

"""The figures of appendix E.6 and Fig. "ep-to-cvf" (b): Δ(t) of a rule on top of −∇(t) of BPTT.

784-512-10, tanh, one MNIST sample; T, K, β, ε and η of Tab. "table-hyp-th". If text, released code
and its history differ, every reading is computed. The verdict is on the released command, which
drew the figure; in most figures it has the values of the table.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor

from eqprop import data
from eqprop.analysis import Tolerances, gddcheck, time_resolved
from eqprop.network import Network, layered
from eqprop.papers.continual_ep import sources
from eqprop.report.blocks import Block, Chart, Line, Panel, Table, Text
from eqprop.report.computed import Computed
from eqprop.report.item import Item, Order, Row
from eqprop.report.results import Results
from eqprop.report.source import Source
from eqprop.rules import BPTT, ContinualEP, ContinualVF, Rule
from eqprop.seeds import generator
from eqprop.timesteps import Discrete, RealTime

CURVES = 4  # per layer of neurons and per weight matrix
VISIBLE = 0.01  # share of the largest gradient below which a curve looks flat
LIMIT = Tolerances()
COINCIDE = f"relative error ≤ {LIMIT.relative_error:g} and angle ≤ {LIMIT.angle:g}°"
SPLIT = f"relative error > {LIMIT.relative_error:g}, and larger than in the panel before"

NAMES = {
    "neurons hidden": "neurons, hidden layer",
    "neurons output": "neurons, output layer",
    "synapses.0.weight": "weights, input → hidden",
    "synapses.0.bias": "bias, hidden layer",
    "synapses.1.weight": "weights, hidden → output",
    "synapses.1.bias": "bias, output layer",
    "synapses.1.backward_weight": "weights, output → hidden",
}


Chosen = dict[str, list[tuple[int, int]]]  # by layer or parameter; the same in every panel


@dataclass(frozen=True)
class Case:
    """One panel of a figure."""

    title: str
    tied: bool
    moving: bool  # η > 0


@dataclass(frozen=True)
class Reading:
    """One reading of the text, the table or the released command."""

    name: str
    source: Source | None  # None: our own
    beta: float
    eta: float
    angle: float = 0.0  # Ψ of untied weights
    init: str = "fan_in"
    bias: bool = True
    slope: str = "all"  # σ′ in real time
    update_slope: str = "none"  # σ′ in the update of C-VF in discrete time
    members: int | None = None  # several networks with one sample each: the worst counts
    drawn: bool = False

    def values(self) -> dict[str, Any]:
        """Return the settings that determine the numbers, and the name."""
        return {key: value for key, value in asdict(self).items() if key != "source"}


@dataclass(frozen=True)
class Experiment:
    """One file of results, for one or two figures."""

    name: str
    cases: tuple[Case, ...]
    readings: tuple[Reading, ...]
    judged: str  # name of the reading behind the published figure
    dt: float | None = None  # None: discrete time
    free_steps: int = 150
    nudged_steps: int = 10
    neurons: bool = True  # whether a figure shows neurons
    needs: str = "3 s on one core; quick 1 s"
    note: str = ""

    def compute(self, order: Order) -> dict[str, Any]:
        train = data.load("mnist", order.data).train.shaped((784,))
        hidden, T = (64, self.free_steps // 2) if order.quick else (512, self.free_steps)
        chosen: Chosen = {}
        readings = []
        for reading in self.readings:
            order.say(f"  {reading.name}")
            index = torch.tensor([0])
            if reading.members is not None:
                index = torch.arange(1, reading.members + 1)[:, None]  # one sample per member
            x, y = train.batch(index, torch.float64)
            panels = []
            for case in self.cases:
                net = self.network(case, reading, hidden)
                steps: dict[str, Any] = {"free_steps": T, "nudged_steps": self.nudged_steps}
                rule: Rule = (
                    ContinualEP(beta=reading.beta, **steps)
                    if case.tied
                    else ContinualVF(beta=reading.beta, update_slope=reading.update_slope, **steps)
                )
                eta = reading.eta if case.moving else None
                panel = {"title": case.title, **_numbers(net, rule, eta, x, y)}
                if reading.drawn:
                    panel["curves"] = self._curves(net, rule, eta, x, y, chosen)
                panels.append(panel)
            readings.append({**reading.values(), "panels": panels})
        return {"hidden": hidden, "free_steps": T, "readings": readings}

    def network(self, case: Case, reading: Reading, hidden: int) -> Network:
        return layered(
            784,
            hidden,
            10,
            tied=case.tied,
            angle=0.0 if case.tied else reading.angle,
            time=Discrete() if self.dt is None else RealTime(self.dt, reading.slope),
            activation="tanh",
            init=reading.init,
            bias=reading.bias,
            ensemble=() if reading.members is None else reading.members,
            seed=0 if reading.members is None else 1,
            dtype=torch.float64,
        )

    def _curves(
        self, net: Network, rule: Rule, eta: float | None, x: Tensor, y: Tensor, chosen: Chosen
    ) -> list[dict[str, Any]]:
        bptt = BPTT(free_steps=rule.free_steps, backward_steps=rule.horizon)
        exact = time_resolved(net, bptt, x, y)
        ours = time_resolved(net, rule, x, y, learning_rates=eta)
        neurons = _pick("neurons ", ours.neurons, exact.neurons, chosen) if self.neurons else ()
        return [*neurons, *_pick("", ours.synapses, exact.synapses, chosen)]


def _numbers(net: Network, rule: Rule, eta: float | None, x: Tensor, y: Tensor) -> dict[str, Any]:
    report = gddcheck(net, rule, x, y, learning_rates=eta)
    return {
        "residual": _short(report.residual),
        "rows": [
            {
                "name": NAMES[row.name],
                "relative_error": _short(row.relative_error),
                "angle": _short(row.angle),
                "signs": _short(row.sign_agreement),
            }
            for row in report.rows
        ],
    }


def _pick(
    prefix: str, ours: dict[str, Tensor], exact: dict[str, Tensor], chosen: Chosen
) -> Iterator[dict[str, Any]]:
    """Yield Δ(t) and −∇(t) of the chosen neurons or synapses, downhill as in the paper."""
    for name, gradient in exact.items():
        if name.endswith("bias"):
            continue
        if name not in chosen:
            chosen[name] = _choose(gradient, generator(0, f"curves of {name}"))
        for pre, post in chosen[name]:
            yield {
                "group": NAMES[prefix + name],
                "which": f"neuron {post}" if prefix else f"synapse {pre} → {post}",
                "update": [_short(v) for v in (-ours[name][:, pre, post]).tolist()],
                "gradient": [_short(v) for v in (-gradient[:, pre, post]).tolist()],
            }


def _choose(gradient: Tensor, source: torch.Generator) -> list[tuple[int, int]]:
    """Choose indices of the last two axes: (sample, neuron), or (pre, post) of a synapse."""
    size = gradient.abs().amax(0)
    visible = (size > VISIBLE * size.max()).nonzero()
    order = torch.randperm(len(visible), generator=source)
    return sorted((pre, post) for pre, post in visible[order[:CURVES]].tolist())


def _short(value: float) -> float:
    return float(f"{value:.5g}")


@dataclass(frozen=True)
class Verdict:
    """The visual impression of the panels of one reading, as numbers."""

    errors: tuple[float, ...]  # per panel: the largest of any layer or parameter
    angles: tuple[float, ...]

    @property
    def coincide(self) -> bool:
        """Whether the curves of the first panel coincide, where the theorem holds best."""
        return self.errors[0] <= LIMIT.relative_error and self.angles[0] <= LIMIT.angle

    def splits(self, panel: int) -> bool:
        """Return whether the curves of a panel are apart, and further than in the panel before."""
        return self.errors[panel] > max(LIMIT.relative_error, self.errors[panel - 1])

    def as_claimed(self, panel: int) -> bool:
        return self.splits(panel) if panel else self.coincide

    @property
    def as_published(self) -> bool:
        return all(self.as_claimed(panel) for panel in range(len(self.errors)))


@dataclass(frozen=True)
class Figure(Computed):
    name: str
    title: str
    place: str
    part: str  # "neurons", or "synapses": weights and biases
    experiment: Experiment
    claims: tuple[str, ...]  # the paper's claim per panel
    needs: str = field(init=False)
    stored: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "needs", self.experiment.needs)
        object.__setattr__(self, "stored", self.experiment.name)

    def compute(self, order: Order) -> dict[str, Any]:
        return self.experiment.compute(order)

    def _rows_of(self, panel: dict[str, Any]) -> list[dict[str, Any]]:
        return [r for r in panel["rows"] if r["name"].startswith("neurons") == self._neurons]

    @property
    def _neurons(self) -> bool:
        return self.part == "neurons"

    def verdict(self, reading: dict[str, Any]) -> Verdict:
        panels = [self._rows_of(panel) for panel in reading["panels"]]
        return Verdict(
            errors=tuple(max(row["relative_error"] for row in panel) for panel in panels),
            angles=tuple(max(row["angle"] for row in panel) for panel in panels),
        )

    def rows(self, results: Results) -> tuple[Row, ...]:
        """Return the rows of the reading behind the figure; the other readings are notes."""
        found = {r["name"]: self.verdict(r) for r in self.found(results).get("readings", ())}
        judged, *others = self._drawn()
        verdict = found.get(judged.name)
        rows = []
        for i, (case, claim) in enumerate(zip(self.experiment.cases, self.claims, strict=True)):
            notes = [f"passes at {SPLIT if i else COINCIDE}"]
            notes += [f"{it.name}: {_seen(found[it.name], i)}" for it in others if it.name in found]
            eta = f"{judged.eta:g}" if case.moving else "0"
            rows.append(
                Row(
                    name=f"{case.title} (β = {judged.beta:g}, η = {eta})",
                    paper=claim,
                    ours=None if verdict is None else _seen(verdict, i),
                    passed=None if verdict is None else verdict.as_claimed(i),
                    note="; ".join(notes),
                    reading=judged.name,
                    source=judged.source,
                )
            )
        return tuple(rows)

    def _drawn(self) -> list[Reading]:
        """Return the reading with the verdict, then the others that are drawn."""
        drawn = [reading for reading in self.experiment.readings if reading.drawn]
        return sorted(drawn, key=lambda reading: reading.name != self.experiment.judged)

    def draw(self, found: dict[str, Any]) -> tuple[Block, ...]:
        blocks: list[Block] = [
            Text(
                f"784-{found['hidden']}-10, tanh, T = {found['free_steps']}, "
                f"K = {self.experiment.nudged_steps}, the first training image of MNIST. Dashed: "
                f"the update Δ(t) of the local rule. Continuous: −∇(t) of BPTT. A colour is one "
                f"randomly chosen {self.part.removesuffix('s')}. Judged by relative error and "
                "angle: equal signs are shown, but they count every entry alike, also those too "
                "small to be seen."
            )
        ]
        by_name = {reading["name"]: reading for reading in found["readings"]}
        for reading in self._drawn():
            if reading.name in by_name:
                stored = by_name[reading.name]
                blocks += [*self._charts(stored), self._numbers(stored)]
        blocks += [self._readings(found["readings"]), self._summary(found["readings"])]
        return (*blocks, Text(self.experiment.note)) if self.experiment.note else tuple(blocks)

    def _charts(self, reading: dict[str, Any]) -> Iterator[Chart]:
        label = "s" if self._neurons else "θ"
        groups = dict.fromkeys(c["group"] for p in reading["panels"] for c in p["curves"])
        for group in groups:
            if group.startswith("neurons") != self._neurons:
                continue
            panels = []
            for panel in reading["panels"]:
                curves = [c for c in panel["curves"] if c["group"] == group]
                lines = [line for i, curve in enumerate(curves) for line in _pair(curve, i)]
                if lines:
                    y_label = f"Δ_{label}(t), −∇_{label}(t)"
                    panels.append(Panel(panel["title"], "t", y_label, tuple(lines)))
            place = "-".join(word for word in group.split()[1:] if word != "→")
            number = [each.name for each in self._drawn()].index(reading["name"])
            yield Chart(
                f"{self.name}-{place}" + (f"-{number + 1}" if number else ""),
                f"{group[0].upper()}{group[1:]}: {_settings(reading)} ({reading['name']}).",
                tuple(panels),
            )

    def _numbers(self, reading: dict[str, Any]) -> Table:
        panels = {p["title"]: {r["name"]: r for r in self._rows_of(p)} for p in reading["panels"]}
        names = dict.fromkeys(name for rows in panels.values() for name in rows)

        def cell(row: dict[str, Any] | None) -> str:
            if row is None:
                return ""
            return f"{row['relative_error']:.2g}, {row['angle']:.1f}°, {100 * row['signs']:.1f} %"

        return Table(
            f"Relative error over all t, angle between the totals, share of equal signs; "
            f"{_settings(reading)} ({reading['name']}).",
            ("", *panels),
            tuple((name, *(cell(rows.get(name)) for rows in panels.values())) for name in names),
        )

    def _readings(self, readings: Sequence[dict[str, Any]]) -> Table:
        table = []
        for reading in readings:
            verdict = self.verdict(reading)
            errors = (f"{error:.2g}" for error in verdict.errors)
            published = "yes" if verdict.as_published else "no"
            table.append((reading["name"], _settings(reading), *errors, published))
        return Table(
            "Every reading: largest relative error of any layer or parameter in each panel. As "
            f"published: the first panel coincides ({COINCIDE}), the others split ({SPLIT}).",
            ("reading", "", *(case.title for case in self.experiment.cases), "as published"),
            tuple(table),
        )

    def _summary(self, readings: Sequence[dict[str, Any]]) -> Text:
        alike = [r["name"] for r in readings if self.verdict(r).as_published]
        unlike = [r["name"] for r in readings if not self.verdict(r).as_published]
        text = f"Looks as published: {'; '.join(alike) or 'none'}."
        return Text(text + (f" Does not: {'; '.join(unlike)}." if unlike else ""))


def _pair(curve: dict[str, Any], color: int) -> tuple[Line, Line]:
    t = tuple(float(i) for i in range(len(curve["update"])))
    return (
        Line(f"{curve['which']}, −∇", t, tuple(curve["gradient"]), "solid", color),
        Line(f"{curve['which']}, Δ", t, tuple(curve["update"]), "dashed", color),
    )


def _seen(verdict: Verdict, panel: int) -> str:
    return f"relative error {verdict.errors[panel]:.2g}, angle {verdict.angles[panel]:.1f}°"


def _settings(reading: dict[str, Any]) -> str:
    angle = f", Ψ = {reading['angle']:g}°" if reading["angle"] else ""
    return f"β = {reading['beta']:g}, η = {reading['eta']:g}{angle}"


TABLE = "the paper's table"
COMMAND = "the released command"
OTHERS = "five other networks and samples, the worst"
OWN = "σ′ of the update at the synapse's own drive"
FULL = "σ′ of the update at the whole drive"


def _variants(beta: float, eta: float, real_time: bool, angle: float = 0.0) -> tuple[Reading, ...]:
    """Return the table's values with other readings of the model, and on other samples."""
    slopes = (
        Reading("σ′ on the hidden layer only", sources.COMMANDS, beta, eta, angle, slope="hidden"),
        Reading("no σ′, as printed", sources.EQUATIONS, beta, eta, angle, slope="none"),
    )
    return (
        Reading("Glorot, no biases", sources.GLOROT, beta, eta, angle, init="glorot", bias=False),
        *(slopes if real_time else ()),
        Reading(OTHERS, None, beta, eta, angle, members=5),
    )


SYMMETRIC = (Case("C-EP, η = 0", True, False), Case("C-EP, η > 0", True, True))
ASYMMETRIC = (Case("C-VF, η = 0", False, False), Case("C-VF, η > 0", False, True))
REAL_TIME: dict[str, Any] = {
    "dt": 0.08,
    "free_steps": 800,
    "nudged_steps": 80,
    "needs": "half a minute on one core; quick 10 s",
}

EXPERIMENTS = {
    "ep-cep-disc": Experiment(
        "gdd-discrete-symmetric",
        SYMMETRIC,
        (
            Reading(TABLE, sources.GDD_TABLE, 0.01, 2e-5, drawn=True),
            *_variants(0.01, 2e-5, False),
        ),
        judged=TABLE,
    ),
    "ep-cep": Experiment(
        "gdd-real-time-symmetric",
        SYMMETRIC,
        (
            Reading(TABLE, sources.GDD_TABLE, 0.05, 2e-5, drawn=True),
            Reading(COMMAND, sources.COMMANDS, 0.005, 2e-5, drawn=True),
            Reading(f"{COMMAND} and its σ′", sources.COMMANDS, 0.005, 2e-5, slope="hidden"),
            *_variants(0.05, 2e-5, True),
        ),
        judged=COMMAND,
        note="Why the table's β = 0.05 shows no split: β and η push to opposite sides, as in the "
        "factor 1 − 2β + η/(2β) of the toy model, and at this β the second is the smaller one. It "
        "takes back a part of what β alone does, and the right panel is closer than the left.",
        **REAL_TIME,
    ),
    "vf-cvf-disc": Experiment(
        "gdd-discrete-asymmetric",
        ASYMMETRIC,
        (
            Reading(TABLE, sources.GDD_TABLE, 0.01, 2e-5, drawn=True),
            Reading(OWN, sources.OWN_SLOPE, 0.01, 2e-5, update_slope="own"),
            Reading(FULL, sources.THEOREM, 0.01, 2e-5, update_slope="full"),
            *_variants(0.01, 2e-5, False),
        ),
        judged=TABLE,
    ),
    "vf-cvf": Experiment(
        "gdd-real-time-asymmetric",
        ASYMMETRIC,
        (
            Reading(TABLE, sources.GDD_TABLE, 0.005, 2e-5, drawn=True),
            *_variants(0.005, 2e-5, True),
        ),
        judged=TABLE,
        **REAL_TIME,
    ),
}
AT_45 = f"{COMMAND}, at the 45° of its heading"
THREE_VERSIONS = Experiment(
    "ep-to-cvf-b",
    (
        Case("EP", True, False),
        Case("C-EP", True, True),
        Case("VF, untied", False, False),
        Case("C-VF, untied", False, True),
    ),
    (
        Reading(TABLE, sources.GDD_TABLE, 0.01, 1.5e-5, 45.0, drawn=True),
        Reading(AT_45, sources.COMMANDS, 0.005, 2e-5, 45.0, drawn=True),
        Reading(f"{COMMAND}, which sets no angle", sources.COMMANDS, 0.005, 2e-5),
        *_variants(0.01, 1.5e-5, True, 45.0),
    ),
    judged=AT_45,
    neurons=False,
    **(REAL_TIME | {"needs": "a minute on one core; quick 15 s"}),
)


def _figure(label: str, part: str) -> Figure:
    experiment = EXPERIMENTS[label]
    time = "Real time" if experiment.dt else "Discrete time"
    weights = "symmetric" if experiment.cases[0].tied else "asymmetric"
    return Figure(
        name=f"{experiment.name}-{part}",
        title=f"{time}, {weights} weights: {part}",
        place=f'Fig. "gdu:{label}-{"s" if part == "neurons" else "w"}", appendix E.6',
        part=part,
        experiment=experiment,
        claims=("the curves coincide", "they split apart"),
    )


ITEMS: tuple[Item, ...] = (
    Figure(
        name="ep-to-cvf-b",
        title="From EP to C-VF: synapses",
        place='Fig. "ep-to-cvf" (b)',
        part="synapses",
        experiment=THREE_VERSIONS,
        claims=("the curves coincide", "they split apart", "even more so", "even more so"),
    ),
    *(_figure(label, part) for label in EXPERIMENTS for part in ("neurons", "synapses")),
)

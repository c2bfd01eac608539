"""The training runs behind the paper's tables and curves, and their outcomes.

A run is a recipe, in a reading that a document supports, or a *variant* of a recipe: the same with
a named change. Several items share a run.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from eqprop import data as datasets
from eqprop import runs
from eqprop.measured import Measured
from eqprop.papers.continual_ep.published import ANGLES
from eqprop.papers.continual_ep.sources import (
    COMMANDS,
    EQUATIONS,
    GLOROT,
    OLDER_COMMAND,
    OWN_SLOPE,
    RANDOM_SIGN,
    THEOREM,
)
from eqprop.report.item import Order, SharedRun
from eqprop.report.results import Completeness, Results, weakest
from eqprop.report.source import Source
from eqprop.runs import Interrupted, UserError, figures
from eqprop.runs import recipe as recipes
from eqprop.runs.folder import RunFolder
from eqprop.runs.parts import Member
from eqprop.runs.recipe import Recipe

QUICK_ANGLES = (0.0, 90.0, 180.0)
QUICK_SAMPLES = {1: (20000, 5000), 2: (1000, 500)}  # by hidden layers: train, test


@dataclass(frozen=True)
class TrainingRun(SharedRun):
    name: str  # name of its folder
    recipe: str  # the recipe that it runs or varies
    reading: str  # description of the reading
    source: Source | None  # None: found by trial
    overrides: Mapping[str, Any] = field(default_factory=dict, hash=False)
    # angles to train together, one part per folder, since all together take too long
    parts: tuple[tuple[float, ...], ...] = ()

    @property
    def label(self) -> str:
        """The short name of a variant, such as "in turn"; empty for the recipe itself."""
        return self.name.removeprefix(self.recipe).removeprefix("-").replace("-", " ")

    @property
    def pieces(self) -> tuple[TrainingRun, ...]:
        return tuple(
            replace(
                self,
                name=f"{self.name}-part-{k}",
                overrides={**self.overrides, "angle": angles},
                parts=(),
            )
            for k, angles in enumerate(self.parts, 1)
        )

    @functools.cache  # noqa: B019 (there are some dozens, which live as long as the program)
    def resolved(self, quick: bool) -> Recipe:
        recipe = recipes.load(self.recipe, {**self.overrides, "name": self.name})
        if not quick:
            return recipe
        train, test = QUICK_SAMPLES[len(recipe.network.layers) - 2]
        small = {"epochs": 2, "seeds": 2, "train_samples": train, "test_samples": test}
        angles = {"angle": QUICK_ANGLES} if isinstance(recipe.network.angle, tuple) else {}
        return recipes.changed(recipe, small | angles)

    @property
    def note(self) -> str:
        return self.reading if self.label else self.resolved(quick=False).description

    def completeness(self, results: Results) -> Completeness:
        if outcome(self, results, quick=False):
            return "full"
        return "quick" if outcome(self, results, quick=True) else "missing"

    def progress(self, results: Results) -> tuple[int, int]:
        file = results.run_folder(self.name, quick=False).path / "metrics.jsonl"
        if self.parts and not file.is_file():
            done, of = zip(*(piece.progress(results) for piece in self.pieces), strict=True)
            return sum(done), sum(of)
        lines = file.read_bytes().count(b"\n") if file.is_file() else 0
        return lines, self.resolved(quick=False).epochs

    def run(self, order: Order) -> None:
        """Train what is missing; resume a stopped run."""
        folder = order.results.run_folder(self.name, order.quick)
        there = folder.begun
        if self.parts and not order.quick and not there:
            for piece in self.pieces:
                piece.run(order)
            return
        recipe = self.resolved(order.quick)
        differing = _differences(folder.recipe(), recipe) if there else []
        if differing:
            raise UserError(
                f"{folder.path}: holds a run with another recipe (it differs in "
                f"{', '.join(differing)}): move it away, or choose another --results"
            )
        if outcome(self, order.results, order.quick) is not None:
            return
        folder.check(recipe, resume=there)
        order.say(
            f"{self.name}: {len(recipe.members())} networks, {recipe.epochs} epochs, "
            f"in {folder.path}"
        )
        data = datasets.load(recipe.data.name, order.data) if order.data else None
        how: dict[str, Any] = {"device": order.device, "threads": order.threads}
        try:
            done = runs.train(recipe, data, folder.path, **how, resume=there)
        except Interrupted as stopped:
            place = f"epoch {stopped.epoch}, {stopped.minibatch} minibatches"
            order.say(f"{self.name}: stopped in {place}, saved")
            raise
        if done.summary["frozen"]:
            order.say(f"{self.name}: {len(done.summary['frozen'])} networks became non-finite")


def _recipe(name: str, reading: str = "as released", source: Source = COMMANDS) -> TrainingRun:
    return TrainingRun(name, name, reading, source)


def _vary(
    run: TrainingRun, label: str, reading: str, source: Source | None, **overrides: Any
) -> TrainingRun:
    """Return a variant of `run`; the reading of a variant of a variant names both changes."""
    return replace(
        run,
        name=f"{run.recipe}-{label}",
        reading=f"{run.label}, but {reading}" if run.label else reading,
        source=source,
        overrides={**run.overrides, **overrides},
    )


def _glorot(run: TrainingRun) -> TrainingRun:
    return _vary(run, "glorot", "Glorot weights", GLOROT, init="glorot")


def _no_bias(run: TrainingRun) -> TrainingRun:
    return _vary(run, "no-bias", "no biases", EQUATIONS, bias=False, frozen=())


def _in_turn(run: TrainingRun) -> TrainingRun:
    return _vary(run, "in-turn", "layers updated in turn in the free phase", None, in_turn=True)


def _random_sign(run: TrainingRun) -> TrainingRun:
    return _vary(run, "random-sign", "random sign of β", None, random_sign=True)


def _hard_sigmoid(run: TrainingRun) -> TrainingRun:
    return _vary(run, "hard-sigmoid", "hard sigmoid", None, activation="hard_sigmoid")


def _untied(name: str, parts: tuple[tuple[float, ...], ...] = ()) -> TrainingRun:
    reading = "σ′ at the synapse's own drive in the update"
    return TrainingRun(name, name, reading, OWN_SLOPE, {"angle": ANGLES}, parts)


def _full(run: TrainingRun) -> TrainingRun:
    reading = "σ′ at the whole drive of the layer in the update"
    return _vary(run, "full", reading, THEOREM, update_slope="full")


def _released(run: TrainingRun) -> TrainingRun:
    return _vary(run, "as-released", "no σ′ in the update", COMMANDS, update_slope="none")


def _older_command(run: TrainingRun) -> TrainingRun:
    reading = "β = 0.4 and rates (0.0125, 0.0021, 0.00021)"
    rates = (0.0125, 0.0021, 0.00021)
    return _vary(run, "older-command", reading, OLDER_COMMAND, beta=0.4, learning_rates=rates)


_EP_1H, _EP_2H, _C_EP_2H = map(_recipe, ("ep-1h", "ep-2h", "c-ep-2h"))
_C_EP_1H = _recipe("c-ep-1h", "random sign of β, the rest as released", RANDOM_SIGN)
_C_EP_1H_FIXED = _recipe("c-ep-1h-fixed-beta")
_RESCALED_1H, _RESCALED_2H = map(_recipe, ("rescaled-c-ep-1h", "rescaled-c-ep-2h"))
_C_VF_1H = _untied("c-vf-1h")
_C_VF_2H = _untied("c-vf-2h", parts=tuple(ANGLES[k : k + 3] for k in (0, 3, 6)))
_MISSED_FIRST = ((0.0, 67.5, 90.0), (22.5, 135.0, 157.5), (45.0, 112.5, 180.0))
_SPREAD = (
    (0.0, 90.0, 180.0),
    (45.0, 135.0, 157.5),
    (22.5, 67.5, 112.5),
)  # each part shows the trend

RUNS = {
    run.name: run
    for run in (
        _EP_1H,
        *(vary(_EP_1H) for vary in (_glorot, _no_bias)),
        _EP_2H,
        *(vary(_EP_2H) for vary in (_in_turn, _random_sign, _hard_sigmoid, _glorot, _no_bias)),
        _C_EP_1H_FIXED,
        _in_turn(_C_EP_1H_FIXED),
        _C_EP_1H,
        *(vary(_C_EP_1H) for vary in (_glorot, _no_bias)),
        _C_EP_2H,
        _RESCALED_1H,
        _RESCALED_2H,
        *(vary(_RESCALED_2H) for vary in (_in_turn, _random_sign, _hard_sigmoid)),
        _C_VF_1H,
        _released(_C_VF_1H),
        *(vary(_released(_C_VF_1H)) for vary in (_in_turn, _no_bias)),
        _full(_C_VF_1H),
        _C_VF_2H,
        replace(_older_command(_C_VF_2H), parts=_MISSED_FIRST),
        _released(_C_VF_2H),
        replace(_in_turn(_released(_C_VF_2H)), parts=_SPREAD),
        replace(_full(_C_VF_2H), parts=_SPREAD),
    )
}
BY_NAME = RUNS | {piece.name: piece for run in RUNS.values() for piece in run.pieces}


def variants(recipe: str) -> tuple[TrainingRun, ...]:
    return tuple(run for run in RUNS.values() if run.recipe == recipe and run.label)


@dataclass(frozen=True)
class Errors:
    """Errors in % of the networks of one setting, after the last epoch."""

    test: Measured
    last_ten: Measured  # test error, mean of the last ten epochs
    train: Measured  # counted during the epoch
    non_finite: int  # number of networks that became non-finite

    def __str__(self) -> str:
        return f"{self.test} ({self.train.mean:.2f})"


@dataclass(frozen=True, eq=False)
class Outcome:
    """A complete run."""

    run: TrainingRun
    quick: bool
    recipe: Recipe
    recorded: Mapping[str, Tensor]  # train_error and test_error, [epochs, networks]
    summary: Mapping[str, Any]

    @functools.cached_property
    def members(self) -> tuple[Member, ...]:
        """The networks of the run."""
        return self.recipe.members()

    def curves(self, key: str, angle: float | None = None) -> Tensor:
        """Return an error over the epochs, [epochs, networks], of the networks with this initial Ψ.

        Once a network is non-finite it has no output, and counts as guessing.
        """
        chosen = [i for i, m in enumerate(self.members) if angle is None or m.angle == angle]
        guessing = 100 * (1 - 1 / self.recipe.network.classes)
        curves = torch.full((self.recipe.epochs, len(chosen)), guessing, dtype=torch.float64)
        recorded = self.recorded[key][:, chosen]
        curves[: len(recorded)] = recorded.nan_to_num(guessing)
        return curves

    def errors(self, angle: float | None = None) -> Errors | None:
        """Return the errors; None if no network of the run has this angle."""
        test, train = self.curves("test_error", angle), self.curves("train_error", angle)
        if not test.shape[1]:
            return None
        gone = [self.members[entry["member"]] for entry in self.summary["frozen"]]
        return Errors(
            test=Measured.of(test[-1].tolist()),
            last_ten=Measured.of(test[-10:].mean(0).tolist()),
            train=Measured.of(train[-1].tolist()),
            non_finite=sum(angle is None or member.angle == angle for member in gone),
        )


def outcome(run: TrainingRun, results: Results, quick: bool) -> Outcome | None:
    """Return the outcome if the run exists, has this recipe and is complete; else None."""
    whole = _whole(run, results, quick)
    if whole is not None or quick or not run.parts:
        return whole
    parts = _parts(run, results)
    return _joined(run, parts) if len(parts) == len(run.parts) else None


def _parts(run: TrainingRun, results: Results) -> tuple[Outcome, ...]:
    """Return the outcomes of the complete parts."""
    found = (_whole(piece, results, quick=False) for piece in run.pieces)
    return tuple(it for it in found if it is not None)


@functools.lru_cache(maxsize=100)
def _joined(run: TrainingRun, parts: tuple[Outcome, ...]) -> Outcome:
    """Join the networks of several parts into one run."""
    epochs = max(len(part.recorded["test_error"]) for part in parts)
    recorded = {
        key: torch.cat([_padded(part.recorded[key], epochs) for part in parts], dim=1)
        for key in ("train_error", "test_error")
    }
    gone, before = [], 0
    for part in parts:
        gone += [{**it, "member": it["member"] + before} for it in part.summary["frozen"]]
        before += len(part.members)
    angles = tuple(member.angle for part in parts for member in part.members)
    together = {"name": run.name, "angle": tuple(dict.fromkeys(angles))}
    recipe = recipes.changed(parts[0].recipe, together)
    summary = {
        **parts[0].summary,
        "frozen": gone,
        "wall_seconds": sum(part.summary["wall_seconds"] for part in parts),
    }
    return Outcome(run, parts[0].quick, recipe, recorded, summary)


def _padded(curves: Tensor, epochs: int) -> Tensor:
    """Extend curves to `epochs`: a part ends early if all its networks become non-finite."""
    missing = curves.new_full((epochs - len(curves), curves.shape[1]), torch.nan)
    return torch.cat([curves, missing])


def _whole(run: TrainingRun, results: Results, quick: bool) -> Outcome | None:
    folder = results.run_folder(run.name, quick)
    files = [folder.path / name for name in ("recipe.toml", "metrics.jsonl", "summary.json")]
    if not all(file.is_file() for file in files):
        return None
    return _read(run, folder.path, quick, tuple(file.stat().st_mtime_ns for file in files))


@functools.lru_cache(maxsize=100)
def _read(run: TrainingRun, path: Path, quick: bool, when: tuple[int, ...]) -> Outcome | None:
    """Read a run, cached by the times of its files (`when`): many items read the same runs."""
    folder, recipe = RunFolder(path), run.resolved(quick)
    summary = folder.summary()
    if not summary["complete"] or _differences(folder.recipe(), recipe):
        return None
    metrics = folder.metrics()
    recorded = {key: figures.series(metrics, key) for key in ("train_error", "test_error")}
    return Outcome(run, quick, recipe, recorded, summary)


def best(run: TrainingRun, results: Results) -> Outcome | None:
    """Return the full outcome, else its complete parts, else the quick one."""
    full = outcome(run, results, quick=False)
    if full is None and (parts := _parts(run, results)):
        return _joined(run, parts)
    return full or outcome(run, results, quick=True)


def completeness(names: Iterable[str], results: Results) -> Completeness:
    return weakest(BY_NAME[name].completeness(results) for name in names)


def _differences(there: Recipe, wanted: Recipe) -> list[str]:
    """Return the fields that differ. Fewer epochs do not count: such a run can continue."""
    longer = ["epochs"] if there.epochs > wanted.epochs else []
    return there.differences(wanted) + longer

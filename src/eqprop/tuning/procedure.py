"""The procedure of appendix F.1, "Hyperparameter search for EP".

    1 T              steps of the free phase until it converges        `settling`
    2 K              steps until ∇ has decayed                         `decay`
    3 β              proportion of synapses with equal signs           `signs`
    4 ratio of η     inverse to the gradients of the layers            `ratio`
    5 scale of η     smallest train error of short runs                `adjusting`
    6 β              smallest train error of short runs                `adjusting`
    7 T, K           decreased until the train error rises             `shortening`

Steps 1 to 4 use one minibatch of training samples, in float64, on untrained networks. No step uses
a test sample.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from dataclasses import replace as replaced
from pathlib import Path
from typing import Any

import torch

from eqprop.data import Dataset
from eqprop.measured import Measured
from eqprop.report import svg
from eqprop.rules import Rule
from eqprop.runs import Interrupted, Recipe, UserError, machine
from eqprop.runs import recipe as recipes
from eqprop.runs.files import as_json, read_json, write_whole
from eqprop.runs.training import fitting
from eqprop.seeds import generator
from eqprop.tuning.adjusting import adjust_beta, choose_scale
from eqprop.tuning.choices import Choices
from eqprop.tuning.decay import choose_nudged_steps
from eqprop.tuning.given import TO_FIND
from eqprop.tuning.ratio import choose_ratio
from eqprop.tuning.settling import choose_free_steps
from eqprop.tuning.shortening import shorten
from eqprop.tuning.signs import choose_beta
from eqprop.tuning.step import Step
from eqprop.tuning.trials import Trials, training_only

Say = Callable[[str], None]


@dataclass(frozen=True)
class Tuned:
    """Result of `tune`.

    Args:
        recipe: the tuned recipe.
        record: all measurements, the content of tune.json.
        folder: the folder of recipe, record and figures.
    """

    recipe: Recipe
    record: dict[str, Any]
    folder: Path


def tune(
    recipe: Recipe,
    data: Dataset,
    folder: Path,
    choices: Choices = Choices(),  # noqa: B008 (frozen)
    *,
    device: str = "cpu",
    threads: int | None = None,
    say: Say = print,
) -> Tuned:
    """Find T, K, β and learning rates for a recipe; write tuned.toml, tune.json and the figures.

    It resumes a tuning that was stopped, from the short runs in the folder.

    Args:
        recipe: from `given.load`. Its T, K, β and learning rates are ignored.
        data: the recipe's data set. Its test samples are not used.
        folder: the output folder.
        choices: settings of the procedure. Default: `Choices()`.
        device: device of the short runs, "cpu" or "cuda". Default "cpu".
        threads: number of CPU threads of the short runs. Default None: one per core.
        say: takes each line of output. Default: print.
    """
    data = training_only(fitting(data, recipe))
    record: dict[str, Any] = {
        "recipe": _recorded(recipe),
        "data": data.train.fingerprint,
        "choices": choices.values(),
        **machine.describe(device, threads or os.cpu_count()),
        "steps": [],
    }
    started = time.perf_counter() - _seconds_before(folder, record)
    folder.mkdir(parents=True, exist_ok=True)
    trials = Trials(
        recipe=recipe,
        data=data,
        folder=folder / "trials",
        epochs=choices.epochs,
        seeds=choices.seeds,
        say=say,
        device=device,
        threads=threads,
    )
    found: dict[str, Any] = {}

    def keep() -> None:
        record["seconds"] = round(time.perf_counter() - started, 1)
        write_whole(folder / "tune.json", as_json(record))

    try:
        for number, step in enumerate(_steps(recipe, data, trials, choices), start=1):
            found |= step.chosen
            for line in step.lines:
                say(f"{number}. {line}")
            record["steps"].append(
                {
                    "step": step.chart.name,
                    "lines": list(step.lines),
                    "chosen": step.chosen,
                    "measured": step.measured,
                }
            )
            keep()
            write_whole(folder / f"{step.chart.name}.svg", svg.figure(step.chart).encode())
    except Interrupted:
        keep()
        raise
    tuned = recipes.changed(
        recipe,
        {
            **found,
            "name": f"{recipe.name}-tuned",
            "description": f"{recipe.description or recipe.name}, tuned as in appendix F.1",
        },
    )
    record["tuned"] = found
    keep()
    head = (
        "# Found by `eqprop tune`: tune.json has what it saw.\n# Run it: eqprop train tuned.toml\n"
    )
    write_whole(folder / "tuned.toml", (head + tuned.to_toml()).encode())
    return Tuned(tuned, record, folder)


def _recorded(recipe: Recipe) -> dict[str, Any]:
    """Return the values of the recipe without the fields to find."""
    values = {key: value for key, value in recipe.values().items() if key not in TO_FIND}
    return {key: list(it) if isinstance(it, tuple) else it for key, it in values.items()}


def _seconds_before(folder: Path, record: Mapping[str, Any]) -> float:
    """Return the seconds of the tuning in a folder so far; raise if it holds something else."""
    file = folder / "tune.json"
    if not file.is_file():
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise UserError(f"{folder}: is not empty and holds no tuning: choose another --out")
        return 0.0
    known = read_json(file)
    if not isinstance(known, dict):
        raise UserError(f"{file}: damaged: choose another --out")
    for key in ("recipe", "data", "choices"):
        if known.get(key) != record[key]:
            raise UserError(f"{folder}: holds a tuning with other {key}: choose another --out")
    return float(known.get("seconds", 0.0))


def _steps(recipe: Recipe, data: Dataset, trials: Trials, choices: Choices) -> Iterator[Step]:
    """Run the seven steps; yield the result of each."""
    networks = recipes.changed(recipe, {"seeds": choices.seeds})
    members = networks.members()
    net = networks.network.build(members, torch.float64)
    order = torch.randperm(len(data.train), generator=generator(recipe.seed, "tune"))
    x, y = data.train.batch(order[: recipe.batch], torch.float64)

    found: dict[str, Any] = {}

    def taken(step: Step) -> Step:
        found.update(step.chosen)
        return step

    yield taken(choose_free_steps(net, x, recipe.rule.in_turn, choices))
    yield taken(choose_nudged_steps(net, x, y, found["rule.free_steps"], choices))
    T, K = found["rule.free_steps"], found["rule.nudged_steps"]
    phases = recipes.changed(networks, found)

    def rule_at(beta: float) -> Rule:
        return phases.learning_rule([replaced(member, beta=beta) for member in members])

    yield (signs := taken(choose_beta(net, rule_at, x, y, choices)))
    yield (ratio := choose_ratio(net, x, y, T, K, choices))
    magnitudes = list(ratio.measured["magnitude"].values())
    yield taken(choose_scale(trials, found, magnitudes, choices))
    adjusted, before = adjust_beta(trials, found, signs.measured["agreeing"])
    yield taken(adjusted)

    def error_of(T: int, K: int) -> Measured:
        shorter = {**found, "rule.free_steps": T, "rule.nudged_steps": K}
        (error,) = trials.errors(f"7-T{T}-K{K}", shorter)
        return error

    yield shorten(T, K, error_of, before, choices)

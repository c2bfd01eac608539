"""The sweep file: recipes and their values, as TOML.

A grid is every combination of the values of several fields:

    recipe = "c-ep-1h"
    seeds = 5

    [set]
    epochs = 20

    [grid]
    nudging.beta = [0.1, 0.2, 0.5]
    rule.free_steps = [20, 40]

A list names each recipe and the fields to replace:

    [[run]]
    recipe = "ep-1h"

    [[run]]
    recipe = "c-vf-1h"
    network.angle = [0, 45, 90]

Fields have the names of a recipe, with or without their table. `[set]` applies to every run.
"""

from __future__ import annotations

import itertools
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from eqprop.runs import recipe as recipes
from eqprop.runs.recipe import Recipe, UserError

KEYS = ("recipe", "seeds", "set", "grid", "run")


def read(file: Path) -> list[Recipe]:
    """Return the recipes of a sweep file, in its order.

    Runs of a grid that differ only in β, angle and learning rates are one recipe, with lists.
    """
    given = _toml(file)
    if unknown := [key for key in given if key not in KEYS]:
        raise UserError(
            f"{file}: unknown field {unknown[0]!r}: a sweep has {', '.join(KEYS)}; fields of "
            "recipes belong under [set], [grid] or [[run]]"
        )
    for key in ("set", "grid"):
        if not isinstance(given.get(key, {}), dict):
            raise UserError(f"{file}: {key} must be a table: write [{key}]")
    if ("grid" in given) == ("run" in given):
        raise UserError(f"{file}: give either a [grid] or [[run]] tables")
    shared = _fields(file, "set", given.get("set", {}))
    if "seeds" in given:
        if "seeds" in shared:
            raise UserError(f"{file}: seeds is given twice: leave it out of [set]")
        shared["seeds"] = given["seeds"]
    if "run" in given:
        return _listed(file, given["run"], given.get("recipe"), shared)
    return _combined(file, given["grid"], given.get("recipe"), shared)


def _toml(file: Path) -> dict[str, Any]:
    if not file.is_file():
        raise UserError(f"{file}: no such file: give a sweep file (docs/sweeps.md)")
    try:
        return tomllib.loads(file.read_bytes().decode())
    except (ValueError, RecursionError) as error:
        raise UserError(f"{file}: not valid TOML: {error}") from None


def _listed(file: Path, runs: Any, usual: Any, shared: Mapping[str, Any]) -> list[Recipe]:
    if not isinstance(runs, list) or not runs or not all(isinstance(run, dict) for run in runs):
        raise UserError(f"{file}: run must be a list of tables: write [[run]] above each")
    found = []
    for number, run in enumerate(runs, start=1):
        place = f"run {number}"
        fields = _fields(file, place, {key: run[key] for key in run if key != "recipe"})
        found.append(_load(file, place, run.get("recipe", usual), {**shared, **fields}))
    return found


def _combined(file: Path, grid: Any, recipe: Any, shared: Mapping[str, Any]) -> list[Recipe]:
    axes = _fields(file, "grid", grid)
    for path, values in axes.items():
        if not isinstance(values, list) or not values:
            raise UserError(f"{file}: grid: {path} must be a list of values, not {values!r}")
        if path in shared:
            raise UserError(f"{file}: {path} is in [grid] and given for all runs: keep one of both")
        if twice := [value for value in values if values.count(value) > 1]:
            raise UserError(f"{file}: grid: {path} names {twice[0]!r} twice: leave one out")
        if path == "update.learning_rates" and not all(isinstance(it, list) for it in values):
            raise UserError(
                f"{file}: grid: {path} must be a list of lists, one rate per synapse in each"
            )
    lists = {path: axes[path] for path in axes if path in recipes.OF_MEMBERS}
    others = [path for path in axes if path not in recipes.OF_MEMBERS]
    return [
        _load(file, "grid", recipe, {**shared, **lists, **dict(zip(others, values, strict=True))})
        for values in itertools.product(*(axes[path] for path in others))
    ]


def _fields(file: Path, place: str, given: Mapping[str, Any]) -> dict[str, Any]:
    return recipes.by_path(given, f"{file}: {place}")


def _load(file: Path, place: str, recipe: Any, fields: Mapping[str, Any]) -> Recipe:
    if not isinstance(recipe, str):
        raise UserError(f'{file}: {place}: needs recipe = "NAME": see `eqprop recipes`')
    beside = file.parent / recipe  # a recipe file beside the sweep file comes first
    source = str(beside) if beside.suffix == ".toml" and beside.is_file() else recipe
    try:
        return recipes.load(source, fields)
    except UserError as error:
        raise UserError(f"{file}: {place}: {error}") from None

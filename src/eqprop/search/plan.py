"""The plan of a search: fixed at its start, and the same for every process."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from optuna.trial import FrozenTrial

from eqprop.runs import Recipe, UserError
from eqprop.runs import recipe as recipes
from eqprop.runs.recipe import OF_MEMBERS
from eqprop.search import space as spaces
from eqprop.search.objective import Objective
from eqprop.search.space import Space


@dataclass(frozen=True)
class Plan:
    """The plan of a search.

    Args:
        recipe: the recipe to start from, with one setting and `data.validation`.
        space: the fields to vary.
        objective: the value to minimise.
        pruner: a name from `eqprop.search.pruners.PRUNERS`.
        seed: seed of the proposals.
    """

    recipe: Recipe
    space: Space
    objective: Objective
    pruner: str
    seed: int

    def check(self) -> None:
        """Raise unless the recipe can be searched in this space."""
        recipe = self.recipe
        if recipe.data.validation is None:
            raise UserError(
                "data.validation is missing: a search holds samples out of the training set; say "
                "how many, --set data.validation=10000"
            )
        lists = [recipes.PATHS[name] for name, values in recipe.swept.items() if len(values) > 1]
        if lists:
            raise UserError(
                f"{recipe.name}: {lists[0]} has several values: a search starts from a recipe of "
                "one setting; name the others in the space"
            )
        self.space.check(recipe)

    def as_dict(self) -> dict[str, Any]:
        """Return the plan as plain values, for the journal."""
        return {
            "recipe": self.recipe.to_toml(),
            "space": self.space.content,
            "objective": self.objective.statistic,
            "last": self.objective.last,
            "pruner": self.pruner,
            "sampler seed": self.seed,
        }

    @classmethod
    def of(cls, told: dict[str, Any], source: str) -> Plan:
        """Return the plan of the plain values `told`. Errors name the journal `source`."""
        return cls(
            recipe=recipes.from_toml(told["recipe"].encode(), source),
            space=spaces.parse(told["space"], source),
            objective=Objective(told["objective"], told["last"]),
            pruner=told["pruner"],
            seed=told["sampler seed"],
        )

    def differences(self, other: Plan) -> list[str]:
        """Return what differs between two plans. Fields of recipes have paths: "rule.name"."""
        mine, theirs = self.recipe.values(), other.recipe.values()
        differing = [path for path in recipes.FIELDS if mine.get(path) != theirs.get(path)]
        parts: dict[str, tuple[object, object]] = {
            "space": (self.space.dimensions, other.space.dimensions),
            "objective": (self.objective, other.objective),
            "pruner": (self.pruner, other.pruner),
            "sampler seed": (self.seed, other.seed),
        }
        return differing + [name for name, (a, b) in parts.items() if a != b]

    def proposed(self, trial: FrozenTrial, more: Mapping[str, Any] | None = None) -> Recipe:
        """Return the recipe that a trial proposes, with the fields in `more` replaced."""
        proposal = self.space.overrides(trial.params)
        return recipes.changed(self.recipe, {**proposal, **(more or {})})

    def shape(self, trial: FrozenTrial) -> str:
        """Return the values that all trials of one ensemble must share, as JSON."""
        fields = self.space.overrides(trial.params).items()
        return json.dumps({path: value for path, value in fields if path not in OF_MEMBERS})


class Group:
    """Trials that train as one ensemble: they differ only in β, angle and learning rates.

    `recipe` is the recipe of the ensemble and `words` describes it. `members` maps the number of
    each trial to its members. Equal proposals share their members.

    Args:
        name: name of the run folder.
        trials: the trials, at least one.
        plan: the plan of the search.
    """

    def __init__(self, name: str, trials: Sequence[FrozenTrial], plan: Plan) -> None:
        self.name, self.trials = name, sorted(trials, key=lambda trial: trial.number)
        proposals = [plan.space.overrides(trial.params) for trial in self.trials]
        own = [{path: p[path] for path in OF_MEMBERS if path in p} for p in proposals]
        distinct = [setting for i, setting in enumerate(own) if setting not in own[:i]]
        lists = {path: [setting[path] for setting in distinct] for path in own[0]}
        numbers = ", ".join(str(trial.number) for trial in self.trials)
        more = {"combine": "zip", "description": f"trials {numbers} of a search"}
        self.recipe = recipes.changed(plan.recipe, proposals[0] | lists | more)
        self.words = f"{len(distinct)} setting(s) as one ensemble"
        seeds = plan.recipe.seeds
        self.members = {
            trial.number: range((at := seeds * distinct.index(setting)), at + seeds)
            for trial, setting in zip(self.trials, own, strict=True)
        }

"""The recipe that a tuning starts from: its layers, activation, rule and data count.

T, K, β and the learning rates in it are ignored, and may be left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from eqprop.rules import TwoPhase
from eqprop.runs import Recipe, UserError
from eqprop.runs import recipe as recipes
from eqprop.runs.parts import RULES

# In place of what is to be found: the fewest steps that every rule takes, and any β and η.
UNKNOWN = {"rule.free_steps": 2, "rule.nudged_steps": 1, "nudging.beta": 1.0}


def load(source: str, overrides: Mapping[str, Any] | None = None) -> Recipe:
    """A recipe by its name, or from a TOML file, with some fields replaced.

    Args:
        source: a name from `eqprop recipes`, or a file.
        overrides: {field: value}, as `eqprop.runs.recipe.load` takes them.
    """
    given = recipes.fields(source, overrides)
    kind = RULES.get(given.get("rule.name", ""))
    if kind is not None and not issubclass(kind, TwoPhase):
        nudged = ", ".join(name for name, it in RULES.items() if issubclass(it, TwoPhase))
        raise UserError(
            f"{source}: rule.name {given['rule.name']} has no nudged phase to tune: "
            f"choose one of {nudged}"
        )
    if isinstance(given.get("network.angle"), (list, tuple)):
        raise UserError(f"{source}: network.angle must be one number to be tuned for, not a list")
    layers = given.get("network.layers")
    synapses = len(layers) - (given.get("network.input") is None) if isinstance(layers, list) else 1
    rates = {"update.learning_rates": [1.0] * max(synapses, 1)}
    return recipes.parse(given | UNKNOWN | rates, source)

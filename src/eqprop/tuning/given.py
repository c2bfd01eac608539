"""The recipe that tuning starts from. It gives layers, activation, rule and data.

Its T, K, β and learning rates are ignored and may be missing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from eqprop.runs import Recipe, UserError
from eqprop.runs import recipe as recipes
from eqprop.runs.parts import RULES, RulePart

T, K = 2, 1  # placeholders: the fewest steps that every rule supports
TO_FIND = ("rule.free_steps", "rule.nudged_steps", "nudging.beta", "update.learning_rates")


def load(source: str, overrides: Mapping[str, Any] | None = None) -> Recipe:
    """Load a recipe, replace some of its fields, and set placeholders for T, K, β and η.

    Args:
        source: a name from `eqprop recipes`, or a TOML file.
        overrides: {field: value}, as for `eqprop.runs.recipe.load`. Default None: none.
    """
    given = recipes.fields(source, overrides)
    nudged = [name for name in RULES if RulePart(name=name, free_steps=T, nudged_steps=K).nudged]
    rule = str(given.get("rule.name"))
    if rule in RULES and rule not in nudged:
        raise UserError(
            f"{source}: rule.name {rule} has no nudged phase to tune: "
            f"choose one of {', '.join(nudged)}"
        )
    if isinstance(given.get("network.angle"), (list, tuple)):
        raise UserError(f"{source}: network.angle must be one number to be tuned for, not a list")
    layers = given.get("network.layers")
    driven = len(layers) - (given.get("network.input") is None) if isinstance(layers, list) else 1
    anything = (T, K, 1.0, [1.0] * max(driven, 1))
    return recipes.parse(given | dict(zip(TO_FIND, anything, strict=True)), source)

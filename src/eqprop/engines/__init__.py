"""Engines run one minibatch of (model, rule, learning rates). They all give the same numbers."""

from __future__ import annotations

from collections.abc import Sequence

from eqprop.costs import Cost, SquaredError
from eqprop.engines.descent import LearningRates, descend, resolve_rates
from eqprop.engines.reference import ReferenceEngine
from eqprop.model import Model
from eqprop.rules import Rule

KINDS = ("auto", "reference")


def make_engine(
    model: Model,
    rule: Rule,
    learning_rates: LearningRates,
    kind: str = "auto",
    *,
    cost: Cost = SquaredError(),  # noqa: B008 (frozen)
    frozen: Sequence[str] = (),
) -> ReferenceEngine:
    """An engine that trains `model` in place with `rule`.

    `learning_rates`: one a synapse from input to output, or one number for all, or
    {parameter name: rate}; each may be a tensor [*ensemble]. `frozen` names parameters that do
    not move. `kind` "auto" takes the fastest engine that can run this combination.
    """
    if kind not in KINDS:
        raise ValueError(f"kind {kind!r} is unknown: choose one of {', '.join(KINDS)}")
    if not isinstance(rule, Rule):
        raise ValueError(f"rule must be a learning rule such as EP(...), not {rule!r}")
    return ReferenceEngine(model, rule, resolve_rates(model, learning_rates, frozen), cost)


__all__ = ["KINDS", "LearningRates", "ReferenceEngine", "descend", "make_engine", "resolve_rates"]

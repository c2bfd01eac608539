"""Engines run one minibatch of (model, rule, learning rates). They all give the same numbers."""

from __future__ import annotations

from collections.abc import Sequence

from eqprop.costs import Cost, SquaredError
from eqprop.dynamics import check_steps
from eqprop.engines.compiling import CannotBuild, SlowEngine, warn_slower
from eqprop.engines.descent import LearningRates, descend, resolve_rates
from eqprop.engines.engine import Engine
from eqprop.engines.native import MAX_THREADS, NativeEngine, why_not
from eqprop.engines.persistent import PersistentEngine, limits
from eqprop.engines.reference import ReferenceEngine
from eqprop.engines.telescoped import TelescopedEngine
from eqprop.model import Model
from eqprop.network import Network
from eqprop.rules import Rule, TwoPhase

KINDS = ("auto", "reference", "native", "telescoped", "persistent")


def make_engine(
    model: Model,
    rule: Rule,
    learning_rates: LearningRates,
    kind: str = "auto",
    *,
    cost: Cost = SquaredError(),  # noqa: B008 (frozen)
    frozen: Sequence[str] = (),
    threads: int | None = None,
) -> Engine:
    """Return an engine that trains `model` in place with `rule`.

    `engine.step(x, y)` learns from one minibatch, `engine.run(split, index)` from many,
    `engine.relax(x, free_steps)` runs the free phase alone. All engines compute the same numbers.

    Args:
        model: the network, or another `Model`. The engine is made for its parameters as they are:
            their values may change, not their shapes, dtype or device.
        rule: the learning rule, such as `EP(...)`.
        learning_rates: η > 0. One for all, or one per synapse from input to output, or {parameter
            name: rate}; each a number or a tensor [*ensemble]. Parameters without one stay.
        kind: "auto" (default) takes the fastest engine that can run this combination,
            "reference" the plain one for any model, "native" the compiled one for layered networks
            on the CPU, "telescoped" the one that a GPU runs as a graph, "persistent" the kernels
            that hold a network with one or two hidden layers on the chip of a GPU.
        cost: ℓ(output, y), one value per sample. Default: `SquaredError()`; only the reference
            engine runs another.
        frozen: names of parameters that do not move. Default: none.
        threads: how many threads the compiled engine uses, 1 to 256. Default: one per core.
    """
    if kind not in KINDS:
        raise ValueError(f"kind {kind!r} is unknown: choose one of {', '.join(KINDS)}")
    if not isinstance(model, Model):
        raise ValueError(
            f"model must be a Network or another Model of eqprop, not {type(model).__name__}"
        )
    if not isinstance(rule, Rule):
        raise ValueError(f"rule must be a learning rule such as EP(...), not {rule!r}")
    if threads is not None and (type(threads) is not int or not 1 <= threads <= MAX_THREADS):
        raise ValueError(f"threads must be an integer from 1 to {MAX_THREADS}, not {threads!r}")
    rates = resolve_rates(model, learning_rates, frozen)
    if kind == "reference":
        return ReferenceEngine(model, rule, rates, cost)
    obstacle = why_not(model, rule, cost)
    if obstacle is not None:
        if kind != "auto":
            raise ValueError(f"kind {kind!r} cannot run {obstacle}: use kind='auto'")
        return ReferenceEngine(model, rule, rates, cost)
    assert isinstance(model, Network)
    assert isinstance(rule, TwoPhase)
    assert isinstance(cost, SquaredError)
    check_steps("free_steps", rule.free_steps, rule.in_turn)
    device = next(model.parameters()).device.type
    if kind == "native" or (kind == "auto" and device == "cpu"):
        try:
            return NativeEngine(model, rule, rates, cost, threads)
        except CannotBuild as error:
            _go_without("native", "compiled engine", kind, error)
    if kind == "persistent" or (kind == "auto" and device == "cuda"):
        try:
            if device != "cuda":
                raise CannotBuild("the parameters are not on a GPU")
            if (limit := limits(model, rule)) is not None:
                raise CannotBuild(f"it cannot run {limit}")
            slower = TelescopedEngine(model, rule, rates, cost) if kind == "auto" else None
            return PersistentEngine(model, rule, rates, cost, slower=slower)
        except CannotBuild as error:
            _go_without("persistent", "persistent kernel", kind, error)
    if rule.tolerance is not None:
        if kind == "telescoped":
            raise ValueError("kind 'telescoped' runs exactly free_steps: leave out the tolerance")
        return ReferenceEngine(model, rule, rates, cost)
    return TelescopedEngine(model, rule, rates, cost)


def _go_without(missing: str, name: str, kind: str, error: CannotBuild) -> None:
    """An engine that was asked for by its name must be there; another may take its place."""
    if kind == missing:
        raise ValueError(f"kind {missing!r}: {error}") from None
    warn_slower(name, error, stacklevel=3)


__all__ = [
    "KINDS",
    "MAX_THREADS",
    "Engine",
    "LearningRates",
    "NativeEngine",
    "PersistentEngine",
    "ReferenceEngine",
    "SlowEngine",
    "TelescopedEngine",
    "descend",
    "make_engine",
    "resolve_rates",
]

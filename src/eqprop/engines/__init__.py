"""Engines train a model with a rule and learning rates. They all compute the same numbers."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from eqprop.costs import Cost
from eqprop.engines.compiling import CannotBuild, SlowEngine, warn_slower
from eqprop.engines.convolutional import ConvolutionalEngine
from eqprop.engines.descent import LearningRates, descend, resolve_rates
from eqprop.engines.engine import Engine
from eqprop.engines.job import Job
from eqprop.engines.native import MAX_THREADS, NativeEngine
from eqprop.engines.persistent import PersistentEngine
from eqprop.engines.reference import ReferenceEngine
from eqprop.engines.telescoped import TelescopedEngine
from eqprop.model import Model
from eqprop.rules import Rule
from eqprop.rules.rule import as_readout
from eqprop.updates import SGD, Update

# by name, fastest first: `kind="auto"` takes the first that can run a job
ENGINES: dict[str, type[Engine]] = {
    "native": NativeEngine,
    "persistent": PersistentEngine,
    "telescoped": TelescopedEngine,
    "convolutional": ConvolutionalEngine,
    "reference": ReferenceEngine,
}
KINDS = ("auto", *ENGINES)
PRECISIONS = (torch.float16, torch.bfloat16)


def make_engine(
    model: Model,
    rule: Rule,
    learning_rates: LearningRates,
    kind: str = "auto",
    *,
    update: Update = SGD(),  # noqa: B008 (frozen)
    cost: Cost | None = None,
    frozen: Sequence[str] = (),
    threads: int | None = None,
    precision: torch.dtype | None = None,
) -> Engine:
    """Return an engine that trains `model` in place with `rule`.

    `engine.step(x, y)` learns from one minibatch, `engine.run(split, index)` from many, and
    `engine.relax(x, free_steps)` runs only the free phase. All engines compute the same numbers.

    Args:
        model: the network, or another `Model`. The values of its parameters may change later, but
            not their shapes, dtype or device.
        rule: the learning rule, such as `EP(...)`.
        learning_rates: η > 0: one for all parameters, one per synapse from input to output, or
            {parameter name: rate}; each a number or a tensor [*ensemble]. Parameters without a
            rate do not move.
        kind: "auto" (default): the fastest engine that can run this combination. "reference": the
            plain engine for any model. "native": compiled, for layered networks on the CPU.
            "telescoped": PyTorch operations, on a GPU one captured graph. "persistent": kernels
            that keep a network with one or two hidden layers on the chip of a GPU.
            "convolutional": for networks of convolutional and dense layers.
        update: how parameters move along a gradient: `SGD()` (default: plain descent),
            `SGD(momentum=..., weight_decay=...)`, `Optimiser(torch.optim.Adam)`, or your own
            `Update`.
        cost: ℓ(output, y) of the last layer, one value per sample. Default None: the model's
            read-out, which is squared error unless you choose another.
        frozen: names of parameters that do not move. Default: none.
        threads: number of threads of the compiled engine, 1 to 256. Default: one per core.
        precision: dtype of what convolutions multiply, `torch.float16` or `torch.bfloat16`: faster
            on a GPU, less exact. Parameters, states, sums and weight gradients keep the model's
            dtype. Only the convolutional engine supports it. Default None: the model's dtype.
    """
    kinds = ("auto", *ENGINES)  # the user may have added some
    if kind not in kinds:
        raise ValueError(f"kind {kind!r} is unknown: choose one of {', '.join(kinds)}")
    if not isinstance(model, Model):
        raise ValueError(
            f"model must be a Network or another Model of eqprop, not {type(model).__name__}"
        )
    if not isinstance(rule, Rule):
        raise ValueError(f"rule must be a learning rule such as EP(...), not {rule!r}")
    if threads is not None and (type(threads) is not int or not 1 <= threads <= MAX_THREADS):
        raise ValueError(f"threads must be an integer from 1 to {MAX_THREADS}, not {threads!r}")
    if not isinstance(update, Update):
        raise ValueError(f"update must be SGD(...) or another Update, not {update!r}")
    if precision not in (None, *PRECISIONS):
        raise ValueError(f"precision must be torch.float16 or torch.bfloat16, not {precision}")
    rule.check_model(model)
    rates = resolve_rates(model, learning_rates, frozen)
    job = Job(model, rule, rates, as_readout(cost, model), update, threads, precision)
    if kind != "auto":
        engine = ENGINES[kind]
        if precision is not None and not engine.mixes:
            raise ValueError(f"kind {kind!r} cannot run precision {precision}: leave it out")
        if (obstacle := engine.obstacle(job)) is not None:
            raise ValueError(f"kind {kind!r} cannot run {obstacle}: use kind='auto'")
        try:
            return engine.make(job, only=True)
        except CannotBuild as error:
            raise ValueError(f"kind {kind!r}: {error}") from None
    obstacle = None
    for name, engine in ENGINES.items():
        if precision is not None and not engine.mixes:
            continue
        if (obstacle := engine.obstacle(job)) is None:
            try:
                return engine.make(job, only=False)
            except CannotBuild as error:
                warn_slower(f"{name} engine", error, stacklevel=2)
    raise ValueError(f"precision {precision} cannot run {obstacle}: leave it out")


__all__ = [
    "ENGINES",
    "KINDS",
    "MAX_THREADS",
    "PRECISIONS",
    "ConvolutionalEngine",
    "Engine",
    "Job",
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

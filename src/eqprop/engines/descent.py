"""Gradient descent along the stream of a rule.

Alg. cep         θ ← θ + η Δ(t)  at every item
Alg. debug-cep   θ ← θ + η_tiny Δ(t)  at every item,  then  θ ← θ − Δθ + (η/η_tiny) Δθ

The last step of the second one is any update: with momentum, weight decay and so on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from eqprop.dynamics import NonFinite, Relaxation
from eqprop.engines.job import Job
from eqprop.model import Model
from eqprop.rules import Rule
from eqprop.types import Gradients
from eqprop.updates import Descent, Mover, Rates

LearningRates = (
    float | Tensor | np.ndarray[Any, Any] | Sequence[float | Tensor] | Mapping[str, float | Tensor]
)


@torch.no_grad()
def descend(stream: Iterable[Gradients], mover: Mover, tiny: Descent | None = None) -> None:
    """Move the parameters along every item of a stream.

    Args:
        stream: the gradients.
        mover: moves the parameters.
        tiny: descent by η_tiny, for the procedure of appendix F.2: it moves the parameters while
            the stream lasts. Then they return, and `mover` moves them along the total. Default
            None: `mover` moves them at every item.
    """
    if tiny is None:
        for gradients in stream:
            mover.move(gradients)
        return
    # η_tiny Δ(t) is far below the rounding error of θ in float32. So the total accumulates apart
    # from θ, and θ is set from its start and the total: no update is lost.
    theta = tiny.theta()
    start = {name: theta[name].clone() for name in tiny.eta}
    total = {name: torch.zeros_like(value) for name, value in start.items()}
    for gradients in stream:
        for name, value in start.items():
            total[name].add_(gradients[name])
            theta[name].copy_(value)
        tiny.move(total)
    for name, value in start.items():
        theta[name].copy_(value)
    mover.move(total)


def tiny_descent(model: Model, rule: Rule, rates: Rates) -> Descent | None:
    """Return descent by η_tiny if the rule rescales, else None.

    η_tiny is a share of the given η: momentum and a schedule do not change it.
    """
    share = rule.moving_share
    if not 0 < share < 1:
        return None
    return Descent(model, {name: share * rate for name, rate in rates.items()})


def learn_plainly(job: Job, mover: Mover, x: Tensor, y: Tensor, sign: Tensor | None) -> Relaxation:
    """Learn from one minibatch with model, rule and mover; return the free phase.

    Raise `NonFinite` if a neuron or a parameter becomes non-finite. The parameters have then moved.
    """
    model = job.model
    stream = job.rule.gradients(model, x, y, job.readout, sign=sign)
    descend(stream, mover, tiny_descent(model, job.rule, job.rates))
    for name, p in model.named_parameters():
        finite = torch.isfinite(p.reshape(*model.ensemble, -1).sum(-1))
        if not bool(finite.all()):
            raise NonFinite(f"parameter {name}", "the update", ~finite)
    return stream.free


def resolve_rates(
    model: Model, given: LearningRates, frozen: Sequence[str] = ()
) -> dict[str, float | Tensor]:
    """Return {parameter name: learning rate} for the parameters that move.

    Args:
        model: the model.
        given: one rate for all, one per synapse, or {parameter name: rate}. Forward weight,
            backward weight and bias of a synapse share one rate. A NumPy array has one entry per
            synapse, [synapses] or [synapses, *ensemble].
        frozen: names of parameters that do not move.
    """
    if isinstance(given, (np.ndarray, np.generic)):
        given = list(torch.as_tensor(given)) if given.ndim else float(given)
    names = [name for name, _ in model.named_parameters()]
    for name in frozen:
        if name not in names:
            raise ValueError(f"frozen: there is no parameter {name!r} among {', '.join(names)}")
    rates: dict[str, float | Tensor]
    if not isinstance(given, (int, float, Tensor)) and not given:
        raise ValueError(f"learning_rates must not be empty: {given!r}")
    if isinstance(given, Mapping):
        unknown = [name for name in given if name not in names]
        if unknown:
            raise ValueError(
                f"learning_rates: there is no parameter {unknown[0]!r} among {', '.join(names)}"
            )
        rates = dict(given)
    elif isinstance(given, (int, float, Tensor)):
        rates = dict.fromkeys(names, given)
    else:
        groups = model.parameter_groups()
        if not groups:
            raise ValueError(
                "learning_rates: give one number, or one for each parameter by name; "
                "a list needs a Network, one entry per synapse"
            )
        if len(given) != len(groups):
            raise ValueError(
                f"learning_rates has {len(given)} entries, but the network has "
                f"{len(groups)} synapses, input to output"
            )
        rates = {name: rate for group, rate in zip(groups, given, strict=True) for name in group}
    for name, rate in rates.items():
        if isinstance(rate, (np.ndarray, np.generic)):
            rate = rates[name] = torch.as_tensor(rate)
        if isinstance(rate, bool) or not isinstance(rate, (int, float, Tensor)):
            raise ValueError(f"learning_rates: {name} must be a number, not {rate!r}")
        value = torch.as_tensor(rate)
        wrong = value[~(torch.isfinite(value) & (value > 0))]
        if len(wrong):
            raise ValueError(
                f"learning_rates: {name} must be positive (0 is no learning), not {wrong[0]:g}; "
                "use frozen to hold a parameter"
            )
        if value.ndim and tuple(value.shape) != model.ensemble:
            raise ValueError(
                f"learning_rates: {name} has shape {list(value.shape)}, "
                f"but the ensemble is {list(model.ensemble)}"
            )
    return {name: rate for name, rate in rates.items() if name not in frozen}

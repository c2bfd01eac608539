"""Gradient descent along the stream of a rule: the one place where parameters move.

Alg. cep         θ ← θ + η Δ(t)  at every item
Alg. debug-cep   θ ← θ + η_tiny Δ(t)  at every item,  then  θ ← θ − Δθ + (η/η_tiny) Δθ
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from eqprop.costs import Cost
from eqprop.dynamics import NonFinite, Relaxation
from eqprop.model import Gradients, Model, per_member
from eqprop.network import Network
from eqprop.rules import Continual, Rule

LearningRates = (
    float | Tensor | np.ndarray[Any, Any] | Sequence[float | Tensor] | Mapping[str, float | Tensor]
)


@torch.no_grad()
def descend(
    model: Model,
    stream: Iterable[Gradients],
    rates: Mapping[str, float | Tensor],
    rescale: float | None = None,
) -> None:
    """Move the parameters named in `rates` downhill; the others stay."""
    theta = dict(model.named_parameters())
    eta = {name: per_member(rate, theta[name], model.ensemble) for name, rate in rates.items()}
    if rescale is None:
        for gradients in stream:
            for name in eta:
                theta[name].sub_(eta[name] * gradients[name])
        return
    # η_tiny Δ(t) is far below the rounding of θ in float32. So the total is what accumulates,
    # and θ is set from it and from where it started: no update is ever lost.
    start = {name: theta[name].clone() for name in eta}
    moved = {name: torch.zeros_like(theta[name]) for name in eta}
    for gradients in stream:
        for name in eta:
            moved[name].add_(gradients[name])
            theta[name].copy_(start[name] - rescale * eta[name] * moved[name])
    for name in eta:
        theta[name].copy_(start[name] - eta[name] * moved[name])


def learn_plainly(
    model: Model,
    rule: Rule,
    rates: Mapping[str, float | Tensor],
    cost: Cost,
    x: Tensor,
    y: Tensor,
    sign: Tensor | None,
) -> Relaxation:
    """Descend along the gradients that a rule reads from one minibatch; return the free phase.

    Raises `NonFinite` where a neuron or a parameter becomes non-finite, with the parameters moved.
    """
    stream = rule.gradients(model, x, y, cost, sign=sign)
    descend(model, stream, rates, rule.rescale if isinstance(rule, Continual) else None)
    for name, p in model.named_parameters():
        finite = torch.isfinite(p.reshape(*model.ensemble, -1).sum(-1))
        if not bool(finite.all()):
            raise NonFinite(f"parameter {name}", "the update", ~finite)
    return stream.free


def resolve_rates(
    model: Model, given: LearningRates, frozen: Sequence[str] = ()
) -> dict[str, float | Tensor]:
    """A learning rate for each parameter, from one for all, one per synapse, or one per name.

    A synapse's weights, in both directions, and its bias share one. A NumPy array holds one per
    synapse, [synapses] or [synapses, *ensemble]. `frozen` names parameters that do not move.
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
        if not isinstance(model, Network):
            raise ValueError(
                "learning_rates: give one number, or one for each parameter by name; "
                "a list needs a Network, one entry a synapse"
            )
        if len(given) != len(model.synapses):
            raise ValueError(
                f"learning_rates has {len(given)} entries, but the network has "
                f"{len(model.synapses)} synapses, input to output"
            )
        rates = {name: given[int(name.split(".")[1])] for name in names}
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

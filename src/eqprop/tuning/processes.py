"""The processes ∇(t) of BPTT and Δ(t) of a rule, per layer, at fixed weights (η → 0).

Only norms and totals are stored: a process of a hundred steps would fill the memory.
"""

from __future__ import annotations

import torch
from torch import Tensor

from eqprop.network import Network
from eqprop.rules import Rule
from eqprop.types import Gradients


def _groups(net: Network) -> dict[str, list[str]]:
    """Return the parameters that share a learning rate, by the first synapse to their layer."""
    first = {synapse.post: synapse.name for synapse in reversed(net.synapses)}
    labels = [first[synapse.post] for synapse in net.synapses] + ["readout"]
    found: dict[str, list[str]] = {}
    for label, names in zip(labels, net.parameter_groups(), strict=False):  # a read-out may be last
        found.setdefault(label, []).extend(names)
    return found


def labels(net: Network) -> list[str]:
    """Return the names of the groups of parameters that share a learning rate: "input→hidden", …"""
    return list(_groups(net))


def grouped(net: Network, gradients: Gradients) -> list[Tensor]:
    """Return the gradients of each group of parameters, one tensor [*ensemble, n] per group."""
    return [
        torch.cat([gradients[name].reshape(*net.ensemble, -1) for name in group], dim=-1)
        for group in _groups(net).values()
    ]


def norms(net: Network, rule: Rule, x: Tensor, y: Tensor) -> Tensor:
    """Return ‖Δ(t)‖ or ‖∇(t)‖ per group of parameters, [K, groups], mean over the ensemble.

    Args:
        net: the network.
        rule: a two-phase rule, or BPTT.
        x: inputs, [batch, *shape].
        y: targets, [batch, n].
    """
    as_given = torch.ones(net.ensemble)  # β keeps its sign, even if training draws it
    return torch.stack(
        [
            torch.stack([flat.norm(dim=-1).mean() for flat in grouped(net, step.synapses)])
            for step in rule.steps(net, x, y, sign=as_given)
        ]
    )

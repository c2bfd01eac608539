"""Evaluation of an ensemble: errors, residuals, saturation, weight norms and weight angles."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from eqprop.dynamics import relax
from eqprop.engines import Engine
from eqprop.network import Network
from eqprop.runs.recipe import UserError
from eqprop.splits import Split

UNSETTLED = 1e-3  # a sample whose residual is above this has not settled
SATURATED = 0.01  # share of the activation's range next to either bound


class NothingToTest(UserError):
    """A run has no network to test."""


@dataclass(frozen=True)
class Evaluation:
    """Result of the free phase on a split, one value per network."""

    error: Tensor  # % [E]
    loss: Tensor  # [E]
    residual: Tensor  # largest over the samples [E]
    unsettled: Tensor  # share of samples [E]
    steps: Tensor  # mean number of free steps [E]
    saturated: dict[str, Tensor]  # layer -> share of saturated neurons [E]
    confusion: Tensor  # counts by label and answer [E, classes, classes]

    def record(self, split: str) -> dict[str, Any]:
        """Return all but the confusion matrix as lists; `split` prefixes error and loss."""
        return {
            f"{split}_error": self.error.tolist(),
            f"{split}_loss": self.loss.tolist(),
            "residual": self.residual.tolist(),
            "unsettled": self.unsettled.tolist(),
            "free_steps": self.steps.tolist(),
            "saturated": {name: share.tolist() for name, share in self.saturated.items()},
        }


@torch.no_grad()
def measure(
    net: Network,
    split: Split,
    free_steps: int,
    engine: Engine | None = None,
    in_turn: bool = False,
) -> Evaluation:
    """Relax every sample of a split from zero and evaluate the output.

    Args:
        net: one network, or an ensemble.
        split: the samples, on the device of the network.
        free_steps: maximum number of steps.
        engine: runs the free phase. Default None: `eqprop.relax`.
        in_turn: without an engine, whether layers move in turn. Default False.

    Returns:
        One value per network, [E], in row-major order of the ensemble. E is 1 for one network.
    """
    split = split.shaped(net.input.shape)
    E, classes = math.prod(net.ensemble), split.classes
    readout = net.readout if engine is None else engine.readout
    chunk = engine.relaxes if engine is not None else 1000
    device = next(net.parameters()).device
    confusion = torch.zeros(E, classes * classes, dtype=torch.long, device=device)
    loss = torch.zeros(E, dtype=torch.float64, device=device)
    steps, unsettled, residual = torch.zeros_like(loss), torch.zeros_like(loss), loss.clone()
    saturated = {name: torch.zeros_like(loss) for name in net.layer_names}
    for start in range(0, len(split), chunk):
        index = torch.arange(start, min(start + chunk, len(split)), device=device)
        x, y = split.batch(index, net.dtype)
        free = (
            relax(net, x, free_steps, in_turn=in_turn)
            if engine is None
            else engine.relax(x, free_steps)
        )
        output = readout.output(free.state)
        losses = readout.loss(free.state, y).reshape(E, -1)
        far = free.sample_residual.reshape(E, -1)
        pairs = split.labels[index].long() * classes + output.argmax(-1).reshape(E, -1)  # [E, B]
        confusion.scatter_add_(1, pairs, torch.ones_like(pairs))
        loss += losses.double().sum(-1)
        residual = torch.maximum(residual, far.amax(-1))
        unsettled += (far > UNSETTLED).double().sum(-1)
        steps += free.member_steps.reshape(E) * len(index)
        for name, share in net.saturation(free.state, SATURATED).items():
            saturated[name] += share.reshape(E) * len(index)
    n = len(split)
    table = confusion.reshape(E, classes, classes)
    right = table.diagonal(dim1=-2, dim2=-1).sum(-1)
    return Evaluation(
        error=(100 * (n - right).double() / n).cpu(),
        loss=(loss / n).cpu(),
        residual=residual.cpu(),
        unsettled=(unsettled / n).cpu(),
        steps=(steps / n).cpu(),
        saturated={name: (share / n).cpu() for name, share in saturated.items()},
        confusion=table.cpu(),
    )


@torch.no_grad()
def weights(net: Network) -> dict[str, Any]:
    """Return the norm of each parameter, and the angles between forward and backward weights."""
    norms = {name: p.reshape(*net.ensemble, -1).norm(dim=-1) for name, p in net.named_parameters()}
    angles = {
        f"synapses.{k}": synapse.angle()
        for k, synapse in enumerate(net.synapses)
        if not (synapse.tied or synapse.from_input)
    }
    return {
        "weight_norm": {name: norm.tolist() for name, norm in norms.items()},
        "weight_angle": {name: angle.tolist() for name, angle in angles.items()},
    }

"""How good an ensemble is, and how healthy: errors, residuals, saturation, norms, angles."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from eqprop.data import Split
from eqprop.engines import Engine
from eqprop.network import Network
from eqprop.runs.folder import RunFolder
from eqprop.runs.recipe import Recipe, UserError

UNSETTLED = 1e-3  # a sample whose residual is above this has not settled
SATURATED = 0.01  # share of the activation's range next to either bound


class NothingToTest(UserError):
    """A run without networks, saved or living."""


@dataclass(frozen=True)
class Evaluation:
    """What a split gives after the free phase alone, one value a member."""

    error: Tensor  # % [E]
    loss: Tensor  # [E]
    residual: Tensor  # the largest of any sample [E]
    unsettled: Tensor  # share of samples [E]
    steps: Tensor  # mean number of free steps [E]
    saturated: dict[str, Tensor]  # layer -> share of its neurons [E]
    confusion: Tensor  # [E, classes, classes], counts by label and answer

    def record(self) -> dict[str, Any]:
        """All but the confusion matrix, as plain numbers."""
        return {
            "test_error": self.error.tolist(),
            "test_loss": self.loss.tolist(),
            "residual": self.residual.tolist(),
            "unsettled": self.unsettled.tolist(),
            "free_steps": self.steps.tolist(),
            "saturated": {name: share.tolist() for name, share in self.saturated.items()},
        }


@torch.no_grad()
def evaluate(engine: Engine, split: Split, free_steps: int | None = None) -> Evaluation:
    """Relax every sample of the split from zero, as the engine's rule does, and look."""
    net, T = engine.model, free_steps or engine.rule.free_steps
    assert isinstance(net, Network)
    E, classes = net.ensemble[0], split.classes
    device = next(net.parameters()).device
    confusion = torch.zeros(E, classes * classes, dtype=torch.long, device=device)
    loss = torch.zeros(E, dtype=torch.float64, device=device)
    steps, unsettled, residual = torch.zeros_like(loss), torch.zeros_like(loss), loss.clone()
    saturated = {name: torch.zeros_like(loss) for name in net.layer_names}
    for start in range(0, len(split), engine.relaxes):
        index = torch.arange(start, min(start + engine.relaxes, len(split)), device=device)
        x, y = split.batch(index, net.dtype)
        free = engine.relax(x, T)
        output = net.output(free.state)
        pairs = split.labels[index].long() * classes + output.argmax(-1)  # [E, B]
        confusion.scatter_add_(1, pairs, torch.ones_like(pairs))
        loss += engine.cost(output, y).double().sum(-1)
        residual = torch.maximum(residual, free.sample_residual.amax(-1))
        unsettled += (free.sample_residual > UNSETTLED).double().sum(-1)
        steps += free.member_steps * len(index)
        for name, share in net.saturation(free.state, SATURATED).items():
            saturated[name] += share * len(index)
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
    """The norm of each parameter, and the angle between forward and backward weights."""
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


def restore(folder: RunFolder) -> tuple[Recipe, Network, list[int]]:
    """A run's recipe, its networks as last saved, and which members they are."""
    recipe = folder.recipe()
    saved = folder.load_checkpoint(recipe)
    if saved is None:
        raise NothingToTest(f"{folder.path}: there is no checkpoint, so no network can be tested")
    living = list(saved["living"])
    if not living:
        raise NothingToTest(f"{folder.path}: every member was frozen, so none can be tested")
    members = recipe.members()
    net = recipe.network([members[i] for i in living])
    net.load_state_dict(saved["parameters"])
    return recipe, net, living

"""Costs ℓ(output, y), one value a sample. Any differentiable function of that form will do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

Cost = Callable[[Tensor, Tensor], Tensor]  # ([*, B, n], y) -> [*, B]


@dataclass(frozen=True)
class SquaredError:
    """ℓ = ½‖output − y‖², the cost of the paper."""

    def __call__(self, output: Tensor, y: Tensor) -> Tensor:
        self.check(output.shape, y)
        return 0.5 * ((output - y) ** 2).sum(-1)

    def check(self, shape: Sequence[int], y: Tensor) -> None:
        """An error where y is no target for an output of this shape."""
        if y.shape[-1] != shape[-1]:
            raise ValueError(
                f"y has width {y.shape[-1]}, but the output layer has {shape[-1]} neurons"
            )
        if tuple(y.shape[-2:]) != tuple(shape[-2:]):
            raise ValueError(f"y has shape {list(y.shape)}, but the output {list(shape[-2:])}")


def cost_gradient(cost: Cost, output: Tensor, y: Tensor) -> Tensor:
    """∂ℓ/∂output of every sample, [*, B, n]."""

    def summed(output: Tensor) -> Tensor:
        value = cost(output, y)
        shape = list(value.shape) if isinstance(value, Tensor) else type(value).__name__
        if shape != list(output.shape[:-1]):
            raise ValueError(
                f"cost must return one value a sample, a tensor {list(output.shape[:-1])}, "
                f"not {shape}"
            )
        return value.sum()

    gradient: Tensor = torch.func.grad(summed)(output)
    return gradient

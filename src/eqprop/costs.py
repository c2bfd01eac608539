"""Costs ℓ(output, y), one value per sample. Any differentiable function of this form is a cost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import one_hot

Cost = Callable[[Tensor, Tensor], Tensor]  # ([*, batch, n], y) -> [*, batch]


@dataclass(frozen=True)
class SquaredError:
    """ℓ = ½‖output − y‖², the cost of the paper.

    y is a target [*, batch, n], or class indices: integers [batch] or [*ensemble, batch].
    """

    def __call__(self, output: Tensor, y: Tensor) -> Tensor:
        return 0.5 * ((output - self.target(y, output.shape, output.dtype)) ** 2).sum(-1)

    def target(self, y: Tensor, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Return y as a target for an output of this shape, [*ensemble, batch, n]; raise if it
        does not fit.
        """
        y = as_target(y, shape[:-2], shape[-1], dtype)
        if y.shape[-1] != shape[-1]:
            raise ValueError(
                f"y has width {y.shape[-1]}, but the output layer has {shape[-1]} neurons"
            )
        if tuple(y.shape[-2:]) != tuple(shape[-2:]):
            raise ValueError(f"y has shape {list(y.shape)}, but the output {list(shape[-2:])}")
        return y


def as_target(y: Tensor, ensemble: Sequence[int], classes: int, dtype: torch.dtype) -> Tensor:
    """Turn class indices into one-hot targets [*, batch, classes]; leave other targets unchanged.

    Integers of shape [batch] or [*ensemble, batch] are class indices.
    """
    if y.is_floating_point():
        return y
    if y.dtype == torch.bool:
        raise ValueError("y is torch.bool: give class indices (integers), or targets as floats")
    if y.numel() == 0 or y.ndim == 0:
        raise ValueError(f"y has shape {list(y.shape)}: its batch is empty, or missing")
    if list(y.shape[:-1]) not in ([], list(ensemble)):
        return y.to(dtype)
    low, high = int(y.min()), int(y.max())
    if low < 0 or high >= classes:
        wrong = low if low < 0 else high
        raise ValueError(f"y holds class {wrong}, but the output layer has {classes} neurons")
    return one_hot(y.long(), classes).to(dtype)


def cost_gradient(cost: Cost, output: Tensor, y: Tensor) -> Tensor:
    """Return ∂ℓ/∂output per sample, [*, batch, n]."""

    def summed(output: Tensor) -> Tensor:
        value = cost(output, y)
        shape = list(value.shape) if isinstance(value, Tensor) else type(value).__name__
        if shape != list(output.shape[:-1]):
            raise ValueError(
                f"cost must return one value per sample, a tensor {list(output.shape[:-1])}, "
                f"not {shape}"
            )
        return value.sum()

    gradient: Tensor = torch.func.grad(summed)(output)
    return gradient

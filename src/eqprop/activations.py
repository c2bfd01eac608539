"""Activation functions σ: elementwise, each with its derivative σ'."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

Elementwise = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Activation:
    """An elementwise activation σ with its derivative σ'.

    Args:
        name: its name.
        value: σ.
        derivative: σ'. Default None: `torch.func.grad` computes it.
        bounds: (lowest, highest) value of σ. Default None: unbounded.
        holomorphic: whether σ is analytic and accepts complex numbers. Default False.
    """

    name: str
    value: Elementwise
    derivative: Elementwise | None = None
    bounds: tuple[float, float] | None = None
    holomorphic: bool = False

    def __call__(self, v: Tensor) -> Tensor:
        return self.value(v)

    def slope(self, v: Tensor) -> Tensor:
        """σ'(v)."""
        if self.derivative is not None:
            return self.derivative(v)
        slope: Tensor = torch.func.grad(lambda v: self.value(v).sum())(v)
        return slope


def _sigmoid(v: Tensor) -> Tensor:
    return torch.sigmoid(4 * (v - 0.5))  # Eq. (sigmoid): 1 / (1 + exp(−4(v − ½)))


def _sigmoid_slope(v: Tensor) -> Tensor:
    value = _sigmoid(v)
    return 4 * value * (1 - value)


def _tanh_slope(v: Tensor) -> Tensor:
    return 1 - torch.tanh(v) ** 2


def _hard_sigmoid(v: Tensor) -> Tensor:
    return v.clamp(0, 1)


def _hard_sigmoid_slope(v: Tensor) -> Tensor:
    return ((v >= 0) & (v <= 1)).to(v.dtype)  # 1 on the closed interval, as in autograd


def _identity(v: Tensor) -> Tensor:
    return v


SIGMOID = Activation("sigmoid", _sigmoid, _sigmoid_slope, (0.0, 1.0), holomorphic=True)
TANH = Activation("tanh", torch.tanh, _tanh_slope, (-1.0, 1.0), holomorphic=True)
HARD_SIGMOID = Activation("hard_sigmoid", _hard_sigmoid, _hard_sigmoid_slope, (0.0, 1.0))
IDENTITY = Activation("identity", _identity, torch.ones_like, holomorphic=True)

ACTIVATIONS = {a.name: a for a in (SIGMOID, TANH, HARD_SIGMOID, IDENTITY)}


def as_activation(choice: str | Activation | Elementwise) -> Activation:
    """Return an `Activation` from its name, from itself or from an elementwise function."""
    if isinstance(choice, Activation):
        return choice
    if isinstance(choice, str):
        if choice not in ACTIVATIONS:
            raise ValueError(
                f"activation {choice!r} is unknown: choose one of {', '.join(ACTIVATIONS)}, "
                "or pass a function"
            )
        return ACTIVATIONS[choice]
    if callable(choice):
        return Activation(getattr(choice, "__name__", type(choice).__name__), choice)
    raise ValueError(f"activation must be a name or a function, not {choice!r}")

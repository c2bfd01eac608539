"""Initial weights, and the angle between two sets of them."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

Init = Callable[[tuple[int, ...], int, int, torch.Generator], Tensor]


def _uniform(bound: float, shape: tuple[int, ...], source: torch.Generator) -> Tensor:
    return (2 * torch.rand(shape, generator=source, dtype=torch.float64) - 1) * bound


def glorot(shape: tuple[int, ...], fan_in: int, fan_out: int, source: torch.Generator) -> Tensor:
    """Draw weights uniformly from ±√(6/(fan_in + fan_out)), biases zero: the paper's text."""
    if len(shape) == 1:
        return torch.zeros(shape, dtype=torch.float64)
    return _uniform(math.sqrt(6 / (fan_in + fan_out)), shape, source)


def fan_in(shape: tuple[int, ...], fan_in: int, fan_out: int, source: torch.Generator) -> Tensor:
    """Draw weights and biases uniformly from ±1/√fan_in: the authors' code."""
    return _uniform(1 / math.sqrt(fan_in), shape, source)


def scaled(init: Init, gain: float) -> Init:
    """Return an initialisation that multiplies another, weights and biases, by a number."""

    def draw(shape: tuple[int, ...], fan_in: int, fan_out: int, source: torch.Generator) -> Tensor:
        return gain * init(shape, fan_in, fan_out, source)

    return draw


INITS: dict[str, Init] = {"glorot": glorot, "fan_in": fan_in}


def as_init(choice: str | Init) -> Init:
    """Return the initialisation with this name; a function stays as it is."""
    if callable(choice):
        return choice
    if choice not in INITS:
        raise ValueError(
            f"init {choice!r} is unknown: choose one of {', '.join(INITS)}, or pass a function"
        )
    return INITS[choice]


def flip_signs(weight: Tensor, angle: float, source: torch.Generator) -> Tensor:
    """Flip the sign of each weight with probability ½(1 − cos Ψ); `angle` is Ψ in degrees."""
    p = 0.5 * (1 - math.cos(math.radians(angle)))
    flips = torch.rand(weight.shape, generator=source, dtype=torch.float64) < p
    return torch.where(flips, -weight, weight)


def angle_between(a: Tensor, b: Tensor) -> Tensor:
    """Return arccos(Tr(a·bᵀ) / (‖a‖ ‖b‖)) over the last two axes, in degrees.

    The angle is 0 where both are zero and 90 where one is.
    """
    norm_a, norm_b = a.norm(dim=(-2, -1)), b.norm(dim=(-2, -1))
    cosine = (a * b).sum((-2, -1)) / (norm_a * norm_b)
    degrees = torch.rad2deg(torch.arccos(cosine.clamp(-1, 1)))
    degrees = torch.where((norm_a == 0) | (norm_b == 0), 90.0, degrees)
    return torch.where((norm_a == 0) & (norm_b == 0), 0.0, degrees)

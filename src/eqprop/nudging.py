"""Nudging: how many nudged phases the second phase has, and the β of each.

Each nudged phase starts from the same free state s_*. A rule computes (g(s^β) − g(s_*)) / β in
each phase, where g is ∂Φ/∂θ, and takes the mean over phases:

OneSided     β                        error of the order β
RandomSign   β or −β, at random       the same, but it averages out over minibatches
Centred      β and −β                 (g(s^β) − g(s^−β)) / 2β: error of the order β²
Holomorphic  |β| e^{2πik/N}, k < N    Cauchy's formula: error of the order β^N
"""

from __future__ import annotations

import cmath
import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

Beta = float | complex | Tensor  # a number, or one per member, [*ensemble]


@dataclass(frozen=True)
class Nudging(ABC):
    """Abstract base of the nudgings.

    Args:
        beta: β, the strength of the nudge, not 0; a number, or a tensor [*ensemble] with one per
            member. It may be negative.
    """

    beta: float | Tensor

    def __post_init__(self) -> None:
        if isinstance(self.beta, bool) or not isinstance(self.beta, (int, float, Tensor)):
            raise ValueError(f"beta must be a number or a tensor, not {self.beta!r}")
        beta = torch.as_tensor(self.beta)
        if not bool((torch.isfinite(beta) & (beta != 0)).all()):
            raise ValueError(f"beta must be finite and not 0 (no second phase), not {self.beta}")

    @property
    def draws_sign(self) -> bool:
        """Whether the sign of β is drawn per minibatch."""
        return False

    @property
    def is_complex(self) -> bool:
        """Whether neurons have complex values in the second phase."""
        return False

    def signed(self, ensemble: tuple[int, ...], sign: Tensor | None) -> float | Tensor:
        """Return β times `sign`, ±1 per member, [*ensemble].

        None: draw it if the nudging draws signs, else +1.
        """
        beta = self.beta
        if isinstance(beta, Tensor) and beta.ndim and tuple(beta.shape) != ensemble:
            raise ValueError(
                f"beta has shape {list(beta.shape)}, but the ensemble is {list(ensemble)}"
            )
        if sign is None and self.draws_sign:
            sign = 2 * torch.randint(0, 2, ensemble) - 1
        if sign is None:
            return beta
        sign = torch.as_tensor(sign)
        if tuple(sign.shape) != ensemble or not bool((sign.abs() == 1).all()):
            raise ValueError(
                f"sign must be +1 or -1 for each member, shape {list(ensemble)}, "
                f"not {sign.tolist()}"
            )
        return beta * sign.double()

    @abstractmethod
    def betas(self, beta: float | Tensor) -> tuple[Beta, ...]:
        """Return the β of each phase. `beta` is the result of `signed`."""


class OneSided(Nudging):
    """One nudged phase with β. `EP(beta=0.2)` means `EP(nudging=OneSided(0.2))`.

    Args:
        beta: β, the strength of the nudge, not 0; a number, or a tensor [*ensemble] with one per
            member. It may be negative.
    """

    def betas(self, beta: float | Tensor) -> tuple[Beta, ...]:
        return (beta,)


class RandomSign(OneSided):
    """One nudged phase with +β or −β, drawn per minibatch and member with probability ½.

    Args:
        beta: β, the strength of the nudge, not 0; a number, or a tensor [*ensemble] with one per
            member. It may be negative.
    """

    @property
    def draws_sign(self) -> bool:
        return True


class Centred(Nudging):
    """Two nudged phases with +β and −β, both from the free state.

    Args:
        beta: β, the strength of the nudge, not 0; a number, or a tensor [*ensemble] with one per
            member. It may be negative.
    """

    def betas(self, beta: float | Tensor) -> tuple[Beta, ...]:
        return (beta, -beta)


@dataclass(frozen=True)
class Holomorphic(Nudging):
    """N nudged phases with β on a circle in the complex plane, and Cauchy's formula.

    Activations, synapses and read-out must be analytic functions: "sigmoid", "tanh" and "identity"
    are, "hard_sigmoid" and max pooling are not.

    Args:
        beta: the radius |β| of the circle, not 0; a number, or a tensor [*ensemble] with one per
            member.
        points: N, the number of phases; 2 or more. With 2 it equals `Centred`.
    """

    points: int

    def __post_init__(self) -> None:
        super().__post_init__()
        if type(self.points) is not int or self.points < 2:
            raise ValueError(f"points must be an integer of 2 or more, not {self.points!r}")

    @property
    def is_complex(self) -> bool:
        return True

    def betas(self, beta: float | Tensor) -> tuple[Beta, ...]:
        turns = (cmath.exp(2j * math.pi * k / self.points) for k in range(self.points))
        return tuple(beta * turn for turn in turns)

"""Choices that the appendix leaves open, with defaults, and the ranges that it gives."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from eqprop.runs import UserError


class Balance(StrEnum):
    """The magnitude of a layer's gradient, to which its learning rate is inversely proportional.

    NORM: the Euclidean norm over all parameters of the layer's incoming synapses.
    RMS: the root mean square over them.
    """

    NORM = "norm"
    RMS = "rms"


@dataclass(frozen=True, kw_only=True)
class Choices:
    """The settings of the procedure.

    Args:
        free_steps, nudged_steps, beta, rates: ranges of T, K, β and the largest η, (low, high). The
            defaults are the "typical ranges" of the appendix.
        settled: the residual at which a free phase counts as converged. The default changes
            Δ = (s_{t+1} − s_t)/β by a thousandth at β = 0.01.
        decayed: the share of Σ_t ‖∇(t)‖ that may come after step K.
        margin: factor on T and K measured before training, because a trained network settles more
            slowly.
        signs: largest difference between the share of equal signs and the best of any β.
        balance: the magnitude of a layer's gradient.
        epochs, seeds: number of epochs, and of networks per setting, of the short runs.
        shrink: factor on T or K at each trial of step 7.
        rise: a train error has increased if its mean exceeds the one before by more than this
            number of standard errors of the difference.
    """

    free_steps: tuple[int, int] = (10, 1000)
    nudged_steps: tuple[int, int] = (2, 100)
    beta: tuple[float, float] = (0.01, 1.0)
    rates: tuple[float, float] = (1e-3, 1e-1)
    settled: float = 1e-5
    decayed: float = 0.01
    margin: float = 2.0
    signs: float = 0.02
    balance: Balance = Balance.NORM
    epochs: int = 3
    seeds: int = 3
    shrink: float = 0.75
    rise: float = 2.0

    def __post_init__(self) -> None:
        for field, least in (("free_steps", 2), ("nudged_steps", 1), ("beta", 0), ("rates", 0)):
            low, high = getattr(self, field)
            if not (math.isfinite(high) and least <= low <= high and low > 0):
                bound = f"{least} or more" if least else "above 0"
                raise UserError(
                    f"{field} must be a range LOW,HIGH from {bound}, not {low:g},{high:g}"
                )
        for field, least, most in (
            ("settled", 0, math.inf),
            ("decayed", 0, 1),
            ("signs", 0, 1),
            ("shrink", 0, 1),
            ("margin", 0, math.inf),
        ):
            value = getattr(self, field)
            if not least < value < most:
                limit = f"between 0 and {most}" if most == 1 else "above 0"
                raise UserError(f"{field} must be {limit}, not {value:g}")
        if not 0 <= self.rise < math.inf:
            raise UserError(f"rise must be 0 or more, not {self.rise:g}")
        for field in ("epochs", "seeds"):
            if getattr(self, field) < 1:
                raise UserError(f"{field} must be 1 or more, not {getattr(self, field)}")

    def values(self) -> dict[str, Any]:
        """Return all settings as plain values, for JSON."""
        pairs = asdict(self).items()
        return {key: list(it) if isinstance(it, tuple) else it for key, it in pairs}


def within(steps: float, limits: tuple[int, int]) -> int:
    """Return a number of steps, rounded up and clipped to its limits (low, high)."""
    return min(max(math.ceil(steps), limits[0]), limits[1])


def one_two_five(limits: tuple[float, float]) -> list[float]:
    """Return 1, 2 and 5 times the powers of ten in a range; its lower end if there are none."""
    low, high = limits
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    found = [float(f"{m}e{e}") for e in range(first, last + 1) for m in (1, 2, 5)]
    return [value for value in found if low <= value <= high] or [low]

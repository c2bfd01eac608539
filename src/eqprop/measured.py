"""Mean and standard deviation over several networks: 2.28 ± 0.13."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Measured:
    """A quantity over n networks: an error in %, an angle in degrees.

    Args:
        mean: the mean; NaN if n is 0.
        std: sample standard deviation; None if n is below 2.
        n: number of networks.
    """

    mean: float
    std: float | None
    n: int

    @classmethod
    def of(cls, values: Iterable[float | None]) -> Measured:
        """Summarise one value per network; None and NaN do not count."""
        known = torch.tensor([v for v in values if v is not None], dtype=torch.float64)
        known = known[~known.isnan()]
        std = float(known.std()) if len(known) > 1 else None
        return cls(float(known.mean()), std, len(known))

    @property
    def low(self) -> float:
        """One standard deviation below the mean."""
        return self.mean - (self.std or 0.0)

    @property
    def high(self) -> float:
        """One standard deviation above the mean."""
        return self.mean + (self.std or 0.0)

    def __format__(self, spec: str) -> str:
        """Format both numbers with `spec`. Default: two decimals."""
        numbers = (self.mean,) if self.std is None else (self.mean, self.std)
        return " ± ".join(format(number, spec or ".2f") for number in numbers)

    def __str__(self) -> str:
        return format(self)

"""What a search makes small: the validation error of the last epochs, over the seeds."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

STATISTICS: dict[str, Callable[[list[float]], float]] = {
    "mean": statistics.fmean,
    "median": statistics.median,
}
NON_FINITE = 100.0  # %, the error of a network that became non-finite: it has no answers


@dataclass(frozen=True)
class Objective:
    """The validation error in %: of each network the mean of its last epochs, of these the
    `statistic`.

    Args:
        statistic: over the seeds, "mean" or "median".
        last: how many of the last epochs count, where there are as many.
    """

    statistic: str = "mean"
    last: int = 3

    def __call__(self, metrics: Sequence[dict[str, Any]], members: Iterable[int]) -> float:
        """Of these members, which are the seeds of one setting, after the epochs of `metrics`."""
        errors = [record.get("validation_error") for record in metrics[-self.last :]]
        return STATISTICS[self.statistic](
            [statistics.fmean(_known(of_epoch, i) for of_epoch in errors) for i in members]
        )


def _known(errors: list[float | None] | None, member: int) -> float:
    """A member's error; there are none at all where every member became non-finite."""
    error = errors[member] if errors else None
    return NON_FINITE if error is None else error

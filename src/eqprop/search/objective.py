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
    `statistic`. A network that became non-finite counts as 100 %, whenever that was.

    Args:
        statistic: over the seeds, "mean" or "median".
        last: how many of the last epochs count, where there are as many.
    """

    statistic: str = "mean"
    last: int = 3

    def __call__(self, metrics: Sequence[dict[str, Any]], members: Iterable[int]) -> float:
        """Of these members, which are the seeds of one setting, after the epochs of `metrics`."""
        last = metrics[-self.last :]
        return STATISTICS[self.statistic]([_error(last, member) for member in members])


def _error(metrics: Sequence[dict[str, Any]], member: int) -> float:
    """The mean over these epochs. The last has no errors where every member was non-finite."""
    if (metrics[-1].get("validation_error") or {member: None})[member] is None:
        return NON_FINITE
    return statistics.fmean(record["validation_error"][member] for record in metrics)

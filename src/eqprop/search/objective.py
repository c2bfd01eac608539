"""The objective of a search: the validation error of the last epochs, over the seeds."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

STATISTICS: dict[str, Callable[[list[float]], float]] = {
    "mean": statistics.fmean,
    "median": statistics.median,
}
NON_FINITE = 100.0  # %, the error of a network that became non-finite


@dataclass(frozen=True)
class Objective:
    """The validation error of a setting in %.

    It is the `statistic` over the networks of their mean errors in the last epochs. A network that
    became non-finite in any epoch counts as 100 %.

    Args:
        statistic: "mean" or "median" over the seeds. Default "mean".
        last: number of last epochs to average over, or fewer if there are fewer. Default 3.
    """

    statistic: str = "mean"
    last: int = 3

    def __call__(self, metrics: Sequence[dict[str, Any]], members: Iterable[int]) -> float:
        """Return the objective after the epochs in `metrics`.

        `members` are the seeds of one setting.
        """
        last = metrics[-self.last :]
        return STATISTICS[self.statistic]([_error(last, member) for member in members])


def _error(metrics: Sequence[dict[str, Any]], member: int) -> float:
    """Return the mean over these epochs. The last has no errors if no member is finite."""
    if (metrics[-1].get("validation_error") or {member: None})[member] is None:
        return NON_FINITE
    return statistics.fmean(record["validation_error"][member] for record in metrics)

"""Optuna's pruners, which stop poor trials by their values after each epoch.

Each function takes the number of epochs of a trial and returns a pruner.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def _median(epochs: int) -> Any:
    """Stop trials worse than the median of the finished ones, after a quarter of the epochs."""
    from optuna.pruners import MedianPruner

    return MedianPruner(n_startup_trials=5, n_warmup_steps=1 + epochs // 4)


def _halving(epochs: int) -> Any:
    """Stop trials that are not among the best quarter after 1, 4, 16, ... epochs."""
    from optuna.pruners import SuccessiveHalvingPruner

    return SuccessiveHalvingPruner(min_resource=1)


def _hyperband(epochs: int) -> Any:
    """Use successive halving that starts later for some trials."""
    from optuna.pruners import HyperbandPruner

    return HyperbandPruner(min_resource=1, max_resource=epochs)


def _none(epochs: int) -> Any:
    from optuna.pruners import NopPruner

    return NopPruner()


PRUNERS: dict[str, Callable[[int], Any]] = {
    "median": _median,
    "halving": _halving,
    "hyperband": _hyperband,
    "none": _none,
}

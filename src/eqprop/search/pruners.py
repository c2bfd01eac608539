"""When Optuna gives a trial up, by the values that trials have after each epoch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def _median(epochs: int) -> Any:
    """Worse than the median of the finished trials. A quarter of the epochs is left alone."""
    from optuna.pruners import MedianPruner

    return MedianPruner(n_startup_trials=5, n_warmup_steps=1 + epochs // 4)


def _halving(epochs: int) -> Any:
    """Not among the best quarter after 1, 4, 16, ... epochs."""
    from optuna.pruners import SuccessiveHalvingPruner

    return SuccessiveHalvingPruner(min_resource=1)


def _hyperband(epochs: int) -> Any:
    """Successive halving, which some trials enter later than others."""
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

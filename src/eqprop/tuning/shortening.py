"""The smallest T and K.

"Finally, in order to obtain minimal recurrent hyperparameters - i.e. smallest T and K possible - we
progressively decreased T and K until the train error increases again" (appendix F.1). Here T
decreases first, then K. Each trial is compared with the error before any decrease, so that small
increases do not add up.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from eqprop.measured import Measured
from eqprop.report.blocks import Chart, Line, Panel
from eqprop.tuning.adjusting import recorded
from eqprop.tuning.choices import Choices
from eqprop.tuning.step import Step

ErrorOf = Callable[[int], Measured]


@dataclass(frozen=True)
class Decrease:
    """Result of `decrease`.

    Args:
        kept: the smallest number of steps without an increase of the error.
        tried: {steps: train error}, in the order of the trials.
        rose: whether the last trial increased the error.
    """

    kept: int
    tried: dict[int, Measured]
    rose: bool


def increased(error: Measured, before: Measured, rise: float) -> bool:
    """Return whether an error exceeds an earlier one by more than `rise` standard errors of the
    difference. True for NaN.
    """
    variance = sum((it.std or 0.0) ** 2 / it.n for it in (error, before) if it.n)
    return not error.mean <= before.mean + rise * math.sqrt(variance)


def decrease(
    first: int, least: int, error_of: ErrorOf, before: Measured, choices: Choices
) -> Decrease:
    """Decrease a number of steps by a factor until the train error increases.

    Args:
        first: the number to start from. Its error is `before`.
        least: the smallest number to try.
        error_of: takes a number of steps, returns the train error.
        before: the train error to compare with.
        choices: gives `shrink` and `rise`.
    """
    kept, tried = first, {first: before}
    while kept > least:
        steps = max(least, math.floor(choices.shrink * kept))
        tried[steps] = error_of(steps)
        if increased(tried[steps], before, choices.rise):
            return Decrease(kept, tried, rose=True)
        kept = steps
    return Decrease(kept, tried, rose=False)


def shorten(
    T: int,
    K: int,
    error_of: Callable[[int, int], Measured],
    before: Measured,
    choices: Choices,
) -> Step:
    """Choose the smallest T, then the smallest K, that do not increase the train error.

    Args:
        T, K: the numbers to start from.
        error_of: takes T and K, returns the train error.
        before: the train error of the first T and K.
        choices: gives the ranges, `shrink` and `rise`.
    """
    free = decrease(T, choices.free_steps[0], lambda t: error_of(t, K), before, choices)
    nudged = decrease(K, choices.nudged_steps[0], lambda k: error_of(free.kept, k), before, choices)
    both = (("T", free, choices.free_steps[0]), ("K", nudged, choices.nudged_steps[0]))
    return Step(
        chosen={"rule.free_steps": free.kept, "rule.nudged_steps": nudged.kept},
        lines=tuple(_line(name, found, least, before) for name, found, least in both),
        measured={
            key: [{"steps": steps, **recorded(error)} for steps, error in found.tried.items()]
            for key, found in (("free_steps", free), ("nudged_steps", nudged))
        },
        chart=Chart(
            "7-shorter",
            "Train error as T, then K, decrease, mean ± standard deviation.",
            tuple(
                Panel(
                    f"{name} = {found.kept}",
                    name,
                    "train error (%)",
                    (Line.measured("train error", found.tried, list(found.tried.values())),),
                )
                for name, found, _ in both
            ),
        ),
    )


def _line(name: str, found: Decrease, least: int, before: Measured) -> str:
    last = list(found.tried)[-1]
    if len(found.tried) == 1:
        return f"{name} = {found.kept}: the smallest of its range already"
    error = found.tried[last]
    if found.rose:
        why = f"at {last} the train error rises from {before} to {error} %"
    else:
        why = f"the train error is {error} % there, {before} before; {least} is the smallest tried"
    return f"{name} = {found.kept}: {why}"

"""When is a number of ours the paper's?"""

from __future__ import annotations

import math

from eqprop.measured import Measured

LEAST = 0.15  # percentage points that are never held against us
WIDE = 1.0  # a published standard deviation above this is a regime, not a number


def tolerance(paper: Measured, ours: Measured) -> float:
    """By how much the means may differ: two standard errors of their difference, or LEAST.

    One network alone has no spread of its own: it is taken to have the published one. Networks
    of which some fail have so much of it that it would excuse any mean: above WIDE it buys nothing.
    """
    if paper.std is None:
        raise ValueError("a published mean is judged by its standard deviation, which is missing")
    if paper.std > WIDE:
        return paper.std
    own = paper.std if ours.std is None else min(ours.std, WIDE)
    return max(2 * math.sqrt(paper.std**2 / paper.n + own**2 / ours.n), LEAST)


def passes(paper: Measured, ours: Measured) -> bool:
    return abs(ours.mean - paper.mean) <= tolerance(paper, ours)


def miss(paper: Measured, ours: Measured) -> str:
    """By how much a row misses, in words: the difference, what is allowed, and how many standard
    errors of the difference it is with both spreads counted in full.
    """
    difference = abs(ours.mean - paper.mean)
    text = f"the means differ by {difference:.2f}, {tolerance(paper, ours):.2f} allowed"
    if paper.std is None or not ours.std:
        return text
    error = math.sqrt(paper.std**2 / paper.n + ours.std**2 / ours.n)
    return f"{text} ({difference / error:.1f} standard errors)"

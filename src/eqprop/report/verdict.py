"""The verdict: when our number agrees with the paper's."""

from __future__ import annotations

import math

from eqprop.measured import Measured

LEAST = 0.15  # smallest tolerance, in percentage points
WIDE = 1.0  # standard deviation in % above which some networks have failed


def tolerance(paper: Measured, ours: Measured) -> float:
    """Return the allowed difference of the means: two standard errors of it, and at least LEAST.

    A single network has no standard deviation; it gets the published one. If some networks fail,
    the standard deviation is so large that it would allow any mean. So above WIDE the published one
    is itself the tolerance, and ours is cut to WIDE.
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
    """Describe by how much a row misses: the difference, the tolerance, and the difference in
    standard errors, with both standard deviations in full.
    """
    difference = abs(ours.mean - paper.mean)
    text = f"the means differ by {difference:.2f}, {tolerance(paper, ours):.2f} allowed"
    if paper.std is None or not ours.std:
        return text
    error = math.sqrt(paper.std**2 / paper.n + ours.std**2 / ours.n)
    return f"{text} ({difference / error:.1f} standard errors)"

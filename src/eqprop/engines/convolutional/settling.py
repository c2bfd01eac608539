"""Whether a free phase has settled, and when each member has."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from eqprop.engines.convolutional.dynamics import Dynamics


@dataclass(frozen=True)
class _Settled:
    steps: int
    residual: Tensor
    values: list[Tensor]


class Settling:
    """The residual of a free phase. With a tolerance, a member has settled once it is no larger.

    A member that has settled moves on with the others. In the end it returns to the state that it
    had settled in.

    Args:
        phase: the state that moves.
        turns: number of steps in which every layer moves once.
        tolerance: the largest residual of a member that has settled, or None.
    """

    def __init__(self, phase: Dynamics, turns: int, tolerance: float | None) -> None:
        self._phase, self.tolerance = phase, tolerance
        self.changes = phase.y.new_zeros(turns, phase.members, phase.batch)  # of the latest turns
        self._settled: dict[int, _Settled] = {}
        self._steps = 0

    def rest(self) -> None:
        """Forget the changes: no layer has moved yet."""
        self.changes.fill_(math.nan)  # not within any tolerance

    def counts(self, after: int) -> bool:
        """Return whether the residual needs the change of a step, with so many steps after it."""
        return self.tolerance is not None or after < len(self.changes)

    def add(self, t: int, change: Tensor) -> None:
        """Take note of the largest change in step t, [members, batch]."""
        self.changes[t % len(self.changes)].copy_(change)

    def begin(self) -> None:
        """Begin a phase that ends when all members have settled."""
        self._steps, self._settled = -1, {}

    def ended(self) -> bool:
        """Return whether all members have settled. Called once before each step."""
        assert self.tolerance is not None
        self._steps += 1
        if self._steps:
            residual = self.changes.amax(0)
            small = (residual.amax(1) <= self.tolerance).nonzero().flatten().tolist()
            for i in {*small} - self._settled.keys():
                values = [s.value[i].clone() for s in self._phase.s]
                self._settled[i] = _Settled(self._steps, residual[i], values)
        return len(self._settled) == self._phase.members

    def end(self) -> None:
        """Return each member to the state in which it has settled."""
        for i, it in self._settled.items():
            for s, value in zip(self._phase.s, it.values, strict=True):
                s.value[i].copy_(value)
        for s in self._phase.s:
            s.refresh()

    def residual(self) -> Tensor:
        """Return the residual of each sample, [members, batch]."""
        found = self.changes.amax(0)
        for i, it in self._settled.items():
            found[i] = it.residual
        return found

    def steps(self, most: int) -> Tensor:
        """Return the steps that each member has taken, of at most so many: [members]."""
        settled = self._settled
        taken = [settled[i].steps if i in settled else most for i in range(self._phase.members)]
        return torch.tensor(taken, device=self.changes.device)

"""Dynamics: `relax` runs the first phase, `nudged_step` takes one step of the second.

First phase   s_{t+1} = F(x, s_t, θ)                                   Eq. (1st-phase)
Second phase  s_{t+1} = F(x, s_t, θ) − β ε ∂ℓ/∂s (s_t, y)              Eq. (C-EP), neurons
with ε = 1, or the time step in real time.
"""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Sequence, Sized
from dataclasses import dataclass

import torch
from torch import Tensor

from eqprop.model import Model, beside, per_member
from eqprop.nudging import Beta
from eqprop.readouts import Readout
from eqprop.types import State


class NonFinite(ArithmeticError):
    """Neurons or weights became NaN or infinite.

    Args:
        place: the layer or parameter.
        happened: the step or update after which it happened.
        members: which members, a bool tensor [*ensemble].
    """

    def __init__(self, place: str, happened: str, members: Tensor) -> None:
        self.place, self.members = place, members
        which = members.flatten().nonzero().flatten().tolist()
        where = f"{place} in members {which}" if members.ndim else place
        super().__init__(
            f"{where} is not finite after {happened}: "
            "the dynamics diverge; lower the learning rates or β"
        )


class NonFiniteState(NonFinite):
    """A neuron became NaN or infinite.

    Args:
        layer: its name.
        step: step of the phase, counted from 1.
        phase: "free" or "nudged".
        members: which members, a bool tensor [*ensemble].
    """

    def __init__(self, layer: str, step: int, phase: str, members: Tensor) -> None:
        self.layer, self.step, self.phase = layer, step, phase
        super().__init__(f"layer {layer!r}", f"step {step} of the {phase} phase", members)


class NotSettled(UserWarning):
    """A free phase ended before the state settled, so its gradients are not exact."""


@dataclass(frozen=True)
class Relaxation:
    """Result of a free phase.

    Args:
        state: the final state, one tensor [*ensemble, batch, *shape] per layer.
        residual: the largest change of any neuron at its last update; zero at a steady state.
        steps: number of steps taken, the maximum over members.
        sample_residual: the residual per sample, [*ensemble, batch].
        member_steps: the steps per member, [*ensemble].
        tolerance: the phase ends early once the residual is at most this. None: it never does.
        history: the last `keep` states before the final one, oldest first (see `relax`).
    """

    state: State
    residual: float
    steps: int
    sample_residual: Tensor
    member_steps: Tensor
    tolerance: float | None = None
    history: tuple[State, ...] = ()

    @property
    def settled(self) -> bool:
        """Whether the residual is at most the tolerance, or exactly zero without a tolerance."""
        return self.residual <= (self.tolerance or 0.0)


@torch.no_grad()
def relax(
    model: Model,
    x: Tensor,
    steps: int,
    tolerance: float | None = None,
    *,
    in_turn: bool = False,
    state: State | None = None,
    keep: int = 0,
) -> Relaxation:
    """Run the free phase; return the result as a `Relaxation`.

    Args:
        model: the network, or another `Model`.
        x: inputs, [batch, *shape] or [*ensemble, batch, *shape].
        steps: maximum number of steps; a positive integer.
        tolerance: stop once no neuron moves by more than this. Each ensemble member stops
            independently. Default None: take exactly `steps` steps.
        in_turn: move the groups of layers of `model.split()` in turn, one group per step. This
            is less work and has the same steady states. It cannot alternate between two of them,
            as synchronous steps of dense layers can. Default False.
        state: s_0, one tensor [*ensemble, batch, *shape] per layer. Default None: zero.
        keep: number of states to record before the final one, for BPTT. Default 0.
    """
    check_steps("steps", steps)
    check_tolerance(tolerance)
    model.check_input(x)
    groups: tuple[tuple[int, ...] | None, ...] = model.split() if in_turn else (None,)
    check_turns("steps", steps, groups)
    s = model.initial_state(x) if state is None else state
    model.check_state(x, s)
    held = model.hold(x)
    history: deque[State] = deque(maxlen=keep)
    moved: deque[Tensor] = deque(maxlen=len(groups))  # the change of each group's last update
    running = torch.ones(model.ensemble, dtype=torch.bool, device=x.device)
    taken = torch.zeros(model.ensemble, dtype=torch.long, device=x.device)
    residual = torch.full(
        (*model.ensemble, model.batch(x)), torch.inf, dtype=x.dtype, device=x.device
    )
    for t in range(steps):
        history.append(s)
        s_next = model(x, s, groups[t % len(groups)], held)
        check_finite(model, s_next, t + 1, "free")
        if tolerance is not None and model.ensemble:
            s_next = tuple(
                torch.where(beside(running, b), b, a) for a, b in zip(s, s_next, strict=True)
            )
        taken += running
        if tolerance is not None or steps - t <= len(groups):
            moved.append(_largest_change(s, s_next, len(model.ensemble)))
        s = s_next
        if len(moved) == len(groups):
            now = torch.stack(tuple(moved)).amax(0)
            residual = torch.where(running[..., None], now, residual)
            if tolerance is not None:
                running = running & (residual.amax(-1) > tolerance)
                if not bool(running.any()):
                    break
    return Relaxation(
        state=s,
        residual=float(residual.max()),
        steps=int(taken.max()),
        sample_residual=residual,
        member_steps=taken,
        tolerance=tolerance,
        history=tuple(history),
    )


def warn_unless_settled(free: Relaxation) -> None:
    """Warn with `NotSettled` if the free phase has a tolerance and did not reach it."""
    if free.tolerance is not None and not free.settled:
        warnings.warn(
            f"free phase not settled: residual {free.residual:.2g} > tolerance "
            f"{free.tolerance:g} after {free.steps} steps; raise free_steps",
            NotSettled,
            stacklevel=5,  # the caller of rule.gradients
        )


def _largest_change(s: State, s_next: State, ensemble_axes: int) -> Tensor:
    """Return the largest change of any neuron, [*ensemble, batch]."""
    changes = [
        (b - a).abs().flatten(ensemble_axes + 1).amax(-1) for a, b in zip(s, s_next, strict=True)
    ]
    return torch.stack(changes).amax(0)


def nudged_step(
    model: Model,
    x: Tensor,
    y: Tensor,
    s: State,
    beta: Beta,
    readout: Readout,
    step: int,
    layers: Sequence[int] | None = None,
) -> State:
    """Return the state after step number `step` of the second phase.

    β acts on the layers that the read-out nudges. With `layers`, only these move.
    """
    s_next = list(model(x, s, layers))
    for i, gradient in readout.nudge(s, y).items():
        if layers is not None and i not in layers:
            continue
        model.check_nudged(i)
        strength = per_member(beta, gradient, model.ensemble) * model.nudge_scale
        s_next[i] = s_next[i] - strength * gradient
    check_finite(model, tuple(s_next), step, "nudged")
    return tuple(s_next)


def check_finite(model: Model, s: State, step: int, phase: str) -> None:
    for name, layer in zip(model.layer_names, s, strict=True):
        finite = torch.isfinite(layer)
        if not bool(finite.all()):
            members = ~finite.flatten(len(model.ensemble)).all(-1)
            raise NonFiniteState(name, step, phase, members)


MOST_STEPS = 2**31 - 1  # compiled engines count steps in 32 bits


def check_steps(name: str, steps: int) -> None:
    """Raise unless every engine can take this number of steps."""
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
        raise ValueError(f"{name} must be a positive integer, not {steps!r}")
    if steps > MOST_STEPS:
        raise ValueError(f"{name} must be at most {MOST_STEPS}, not {steps}")


def check_turns(name: str, steps: int, groups: Sized, setting: str = "in_turn") -> None:
    """Raise unless each of the groups of layers that move in turn moves at least once."""
    if steps < len(groups):
        raise ValueError(
            f"{name} must be at least {len(groups)} with {setting}, one step per group of layers, "
            f"not {steps}"
        )


def check_tolerance(tolerance: float | None) -> None:
    if tolerance is not None and not tolerance >= 0:
        raise ValueError(f"tolerance must not be negative, not {tolerance}")

"""The time axis of the models: how one step turns the drive on a layer into its next state.

`Discrete`:  s' = σ(drive),                            a synapse transmits s
`RealTime`:  s' = (1 − ε) s + ε σ'(s) · drive,         a synapse transmits σ(s)
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from eqprop.activations import Activation

SLOPES = ("all", "hidden", "none")


@dataclass(frozen=True)
class Discrete:
    """Discrete time: s_{t+1} = σ(W s_t + W_x x), the vanilla RNN (Eq. cep-discrete).

    Its Φ = Σ s·W·s ignores σ, so F = ∂Φ/∂s only up to σ'.
    """

    @property
    def epsilon(self) -> float:
        return 1.0

    def rate(self, activation: Activation, s: Tensor) -> Tensor:
        """What a neuron transmits."""
        return s

    def advance(self, activation: Activation, s: Tensor, drive: Tensor, output: bool) -> Tensor:
        return activation(drive)

    def gain(self, activation: Activation, s: Tensor, output: bool) -> Tensor | float:
        """Return ∂s'/∂drive as the local rules use it: the paper ignores the factor σ'."""
        return 1.0

    def leak(self, s: Tensor) -> Tensor:
        """Return the part of Φ without synapses, one value per sample; s: [*ensemble, batch, n]."""
        return torch.zeros_like(s[..., 0])


@dataclass(frozen=True)
class RealTime:
    """Real time: s_{t+1} = (1 − ε) s_t + ε σ'(s_t) · (W σ(s_t) + W_x σ(x)), with ε = `dt`.

    Args:
        dt: ε, the length of a step, in (0, 1].
        slope: which layers have the factor σ'. "all" (default): F = ∂Φ/∂s and Theorem 1 holds.
            "none": as in the paper's equations of motion. "hidden", all but the output: as in the
            authors' code.
    """

    dt: float
    slope: str = "all"

    def __post_init__(self) -> None:
        if not 0 < self.dt <= 1:
            raise ValueError(f"dt must lie in (0, 1], not {self.dt}")
        if self.slope not in SLOPES:
            raise ValueError(f"slope {self.slope!r} is unknown: choose one of {', '.join(SLOPES)}")

    @property
    def epsilon(self) -> float:
        return self.dt  # the paper nudges by βε(y − s⁰)

    def rate(self, activation: Activation, s: Tensor) -> Tensor:
        """What a neuron transmits."""
        return activation(s)

    def advance(self, activation: Activation, s: Tensor, drive: Tensor, output: bool) -> Tensor:
        return (1 - self.dt) * s + self.gain(activation, s, output) * drive

    def gain(self, activation: Activation, s: Tensor, output: bool) -> Tensor | float:
        """Return ∂s'/∂drive."""
        if self.slope == "none" or (self.slope == "hidden" and output):
            return self.dt
        return self.dt * activation.slope(s)

    def leak(self, s: Tensor) -> Tensor:
        """Return ½(1 − ε)‖s‖², the part of Φ without synapses, one value per sample; s:
        [*ensemble, batch, n].
        """
        return 0.5 * (1 - self.dt) * (s**2).sum(-1)


Timesteps = Discrete | RealTime

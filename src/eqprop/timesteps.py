"""The time axis of the models: how one step turns the drive on a layer into its next state.

`Discrete`:  s' = (1 − ω) s + ω σ(drive),              a synapse transmits s; ω = 1 in the paper
`RealTime`:  s' = (1 − ε) s + ε σ'(s) · drive,         a synapse transmits σ(s)
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from eqprop.activations import Activation

SLOPES = ("all", "hidden", "none")


@dataclass(frozen=True)
class Discrete:
    """Discrete time: s_{t+1} = σ(W s_t + W_x x), the vanilla RNN (Eq. cep-discrete).

    Its Φ = Σ s·W·s ignores σ, so F = ∂Φ/∂s only up to σ'.

    Args:
        relaxation: ω, in (0, 2), in s' = (1 − ω) s + ω σ(drive). The steady states are the same.
            With layers in turn, ω > 1 (over-relaxation) reaches them in fewer steps. Neurons stay
            within the bounds of σ, except in the output layer, which the nudge may drive beyond
            them. Default 1: s' = σ(drive).
    """

    relaxation: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.relaxation < 2:
            raise ValueError(f"relaxation must lie in (0, 2), not {self.relaxation}")

    @property
    def epsilon(self) -> float:
        return self.relaxation  # a nudge of βω keeps the steady state of β

    def rate(self, activation: Activation, s: Tensor) -> Tensor:
        """What a neuron transmits."""
        return s

    def advance(self, activation: Activation, s: Tensor, drive: Tensor, output: bool) -> Tensor:
        if self.relaxation == 1:
            return activation(drive)
        s_next = (1 - self.relaxation) * s + self.relaxation * activation(drive)
        bounds = self.bounds(activation, output)
        return s_next if bounds is None else s_next.clamp(*bounds)

    def bounds(self, activation: Activation, output: bool) -> tuple[float, float] | None:
        """Return the bounds within which a step has to hold the neurons of a layer; None: none."""
        return None if output or self.relaxation == 1 else activation.bounds

    def gain(self, activation: Activation, s: Tensor, output: bool) -> Tensor | float:
        """Return ∂s'/∂drive as the local rules use it: the paper ignores the factor σ'."""
        return self.relaxation

    def leak(self, s: Tensor) -> Tensor:
        """Return ½(1 − ω)‖s‖², the part of Φ without synapses, one value per sample; s:
        [*ensemble, batch, n].
        """
        return _leak(self.relaxation, s)


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
        return _leak(self.dt, s)


def _leak(epsilon: float, s: Tensor) -> Tensor:
    return 0.5 * (1 - epsilon) * (s**2).sum(-1)


Timesteps = Discrete | RealTime

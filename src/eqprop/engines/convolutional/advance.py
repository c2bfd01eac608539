"""How a drive moves a layer."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from eqprop.activations import HARD_SIGMOID, SIGMOID, TANH, Activation
from eqprop.engines.convolutional.layers import Neurons
from eqprop.network import Network
from eqprop.timesteps import Discrete


@dataclass(frozen=True)
class Advance:
    """s' = (1 − ω) s + ω σ(drive) − nudge, where the nudge has the factor ω already.

    Args:
        sigma: σ, the activation of the layer.
        relaxation: ω.
        bounds: what the layer is held within before it is nudged, or None.
    """

    sigma: Activation
    relaxation: float = 1.0
    bounds: tuple[float, float] | None = None

    @classmethod
    def of(cls, net: Network, k: int) -> Advance:
        """Return how layer k of a network in discrete time moves."""
        assert isinstance(net.time, Discrete)
        sigma, output = net.activations[k], k == len(net.layers) - 1
        return cls(sigma, net.time.relaxation, net.time.bounds(sigma, output))

    def move(self, drive: Tensor, nudge: Tensor | None, layer: Neurons) -> None:
        """Move a layer. The drive and the nudge, or None, are shaped like it."""
        if self.relaxation == 1:
            _activate(self.sigma, drive, out=layer.value)
        else:
            there = torch.empty_like(layer.value)
            _activate(self.sigma, drive, out=there)
            layer.value.mul_(1 - self.relaxation).add_(there, alpha=self.relaxation)
            if self.bounds is not None:
                layer.value.clamp_(*self.bounds)
        if nudge is not None:
            layer.value.sub_(nudge)
        layer.refresh()


def _activate(sigma: Activation, drive: Tensor, out: Tensor) -> None:
    """Write σ(drive) to `out`."""
    if sigma == HARD_SIGMOID:
        torch.clamp(drive, 0, 1, out=out)
    elif sigma == TANH:
        torch.tanh(drive, out=out)
    elif sigma == SIGMOID:
        torch.mul(drive, 4, out=out).sub_(2).sigmoid_()
    else:
        out.copy_(drive)

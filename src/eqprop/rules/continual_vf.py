"""The continual vector-field rule: C-EP for networks without a Φ (appendix D).

s_{t+1} = F(x, s_t, W_t) − β ∂ℓ/∂s(s_t, y)
W_{t+1} = W_t + (η/β) (∂F/∂W(s_t, W_t))ᵀ · (s_{t+1} − s_t)                 Eq. (c-vf-2nd-phase)
"""

from __future__ import annotations

from dataclasses import dataclass

from eqprop.rules.two_phase import Continual
from eqprop.rules.vector_field import VectorFieldRule


@dataclass(frozen=True, kw_only=True)
class ContinualVF(VectorFieldRule, Continual):
    """The continual vector-field rule: K small gradients per minibatch, as in `ContinualEP`.

    It needs no primitive function: forward and backward weights may differ.
    """

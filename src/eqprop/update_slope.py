"""The factor σ′ in the vector-field update of a discrete-time network, in three variants.

s'_i = σ(Σ_k u_ik), where u_ik is the drive of synapse k on layer i, including its bias.
∂F/∂W of synapse k carries σ′(Σ_k u_ik); the paper drops it.
"""

from __future__ import annotations

from enum import StrEnum


class UpdateSlope(StrEnum):
    """Where σ′ is evaluated in Δ_W = (1/β) preᵀ · (σ′ ⊙ (s_{t+1} − s_t)).

    NONE: no factor, as in the paper's text and the authors' release.
    OWN: at the drive of this synapse alone, including its bias, as in the code that produced the
    published C-VF results.
    FULL: at the whole drive of the layer. The update then uses ∂F/∂W exactly (Theorem 2).
    """

    NONE = "none"
    OWN = "own"
    FULL = "full"


def as_update_slope(choice: str) -> UpdateSlope:
    """Return the `UpdateSlope` with this name."""
    try:
        return UpdateSlope(choice)
    except ValueError:
        raise ValueError(
            f"update_slope {choice!r} is unknown: choose one of {', '.join(UpdateSlope)}"
        ) from None

"""One seed a network, one independent stream of random numbers for each use of it.

Member i of an ensemble with seed s is exactly the network of seed s + i: it draws from streams
that depend on its own seed alone, so it is the same in any company.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence

import torch

from eqprop import memory

SEED_BYTES = 40  # of an integer in a tuple


def generator(seed: int, purpose: str) -> torch.Generator:
    """The stream that `seed` provides for `purpose` ("weights", "beta sign", ...)."""
    digest = hashlib.sha256(f"{purpose}:{seed}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)


def member_seeds(seed: int | Sequence[int], ensemble: tuple[int, ...]) -> tuple[int, ...]:
    """The seed of each member, in the row-major order of the ensemble axes."""
    members = math.prod(ensemble)
    memory.require(SEED_BYTES * members, f"an ensemble of {members} networks")
    if isinstance(seed, int):
        return tuple(range(seed, seed + members))
    if not isinstance(seed, Sequence) or not all(isinstance(s, int) for s in seed):
        raise ValueError(f"seed must be an integer, or one for each member, not {seed!r}")
    seeds = tuple(seed)
    if len(seeds) != members:
        raise ValueError(f"seed has {len(seeds)} entries, but the ensemble has {members} member(s)")
    return seeds

"""One seed per network, and one independent stream of random numbers per use of that seed.

Member i of an ensemble with seed s is exactly the network of seed s + i. Its streams depend on
its own seed alone, so the other members do not change it.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence

import torch

from eqprop import memory

SEED_BYTES = 40  # size of an integer in a tuple


def generator(seed: int, purpose: str) -> torch.Generator:
    """Return the stream of `seed` for one purpose, such as "weights" or "beta sign"."""
    digest = hashlib.sha256(f"{purpose}:{seed}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)


def member_seeds(seed: int | Sequence[int], ensemble: tuple[int, ...]) -> tuple[int, ...]:
    """Return one seed per member, in row-major order of the ensemble axes.

    Args:
        seed: the seed of the first member (the others count up from it), or one per member.
        ensemble: the shape of the ensemble.
    """
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

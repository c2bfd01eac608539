"""What an engine asks of a data set: samples in memory. A `Split` has all of it."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor


class Samples(Protocol):
    """Images [n, *shape] with their labels [n], integers below `classes`."""

    @property
    def images(self) -> Tensor: ...

    @property
    def labels(self) -> Tensor: ...

    @property
    def classes(self) -> int: ...

    @property
    def plain_bytes(self) -> bool:
        """Whether images are bytes that are read as pixels / 255 and nothing else."""

    def batch(self, index: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Inputs [*, batch, *shape] and one-hot targets [*, batch, classes] of some samples."""

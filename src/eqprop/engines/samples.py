"""The interface between engines and data sets. `Split` implements it."""

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
        """Whether images are bytes and inputs are exactly pixels / 255."""

    def batch(self, index: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Return inputs [*, batch, *shape] and one-hot targets [*, batch, classes]."""

"""Arithmetic of a process that trains: what convolutions multiply, and TF32 on a GPU."""

from __future__ import annotations

from dataclasses import dataclass

import torch

# what convolutions multiply; float32 is what the networks of a recipe have
PRECISIONS = {"float32": None, "float16": torch.float16, "bfloat16": torch.bfloat16}


@dataclass(frozen=True)
class Arithmetic:
    """Options `--precision` and `--tf32` of the command line.

    Args:
        precision: what convolutions multiply, one of `PRECISIONS`. Default None: float32, on a GPU
            as TF32.
        tf32: whether products of matrices use TF32 on a GPU. Default False.
    """

    precision: str | None = None
    tf32: bool = False

    def set_up(self) -> torch.dtype | None:
        """Set PyTorch's switches in this process; return the `precision` of `make_engine`."""
        torch.set_float32_matmul_precision("high" if self.tf32 else "highest")
        torch.backends.cudnn.allow_tf32 = self.precision is None
        return None if self.precision is None else PRECISIONS[self.precision]

    @property
    def words(self) -> list[str]:
        """The options as words of a command."""
        precision = [] if self.precision is None else ["--precision", self.precision]
        return precision + ["--tf32"] * self.tf32

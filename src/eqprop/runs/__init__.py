"""Training runs: recipes, folders, and what came of them."""

from __future__ import annotations

from pathlib import Path

from eqprop.network import Network
from eqprop.runs.evaluation import restore
from eqprop.runs.folder import RunFolder
from eqprop.runs.recipe import Recipe


def load(folder: str | Path) -> tuple[Recipe, Network, list[int]]:
    """The recipe of a run, its networks as last saved, and which members they are."""
    return restore(RunFolder.existing(folder))


__all__ = ["load"]

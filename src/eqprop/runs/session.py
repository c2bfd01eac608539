"""A run as a person has it: in its folder, held by one process, watched, stopped by a signal."""

from __future__ import annotations

from typing import Any

import torch

from eqprop.runs.progress import Progress
from eqprop.runs.training import Training


def train(training: Training, resume: bool) -> dict[str, Any]:
    """Train to the end, from the start or from where the folder is; return the summary.

    Ctrl-C and SIGTERM save and raise `Interrupted`.
    """
    recipe, folder = training.recipe, training.folder
    if training.engine.threads:
        torch.set_num_threads(1)  # PyTorch's own would only be in the way of the engine's
    with folder.locked():
        folder.check(recipe, resume)  # once more, now that nobody else can change it
        if resume:
            training.resume()
        folder.write_text("recipe.toml", recipe.to_toml())
        progress = Progress(folder, recipe.epochs, training.at.epoch)
        with progress.catching_signals():
            return training.run(progress)

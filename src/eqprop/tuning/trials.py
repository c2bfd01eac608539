"""Short training runs whose train errors decide: of the training set alone, counted online.

"Hyperparameters where adjusted until having a train error the closest to zero" (appendix F.1).
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from eqprop import runs
from eqprop.measured import Measured
from eqprop.runs import Recipe
from eqprop.runs import recipe as recipes
from eqprop.runs.folder import RunFolder
from eqprop.splits import Dataset


def training_only(data: Dataset) -> Dataset:
    """The same data without its test set: in its place stands the first training sample."""
    return replace(data, test=data.train.head(1))


@dataclass(frozen=True)
class Trials:
    """Short runs of one recipe, each with other values, kept in run folders.

    A trial that was stopped goes on where it was; a complete one is read from its folder.

    Args:
        recipe: what all trials share.
        data: the training set, see `training_only`.
        folder: where their run folders lie.
        epochs, seeds: how long, and how many networks per setting.
        say: is given a line per epoch.
        device, threads: as `eqprop.train` takes them.
    """

    recipe: Recipe
    data: Dataset
    folder: Path
    epochs: int
    seeds: int
    say: Callable[[str], None]
    device: str = "cpu"
    threads: int | None = None

    def errors(self, name: str, values: Mapping[str, Any]) -> list[Measured]:
        """The train error in the last epoch of each setting, in the order of `recipe.settings`.

        A setting of which a network became non-finite has NaN.
        """
        trial = recipes.changed(
            self.recipe,
            {
                "name": name,
                "epochs": self.epochs,
                "seeds": self.seeds,
                "data.test_samples": None,
                **values,
            },
        )
        metrics = self._metrics(trial, RunFolder(self.folder / name))
        last = metrics[-1]["train_error"]
        nothing = Measured.of(())
        return [
            nothing if None in (found := [last[i] for i in chosen]) else Measured.of(found)
            for chosen in trial.settings().values()
        ]

    def _metrics(self, trial: Recipe, folder: RunFolder) -> list[dict[str, Any]]:
        begun = folder.begun
        if begun and not folder.recipe().differences(trial) and folder.summary()["complete"]:
            return folder.metrics()
        n = len(trial.members())
        self.say(f"  training {n} networks for {trial.epochs} epochs in {folder.path}")
        how: dict[str, Any] = {"device": self.device, "threads": self.threads, "resume": begun}
        done = runs.train(
            trial, self.data, folder.path, progress=False, callback=self._epoch, **how
        )
        shutil.rmtree(folder.checkpoints)  # nobody asks for these weights again
        return done.metrics

    def _epoch(self, record: dict[str, Any]) -> None:
        known = [error for error in record["train_error"] if error is not None]
        best = f"best train error {min(known):.2f} %" if known else "no network is finite"
        self.say(f"  epoch {record['epoch']}/{self.epochs}: {best}")

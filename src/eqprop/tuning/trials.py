"""Short training runs, compared by their train errors, which are counted during training.

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
    """Return the data with the first training sample as its test set."""
    return replace(data, test=data.train.head(1))


@dataclass(frozen=True)
class Trials:
    """Short runs of one recipe with different values, each in its run folder.

    A trial that was stopped resumes. A complete trial is read from its folder.

    Args:
        recipe: the recipe that all trials share.
        data: the training set, see `training_only`.
        folder: the folder of the run folders.
        epochs, seeds: number of epochs, and of networks per setting.
        say: takes one line per epoch.
        device, threads: as for `eqprop.train`. Default "cpu" and None.
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
        """Return the train error in the last epoch per setting, in the order of `recipe.settings`.

        It is NaN if a network of the setting became non-finite.

        Args:
            name: name of the trial and its run folder.
            values: {field: value}, with lists for several settings.
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
        shutil.rmtree(folder.checkpoints)  # these weights are not needed again
        return done.metrics

    def _epoch(self, record: dict[str, Any]) -> None:
        known = [error for error in record["train_error"] if error is not None]
        best = f"best train error {min(known):.2f} %" if known else "no network is finite"
        self.say(f"  epoch {record['epoch']}/{self.epochs}: {best}")

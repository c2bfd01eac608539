"""One process of a search: train groups of trials, then the best setting on the whole set."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from eqprop import runs
from eqprop.data import Dataset
from eqprop.runs import Recipe, Run, UserError
from eqprop.runs.files import write_whole
from eqprop.runs.training import check_fits
from eqprop.search.plan import Group
from eqprop.search.study import Trials


@dataclass(frozen=True)
class Search:
    """One process of a search.

    Args:
        trials: the trials of the search.
        data: the whole data set. Recipes choose from it.
        how: `device`, `engine` and `threads` of `eqprop.train`.
        watch: called with a description of the training and its epoch, None at its end. Default:
            do nothing.
    """

    trials: Trials
    data: Dataset
    how: dict[str, Any]
    watch: Callable[[str, int | None], None] = lambda what, epoch: None

    def run(self, total: int, batch: int) -> None:
        """Train waiting groups, and propose `batch` new trials at a time up to `total`."""
        while True:
            with self.trials.taken(total, batch, self._check) as group:
                if group is None:
                    return
                self._train(group)
                self.watch(group.words, None)

    def _check(self, recipe: Recipe) -> None:
        check_fits(self.data, recipe)

    def _train(self, group: Group) -> None:
        folder, objective = self.trials.folder.run(group.name), self.trials.plan.objective
        metrics: list[dict[str, Any]] = []

        def values() -> dict[int, float]:
            return {number: objective(metrics, of) for number, of in group.members.items()}

        def prune(record: dict[str, Any]) -> set[int]:
            epoch = record["epoch"]
            metrics[:] = [*(metrics or folder.metrics()), record]  # a resumed run has metrics
            self.trials.report(group, values(), epoch)
            self.watch(group.words, epoch)
            return self.trials.pruned(group, epoch)

        options: dict[str, Any] = {"prune": prune, "resume": folder.begun, **self.how}
        metrics = runs.train(
            group.recipe, self.data, folder.path, progress=False, **options
        ).metrics
        self.trials.finish(group, values())

    def final(self, **more: int) -> Run | None:
        """Train the best setting once on the whole training set, and test it.

        `more` replaces `epochs` and `seeds` of the recipe. Returns None if trials are unfinished or
        another process trains the best setting.
        """
        if self.trials.unfinished():
            return None
        best = self.trials.best()
        if best is None:
            raise UserError(f"{self.trials.folder.path}: no trial is complete, so none is best")
        claim = self.trials.folder.lock("final")
        if not claim.acquire(wait=False):
            return None
        try:
            note = f"trial {best.number} of a search: validation error {best.value:.2f} %"
            whole = {"data.validation": None, "description": note}
            recipe = self.trials.plan.proposed(best, whole | more)
            folder = self.trials.folder.final(best.number)
            write_whole(self.trials.folder.best, recipe.to_toml().encode())
            options: dict[str, Any] = {
                "callback": lambda record: self.watch("the best setting", record["epoch"]),
                "resume": folder.begun,
                **self.how,
            }
            return runs.train(recipe, self.data, folder.path, progress=False, **options)
        finally:
            claim.release()

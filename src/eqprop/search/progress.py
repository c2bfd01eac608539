"""Progress of a search: a bar of trials."""

from __future__ import annotations

import sys
from typing import Any

from tqdm import tqdm

from eqprop.runs.progress import say
from eqprop.search.study import Trials


class Line:
    """Shows a bar of trials on a terminal; elsewhere prints one line per group."""

    def __init__(self, trials: Trials, total: int) -> None:
        self._trials, self._total = trials, total
        self._bar: tqdm[Any] | None = None
        if sys.stderr.isatty():
            self._bar = tqdm(total=total, desc="search", unit="trial", dynamic_ncols=True)
            self._bar.update(self._finished())

    def _finished(self) -> int:
        return len(self._trials.all()) - len(self._trials.unfinished())

    def __call__(self, what: str, epoch: int | None) -> None:
        """Show that `what` has finished an epoch; None: that it is complete."""
        if self._bar is not None:
            now = "done" if epoch is None else f"epoch {epoch}"
            self._bar.set_postfix_str(f"{self._best()} | {what}: {now}", refresh=False)
            self._bar.update(self._finished() - self._bar.n)
            self._bar.refresh()
        elif epoch is None:
            done = f"{self._finished()}/{self._total} trials"
            say(f"{done}, {self._best()} | {what}", sys.stdout)

    def _best(self) -> str:
        best = self._trials.best()
        return f"best {best.value:.2f} % (trial {best.number})" if best else "no trial complete"

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()

"""The trials of a search, in a journal file that several processes share.

A trial belongs to a group. A group trains as one ensemble in one run folder. The process that
trains a group holds a lock, its claim. A group with unfinished trials and no claim is waiting: it
has not started, or its process has ended. So a process takes new and abandoned groups in the same
way, and needs no timeout to find dead processes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import groupby
from typing import Any

import optuna
from optuna.samplers import TPESampler
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, Trial, TrialState

from eqprop.runs import Recipe, UserError
from eqprop.search.folder import SearchFolder
from eqprop.search.plan import Group, Plan
from eqprop.search.pruners import PRUNERS

PLAN = "plan"  # attribute of the study
GROUP, INVALID = "group", "invalid"  # attributes of a trial
RUNNING, COMPLETE, PRUNED, FAIL = (
    TrialState.RUNNING,
    TrialState.COMPLETE,
    TrialState.PRUNED,
    TrialState.FAIL,
)


class Trials:
    """The trials in the folder of a search.

    Args:
        folder: the folder of the search.
        plan: the plan. It must equal that of the journal, if there is one. Default None: the plan
            of the journal.
    """

    def __init__(self, folder: SearchFolder, plan: Plan | None = None) -> None:
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self.folder = folder
        self._lock = folder.lock("trials")
        with self._lock:
            self.study = self._study()
            if PLAN not in self.study.user_attrs and plan is not None:
                self.study.set_user_attr(PLAN, plan.as_dict())
            told = self.study.user_attrs.get(PLAN)
        if told is None:
            raise UserError(f"{folder.path}: the search has not begun yet")
        self.plan = Plan.of(told, str(folder.journal))
        if plan is not None and (differing := self.plan.differences(plan)):
            raise UserError(
                f"{folder.path}: holds another search (it differs in {', '.join(differing)}): "
                "choose another --out"
            )
        self.study.pruner = PRUNERS[self.plan.pruner](self.plan.recipe.epochs)

    def _study(self) -> optuna.Study:
        journal, lock = self.folder.journal, self.folder.lock("journal")
        with lock:  # nobody writes now, so an incomplete line is from a process that was killed
            if journal.is_file() and not (content := journal.read_bytes()).endswith(b"\n"):
                os.truncate(journal, content.rfind(b"\n") + 1)
        held: Any = lock  # Optuna's own locks outlive a process that is killed
        try:
            storage = JournalStorage(JournalFileBackend(str(journal), lock_obj=held))
            return optuna.create_study(storage=storage, study_name="search", load_if_exists=True)
        except (ValueError, KeyError) as error:
            raise UserError(
                f"{journal}: damaged ({error}): put it back, or choose another --out"
            ) from None

    def all(self) -> list[FrozenTrial]:
        """Return all trials except those whose proposal was interrupted."""
        trials = self.study.get_trials(deepcopy=False)
        return [t for t in trials if t.state != FAIL or INVALID in t.user_attrs]

    def unfinished(self) -> list[FrozenTrial]:
        return [trial for trial in self.all() if not trial.state.is_finished()]

    def best(self) -> FrozenTrial | None:
        """Return the complete trial with the smallest value, the first of equals; None if none."""
        complete = [trial for trial in self.all() if trial.state == COMPLETE]
        return min(complete, key=lambda trial: (trial.value, trial.number), default=None)

    @contextmanager
    def taken(
        self, total: int, batch: int, valid: Callable[[Recipe], None]
    ) -> Iterator[Group | None]:
        """Claim a waiting group and yield it; None if there are `total` trials and none waits.

        Args:
            total: number of trials of the search.
            batch: number of trials to propose at a time.
            valid: raises a UserError for a recipe that cannot be trained. Its trial then fails.
        """
        with self._lock:
            self._fail_half_proposed()
            found = self._claimed()
            while found is None and (room := total - len(self.all())) > 0:
                self._propose(min(batch, room), valid)
                found = self._claimed()
        if found is None:
            yield None
            return
        group, claim = found
        try:
            yield group
        finally:
            claim.release()

    def _fail_half_proposed(self) -> None:
        """Fail trials without a group. This process has the lock, so theirs was killed."""
        for trial in self.unfinished():
            if GROUP not in trial.user_attrs:
                self.study.tell(trial.number, state=FAIL)

    def _claimed(self) -> tuple[Group, Any] | None:
        for name in dict.fromkeys(trial.user_attrs[GROUP] for trial in self.unfinished()):
            claim = self.folder.lock(name)
            if claim.acquire(wait=False):
                trials = [t for t in self.all() if t.user_attrs.get(GROUP) == name]
                return Group(name, trials, self.plan), claim
        return None

    def _propose(self, batch: int, valid: Callable[[Recipe], None]) -> None:
        """Ask Optuna for trials and put them into groups."""
        # Each batch has its own seed, so that processes do not repeat each other.
        known = len(self.study.get_trials(deepcopy=False))
        self.study.sampler = TPESampler(seed=self.plan.seed + known, constant_liar=True)
        parameters = self.plan.space.parameters()
        asked: list[FrozenTrial] = []
        for _ in range(batch):
            trial = self.study.ask(parameters)
            frozen = self.study.get_trials(deepcopy=False)[trial.number]
            try:
                valid(self.plan.proposed(frozen))
            except UserError as error:
                trial.set_user_attr(INVALID, str(error))
                self.study.tell(trial, state=FAIL)
            else:
                asked.append(frozen)
        shape = self.plan.shape
        for _, alike in groupby(sorted(asked, key=shape), key=shape):
            trials = list(alike)
            name = f"trials-{min(trial.number for trial in trials)}"
            Group(name, trials, self.plan)  # raises if memory does not suffice
            for frozen in trials:
                self._open(frozen).set_user_attr(GROUP, name)

    def _open(self, trial: FrozenTrial) -> Trial:
        """Return a trial to report to, even if another process has asked for it."""
        return Trial(self.study, trial._trial_id)

    def report(self, group: Group, values: dict[int, float], epoch: int) -> None:
        """Report the value of each trial after an epoch to Optuna, and prune the trials it rejects.

        Skip trials that have reported this epoch before. `values` is {number of a trial: value}.
        """
        fresh = [
            self._open(trial)
            for trial in self.current(group)
            if trial.state == RUNNING and epoch not in trial.intermediate_values
        ]
        for trial in fresh:
            trial.report(values[trial.number], epoch)
        for trial in fresh if epoch < self.plan.recipe.epochs else ():
            if trial.should_prune():
                self.study.tell(trial, state=PRUNED)

    def current(self, group: Group) -> list[FrozenTrial]:
        """Return the current state of the trials of a group."""
        trials = self.study.get_trials(deepcopy=False)
        return [trials[trial.number] for trial in group.trials]

    def pruned(self, group: Group, epoch: int) -> set[int]:
        """Return the members that need no training after an epoch."""
        members: dict[bool, set[int]] = {True: set(), False: set()}
        for trial in self.current(group):
            over = trial.state == PRUNED and (trial.last_step or 0) <= epoch
            members[over] |= {*group.members[trial.number]}
        return members[True] - members[False]

    def finish(self, group: Group, values: dict[int, float]) -> None:
        """Report the final values of the trials that were not pruned to Optuna."""
        for trial in self.current(group):
            if trial.state == RUNNING:
                self.study.tell(trial.number, values[trial.number])

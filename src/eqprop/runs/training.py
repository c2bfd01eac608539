"""The training loop: epochs of minibatches through an engine, recorded and resumable.

The order of the samples and the signs of β in an epoch depend only on a member's seed and the
epoch. So a run that stops at any minibatch and resumes gives exactly the same numbers.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Protocol

import torch
from torch import Tensor

from eqprop.analysis import angle, total_update
from eqprop.data import Dataset
from eqprop.dynamics import NonFinite, NotSettled
from eqprop.engines import Engine, make_engine, resolve_rates
from eqprop.network import Network
from eqprop.runs import machine
from eqprop.runs.evaluation import measure, weights
from eqprop.runs.folder import Checkpoint
from eqprop.runs.parts import Member
from eqprop.runs.recipe import Recipe, UserError
from eqprop.seeds import generator
from eqprop.splits import Split
from eqprop.types import Gradients

SAVE_SHARE = 50  # save after an epoch if this many times the duration of the last save has passed


class Interrupted(Exception):
    """A run has saved everything and stopped on request."""

    def __init__(self, epoch: int, minibatch: int) -> None:
        self.epoch, self.minibatch = epoch, minibatch
        super().__init__(f"stopped in epoch {epoch} after {minibatch} minibatches, saved")


class Watcher:
    """Observes a run. A subclass overrides methods; this one does nothing.

    The run stops after the current minibatch if `stop_requested` is True.
    """

    stop_requested = False

    def minibatch(self, epoch: int, done: int, of: int, train_error: float) -> None: ...

    def epoch(self, record: dict[str, Any], seconds: float) -> None: ...

    def non_finite(self, entry: dict[str, Any]) -> None: ...

    def angles(self, record: dict[str, Any]) -> None: ...

    def say(self, line: str) -> None: ...

    def close(self) -> None: ...


class Keeper(Protocol):
    """Stores metrics, angles and checkpoints."""

    def append(self, record: dict[str, Any]) -> None: ...

    def append_angles(self, record: dict[str, Any]) -> None: ...

    def save(self, state: dict[str, Any]) -> None: ...


Callback = Callable[[dict[str, Any]], object]  # takes the metrics of an epoch; True stops the run
Prune = Callable[[dict[str, Any]], Collection[int]]  # takes them, returns the members to prune


@dataclass
class _Position:
    """Position in the run, and the sums of the current epoch."""

    epoch: int = 0  # number of complete epochs
    minibatch: int = 0  # number of complete minibatches of the current epoch
    wrong: Tensor = field(default_factory=lambda: torch.zeros(0))  # [E]
    loss: Tensor = field(default_factory=lambda: torch.zeros(0))  # [E]
    seconds: float = 0.0


class Training:
    """One run of a recipe, in memory.

    `metrics` holds one record per complete epoch. `net` is the ensemble of the members in `living`:
    those that are finite and not pruned.

    Args:
        recipe: the recipe.
        data: the data set.
        device: "cpu" or "cuda". Default "cpu".
        engine: name of the engine. Default "auto": the fastest.
        threads: number of CPU threads. Default None: one per core.
        precision: see `make_engine`. Default None.
        angles_every: number of minibatches between records of the angle to BPTT. Default None:
            record none.
    """

    def __init__(
        self,
        recipe: Recipe,
        data: Dataset,
        *,
        device: str = "cpu",
        engine: str = "auto",
        threads: int | None = None,
        precision: torch.dtype | None = None,
        angles_every: int | None = None,
    ) -> None:
        self.recipe = recipe
        self.device, self.engine_kind = device, engine
        self.angles_every, self.threads, self.precision = angles_every, threads, precision
        if angles_every is not None and angles_every < 1:
            raise UserError(f"angles_every must be 1 or more, not {angles_every}")
        rule = recipe.rule
        if angles_every and rule.nudged_steps > rule.free_steps:
            raise UserError(
                f"nudged_steps ({rule.nudged_steps}) must not exceed free_steps "
                f"({rule.free_steps}) if angles are to be recorded"
            )
        self.data = fitting(data, recipe).to(device)
        self.members = recipe.members()
        self.living = list(range(len(self.members)))
        self.non_finite: list[dict[str, Any]] = []
        self.metrics: list[dict[str, Any]] = []
        self.net = recipe.network.build(self.members).to(device)
        self.engine = self._make_engine()
        self.started = f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC"
        # read now, because the sources may change during a long run
        self.where = machine.describe(device, self.engine.threads, precision)
        self.at = self._fresh_position()
        self._saved_at = self._save_took = 0.0
        self._drawn: tuple[tuple[int, tuple[int, ...]], Split] | None = None
        self.watcher = Watcher()
        self.keeper: Keeper | None = None

    def _fresh_position(self) -> _Position:
        zeros = torch.zeros(len(self.members), dtype=torch.float64, device=self.device)
        return _Position(wrong=zeros, loss=zeros.clone())

    def _living_members(self) -> list[Member]:
        return [self.members[i] for i in self.living]

    def _make_engine(self) -> Engine:
        return recipe_engine(
            self.recipe,
            self._living_members(),
            self.net,
            self.engine_kind,
            self.threads,
            self.precision,
        )

    def resume(self, saved: Checkpoint) -> None:
        """Continue from a checkpoint."""
        self.living, self.non_finite = saved.living, saved.non_finite
        counts = saved.wrong.to(self.device), saved.loss.to(self.device)
        self.at = _Position(saved.epoch, saved.minibatch, *counts, saved.seconds)
        if saved.net is not None:
            self.net = saved.net.to(self.device)
            self.engine = self._make_engine()
            try:
                self.engine.mover.restore(saved.update)
            except (KeyError, ValueError, TypeError, RuntimeError):
                raise UserError(
                    f"{saved.file}: does not hold what the update has to remember: start the run "
                    "anew in another folder"
                ) from None

    def facts(self) -> dict[str, Any]:
        """Return the start time, engine, machine, versions and commit of this session."""
        return {"started": self.started, "engine": type(self.engine).__name__, **self.where}

    def run(
        self,
        watcher: Watcher | None = None,
        keeper: Keeper | None = None,
        callback: Callback | None = None,
        prune: Prune | None = None,
    ) -> None:
        """Train for the recipe's number of epochs.

        Raises `Interrupted` if the watcher requests a stop.

        Args:
            watcher: observes the run. Default None.
            keeper: stores metrics and checkpoints. Default None.
            callback: takes the metrics of each epoch; True ends the run. Default None.
            prune: takes them before they are stored and returns the members to prune. Default None.
        """
        self.watcher, self.keeper = watcher or Watcher(), keeper
        started = time.perf_counter() - self.at.seconds
        while self.at.epoch < self.recipe.epochs and self.living:
            for index, signs in self._epoch_plan():
                with warnings.catch_warnings():  # the metrics count what does not settle
                    warnings.simplefilter("ignore", NotSettled)
                    self._learn(index, signs)
                self.at.seconds = time.perf_counter() - started
                if self.watcher.stop_requested:
                    self._save()
                    raise Interrupted(self.at.epoch + 1, self.at.minibatch)
                if not self.living:
                    break
            record = self._finish_epoch(prune)
            self.at.seconds = time.perf_counter() - started
            last = self.at.epoch == self.recipe.epochs or not self.living
            self.watcher.epoch(record, self.at.seconds)
            enough = callback is not None and callback(record) is True
            stop = self.watcher.stop_requested
            if last or stop or enough or self._worth_saving():
                self._save()
            if enough:
                return
            if stop and not last:
                raise Interrupted(self.at.epoch + 1, 0)

    def _minibatches(self) -> int:
        return math.ceil(len(self.data.train) / self.recipe.batch)

    def _epoch_plan(self) -> Iterator[tuple[Tensor, Tensor | None]]:
        """Yield the rest of the epoch in chunks of M minibatches, where the engine chooses M.

        Each chunk has the indices of the samples, [M, E, batch], and the signs of β, [M, E] or
        None.
        """
        n, size, epoch = len(self.data.train), self.recipe.batch, self.at.epoch
        orders = {
            seed: torch.randperm(n, generator=generator(seed, f"data order of epoch {epoch}"))
            for seed in {member.seed for member in self.members}
        }
        order = torch.stack([orders[member.seed] for member in self.members]).to(self.device)
        nudging = self.engine.rule.nudging
        signs = self._signs(epoch) if nudging is not None and nudging.draws_sign else None
        whole, chunk = n // size, 1 if self.angles_every else self.engine.chunk
        first = self.at.minibatch
        while first < self._minibatches():
            last = min(first + chunk, whole) if first < whole else first + 1
            samples = order[:, first * size : last * size]
            index = samples.reshape(len(order), last - first, -1).movedim(1, 0)
            yield index, None if signs is None else signs[first:last]
            first = last

    def _signs(self, epoch: int) -> Tensor:
        """Draw the signs of β of one epoch, [minibatches, E]."""
        bits = [
            torch.randint(
                2,
                (self._minibatches(),),
                generator=generator(m.seed, f"signs of beta of epoch {epoch}"),
            )
            for m in self.members
        ]
        return 2.0 * torch.stack(bits, dim=1) - 1

    def _learn(self, index: Tensor, signs: Tensor | None) -> None:
        """Learn from several minibatches.

        If a member becomes non-finite, repeat them one at a time. Remove the member at the
        minibatch where it fails, and repeat that minibatch with the others.
        """
        chosen = index[:, self.living]
        try:
            angles = self._angles(chosen[0])
            chosen_signs = None if signs is None else signs[:, self.living]
            counts = self.engine.run(self._samples(), chosen, chosen_signs)
        except NonFinite as failure:
            if len(index) == 1:
                self._leave_out(failure)
            for m in range(len(index)):
                if self.living:
                    self._learn(index[m : m + 1], None if signs is None else signs[m : m + 1])
            return
        if angles is not None:
            if self.keeper is not None:
                self.keeper.append_angles(angles)
            self.watcher.angles(angles)
        self.at.wrong[self.living] += counts.wrong
        self.at.loss[self.living] += counts.loss
        self.at.minibatch += len(index)
        seen = min(self.at.minibatch * self.recipe.batch, len(self.data.train))
        error = 100 * float(self.at.wrong[self.living].mean()) / seen
        self.watcher.minibatch(self.at.epoch + 1, self.at.minibatch, self._minibatches(), error)

    def _samples(self) -> Split:
        """Return the training samples of this epoch, augmented for each living member."""
        seeds = tuple(member.seed for member in self._living_members())
        if self._drawn is None or self._drawn[0] != (self.at.epoch, seeds):
            augmentation = self.recipe.data.augmentation
            drawn = augmentation.draw(self.data.train, seeds, self.at.epoch)
            self._drawn = (self.at.epoch, seeds), drawn
        return self._drawn[1]

    def _leave_out(self, failure: NonFinite) -> None:
        failed = failure.members.cpu().flatten().nonzero().flatten().tolist()
        for i in failed:
            entry = {
                "member": self.living[i],
                "seed": self.members[self.living[i]].seed,
                "epoch": self.at.epoch + 1,
                "minibatch": self.at.minibatch,
                "place": failure.place,
                "reason": str(failure),
            }
            self.non_finite.append(entry)
            self.watcher.non_finite(entry)
        self._go_on_without([self.living[i] for i in failed])

    def _go_on_without(self, members: Collection[int]) -> None:
        keep = [i for i, member in enumerate(self.living) if member not in members]
        self.living = [self.living[i] for i in keep]
        if self.living:
            self.net, remembered = self.net.members(keep), self.engine.mover.state(keep)
            self.engine = self._make_engine()
            self.engine.mover.restore(remembered)

    def _angles(self, index: Tensor) -> dict[str, Any] | None:
        """Return the angles of the next minibatch; None if it is not one to record.

        `index` is [E, batch].
        """
        done = self.at.epoch * self._minibatches() + self.at.minibatch
        if not self.angles_every or done % self.angles_every:
            return None
        members, E = self._living_members(), self.net.ensemble
        x, y = self._samples().batch(index, self.net.dtype)
        ours, exact = update_and_gradient(self.net, self.recipe, members, x, y)
        synapses = {name: self._spread(angle(ours[name], exact[name], E)) for name in ours}
        record: dict[str, Any] = {"epoch": self.at.epoch + 1, "minibatch": done}
        record["angle"], record["synapses"] = self._spread(angle(ours, exact, E)), synapses
        return dict(_rounded(record))

    def _spread(self, values: Tensor | list[float]) -> list[float | None]:
        """Return a list over all members: values of the living, None for the others."""
        listed = values.tolist() if isinstance(values, Tensor) else values
        by_member = dict(zip(self.living, listed, strict=True))
        return [by_member.get(i) for i in range(len(self.members))]

    def _finish_epoch(self, prune: Prune | None) -> dict[str, Any]:
        n, tested = len(self.data.train), self._tested()
        record: dict[str, Any] = {"epoch": self.at.epoch + 1}
        record["train_error"] = self._spread(100 * self.at.wrong[self.living] / n)
        record["train_loss"] = self._spread(self.at.loss[self.living] / n)
        for key, value in tested.items():
            record[key] = (
                {name: self._spread(v) for name, v in value.items()}
                if isinstance(value, dict)
                else self._spread(value)
            )
        gone = [entry for entry in self.non_finite if entry["epoch"] == record["epoch"]]
        record = _rounded(record | ({"frozen": gone} if gone else {}))
        pruned = sorted({*self.living} & {*(prune(record) if prune else ())})
        if pruned:
            record["pruned"] = pruned
            self._go_on_without(pruned)
        if self.keeper is not None:
            self.keeper.append(record)
        self.metrics.append(record)
        self.engine.next_epoch()
        seconds, epoch = self.at.seconds, self.at.epoch + 1
        self.at = self._fresh_position()
        self.at.epoch, self.at.seconds = epoch, seconds
        return record

    def _tested(self) -> dict[str, Any]:
        """Measure the living members. Remove a member that becomes non-finite here."""
        split, steps = self.recipe.data.measured, self.engine.rule.free_steps
        while self.living:
            try:
                measured = measure(self.net, self.data.splits[split], steps, self.engine)
                return {**measured.record(split), **weights(self.net)}
            except NonFinite as failure:
                self._leave_out(failure)
        return {}

    def _worth_saving(self) -> bool:
        """Return whether enough time has passed since the last save, compared with its duration."""
        return time.perf_counter() - self._saved_at >= SAVE_SHARE * self._save_took

    def _save(self) -> None:
        if self.keeper is None:
            return
        started = time.perf_counter()
        self.keeper.save(
            {
                "epoch": self.at.epoch,
                "minibatch": self.at.minibatch,
                "wrong": self.at.wrong.cpu(),
                "loss": self.at.loss.cpu(),
                "seconds": self.at.seconds,
                "living": self.living,
                "frozen": self.non_finite,
                "parameters": {n: p.detach().cpu() for n, p in self.net.state_dict().items()},
                "update": self.engine.mover.state(),
            }
        )
        self._saved_at = time.perf_counter()
        self._save_took = self._saved_at - started


def recipe_engine(
    recipe: Recipe,
    members: list[Member],
    net: Network,
    kind: str = "auto",
    threads: int | None = None,
    precision: torch.dtype | None = None,
) -> Engine:
    """Return the engine that trains these members of a recipe.

    Args:
        recipe: the recipe.
        members: the members, in the order of the ensemble.
        net: their networks.
        kind: name of the engine. Default "auto": the fastest.
        threads: number of CPU threads. Default None: one per core.
        precision: see `make_engine`. Default None.
    """
    update = recipe.update
    try:
        engine = make_engine(
            net,
            recipe.learning_rule(members),
            recipe.rates(members),
            kind,
            update=update.build(recipe.epochs),
            frozen=update.frozen,
            threads=threads,
            precision=precision,
        )
        engine.prepare(recipe.batch)
        return engine
    except ValueError as error:
        raise UserError(str(error)) from None


def update_and_gradient(
    net: Network, recipe: Recipe, members: list[Member], x: Tensor, y: Tensor
) -> tuple[Gradients, Gradients]:
    """Return the total update of the recipe's rule and the gradient of BPTT.

    The weights move as in training. `x` is [E, batch, *shape], `y` is [E, batch, classes].
    """
    rule = recipe.learning_rule(members)
    rates = resolve_rates(net, recipe.rates(members), recipe.update.frozen)
    ours = total_update(net, rule, x, y, learning_rates=rates)
    return ours, total_update(net, recipe.rule.gradient(), x, y)


def check_fits(data: Dataset, recipe: Recipe) -> None:
    """Raise unless the data set has the inputs and classes of the recipe's layers."""
    network = recipe.network
    first = "input: the product" if network.input else "layers: the first"
    for name, there, wanted, what in (
        (first, math.prod(network.input_shape), math.prod(data.image_shape), "pixels"),
        ("layers: the last", network.classes, data.train.classes, "classes"),
    ):
        if there != wanted:
            raise UserError(f"{name} must be {wanted}, the {what} of {data.name}, not {there}")


def fitting(data: Dataset, recipe: Recipe) -> Dataset:
    """Return the samples that a recipe chooses, in the shape of its inputs."""
    check_fits(data, recipe)
    try:
        return recipe.data.choose(data).shaped(recipe.network.input_shape)
    except ValueError as error:
        raise UserError(str(error)) from None


def _rounded(value: Any) -> Any:
    """Round numbers to twelve digits, which keeps files small: 10.360000000000001 → 10.36."""
    if isinstance(value, float):
        return float(f"{value:.12g}")
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    return [_rounded(item) for item in value] if isinstance(value, list) else value

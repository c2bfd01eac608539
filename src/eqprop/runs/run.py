"""The Python interface of runs: train, evaluate, load."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from eqprop import data as datasets
from eqprop.engines import Engine
from eqprop.network import Network
from eqprop.runs import recipe as recipes
from eqprop.runs.evaluation import Evaluation, NothingToTest, measure
from eqprop.runs.folder import RunFolder, RunWriter
from eqprop.runs.parts import Member
from eqprop.runs.progress import Progress
from eqprop.runs.recipe import Recipe, UserError
from eqprop.runs.signals import stopping
from eqprop.runs.summary import error_text, summarise
from eqprop.runs.training import (
    Callback,
    Prune,
    Training,
    Watcher,
    check_fits,
    fitting,
    recipe_engine,
)
from eqprop.splits import IN_MEMORY, Dataset, Normalisation, Samples, Split, dataset_of

SPLITS = ("test", "train", "validation")
Data = str | os.PathLike[str] | Dataset | Samples | tuple[Samples, Samples]


@dataclass(frozen=True, repr=False)
class Run:
    """Result of a training run. All lists have one entry per network, in the same order.

    Args:
        recipe: the recipe.
        metrics: one record per epoch (docs/runs.md lists its keys).
        summary: `members`, `settings`, errors, `frozen`, `complete`, machine and more.
        net: the latest networks, one ensemble [E] of the members in `living`. None if no member is
            left or none was saved.
        living: indices of the members that are finite and not pruned.
        epoch: number of complete epochs of the networks.
        minibatch: number of complete minibatches of the next epoch.
        folder: the run folder. Default None: there is none.
        data: the data set, if `train` made this run. Default None.
    """

    recipe: Recipe
    metrics: list[dict[str, Any]]
    summary: dict[str, Any]
    net: Network | None
    living: list[int]
    epoch: int
    minibatch: int
    folder: Path | None = None
    data: Dataset | None = None

    def __repr__(self) -> str:
        n, split = len(self.summary["members"]), self.recipe.data.measured
        errors = error_text(self.summary[f"{split}_error"])
        return f"Run({self.recipe.name}, {n} network(s), {self.place}, {split} error {errors})"

    @property
    def place(self) -> str:
        """The progress of the networks as text: "epoch 3 and 20 minibatches"."""
        within = f" and {self.minibatch} minibatches" if self.minibatch else ""
        return f"epoch {self.epoch}{within}"

    @property
    def members(self) -> tuple[Member, ...]:
        """Seed, β, angle and learning rates of every network."""
        return self.recipe.members()


def train(
    recipe: Recipe | str | os.PathLike[str],
    data: Data | None = None,
    folder: str | os.PathLike[str] | None = None,
    epochs: int | None = None,
    seeds: int | None = None,
    device: str | None = None,
    progress: bool = True,
    callback: Callback | None = None,
    *,
    prune: Prune | None = None,
    overrides: Mapping[str, Any] | None = None,
    resume: bool = False,
    engine: str = "auto",
    threads: int | None = None,
    precision: torch.dtype | None = None,
    angles_every: int | None = None,
) -> Run:
    """Train the networks of a recipe.

    Args:
        recipe: a name from `eqprop recipes`, a TOML file, or a Recipe.
        data: a name ("mnist"), a folder of its files, a Dataset, a pair (train, test) of samples,
            or samples for both. Samples are a `torch.utils.data.Dataset`, or a pair (x, y) of
            tensors or arrays: x [n, *shape] of bytes (read as pixels / 255) or floats, y the
            classes [n]. Default None: the recipe's data.
        folder: the run folder, for metrics, checkpoints and logs. `train` locks it, and in the
            main thread Ctrl-C saves and raises `Interrupted`. Default None: write, lock and catch
            nothing.
        epochs, seeds: replace the recipe's. Default None.
        device: "cpu" or "cuda". Default None: "cpu".
        progress: whether to show a bar on a terminal. Elsewhere, print one line per epoch if there
            is a folder. Default True.
        callback: takes the metrics of each epoch. The run ends if it returns True. Default None.
        prune: takes the metrics of each epoch before they are written, and returns the indices of
            the members to remove. The numbers of the others do not change. Default None.
        overrides: replace other fields of the recipe, {"beta": 0.3, "rule.free_steps": 30}.
            Default None.
        resume: whether to continue the run in `folder`. Default False.
        engine, threads, precision: see `make_engine`. Default "auto", None and None.
        angles_every: number of minibatches between records of the angle to BPTT's gradient, in the
            folder. Default None: record none.

    Returns:
        The run, with its networks, metrics and summary.
    """
    chosen = _recipe(recipe, overrides, epochs=epochs, seeds=seeds)
    there = None if folder is None else RunFolder(os.fspath(folder))
    if resume and there is None:
        raise UserError("resume needs a folder")
    if there is not None and data is None:
        there.check(chosen, resume)  # fail before loading data
    found = _dataset(data, chosen, there if resume else None)
    if data is not None:
        chosen = recipes.changed(chosen, {"data.name": found.name})
    found = fitting(found, chosen)
    if there is not None:
        there.check(chosen, resume)
        if resume:
            there.check_precision(precision)
    training = Training(
        chosen,
        found,
        device=check_device(device),
        engine=engine,
        threads=threads,
        precision=precision,
        angles_every=angles_every,
    )
    with _kept(there, training, found, resume) as keeper:
        at = training.at.epoch, chosen.data.measured
        watcher = Progress(there, chosen.epochs, *at) if progress else Watcher()
        try:
            with _threads_of(training.engine), stopping(watcher) if there else nullcontext():
                training.run(watcher, keeper, callback, prune)
        except KeyboardInterrupt:
            raise  # at once: a log that was interrupted half-way would not close
        except BaseException:
            watcher.close()
            raise
        watcher.close()
        if keeper is not None and summarise(chosen, training.metrics)["complete"]:
            keeper.finish()
    facts = {**training.facts(), "wall_seconds": round(training.at.seconds, 3)}
    return Run(
        recipe=chosen,
        metrics=training.metrics,
        summary={**summarise(chosen, training.metrics), **facts},
        net=training.net if training.living else None,
        living=training.living,
        epoch=training.at.epoch,
        minibatch=training.at.minibatch,
        folder=None if there is None else there.path,
        data=found,
    )


@contextmanager
def _kept(
    folder: RunFolder | None, training: Training, data: Dataset, resume: bool
) -> Iterator[RunWriter | None]:
    """Lock the folder, if there is one, and restore the training from its checkpoint."""
    if folder is None:
        yield None
        return
    with folder.writing(training.recipe, data, resume) as writer:
        if writer.saved is not None:
            training.resume(writer.saved)
        training.metrics = writer.start(training.facts())
        yield writer


@contextmanager
def _threads_of(engine: Engine) -> Iterator[None]:
    """Give PyTorch one thread while an engine with its own threads runs.

    PyTorch's idle threads would take cores from the engine.
    """
    before = torch.get_num_threads()
    try:
        if engine.threads:
            torch.set_num_threads(1)
        yield
    finally:
        torch.set_num_threads(before)


def load(folder: str | os.PathLike[str]) -> Run:
    """Load a run from its `folder`, with the networks of the latest checkpoint."""
    there = RunFolder.existing(os.fspath(folder))
    saved = there.checkpoint()
    return Run(
        recipe=there.recipe(),
        metrics=there.metrics(),
        summary=there.summary(),
        net=saved.net if saved else None,
        living=saved.living if saved else [],
        epoch=saved.epoch if saved else 0,
        minibatch=saved.minibatch if saved else 0,
        folder=there.path,
    )


def evaluate(
    trained: Run | Network,
    data: Data | None = None,
    *,
    split: str = "test",
    free_steps: int | None = None,
    in_turn: bool | None = None,
    device: str | None = None,
    threads: int | None = None,
) -> Evaluation:
    """Test networks: relax every sample from zero and evaluate the output.

    Args:
        trained: a run, a network or an ensemble.
        data: as for `train`. Default None: the data of the run. A network needs it.
        split: "test", "train", or "validation" if the run holds samples out. Default "test".
        free_steps: T. Default None: as in training. A network needs it.
        in_turn: for a network, whether its layers move in turn. A run says so itself. Default None:
            if its steps are over-relaxed, which all at once need not settle.
        device, threads: for a run. Default None: "cpu", and one thread per core. A network stays on
            its device.

    Returns:
        Errors, losses and more, one value per network, [E]. E is 1 for one network.
    """
    if split not in SPLITS:
        raise UserError(f"split must be one of {', '.join(SPLITS)}, not {split!r}")
    if isinstance(trained, Network):
        if free_steps is None or data is None:
            raise UserError(
                "a network needs data and free_steps: evaluate(net, data, free_steps=40)"
            )
        found = _dataset(data, None, None, classes=trained.readout.width)
        if in_turn is None:
            in_turn = trained.time.epsilon > 1  # over-relaxed
        return measure(trained, _part(found, split, trained), free_steps, in_turn=in_turn)
    if in_turn is not None:
        raise UserError("in_turn is for a network: a run has the order of its recipe")
    recipe, net, folder = trained.recipe, trained.net, trained.folder
    if net is None:
        where = f"{folder}: " if folder else ""
        left = [[m[how] for how in ("frozen", "pruned")] for m in trained.summary["members"]]
        frozen = "every member was frozen" + " or pruned" * any(pruned for _, pruned in left)
        why = frozen if all(map(any, left)) else "there is no checkpoint"
        raise NothingToTest(f"{where}{why}, so no network can be tested")
    fewest = len(net.split()) if recipe.rule.in_turn else 1
    if free_steps is not None and free_steps < fewest:
        raise UserError(f"free_steps must be {fewest} or more, not {free_steps}")
    data = trained.data if data is None else data
    found = _dataset(data, recipe, RunFolder(folder) if folder else None)
    if data is None:
        found = fitting(found, recipe)
    elif recipe.data.normalise and not found.train.normalisation:
        known = _normalisation(trained)
        found = found.normalised(known) if known else found
    check_fits(found, recipe)
    net, members = net.to(check_device(device)), recipe.members()
    engine = recipe_engine(recipe, [members[i] for i in trained.living], net, threads=threads)
    with _threads_of(engine):
        return measure(net, _part(found, split, net), free_steps or recipe.rule.free_steps, engine)


def _recipe(
    given: Recipe | str | os.PathLike[str], overrides: Mapping[str, Any] | None, **more: Any
) -> Recipe:
    fields = {**(overrides or {}), **{key: v for key, v in more.items() if v is not None}}
    if isinstance(given, Recipe):
        return recipes.changed(given, fields)
    return recipes.load(os.fspath(given), fields)


def _dataset(
    data: Data | None, recipe: Recipe | None, folder: RunFolder | None, classes: int | None = None
) -> Dataset:
    """Return the given data; by default the recipe's, from the data folder of the run."""
    if data is None:
        assert recipe is not None
        if recipe.data.name == IN_MEMORY:
            raise UserError(
                "the run was trained on tensors, which its folder does not hold: call "
                "evaluate(run, data)"
            )
        return datasets.load(recipe.data.name, folder.data_folder() if folder else None)
    if isinstance(data, (str, os.PathLike)):
        path = Path(data)
        if path.is_dir():
            return datasets.load(path.resolve().name, path)
        return datasets.load(str(data))
    return dataset_of(data, recipe.network.classes if recipe else classes)


def _normalisation(of: Run) -> Normalisation | None:
    """Return the normalisation of a run's data; None if it has none."""
    if of.data is not None:
        return of.data.train.normalisation
    origin = RunFolder(of.folder).origin() if of.folder else None
    known = origin["data"]["train"].get("normalisation") if origin else None
    return Normalisation(**known) if known else None


def _part(data: Dataset, split: str, net: Network) -> Split:
    if split not in data.splits:
        raise UserError(f"split {split}: no samples are held out: choose test or train")
    return data.splits[split].to(next(net.parameters()).device)


def check_device(device: str | None) -> str:
    """Return the device, "cpu" by default; raise if this machine does not have it."""
    if device is not None and device.startswith("cuda") and not torch.cuda.is_available():
        raise UserError(f"device {device}: PyTorch sees no GPU here: use cpu")
    return device or "cpu"

"""Estimate time and memory of a task from a few minibatches of its recipe on this machine."""

from __future__ import annotations

import math
import statistics
import time
import warnings
from dataclasses import dataclass

import torch

from eqprop.data import Dataset
from eqprop.dynamics import NotSettled
from eqprop.peak import Peak
from eqprop.runs.evaluation import measure
from eqprop.runs.recipe import Recipe
from eqprop.runs.training import Training
from eqprop.seeds import generator
from eqprop.splits import Split

REPEATS, FEW = 3, 5  # number of timings, and of minibatches in the first
SECONDS = 0.5  # intended duration of one timing
TESTED = 200  # number of test samples per timing
SLOW = 10.0  # seconds of a minibatch that is not timed as a whole
SAMPLES = 2  # of the minibatches that tell how slow it is


@dataclass(frozen=True)
class Estimate:
    """Estimated cost of a task.

    Args:
        seconds: time of all epochs, including the test after each.
        bytes: peak memory of its tensors, including the data.
        minibatches: number of minibatches timed.
    """

    seconds: float
    bytes: int
    minibatches: int


def estimate(
    recipe: Recipe,
    data: Dataset,
    device: str,
    threads: int | None,
    precision: torch.dtype | None = None,
) -> Estimate:
    """Train a few minibatches and test a few samples of a recipe; extrapolate to the whole run."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NotSettled)
        return _estimate(recipe, data, device, threads, precision)


def _estimate(
    recipe: Recipe,
    data: Dataset,
    device: str,
    threads: int | None,
    precision: torch.dtype | None,
) -> Estimate:
    def tried(samples: int) -> tuple[Training, int]:
        """Return a training after one minibatch, and the peak memory of its tensors."""
        with Peak() as peak:  # slows the code down, so time nothing here
            training = Training(recipe, data, device=device, threads=threads, precision=precision)
            _timed(training, 1, samples)
        return training, peak.bytes

    training, few = tried(SAMPLES)
    train, test = training.data.train, training.data.test
    batch = min(recipe.batch, len(train))
    learning, minibatches = _timed(training, 1, SAMPLES) / SAMPLES * batch, 1
    if learning > SLOW:  # time and memory grow with the samples
        _, more = tried(2 * SAMPLES)
        peak = few + (more - few) * (batch - SAMPLES) // SAMPLES
        tested, repeats = SAMPLES, 1
    else:
        training, peak = tried(batch)
        learning, minibatches = _learning(training, batch)
        tested, repeats = TESTED, REPEATS
    some = test.head(min(tested, len(test)))
    testing = statistics.median(_tested(training, some) for _ in range(repeats)) / len(some)
    per_epoch = math.ceil(len(train) / recipe.batch) * learning
    seconds = recipe.epochs * (per_epoch + len(test) * testing)
    images = sum(split.images.nbytes + split.labels.nbytes for split in (data.train, data.test))
    return Estimate(seconds, peak + images, minibatches)


def _learning(training: Training, batch: int) -> tuple[float, int]:
    """Return the seconds of a minibatch, and the number of minibatches timed."""
    each = _timed(training, FEW, batch) / FEW
    many = max(FEW, min(training.engine.chunk, int(SECONDS / each)))
    times = [_timed(training, many, batch) for _ in range(REPEATS)]
    return statistics.median(times) / many, REPEATS * many


def _timed(training: Training, minibatches: int, batch: int) -> float:
    """Return the seconds that several minibatches of random samples take."""
    networks, n = len(training.members), len(training.data.train)
    shape = (minibatches, networks, min(batch, n))
    index = torch.randint(n, shape, generator=generator(training.recipe.seed, "estimate"))
    index = index.to(training.device)
    nudging = training.engine.rule.nudging
    drawn = nudging is not None and nudging.draws_sign
    signs = torch.ones(minibatches, networks) if drawn else None
    started = time.perf_counter()
    training.engine.run(training.data.train, index, signs)
    _finish(training.device)
    return time.perf_counter() - started


def _tested(training: Training, test: Split) -> float:
    started = time.perf_counter()
    measure(training.net, test, training.recipe.rule.free_steps, training.engine)
    _finish(training.device)
    return time.perf_counter() - started


def _finish(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize()

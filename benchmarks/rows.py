"""The six rows of the benchmarks: the paper's training recipes."""

from __future__ import annotations

import statistics
import time

import torch

import eqprop
from eqprop.data import Split
from eqprop.engines import Engine
from eqprop.runs import recipe as recipes
from eqprop.runs.recipe import Recipe

ROWS = ("ep-1h", "c-ep-1h", "c-vf-1h", "ep-2h", "c-ep-2h", "c-vf-2h")


def load(row: str, seeds: int) -> Recipe:
    """Return the recipe with a fixed sign of β, since the baseline cannot draw it."""
    return recipes.load(row, {"seeds": seeds, "random_sign": False, "frozen": []})


def engine(recipe: Recipe, kind: str, device: str = "cpu", threads: int | None = None) -> Engine:
    members = recipe.members()
    net = recipe.network.build(members).to(device)
    return eqprop.make_engine(
        net, recipe.learning_rule(members), recipe.rates(members), kind, threads=threads
    )


def microseconds(timed: Engine, train: Split, networks: int, minibatches: int) -> float:
    """Return the time per minibatch on a GPU: the median of five, after a warm-up."""
    index = torch.randint(len(train), (minibatches, networks, 20), device="cuda")
    timed.run(train, index)
    times = []
    for _ in range(5):
        torch.cuda.synchronize()
        started = time.perf_counter()
        timed.run(train, index)
        torch.cuda.synchronize()
        times.append(1e6 * (time.perf_counter() - started) / minibatches)
    return statistics.median(times)


def alone(recipe: Recipe) -> tuple[eqprop.Network, eqprop.Rule, tuple[float, ...]]:
    """Return the first member as a single network, for the baseline."""
    one = recipes.changed(recipe, {"seeds": 1})
    members = one.members()
    net = one.network.build(members).member(0)
    rule = one.learning_rule(members)
    plain = type(rule)(
        beta=float(members[0].beta), free_steps=rule.free_steps, nudged_steps=rule.nudged_steps
    )
    return net, plain, members[0].learning_rates

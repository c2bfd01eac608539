"""Time one training minibatch of a convolutional network: the engines against plain PyTorch.

    python benchmarks/convolution.py                  mnist-conv on the CPU
    python benchmarks/convolution.py --device cuda    cifar10-conv, the network of rain 2023

On a GPU, convolutions run in TF32, in float16 and in bfloat16, for one network and for several in
one program. Contenders are interleaved round by round and compared by medians: the machine is
shared and its speed drifts. On a CPU the time is that of the processor: what others take does not
count. Minibatches are drawn and augmented as in training, on a GPU 20 per call ("engine.step" takes
one per call). Nothing is timed before all compute the same in float64. Writes
results/convolution-cpu.json, or results/convolution-gpu.json.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import conv2d, conv_transpose2d, max_pool2d, max_unpool2d, one_hot
from torch.nn.grad import conv2d_weight

import eqprop
from eqprop.data import Dataset, Split
from eqprop.engines import Engine
from eqprop.runs import machine
from eqprop.runs import recipe as recipes
from eqprop.runs.recipe import Recipe
from eqprop.runs.training import fitting
from eqprop.synapses import Conv2d

RESULTS = Path(__file__).parent.parent / "results"
RECIPES = {"cpu": "mnist-conv", "cuda": "cifar10-conv"}


class Plain:
    """Centred EP as a user would write it: every drive from the states as they are, at each step.

    One network; convolutions with padding and pooling, the last synapse dense; squared error.
    """

    def __init__(self, recipe: Recipe, device: str, dtype: torch.dtype) -> None:
        members = recipe.members()
        self.model = recipe.network.build(members, dtype).member(0).to(device)
        self.rule = recipe.learning_rule(members)
        self.beta = members[0].beta
        rates = members[0].learning_rates
        groups = [
            {"params": list(synapse.parameters()), "lr": rate}
            for synapse, rate in zip(self.model.synapses, rates, strict=True)
        ]
        update = recipe.update
        self.optimiser = torch.optim.SGD(
            groups, momentum=update.momentum, weight_decay=update.weight_decay
        )

    def forward(self, k: int, pre: Tensor) -> tuple[Tensor, Tensor | None]:
        synapse = self.model.synapses[k]
        if not isinstance(synapse, Conv2d):
            return pre.flatten(1) @ synapse.weight + synapse.bias, None
        drive = conv2d(pre, synapse.weight, synapse.bias, padding=synapse.padding)
        return max_pool2d(drive, synapse.pool, return_indices=True)

    def spread(self, k: int, pre: Tensor, post: Tensor) -> Tensor:
        synapse = self.model.synapses[k]
        winners = self.forward(k, pre)[1]
        convolved = synapse.convolved(synapse.ends[0])
        return max_unpool2d(post, winners, synapse.pool, output_size=convolved)

    def back(self, k: int, pre: Tensor, post: Tensor) -> Tensor:
        synapse = self.model.synapses[k]
        if not isinstance(synapse, Conv2d):
            return (post @ synapse.weight.mT).reshape(pre.shape)
        spread = self.spread(k, pre, post)
        return conv_transpose2d(spread, synapse.weight, padding=synapse.padding)

    def move(
        self, x: Tensor, y: Tensor, s: list[Tensor], in_turn: bool, t: int, beta: float
    ) -> list[Tensor]:
        """One step: of every second layer in turn, or of all."""
        layers = range(t % 2, len(s), 2) if in_turn else range(len(s))
        moved = list(s)
        for k in layers:
            drive = self.forward(k, s[k - 1] if k else x)[0]
            if k + 1 < len(s):
                drive = drive + self.back(k + 1, s[k], s[k + 1])
            moved[k] = self.model.activations[k](drive)
            if beta and k + 1 == len(s):
                moved[k] = moved[k] - beta * (s[k] - y)
        return moved

    def gradients(self, x: Tensor, s: list[Tensor]) -> list[Tensor]:
        """∂Φ/∂θ, mean over the batch, in the order of the parameters."""
        found = []
        for k, synapse in enumerate(self.model.synapses):
            pre, post = s[k - 1] if k else x, s[k]
            if isinstance(synapse, Conv2d):
                spread = self.spread(k, pre, post)
                shape, padding = synapse.weight.shape, synapse.padding
                found.append(conv2d_weight(pre, shape, spread, padding=padding) / len(x))
                found.append(post.sum((0, 2, 3)) / len(x))
            else:
                found += [pre.flatten(1).mT @ post / len(x), post.mean(0)]
        return found

    @torch.no_grad()
    def step(self, x: Tensor, y: Tensor) -> None:
        rule = self.rule
        s = [x.new_zeros(len(x), *shape) for shape in self.model.layer_shapes]
        for t in range(rule.free_steps):
            s = self.move(x, y, s, rule.in_turn, t, 0.0)
        ends = []
        for beta in (self.beta, -self.beta):
            nudged = s
            for t in range(rule.nudged_steps):
                nudged = self.move(x, y, nudged, rule.nudged_in_turn, t, beta)
            ends.append(self.gradients(x, nudged))
        for p, up, down in zip(self.model.parameters(), *ends, strict=True):
            p.grad = (down - up) / (2 * self.beta)
        self.optimiser.step()


def engine(recipe: Recipe, kind: str, device: str, dtype: torch.dtype, **more: Any) -> Any:
    """Return an engine with networks of its own."""
    members = recipe.members()
    return eqprop.make_engine(
        recipe.network.build(members, dtype).to(device),
        recipe.learning_rule(members),
        recipe.rates(members),
        kind,
        update=eqprop.SGD(recipe.update.momentum, recipe.update.weight_decay),
        **more,
    )


class Stepwise:
    """An engine that learns from one minibatch per call, as in a loop of one's own."""

    def __init__(self, made: Engine) -> None:
        self.model, self.step = made.model, made.step


def contenders(recipe: Recipe, device: str, dtype: torch.dtype) -> dict[str, Any]:
    """What is timed, by name: each has a network `model` of its own and learns by `step(x, y)`."""
    return {
        "plain PyTorch": Plain(recipe, device, dtype),
        "reference": engine(recipe, "reference", device, dtype),
        "convolutional": engine(recipe, "convolutional", device, dtype),
    }


def more_contenders(recipe: Recipe) -> dict[str, Any]:
    """Return what is timed on a GPU alone: one minibatch per call, less precision, and several
    networks as one.
    """
    alone = engine(recipe, "convolutional", "cuda", torch.float32)
    found: dict[str, Any] = {"convolutional, engine.step": Stepwise(alone)}
    for precision in eqprop.engines.PRECISIONS:
        name = f"convolutional, {str(precision).removeprefix('torch.')}"
        for seeds in (1, 2, 4):
            several = recipes.changed(recipe, {"seeds": seeds})
            words = f", {seeds} networks" if seeds > 1 else ""
            made = engine(several, "convolutional", "cuda", torch.float32, precision=precision)
            found[name + words] = made
    return found


def minibatch(recipe: Recipe, batch: int, device: str, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Random images and one-hot targets."""
    source = torch.Generator().manual_seed(0)
    x = torch.rand(batch, *recipe.network.input_shape, generator=source, dtype=dtype)
    labels = torch.randint(recipe.network.classes, (batch,), generator=source)
    return x.to(device), one_hot(labels, recipe.network.classes).to(device, dtype)


def check(recipe: Recipe) -> None:
    """Refuse to time what does not compute the same: one minibatch of few steps, in float64."""
    short = recipes.changed(recipe, {"free_steps": 7, "nudged_steps": 4})
    x, y = minibatch(short, 8, "cpu", torch.float64)
    found = []
    for contender in contenders(short, "cpu", torch.float64).values():
        contender.step(x, y)
        found.append(torch.cat([p.flatten() for p in contender.model.parameters()]))
    for other in found[1:]:
        torch.testing.assert_close(other, found[0], rtol=0, atol=1e-10)


def epoch(recipe: Recipe, count: int, batch: int, device: str) -> tuple[Split, Tensor]:
    """Return random images, prepared as in training, and the index of minibatches of them."""
    source = torch.Generator().manual_seed(0)
    shape = (count * batch, *recipe.network.input_shape)
    images = torch.randint(256, shape, generator=source, dtype=torch.uint8)
    labels = torch.randint(recipe.network.classes, (len(images),), generator=source)
    random = Split(images, labels, recipe.network.classes).to(device)
    split = fitting(Dataset("random images", random, random), recipe).train
    seeds = [member.seed for member in recipe.members()]
    index = torch.arange(len(images), device=device).reshape(count, 1, batch)
    drawn = recipe.data.augmentation.draw(split, seeds, 0)
    return drawn, index.expand(-1, len(seeds), -1)


def train(contender: Any, split: Split, index: Tensor) -> None:
    """Learn from some minibatches as a run of training does."""
    if isinstance(contender, Engine):
        contender.run(split, index)
        return
    for part in index:
        x, y = split.batch(part, torch.float32)
        contender.step(x[0], y[0])


def milliseconds(run: Callable[[], object], device: str) -> float:
    clock = time.process_time if device == "cpu" else time.perf_counter
    started = clock()
    run()
    if device == "cuda":
        torch.cuda.synchronize()
    return 1e3 * (clock() - started)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=RECIPES, default="cpu")
    parser.add_argument("--batch", type=int, help="default: that of the recipe")
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    device, name = options.device, RECIPES[options.device]
    recipe = recipes.load(name, {"seeds": 1})
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    torch.set_num_threads(1)  # more would add the time that they wait for each other
    check(recipe)
    batch = options.batch or recipe.batch
    timed = contenders(recipe, device, torch.float32)
    count = timed["convolutional"].chunk  # as many as training runs in one call
    if device == "cuda":
        timed |= more_contenders(recipe)
    sizes = {contender: math.prod(it.model.ensemble) for contender, it in timed.items()}
    samples = {
        contender: epoch(recipes.changed(recipe, {"seeds": size}), count, batch, device)
        for contender, size in sizes.items()
    }
    times: dict[str, list[float]] = {contender: [] for contender in timed}
    for r in range(options.rounds + 1):
        for contender, it in timed.items():
            given = samples[contender]
            spent = milliseconds(lambda it=it, given=given: train(it, *given), device) / count
            if r > 0:
                times[contender].append(spent)
        print({name: round(spent[-1]) for name, spent in times.items() if spent}, flush=True)
    medians = {contender: statistics.median(values) for contender, values in times.items()}
    record = {
        "what": f"milliseconds for one training minibatch of {batch}, median; recipe {name}",
        "rounds": options.rounds,
        "tf32": device == "cuda",
        "clock": "of the processor, one thread" if device == "cpu" else "of the wall",
        "results": medians,
        **machine.describe(device),
    }
    result = RESULTS / f"convolution-{'cpu' if device == 'cpu' else 'gpu'}.json"
    result.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n")
    for contender, value in medians.items():
        print(f"{contender}: {value:.1f} ms, {medians['plain PyTorch'] / value:.2f}×")
    return 0


if __name__ == "__main__":
    sys.exit(main())

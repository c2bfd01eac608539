"""Print the tables of docs/hardware.md: what each rule stores, reads and writes.

Nothing is estimated. A ledger watches every operation of PyTorch while a rule learns one sample in
a 7-5-3 network without biases, and counts for the synapses between hidden layer and output.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import astuple, dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import eqprop
from eqprop.engines.descent import descend
from eqprop.runs import recipe as recipes
from eqprop.updates import Descent

SIZES = (7, 5, 3)  # all sizes differ, so the size of a tensor identifies it
T, K = 12, 6  # no other count is 6 or 7
LETTERS = {K: "K", K + 1: "K + 1"}
RULES = {
    "BPTT": (True, eqprop.BPTT(free_steps=T, backward_steps=K)),
    "RBP": (True, eqprop.RBP(free_steps=T, backward_steps=K)),
    "EP": (True, eqprop.EP(beta=0.1, free_steps=T, nudged_steps=K)),
    "C-EP": (True, eqprop.ContinualEP(beta=0.1, free_steps=T, nudged_steps=K)),
    "VF": (False, eqprop.VF(beta=0.1, free_steps=T, nudged_steps=K)),
    **{
        f"C-VF, `{slope}`": (
            False,
            eqprop.ContinualVF(beta=0.1, free_steps=T, nudged_steps=K, update_slope=slope),
        )
        for slope in ("none", "own", "full")
    },
}
RECIPES = ("ep-1h", "ep-2h", "c-ep-1h", "c-ep-2h", "c-vf-1h", "c-vf-2h")


class Ledger(TorchDispatchMode):
    """Records the memory that each operation reads and writes, by step of the network."""

    def __init__(self) -> None:
        super().__init__()
        self.step = 0  # number of calls of the network
        self.reads: Counter[tuple[int, int]] = Counter()  # (memory, step)
        self.writes: Counter[tuple[int, int]] = Counter()
        self.made: dict[int, tuple[int, int]] = {}  # {memory: (step, size)}
        self.last_read: dict[int, int] = {}
        self._alive: list[Tensor] = []  # keeps memory from being reused

    def tick(self, *_: object) -> None:
        self.step += 1

    def __torch_dispatch__(
        self, operation: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        result = operation(*args, **(kwargs or {}))
        given = [it for it in tree_leaves((args, kwargs)) if isinstance(it, Tensor)]
        found = [it for it in tree_leaves(result) if isinstance(it, Tensor)]
        self._alive += found
        places = {address(it) for it in given}
        if operation._schema.is_mutable:
            self.writes[address(given[0]), self.step] += 1
            places.discard(address(given[0]))
            found = []
        elif found and all(address(it) in places for it in found):
            return result  # a view reads nothing
        for place in places:
            self.reads[place, self.step] += 1
            self.last_read[place] = self.step
        for it in found:
            self.made.setdefault(address(it), (self.step, it.numel()))
        return result

    def kept(self, numbers: int, first: int) -> int:
        """Return the largest number of tensors of this size that a step from `first` on leaves to a
        later step.
        """
        return max(
            sum(
                made <= step < self.last_read.get(place, made)
                for place, (made, size) in self.made.items()
                if size == numbers
            )
            for step in range(first, self.step + 1)
        )


def address(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


@dataclass(frozen=True)
class Needs:
    """Needs of a rule in its second phase, for the synapses between hidden layer and output.

    Args:
        per_weight: numbers kept between steps per weight, besides the weight.
        per_neuron: numbers kept between steps per hidden neuron.
        reads: reads of a weight per step, by the neurons and by the update.
        writes: writes of a weight per minibatch.
    """

    per_weight: int
    per_neuron: int
    reads: int
    writes: int


def count(rule: eqprop.Rule, tied: bool) -> Needs:
    """Return the needs of a rule that learns one sample."""
    net = eqprop.layered(*SIZES, tied=tied, bias=False, dtype=torch.float64)
    x, y = torch.rand(1, SIZES[0], dtype=torch.float64), torch.eye(SIZES[-1]).double()[:1]
    ledger, between = Ledger(), net.synapses[1]
    net.register_forward_pre_hook(ledger.tick)
    mover = Descent(net, {name: 0.01 for name, _ in net.named_parameters()})
    with ledger:
        descend(rule.gradients(net, x, y), mover)
    weights = [address(w) for w in (between.weight, between.backward_weight) if w is not None]
    reads = {ledger.reads[place, step] for place in weights for step in range(T + 1, T + K + 1)}
    writes = {
        sum(ledger.writes[place, step] for step in range(ledger.step + 1)) for place in weights
    }
    (per_step,), (per_minibatch,) = reads, writes  # the same for all weights and steps
    hidden, output = SIZES[1:]
    per_weight, rest = divmod(ledger.kept(hidden * output, T), len(weights))
    assert rest == 0  # the same for forward and backward weight
    return Needs(per_weight, ledger.kept(hidden, T), per_step, per_minibatch)


def table(head: list[str], rows: list[list[object]]) -> str:
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join(f"| {' | '.join(map(str, cells))} |" for cells in lines)


def needs_table() -> str:
    rows: list[list[object]] = []
    for name, (tied, rule) in RULES.items():
        counts = (LETTERS.get(value, value) for value in astuple(count(rule, tied)))
        rows.append([name, 1 if tied else 2, *counts])
    head = ["rule", "weights", "stored per weight", "stored per neuron", "reads per step", "writes"]
    return table(head, rows)


def wear_table() -> str:
    """Return the writes per weight in the paper's recipes, from the counts and 60,000 images."""
    rows: list[list[object]] = []
    for name in RECIPES:
        recipe = recipes.load(name)
        counted = count(*reversed(RULES["EP" if name.startswith("ep") else "C-EP"]))
        per_minibatch = recipe.rule.nudged_steps if counted.writes == K else counted.writes
        per_epoch = per_minibatch * (60_000 // recipe.batch)
        rows.append([name, per_minibatch, f"{per_epoch:,}", f"{per_epoch * recipe.epochs:,}"])
    return table(["recipe", "per minibatch of 20", "per epoch", "per training run"], rows)


def main() -> None:
    print(needs_table())
    print()
    print(wear_table())


if __name__ == "__main__":
    main()

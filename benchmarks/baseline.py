"""What the field's scripts do, for comparison: one network, one PyTorch operation at a time.

Every step of both phases computes the drive of the input anew; every nudged step of a continual
rule forms the update of every weight and bias and applies it. The numbers are those of the
reference engine (`tests/test_engines.py` holds them to that); only the work is arranged naively.
"""

from __future__ import annotations

import torch
from torch import Tensor

import eqprop


def sigmoid(v: Tensor) -> Tensor:
    return 1 / (1 + torch.exp(-4 * (v - 0.5)))


class Baseline:
    """A layered network in discrete time, trained with EP, C-EP, VF or C-VF, biases and all."""

    def __init__(
        self, net: eqprop.Network, rule: eqprop.Rule, learning_rates: tuple[float, ...]
    ) -> None:
        self.rule, self.rates = rule, learning_rates
        self.forward = [synapse.weight for synapse in net.synapses]
        self.bias = [synapse.bias for synapse in net.synapses]
        self.backward = [synapse.backward_weight for synapse in net.synapses]
        self.tied = net.synapses[-1].tied
        self.sizes = net.layer_sizes

    def move(self, x: Tensor, s: list[Tensor], y: Tensor | None, beta: float) -> list[Tensor]:
        moved = []
        for k in range(len(s)):
            drive = torch.addmm(self.bias[k], x if k == 0 else s[k - 1], self.forward[k])
            if k + 1 < len(s):
                back = self.forward[k + 1].T if self.tied else self.backward[k + 1]
                drive = drive + s[k + 1] @ back
            moved.append(sigmoid(drive))
        if y is not None:
            moved[-1] = moved[-1] + beta * (y - s[-1])
        return moved

    def contrast(self, x: Tensor, before: list[Tensor], after: list[Tensor], beta: float) -> None:
        scale = 1 / (beta * len(x))
        for k, rate in enumerate(self.rates):
            a, b = (x, x) if k == 0 else (before[k - 1], after[k - 1])
            self.forward[k] += rate * scale * (b.T @ after[k] - a.T @ before[k])
            self.bias[k] += rate * scale * (after[k] - before[k]).sum(0)

    def follow(self, x: Tensor, before: list[Tensor], after: list[Tensor], beta: float) -> None:
        scale = 1 / (beta * len(x))
        changes = [b - a for a, b in zip(before, after, strict=True)]
        for k, rate in enumerate(self.rates):
            self.forward[k] += rate * scale * ((x if k == 0 else before[k - 1]).T @ changes[k])
            self.bias[k] += rate * scale * changes[k].sum(0)
            if k > 0:
                self.backward[k] += rate * scale * (before[k].T @ changes[k - 1])

    @torch.no_grad()
    def step(self, x: Tensor, y: Tensor) -> Tensor:
        rule = self.rule
        s = [torch.zeros(len(x), n, dtype=x.dtype) for n in self.sizes]
        for _ in range(rule.free_steps):
            s = self.move(x, s, None, 0.0)
        free = s
        for _ in range(rule.nudged_steps):
            s_next = self.move(x, s, y, rule.beta)
            if isinstance(rule, eqprop.ContinualEP):
                self.contrast(x, s, s_next, rule.beta)
            elif isinstance(rule, eqprop.ContinualVF):
                self.follow(x, s, s_next, rule.beta)
            s = s_next
        if isinstance(rule, eqprop.EP):
            self.contrast(x, free, s, rule.beta)
        return free[-1]

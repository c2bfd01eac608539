"""A baseline that works like the field's scripts: one network, one PyTorch operation at a time.

A step computes the derivative of each layer, −s + σ(drive) (+ β(y − s) at the output), keeps a copy
of the old state, and adds. It computes the drive of the input again each time. Every nudged step of
a continual rule makes a new tensor with the update of each weight and bias, and then applies it;
C-VF also adds it to a running total. The numbers are those of the reference engine, as
`tests/test_engines.py` checks.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import linear

import eqprop


def sigmoid(v: Tensor) -> Tensor:
    return 1 / (1 + torch.exp(-4 * (v - 0.5)))


class Baseline:
    """A layered network with biases in discrete time, trained with EP, C-EP or C-VF."""

    def __init__(
        self, net: eqprop.Network, rule: eqprop.Rule, learning_rates: tuple[float, ...]
    ) -> None:
        self.rule, self.rates = rule, learning_rates
        self.forward = [s.weight.T.contiguous() for s in net.synapses]  # [n_post, n_pre]
        self.backward = [
            None if s.backward_weight is None else s.backward_weight.T.contiguous()
            for s in net.synapses
        ]
        self.bias = [s.bias.clone() for s in net.synapses]
        self.sizes = net.layer_sizes

    def parameters(self) -> list[Tensor]:
        """Return the parameters in the order and layout of the network."""
        ordered = []
        for w, b, back in zip(self.forward, self.bias, self.backward, strict=True):
            ordered += [w.T, b] if back is None else [w.T, b, back.T]
        return ordered

    def move(self, x: Tensor, s: list[Tensor], y: Tensor | None, beta: float) -> list[Tensor]:
        derivatives = []
        for k in range(len(s)):
            drive = linear(x if k == 0 else s[k - 1], self.forward[k], self.bias[k])
            if k + 1 < len(s):
                back = self.backward[k + 1]
                drive = drive + (
                    torch.mm(s[k + 1], self.forward[k + 1])
                    if back is None
                    else linear(s[k + 1], back)
                )
            derivatives.append(-s[k] + sigmoid(drive))
        if y is not None:
            derivatives[-1] = derivatives[-1] + beta * (y - s[-1])
        return [v + d for v, d in zip(s, derivatives, strict=True)]

    def contrast(
        self, x: Tensor, before: list[Tensor], after: list[Tensor], beta: float
    ) -> list[tuple[Tensor, Tensor, Tensor | None]]:
        scale = 1 / (beta * len(x))
        updates = []
        for k in range(len(after)):
            a, b = (x, x) if k == 0 else (before[k - 1], after[k - 1])
            weight = scale * (torch.mm(after[k].T, b) - torch.mm(before[k].T, a))
            updates.append((weight, scale * (after[k] - before[k]).sum(0), None))
        return updates

    def follow(
        self, x: Tensor, before: list[Tensor], after: list[Tensor], beta: float
    ) -> list[tuple[Tensor, Tensor, Tensor | None]]:
        scale = 1 / (beta * len(x))
        updates = []
        for k in range(len(after)):
            change = after[k] - before[k]
            weight = scale * torch.mm(change.T, x if k == 0 else before[k - 1])
            back = None
            if k > 0:
                back = scale * torch.mm((after[k - 1] - before[k - 1]).T, before[k])
            updates.append((weight, scale * change.sum(0), back))
        return updates

    def apply(self, updates: list[tuple[Tensor, Tensor, Tensor | None]]) -> None:
        for k, (weight, bias, back) in enumerate(updates):
            self.forward[k] += self.rates[k] * weight
            self.bias[k] += self.rates[k] * bias
            if back is not None:
                self.backward[k] += self.rates[k] * back

    @torch.no_grad()
    def step(self, x: Tensor, y: Tensor) -> Tensor:
        rule = self.rule
        s = [torch.zeros(len(x), n, dtype=x.dtype) for n in self.sizes]
        for _ in range(rule.free_steps):
            s = self.move(x, s, None, 0.0)
        free = [v.clone() for v in s]
        totals = [torch.zeros_like(w) for w in self.forward]
        for _ in range(rule.nudged_steps):
            old = [v.clone() for v in s]
            s = self.move(x, s, y, rule.beta)
            if isinstance(rule, eqprop.ContinualEP):
                self.apply(self.contrast(x, old, s, rule.beta))
            elif isinstance(rule, eqprop.ContinualVF):
                updates = self.follow(x, old, s, rule.beta)
                self.apply(updates)
                for total, (weight, _, _) in zip(totals, updates, strict=True):
                    total += weight
        if isinstance(rule, eqprop.EP):
            self.apply(self.contrast(x, free, s, rule.beta))
        return free[-1]

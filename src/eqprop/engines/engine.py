"""What every engine is: a model, a rule and learning rates, trained a minibatch at a time."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor

from eqprop.costs import Cost, SquaredError, as_target
from eqprop.data import Split
from eqprop.dynamics import Relaxation, check_steps, relax
from eqprop.model import Model
from eqprop.rules import RBP, Rule, TwoPhase
from eqprop.seeds import generator


@dataclass(frozen=True)
class Counts:
    """What the free phases of some minibatches came to, before learning from each: [*ensemble]."""

    wrong: Tensor  # samples whose largest output was not the label
    loss: Tensor  # Σ of the cost

    def __add__(self, other: Counts) -> Counts:
        return Counts(self.wrong + other.wrong, self.loss + other.loss)


class Engine(ABC):
    """Trains one model in place. `relaxation` is the free phase of the latest minibatch."""

    threads: int | None = None  # of its own, where it has some
    chunk = 1  # how many minibatches it likes to be given at once
    relaxes = 1000  # how many samples it likes to relax at once

    def __init__(
        self, model: Model, rule: Rule, rates: Mapping[str, float | Tensor], cost: Cost
    ) -> None:
        rule.check_model(model)
        self.model, self.rule, self.rates, self.cost = model, rule, rates, cost
        self.relaxation: Relaxation | None = None
        self._sign_sources = [generator(seed, "beta sign") for seed in model.seeds]
        self._made_for = (model.dtype, self.device)

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    def check_model(self) -> None:
        """What is compiled for a precision and a device runs with no other."""
        now = (self.model.dtype, self.device)
        if now != self._made_for:
            made, found = (f"{dtype} on {device}" for dtype, device in (self._made_for, now))
            raise ValueError(f"the engine was made for {made}, the model is {found}: make another")

    def prepare(self, batch: int) -> None:  # noqa: B027 (most need nothing)
        """Whatever minibatches of a size need: what is wrong with it is known before the first."""

    @abstractmethod
    def step(self, x: Tensor, y: Tensor, sign: Tensor | None = None) -> Tensor:
        """Learn from one minibatch; return the output of the free phase, [*ensemble, batch, n].

        `sign` of β (±1 a member) is drawn if the rule asks for it and none is given. A step that
        raises leaves the parameters as they were.
        """

    def relax(self, x: Tensor, free_steps: int) -> Relaxation:
        """The free phase alone, as the rule would run it."""
        self.check_relax(x, free_steps)
        tolerance, in_turn = None, False
        if isinstance(self.rule, (TwoPhase, RBP)):
            tolerance, in_turn = self.rule.tolerance, self.rule.in_turn
        return relax(self.model, x, free_steps, tolerance, in_turn=in_turn)

    def check_relax(self, x: Tensor, free_steps: int) -> None:
        self.check_model()
        self.model.check_input(x)
        in_turn = isinstance(self.rule, (TwoPhase, RBP)) and self.rule.in_turn
        check_steps("free_steps", free_steps, in_turn)

    def check_step(self, x: Tensor, y: Tensor) -> None:
        self.check_model()
        self.model.check_input(x)
        self.model.check_target(x, y)
        if isinstance(self.cost, SquaredError):
            shape = (*self.model.ensemble, x.shape[-2], self.model.layer_sizes[-1])
            self.cost.target(y, shape, self.model.dtype)

    def targets(self, y: Tensor) -> Tensor:
        """As the kernels read them: [batch, n], or [*ensemble, batch, n]."""
        net = self.model
        y = as_target(y, net.ensemble, net.layer_sizes[-1], net.dtype).to(net.dtype)
        whole = y if y.ndim == 2 else y.expand(*self.model.ensemble, *y.shape[-2:])
        return whole.contiguous()

    @torch.no_grad()
    def run(self, split: Split, index: Tensor, signs: Tensor | None = None) -> Counts:
        """Learn from the minibatches `index` [M, *ensemble, batch] of a split, one after another.

        `signs` of β are [M, *ensemble]. If one of them raises, the parameters are as they were
        before the first.
        """
        return self.step_through(split, self.check_run(split, index, signs), signs)

    def step_through(self, split: Split, index: Tensor, signs: Tensor | None) -> Counts:
        """`run` for any split: bytes or floats, one `step` per minibatch."""
        counts = None
        with self.restoring() if len(index) > 1 else nullcontext():  # one step restores itself
            for m in range(len(index)):
                x, y = split.batch(index[m], self.model.dtype)
                output = self.step(x, y, None if signs is None else signs[m])
                wrong = output.argmax(-1) != split.labels[index[m]].long()
                one = Counts(wrong.double().sum(-1), self.cost(output, y).double().sum(-1))
                counts = one if counts is None else counts + one
        assert counts is not None
        return counts

    def check_run(self, split: Split, index: Tensor, signs: Tensor | None) -> Tensor:
        """The minibatches [M, *ensemble, batch], also where all members are given the same."""
        self.check_model()
        net, shape = self.model, list(index.shape)
        if index.ndim < 2 or index.shape[1:-1] not in ((), net.ensemble) or index.numel() == 0:
            members = "".join(f"{n}, " for n in net.ensemble)
            raise ValueError(
                f"index has shape {shape}, but must be [minibatches, {members}batch], none 0"
            )
        if int(index.min()) < 0 or int(index.max()) >= len(split):
            raise IndexError(f"index goes beyond the {len(split)} samples of the split")
        if split.images.device != self.device:
            raise ValueError(f"the split is on {split.images.device}: move it to {self.device}")
        if net.input_size not in (None, split.images.shape[-1]):
            width = split.images.shape[-1]
            raise ValueError(f"x has width {width}, but the network has {net.input_size} inputs")
        if int(split.labels.max()) >= split.classes:
            raise ValueError(f"a label of the split is not below its {split.classes} classes")
        if signs is not None and list(signs.shape) != [shape[0], *net.ensemble]:
            raise ValueError(
                f"signs have shape {list(signs.shape)}, but must be {[shape[0], *net.ensemble]}"
            )
        index = index.to(self.device)
        if index.ndim == 2:
            index = index.reshape(shape[0], *(1 for _ in net.ensemble), shape[1])
        return index.expand(shape[0], *net.ensemble, shape[-1])

    def draw_sign(self) -> Tensor | None:
        """The sign of β, drawn for each member from its own seed, if the rule asks for it."""
        if not (isinstance(self.rule, TwoPhase) and self.rule.random_sign):
            return None
        bits = [int(torch.randint(2, (), generator=source)) for source in self._sign_sources]
        return (2.0 * torch.tensor(bits) - 1).reshape(self.model.ensemble)

    def draw_signs(self, minibatches: int) -> Tensor | None:
        """The signs of as many minibatches, [minibatches, *ensemble]."""
        drawn = [sign for _ in range(minibatches) if (sign := self.draw_sign()) is not None]
        return torch.stack(drawn) if drawn else None

    def all_betas(self, minibatches: int, signs: Tensor | None) -> Tensor:
        """β with the signs [minibatches, *ensemble] given, or its own, [minibatches, members]."""
        signs = torch.ones(minibatches, *self.model.ensemble) if signs is None else signs.cpu()
        flat = signs.reshape(minibatches, -1)
        wrong = (flat.abs() != 1).any(-1).nonzero().flatten()
        first = int(wrong[0]) if len(wrong) else 0
        return self.betas(signs[first]) / flat[first] * flat  # which refuses one that is not ±1

    @contextmanager
    def restoring(self) -> Iterator[list[Tensor]]:
        """Whatever raises within leaves the parameters as they were, which it is given."""
        before = self.copy_parameters()
        try:
            yield before
        except BaseException:
            self.restore(before)
            raise

    def copy_parameters(self) -> list[Tensor]:
        return [parameter.clone() for parameter in self.model.parameters()]

    @torch.no_grad()
    def restore(self, before: Sequence[Tensor]) -> None:
        """Put the parameters back."""
        for parameter, value in zip(self.model.parameters(), before, strict=True):
            parameter.copy_(value)

    def healthy(self, states: Sequence[Tensor]) -> bool:
        """Whether states and parameters are finite: one answer from the device."""
        tensors = [*self.model.parameters(), *states]
        return math.isfinite(float(torch.stack([t.sum() * 0 for t in tensors]).sum()))

    def betas(self, sign: Tensor | None) -> Tensor:
        """β with its sign, one a member in the row-major order of the ensemble."""
        assert isinstance(self.rule, TwoPhase)
        beta = torch.as_tensor(self.rule.signed_beta(self.model, sign), dtype=torch.float64).cpu()
        return beta.reshape(-1).expand(math.prod(self.model.ensemble)).contiguous()

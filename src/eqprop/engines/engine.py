"""What every engine is: a model, a rule and learning rates, trained one minibatch at a time.

The checks, the lock and the roll-back of every engine live here. An engine says how it computes
a minibatch (`learn`), and may say how it computes many (`learn_many`) or a free phase alone
(`free_phase`). Where one of these gives up, the plain composition of model, rule and descent
takes its place: it finds the numbers, or the place where they are not finite.
"""

from __future__ import annotations

import math
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from eqprop import memory
from eqprop.dynamics import Relaxation, check_steps, relax
from eqprop.engines.descent import learn_plainly
from eqprop.engines.job import Job
from eqprop.engines.samples import Samples
from eqprop.seeds import generator
from eqprop.updates import Descent


@dataclass(frozen=True)
class Counts:
    """Sums over the free phases of some minibatches, before learning from each: [*ensemble]."""

    wrong: Tensor  # samples whose largest output was not the label
    loss: Tensor  # Σ of the cost

    def __add__(self, other: Counts) -> Counts:
        return Counts(self.wrong + other.wrong, self.loss + other.loss)


class Engine(ABC):
    """Trains one model in place. `relaxation` is the free phase of the latest minibatch.

    Every call checks that the parameters are still those that the engine was made for. Threads
    that share an engine wait for each other.
    """

    threads: int | None = None  # of its own, where it has some
    chunk = 1  # how many minibatches it likes to be given at once
    relaxes = 1000  # how many samples it likes to relax at once
    contiguous = True  # it reads parameters as plain arrays
    gathers = True  # it has a `learn_many`
    writes_last = False  # `learn` moves parameters only once nothing can fail any more

    def __init__(self, job: Job) -> None:
        model = job.model
        job.rule.check_model(model)
        self.job, self.model, self.rule, self.rates = job, model, job.rule, job.rates
        self.readout = job.readout
        self.mover = job.update.mover(model, job.rates)
        if job.update.linear and not isinstance(self.mover, Descent):
            raise ValueError(
                f"update {type(job.update).__name__} says that it is linear, so its mover must be "
                f"Descent(...), not {type(self.mover).__name__}"
            )
        self.relaxation: Relaxation | None = None
        self._sign_sources = [generator(seed, "beta sign") for seed in model.seeds]
        self._made_for = {
            name: (p.shape, p.dtype, p.device)
            for name, p in model.named_parameters(remove_duplicate=False)
        }
        self._lock = threading.RLock()

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    # what an engine can run

    @classmethod
    def obstacle(cls, job: Job) -> str | None:
        """What keeps this engine from the job, as it ends "cannot run …"; None if nothing does."""
        return None

    @classmethod
    def make(cls, job: Job, only: bool) -> Engine:
        """The engine for a job without obstacle. `CannotBuild` if something is missing here.

        `only` says that no other engine may take what this one cannot.
        """
        return cls(job)

    # what an engine computes

    @abstractmethod
    def learn(self, x: Tensor, y: Tensor, sign: Tensor | None) -> Relaxation | None:
        """Learn from one minibatch that has been checked; None where something is not finite."""

    def learn_many(
        self, images: Tensor, labels: Tensor, index: Tensor, signs: Tensor | None
    ) -> tuple[Relaxation, Counts] | None:
        """Learn from minibatches gathered from bytes; None where something is not finite.

        `images` [n, *shape] and `labels` [n] are uint8, `index` [M, *ensemble, batch] is int64;
        all are contiguous and on the device of the model. `signs` is [M, *ensemble].
        """
        return None

    def free_phase(self, x: Tensor, free_steps: int) -> Relaxation | None:
        """The free phase of samples that have been checked; None to leave it to `relax`."""
        return None

    def instead(self, batch: int) -> Engine | None:
        """The engine that takes minibatches of this size, if this one cannot."""
        return None

    def prepare(self, batch: int) -> None:  # noqa: B027 (most need nothing)
        """Fail early for minibatches of an unsupported size."""

    # what a user calls

    def step(self, x: Tensor, y: Tensor, sign: Tensor | None = None) -> Tensor:
        """Learn from one minibatch; return the output of the free phase, [*ensemble, batch, n].

        A step that raises leaves the parameters as they were.

        Args:
            x: inputs, [batch, n] or [*ensemble, batch, n], of the model's dtype and device.
            y: targets, [batch, n] or [*ensemble, batch, n], or class indices without the last axis.
            sign: of β, ±1 per member, [*ensemble]. Default None: drawn, if the rule asks for it.
        """
        with self._turn():
            self.check_step(x, y)
            sign = self.draw_sign() if sign is None else sign
            if (other := self.instead(self.model.batch(x))) is not None:
                output = other.step(x, y, sign)
                self.relaxation = other.relaxation
                return output
            return self._step(x, y, sign)

    def run(self, split: Samples, index: Tensor, signs: Tensor | None = None) -> Counts:
        """Learn from some minibatches of a split, one after another; return what was counted.

        If one of them raises, the parameters are as they were before the first.

        Args:
            split: images and labels, on the device of the model.
            index: which samples, [minibatches, *ensemble, batch], or [minibatches, batch] for all
                members alike.
            signs: of β, [minibatches, *ensemble]. Default None: drawn, if the rule asks for it.
        """
        with self._turn():
            index = self.check_run(split, index, signs)
            signs = self.draw_signs(len(index)) if signs is None else signs
            if (other := self.instead(index.shape[-1])) is not None:
                counts = other.run(split, index, signs)
                self.relaxation = other.relaxation
                return counts
            counted = self._gather(split, index, signs)
            return self._step_through(split, index, signs) if counted is None else counted

    def relax(self, x: Tensor, free_steps: int) -> Relaxation:
        """The free phase alone, as the rule would run it.

        Args:
            x: inputs, [batch, n] or [*ensemble, batch, n].
            free_steps: how many steps it takes at most.
        """
        with self._turn():
            self.check_relax(x, free_steps)
            found = self.free_phase(x, free_steps)
            if found is not None:
                return found
            rule = self.rule
            return relax(self.model, x, free_steps, rule.tolerance, in_turn=rule.in_turn)

    def next_epoch(self) -> None:
        """Advance the schedule of the learning rates, where the update has one."""
        self.mover.next_epoch()

    def _step(self, x: Tensor, y: Tensor, sign: Tensor | None) -> Tensor:
        with self.restoring(copy=not self.writes_last) as restore:
            found = self.learn(x, y, sign)
            if found is None:
                restore()
        if found is None:
            with self.restoring():
                found = self._learn_plainly(x, y, sign)
        self.relaxation = found
        return self.readout.output(found.state)

    def _learn_plainly(self, x: Tensor, y: Tensor, sign: Tensor | None) -> Relaxation:
        return learn_plainly(self.job, self.mover, x, y, sign)

    def _gather(self, split: Samples, index: Tensor, signs: Tensor | None) -> Counts | None:
        """All minibatches in one go, where the engine can and the split holds plain bytes."""
        small = split.plain_bytes and split.classes <= 256
        if not (self.gathers and small and split.classes == self.readout.width):
            return None
        images, labels = split.images.contiguous(), split.labels.to(torch.uint8).contiguous()
        with self.restoring() as restore:
            found = self.learn_many(images, labels, index.to(torch.int64).contiguous(), signs)
            if found is None:
                restore()
                return None
        self.relaxation, counts = found
        return counts

    def _step_through(self, split: Samples, index: Tensor, signs: Tensor | None) -> Counts:
        """`run` for any split, one step per minibatch: it raises at the one that fails."""
        counts = None
        with self.restoring(copy=len(index) > 1):  # one step restores itself
            for m in range(len(index)):
                x, y = split.batch(index[m], self.model.dtype)
                self.check_step(x, y)
                output = self._step(x, y, None if signs is None else signs[m])
                wrong = output.argmax(-1) != split.labels[index[m]].long()
                assert self.relaxation is not None
                loss = self.readout.loss(self.relaxation.state, y)
                one = Counts(wrong.double().sum(-1), loss.double().sum(-1))
                counts = one if counts is None else counts + one
        assert counts is not None
        return counts

    # what is checked at every call

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """One call at a time, on parameters that the engine was made for, outside autograd."""
        with self._lock, torch.no_grad(), memory.enough_for("a call of the engine"):
            self.check_parameters()
            yield

    def check_parameters(self) -> None:
        """The parameters are those that the engine was made for, and lie as it reads them."""
        places = set()
        found = dict(self.model.named_parameters(remove_duplicate=False))
        if found.keys() != self._made_for.keys():
            changed = ", ".join(sorted(found.keys() ^ self._made_for.keys()))
            raise ValueError(f"the model has gained or lost {changed}: make another engine")
        for name, p in found.items():
            if (p.shape, p.dtype, p.device) != self._made_for[name]:
                now, made = (
                    f"{dtype} {list(shape)} on {device}"
                    for shape, dtype, device in ((p.shape, p.dtype, p.device), self._made_for[name])
                )
                raise ValueError(
                    f"parameter {name} is {now}, but the engine was made for {made}: "
                    "make another engine"
                )
            if self.contiguous and not p.is_contiguous():
                raise ValueError(
                    f"parameter {name} is not contiguous: assign its contiguous() copy, or make "
                    "another engine"
                )
            places.add(p.data_ptr())
        if self.contiguous and len(places) < len(found):
            raise ValueError("two parameters share their memory: assign a clone() of one")

    def check_relax(self, x: Tensor, free_steps: int) -> None:
        self.model.check_input(x)
        check_steps("free_steps", free_steps, self.rule.in_turn)

    def check_step(self, x: Tensor, y: Tensor) -> None:
        self.model.check_input(x)
        self.model.check_target(x, y)
        self.readout.target(y, self.model.batch(x), self.model.dtype)

    def targets(self, y: Tensor, batch: int) -> Tensor:
        """As the kernels read them: [batch, n], or [*ensemble, batch, n]."""
        y = self.readout.target(y, batch, self.model.dtype).to(self.model.dtype)
        whole = y if y.ndim == 2 else y.expand(*self.model.ensemble, *y.shape[-2:])
        return whole.contiguous()

    def check_run(self, split: Samples, index: Tensor, signs: Tensor | None) -> Tensor:
        """The minibatches [M, *ensemble, batch], also where all members are given the same."""
        net, shape = self.model, list(index.shape)
        images, labels = split.images, split.labels
        if index.is_floating_point() or index.is_complex() or index.dtype == torch.bool:
            raise ValueError(f"index must hold integers, not {index.dtype}")
        if index.ndim < 2 or index.shape[1:-1] not in ((), net.ensemble) or index.numel() == 0:
            members = "".join(f"{n}, " for n in net.ensemble)
            raise ValueError(
                f"index has shape {shape}, but must be [minibatches, {members}batch], none 0"
            )
        if images.ndim < 2 or labels.ndim != 1 or len(images) != len(labels):
            raise ValueError(
                f"the split has images {list(images.shape)} and labels {list(labels.shape)}: they "
                "must be [n, *shape] and [n]"
            )
        if int(index.min()) < 0 or int(index.max()) >= len(labels):
            raise IndexError(f"index goes beyond the {len(labels)} samples of the split")
        for name, tensor in (("images", images), ("labels", labels)):
            if tensor.device != self.device:
                raise ValueError(
                    f"the {name} of the split are on {tensor.device}: move it to {self.device}"
                )
        if net.input_shape is not None and tuple(images.shape[1:]) != net.input_shape:
            raise ValueError(
                f"the split has images {list(images.shape[1:])}, but the network takes "
                f"{list(net.input_shape)}: give it split.shaped({net.input_shape})"
            )
        if labels.is_floating_point() or labels.dtype == torch.bool:
            raise ValueError(f"the labels of the split must be integers, not {labels.dtype}")
        low, high = torch.aminmax(labels)
        if int(low) < 0 or int(high) >= split.classes:
            raise ValueError(f"a label of the split is not below its {split.classes} classes")
        if signs is not None and list(signs.shape) != [shape[0], *net.ensemble]:
            raise ValueError(
                f"signs have shape {list(signs.shape)}, but must be {[shape[0], *net.ensemble]}"
            )
        index = index.to(self.device)
        if index.ndim == 2:
            index = index.reshape(shape[0], *(1 for _ in net.ensemble), shape[1])
        return index.expand(shape[0], *net.ensemble, shape[-1])

    # roll-back

    @contextmanager
    def restoring(self, copy: bool = True) -> Iterator[Callable[[], None]]:
        """Give a function that puts the parameters back, and call it where the body raises.

        Without `copy` there is nothing to put back.
        """
        before = [(p, p.clone()) for p in self.model.parameters()] if copy else []
        remembered = self.mover.state() if copy else {}

        def restore() -> None:
            with torch.no_grad():
                for parameter, value in before:
                    parameter.copy_(value)
            if remembered:
                self.mover.restore(remembered)

        try:
            yield restore
        except BaseException:
            restore()
            raise

    def healthy(self, states: Sequence[Tensor]) -> bool:
        """Whether states and parameters are finite: one answer from the device."""
        tensors = [*self.model.parameters(), *states]
        return math.isfinite(float(torch.stack([t.sum() * 0 for t in tensors]).sum()))

    # β and its sign

    def draw_sign(self) -> Tensor | None:
        """The sign of β, drawn for each member from its own seed, if the rule asks for it."""
        if self.rule.nudging is None or not self.rule.nudging.draws_sign:
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

    def betas(self, sign: Tensor | None) -> Tensor:
        """β with its sign, one per member in the row-major order of the ensemble."""
        assert self.rule.nudging is not None
        signed = self.rule.nudging.signed(self.model.ensemble, sign)
        beta = torch.as_tensor(signed, dtype=torch.float64).cpu()
        return beta.reshape(-1).expand(math.prod(self.model.ensemble)).contiguous()

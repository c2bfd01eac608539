"""The base class of engines: checks, lock and roll-back.

An engine defines how it computes one minibatch (`learn`). It may also define how it computes many
(`learn_many`) or only a free phase (`free_phase`). If one of these returns None, the plain
composition of model, rule and descent replaces it. That gives the numbers, or an error that names
the place where they are not finite.
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
from eqprop.dynamics import Relaxation, check_steps, check_turns, relax
from eqprop.engines.descent import learn_plainly
from eqprop.engines.job import Job
from eqprop.engines.samples import Samples
from eqprop.seeds import generator
from eqprop.updates import Descent


@dataclass(frozen=True)
class Counts:
    """Sums over the free phases of several minibatches, [*ensemble]."""

    wrong: Tensor  # number of samples that are misclassified
    loss: Tensor  # sum of the costs

    def __add__(self, other: Counts) -> Counts:
        return Counts(self.wrong + other.wrong, self.loss + other.loss)


class Engine(ABC):
    """Trains one model in place. `relaxation` is the free phase of the latest minibatch.

    Every call checks that the parameters still have the names, shapes, dtypes and device for which
    the engine was made. Calls from several threads run one after another.
    """

    threads: int | None = None  # number of its threads. None: it has none
    chunk = 1  # best number of minibatches per call of `run`
    relaxes = 1000  # best number of samples per call of `relax`
    contiguous = True  # whether parameters must be contiguous
    gathers = True  # whether it defines `learn_many`
    mixes = False  # whether it takes a `precision`
    writes_last = False  # whether `learn` moves parameters only when nothing can fail any more

    def __init__(self, job: Job) -> None:
        model = job.model
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

    # selection

    @classmethod
    def obstacle(cls, job: Job) -> str | None:
        """Return what this engine cannot run, as the end of "cannot run …"; None if it can."""
        return None

    @classmethod
    def make(cls, job: Job, only: bool) -> Engine:
        """Return the engine for a job without obstacle; raise `CannotBuild` if that fails here.

        With `only`, no other engine may replace this one for some batch sizes.
        """
        return cls(job)

    # computation, defined by each engine

    @abstractmethod
    def learn(self, x: Tensor, y: Tensor, sign: Tensor | None) -> Relaxation | None:
        """Learn from one valid minibatch; return the free phase, or None if it is not finite."""

    def learn_many(
        self, images: Tensor, labels: Tensor, index: Tensor, signs: Tensor | None
    ) -> tuple[Relaxation, Counts] | None:
        """Learn from M minibatches of a data set; return None if a value is not finite.

        Args:
            images: uint8 [n, *shape].
            labels: uint8 [n].
            index: int64 [M, *ensemble, batch]. All three are contiguous and on the model's device.
            signs: signs of β, [M, *ensemble], or None.
        """
        return None

    def takes(self, split: Samples) -> bool:
        """Return whether `learn_split` can run this split: by default, bytes for `learn_many`."""
        return self.gathers and split.plain_bytes and split.classes <= 256

    def learn_split(
        self, split: Samples, index: Tensor, signs: Tensor | None
    ) -> tuple[Relaxation, Counts] | None:
        """Learn from M minibatches of a split; return None if a value is not finite.

        Args:
            split: images and labels, on the model's device.
            index: int64 [M, *ensemble, batch], contiguous.
            signs: signs of β, [M, *ensemble], or None.
        """
        images, labels = split.images.contiguous(), split.labels.to(torch.uint8).contiguous()
        return self.learn_many(images, labels, index, signs)

    def free_phase(self, x: Tensor, free_steps: int) -> Relaxation | None:
        """Return the free phase of valid samples; None leaves it to `eqprop.relax`."""
        return None

    def instead(self, batch: int) -> Engine | None:
        """Return the engine for minibatches of this size if this one cannot take them."""
        return None

    def prepare(self, batch: int) -> None:  # noqa: B027 (most need nothing)
        """Fail early for minibatches of an unsupported size."""

    # public methods

    def step(self, x: Tensor, y: Tensor, sign: Tensor | None = None) -> Tensor:
        """Learn from one minibatch; return the output of the free phase, [*ensemble, batch, n].

        If it raises, the parameters do not change.

        Args:
            x: inputs, [batch, *shape] or [*ensemble, batch, *shape], of the model's dtype and
                device.
            y: targets, [batch, n] or [*ensemble, batch, n], or class indices without the last axis.
            sign: sign of β, ±1 per member, [*ensemble]. Default None: draw it if the rule has a
                random sign.
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
        """Learn from several minibatches of a split, one after another; return the `Counts`.

        If one of them raises, the parameters return to their values before the first.

        Args:
            split: images and labels, on the device of the model.
            index: indices of the samples, [minibatches, *ensemble, batch], or [minibatches, batch]
                if all members get the same.
            signs: signs of β, [minibatches, *ensemble]. Default None: draw them if the rule has a
                random sign.
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
        """Run only the free phase, with the settings of the rule; return a `Relaxation`.

        Args:
            x: inputs, [batch, *shape] or [*ensemble, batch, *shape].
            free_steps: maximum number of steps.
        """
        with self._turn():
            self.check_relax(x, free_steps)
            found = self.free_phase(x, free_steps)
            if found is not None:
                return found
            rule = self.rule
            return relax(self.model, x, free_steps, rule.tolerance, in_turn=rule.in_turn)

    def next_epoch(self) -> None:
        """Advance the schedule of the learning rates, if the update has one."""
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
        """Run all minibatches in one call. None if the engine or the split does not support it."""
        if split.classes != self.readout.width or not self.takes(split):
            return None
        with self.restoring() as restore:
            found = self.learn_split(split, index.to(torch.int64).contiguous(), signs)
            if found is None:
                restore()
                return None
        self.relaxation, counts = found
        return counts

    def _step_through(self, split: Samples, index: Tensor, signs: Tensor | None) -> Counts:
        """Run any split with one step per minibatch; raise at the one that fails."""
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

    # checks

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """Lock the engine, switch autograd off and check the parameters, for one call.

        An engine keeps what it allocates, so the user's inference mode must not apply to that.
        """
        room = memory.enough_for("a call of the engine")
        with self._lock, torch.inference_mode(False), torch.no_grad(), room:
            self.check_parameters()
            yield

    def check_parameters(self) -> None:
        """Raise unless the parameters match those for which the engine was made."""
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
        check_steps("free_steps", free_steps)
        if self.rule.in_turn:
            check_turns("free_steps", free_steps, self.model.split())

    def check_step(self, x: Tensor, y: Tensor) -> None:
        self.model.check_input(x)
        self.model.check_target(x, y)
        self.readout.target(y, self.model.batch(x), self.model.dtype)

    def targets(self, y: Tensor, batch: int) -> Tensor:
        """Return contiguous targets, [batch, n] or [*ensemble, batch, n]."""
        y = self.readout.target(y, batch, self.model.dtype).to(self.model.dtype)
        whole = y if y.ndim == 2 else y.expand(*self.model.ensemble, *y.shape[-2:])
        return whole.contiguous()

    def check_run(self, split: Samples, index: Tensor, signs: Tensor | None) -> Tensor:
        """Raise unless the arguments of `run` are valid; return the index with all its axes,
        [M, *ensemble, batch].
        """
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
        """Yield a function that restores the parameters; call it if the body raises.

        Without `copy` there is nothing to restore.
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
        """Return whether states and parameters are finite, with one transfer from the device."""
        tensors = [*self.model.parameters(), *states]
        return math.isfinite(float(torch.stack([t.sum() * 0 for t in tensors]).sum()))

    # β and its sign

    def draw_sign(self) -> Tensor | None:
        """Draw the sign of β per member, each from its own seed; None if the rule draws none."""
        if self.rule.nudging is None or not self.rule.nudging.draws_sign:
            return None
        bits = [int(torch.randint(2, (), generator=source)) for source in self._sign_sources]
        return (2.0 * torch.tensor(bits) - 1).reshape(self.model.ensemble)

    def draw_signs(self, minibatches: int) -> Tensor | None:
        """Draw the signs of several minibatches, [minibatches, *ensemble]."""
        drawn = [sign for _ in range(minibatches) if (sign := self.draw_sign()) is not None]
        return torch.stack(drawn) if drawn else None

    def all_betas(self, minibatches: int, signs: Tensor | None) -> Tensor:
        """Return β with the given signs, [minibatches, members]. `signs` is
        [minibatches, *ensemble]; None means +1.
        """
        signs = torch.ones(minibatches, *self.model.ensemble) if signs is None else signs.cpu()
        flat = signs.reshape(minibatches, -1)
        wrong = (flat.abs() != 1).any(-1).nonzero().flatten()
        first = int(wrong[0]) if len(wrong) else 0
        return self.betas(signs[first]) / flat[first] * flat  # betas() raises if a sign is not ±1

    def betas(self, sign: Tensor | None) -> Tensor:
        """Return β with its sign, one per member in row-major order of the ensemble."""
        assert self.rule.nudging is not None
        signed = self.rule.nudging.signed(self.model.ensemble, sign)
        beta = torch.as_tensor(signed, dtype=torch.float64).cpu()
        return beta.reshape(-1).expand(math.prod(self.model.ensemble)).contiguous()

"""The engine for convolutional and dense layers, in any order.

Each convolution that must be computed is computed once, images lie with their channels last, and
on a GPU a minibatch is a row of captured graphs. See `dynamics.py` and `minibatch.py`.
"""

from __future__ import annotations

import warnings

from torch import Tensor

from eqprop.costs import SquaredError
from eqprop.dynamics import Relaxation, warn_unless_settled
from eqprop.engines.compiling import SlowEngine
from eqprop.engines.convolutional.dynamics import Dynamics
from eqprop.engines.convolutional.minibatch import Minibatch
from eqprop.engines.descent import tiny_descent
from eqprop.engines.engine import Counts, Engine
from eqprop.engines.job import Job
from eqprop.engines.layered import ACTIVATIONS, COMPUTED, parameters_obstacle
from eqprop.engines.samples import Samples
from eqprop.network import Network
from eqprop.nudging import Centred, OneSided, RandomSign
from eqprop.readouts import CrossEntropy, OutputLayer
from eqprop.rules import EP, VF, ContinualEP, ContinualVF
from eqprop.synapses import Conv2d, Dense
from eqprop.timesteps import Discrete
from eqprop.update_slope import UpdateSlope


class ConvolutionalEngine(Engine):
    """Trains an ensemble of networks of `Conv2d` and `Dense` synapses with EP, C-EP, VF, C-VF."""

    mixes = True

    @classmethod
    def obstacle(cls, job: Job) -> str | None:
        model, rule, readout = job.model, job.rule, job.readout
        # these very types: one of your own that inherits from them may compute anything
        if type(rule) not in (EP, ContinualEP, VF, ContinualVF):
            return f"the rule {type(rule).__name__}"
        if rule.update_slope != UpdateSlope.NONE:
            return f"update_slope '{rule.update_slope}'"
        if type(rule.nudging) not in (OneSided, RandomSign, Centred):
            return f"{type(rule.nudging).__name__} nudging"
        one_phase = type(rule.nudging) is not Centred
        if rule.tolerance is not None and job.precision is not None and one_phase:
            return "a tolerance with one nudged phase in 16 bits"
        if rule.moving_share == 1 and not job.update.linear:
            return "continual updates other than plain descent"
        if type(readout) not in (OutputLayer, CrossEntropy):
            return f"the read-out {type(readout).__name__}"
        if isinstance(readout, OutputLayer) and type(readout.cost) is not SquaredError:
            return "a cost other than SquaredError"
        if not isinstance(model, Network):
            return "a model that is not a Network"
        if any(synapse.within for synapse in model.synapses):
            return "synapses within a layer"
        kinds = {type(synapse) for synapse in model.synapses}
        if not kinds <= {Conv2d, Dense}:
            return "synapses other than Conv2d and Dense"
        if Conv2d not in kinds:
            return "a network without Conv2d synapses"
        if any(getattr(type(model), name) is not getattr(Network, name) for name in COMPUTED):
            return f"a {type(model).__name__} with methods of its own"
        if not isinstance(model.time, Discrete):
            return "real time"
        if not (model.tied or rule.vector_field):
            return f"the rule {type(rule).__name__} on untied synapses"
        if not {*model.activations, model.input_activation} <= {*ACTIVATIONS}:
            return "an activation of your own"
        return parameters_obstacle(model)

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self._minibatches: dict[int, Minibatch] = {}
        self._tiny = tiny_descent(job.model, job.rule, job.rates)
        self._places: tuple[int, ...] = ()
        self.precision = job.precision or job.model.dtype
        self.chunk = 20 if self.device.type == "cuda" else 1

    def learn(self, x: Tensor, y: Tensor, sign: Tensor | None) -> Relaxation | None:
        minibatch = self._minibatch(self.model.batch(x))
        self._learn(minibatch, x, self.targets(y, minibatch.batch), self.betas(sign))
        found = self._learned(minibatch)
        if found is not None:
            warn_unless_settled(found)
        return found

    def takes(self, split: Samples) -> bool:
        return True

    def learn_split(
        self, split: Samples, index: Tensor, signs: Tensor | None
    ) -> tuple[Relaxation, Counts] | None:
        minibatch = self._minibatch(index.shape[-1])
        betas = self.all_betas(len(index), signs).to(self.device)
        found: Relaxation | None = None
        counts: Counts | None = None
        for m in range(len(index)):
            x, y = split.batch(index[m], self.model.dtype)
            self._learn(minibatch, x, y, betas[m])
            if self.rule.tolerance is not None or m == len(index) - 1:
                found = self._learned(minibatch)
                if found is None:
                    return None
                warn_unless_settled(found)
            free = minibatch.free.state
            wrong = self.readout.output(free).argmax(-1) != y.argmax(-1)
            loss = self.readout.loss(free, y)
            one = Counts(wrong.double().sum(-1), loss.double().sum(-1))
            counts = one if counts is None else counts + one
        assert found is not None
        assert counts is not None
        return found, counts

    def free_phase(self, x: Tensor, free_steps: int) -> Relaxation | None:
        minibatch = self._minibatch(self.model.batch(x))
        self._give(minibatch, x)
        minibatch.relax(free_steps)
        return self._found(minibatch, free_steps)

    def _learn_plainly(self, x: Tensor, y: Tensor, sign: Tensor | None) -> Relaxation:
        found = super()._learn_plainly(x, y, sign)
        if self.precision != self.model.dtype:  # else it would have raised
            bits = str(self.precision).removeprefix("torch.")
            warnings.warn(
                f"a number had no room in {bits}: the reference engine took this minibatch, in the "
                "precision of the model; scale the inputs down, or leave out precision",
                SlowEngine,
                stacklevel=4,
            )
        return found

    def _minibatch(self, batch: int) -> Minibatch:
        assert isinstance(self.model, Network)
        places = tuple(parameter.data_ptr() for parameter in self.model.parameters())
        if places != self._places:  # a graph reads the memory that it was captured with
            self._minibatches, self._places = {}, places
        if batch not in self._minibatches:
            parts = (self.model, self.rule, self.readout, self._tiny or self.mover)
            self._minibatches[batch] = Minibatch(*parts, batch, self.precision)
        return self._minibatches[batch]

    def _give(self, minibatch: Minibatch, given: Tensor) -> None:
        assert isinstance(self.model, Network)
        sample = given.shape[-1 - len(self.model.input.shape) :]
        whole = self.model.input_activation(given).expand(*self.model.ensemble, *sample)
        x = minibatch.origin.x
        x.value.copy_(whole.reshape(x.value.shape))
        x.refresh()

    def _learn(self, minibatch: Minibatch, x: Tensor, y: Tensor, betas: Tensor) -> None:
        self._give(minibatch, x)
        minibatch.origin.y.copy_(y)
        minibatch.beta.copy_(betas)
        minibatch.learn()
        if self.rule.moving_share < 1:  # else they have moved
            self.mover.move(minibatch.gradients)

    def _learned(self, minibatch: Minibatch) -> Relaxation | None:
        return self._found(minibatch, self.rule.free_steps, minibatch.nudged)

    def _found(self, minibatch: Minibatch, steps: int, *others: Dynamics) -> Relaxation | None:
        states = (s for it in (minibatch.free, *others) for s in it.state)
        return minibatch.relaxation(steps) if self.healthy(tuple(states)) else None

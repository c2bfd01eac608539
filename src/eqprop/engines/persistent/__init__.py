"""The persistent engine for a GPU: networks with one or two hidden layers stay on the chip.

One launch runs many minibatches of every member. `naive.py` defines the result; `one_hidden.cu`
and `two_hidden.cu` compute it.
"""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path

import torch
from torch import Tensor

from eqprop.dynamics import Relaxation
from eqprop.engines.compiling import CannotBuild, warn_slower
from eqprop.engines.engine import Counts, Engine
from eqprop.engines.job import Job
from eqprop.engines.layered import ACTIVATIONS, layered_obstacle
from eqprop.engines.persistent.build import Kernel, compiled
from eqprop.engines.persistent.problem import Problem
from eqprop.engines.telescoped import TelescopedEngine
from eqprop.network import Network
from eqprop.timesteps import RealTime
from eqprop.update_slope import UpdateSlope, as_update_slope

__all__ = ["CannotBuild", "PersistentEngine"]

FOLDER = Path(__file__).parent
COMMON = ("common.cuh", "chip.cuh", "input.cuh", "output.cuh")
SLOPES = {UpdateSlope.NONE: 0, UpdateSlope.OWN: 1, UpdateSlope.FULL: 2}
CLUSTERS = (16, 8, 4, 2, 1)
MOST_OUTPUTS, MOST_ROWS = 16, 40
TURN = 50  # minibatches per launch and member if not all members run at once
MOST_SEGMENT = 128  # neurons of a layer that registers can hold, with two hidden layers


class PersistentEngine(Engine):
    """Trains an ensemble of networks, each on its own multiprocessors.

    If a minibatch does not fit, the engine `slower` takes it.
    """

    chunk = 500
    relaxes = 2000

    @classmethod
    def obstacle(cls, job: Job) -> str | None:
        if (obstacle := layered_obstacle(job)) is not None:
            return obstacle
        if job.device != "cuda":
            return "parameters that are not on a GPU"
        return cls.limit(job)

    @classmethod
    def limit(cls, job: Job) -> str | None:
        """Return what this engine cannot run although the telescoped engine can; None if it can."""
        model, rule = job.model, job.rule
        assert isinstance(model, Network)
        if len(model.layers) not in (2, 3):
            return "a network with other than one or two hidden layers"
        if isinstance(model.time, RealTime):
            return "real time"
        if model.layer_sizes[-1] > MOST_OUTPUTS:
            return f"more than {MOST_OUTPUTS} outputs"
        if rule.tolerance is not None:
            return "a tolerance"
        if len(model.layers) == 3:
            widest = max(model.layer_sizes[:2])
            if widest > MOST_SEGMENT * 4:
                return f"two hidden layers of more than {MOST_SEGMENT * 4} neurons"
            if model.tied and rule.vector_field:
                return "VF on tied weights with two hidden layers"
        return None

    @classmethod
    def make(cls, job: Job, only: bool) -> Engine:
        return cls(job, slower=None if only else TelescopedEngine(job))

    def __init__(
        self,
        job: Job,
        cluster: int | None = None,
        profile: bool = False,
        slower: Engine | None = None,
    ) -> None:
        super().__init__(job)
        model = self.model
        assert isinstance(model, Network)
        self._slower = slower
        self._too_large: set[int] = set()  # batch sizes that do not fit
        self._deep = len(model.layers) == 3
        self._sources = (*COMMON, "two_hidden.cu" if self._deep else "one_hidden.cu")
        # larger clusters are tried only if all members run at once
        self._smallest = 16 if self._deep else 2
        usable = tuple(c for c in CLUSTERS if not self._deep or c in (16, 4, 1))
        self._clusters = usable if cluster is None else (cluster,)
        self._kernels: dict[tuple[int, bool], Kernel] = {}
        self.clocks: Tensor | None = None  # cycles between the stamps of the latest launch
        if profile:
            self.clocks = torch.zeros(16, dtype=torch.int64, device=self.device)
        self._members = math.prod(model.ensemble)
        self._tied = model.tied
        self._columns: dict[tuple[str, int], Tensor] = {}
        # number of samples that relax together without learning
        self._tile = self._largest(20, 8, 4) if model.dtype == torch.float32 else 8
        if self.kernel(self._tile).resident() < self._members:
            self.chunk = 3000  # multiprocessors are idle at the end of a call: make fewer calls
        if self._deep and self._tile == 20:
            self._tile = self._largest(32, 20, relaxes=True)

    def _largest(self, *batches: int, relaxes: bool = False) -> int:
        """Return the first of these batch sizes that fits; raise the reason if none does."""
        *larger, least = batches
        for batch in larger:
            with suppress(CannotBuild):
                self.kernel(batch, relaxes)
                return batch
        self.kernel(least, relaxes)
        return least

    def _current(self) -> AbstractContextManager[object]:
        """Make the GPU of the model the current one."""
        return torch.cuda.device(self.device) if self.device.type == "cuda" else nullcontext()

    def kernel(self, batch: int, relaxes: bool = False) -> Kernel:
        """Return the kernel for a batch size, with the largest cluster with which all members run
        at once, or else with the smallest cluster.
        """
        relaxes &= self._deep  # one hidden layer: the same kernel
        if (batch, relaxes) not in self._kernels:
            with self._current():
                self._kernels[batch, relaxes] = self._build(batch, relaxes)
        return self._kernels[batch, relaxes]

    def _build(self, batch: int, relaxes: bool) -> Kernel:
        if torch.cuda.get_device_capability() < (9, 0):
            raise CannotBuild("it needs a GPU with clusters: Hopper or later")
        reasons, chosen = [], None
        multiprocessors = torch.cuda.get_device_properties().multi_processor_count
        for cluster in self._clusters:
            if self._members * cluster > multiprocessors and cluster > self._smallest:
                continue
            try:
                sources = [FOLDER / name for name in self._sources]
                candidate = compiled(sources, self._constants(batch, cluster, relaxes))
                at_once = candidate.resident()
            except CannotBuild as error:
                reasons.append(str(error))
                continue
            if at_once == 0:
                reasons.append(f"this GPU has no place for a cluster of {cluster}")
                continue
            chosen = candidate
            if at_once >= self._members:
                break
        if chosen is None:
            raise CannotBuild(reasons[0] if reasons else "not enough multiprocessors")
        return chosen

    def _constants(self, batch: int, cluster: int, relaxes: bool) -> dict[str, int]:
        net, rule = self.model, self.rule
        assert isinstance(net, Network)
        if batch > MOST_ROWS:
            raise CannotBuild(f"a batch of more than {MOST_ROWS}")
        *hidden, outputs = net.layer_sizes
        slice_ = math.ceil(max(hidden) / cluster / 32)  # in warps, one column per lane
        constants = {"H": hidden[0], "CLUSTER": cluster, "SLICE": 32 * slice_}
        if len(hidden) == 1:
            strip = 4 if slice_ >= 8 and hidden[0] % 4 == 0 and net.dtype == torch.float32 else 2
            # Up to ten warps have room for all weights in their registers. The warps together must
            # have a strip of input weights per column.
            chosen = next(
                (
                    (columns, rows, warps)
                    for most in (10, 20)
                    for columns in (4, 2, 1)
                    for rows in (2, 4, 8)
                    if slice_ % columns == 0
                    and (warps := slice_ // columns * math.ceil(batch / rows)) <= most
                    and warps * strip >= slice_
                ),
                None,
            )
            if chosen is None:
                raise CannotBuild(f"{hidden[0]} hidden neurons in a cluster of {cluster}")
            columns, rows, warps = chosen
            constants |= {"ROWS": rows, "COLUMNS": columns, "STRIP": strip}
            constants |= {"PREFETCH": 1, "SPLIT": 16}
        else:
            grid = math.isqrt(cluster)
            if grid * grid != cluster:
                raise CannotBuild(f"two hidden layers in a cluster of {cluster}: no square")
            if 32 * slice_ * grid > MOST_SEGMENT:
                raise CannotBuild(f"{max(hidden)} hidden neurons in a cluster of {cluster}")
            warps = 4 * slice_ * grid
            constants |= {"H2": hidden[1], "GRID": grid, "PREFETCH": 0, "RELAXES": int(relaxes)}
        constants |= {
            "NX": net.input_size,
            "O": outputs,
            "B": batch,
            "THREADS": 32 * warps,
            "MOST_PARTS": 20 if net.dtype == torch.float32 else 6,
            "ACTIVATION": ACTIVATIONS[net.activations[0]],
            "TIED": int(self._tied),
            "CONTINUAL": int(rule.continual),
            "RESCALED": int(0 < rule.moving_share < 1),
            "VECTOR_FIELD": int(rule.vector_field),
            "SLOPE": SLOPES[as_update_slope(rule.update_slope)],
            "IN_TURN": int(rule.in_turn),
        }
        if net.dtype == torch.float64:
            constants["DOUBLE"] = 1
        if self.clocks is not None:
            constants["PROFILE"] = 1
        return constants

    def prepare(self, batch: int) -> None:
        self.instead(batch)

    def learn(self, x: Tensor, y: Tensor, sign: Tensor | None) -> Relaxation | None:
        net, rule = self.model, self.rule
        assert isinstance(net, Network)
        problem = self._problem(x.shape[-2], rule.free_steps)
        problem.x, problem.y = (
            self._flat(net.input_activation(x)),
            self._flat(self.targets(y, x.shape[-2])),
        )
        problem.beta = self.betas(sign).to(self.device, net.dtype)
        problem.nudged_steps = rule.horizon
        relaxation = self._launch(problem, x.shape[-2])
        return relaxation if self.healthy(relaxation.state) else None

    def learn_many(
        self, images: Tensor, labels: Tensor, index: Tensor, signs: Tensor | None
    ) -> tuple[Relaxation, Counts] | None:
        """Run all minibatches in one launch; the kernel gathers the samples."""
        net, rule = self.model, self.rule
        assert isinstance(net, Network)
        bytes_ = torch.arange(256, dtype=torch.uint8).to(net.dtype) / 255
        problem = self._problem(index.shape[-1], rule.free_steps)
        beta = self.all_betas(len(index), signs)
        problem.beta = beta.to(self.device, net.dtype).contiguous()
        problem.nudged_steps = rule.horizon
        problem.images, problem.labels = images, labels
        problem.index = index.reshape(len(index), self._members, -1)
        problem.pixel = net.input_activation(bytes_).to(self.device)
        counts = torch.zeros(2, self._members, dtype=torch.float64, device=self.device)
        problem.wrong, problem.loss = counts[0], counts[1]
        relaxation = self._launch(problem, index.shape[-1])
        if not self.healthy(relaxation.state):
            return None
        return relaxation, Counts(*(count.reshape(net.ensemble) for count in counts))

    def free_phase(self, x: Tensor, free_steps: int) -> Relaxation | None:
        net = self.model
        assert isinstance(net, Network)
        problem = self._problem(x.shape[-2], free_steps)
        problem.x = self._flat(net.input_activation(x))
        relaxation = self._launch(problem, self._tile)
        return relaxation if self.healthy(relaxation.state) else None

    def _flat(self, samples: Tensor) -> Tensor:
        """Return contiguous samples, [batch, n] or [members, batch, n]."""
        whole = samples if samples.ndim == 2 else samples.reshape(-1, *samples.shape[-2:])
        return whole.contiguous()

    def instead(self, batch: int) -> Engine | None:
        if batch not in self._too_large:
            try:
                self.kernel(batch)
                return None
            except CannotBuild as error:
                if self._slower is None:
                    raise ValueError(f"kind 'persistent': {error}: use kind='auto'") from None
                self._too_large.add(batch)
                warn_slower("persistent kernel", error, stacklevel=3)
        return self._slower

    def _problem(self, samples: int, free_steps: int) -> Problem:
        """Return the problem without its samples, with empty tensors for the results."""
        net, rule = self.model, self.rule
        assert isinstance(net, Network)
        synapses = range(len(net.synapses))

        def parameter(k: int, field: str) -> Tensor | None:
            value: Tensor | None = getattr(net.synapses[k], field)
            return None if value is None else value.view(self._members, *value.shape[E:])

        def rates(field: str) -> list[Tensor]:
            return [self._rate(f"synapses.{k}.{field}", samples) for k in synapses]

        E = len(net.ensemble)
        weights = [parameter(k, "weight") for k in synapses]
        shape, device = (*net.ensemble, samples), self.device
        return Problem(
            weights=[w for w in weights if w is not None],
            backward=[parameter(k, "backward_weight") for k in synapses],
            biases=[parameter(k, "bias") for k in synapses],
            weight_rates=rates("weight"),
            backward_rates=rates("weight" if self._tied else "backward_weight"),
            bias_rates=rates("bias"),
            activation=net.activations[0],
            vector_field=rule.vector_field,
            update_slope=as_update_slope(rule.update_slope),
            in_turn=rule.in_turn,
            inside=rule.moving_share,
            free_steps=free_steps,
            states=[
                torch.empty((*shape, n), dtype=net.dtype, device=device) for n in net.layer_sizes
            ],
            residual=torch.zeros(shape, dtype=net.dtype, device=device),
            clocks=self.clocks,
        )

    def _rate(self, name: str, batch: int) -> Tensor:
        """Return η/B per member; 0 if the parameter does not move."""
        if (name, batch) not in self._columns:
            rate = torch.as_tensor(self.rates.get(name, 0.0), dtype=torch.float64).reshape(-1)
            column = (rate / batch).expand(self._members)
            self._columns[name, batch] = column.to(self.device, self.model.dtype).contiguous()
        return self._columns[name, batch]

    def _take_turns(self, kernel: Kernel, problem: Problem) -> None:
        """Run more members than fit at once: a few minibatches of each per launch.

        So no multiprocessor is idle while others finish the last members.
        """
        parts, launched = problem.turns(TURN), []
        last = problem.minibatches - TURN
        streams = [torch.cuda.Stream() for _ in range(min(self._members, 32))]
        current = torch.cuda.current_stream()
        for stream in streams:
            stream.wait_stream(current)
        try:
            for k, part in enumerate(parts):
                launched.append(part)
                with torch.cuda.stream(streams[k % self._members % len(streams)]):
                    if k // self._members * TURN >= last:
                        part.residual.zero_()  # only the last one counts
                    kernel.launch(1, part)
        finally:
            for stream in streams:
                current.wait_stream(stream)
            current.synchronize()  # keeps `launched` alive until the kernels end

    def _launch(self, problem: Problem, batch: int) -> Relaxation:
        samples = problem.residual.shape[-1]
        tasks = self._members * (1 if problem.nudged_steps else math.ceil(samples / batch))
        kernel = self.kernel(batch, relaxes=problem.nudged_steps == 0)
        with self._current():
            if problem.index is not None and tasks > kernel.resident():
                self._take_turns(kernel, problem)
            else:
                kernel.launch(tasks, problem)
        steps, shape = problem.free_steps, self.model.ensemble
        return Relaxation(
            state=tuple(problem.states),
            residual=float(problem.residual.max()),
            steps=steps,
            sample_residual=problem.residual,
            member_steps=torch.full(shape, steps, device=self.device),
        )

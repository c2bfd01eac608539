"""The compiled engine for layered dense networks on the CPU.

It computes the same numbers as the reference engine; `kernel.c` describes how. The members of an
ensemble run in parallel and independently. In a single minibatch, threads also share the input
weights of a member and the samples of its free phase.
"""

from __future__ import annotations

import ctypes
import math
import os

import torch
from torch import Tensor

from eqprop import memory
from eqprop.dynamics import Relaxation, warn_unless_settled
from eqprop.engines.compiling import CannotBuild
from eqprop.engines.engine import Counts, Engine
from eqprop.engines.job import Job
from eqprop.engines.layered import ACTIVATIONS, groups_in_turn, layered_obstacle
from eqprop.engines.native.build import library
from eqprop.network import Network
from eqprop.rules import Rule
from eqprop.timesteps import RealTime

__all__ = ["CannotBuild", "NativeEngine"]

MAX_LAYERS, MAX_THREADS = 8, 256
LIMIT = 2**31 - 256  # room to round up to whole vectors
SLOPES = {"all": 0, "hidden": 1, "none": 2}
UPDATE_SLOPES = {"none": 0, "own": 1, "full": 2}

_pointers = ctypes.c_void_p * MAX_LAYERS


class _Problem(ctypes.Structure):
    """The struct `Problem` of kernel.c."""

    _fields_ = (
        *((name, ctypes.c_int32) for name in ("layers", "batch", "inputs", "members")),
        ("size", ctypes.c_int32 * MAX_LAYERS),
        *(
            (name, ctypes.c_int32)
            for name in (
                "rule",
                "activation",
                "real_time",
                "slope",
                "update_slope",
                "tied",
                "groups",
                "free_steps",
                "nudged_steps",
                "shared_x",
                "shared_y",
                "threads",
                "minibatches",
            )
        ),
        *((name, ctypes.c_double) for name in ("dt", "tolerance", "rescale")),
        *((name, ctypes.c_void_p) for name in ("x", "y")),
        *((name, _pointers) for name in ("weight", "backward", "bias")),
        *(
            (name, ctypes.c_void_p)
            for name in ("images", "labels", "index", "pixel", "wrong", "loss", "beta")
        ),
        *((name, _pointers) for name in ("rate", "back_rate", "bias_rate", "state")),
        *(
            (name, ctypes.c_void_p)
            for name in ("residual", "steps", "failed", "progress", "scratch")
        ),
    )


def _cores() -> int:
    """Return the number of cores that this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on Linux
        return os.cpu_count() or 1


class NativeEngine(Engine):
    """Trains an ensemble of layered networks on the CPU with up to `threads` threads."""

    chunk = 50  # enough to balance the load, few enough to stop soon
    relaxes = 100  # the states of this many samples stay in the cache
    writes_last = True

    @classmethod
    def obstacle(cls, job: Job) -> str | None:
        if (obstacle := layered_obstacle(job)) is not None:
            return obstacle
        if len(job.model.layer_names) > MAX_LAYERS:
            return f"more than {MAX_LAYERS} layers"
        return None if job.device == "cpu" else "parameters that are not on the CPU"

    def __init__(
        self,
        job: Job,
    ) -> None:
        super().__init__(job)
        model, rule = self.model, self.rule
        assert isinstance(model, Network)
        self._library = library(model.dtype)
        self._library.scratch_bytes.restype = ctypes.c_size_t
        self._library.problem_bytes.restype = ctypes.c_size_t
        assert self._library.problem_bytes() == ctypes.sizeof(_Problem)
        self.threads = _cores() if job.threads is None else job.threads
        self._scratch = torch.empty(0, dtype=torch.uint8)
        self._failed = torch.zeros(math.prod(model.ensemble), dtype=torch.int32)
        self._columns: list[Tensor] = []  # keeps what the problem points to alive
        self._problem = self._describe(model, rule)

    def _describe(self, net: Network, rule: Rule) -> _Problem:
        """Return the part of the problem that is the same for all minibatches."""
        p = _Problem()
        _check_counts(inputs=net.input_size, networks=math.prod(net.ensemble))
        _check_counts(**dict(zip(net.layer_names, net.layer_sizes, strict=True)))
        p.layers, p.inputs, p.members = len(net.layers), net.input_size, math.prod(net.ensemble)
        p.size[: p.layers] = net.layer_sizes
        p.rule = 2 * rule.vector_field + rule.continual
        p.activation = ACTIVATIONS[net.activations[0]]
        if isinstance(net.time, RealTime):
            p.real_time, p.dt, p.slope = 1, net.time.dt, SLOPES[net.time.slope]
        p.update_slope = UPDATE_SLOPES[rule.update_slope]
        p.tied = int(net.tied)
        p.groups = groups_in_turn(net, rule)
        p.tolerance = -1.0 if rule.tolerance is None else rule.tolerance
        p.rescale = rule.moving_share or 1.0
        p.threads = self.threads
        for k in range(p.layers):
            for field, target in (
                ("weight", p.rate),
                ("backward_weight", p.back_rate),
                ("bias", p.bias_rate),
            ):
                rate = self.rates.get(f"synapses.{k}.{field}", 0.0)
                target[k] = self._column(rate, p.members)
        return p

    def _column(self, value: float | Tensor, members: int) -> int:
        """Store one double per member; return its address."""
        column = torch.as_tensor(value, dtype=torch.float64).cpu().reshape(-1).expand(members)
        self._columns.append(column.contiguous())
        return self._columns[-1].data_ptr()

    def learn(self, x: Tensor, y: Tensor, sign: Tensor | None) -> Relaxation | None:
        rule, p = self.rule, self._problem
        beta, targets = self.betas(sign), self.targets(y, x.shape[-2])
        p.y, p.shared_y, p.beta = targets.data_ptr(), targets.ndim == 2, beta.data_ptr()
        relaxation = self._call_on(x, rule.free_steps, rule.horizon)
        if relaxation is not None:
            warn_unless_settled(relaxation)
        return relaxation

    def free_phase(self, x: Tensor, free_steps: int) -> Relaxation | None:
        return self._call_on(x, free_steps, 0)

    def learn_many(
        self, images: Tensor, labels: Tensor, index: Tensor, signs: Tensor | None
    ) -> tuple[Relaxation, Counts] | None:
        """Run all minibatches in one call; the kernel gathers the samples."""
        net, rule, p = self.model, self.rule, self._problem
        assert isinstance(net, Network)
        beta = self.all_betas(len(index), signs).contiguous()
        bytes_ = torch.arange(256, dtype=torch.uint8).to(net.dtype) / 255
        pixel = net.input_activation(bytes_).contiguous()
        counts = torch.zeros(2, p.members, dtype=torch.float64)
        progress = torch.zeros(2, p.members, dtype=torch.int32)
        p.images, p.labels, p.index = images.data_ptr(), labels.data_ptr(), index.data_ptr()
        p.pixel, p.beta, p.minibatches = pixel.data_ptr(), beta.data_ptr(), len(index)
        p.wrong, p.loss = counts[0].data_ptr(), counts[1].data_ptr()
        p.progress = progress.data_ptr()
        relaxation = self._call("learn", index.shape[-1], rule.free_steps, rule.horizon)
        if relaxation is None:
            return None
        warn_unless_settled(relaxation)
        return relaxation, Counts(*(count.reshape(net.ensemble) for count in counts))

    def _call_on(self, x: Tensor, free_steps: int, nudged_steps: int) -> Relaxation | None:
        net, p = self.model, self._problem
        assert isinstance(net, Network)
        transmitted = net.input_activation(x).contiguous()
        p.images = p.labels = p.index = None
        p.x, p.shared_x, p.minibatches = transmitted.data_ptr(), x.ndim == 2, 1
        return self._call("step", x.shape[-2], free_steps, nudged_steps)

    def _call(self, function: str, B: int, free_steps: int, nudged_steps: int) -> Relaxation | None:
        """Run the kernel; return None if a value of some member is not finite."""
        net, rule, p = self.model, self.rule, self._problem
        assert isinstance(net, Network)
        _check_counts(batch=B, pixels=B * p.inputs, minibatches=p.minibatches)
        dtype = net.dtype
        state = tuple(torch.empty(*net.ensemble, B, n, dtype=dtype) for n in net.layer_sizes)
        residual = torch.empty(*net.ensemble, B, dtype=dtype)
        steps = torch.empty(net.ensemble, dtype=torch.int64)
        failed = self._failed.zero_()
        p.batch = B
        p.free_steps, p.nudged_steps = free_steps, nudged_steps
        p.residual, p.steps, p.failed = residual.data_ptr(), steps.data_ptr(), failed.data_ptr()
        held: list[Tensor] = []  # keeps parameters alive until the kernel ends
        for k, synapse in enumerate(net.synapses):
            p.state[k] = state[k].data_ptr()
            for field, target in (
                ("weight", p.weight),
                ("backward_weight", p.backward),
                ("bias", p.bias),
            ):
                parameter = getattr(synapse, field)
                if parameter is not None:
                    held.append(parameter.detach())
                target[k] = None if parameter is None else held[-1].data_ptr()
        p.scratch = self._scratch_at(p)
        if getattr(self._library, function)(ctypes.byref(p)):
            return None
        return Relaxation(
            state=state,
            residual=float(residual.max()),
            steps=int(steps.max()),
            sample_residual=residual,
            member_steps=steps,
            tolerance=rule.tolerance,
        )

    def _scratch_at(self, p: _Problem) -> int:
        """Return the address of the buffers; enlarge them if this problem needs more."""
        needed = p.members * self._library.scratch_bytes(ctypes.byref(p)) + 64
        if needed > len(self._scratch):
            memory.require(needed, f"the buffers of {p.members} network(s), {p.batch} samples each")
            self._scratch = torch.empty(needed, dtype=torch.uint8)
        return -(-self._scratch.data_ptr() // 64) * 64


def _check_counts(**counts: int) -> None:
    """Raise if a count exceeds the 32 bits of the kernel."""
    for name, count in counts.items():
        if count >= LIMIT:
            raise ValueError(f"kind 'native': {name} must be at most {LIMIT - 1}, not {count}")

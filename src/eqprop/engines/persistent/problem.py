"""The arguments of a kernel, for the compiled kernels and for `naive.run`."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from eqprop.activations import Activation
from eqprop.update_slope import UpdateSlope


@dataclass
class Problem:
    """M minibatches of B samples for E members; or, with `nudged_steps` 0, samples to relax.

    All tensors are on one device. A kernel moves the parameters in place. It writes `states` and
    `residual` (of the last free phase), and `wrong` and `loss` (sums over all free phases).
    """

    # per synapse, input → output: [E, n_pre, n_post]; [E, n_post, n_pre] or None; [E, n_post] or
    # None
    weights: Sequence[Tensor]
    backward: Sequence[Tensor | None]
    biases: Sequence[Tensor | None]
    # η/B per synapse, [E]; 0 if the parameter does not move
    weight_rates: Sequence[Tensor]
    backward_rates: Sequence[Tensor]
    bias_rates: Sequence[Tensor]
    # the rule
    activation: Activation
    vector_field: bool
    update_slope: UpdateSlope
    in_turn: bool
    inside: float  # share of the update by which the weights move within the phase
    free_steps: int
    states: Sequence[Tensor]  # per layer: [E, n, size]
    residual: Tensor  # [E, n], initially zero
    nudged_steps: int = 0
    beta: Tensor | None = None  # [M, E], signed
    # either one minibatch: what the input transmits, and the target, [n, …] or [E, n, …]
    x: Tensor | None = None
    y: Tensor | None = None
    # or samples of a data set
    images: Tensor | None = None  # bytes [N, NX]
    labels: Tensor | None = None  # bytes [N]
    index: Tensor | None = None  # [M, E, B]
    pixel: Tensor | None = None  # what a byte transmits, [256]
    wrong: Tensor | None = None  # float64 [E]
    loss: Tensor | None = None
    clocks: Tensor | None = None

    @property
    def members(self) -> int:
        return len(self.weights[0])

    @property
    def minibatches(self) -> int:
        return 1 if self.index is None else len(self.index)

    def turns(self, size: int) -> Iterator[Problem]:
        """Split the problem into parts of one member and `size` minibatches each.

        The first minibatches of all members come first, then the next ones. The parts share the
        memory of the problem, except `index` and `beta`, which are transposed.
        """
        assert self.beta is not None
        assert self.index is not None
        M, E = self.minibatches, self.members
        beta = self.beta.t().contiguous()
        index = self.index.transpose(0, 1).contiguous()
        members = [self._of_member(e) for e in range(E)]
        turns = (
            (e, slice(first, first + size), None) for first in range(0, M, size) for e in range(E)
        )
        return (replace(members[at[0]], beta=beta[at], index=index[at]) for at in turns)

    def _of_member(self, member: int) -> Problem:
        E, only = self.members, slice(member, member + 1)
        assert self.wrong is not None
        assert self.loss is not None
        return replace(
            self,
            weights=[w[only] for w in self.weights],
            backward=[None if w is None else w[only] for w in self.backward],
            biases=[None if b is None else b[only] for b in self.biases],
            weight_rates=[r[only] for r in self.weight_rates],
            backward_rates=[r[only] for r in self.backward_rates],
            bias_rates=[r[only] for r in self.bias_rates],
            states=[s.view(E, *s.shape[-2:])[only] for s in self.states],
            residual=self.residual.view(E, -1)[only],
            wrong=self.wrong[only],
            loss=self.loss[only],
        )

    def struct(self) -> Struct:
        """Return the C struct. It has pointers to the tensors, so keep them alive."""
        s = Struct(
            inside=self.inside,
            members=self.members,
            samples=self.residual.shape[-1],
            minibatches=self.minibatches,
            free_steps=self.free_steps,
            nudged_steps=self.nudged_steps,
            shared_x=self.x is not None and self.x.ndim == 2,
            shared_y=self.y is not None and self.y.ndim == 2,
        )
        names = (("wx", None, "bx"), ("wm", "wn", "bm"), ("wf", "wb", "bo"))
        chosen = (names[0], names[2]) if len(self.weights) == 2 else names
        tensors: dict[str, Tensor | None] = {"residual": self.residual, "o": self.states[-1]}
        for k, (weight, backward, bias) in enumerate(chosen):
            tensors |= {weight: self.weights[k], f"rate_{weight}": self.weight_rates[k]}
            tensors |= {bias: self.biases[k], f"rate_{bias}": self.bias_rates[k]}
            if backward is not None:
                tensors |= {backward: self.backward[k], f"rate_{backward}": self.backward_rates[k]}
        for name, state in zip(("h", "h2"), self.states[:-1], strict=False):
            tensors[name] = state
        for name in ("beta", "images", "labels", "index", "pixel", "x", "y", "wrong", "loss"):
            tensors[name] = getattr(self, name)
        tensors["clocks"] = self.clocks
        for name, tensor in tensors.items():
            assert tensor is None or tensor.is_contiguous()
            setattr(s, name, None if tensor is None else tensor.data_ptr())
        return s


PARAMETERS = ("wx", "bx", "wm", "wn", "bm", "wf", "wb", "bo")
POINTERS = (
    *PARAMETERS,
    *(f"rate_{name}" for name in PARAMETERS),
    *("beta", "images", "labels", "index", "pixel", "x", "y"),
    *("h", "h2", "o", "residual", "wrong", "loss", "clocks"),
)
NUMBERS = ("members", "samples", "minibatches", "free_steps", "nudged_steps")


class Struct(ctypes.Structure):
    """The struct `Problem` of common.cuh."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in POINTERS),
        ("inside", ctypes.c_double),
        *((name, ctypes.c_int) for name in (*NUMBERS, "shared_x", "shared_y")),
    )

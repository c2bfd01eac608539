"""The telescoped engine, in plain PyTorch.

On a GPU the whole minibatch is one captured graph. On a CPU it replaces the compiled engine if
there is no C compiler.

It uses the identities of `native/kernel.c`. The drive of the input is computed once, and the
continual updates of its weights are not written within a phase:
    X W_x(t) = X W_x(0) + (c G + c_b) R_t,   G = X Xᵀ.
Hidden weights under C-EP are W(t) = W_00 + c A_tᵀ P_t. Here each operation is a kernel launch, and
their number limits the speed. The synchronous free phase of a discrete-time chain is two
independent interleaved sequences. So it runs as one sequence with twice the batch, in half as many
steps.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from eqprop.activations import IDENTITY, SIGMOID, TANH
from eqprop.dynamics import Relaxation
from eqprop.engines.engine import Counts, Engine
from eqprop.engines.graphs import Graphs
from eqprop.engines.job import Job
from eqprop.engines.layered import groups_in_turn, layered_obstacle
from eqprop.network import Network
from eqprop.rules import Rule
from eqprop.synapses import Dense
from eqprop.timesteps import RealTime
from eqprop.update_slope import UpdateSlope


class TelescopedEngine(Engine):
    """Trains an ensemble of layered networks. On a GPU no step of a phase waits for the host."""

    @classmethod
    def obstacle(cls, job: Job) -> str | None:
        if (obstacle := layered_obstacle(job)) is not None:
            return obstacle
        return None if job.rule.tolerance is None else "a tolerance: leave it out"

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self._minibatches: dict[int, _Minibatch] = {}
        self._places: tuple[int, ...] = ()
        self.chunk = 200 if self.device.type == "cuda" else 1

    def learn(self, x: Tensor, y: Tensor, sign: Tensor | None) -> Relaxation | None:
        minibatch = self._minibatch(x.shape[-2])
        minibatch.learn(x, self.targets(y, x.shape[-2]), self.betas(sign))
        return minibatch.relaxation() if self.healthy(minibatch.states) else None

    def learn_many(
        self, images: Tensor, labels: Tensor, index: Tensor, signs: Tensor | None
    ) -> tuple[Relaxation, Counts] | None:
        betas = self.all_betas(len(index), signs).to(self.device)
        minibatch = self._minibatch(index.shape[-1])
        minibatch.start_counting(images, labels)
        for m in range(len(index)):
            minibatch.learn_from(index[m], betas[m])
        if not self.healthy(minibatch.states):
            return None
        return minibatch.relaxation(), minibatch.counts()

    def _minibatch(self, batch: int) -> _Minibatch:
        assert isinstance(self.model, Network)
        places = tuple(parameter.data_ptr() for parameter in self.model.parameters())
        if places != self._places:  # the parameters have moved, so captured graphs are invalid
            self._minibatches, self._places = {}, places
        if batch not in self._minibatches:
            self._minibatches[batch] = _Minibatch(self.model, self.rule, self.rates, batch)
        return self._minibatches[batch]


class _Minibatch:
    """The buffers and operations of one minibatch, for one batch size B and E members.

    Drives are stored as a·drive + shift. For the paper's sigmoid in discrete time a = 4 and
    shift = −2, so that σ is a plain sigmoid of the stored value; otherwise a = 1 and shift = 0.
    """

    def __init__(
        self, net: Network, rule: Rule, rates: Mapping[str, float | Tensor], batch: int
    ) -> None:
        self.net, self.rule, self.B = net, rule, batch
        self.E, self.L = math.prod(net.ensemble), len(net.layers)
        self.sizes = net.layer_sizes
        self.real_time = isinstance(net.time, RealTime)
        self.sigma = net.activations[0]
        scaled = self.sigma == SIGMOID and not self.real_time
        self.a, self.shift = (4.0, -2.0) if scaled else (1.0, 0.0)
        self.device, self.dtype = next(net.parameters()).device, net.dtype
        self.tied = net.tied
        self.vector_field, self.update_slope = rule.vector_field, rule.update_slope
        self.continual, self.inside = rule.continual, rule.moving_share
        epsilon = net.time.epsilon if self.vector_field else 1.0
        self.rate: dict[str, Tensor] = {}
        for name, rate in rates.items():
            column = torch.as_tensor(rate, dtype=torch.float64).reshape(-1).expand(self.E)
            self.rate[name] = (column / (batch * epsilon)).to(self.device, self.dtype)
        zeros = self._zeros
        self.x, self.y = zeros(batch, net.input_size), zeros(batch, self.sizes[-1])
        self.beta = torch.ones(self.E, device=self.device, dtype=self.dtype)
        self.states = tuple(zeros(batch, n) for n in self.sizes)
        self.residual = zeros(batch)
        self.index = torch.zeros(self.E, batch, dtype=torch.long, device=self.device)
        self.wrong = torch.zeros(self.E, dtype=torch.float64, device=self.device)
        self.loss = torch.zeros_like(self.wrong)
        self._bytes: tuple[Tensor, Tensor] | None = None  # images and labels
        self._places: tuple[object, ...] = ()  # their memory, which a graph has captured
        self._graphs = Graphs(self.device, [*net.parameters(), self.wrong, self.loss])

    def _zeros(self, *shape: int) -> Tensor:
        return torch.zeros(self.E, *shape, dtype=self.dtype, device=self.device)

    # interface for the engine

    def learn(self, x: Tensor, y: Tensor, beta: Tensor) -> None:
        self.x.copy_(x.expand(*self.net.ensemble, *x.shape[-2:]).reshape(self.x.shape))
        self.y.copy_(y.expand(*self.net.ensemble, *y.shape[-2:]).reshape(self.y.shape))
        self.beta.copy_(beta)
        self._graphs.replay("given", self._minibatch)

    def start_counting(self, images: Tensor, labels: Tensor) -> None:
        places = (images.data_ptr(), images.shape, labels.data_ptr())
        if places != self._places:
            self._graphs.forget("gathered")
        self._bytes, self._places = (images, labels), places
        self.wrong.zero_()
        self.loss.zero_()

    def learn_from(self, index: Tensor, beta: Tensor) -> None:
        self.index.copy_(index.reshape(self.E, self.B))
        self.beta.copy_(beta)
        self._graphs.replay("gathered", self._gathered_minibatch)

    def counts(self) -> Counts:
        shape = self.net.ensemble
        return Counts(self.wrong.clone().reshape(shape), self.loss.clone().reshape(shape))

    def relaxation(self) -> Relaxation:
        shape = self.net.ensemble
        residual = self.residual.clone().reshape(*shape, self.B)
        return Relaxation(
            state=tuple(s.clone().reshape(*shape, *s.shape[1:]) for s in self.states),
            residual=float(residual.max()),
            steps=self.rule.free_steps,
            sample_residual=residual,
            member_steps=torch.full(shape, self.rule.free_steps, device=self.device),
        )

    def _gathered_minibatch(self) -> None:
        assert self._bytes is not None
        images, labels = self._bytes
        torch.div(images[self.index].to(self.dtype), 255, out=self.x)
        labels = labels[self.index].long()
        self.y.zero_().scatter_(-1, labels[..., None], 1.0)
        self._minibatch()
        output = self.states[-1]
        self.wrong += (output.argmax(-1) != labels).sum(-1)
        self.loss += 0.5 * ((output - self.y) ** 2).sum((-2, -1))

    # computation of a minibatch

    def _minibatch(self) -> None:
        x = self.net.input_activation(self.x)
        self._read_weights(x)
        self._free_phase()
        self._nudged_phase(x)

    def _c(self, field: str) -> Tensor:
        """Return η/(β ε B) of a parameter, [E, 1, 1]; zero if it does not move."""
        if field not in self.rate:
            return torch.zeros(self.E, 1, 1, dtype=self.dtype, device=self.device)
        return (self.rate[field] / self.beta)[:, None, None]

    def _parameter(self, k: int, field: str) -> Tensor | None:
        value = getattr(self.net.synapses[k], field)
        return None if value is None else value.view(self.E, *value.shape[len(self.net.ensemble) :])

    def _read_weights(self, x: Tensor) -> None:
        """Make scaled copies of the hidden weights, and compute the drives of input and biases."""
        self.forward_weight: list[Tensor] = []
        self.backward_weight: list[Tensor] = []
        self.drive: list[Tensor] = []
        for k in range(self.L):
            weight, bias = self._parameter(k, "weight"), self._parameter(k, "bias")
            assert weight is not None
            constant = (
                self._zeros(1, self.sizes[k]) if bias is None else self.a * bias[:, None]
            ) + self.shift
            if k == 0:
                self.drive.append(torch.baddbmm(constant, x, weight, alpha=self.a))
                self.forward_weight.append(weight)
                self.backward_weight.append(weight)
                continue
            self.drive.append(constant.expand(self.E, self.B, self.sizes[k]).contiguous())
            forward = self.a * weight
            back = None if self.tied else self._parameter(k, "backward_weight")
            self.forward_weight.append(forward)
            self.backward_weight.append(forward.mT if back is None else self.a * back)

    def _act(self, v: Tensor) -> Tensor:
        """Apply σ to a stored drive, in place."""
        if self.sigma == SIGMOID:
            return v.sigmoid_() if self.a == 4.0 else v.mul_(4).sub_(2).sigmoid_()
        if self.sigma == TANH:
            return v.tanh_()
        return v if self.sigma == IDENTITY else v.clamp_(0, 1)

    def _total_drive(self, k: int, rates: list[Tensor], drive: Tensor) -> Tensor:
        total = drive
        if k > 0:
            total = torch.baddbmm(total, rates[k - 1], self.forward_weight[k])
        if k + 1 < self.L:
            total = torch.baddbmm(total, rates[k + 1], self.backward_weight[k + 1])
        return total.clone() if total is drive else total

    def _gain(self, k: int, s: Tensor) -> Tensor | float:
        return self.net.time.gain(self.sigma, s, k == self.L - 1)

    def _advance(self, k: int, s: list[Tensor], rates: list[Tensor], drive: Tensor) -> Tensor:
        total = self._total_drive(k, rates, drive)
        if not self.real_time:
            return self._act(total)
        return (1 - self.net.time.epsilon) * s[k] + self._gain(k, s[k]) * total

    def _slope(self, drive: Tensor) -> Tensor:
        """Return σ′ at a stored drive, in discrete time."""
        if self.sigma != SIGMOID:
            return self.sigma.slope(drive)
        value = torch.sigmoid(drive)
        return 4 * value * (1 - value)

    def _advance_with_slopes(
        self, k: int, s: list[Tensor], rates: list[Tensor], drive: Tensor
    ) -> tuple[Tensor, Tensor | float, Tensor | float]:
        """Return the next state of layer k, and the factors of its change in the updates of the
        synapse before and of the synapse after the layer.
        """
        if self.update_slope == UpdateSlope.NONE:
            gain = self._gain(k, s[k]) if self.vector_field else 1.0
            return self._advance(k, s, rates, drive), gain, gain
        if self.update_slope == UpdateSlope.FULL or k + 1 == self.L:
            total = self._total_drive(k, rates, drive)
            slope = self._slope(total)
            return self._act(total), slope, slope
        forward = drive if k == 0 else torch.baddbmm(drive, rates[k - 1], self.forward_weight[k])
        backward = torch.bmm(rates[k + 1], self.backward_weight[k + 1])
        slopes = self._slope(forward), self._slope(backward + self.shift)
        return self._act(forward + backward), *slopes

    def _rates(self, s: list[Tensor]) -> list[Tensor]:
        return [self.sigma(v) for v in s] if self.real_time else s

    def _free_phase(self) -> None:
        if groups_in_turn(self.net, self.rule) == 2:
            s, change = self._in_turn()
        elif self.real_time or self.L == 1:
            s, change = self._synchronous()
        else:
            s, change = self._interleaved()
        for buffer, value in zip(self.states, s, strict=True):
            buffer.copy_(value)
        self.residual.copy_(torch.stack([c.abs().amax(-1) for c in change]).amax(0))

    def _start(self) -> list[Tensor]:
        return [self._zeros(self.B, n) for n in self.sizes]

    def _synchronous(self) -> tuple[list[Tensor], list[Tensor]]:
        s = self._start()
        before = s
        for _ in range(self.rule.free_steps):
            rates = self._rates(s)
            before = s
            s = [self._advance(k, s, rates, self.drive[k]) for k in range(self.L)]
        return s, [b - a for a, b in zip(before, s, strict=True)]

    def _in_turn(self) -> tuple[list[Tensor], list[Tensor]]:
        s = self._start()
        before = list(s)
        for t in range(self.rule.free_steps):
            rates = self._rates(s)
            for k in range(t % 2, self.L, 2):
                before[k] = s[k]
                s[k] = self._advance(k, s, rates, self.drive[k])
        return s, [b - a for a, b in zip(before, s, strict=True)]

    def _interleaved(self) -> tuple[list[Tensor], list[Tensor]]:
        """Run the synchronous free phase of a discrete-time chain as one sequence of 2B rows.

        Rows [:B] start with the even layers (they have them at odd times), rows [B:] with the odd
        layers. A round moves the even layers of both, then the odd layers of both.
        """
        B, T = self.B, self.rule.free_steps
        drive = [torch.cat([d, d], dim=1) for d in self.drive]
        s = [self._zeros(2 * B, n) for n in self.sizes]
        for k in range(1, self.L, 2):  # the second sequence is one step ahead there
            s[k][:, B:] = self._act(self.drive[k].clone())
        before = list(s)
        for t in range(1, T + 1):
            for k in range((t - 1) % 2, self.L, 2):
                before[k] = s[k]
                s[k] = self._advance(k, s, s, drive[k])
        even_at_T = slice(B, None) if T % 2 == 0 else slice(None, B)
        odd_at_T = slice(None, B) if T % 2 == 0 else slice(B, None)
        state, change = [], []
        for k in range(self.L):
            rows = even_at_T if k % 2 == 0 else odd_at_T
            state.append(s[k][:, rows].contiguous())
            other = slice(None, B) if rows.start == B else slice(B, None)
            # the other rows have the same layer one step earlier: now if they are one step
            # behind, otherwise before their last move
            behind = s[k] if rows.start == B else before[k]
            change.append(state[-1] - behind[:, other])
        return state, change

    def _nudged_phase(self, x: Tensor) -> None:
        s = [v.clone() for v in self.states]
        rates = self._rates(s)
        first = [r.clone() for r in rates]
        strength = self.beta[:, None, None] * self.net.time.epsilon
        moved = [torch.zeros_like(v) for v in s]
        weight_c = [self._c(f"synapses.{k}.weight") for k in range(self.L)]
        bias_c = [self._c(f"synapses.{k}.bias") for k in range(self.L)]
        back_c = (
            weight_c
            if self.tied
            else [self._c(f"synapses.{k}.backward_weight") for k in range(self.L)]
        )
        scale = self.a * self.inside
        weight_s = [scale * c for c in weight_c]  # for the stored drives
        bias_s = [scale * c for c in bias_c]
        has_bias = [synapse.bias is not None for synapse in _dense(self.net)]
        if self.continual:
            spread = weight_s[0] * torch.bmm(x, x.mT)
            if has_bias[0]:
                spread = spread + bias_s[0]
            bases = [
                w
                if k == 0 or self.vector_field
                else torch.baddbmm(w, first[k - 1].mT, weight_s[k] * first[k], alpha=-1)
                for k, w in enumerate(self.forward_weight)
            ]
        keep_totals = self.vector_field and self.inside != 1.0
        kept = range(1, self.L) if keep_totals else ()
        total_f = [torch.zeros_like(self.forward_weight[k]) for k in kept]
        total_b = [torch.zeros_like(self.backward_weight[k]) for k in kept]
        for _ in range(self.rule.horizon):
            s_next, slopes = [], []
            for k in range(self.L):
                drive = self.drive[k]
                if self.continual and k == 0:
                    drive = torch.baddbmm(drive, spread, moved[0])
                elif self.continual and has_bias[k]:
                    drive = torch.addcmul(drive, bias_s[k], moved[k].sum(-2, keepdim=True))
                layer, *both = self._advance_with_slopes(k, s, rates, drive)
                s_next.append(layer)
                slopes.append(both)
            nudged = torch.addcmul(s_next[-1], strength, self.y - s[-1])  # − β ε ∂ℓ/∂s at s_t
            s_next[-1] = nudged
            if self.vector_field:
                change_f, change_b = [], []
                for k, (slope_f, slope_b) in enumerate(slopes):
                    change = s_next[k] - s[k]
                    change_f.append(slope_f * change)
                    change_b.append(change_f[k] if slope_b is slope_f else slope_b * change)
                moved = [m + d for m, d in zip(moved, change_f, strict=True)]
                for k in range(1, self.L):
                    forward = torch.bmm(rates[k - 1].mT, weight_c[k] * change_f[k])
                    backward = torch.bmm(rates[k].mT, back_c[k] * change_b[k - 1])
                    if self.tied:
                        forward = forward + backward.mT
                    if keep_totals:
                        total_f[k - 1] += forward
                        total_b[k - 1] += backward
                    if self.continual:
                        self.forward_weight[k].add_(forward, alpha=scale)
                        if not self.tied:
                            self.backward_weight[k].add_(backward, alpha=scale)
            s = s_next
            rates = self._rates(s)
            if not self.vector_field:
                moved = [r - f for r, f in zip(rates, first, strict=True)]
                if self.continual:
                    for k in range(1, self.L):
                        scaled = weight_s[k] * rates[k]
                        torch.baddbmm(bases[k], rates[k - 1].mT, scaled, out=self.forward_weight[k])
        self._commit(x, first, rates, moved, weight_c, bias_c, total_f, total_b, keep_totals)

    def _commit(
        self,
        x: Tensor,
        first: list[Tensor],
        last: list[Tensor],
        moved: list[Tensor],
        weight_c: list[Tensor],
        bias_c: list[Tensor],
        total_f: list[Tensor],
        total_b: list[Tensor],
        has_totals: bool,
    ) -> None:
        for k in range(self.L):
            weight, bias = self._parameter(k, "weight"), self._parameter(k, "bias")
            back = self._parameter(k, "backward_weight")
            assert weight is not None
            if bias is not None:
                bias.add_((bias_c[k] * moved[k]).sum(-2))
            if k == 0:
                weight.baddbmm_(x.mT, weight_c[0] * moved[0])
            elif not self.vector_field:
                weight.baddbmm_(last[k - 1].mT, weight_c[k] * last[k])
                weight.baddbmm_(first[k - 1].mT, weight_c[k] * first[k], alpha=-1)
            elif has_totals:
                weight.add_(total_f[k - 1])
                if back is not None:
                    back.add_(total_b[k - 1])
            else:
                weight.copy_(self.forward_weight[k] / self.a)
                if back is not None:
                    back.copy_(self.backward_weight[k] / self.a)


def _dense(net: Network) -> list[Dense]:
    return [synapse for synapse in net.synapses if isinstance(synapse, Dense)]

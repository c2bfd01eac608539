"""The computation of the kernels in plain PyTorch, with every weight written at every step."""

from __future__ import annotations

import torch
from torch import Tensor

from eqprop.engines.persistent.problem import Problem
from eqprop.update_slope import UpdateSlope


@torch.no_grad()
def run(p: Problem) -> None:
    for at in range(p.minibatches):
        x, y, beta = _minibatch(p, at)
        s = _free_phase(p, x)
        if y is not None:
            _count(p, s[-1], y)
        if y is not None and beta is not None and p.nudged_steps:
            _nudged_phase(p, x, y, beta, s)


def _minibatch(p: Problem, at: int) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Return inputs [E, B, NX], targets [E, B, O] and β [E, 1, 1] of minibatch `at`."""
    beta = None if p.beta is None else p.beta.reshape(-1, p.members)[at][:, None, None]
    if p.index is None:
        assert p.x is not None
        return _each(p, p.x), None if p.y is None else _each(p, p.y), beta
    assert p.images is not None
    assert p.labels is not None
    assert p.pixel is not None
    index = p.index[at].reshape(p.members, -1)
    classes = torch.arange(p.states[-1].shape[-1], device=index.device)
    y = (p.labels[index].long()[..., None] == classes).to(p.pixel.dtype)
    return p.pixel[p.images[index].long()], y, beta


def _each(p: Problem, tensor: Tensor) -> Tensor:
    return tensor.expand(p.members, *tensor.shape[-2:])


def _drives(p: Problem, x: Tensor, s: list[Tensor], k: int) -> tuple[Tensor, Tensor | float]:
    """Return the drives on layer k from the layer before, bias included, and the layer after."""
    drive = (x if k == 0 else s[k - 1]) @ p.weights[k]
    bias = p.biases[k]
    if bias is not None:
        drive = drive + bias[:, None]
    if k + 1 == len(s):
        return drive, 0.0
    backward = p.backward[k + 1]
    return drive, s[k + 1] @ (p.weights[k + 1].mT if backward is None else backward)


def _step(p: Problem, x: Tensor, s: list[Tensor], k: int) -> Tensor:
    before, behind = _drives(p, x, s, k)
    return p.activation(before + behind)


def _pulled_back(
    p: Problem, x: Tensor, s: list[Tensor], k: int, d: Tensor
) -> tuple[Tensor, Tensor]:
    """Return a change d of layer k times σ′, for the synapse before and the synapse after it."""
    before, behind = _drives(p, x, s, k)
    if p.update_slope == UpdateSlope.NONE:
        return d, d
    if p.update_slope == UpdateSlope.FULL:
        d = p.activation.slope(before + behind) * d
        return d, d
    return p.activation.slope(before) * d, p.activation.slope(torch.as_tensor(behind)) * d


def _free_phase(p: Problem, x: Tensor) -> list[Tensor]:
    layers = range(len(p.weights))
    s = [x.new_zeros(*x.shape[:2], w.shape[-1]) for w in p.weights]
    change = [torch.zeros_like(v) for v in s]
    for t in range(p.free_steps):
        moving = layers[t % 2 :: 2] if p.in_turn else layers
        now = list(s)
        for k in moving:
            s[k] = _step(p, x, now, k)
            change[k] = s[k] - now[k]
    for state, value in zip(p.states, s, strict=True):
        state.copy_(value.reshape(state.shape))
    worst = torch.stack([c.abs().amax(-1) for c in change]).amax(0)
    p.residual.copy_(worst.reshape(p.residual.shape))
    return s


def _count(p: Problem, output: Tensor, y: Tensor) -> None:
    if p.wrong is not None and p.loss is not None:
        p.wrong += (output.argmax(-1) != y.argmax(-1)).double().sum(-1)
        p.loss += 0.5 * ((output - y) ** 2).double().sum((-2, -1))


def _nudged_phase(p: Problem, x: Tensor, y: Tensor, beta: Tensor, s: list[Tensor]) -> None:
    """Run the nudged phase and move the weights.

    C-EP: c (pre'ᵀ post' − preᵀ post). C-VF: c preᵀ (σ′ ⊙ (post' − post)), and the same for the
    backward weight; σ′ is 1 if the update slope is "none".
    """
    layers = range(len(s))
    moved = [w for group in (p.weights, p.backward, p.biases) for w in group if w is not None]
    start = [w.clone() for w in moved]
    total = {id(w): torch.zeros_like(w) for w in moved}
    for _ in range(p.nudged_steps):
        nudge = beta * (y - s[-1])
        after = [_step(p, x, s, k) for k in layers]
        after[-1] = after[-1] + nudge
        changes = [_pulled_back(p, x, s, k, after[k] - s[k]) for k in layers]
        for k in layers:
            pre, pre_after = (x, x) if k == 0 else (s[k - 1], after[k - 1])
            post, post_after, bias = s[k], after[k], p.biases[k]
            c = p.weight_rates[k][:, None, None] / beta
            if p.vector_field:
                update = pre.mT @ changes[k][0]
                if k > 0:
                    back = post.mT @ changes[k - 1][1]
                    untied = p.backward[k]
                    if untied is None:
                        update = update + back.mT
                    else:
                        total[id(untied)] += p.backward_rates[k][:, None, None] / beta * back
            else:
                update = pre_after.mT @ post_after - pre.mT @ post
            total[id(p.weights[k])] += c * update
            if bias is not None:
                rate = p.bias_rates[k][:, None] / beta[:, 0]
                total[id(bias)] += rate * changes[k][0].sum(-2)
        for w, w0 in zip(moved, start, strict=True):
            w.copy_(w0 + p.inside * total[id(w)])
        s = after
    for w, w0 in zip(moved, start, strict=True):
        w.copy_(w0 + total[id(w)])

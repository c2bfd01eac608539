"""Layers in turn in the nudged phase: by hand, and by limits that no order changes."""

import itertools
import math

import pytest
import torch

import eqprop
from eqprop import Conv2d, Dense, Input, Layer


def dense(activation="tanh", time=None):
    return eqprop.layered(
        4, 5, 6, 3, activation=activation, time=time or eqprop.RealTime(0.5), dtype=torch.float64
    )


def convolutional():
    net = eqprop.Network(
        [Input((1, 8, 8)), Layer("c1", (3, 4, 4)), Layer("c2", (4, 2, 2)), Layer("out", 3)],
        [
            Conv2d("input", "c1", kernel=3, padding=1, pool=2, bias=True),
            Conv2d("c1", "c2", kernel=3, padding=1, pool=2, bias=True),
            Dense("c2", "out", bias=True),
        ],
        time=eqprop.RealTime(0.5), activation="tanh", dtype=torch.float64,
    )  # fmt: skip
    with torch.no_grad():
        for p in net.parameters():
            p.mul_(0.2)  # a contraction: every sample settles, and no winner changes
    return net


NETWORKS = {"dense": dense, "convolutional": convolutional}
each_network = pytest.mark.parametrize("network", NETWORKS)


def a_minibatch(net, batch=4):
    source = torch.Generator().manual_seed(0)
    x = torch.rand(batch, *net.input_shape, generator=source, dtype=torch.float64)
    return x, torch.rand(batch, 3, generator=source, dtype=torch.float64)


def gradient(net, rule, x, y):
    (found,) = rule.gradients(net, x, y)
    return torch.cat([found[name].flatten() for name, _ in net.named_parameters()])


def test_three_steps_by_hand():
    """Groups {1, 3} and {2}: the output moves at steps one and three, nudged only then."""
    net = dense("sigmoid", eqprop.Discrete())
    x, y = a_minibatch(net)
    rule = eqprop.EP(beta=0.3, free_steps=7, nudged_steps=3, nudged_in_turn=True)
    h1, h2, out = eqprop.relax(net, x, 7).state
    first, second, third = net.synapses

    def sigma(v):
        return torch.sigmoid(4 * v - 2)

    start = (h1, h2, out)
    for t in range(3):
        if t == 1:
            h2 = sigma(h1 @ second.weight + second.bias + out @ third.weight.mT)
        else:
            h1, out = (
                sigma(x @ first.weight + first.bias + h2 @ second.weight.mT),
                sigma(h2 @ third.weight + third.bias) - 0.3 * (out - y),
            )
    (found,) = rule.gradients(net, x, y)
    for k, (pre, post) in enumerate(((0, 1), (1, 2))):
        after, before = (s[pre].mT @ s[post] for s in ((h1, h2, out), start))
        torch.testing.assert_close(
            found[f"synapses.{k + 1}.weight"], -(after - before) / (0.3 * 4), rtol=0, atol=1e-13
        )


@each_network
def test_both_orders_end_at_the_same_gradient(network):
    net = NETWORKS[network]()
    x, y = a_minibatch(net)
    settings = {"beta": 0.01, "free_steps": 300, "nudged_steps": 300}
    together = gradient(net, eqprop.EP(**settings), x, y)
    in_turn = gradient(net, eqprop.EP(**settings, nudged_in_turn=True), x, y)
    assert float(together.norm()) > 1e-3
    torch.testing.assert_close(in_turn, together, rtol=0, atol=1e-11)
    early = gradient(net, eqprop.EP(**settings | {"nudged_steps": 3}, nudged_in_turn=True), x, y)
    assert float((early - together).norm()) > 1e-2 * float(together.norm())


@each_network
def test_the_updates_of_continual_ep_sum_to_those_of_ep(network):
    net = NETWORKS[network]()
    x, y = a_minibatch(net)
    settings = {"beta": 0.2, "free_steps": 50, "nudged_steps": 9, "nudged_in_turn": True}
    (whole,) = eqprop.EP(**settings).gradients(net, x, y)
    parts = list(eqprop.ContinualEP(**settings).gradients(net, x, y))  # θ stays
    assert len(parts) == 9
    for name, expected in whole.items():
        summed = sum(part[name] for part in parts)
        torch.testing.assert_close(summed, expected, rtol=0, atol=1e-13)


@each_network
def test_the_error_of_centred_nudging_falls_as_beta_squared(network):
    net = NETWORKS[network]()
    x, y = a_minibatch(net)
    exact = gradient(net, eqprop.RBP(free_steps=300, backward_steps=300), x, y)
    errors = []
    for beta in (0.2, 0.1, 0.05):
        rule = eqprop.EP(
            nudging=eqprop.Centred(beta), free_steps=300, nudged_steps=300, nudged_in_turn=True
        )
        errors.append(float((gradient(net, rule, x, y) - exact).norm() / exact.norm()))
    slopes = [math.log2(a / b) for a, b in itertools.pairwise(errors)]
    assert slopes[-1] == pytest.approx(2, abs=0.1)


@pytest.mark.parametrize("rule", [eqprop.VF, eqprop.ContinualVF])
def test_a_layer_that_stays_brings_no_update(rule):
    net = dense()
    x, y = a_minibatch(net)
    settings = rule(beta=0.2, free_steps=400, nudged_steps=2, nudged_in_turn=True)
    first, second = settings.steps(net, x, y)
    scales = [[float(n.abs().max()) for n in step.neurons] for step in (first, second)]
    assert scales[0][1] == scales[1][0] == scales[1][2] == 0.0
    assert min(scales[0][2], scales[1][1]) > 1e-3
    assert scales[0][0] < 1e-9  # its neighbour has not moved yet


def test_what_is_refused():
    net = dense()
    x, y = a_minibatch(net)
    few = eqprop.EP(beta=0.1, free_steps=5, nudged_steps=1, nudged_in_turn=True)
    with pytest.raises(ValueError, match="nudged_steps must be at least 2 with nudged_in_turn"):
        few.gradients(net, x, y)
    rule = eqprop.EP(beta=0.1, free_steps=5, nudged_steps=2, nudged_in_turn=True)
    with pytest.raises(ValueError, match="set nudged_in_turn=False"):
        eqprop.gddcheck(net, rule, x, y)
    for kind in ("native", "telescoped"):
        with pytest.raises(ValueError, match="cannot run layers in turn in the nudged phase"):
            eqprop.make_engine(net, rule, 0.1, kind)

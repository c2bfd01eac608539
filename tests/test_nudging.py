"""How the error of the gradient falls with β: fitted rates, against RBP at the steady state."""

import copy
import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

import eqprop
from eqprop import Centred, Holomorphic, OneSided, RandomSign
from eqprop.dynamics import nudged_step

REAL_TIME = eqprop.RealTime(dt=0.5)


def a_network(tied=True, activation="tanh", readout=None, sizes=(4, 5, 3)):
    net = eqprop.layered(
        *sizes, tied=tied, time=REAL_TIME, activation=activation, dtype=torch.float64, seed=1
    )
    if readout is None:
        return net
    return eqprop.Network(
        [eqprop.Input(4), eqprop.Layer("h", 6), eqprop.Layer("o", 5)],
        [eqprop.Dense("input", "h", bias=True), eqprop.Dense("h", "o", bias=True)],
        time=REAL_TIME, activation=activation, readout=readout, dtype=torch.float64, seed=1,
    )  # fmt: skip


def a_minibatch(classes=3):
    source = torch.Generator().manual_seed(0)
    x = torch.rand(6, 4, generator=source, dtype=torch.float64)
    y = torch.rand(6, classes, generator=source, dtype=torch.float64)
    return x, y


def gradient(net, rule, x, y):
    (found,) = rule.gradients(net, x, y)
    return torch.cat([found[name].flatten() for name, _ in net.named_parameters()])


def rate(net, nudging, betas, x, y, rule=eqprop.EP):
    """The slope of log error over log β, and the errors."""
    exact = gradient(net, eqprop.RBP(free_steps=600, backward_steps=600), x, y)
    errors = []
    for beta in betas:
        ours = rule(nudging=nudging(beta), free_steps=600, nudged_steps=600)
        errors.append(float((gradient(net, ours, x, y) - exact).norm() / exact.norm()))
    pairs = itertools.pairwise(zip(betas, errors, strict=True))
    slopes = [math.log(e / f) / math.log(b / c) for (b, e), (c, f) in pairs]
    return slopes, errors


def test_the_error_of_one_sided_nudging_falls_as_beta():
    slopes, errors = rate(a_network(), OneSided, (0.1, 0.05, 0.025), *a_minibatch())
    assert slopes[-1] == pytest.approx(1, abs=0.1)
    assert errors[0] > 1e-3


def test_the_error_of_centred_nudging_falls_as_beta_squared():
    slopes, errors = rate(a_network(), Centred, (0.1, 0.05, 0.025), *a_minibatch())
    assert slopes[-1] == pytest.approx(2, abs=0.1)
    assert errors[-1] < 1e-3


def mean_loss(net, x, y, beta):
    """The mean of ℓ(s^b) over b from 0 to β: (F(β) − F(0)) / β, because dF/dβ = ℓ(s^β)."""
    nodes, weights = np.polynomial.legendre.leggauss(14)
    free, total = eqprop.relax(net, x, 600).state, 0.0
    for node, weight in zip((1 + nodes) / 2, weights / 2, strict=True):
        s = free
        for step in range(300):
            s = nudged_step(net, x, y, s, beta * float(node), net.readout, step)
        total += float(weight) * float(net.readout.loss(s, y).mean())
    return total


@pytest.mark.parametrize("beta", [0.3, -0.3])
def test_one_sided_nudging_descends_the_mean_loss_between_the_two_phases(beta):
    """At any β: a lower bound of the loss if β > 0, an upper bound if β < 0."""
    net, (x, y) = a_network(), a_minibatch()
    rule = eqprop.EP(beta=beta, free_steps=600, nudged_steps=600)
    (found,) = rule.gradients(net, x, y)
    exact = gradient(net, eqprop.RBP(free_steps=600, backward_steps=600), x, y)
    source, start = torch.Generator().manual_seed(1), copy.deepcopy(net.state_dict())
    way = {n: torch.rand(g.shape, generator=source, dtype=g.dtype) - 0.5 for n, g in found.items()}
    ends = []
    for h in (1e-4, -1e-4):
        net.load_state_dict({n: p + h * way[n] for n, p in start.items()})
        ends.append(mean_loss(net, x, y, beta))
    slope = sum(float((g * way[n]).sum()) for n, g in found.items())
    assert slope == pytest.approx((ends[0] - ends[1]) / 2e-4, rel=1e-6)
    of_the_loss = float(exact @ torch.cat([way[n].flatten() for n, _ in net.named_parameters()]))
    assert slope != pytest.approx(of_the_loss, rel=1e-3)
    net.load_state_dict(start)
    loss = float(net.readout.loss(eqprop.relax(net, x, 600).state, y).mean())
    assert (mean_loss(net, x, y, beta) - loss) * beta < -1e-3


@pytest.mark.slow
@pytest.mark.parametrize("points", [2, 3, 4])
def test_the_error_of_holomorphic_nudging_falls_as_beta_to_the_number_of_points(points):
    def nudging(beta):
        return Holomorphic(beta, points)

    slopes, _ = rate(a_network(), nudging, (0.1, 0.05), *a_minibatch())
    assert slopes[-1] == pytest.approx(points, abs=0.2)


@pytest.mark.slow
@pytest.mark.parametrize("activation", ["tanh", "sigmoid"])
def test_holomorphic_nudging_reaches_rounding_at_a_finite_beta(activation):
    net = a_network(activation=activation)
    for p in net.parameters():
        p.data.mul_(0.5)  # with the sigmoid it settles then
    _, (error,) = rate(net, lambda beta: Holomorphic(beta, 12), (0.02,), *a_minibatch())
    assert error < 1e-12


def test_two_points_are_centred_nudging():
    net, (x, y) = a_network(), a_minibatch()
    two = eqprop.EP(nudging=Holomorphic(0.2, 2), free_steps=50, nudged_steps=20)
    centred = replace(two, nudging=Centred(0.2), beta=None)
    torch.testing.assert_close(
        gradient(net, two, x, y), gradient(net, centred, x, y), rtol=0, atol=1e-13
    )


@pytest.mark.parametrize("nudging", [Centred, lambda beta: Holomorphic(beta, 6)])
def test_the_vector_field_rule_takes_every_nudging(nudging):
    """Asymmetric weights: no theorem, but the derivative by β of what the rule sums."""
    net, (x, y) = a_network(tied=False), a_minibatch()
    with torch.no_grad():
        for synapse in net.synapses[1:]:
            synapse.backward_weight.add_(0.3)
    settings = {"free_steps": 200, "nudged_steps": 12}
    small = gradient(net, eqprop.VF(nudging=Centred(1e-4), **settings), x, y)
    found = gradient(net, eqprop.VF(nudging=nudging(0.02), **settings), x, y)
    error = float((found - small).norm() / small.norm())
    one_sided = gradient(net, eqprop.VF(beta=0.02, **settings), x, y)
    assert error < 0.05 * float((one_sided - small).norm() / small.norm())


def test_beta_alone_means_one_sided_and_random_sign_means_random_sign():
    settings = {"free_steps": 5, "nudged_steps": 2}
    rule = eqprop.EP(beta=0.1, **settings)
    assert rule.nudging == OneSided(0.1)
    assert eqprop.EP(nudging=OneSided(0.1), **settings) == rule
    assert eqprop.ContinualEP(beta=0.1, random_sign=True, **settings).nudging == RandomSign(0.1)
    drawn = eqprop.ContinualEP(nudging=RandomSign(0.1), **settings)
    assert (drawn.beta, drawn.random_sign) == (0.1, True)
    assert replace(rule, beta=0.3).nudging == OneSided(0.3)
    assert replace(rule, random_sign=True).nudging == RandomSign(0.1)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "beta is missing"),
        ({"beta": 0.1, "nudging": OneSided(0.2)}, "both given"),
        ({"nudging": 0.1}, "nudging must be OneSided"),
        ({"nudging": Centred(0.1), "random_sign": True}, "RandomSign"),
    ],
)
def test_what_contradicts_itself_is_refused(given, message):
    with pytest.raises(ValueError, match=message):
        eqprop.EP(free_steps=5, nudged_steps=2, **given)


@pytest.mark.parametrize("kind", [OneSided, RandomSign, Centred, lambda b: Holomorphic(b, 4)])
@pytest.mark.parametrize("beta", [0, math.nan, math.inf, "0.1", True])
def test_a_bad_beta_is_refused(kind, beta):
    with pytest.raises(ValueError, match="beta must be"):
        kind(beta)


def test_complex_nudging_is_refused_where_it_has_no_meaning():
    net, (x, y) = a_network(activation="hard_sigmoid"), a_minibatch()
    nudging = Holomorphic(0.1, 4)
    rule = eqprop.EP(nudging=nudging, free_steps=5, nudged_steps=2)
    with pytest.raises(ValueError, match="'hard_sigmoid' of layer 'hidden'"):
        rule.gradients(net, x, y)
    with pytest.raises(ValueError, match="cannot nudge with a complex β"):
        eqprop.ContinualEP(nudging=nudging, free_steps=5, nudged_steps=2)
    with pytest.raises(ValueError, match="points must be an integer of 2 or more, not 1"):
        Holomorphic(0.1, 1)
    with pytest.raises(ValueError, match="Holomorphic needs a Network"):
        rule.gradients(eqprop.toy_model(), torch.zeros(1, 1).double(), torch.zeros(1, 1).double())


# continual and centred: one phase after the other, both from s_*


def test_continual_centred_updates_sum_to_centred_ep_as_eta_vanishes():
    net, (x, y) = a_network(), a_minibatch()
    settings = {"nudging": Centred(0.2), "free_steps": 80, "nudged_steps": 10}
    items = list(eqprop.ContinualEP(**settings).gradients(net, x, y))
    assert len(items) == 20  # K of each phase
    (whole,) = eqprop.EP(**settings).gradients(net, x, y)
    for name in whole:
        torch.testing.assert_close(
            sum(item[name] for item in items), whole[name], rtol=0, atol=1e-13
        )


def test_continual_centred_error_falls_as_eta():
    """What the moved weights cost is of the order η: the second phase starts from a stored s_*,
    which is no steady state of the weights any more.
    """
    x, y = a_minibatch()
    settings = {"nudging": Centred(0.2), "free_steps": 80, "nudged_steps": 10}
    moved = {}
    for eta in (1e-2, 5e-3):
        for rule in (eqprop.EP, eqprop.ContinualEP):
            net = a_network()
            start = [p.clone() for p in net.parameters()]
            eqprop.make_engine(net, rule(**settings), eta).step(x, y)
            pairs = zip(net.parameters(), start, strict=True)
            moved[rule, eta] = torch.cat([((p - q) / eta).flatten() for p, q in pairs])
    errors = [
        float((moved[eqprop.ContinualEP, eta] - moved[eqprop.EP, eta]).norm())
        for eta in (1e-2, 5e-3)
    ]
    assert errors[0] > 1e-5
    assert errors[0] / errors[1] == pytest.approx(2, rel=0.1)


def test_continual_centred_on_the_toy_model_in_closed_form():
    """Φ = ¼(s + θ)², ℓ = ½s²: s_{t+1} = ½(s_t + θ_t) − β s_t and Δθ = (s_{t+1} − s_t)/(2β), with
    half of it from each of the two phases, the second from s_* again.
    """
    beta, eta, K, theta = 0.1, 0.05, 6, 1.0
    net = eqprop.toy_model(theta)
    x = y = torch.zeros(1, 1, dtype=torch.float64)
    rule = eqprop.ContinualEP(nudging=Centred(beta), free_steps=60, nudged_steps=K)
    eqprop.make_engine(net, rule, eta).step(x, y)
    expected = theta
    for sign in (1, -1):
        s = theta  # s_* of the θ before the phases: the state that has to be stored
        for _ in range(K):
            s_next = 0.5 * (s + expected) - sign * beta * s
            expected += eta * 0.5 * (s_next - s) / (2 * sign * beta)
            s = s_next
    assert float(net.theta) == pytest.approx(expected, abs=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize(("beta", "eta"), [(0.1, 0.05), (0.2, 0.02), (0.05, 0.001)])
def test_a_stored_steady_state_costs_eta_over_eight_beta(beta, eta):
    """The toy model with K → ∞, as docs/nudging.md derives it: with s_* stored for the second
    phase, and with the steady state of the moved θ found again.
    """
    theta, a, x = 1.3, eta / (4 * beta), torch.zeros(1, 1, dtype=torch.float64)
    settings = {"free_steps": 60, "nudged_steps": 400}
    net = eqprop.toy_model(theta)
    rule = eqprop.ContinualEP(nudging=Centred(beta), **settings)
    eqprop.make_engine(net, rule, eta).step(x, x)
    first = -(eta / 2) * theta / (1 - a + 2 * beta)
    stored = first - a * (first + 2 * beta * theta) / (1 + a - 2 * beta)
    assert float(net.theta) - theta == pytest.approx(stored, abs=1e-13)

    again = eqprop.toy_model(theta)
    for sign in (1, -1):  # two minibatches of one phase each: the second relaxes anew
        rule = eqprop.ContinualEP(beta=sign * beta, **settings)
        eqprop.make_engine(again, rule, eta / 2).step(x, x)
    found = float(again.theta) - theta
    expected = first - (eta / 2) * (theta + first) / (1 + a - 2 * beta)
    assert found == pytest.approx(expected, abs=1e-13)

    whole = -eta * theta / (1 - 4 * beta**2)
    near = eta / (1 - 4 * beta**2)
    second_order = 3 * (near + eta / (8 * beta)) ** 2
    assert stored / whole == pytest.approx(1 - near - eta / (8 * beta), abs=second_order)
    assert found / whole == pytest.approx(1 - near - eta / 4, abs=second_order)


def test_the_mean_over_a_random_sign_is_centred_nudging():
    net, (x, y) = a_network(), a_minibatch()
    settings = {"free_steps": 100, "nudged_steps": 40}
    drawn = eqprop.EP(nudging=RandomSign(0.2), **settings)
    both = []
    for sign in (1, -1):
        (found,) = drawn.gradients(net, x, y, sign=torch.tensor(sign))
        both.append(torch.cat([found[name].flatten() for name, _ in net.named_parameters()]))
    centred = gradient(net, eqprop.EP(nudging=Centred(0.2), **settings), x, y)
    torch.testing.assert_close((both[0] + both[1]) / 2, centred, rtol=0, atol=1e-13)
    assert float((both[0] - both[1]).norm() / centred.norm()) > 0.1


def test_engines_run_only_the_nudging_they_know():
    net = eqprop.layered(4, 5, 3, dtype=torch.float64)
    rule = eqprop.EP(nudging=Centred(0.1), free_steps=8, nudged_steps=3)
    assert type(eqprop.make_engine(net, rule, 0.1)).__name__ == "ReferenceEngine"
    with pytest.raises(ValueError, match="kind 'native' cannot run Centred nudging"):
        eqprop.make_engine(net, rule, 0.1, "native")


@pytest.mark.slow
def test_cross_entropy_and_complex_nudging_go_together():
    net, (x, y) = a_network(readout=eqprop.CrossEntropy(3)), a_minibatch()
    y = torch.softmax(y, -1)
    _, (error,) = rate(net, lambda beta: Holomorphic(beta, 12), (0.02,), x, y)
    assert error < 1e-11

"""Oracle: closed form. A tied linear network is s' = s·W + b with W symmetric, so s_* and
dL*/dθ follow from `torch.linalg.solve`, written here in plain tensor algebra.
"""

from itertools import pairwise

import pytest
import torch

import eqprop

SHAPES = [  # (sizes from input to output, batch)
    ((2, 3), 1),
    ((3, 1), 4),
    ((1, 1, 1), 2),
    ((3, 5, 2), 3),
    ((4, 2, 5), 1),
    ((2, 4, 3, 2), 5),
    ((3, 1, 4, 1), 2),
    ((5, 3, 6, 4), 3),
]
TIMES = [eqprop.Discrete(), eqprop.RealTime(dt=0.5)]
NORM = 0.5  # the spectral norm given to W: contracting by 0.5 (discrete) or 0.75 (real) a step
T = 120  # 0.75¹²⁰ = 1e-15
RTOL, ATOL = 1e-10, 1e-13  # 120 rounded steps of values near 1, and what 0.75¹²⁰ leaves


class Linear:
    """The condensed form of a layered linear network: x → s_* → L*, and back."""

    def __init__(self, net):
        self.net = net
        self.sizes = net.layer_sizes
        n = sum(self.sizes)
        edges = [0]
        for size in self.sizes:
            edges.append(edges[-1] + size)
        self.where = [slice(a, b) for a, b in pairwise(edges)]
        self.W = torch.zeros(n, n, dtype=torch.float64)
        for k, (pre, post) in enumerate(pairwise(self.where), start=1):
            self.W[pre, post] = net.synapses[k].weight
            self.W[post, pre] = net.synapses[k].weight.T
        self.bias = torch.cat([synapse.bias for synapse in net.synapses])
        self.identity = torch.eye(n, dtype=torch.float64)

    def layers(self, s):
        return tuple(s[:, where] for where in self.where)

    def drive(self, x):
        """b: what input and biases send to every neuron."""
        b = self.bias.repeat(len(x), 1)
        b[:, self.where[0]] += x @ self.net.synapses[0].weight
        return b

    def steady_state(self, x):
        return torch.linalg.solve(self.identity - self.W.T, self.drive(x).T).T  # s = s·W + b

    def error(self, s, y):
        """∂ℓ/∂s of ½‖output − y‖²."""
        e = torch.zeros_like(s)
        e[:, self.where[-1]] = s[:, self.where[-1]] - y
        return e

    def pull_back(self, x, s, nabla):
        """(∂(s·W + b)/∂θ)ᵀ·nabla at s, mean over the batch."""
        before, after = (x, *self.layers(s)), self.layers(nabla)
        gradients = {}
        for k in range(len(self.net.synapses)):
            weight = before[k].T @ after[k]
            if k > 0:  # the same weight carries post's state back to pre
                weight = weight + after[k - 1].T @ before[k + 1]
            gradients[f"synapses.{k}.weight"] = weight / len(x)
            gradients[f"synapses.{k}.bias"] = after[k].mean(0)
        return gradients

    def loss_gradient(self, x, y):
        """dL*/dθ by the implicit function theorem: λ = λ·Wᵀ + ∂ℓ/∂s, then the chain rule."""
        s = self.steady_state(x)
        adjoint = torch.linalg.solve(self.identity - self.W, self.error(s, y).T).T
        return self.pull_back(x, s, adjoint)


def linear_network(sizes, batch, time=TIMES[0]):
    """A contracting network with its closed form, and data."""
    seed = 10 * len(sizes) + batch
    net = eqprop.layered(
        *sizes, time=time, activation="identity", init="fan_in", seed=seed, dtype=torch.float64
    )
    if len(sizes) > 2:
        norm = torch.linalg.matrix_norm(Linear(net).W, 2)
        for synapse in net.synapses[1:]:
            synapse.weight.mul_(NORM / norm)
    source = torch.Generator().manual_seed(seed)
    x = torch.randn(batch, sizes[0], generator=source, dtype=torch.float64)
    y = torch.randn(batch, sizes[-1], generator=source, dtype=torch.float64)
    return net, Linear(net), x, y


def assert_gradients_close(actual, expected):
    assert actual.keys() == expected.keys()
    for name in expected:
        torch.testing.assert_close(
            actual[name],
            expected[name],
            rtol=RTOL,
            atol=ATOL,
            msg=lambda text, name=name: f"{name}: {text}",
        )


def fitted_order(rates, errors):
    """The slope of log(error) against log(rate)."""
    u, v = torch.tensor(rates).double().log(), torch.tensor(errors).double().log()
    u = u - u.mean()
    return float((u * v).sum() / (u * u).sum())


@pytest.mark.parametrize("time", TIMES, ids=str)
@pytest.mark.parametrize(("sizes", "batch"), SHAPES)
def test_relaxation_ends_at_the_solution_of_the_linear_system(sizes, batch, time):
    net, exact, x, _ = linear_network(sizes, batch, time)
    state = eqprop.relax(net, x, T).state
    torch.testing.assert_close(state, exact.layers(exact.steady_state(x)), rtol=RTOL, atol=ATOL)


@pytest.mark.slow
@pytest.mark.parametrize("rule", [eqprop.RBP, eqprop.BPTT])
@pytest.mark.parametrize("time", TIMES, ids=str)
@pytest.mark.parametrize(("sizes", "batch"), SHAPES)
def test_rbp_and_long_bptt_equal_the_implicit_gradient(sizes, batch, time, rule):
    net, exact, x, y = linear_network(sizes, batch, time)
    (gradients,) = rule(free_steps=T).gradients(net, x, y)
    assert_gradients_close(gradients, exact.loss_gradient(x, y))


@pytest.mark.parametrize(("sizes", "batch"), SHAPES)
def test_short_bptt_equals_the_powers_of_the_matrix_step_by_step(sizes, batch):
    net, exact, x, y = linear_network(sizes, batch)
    states = [torch.zeros(batch, sum(net.layer_sizes), dtype=torch.float64)]
    for _ in range(5):
        states.append(states[-1] @ exact.W + exact.drive(x))
    process = eqprop.time_resolved(net, eqprop.BPTT(free_steps=5), x, y)
    for t in range(5):
        nabla_s = exact.error(states[5], y) @ torch.linalg.matrix_power(exact.W.T, t)
        neurons = tuple(process.neurons[name][t] for name in net.layer_names)
        torch.testing.assert_close(neurons, exact.layers(nabla_s), rtol=RTOL, atol=ATOL)
        synapses = {name: value[t] for name, value in process.synapses.items()}
        assert_gradients_close(synapses, exact.pull_back(x, states[4 - t], nabla_s))


@pytest.mark.slow
@pytest.mark.parametrize("time", TIMES, ids=str)
@pytest.mark.parametrize(("sizes", "batch"), SHAPES[1::2])
def test_ep_approaches_the_implicit_gradient_at_first_order_in_beta(sizes, batch, time):
    net, exact, x, y = linear_network(sizes, batch, time)
    expected = exact.loss_gradient(x, y)
    betas = (4e-3, 2e-3, 1e-3)
    errors = {name: [] for name in expected}
    for beta in betas:
        (gradients,) = eqprop.EP(beta=beta, free_steps=T, nudged_steps=T).gradients(net, x, y)
        for name in expected:
            errors[name].append((gradients[name] - expected[name]).norm())
    for name in expected:
        # the second-order term is below β times the first: it bends the slope by about 1%
        assert fitted_order(betas, errors[name]) == pytest.approx(1, abs=0.05), name


@pytest.mark.slow
@pytest.mark.parametrize("time", TIMES, ids=str)
@pytest.mark.parametrize(("sizes", "batch"), SHAPES[1::2])
def test_ep_averaged_over_both_signs_of_beta_is_of_second_order(sizes, batch, time):
    net, exact, x, y = linear_network(sizes, batch, time)
    expected = exact.loss_gradient(x, y)
    betas = (4e-2, 2e-2, 1e-2)
    errors = {name: [] for name in expected}
    for beta in betas:
        rule = eqprop.EP(beta=beta, free_steps=T, nudged_steps=T)
        (plus,) = rule.gradients(net, x, y)
        (minus,) = rule.gradients(net, x, y, sign=torch.tensor(-1.0))
        for name in expected:
            errors[name].append((0.5 * (plus[name] + minus[name]) - expected[name]).norm())
    for name in expected:
        # the next term is of fourth order: β² = 0.0016 times the second
        assert fitted_order(betas, errors[name]) == pytest.approx(2, abs=0.05), name

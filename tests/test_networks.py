"""The five settings of appendix E, written out here layer by layer and sample by sample.

Oracle: the paper's equations, in its own backward numbering (s⁰ is the output, s^N the hidden
layer next to the input), for column vectors. Φ and its derivatives: torch.autograd.
"""

from itertools import pairwise

import pytest
import torch

import eqprop
from eqprop.dynamics import nudged_step
from eqprop.model import vjp

SIZES = {0: (5, 2), 1: (5, 4, 2), 2: (6, 5, 4, 2), 3: (6, 5, 4, 3, 2)}  # by hidden layers N
EPSILON, BETA, BATCH = 0.3, 0.4, 3

TIED = {
    "discrete": eqprop.Discrete(),
    "real time, slope all": eqprop.RealTime(dt=EPSILON, slope="all"),
    "real time, slope hidden": eqprop.RealTime(dt=EPSILON, slope="hidden"),
    "real time, slope none": eqprop.RealTime(dt=EPSILON, slope="none"),
}
SIGMA = {
    "sigmoid": lambda v: 1 / (1 + torch.exp(-4 * (v - 0.5))),
    "tanh": lambda v: (torch.exp(2 * v) - 1) / (torch.exp(2 * v) + 1),
}
SLOPE = {
    "sigmoid": lambda v: 4 * SIGMA["sigmoid"](v) * (1 - SIGMA["sigmoid"](v)),
    "tanh": lambda v: 1 - SIGMA["tanh"](v) ** 2,
}

every_time = pytest.mark.parametrize("time", TIED.values(), ids=TIED)
every_depth = pytest.mark.parametrize("N", SIZES)
every_tying = pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
with_and_without_bias = pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
both_sigmas = pytest.mark.parametrize("sigma", SIGMA)


def close(actual, expected):
    """Sums of ten products of order one round at 1e-15; the divisions by βε cost ten more."""
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-12)


def a_network(N, time, *, tied=True, bias=True, sigma="tanh", seed=0):
    """A layered network of N hidden layers whose every parameter is random, biases too."""
    net = eqprop.layered(
        *SIZES[N], tied=tied, time=time, bias=bias, activation=sigma, dtype=torch.float64
    )
    source = torch.Generator().manual_seed(seed)
    for parameter in net.parameters():
        parameter.copy_(0.7 * torch.randn(parameter.shape, generator=source, dtype=torch.float64))
    return net


def a_minibatch(net, seed=1):
    """x, y, and a state that is nowhere near steady."""
    source = torch.Generator().manual_seed(seed)

    def draw(n):
        return torch.randn(BATCH, n, generator=source, dtype=torch.float64)

    s = tuple(draw(n) for n in net.layer_sizes)
    return draw(net.input_size), draw(net.layer_sizes[-1]), s


class Paper:
    """The parameters of a layered network under the paper's names, and its equations."""

    def __init__(self, net, sigma):
        self.N = N = len(net.layer_sizes) - 1
        self.sigma, self.slope, self.time = SIGMA[sigma], SLOPE[sigma], net.time
        self.discrete = isinstance(net.time, eqprop.Discrete)
        self.W, self.b = {}, {}
        for k, synapse in enumerate(net.synapses):
            n = N - k
            self.b[n] = 0.0 if synapse.bias is None else synapse.bias
            if k == 0:
                self.W[N, "x"] = synapse.weight.T
                continue
            self.W[n, n + 1] = synapse.weight.T
            # W_{n+1 n} = W_{n n+1}ᵀ if tied
            self.W[n + 1, n] = synapse.weight if synapse.tied else synapse.backward_weight.T

    def layers(self, s, sample):
        """{n: sⁿ} of one sample."""
        return {self.N - i: layer[sample] for i, layer in enumerate(s)}

    def transmitted(self, v):
        return v if self.discrete else self.sigma(v)

    def drive(self, x, s, n):
        rho = self.transmitted
        above = self.W[n, "x"] @ rho(x) if n == self.N else self.W[n, n + 1] @ rho(s[n + 1])
        below = self.W[n, n - 1] @ rho(s[n - 1]) if n > 0 else 0.0
        return above + below + self.b[n]

    def factor(self, s, n):
        """σ' of the real-time equations of motion, where the slope setting has it."""
        absent = self.time.slope == "none" or (self.time.slope == "hidden" and n == 0)
        return 1.0 if absent else self.slope(s[n])

    def step(self, x, s, y=None, beta=0.0):
        after = {}
        for n in s:
            if self.discrete:
                after[n] = self.sigma(self.drive(x, s, n))
            else:
                after[n] = (1 - EPSILON) * s[n]
                after[n] = after[n] + EPSILON * self.factor(s, n) * self.drive(x, s, n)
        if y is not None:
            after[0] = after[0] + beta * (1.0 if self.discrete else EPSILON) * (y - s[0])
        return after

    def stacked(self, samples):
        """The states of all samples as the library holds them: input to output, batch first."""
        return tuple(torch.stack([s[n] for s in samples]) for n in range(self.N, -1, -1))

    def name(self, n, field):
        """The library's name of what belongs to W_{n n+1}, or to W_{N x}."""
        return f"synapses.{self.N - n}.{field}"


@with_and_without_bias
@both_sigmas
@every_tying
@every_time
@every_depth
def test_one_step_is_the_papers_equation(N, time, tied, sigma, bias):
    net = a_network(N, time, tied=tied, bias=bias, sigma=sigma)
    x, _, s = a_minibatch(net)
    paper = Paper(net, sigma)
    expected = paper.stacked([paper.step(x[b], paper.layers(s, b)) for b in range(BATCH)])
    for layer, written in zip(net(x, s), expected, strict=True):
        close(layer, written)


@every_tying
@every_time
@every_depth
@pytest.mark.parametrize("beta", [BETA, -BETA])
def test_the_nudge_is_beta_epsilon_times_y_minus_output_outside_sigma(N, time, tied, beta):
    net = a_network(N, time, tied=tied)
    x, y, s = a_minibatch(net)
    paper = Paper(net, "tanh")
    expected = paper.stacked(
        [paper.step(x[b], paper.layers(s, b), y[b], beta) for b in range(BATCH)]
    )
    for layer, written in zip(
        nudged_step(net, x, y, s, beta, net.readout, 1), expected, strict=True
    ):
        close(layer, written)


def second_phase(net, sigma, rule, x, y):
    """s_0^β = s_* (after T steps from zero), …, s_K^β of the paper, [time][sample]."""
    paper = Paper(net, sigma)
    zero = tuple(torch.zeros(BATCH, n, dtype=torch.float64) for n in net.layer_sizes)
    ways = []
    for b in range(BATCH):
        s = paper.layers(zero, b)
        for _ in range(rule.free_steps):
            s = paper.step(x[b], s)
        way = [s]
        for _ in range(rule.nudged_steps):
            way.append(paper.step(x[b], way[-1], y[b], rule.beta))
        ways.append(way)
    return paper, list(zip(*ways, strict=True))


def mean(values):
    return torch.stack(list(values)).mean(0)


@every_tying
@every_time
@every_depth
def test_neuron_updates_of_a_rule_are_the_steps_of_the_second_phase(N, time, tied):
    net = a_network(N, time, tied=tied)
    x, y, _ = a_minibatch(net)
    rule = eqprop.ContinualVF(beta=BETA, free_steps=4, nudged_steps=3)
    paper, way = second_phase(net, "tanh", rule, x, y)
    strength = BETA * (1.0 if paper.discrete else EPSILON)
    steps = list(rule.steps(net, x, y))
    assert len(steps) == 3
    for t, step in enumerate(steps):
        before, after = paper.stacked(way[t]), paper.stacked(way[t + 1])
        for uphill, a, b in zip(step.neurons, before, after, strict=True):
            close(-uphill, (b - a) / strength)  # Eq. (updates-cep)


@pytest.mark.parametrize("rule_type", [eqprop.EP, eqprop.ContinualEP])
@with_and_without_bias
@every_time
@every_depth
def test_contrastive_updates_are_differences_of_outer_products(N, time, bias, rule_type):
    net = a_network(N, time, bias=bias, sigma="sigmoid")
    x, y, _ = a_minibatch(net)
    rule = rule_type(beta=BETA, free_steps=4, nudged_steps=3)
    paper, way = second_phase(net, "sigmoid", rule, x, y)
    rho = paper.transmitted  # identity in discrete time, σ in real time
    for t, step in enumerate(rule.steps(net, x, y)):
        pairs = list(zip(way[t], way[t + 1], strict=True))
        expected = {}
        for n in range(N):  # Eq. (model-cep-deltaw)
            expected[paper.name(n, "weight")] = mean(
                torch.outer(rho(b[n]), rho(b[n + 1])) - torch.outer(rho(a[n]), rho(a[n + 1]))
                for a, b in pairs
            ).T
        expected[paper.name(N, "weight")] = mean(
            torch.outer(rho(b[N]) - rho(a[N]), rho(x_i))
            for (a, b), x_i in zip(pairs, x, strict=True)
        ).T
        if bias:
            for n in range(N + 1):
                expected[paper.name(n, "bias")] = mean(rho(b[n]) - rho(a[n]) for a, b in pairs)
        assert step.synapses.keys() == expected.keys()
        for name, delta in expected.items():
            close(-step.synapses[name], delta / BETA)


@pytest.mark.parametrize("rule_type", [eqprop.VF, eqprop.ContinualVF])
@with_and_without_bias
@every_time
@every_depth
def test_vector_field_updates_are_changes_times_what_is_transmitted(N, time, bias, rule_type):
    """In real time with the factor σ'(s_t) wherever the equations of motion have it."""
    net = a_network(N, time, tied=False, bias=bias, sigma="sigmoid")
    x, y, _ = a_minibatch(net)
    rule = rule_type(beta=BETA, free_steps=4, nudged_steps=3)
    paper, way = second_phase(net, "sigmoid", rule, x, y)
    rho = paper.transmitted

    def moved(a, b, n):
        return (b[n] - a[n]) * (1.0 if paper.discrete else paper.factor(a, n))

    for t, step in enumerate(rule.steps(net, x, y)):
        pairs = list(zip(way[t], way[t + 1], strict=True))
        expected = {}
        for n in range(N):
            expected[paper.name(n, "weight")] = mean(
                torch.outer(moved(a, b, n), rho(a[n + 1])) for a, b in pairs
            ).T
            expected[paper.name(n, "backward_weight")] = mean(
                torch.outer(moved(a, b, n + 1), rho(a[n])) for a, b in pairs
            ).T
        expected[paper.name(N, "weight")] = mean(
            torch.outer(moved(a, b, N), rho(x_i)) for (a, b), x_i in zip(pairs, x, strict=True)
        ).T
        if bias:
            for n in range(N + 1):
                expected[paper.name(n, "bias")] = mean(moved(a, b, n) for a, b in pairs)
        assert step.synapses.keys() == expected.keys()
        for name, delta in expected.items():
            close(-step.synapses[name], delta / BETA)


def condensed(net):
    """W and W_x of Eqs. (W-condensed) and (W-condensed-VF), and b, for s = (s^N, …, s⁰)."""
    ends = [0, *torch.tensor(net.layer_sizes).cumsum(0).tolist()]
    block = [slice(a, b) for a, b in pairwise(ends)]
    W = torch.zeros(ends[-1], ends[-1], dtype=torch.float64)
    W_x = torch.zeros(ends[-1], net.input_size, dtype=torch.float64)
    b = torch.zeros(ends[-1], dtype=torch.float64)
    W_x[block[0]] = net.synapses[0].weight.T
    for k, synapse in enumerate(net.synapses):
        if synapse.bias is not None:
            b[block[k]] = synapse.bias
        if k > 0:
            W[block[k], block[k - 1]] = synapse.weight.T
            back = synapse.weight if synapse.tied else synapse.backward_weight.T
            W[block[k - 1], block[k]] = back
    return W, W_x, b


@every_tying
@every_depth
def test_the_condensed_form_is_the_layered_network_in_discrete_time(N, tied):
    net = a_network(N, eqprop.Discrete(), tied=tied, sigma="sigmoid")
    x, _, s = a_minibatch(net)
    W, W_x, b = condensed(net)
    s_all = torch.cat(s, dim=-1)
    for sample in range(BATCH):
        expected = SIGMA["sigmoid"](W @ s_all[sample] + W_x @ x[sample] + b)
        close(torch.cat(net(x, s), dim=-1)[sample], expected)


@every_tying
@every_depth
def test_the_condensed_form_is_the_layered_network_in_real_time(N, tied):
    net = a_network(N, eqprop.RealTime(dt=EPSILON, slope="none"), tied=tied)
    x, _, s = a_minibatch(net)
    W, W_x, b = condensed(net)
    s_all, sigma = torch.cat(s, dim=-1), SIGMA["tanh"]
    for sample in range(BATCH):
        drive = W @ sigma(s_all[sample]) + W_x @ sigma(x[sample]) + b
        expected = (1 - EPSILON) * s_all[sample] + EPSILON * drive
        close(torch.cat(net(x, s), dim=-1)[sample], expected)


@pytest.mark.parametrize("N", [1, 2, 3])
def test_the_condensed_weight_matrix_is_symmetric_only_if_tied(N):
    """Read off the dynamics: with σ = identity the Jacobian of F is W itself."""
    for tied in (True, False):
        net = a_network(N, eqprop.Discrete(), tied=tied, sigma="tanh")
        linear = eqprop.layered(*SIZES[N], tied=tied, activation="identity", dtype=torch.float64)
        linear.load_state_dict(net.state_dict())
        x, _, s = a_minibatch(linear)
        sizes = list(linear.layer_sizes)

        def transition(flat, linear=linear, x=x, sizes=sizes):
            return torch.cat(linear(x[:1], flat[None].split(sizes, dim=-1)), dim=-1)[0]

        W = torch.func.jacrev(transition)(torch.cat(s, dim=-1)[0])
        close(W, condensed(linear)[0])
        assert torch.equal(W, W.T) == tied


@with_and_without_bias
@every_depth
def test_phi_in_discrete_time_is_the_condensed_quadratic_form(N, bias):
    """Φ = ½ sᵀWs + sᵀW_x x + b·s: the ½ that the paper prints on W_x too is not in its sum."""
    net = a_network(N, eqprop.Discrete(), bias=bias)
    x, _, s = a_minibatch(net)
    W, W_x, b = condensed(net)
    s_all = torch.cat(s, dim=-1)
    phi = net.phi(x, s)
    assert phi.shape == (BATCH,)
    for sample in range(BATCH):
        v = s_all[sample]
        close(phi[sample], 0.5 * v @ W @ v + v @ W_x @ x[sample] + b @ v)


@with_and_without_bias
@every_depth
def test_phi_in_real_time_is_the_papers_with_epsilon_on_every_synapse(N, bias):
    net = a_network(N, eqprop.RealTime(dt=EPSILON), bias=bias)
    x, _, s = a_minibatch(net)
    W, W_x, b = condensed(net)
    s_all, sigma = torch.cat(s, dim=-1), SIGMA["tanh"]
    for sample in range(BATCH):
        v, rho = s_all[sample], sigma(s_all[sample])
        synapses = 0.5 * rho @ W @ rho + rho @ W_x @ sigma(x[sample]) + b @ rho
        close(net.phi(x, s)[sample], 0.5 * (1 - EPSILON) * v @ v + EPSILON * synapses)


def phi_state_gradient(net, x, s):
    s = tuple(layer.clone().requires_grad_() for layer in s)
    return torch.autograd.grad(net.phi(x, s).sum(), s)


@both_sigmas
@every_depth
def test_F_is_the_gradient_of_phi_in_real_time_with_slope_all(N, sigma):
    net = a_network(N, eqprop.RealTime(dt=EPSILON, slope="all"), sigma=sigma)
    x, _, s = a_minibatch(net)
    for layer, gradient in zip(net(x, s), phi_state_gradient(net, x, s), strict=True):
        close(layer, gradient)


@pytest.mark.parametrize("slope", ["hidden", "none"])
def test_F_is_not_the_gradient_of_phi_where_the_slope_is_left_out(slope):
    net = a_network(1, eqprop.RealTime(dt=EPSILON, slope=slope))
    x, _, s = a_minibatch(net)
    hidden, output = (
        float((layer - gradient).abs().max())
        for layer, gradient in zip(net(x, s), phi_state_gradient(net, x, s), strict=True)
    )
    assert output > 0.01
    assert hidden < 1e-12 if slope == "hidden" else hidden > 0.01


@every_depth
def test_F_is_sigma_of_the_gradient_of_phi_in_discrete_time(N):
    """Eq. (approx-phi): "ignoring the activation function"."""
    net = a_network(N, eqprop.Discrete())
    x, _, s = a_minibatch(net)
    for layer, gradient in zip(net(x, s), phi_state_gradient(net, x, s), strict=True):
        close(layer, SIGMA["tanh"](gradient))


@with_and_without_bias
@every_time
@every_depth
def test_phi_gradient_is_autograd_of_phi_for_every_parameter(N, time, bias):
    net = a_network(N, time, bias=bias)
    x, _, s = a_minibatch(net)
    theta = {name: p.clone().requires_grad_() for name, p in net.named_parameters()}

    class Phi(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.net = net

        def forward(self, x, s):
            return self.net.phi(x, s).mean()

    phi = torch.func.functional_call(Phi(), {f"net.{n}": p for n, p in theta.items()}, (x, s))
    expected = dict(zip(theta, torch.autograd.grad(phi, theta.values()), strict=True))
    actual = net.phi_gradient(x, s)
    assert actual.keys() == expected.keys()
    for name in expected:
        close(actual[name], expected[name])


@every_tying
@pytest.mark.parametrize(
    ("time", "sigma"),
    [*((time, "tanh") for time in list(TIED.values())[1:]), (eqprop.Discrete(), "identity")],
    ids=[*list(TIED)[1:], "discrete, identity"],
)
@every_depth
def test_vector_field_gradient_is_the_transposed_jacobian(N, time, sigma, tied):
    net = a_network(N, time, tied=tied, sigma=sigma)
    x, _, s = a_minibatch(net)
    _, _, ds = a_minibatch(net, seed=7)
    actual, expected = net.vector_field_gradient(x, s, ds), vjp(net, x, s, ds)[1]
    assert actual.keys() == expected.keys()
    for name in expected:
        close(actual[name], expected[name])


@both_sigmas
@every_tying
@every_depth
def test_vector_field_gradient_in_discrete_time_drops_sigma_prime_and_nothing_else(N, tied, sigma):
    net = a_network(N, eqprop.Discrete(), tied=tied, sigma=sigma)
    x, _, s = a_minibatch(net)
    _, _, ds = a_minibatch(net, seed=7)
    slopes = [
        4 * layer * (1 - layer) if sigma == "sigmoid" else 1 - layer**2 for layer in net(x, s)
    ]
    put_back = tuple(slope * d for slope, d in zip(slopes, ds, strict=True))
    exact = vjp(net, x, s, ds)[1]
    dropped, restored = (net.vector_field_gradient(x, s, d) for d in (ds, put_back))
    for name in exact:
        close(restored[name], exact[name])
        assert float((dropped[name] - exact[name]).abs().max()) > 0.01

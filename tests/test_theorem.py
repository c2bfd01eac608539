"""Oracle: theorem. Theorem 1 (GDD): Δ(t) = −∇(t) at every t, for neurons and synapses.

It holds where F = ∂Φ/∂s: real time with σ' on all layers. In discrete time Φ ignores σ; there
the limit β → 0 of Δ(t) is worked out here from W and D = diag σ'(drive), and with it how far it
lies from −∇(t).
"""

from itertools import pairwise

import pytest
import torch

import eqprop

T, K = 320, 10
BETAS = (1e-2, 1e-3, 1e-4)
SMALL_BETAS = (1e-3, 1e-4, 1e-5)
SQUARED_ERROR = eqprop.SquaredError()
ORDER = 0.05  # on a fitted slope: the next order is a hundredth of the first, or less
ROUNDING = 1e-10  # on Δ(t) where it is exact: eps/β = 2e-11 for the smallest β, and a margin


def chain(*names):
    return [eqprop.Dense(a, b, bias=True, init="fan_in") for a, b in pairwise(names)]


def skip():
    return [
        *chain("input", "first", "second", "output"),
        eqprop.Dense("first", "output", init="fan_in"),
        eqprop.Dense("input", "output", init="fan_in"),
    ]


def lateral():
    return [
        *chain("input", "first", "second", "output"),
        eqprop.Dense("first", "first", init="fan_in"),
        eqprop.Dense("output", "output", init="fan_in", self_loops=True),
    ]


def one_hidden():
    return chain("input", "second", "output")


def two_hidden():
    return chain("input", "first", "second", "output")


TOPOLOGIES = {
    "one hidden": one_hidden,
    "two hidden": two_hidden,
    "skip": skip,
    "lateral": lateral,
}
SIZES = {"first": 4, "second": 3, "output": 2}


def network(topology, activation, time):
    synapses = topology()
    joined = {end for synapse in synapses for end in (synapse.pre, synapse.post)}
    return eqprop.Network(
        [
            eqprop.Input(3, activation if isinstance(time, eqprop.RealTime) else "identity"),
            *(eqprop.Layer(n, size, activation) for n, size in SIZES.items() if n in joined),
        ],
        synapses,
        time=time,
        seed=1,
        dtype=torch.float64,
    )


def batch(outputs=2, samples=3):
    source = torch.Generator().manual_seed(4)
    x = 2 * torch.rand(samples, 3, generator=source, dtype=torch.float64) - 1
    return x, torch.rand(samples, outputs, generator=source, dtype=torch.float64)


def gradients_of_bptt(net, x, y, cost=SQUARED_ERROR):
    process = eqprop.time_resolved(net, eqprop.BPTT(free_steps=T, backward_steps=K), x, y, cost)
    assert process.free.residual < 1e-14, "the theorem asks for a settled free phase"
    return named(process)


def updates(net, x, y, beta, learning_rates=None):
    """−Δ(t) of C-EP."""
    rule = eqprop.ContinualEP(beta=beta, free_steps=T, nudged_steps=K)
    return named(eqprop.time_resolved(net, rule, x, y, learning_rates=learning_rates))


def named(process):
    return {**process.neurons, **process.synapses}


def errors(processes, expected):
    """By name: ‖−Δ(t) − expected(t)‖, [rates, K]."""
    return {
        name: torch.stack([(p[name] - value).flatten(1).norm(dim=1) for p in processes])
        for name, value in expected.items()
    }


def fitted_order(rates, error):
    """The slope of log(error) against log(rate), along the first axis."""
    u = torch.tensor(rates, dtype=torch.float64).log()
    u = u - u.mean()
    return torch.einsum("r,r...->...", u, error.log()) / (u * u).sum()


def assert_first_order_at_every_step(rates, processes, expected, last_exact):
    """Each error falls as the rate to the power 1, at every t.

    Only in the steps 0 … last_exact may an error vanish instead: the nudge takes that long to
    reach the layer farthest from the output.
    """
    for name, error in errors(processes, expected).items():
        exact = (error < ROUNDING).all(0)
        assert not exact[last_exact + 1 :].any(), f"{name} vanishes at late t: {error}"
        slope = fitted_order(rates, error[:, ~exact])
        assert (slope - 1).abs().max() < ORDER, f"{name}: {slope}"


def assert_first_order_in_a_chain(rates, processes, expected):
    """The same in discrete time, where in a chain of layers the nudge comes by at every second
    step only, and the first order may be missing in between: no t is of a lower order, and the
    process as a whole is of order 1.
    """
    for name, error in errors(processes, expected).items():
        measured = (error > 10 * ROUNDING).all(0)
        assert (error[:, ~measured] < 1e-2 * torch.tensor(rates)[:, None]).all(), f"{name}: {error}"
        slope = fitted_order(rates, error[:, measured])
        assert slope.min() > 1 - ORDER, f"{name}: {slope}"
        assert abs(fitted_order(rates, error.norm(dim=1)) - 1) < ORDER, f"{name}: {error}"


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("activation", ["tanh", "sigmoid"])
@pytest.mark.parametrize("topology", TOPOLOGIES.values(), ids=TOPOLOGIES)
def test_updates_equal_the_gradients_of_bptt_to_first_order_in_beta(topology, activation, sign):
    net, (x, y) = network(topology, activation, eqprop.RealTime(dt=0.5)), batch()
    processes = [updates(net, x, y, sign * beta) for beta in BETAS]
    assert_first_order_at_every_step(
        BETAS, processes, gradients_of_bptt(net, x, y), len(net.layers) - 1
    )


@pytest.mark.parametrize("topology", [one_hidden, skip])
def test_with_eta_of_the_order_of_beta_squared_the_theorem_holds_to_first_order(topology):
    net, (x, y) = network(topology, "tanh", eqprop.RealTime(dt=0.5)), batch()
    # θ moves by O(η), s with it, and Δ_s divides that by β: the error is O(β) + O(η/β)
    processes = [updates(net, x, y, beta, learning_rates=beta**2) for beta in BETAS]
    assert_first_order_at_every_step(
        BETAS, processes, gradients_of_bptt(net, x, y), len(net.layers) - 1
    )


def test_with_eta_of_the_order_of_beta_the_error_stays_because_eta_goes_first():
    net, (x, y) = network(one_hidden, "tanh", eqprop.RealTime(dt=0.5)), batch()
    expected = gradients_of_bptt(net, x, y)
    for beta in BETAS:
        ours = updates(net, x, y, beta, learning_rates=beta)
        for name, value in expected.items():
            assert eqprop.relative_error(ours[name], value) > 0.3, (name, beta)


@pytest.mark.parametrize("activation", ["tanh", "sigmoid"])
def test_only_the_reading_with_sigma_prime_on_all_layers_follows_bptt(activation):
    x, y = batch()
    for slope in ("all", "hidden", "none"):
        net = network(one_hidden, activation, eqprop.RealTime(dt=0.5, slope=slope))
        expected = gradients_of_bptt(net, x, y)
        ours = updates(net, x, y, beta=1e-5)
        for name, _ in net.named_parameters():
            error = eqprop.relative_error(ours[name], expected[name])
            if slope == "all":
                assert error < 1e-4, name  # β times a constant of order 1
            else:
                assert error > 0.1, (slope, name)


# Discrete time. One sample is a row: s' = σ(s·W + b). With d = σ' at the steady drive,
# −Δ_s(0) = ∇_s(0) = ∂ℓ/∂s, and then
#   the nudged phase, linearised:  v(t+1) = (v(t)·W) d        v(t) = lim −Δ_s(t)
#   BPTT:                          u(t+1) = (u(t) d)·W        u(t) = ∇_s(t)
# and both rules form their synapses' part from v(t) and from u(t) d in the same way.


class DiscreteLimit:
    """The processes v(t) and u(t) of a layered network with W symmetric."""

    def __init__(self, net, x, y):
        self.net, self.x = net, x
        s = eqprop.relax(net, x, T).state
        edges = torch.tensor([0, *net.layer_sizes]).cumsum(0).tolist()
        self.where = [slice(a, b) for a, b in pairwise(edges)]
        self.W = torch.zeros(edges[-1], edges[-1], dtype=torch.float64)
        for k, (pre, post) in enumerate(pairwise(self.where), start=1):
            self.W[pre, post] = net.synapses[k].weight
            self.W[post, pre] = net.synapses[k].weight.T
        self.s = torch.cat(s, dim=-1)
        drive = self.s @ self.W + torch.cat([synapse.bias for synapse in net.synapses])
        drive[:, self.where[0]] += x @ net.synapses[0].weight
        drive.requires_grad_()
        sigma = {"tanh": torch.tanh, "sigmoid": lambda a: 1 / (1 + torch.exp(-4 * (a - 0.5)))}[
            net.layers[0].activation
        ]
        (self.d,) = torch.autograd.grad(sigma(drive).sum(), drive)
        self.error = torch.zeros_like(self.s)
        self.error[:, self.where[-1]] = s[-1] - y

    def nudged(self):
        return self._process(lambda v: (v @ self.W) * self.d, lambda v: v)

    def bptt(self):
        return self._process(lambda u: (u * self.d) @ self.W, lambda u: u * self.d)

    def _process(self, advance, to_drive):
        neurons = [self.error]
        while len(neurons) < K:
            neurons.append(advance(neurons[-1]))
        split = [[v[:, where] for v in neurons] for where in self.where]
        processes = dict(zip(self.net.layer_names, map(torch.stack, split), strict=True))
        synapses = [self._synapses(to_drive(v)) for v in neurons]
        processes.update({name: torch.stack([g[name] for g in synapses]) for name in synapses[0]})
        return processes

    def _synapses(self, v):
        before = (self.x, *(self.s[:, where] for where in self.where))
        after = [v[:, where] for where in self.where]
        gradients = {}
        for k in range(len(after)):
            weight = before[k].T @ after[k]
            if k > 0:
                weight = weight + after[k - 1].T @ before[k + 1]
            gradients[f"synapses.{k}.weight"] = weight / len(self.x)
            gradients[f"synapses.{k}.bias"] = after[k].mean(0)
        return gradients


def discrete(*sizes, activation):
    return eqprop.layered(*sizes, activation=activation, init="fan_in", seed=2, dtype=torch.float64)


on_discrete_networks = pytest.mark.parametrize(
    ("sizes", "activation"),
    [
        ((3, 4, 2), "tanh"),
        ((3, 4, 2), "sigmoid"),
        ((3, 4, 3, 2), "tanh"),
        ((3, 4, 3, 2), "sigmoid"),
    ],
)


@on_discrete_networks
def test_discrete_updates_approach_the_process_of_the_linearised_nudged_phase(sizes, activation):
    net, (x, y) = discrete(*sizes, activation=activation), batch()
    processes = [updates(net, x, y, beta) for beta in SMALL_BETAS]
    limit = DiscreteLimit(net, x, y).nudged()
    assert_first_order_in_a_chain(SMALL_BETAS, processes, limit)


@on_discrete_networks
def test_discrete_gradients_of_bptt_are_the_process_of_the_transposed_jacobian(sizes, activation):
    net, (x, y) = discrete(*sizes, activation=activation), batch()
    limit = DiscreteLimit(net, x, y).bptt()
    for name, value in gradients_of_bptt(net, x, y).items():
        torch.testing.assert_close(value, limit[name], rtol=1e-10, atol=1e-13)


@on_discrete_networks
def test_the_discrete_deviation_of_the_neurons_stays_and_is_bounded_by_the_spread_of_slopes(
    sizes, activation
):
    # (DW)ᵗ − (WD)ᵗ = Σ_k (DW)ᵏ (DW − WD) (WD)ᵗ⁻¹⁻ᵏ has t terms. As D − cI does not change the
    # commutator, c halfway between the extreme slopes gives ‖DW − WD‖ ≤ (d_max − d_min) ‖W‖. So
    #     ‖v(t) − u(t)‖ ≤ t (1 − d_min/d_max) (d_max ‖W‖)ᵗ ‖∇_s(0)‖,
    # which is zero where all slopes are equal.
    net, (x, y) = discrete(*sizes, activation=activation), batch()
    limit = DiscreteLimit(net, x, y)
    d_min, d_max = limit.d.amin(-1), limit.d.amax(-1)
    gain = d_max * torch.linalg.matrix_norm(limit.W, 2)
    ours, exact = updates(net, x, y, beta=1e-6), gradients_of_bptt(net, x, y)
    apart = torch.cat([ours[name] - exact[name] for name in net.layer_names], dim=-1).norm(dim=-1)
    t = torch.arange(K, dtype=torch.float64)[:, None]
    bound = t * (1 - d_min / d_max) * gain**t * limit.error.norm(dim=-1)
    slack = 1e-5 * limit.error.norm(dim=-1)  # β = 1e-6 is not yet the limit
    assert (apart <= bound + slack).all()
    assert (apart[1:4].amax(0) > 0.01 * limit.error.norm(dim=-1)).all(), "nothing deviates"


@pytest.mark.slow
@on_discrete_networks
def test_the_discrete_deviation_of_the_synapses_is_a_change_of_the_loss(sizes, activation):
    # v(t) = (DW)ᵗ e and D u(t) = (DW)ᵗ D e: the synapses follow BPTT exactly, for the error e/σ'
    # in place of e. Of the paper's sigmoid (σ' = 4s(1−s)) that is a quarter of the binary
    # cross-entropy; of tanh (σ' = 1−s²) it is the one of the probability ½(1+s).
    def cross_entropy(output, y):
        if activation == "sigmoid":
            likelihood = 0.25 * (y * output.log() + (1 - y) * (1 - output).log())
        else:
            likelihood = 0.5 * ((1 + y) * (1 + output).log() + (1 - y) * (1 - output).log())
        return -likelihood.sum(-1)

    net, (x, y) = discrete(*sizes, activation=activation), batch()
    expected = gradients_of_bptt(net, x, y, cross_entropy)
    names = [name for name, _ in net.named_parameters()]
    processes = [updates(net, x, y, beta) for beta in SMALL_BETAS]
    assert_first_order_in_a_chain(SMALL_BETAS, processes, {name: expected[name] for name in names})
    squared = gradients_of_bptt(net, x, y)
    for name in names:
        assert eqprop.relative_error(processes[-1][name], squared[name]) > 0.05, name


@pytest.mark.parametrize("activation", ["tanh", "sigmoid"])
def test_with_one_output_neuron_the_discrete_updates_point_exactly_along_the_gradient(activation):
    # e has one entry, so e/σ' is a multiple of e: −Δ_θ(t) = ∇_θ(t)/d_o, and −Δ_s = (D/d_o) ∇_s
    net, (x, y) = discrete(3, 4, 1, activation=activation), batch(outputs=1, samples=1)
    net.synapses[-1].bias.add_(0.5)  # away from where σ' is 1
    limit, exact = DiscreteLimit(net, x, y), gradients_of_bptt(net, x, y)
    d_output = limit.d[0, -1]
    expected = {name: exact[name] / d_output for name, _ in net.named_parameters()}
    for name, where in zip(net.layer_names, limit.where, strict=True):
        expected[name] = exact[name] * limit.d[:, where] / d_output
    processes = [updates(net, x, y, beta) for beta in SMALL_BETAS]
    assert_first_order_in_a_chain(SMALL_BETAS, processes, expected)
    assert abs(1 - d_output) > 0.2, "nothing deviates"


@pytest.mark.parametrize("sizes", [(3, 4, 2), (3, 4, 3, 2)])
def test_without_an_activation_the_discrete_network_obeys_the_theorem(sizes):
    net, (x, y) = discrete(*sizes, activation="identity"), batch()
    for synapse in net.synapses[1:]:
        synapse.weight.mul_(0.4)  # so that the dynamics contract
    processes = [updates(net, x, y, beta) for beta in BETAS]
    assert_first_order_in_a_chain(BETAS, processes, gradients_of_bptt(net, x, y))

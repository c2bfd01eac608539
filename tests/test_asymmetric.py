"""Oracle: theorem and rate. Theorem 2 (appendix D): C-VF follows BPTT where the Jacobian of F is
symmetric at the steady state, and only there. In discrete time that takes update_slope "full".

The limit β → 0 of C-VF (Lemma "Updates of C-VF") is computed from dense Jacobians: no transpose.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import pytest
import torch

import eqprop

T, K = 320, 8
BETAS = (1e-2, 1e-3, 1e-4)
ORDER = 0.05  # on a fitted slope: the next order is a hundredth of the first, or less
ROUNDING = 1e-10  # on Δ(t) where it is exact: eps/β = 2e-12 for the smallest β, and a margin
SIZES = (3, 8, 6, 2)
SLOPES = ("none", "own", "full")
SQUARED_ERROR = eqprop.SquaredError()


def untied(angle, time, activation="tanh", sizes=SIZES):
    return eqprop.layered(
        *sizes,
        tied=False,
        angle=angle,
        time=time,
        activation=activation,
        init="fan_in",
        seed=3,
        dtype=torch.float64,
    )


def batch(inputs=3, outputs=2):
    source = torch.Generator().manual_seed(6)
    x = 2 * torch.rand(3, inputs, generator=source, dtype=torch.float64) - 1
    return x, torch.rand(3, outputs, generator=source, dtype=torch.float64)


def real_time_of_angle_zero():
    return untied(0.0, eqprop.RealTime(dt=0.5)), *batch()


def real_time_sigmoid_of_angle_zero():
    return untied(0.0, eqprop.RealTime(dt=0.5), "sigmoid"), *batch()


def linear_of_angle_zero():
    net = untied(0.0, eqprop.Discrete(), "identity")
    for parameter in net.parameters():
        parameter.mul_(0.4)  # so that the dynamics contract
    return net, *batch()


def field(x, s, theta):
    return torch.tanh(torch.cat(s, dim=-1) @ theta["weight"] + x).split((3, 2), dim=-1)


def asymmetric_weights_with_a_symmetric_jacobian():
    """s' = tanh(s·W + x), whose Jacobian at s_* is D·Wᵀ: with W = S·D⁻¹ it is the symmetric S.

    W itself is not symmetric, and neither is the Jacobian away from s_*. As tanh' is even, the
    same W serves the steady states s_* and −s_*, of the inputs x and −x.
    """
    source = torch.Generator().manual_seed(8)
    state = 1.6 * torch.rand(1, 5, generator=source, dtype=torch.float64) - 0.8
    S = torch.randn(5, 5, generator=source, dtype=torch.float64)
    S = 0.6 * (S + S.T) / torch.linalg.matrix_norm(S + S.T, 2)
    W = S / (1 - state**2)
    x = torch.atanh(state) - state @ W
    model = eqprop.VectorField(
        field, parameters={"weight": W}, layers={"hidden": 3, "output": 2}, inputs=5
    )
    targets = torch.tensor([[0.3, -0.7], [0.5, 0.2]], dtype=torch.float64)
    return model, torch.cat([x, -x]), targets


@dataclass(frozen=True)
class Sigma:
    """An activation as formulas of its value s = σ(drive), which lies in `bounds`."""

    value: Callable
    drive: Callable
    slope: Callable
    bounds: tuple[float, float]


SIGMA = {
    "tanh": Sigma(torch.tanh, torch.atanh, lambda s: 1 - s**2, (-1, 1)),
    "sigmoid": Sigma(
        lambda u: 1 / (1 + torch.exp(-4 * (u - 0.5))),
        lambda s: 0.5 + torch.logit(s) / 4,
        lambda s: 4 * s * (1 - s),
        (0, 1),
    ),
}


def chain_of(*sizes):
    names = ("input", *"abc"[: len(sizes) - 2], "output")
    return dict(zip(names, sizes, strict=True)), list(pairwise(names))


CHAIN = chain_of(3, 8, 2)
LONG_CHAIN = chain_of(3, 8, 6, 2)
ONE_OUTPUT = chain_of(3, 5, 1)
TRIANGLE = LONG_CHAIN[0], [*LONG_CHAIN[1], ("a", "output")]


def discrete_with_a_symmetric_jacobian(topology, activation):
    """A discrete-time network built around one steady state s_*, with one sample.

    Its Jacobian has the blocks D_post·W_fᵀ and D_pre·W_bᵀ, D = diag σ′. They are each other's
    transpose for W_b = D_post·W_fᵀ·D_pre⁻¹. Biases supply what the drives lack.
    """
    sizes, ends = topology
    sigma, source = SIGMA[activation], torch.Generator().manual_seed(7)
    net = eqprop.Network(
        [
            eqprop.Input(sizes["input"]),
            *(eqprop.Layer(n, size, activation) for n, size in sizes.items() if n != "input"),
        ],
        [eqprop.Dense(a, b, tied=False, bias=True, init="fan_in") for a, b in ends],
        seed=3,
        dtype=torch.float64,
    )

    def steady(n):
        """In the range of σ, but neither at its bounds nor at its middle, where σ′ is 1."""
        low, high = sigma.bounds
        far = 0.15 + 0.25 * torch.rand(1, n, generator=source, dtype=torch.float64)
        side = 2 * torch.randint(0, 2, (1, n), generator=source) - 1
        return low + (high - low) * (0.5 + side * far)

    s = {name: steady(n) for name, n in sizes.items()}
    for synapse in net.synapses:
        synapse.weight.mul_(0.6)  # so that the dynamics contract
        if synapse.backward_weight is not None:
            d_pre, d_post = sigma.slope(s[synapse.pre]), sigma.slope(s[synapse.post])
            synapse.backward_weight.copy_(d_post.T * synapse.weight.T / d_pre)
    state = tuple(s[name] for name in net.layer_names)
    lacking = {name: sigma.drive(s[name]) for name in net.layer_names}
    for layer, _, u in drives(net, dict(net.named_parameters()), s["input"], state):
        lacking[layer] = lacking[layer] - u
    for layer, lack in lacking.items():
        first = next(synapse for synapse in net.synapses if synapse.post == layer)
        first.bias.add_(lack[0])
    free = eqprop.relax(net, s["input"], T)
    assert free.residual < 1e-14, "the theorem asks for a settled free phase"
    torch.testing.assert_close(free.state, state, rtol=0, atol=1e-12)
    return net, s["input"], torch.rand(1, sizes["output"], generator=source, dtype=torch.float64)


def drives(net, theta, x, s):
    """Of each synapse, both ways: the layer it drives, the parameters in it, and the drive."""
    ends = dict(zip(("input", *net.layer_names), (x, *s), strict=True))
    for k, synapse in enumerate(net.synapses):
        weight, bias, back = (f"synapses.{k}.{f}" for f in ("weight", "bias", "backward_weight"))
        yield synapse.post, (weight, bias), ends[synapse.pre] @ theta[weight] + theta[bias]
        if back in theta:
            yield synapse.pre, (back,), ends[synapse.post] @ theta[back]


SYMMETRIC = {
    "real time, tanh, angle 0": (real_time_of_angle_zero, "none"),
    "real time, sigmoid, angle 0": (real_time_sigmoid_of_angle_zero, "none"),
    "discrete, linear, angle 0": (linear_of_angle_zero, "none"),
    "asymmetric weights, symmetric Jacobian": (
        asymmetric_weights_with_a_symmetric_jacobian,
        "none",
    ),
}
DISCRETE = {
    f"discrete, {name}, {activation}": partial(
        discrete_with_a_symmetric_jacobian, topology, activation
    )
    for name, topology in (("chain", CHAIN), ("long chain", LONG_CHAIN), ("triangle", TRIANGLE))
    for activation in SIGMA
}
SYMMETRIC |= {name: (make, "full") for name, make in DISCRETE.items()}


def flat_transition(model, x):
    """F as a function of the whole batch's state in one vector."""

    def transition(flat):
        s, start = [], 0
        for n in model.layer_sizes:
            s.append(flat[start : start + len(x) * n].reshape(len(x), n))
            start += len(x) * n
        return flatten(model(x, tuple(s)))

    return transition


def flatten(s):
    return torch.cat([layer.flatten() for layer in s])


def jacobian(model, x, s):
    return torch.func.jacrev(flat_transition(model, x))(flatten(s))


def asymmetry(J):
    return float((J - J.T).norm() / J.norm())


def transition_of(model, x):
    """F as a function of θ and s."""
    return lambda theta, s: torch.func.functional_call(model, theta, (x, s))


def differentiated(net, x, update_slope):
    """The function of θ and s whose ∂/∂θ an update of a discrete-time network takes."""
    combine = {
        "none": lambda sigma, drives: sum(drives),
        "own": lambda sigma, drives: sum(map(sigma, drives)),
        "full": lambda sigma, drives: sigma(sum(drives)),
    }[update_slope]

    def function(theta, s):
        on = {name: [] for name in net.layer_names}
        for layer, _, u in drives(net, theta, x, s):
            on[layer].append(u)
        return tuple(combine(SIGMA[layer.activation].value, on[layer.name]) for layer in net.layers)

    return function


def limit_of_updates(model, x, y, function=None):
    """−Δ^C-VF(t) for β, η → 0: v(t+1) = J·v(t) and (∂F/∂θ)ᵀ·v(t), t = 0 … K−1.

    The synapses' index is one less than in the paper's lemma, as everywhere in the library.
    `function` of θ and s replaces F in ∂F/∂θ.
    """
    s = eqprop.relax(model, x, T).state
    J = jacobian(model, x, s)
    function = function or transition_of(model, x)
    theta = {name: p.detach() for name, p in model.named_parameters()}
    slopes = torch.func.jacrev(lambda theta: flatten(function(theta, s)))(theta)
    v = [flatten((*(torch.zeros_like(layer) for layer in s[:-1]), s[-1] - y))]
    while len(v) < K:
        v.append(J @ v[-1])
    v = torch.stack(v)  # [K, everything]
    processes, start = {}, 0
    for name, n in zip(model.layer_names, model.layer_sizes, strict=True):
        processes[name] = v[:, start : start + len(x) * n].reshape(K, len(x), n)
        start += len(x) * n
    for name, slope in slopes.items():
        processes[name] = torch.tensordot(v, slope, dims=1) / len(x)
    return processes


def updates(model, x, y, beta, learning_rates=None, update_slope="none", kind=eqprop.ContinualVF):
    """−Δ(t) of C-VF, or of VF."""
    rule = kind(beta=beta, free_steps=T, nudged_steps=K, update_slope=update_slope)
    process = eqprop.time_resolved(model, rule, x, y, learning_rates=learning_rates)
    return {**process.neurons, **process.synapses}


def gradients_of_bptt(model, x, y, cost=SQUARED_ERROR):
    rule = eqprop.BPTT(free_steps=T, backward_steps=K)
    process = eqprop.time_resolved(model, rule, x, y, cost)
    assert process.free.residual < 1e-14, "the theorem asks for a settled free phase"
    return {**process.neurons, **process.synapses}


def assert_order(rates, values, expected, order=1):
    """Each error, taken over all t, falls as the rate to the power `order`."""
    u = torch.tensor(rates, dtype=torch.float64).log()
    u = u - u.mean()
    for name, value in expected.items():
        error = torch.stack([(v[name] - value).norm() for v in values])
        slope = float((u * error.log()).sum() / (u * u).sum())
        assert error.min() > ROUNDING, f"{name}: nothing to fit in {error}"
        assert abs(slope - order) < ORDER, f"{name}: slope {slope}"


@pytest.mark.parametrize(("make", "update_slope"), SYMMETRIC.values(), ids=SYMMETRIC)
def test_with_a_symmetric_jacobian_the_updates_follow_bptt_to_first_order_in_beta(
    make, update_slope
):
    model, x, y = make()
    assert asymmetry(jacobian(model, x, eqprop.relax(model, x, T).state)) < 1e-12
    values = [updates(model, x, y, beta, update_slope=update_slope) for beta in BETAS]
    expected = gradients_of_bptt(model, x, y)
    assert_order(BETAS, values, expected)
    for t in range(K):
        last = {name: value[t] for name, value in values[-1].items()}
        for name, value in expected.items():
            # at every single t too: C β with C below 10
            scale = 10 * BETAS[-1] * value.flatten(1).norm(dim=1).max()
            assert (last[name] - value[t]).norm() < scale, (name, t)


def test_the_symmetry_is_needed_at_the_steady_state_alone():
    model, x, _ = asymmetric_weights_with_a_symmetric_jacobian()
    assert asymmetry(model.weight) > 0.1
    assert asymmetry(jacobian(model, x, model.initial_state(x))) > 0.1


@pytest.mark.parametrize("make", DISCRETE.values(), ids=DISCRETE)
def test_the_discrete_networks_with_a_symmetric_jacobian_have_asymmetric_weights(make):
    net, x, _ = make()
    for synapse in net.synapses:
        if synapse.backward_weight is not None:
            assert (synapse.backward_weight - synapse.weight.T).norm() > 0.1
    assert asymmetry(jacobian(net, x, net.initial_state(x))) > 0.1


@pytest.mark.parametrize("activation", ["tanh", "sigmoid"])
@pytest.mark.parametrize(("angle", "floor"), [(45.0, 0.1), (90.0, 0.4)])
def test_with_an_asymmetric_jacobian_the_limit_is_not_the_gradient(angle, floor, activation):
    model = untied(angle, eqprop.RealTime(dt=0.5), activation)
    x, y = batch()
    J = jacobian(model, x, eqprop.relax(model, x, T).state)
    assert asymmetry(J) > 0.1
    expected, limit = gradients_of_bptt(model, x, y), limit_of_updates(model, x, y)
    ours = updates(model, x, y, beta=1e-5)
    for name in ("hidden1", "hidden2", "synapses.0.weight", "synapses.1.weight"):
        assert eqprop.relative_error(limit[name], expected[name]) > floor, name
        assert eqprop.relative_error(ours[name], expected[name]) > floor, name


@pytest.mark.slow
@pytest.mark.parametrize("angle", [0.0, 45.0, 90.0])
@pytest.mark.parametrize("activation", ["tanh", "sigmoid"])
def test_real_time_updates_approach_the_jacobian_process_without_a_transpose(angle, activation):
    model = untied(angle, eqprop.RealTime(dt=0.5), activation)
    x, y = batch()
    values = [updates(model, x, y, beta) for beta in BETAS]
    assert_order(BETAS, values, limit_of_updates(model, x, y))


def test_updates_of_a_user_s_field_approach_the_jacobian_process_without_a_transpose():
    model, x, y = asymmetric_weights_with_a_symmetric_jacobian()
    model.weight[0, 3] += 0.4  # no longer symmetric
    assert asymmetry(jacobian(model, x, eqprop.relax(model, x, T).state)) > 0.1
    values = [updates(model, x, y, beta) for beta in BETAS]
    assert_order(BETAS, values, limit_of_updates(model, x, y))


@pytest.mark.parametrize("update_slope", SLOPES)
@pytest.mark.parametrize("angle", [0.0, 90.0])
@pytest.mark.parametrize("activation", ["tanh", "sigmoid"])
def test_discrete_updates_approach_the_jacobian_process_with_their_reading_of_sigma_prime(
    activation, angle, update_slope
):
    model = untied(angle, eqprop.Discrete(), activation)
    x, y = batch()
    values = [updates(model, x, y, beta, update_slope=update_slope) for beta in BETAS]
    limit = limit_of_updates(model, x, y, differentiated(model, x, update_slope))
    assert_order(BETAS, values, limit)
    if update_slope == "full":  # the lemma as it stands: ∂F/∂θ of the network itself
        lemma = limit_of_updates(model, x, y)
        for name, value in lemma.items():
            torch.testing.assert_close(limit[name], value, rtol=0, atol=1e-14)


def factors(net, x, update_slope):
    """By parameter: lim −Δ(t) / ∇(t) for one sample and a symmetric Jacobian.

    lim −Δ_s(t) = ∇_s(t), so what differs is σ′ alone: the one in the update over the one in ∂F/∂θ.
    """
    s = eqprop.relax(net, x, T).state
    steady = dict(zip(net.layer_names, s, strict=True))
    sigma = SIGMA[net.layers[0].activation]
    found = {}
    for layer, names, u in drives(net, dict(net.named_parameters()), x, s):
        exact = sigma.slope(steady[layer][0])
        taken = {"none": 1.0, "own": sigma.slope(sigma.value(u))[0], "full": exact}[update_slope]
        found |= dict.fromkeys(names, taken / exact)
    return found


@pytest.mark.parametrize("update_slope", ["none", "own"])
@pytest.mark.parametrize("make", DISCRETE.values(), ids=DISCRETE)
def test_without_the_whole_sigma_prime_a_symmetric_jacobian_does_not_help(make, update_slope):
    net, x, y = make()
    exact, factor = gradients_of_bptt(net, x, y), factors(net, x, update_slope)
    limit = {name: value * factor.get(name, 1.0) for name, value in exact.items()}
    values = [updates(net, x, y, beta, update_slope=update_slope) for beta in BETAS]
    assert_order(BETAS, values, limit)
    alone = {f"synapses.{len(net.synapses) - 1}.{field}" for field in ("weight", "bias")}
    for name in factor:
        # the deviation stays, and is that of the factor alone: β changes it by C β, C below 10
        expected = float(eqprop.relative_error(limit[name], exact[name]))
        if update_slope == "own" and name in alone and net.is_chain():
            assert expected < 1e-14, name  # nothing else drives the output: its own drive is all
        else:
            assert expected > 0.05, name
        for beta, value in zip(BETAS, values, strict=True):
            found = float(eqprop.relative_error(value[name], exact[name]))
            assert abs(found - expected) < 10 * beta, (name, beta)


@pytest.mark.parametrize("activation", SIGMA)
def test_with_one_output_neuron_none_lengthens_the_gradient_of_its_weights(activation):
    # to ∇/σ′: the right direction, and a relative error of 1/σ′ − 1
    net, x, y = discrete_with_a_symmetric_jacobian(ONE_OUTPUT, activation)
    slope = float(SIGMA[activation].slope(eqprop.relax(net, x, T).state[-1]))
    assert slope < 0.9, "nothing deviates"
    exact = gradients_of_bptt(net, x, y)
    beta = BETAS[-1]
    ours = {choice: updates(net, x, y, beta, update_slope=choice) for choice in SLOPES}
    for name in ("synapses.1.weight", "synapses.1.bias"):
        error = {c: float(eqprop.relative_error(ours[c][name], exact[name])) for c in SLOPES}
        assert error["none"] == pytest.approx(1 / slope - 1, abs=10 * beta)
        assert error["own"] == pytest.approx(error["full"], abs=ROUNDING)
        assert error["full"] < 10 * beta
        assert eqprop.angle(ours["none"][name].sum(0), exact[name].sum(0)) < 600 * beta  # 10 β rad


@pytest.mark.parametrize("kind", [eqprop.ContinualVF, eqprop.VF])
def test_without_an_activation_all_slopes_are_one(kind):
    model, x, y = linear_of_angle_zero()
    none, own, full = (
        updates(model, x, y, 0.1, update_slope=choice, kind=kind) for choice in SLOPES
    )
    for name, value in none.items():
        assert torch.equal(own[name], value)
        assert torch.equal(full[name], value)
        assert value.norm() > 1e-3, f"{name}: nothing to compare"


def test_with_symmetric_weights_none_follows_another_loss_and_full_follows_neither():
    # v(t) = (DW)ᵗ e, and BPTT has D u(t) = (DW)ᵗ D e: "none" is BPTT for the error e/σ′, of tanh
    # the cross-entropy of the probability ½(1+s). "full" takes D (DW)ᵗ e: DW is not symmetric.
    def cross_entropy(output, y):
        likelihood = (1 + y) * (1 + output).log() + (1 - y) * (1 - output).log()
        return -0.5 * likelihood.sum(-1)

    model, (x, y) = untied(0.0, eqprop.Discrete()), batch()
    assert asymmetry(jacobian(model, x, eqprop.relax(model, x, T).state)) > 0.05
    names = [name for name, _ in model.named_parameters()]
    losses = [gradients_of_bptt(model, x, y, cost) for cost in (cross_entropy, SQUARED_ERROR)]
    values = [updates(model, x, y, beta) for beta in BETAS]
    assert_order(BETAS, values, {name: losses[0][name] for name in names})
    full = updates(model, x, y, BETAS[-1], update_slope="full")
    for name in names:
        assert eqprop.relative_error(values[-1][name], losses[1][name]) > 0.05, name
        for loss in losses:
            assert eqprop.relative_error(full[name], loss[name]) > 0.01, name


@pytest.mark.parametrize("activation", ["tanh", "sigmoid"])
def test_at_180_degrees_every_second_layer_climbs_the_gradient(activation):
    # W_b = −W_fᵀ makes Jᵀ = S·J·S with S = ±1 from layer to layer: ∇_s(t) = −S·Δ_s(t)
    model = untied(180.0, eqprop.RealTime(dt=0.5), activation)
    x, y = batch()
    expected = gradients_of_bptt(model, x, y)
    for name in ("hidden2", "synapses.1.weight", "synapses.1.bias", "synapses.2.backward_weight"):
        expected[name] = -expected[name]
    assert_order(BETAS, [updates(model, x, y, beta) for beta in BETAS], expected)


MODELS = {
    **{
        f"discrete, 90°, {choice}": (lambda: (untied(90.0, eqprop.Discrete()), *batch()), choice)
        for choice in SLOPES
    },
    "real time, 45°": (
        lambda: (untied(45.0, eqprop.RealTime(dt=0.5), "sigmoid"), *batch()),
        "none",
    ),
    "user's field": (asymmetric_weights_with_a_symmetric_jacobian, "none"),
}


@pytest.mark.parametrize(("make", "update_slope"), MODELS.values(), ids=MODELS)
def test_the_processes_of_vf_are_the_continual_ones_at_fixed_weights(make, update_slope):
    model, x, y = make()
    vf = updates(model, x, y, 0.1, 0.5, update_slope, eqprop.VF)  # 0.5 moves no weight of VF
    for name, value in updates(model, x, y, 0.1, update_slope=update_slope).items():
        assert torch.equal(vf[name], value), name


@pytest.mark.parametrize("beta", [0.3, -0.1])
@pytest.mark.parametrize(("make", "update_slope"), MODELS.values(), ids=MODELS)
def test_vf_is_the_sum_of_the_continual_updates_at_fixed_weights(make, update_slope, beta):
    model, x, y = make()
    settings = {"beta": beta, "free_steps": T, "nudged_steps": K, "update_slope": update_slope}
    (vf,) = eqprop.VF(**settings).gradients(model, x, y)
    updates = list(eqprop.ContinualVF(**settings).gradients(model, x, y))
    assert len(updates) == K
    for name in vf:
        summed = sum(update[name] for update in updates)
        torch.testing.assert_close(summed, vf[name], rtol=0, atol=1e-13)  # K terms, eps/β each
        assert vf[name].norm() > 1e-3, f"{name}: nothing to compare"


@pytest.mark.slow
@pytest.mark.parametrize("beta", [0.1, -0.1])
@pytest.mark.parametrize(("make", "update_slope"), MODELS.values(), ids=MODELS)
def test_the_sum_of_the_continual_updates_approaches_vf_at_first_order_in_eta(
    make, update_slope, beta
):
    model, x, y = make()
    rule = eqprop.VF(beta=beta, free_steps=T, nudged_steps=K, update_slope=update_slope)
    (vf,) = rule.gradients(model, x, y)
    etas = (1e-4, 1e-5, 1e-6)  # η/β is what must be small
    values = [updates(model, x, y, beta, eta, update_slope) for eta in etas]
    assert_order(etas, [{n: v[n].sum(0) for n in vf} for v in values], vf)


def chain(time):
    return eqprop.layered(
        *SIZES, time=time, activation="tanh", init="fan_in", seed=3, dtype=torch.float64
    )


def triangle(time):
    ends = [("input", "a"), ("a", "b"), ("b", "output"), ("a", "output")]
    return eqprop.Network(
        [
            eqprop.Input(3),
            *(eqprop.Layer(n, size, "tanh") for n, size in (("a", 5), ("b", 4), ("output", 2))),
        ],
        [eqprop.Dense(pre, post, bias=True, init="fan_in") for pre, post in ends],
        time=time,
        seed=3,
        dtype=torch.float64,
    )


@pytest.mark.parametrize(
    ("make", "time", "order"),
    [
        (chain, eqprop.RealTime(dt=0.5), 1),
        (triangle, eqprop.RealTime(dt=0.5), 1),
        (triangle, eqprop.Discrete(), 1),
        # VF leaves out Δs_pre·Δs_post: in a discrete chain no two neighbours move at the same
        # step but by second-order effects
        (chain, eqprop.Discrete(), 2),
    ],
)
def test_vf_on_tied_synapses_agrees_with_ep_to_first_order_in_beta(make, time, order):
    net, (x, y) = make(time), batch()
    apart = []
    for beta in BETAS:
        (ep,) = eqprop.EP(beta=beta, free_steps=T, nudged_steps=K).gradients(net, x, y)
        (vf,) = eqprop.VF(beta=beta, free_steps=T, nudged_steps=K).gradients(net, x, y)
        apart.append({name: vf[name] - ep[name] for name in ep})
    zero = {name: torch.zeros_like(value) for name, value in ep.items()}
    if isinstance(time, eqprop.Discrete):  # ∂Φ/∂θ is linear in s for these: not apart at all
        for name in [name for name in zero if name == "synapses.0.weight" or "bias" in name]:
            assert apart[-1][name].norm() < ROUNDING
            del zero[name]
    assert_order(BETAS, apart, zero, order)

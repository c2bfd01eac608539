"""Oracle: theorem and rate. Theorem 2 (appendix D): C-VF follows BPTT where the Jacobian of F is
symmetric at the steady state, and only there.

The limit β → 0 of C-VF (Lemma "Updates of C-VF") is computed from dense Jacobians: no transpose.
"""

import pytest
import torch

import eqprop

T, K = 320, 8
BETAS = (1e-2, 1e-3, 1e-4)
ORDER = 0.05  # on a fitted slope: the next order is a hundredth of the first, or less
ROUNDING = 1e-10  # on Δ(t) where it is exact: eps/β = 2e-12 for the smallest β, and a margin
SIZES = (3, 8, 6, 2)


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


SYMMETRIC = {
    "real time, tanh, angle 0": real_time_of_angle_zero,
    "real time, sigmoid, angle 0": real_time_sigmoid_of_angle_zero,
    "discrete, linear, angle 0": linear_of_angle_zero,
    "asymmetric weights, symmetric Jacobian": asymmetric_weights_with_a_symmetric_jacobian,
}


def flat_transition(model, x, theta=None):
    """F as a function of the whole batch's state in one vector."""

    def transition(flat):
        s, start = [], 0
        for n in model.layer_sizes:
            s.append(flat[start : start + len(x) * n].reshape(len(x), n))
            start += len(x) * n
        return flatten(torch.func.functional_call(model, theta or {}, (x, tuple(s))))

    return transition


def flatten(s):
    return torch.cat([layer.flatten() for layer in s])


def jacobian(model, x, s):
    return torch.func.jacrev(flat_transition(model, x))(flatten(s))


def asymmetry(J):
    return float((J - J.T).norm() / J.norm())


def limit_of_updates(model, x, y, synapses=None):
    """−Δ^C-VF(t) for β, η → 0: v(t+1) = J·v(t) and (∂F/∂θ)ᵀ·v(t), t = 0 … K−1.

    The synapses' index is one less than in the paper's lemma, as everywhere in the library.
    `synapses` is the model whose ∂F/∂θ they take: this one, if it is not given.
    """
    s = eqprop.relax(model, x, T).state
    J = jacobian(model, x, s)
    source = synapses or model
    theta = {name: p.detach() for name, p in source.named_parameters()}
    slopes = torch.func.jacrev(lambda theta: flat_transition(source, x, theta)(flatten(s)))(theta)
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


def updates(model, x, y, beta, learning_rates=None):
    """−Δ(t) of C-VF."""
    rule = eqprop.ContinualVF(beta=beta, free_steps=T, nudged_steps=K)
    process = eqprop.time_resolved(model, rule, x, y, learning_rates=learning_rates)
    return {**process.neurons, **process.synapses}


def gradients_of_bptt(model, x, y):
    rule = eqprop.BPTT(free_steps=T, backward_steps=K)
    process = eqprop.time_resolved(model, rule, x, y)
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


@pytest.mark.parametrize("make", SYMMETRIC.values(), ids=SYMMETRIC)
def test_with_a_symmetric_jacobian_the_updates_follow_bptt_to_first_order_in_beta(make):
    model, x, y = make()
    assert asymmetry(jacobian(model, x, eqprop.relax(model, x, T).state)) < 1e-12
    values = [updates(model, x, y, beta) for beta in BETAS]
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


@pytest.mark.parametrize("angle", [0.0, 90.0])
def test_discrete_updates_approach_the_jacobian_process_with_sigma_prime_dropped(angle):
    model = untied(angle, eqprop.Discrete())
    x, y = batch()
    without_sigma = untied(angle, eqprop.Discrete(), "identity")  # its ∂F/∂θ has no σ'
    without_sigma.load_state_dict(model.state_dict())
    values = [updates(model, x, y, beta) for beta in BETAS]
    assert_order(BETAS, values, limit_of_updates(model, x, y, synapses=without_sigma))


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
    "discrete, 90°": lambda: (untied(90.0, eqprop.Discrete()), *batch()),
    "real time, 45°": lambda: (untied(45.0, eqprop.RealTime(dt=0.5), "sigmoid"), *batch()),
    "user's field": asymmetric_weights_with_a_symmetric_jacobian,
}


@pytest.mark.parametrize("beta", [0.3, -0.1])
@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
def test_vf_is_the_sum_of_the_continual_updates_at_fixed_weights(make, beta):
    model, x, y = make()
    (vf,) = eqprop.VF(beta=beta, free_steps=T, nudged_steps=K).gradients(model, x, y)
    continual = eqprop.ContinualVF(beta=beta, free_steps=T, nudged_steps=K)
    updates = list(continual.gradients(model, x, y))
    assert len(updates) == K
    for name in vf:
        summed = sum(update[name] for update in updates)
        torch.testing.assert_close(summed, vf[name], rtol=0, atol=1e-13)  # K terms, eps/β each
        assert vf[name].norm() > 1e-3, f"{name}: nothing to compare"


@pytest.mark.slow
@pytest.mark.parametrize("beta", [0.1, -0.1])
@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
def test_the_sum_of_the_continual_updates_approaches_vf_at_first_order_in_eta(make, beta):
    model, x, y = make()
    (vf,) = eqprop.VF(beta=beta, free_steps=T, nudged_steps=K).gradients(model, x, y)
    etas = (1e-4, 1e-5, 1e-6)  # η/β is what must be small
    values = [updates(model, x, y, beta, learning_rates=eta) for eta in etas]
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

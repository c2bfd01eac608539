"""Oracle: rate and identity. The three lemmas of appendix A, step by step; and before them the
updates themselves at finite β and η, against the equations of appendix E written out.

C-EP ↔ EP     Δ^C-EP(β, η, t) − Δ^EP(β, t) is of first order in η    Lemma ep-cep
EP ↔ RBP      Δ^EP(β, t) + ∇^RBP(t) is of first order in β           Lemma ep-rbp
BPTT ↔ RBP    ∇^BPTT(t) = ∇^RBP(t) as long as the state is settled   Lemma bptt-rbp
"""

import pytest
import torch

import eqprop

T, K = 200, 8  # every model here contracts by 0.85 or faster a step: 0.85²⁰⁰ = 8e-15
ORDER = 0.05  # on a fitted slope: the next order is a hundredth of the first, or less
ROUNDING = 1e-10  # on Δ(t) where it is exact: eps/β = 2e-12 for the smallest β, and a margin


def phi(x, s, theta):
    """A Φ of a user's own, nonlinear in s and in θ: F contracts because its weights are small."""
    hidden, output = s
    pull = 0.1 * (hidden**2).sum(-1) + 0.05 * (output**2).sum(-1)
    pair = (torch.sin(hidden @ theta["weight"]) * output).sum(-1)
    return pull + pair + (torch.tanh(x @ torch.exp(theta["drive"])) * hidden).sum(-1)


def primitive():
    source = torch.Generator().manual_seed(5)
    return eqprop.Primitive(
        phi,
        parameters={
            "weight": 0.25 * torch.randn(4, 2, generator=source, dtype=torch.float64),
            "drive": 0.5 * torch.randn(3, 4, generator=source, dtype=torch.float64),
        },
        layers={"hidden": 4, "output": 2},
    )


def real_time(*sizes, activation="tanh"):
    return eqprop.layered(
        *sizes,
        time=eqprop.RealTime(dt=0.4),
        activation=activation,
        init="fan_in",
        seed=1,
        dtype=torch.float64,
    )


def discrete(*sizes):
    return eqprop.layered(*sizes, activation="tanh", init="fan_in", seed=1, dtype=torch.float64)


GRADIENT_MODELS = {  # those with F = ∂Φ/∂s
    "real time": lambda: real_time(3, 4, 2),
    "real time, two hidden": lambda: real_time(3, 4, 3, 2),
    "real time, sigmoid": lambda: real_time(3, 4, 2, activation="sigmoid"),
    "user's primitive": primitive,
}
MODELS = {
    **GRADIENT_MODELS,
    "discrete": lambda: discrete(3, 4, 2),
    "discrete, two hidden": lambda: discrete(3, 4, 3, 2),
}
on_gradient_models = pytest.mark.parametrize("make", GRADIENT_MODELS.values(), ids=GRADIENT_MODELS)
on_all_models = pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)


def batch():
    source = torch.Generator().manual_seed(3)
    x = 2 * torch.rand(3, 3, generator=source, dtype=torch.float64) - 1
    return x, torch.rand(3, 2, generator=source, dtype=torch.float64)


def error_at_each_step(a, b):
    """‖a(t) − b(t)‖ of every layer and every parameter, [K] each."""
    a, b = {**a.neurons, **a.synapses}, {**b.neurons, **b.synapses}
    assert a.keys() == b.keys()
    return {name: (a[name] - b[name]).flatten(1).norm(dim=1) for name in a}


def assert_first_order(rates, errors, last_exact):
    """Each error falls as the rate to the power 1, at every t.

    Only in the steps 0 … last_exact may an error vanish instead: the nudge takes that long to
    reach the layer farthest from the output.
    """
    u = torch.tensor(rates, dtype=torch.float64).log()
    u = u - u.mean()
    for name in errors[0]:
        error = torch.stack([e[name] for e in errors])  # [rates, K]
        exact = (error < ROUNDING).all(0)
        assert not exact[last_exact + 1 :].any(), f"{name} vanishes at late t: {error}"
        slope = (u[:, None] * error[:, ~exact].log()).sum(0) / (u * u).sum()
        torch.testing.assert_close(
            slope,
            torch.ones_like(slope),
            rtol=0,
            atol=ORDER,
            msg=lambda text, name=name, slope=slope: f"{name}, slopes {slope.tolist()}: {text}",
        )


def written_out(net, x, y, beta, eta):
    """C-EP (tied) or C-VF (untied) of a tanh network with one hidden layer, by the paper's
    equations: −Δ(t) of every layer and parameter, with θ moving by η Δ(t).
    """
    tied, real = net.synapses[1].tied, isinstance(net.time, eqprop.RealTime)
    dt = net.time.dt if real else 1.0
    theta = {name: p.clone() for name, p in net.named_parameters()}
    Wx, bx, W, b = (f"synapses.{k}.{field}" for k in (0, 1) for field in ("weight", "bias"))

    def slope(s):
        return 1 - torch.tanh(s) ** 2 if real else 1.0  # the paper drops it in discrete time

    def rate(s):
        return torch.tanh(s) if real else s

    def step(s, drive):
        return (1 - dt) * s + dt * slope(s) * drive if real else torch.tanh(drive)

    def transition(hidden, output):
        back = theta[W].T if tied else theta["synapses.1.backward_weight"]
        return (
            step(hidden, rate(x) @ theta[Wx] + theta[bx] + rate(output) @ back),
            step(output, rate(hidden) @ theta[W] + theta[b]),
        )

    hidden, output = (torch.zeros(len(x), n, dtype=torch.float64) for n in net.layer_sizes)
    for _ in range(T):
        hidden, output = transition(hidden, output)
    items = []
    for _ in range(K):
        h, o = transition(hidden, output)
        o = o - beta * dt * (output - y)
        dh, do = h - hidden, o - output
        if tied:
            (rh, ro), (rh_next, ro_next) = map(rate, (hidden, output)), map(rate, (h, o))
            change = {
                Wx: rate(x).T @ (rh_next - rh),
                bx: (rh_next - rh).sum(0),
                W: rh_next.T @ ro_next - rh.T @ ro,
                b: (ro_next - ro).sum(0),
            }
        else:
            change = {
                Wx: rate(x).T @ (slope(hidden) * dh),
                bx: (slope(hidden) * dh).sum(0),
                W: rate(hidden).T @ (slope(output) * do),
                b: (slope(output) * do).sum(0),
                "synapses.1.backward_weight": rate(output).T @ (slope(hidden) * dh),
            }
        change = {name: value / (beta * len(x)) for name, value in change.items()}
        neurons = {"hidden": dh / (beta * dt), "output": do / (beta * dt)}
        items.append({name: -value for name, value in {**neurons, **change}.items()})
        for name, value in change.items():
            theta[name] = theta[name] + eta * value
        hidden, output = h, o
    return {name: torch.stack([item[name] for item in items]) for name in items[0]}


@pytest.mark.parametrize("beta", [0.4, -0.2])
@pytest.mark.parametrize("time", [eqprop.Discrete(), eqprop.RealTime(dt=0.4)], ids=str)
@pytest.mark.parametrize("tied", [True, False])
def test_updates_at_finite_beta_and_eta_are_those_of_the_written_equations(tied, time, beta):
    net = eqprop.layered(
        *(3, 4, 2),
        tied=tied,
        angle=0.0 if tied else 70.0,
        time=time,
        activation="tanh",
        init="fan_in",
        seed=1,
        dtype=torch.float64,
    )
    x, y = batch()
    rule = eqprop.ContinualEP if tied else eqprop.ContinualVF
    rule = rule(beta=beta, free_steps=T, nudged_steps=K)
    process = eqprop.time_resolved(net, rule, x, y, learning_rates=0.05)
    expected = written_out(net, x, y, beta, eta=0.05)
    assert expected.keys() == {**process.neurons, **process.synapses}.keys()
    for name, value in {**process.neurons, **process.synapses}.items():
        # the same sums in another order: eps/β, carried through K steps
        torch.testing.assert_close(value, expected[name], rtol=0, atol=1e-13)


@pytest.mark.slow
@on_all_models
@pytest.mark.parametrize("beta", [0.1, -0.1])
def test_continual_updates_approach_those_of_ep_at_first_order_in_eta(make, beta):
    model, (x, y) = make(), batch()
    ep = eqprop.time_resolved(model, eqprop.EP(beta=beta, free_steps=T, nudged_steps=K), x, y)
    rule = eqprop.ContinualEP(beta=beta, free_steps=T, nudged_steps=K)
    etas = (1e-4, 1e-5, 1e-6)  # η/β is what must be small
    errors = [
        error_at_each_step(eqprop.time_resolved(model, rule, x, y, learning_rates=eta), ep)
        for eta in etas
    ]
    # θ_1 differs by η Δ_θ(0), so that s_2 and Δ(1) are the first to feel η
    assert_first_order(etas, errors, last_exact=len(model.layer_sizes) - 1)
    assert all(float(e[0].max()) == 0 for e in errors[0].values())


@on_all_models
@pytest.mark.parametrize("beta", [0.3, -0.1])
def test_continual_updates_at_fixed_theta_add_up_to_the_one_update_of_ep(make, beta):
    model, (x, y) = make(), batch()
    (ep,) = eqprop.EP(beta=beta, free_steps=T, nudged_steps=K).gradients(model, x, y)
    continual = eqprop.ContinualEP(beta=beta, free_steps=T, nudged_steps=K)
    updates = list(continual.gradients(model, x, y))
    assert len(updates) == K
    for name in ep:
        summed = sum(update[name] for update in updates)
        # a telescopic sum: exact but for the rounding of its K terms, eps/β each
        torch.testing.assert_close(summed, ep[name], rtol=0, atol=1e-13)
        assert ep[name].norm() > 1e-3, f"{name}: nothing to compare"


@pytest.mark.slow
@on_gradient_models
@pytest.mark.parametrize("sign", [1, -1])
def test_updates_of_ep_approach_the_gradients_of_rbp_at_first_order_in_beta(make, sign):
    model, (x, y) = make(), batch()
    rbp = eqprop.time_resolved(model, eqprop.RBP(free_steps=T, backward_steps=K), x, y)
    betas = (1e-2, 1e-3, 1e-4)
    errors = []
    for beta in betas:
        rule = eqprop.EP(beta=sign * beta, free_steps=T, nudged_steps=K)
        errors.append(error_at_each_step(eqprop.time_resolved(model, rule, x, y), rbp))
    assert_first_order(betas, errors, last_exact=len(model.layer_sizes) - 1)


@pytest.mark.slow
@on_gradient_models
def test_the_total_of_ep_approaches_the_total_of_rbp_at_first_order_in_beta(make):
    model, (x, y) = make(), batch()
    (rbp,) = eqprop.RBP(free_steps=T).gradients(model, x, y)
    betas = (1e-2, 1e-3, 1e-4)
    errors = []
    for beta in betas:
        (ep,) = eqprop.EP(beta=beta, free_steps=T, nudged_steps=100).gradients(model, x, y)
        errors.append({name: (ep[name] - rbp[name]).norm()[None] for name in rbp})
    assert_first_order(betas, errors, last_exact=-1)


@pytest.mark.slow
@on_all_models
def test_bptt_and_rbp_are_equal_for_the_steps_in_which_the_state_stood_still(make):
    model, (x, y) = make(), batch()
    settled = eqprop.relax(model, x, T - K)
    assert settled.residual < 1e-12
    bptt = eqprop.time_resolved(model, eqprop.BPTT(free_steps=T, backward_steps=K), x, y)
    rbp = eqprop.time_resolved(model, eqprop.RBP(free_steps=T, backward_steps=K), x, y)
    for name, error in error_at_each_step(bptt, rbp).items():
        assert error.max() < 1e-11, name  # the residual, and K products of matrices near 1
    for process in (bptt.neurons, bptt.synapses):
        assert all(value.norm() > 1e-3 for value in process.values())


@on_all_models
def test_bptt_and_rbp_differ_for_the_steps_in_which_the_state_moved(make):
    model, (x, y) = make(), batch()
    steps = 60
    bptt = eqprop.time_resolved(model, eqprop.BPTT(free_steps=steps), x, y).synapses
    rbp = eqprop.time_resolved(model, eqprop.RBP(free_steps=steps), x, y).synapses
    last, first = (
        max(float(eqprop.relative_error(bptt[name][t], rbp[name][t])) for name in rbp)
        for t in (0, steps - 1)
    )
    assert last < 1e-3  # t = 0: the last step of the free phase, where it had settled
    assert first > 0.1  # t = T − 1: its first step, from s_0 = 0


@on_all_models
def test_bptt_and_rbp_differ_in_total_after_too_short_a_free_phase(make):
    model, (x, y) = make(), batch()
    bptt = eqprop.time_resolved(model, eqprop.BPTT(free_steps=4), x, y)
    rbp = eqprop.time_resolved(model, eqprop.RBP(free_steps=4), x, y)
    assert rbp.free.residual > 1e-3
    for name, gradient in rbp.total().items():
        assert eqprop.relative_error(bptt.total()[name], gradient) > 0.01, name

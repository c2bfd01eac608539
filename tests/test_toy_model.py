"""Oracle: closed form. Every formula of appendix C, on the scalar model s' = ½(s + θ), ℓ = ½s².

What a rule yields points uphill, so it is −Δ of the paper. The longest free phase has T = 60
steps: 2⁻⁶⁰ is below the rounding of θ, so that s_T = s_* = θ to the rounding of float64.
"""

import pytest
import torch

import eqprop

THETA = 1.3
T, K = 60, 12
ATOL = 1e-12  # values near 1 are rounded at 2e-16 a step, and Δ divides that by β ≥ 0.01
X = torch.zeros(1, 1, dtype=torch.float64)  # the model ignores x
Y = torch.zeros(1, 1, dtype=torch.float64)  # ℓ = ½(s − 0)²

BETAS = (0.01, 0.2, 0.5, 0.9, -0.01, -0.2, -0.4)
BETAS_ETAS = ((0.2, 0.02), (0.2, 0.3), (0.01, 1e-4), (0.5, 0.1), (-0.2, 0.02), (-0.01, 1e-4))


def close(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=0, atol=ATOL)


def powers(ratio, steps, first=0):
    return torch.tensor(ratio, dtype=torch.float64) ** torch.arange(first, first + steps)


def nudged_states(beta, steps):
    """s_0^β … s_steps^β of EP."""
    return THETA / (1 + 2 * beta) * (1 + 2 * beta * powers(0.5 - beta, steps + 1))


def continual_states(beta, eta, steps):
    """s_0^{β,η} … s_steps^{β,η} of C-EP."""
    rest = 1 - eta / (2 * beta)
    decay = powers(0.5, steps + 1) * powers(1 - 2 * beta + eta / (2 * beta), steps + 1)
    return THETA / (rest + 2 * beta) * (rest + 2 * beta * decay)


def continual_parameters(beta, eta, steps):
    """θ_0^{β,η} … θ_steps^{β,η} of C-EP."""
    return THETA + eta / (2 * beta) * (continual_states(beta, eta, steps) - THETA)


@pytest.mark.parametrize("t", [1, 2, 3, 10, T])
def test_free_phase_is_theta_times_one_minus_a_half_to_the_t(t):
    free = eqprop.relax(eqprop.toy_model(THETA), X, t)
    close(free.state[0].flatten(), THETA * (1 - powers(0.5, 1, first=t)))
    assert free.residual == pytest.approx(THETA * 0.5**t, rel=1e-6, abs=1e-15)


@pytest.mark.parametrize("steps", [1, 5, T])
def test_bptt_gradients_halve_with_every_step_back_from_the_last_state(steps):
    process = eqprop.time_resolved(eqprop.toy_model(THETA), eqprop.BPTT(free_steps=steps), X, Y)
    s_last = THETA * (1 - 0.5**steps)
    close(process.neurons["s"].flatten(), s_last * powers(0.5, steps))
    close(process.synapses["theta"], s_last * powers(0.5, steps, first=1))


def test_rbp_gradients_halve_with_every_step_from_the_steady_state():
    process = eqprop.time_resolved(
        eqprop.toy_model(THETA), eqprop.RBP(free_steps=T, backward_steps=K), X, Y
    )
    close(process.neurons["s"].flatten(), THETA * powers(0.5, K))
    close(process.synapses["theta"], THETA * powers(0.5, K, first=1))


@pytest.mark.parametrize("rule", [eqprop.EP, eqprop.VF])
@pytest.mark.parametrize("beta", BETAS)
def test_ep_follows_its_closed_form(rule, beta):
    rule = rule(beta=beta, free_steps=T, nudged_steps=K)
    process = eqprop.time_resolved(eqprop.toy_model(THETA), rule, X, Y)
    moves = -process.neurons["s"].flatten()  # Δ_s(β, t)
    close(moves, -THETA * powers(0.5, K) * powers(1 - 2 * beta, K))
    close(-process.synapses["theta"], -THETA * powers(0.5, K, first=1) * powers(1 - 2 * beta, K))
    trajectory = THETA + beta * torch.cumsum(moves, 0)
    close(trajectory, nudged_states(beta, K)[1:])


@pytest.mark.parametrize("rule", [eqprop.ContinualEP, eqprop.ContinualVF])
@pytest.mark.parametrize("beta", BETAS)
def test_the_continual_rules_at_fixed_theta_follow_the_closed_form_of_ep(rule, beta):
    rule = rule(beta=beta, free_steps=T, nudged_steps=K)
    process = eqprop.time_resolved(eqprop.toy_model(THETA), rule, X, Y)
    close(process.neurons["s"].flatten(), THETA * powers(0.5 - beta, K))
    close(process.synapses["theta"], 0.5 * THETA * powers(0.5 - beta, K))


@pytest.mark.parametrize("rule", [eqprop.ContinualEP, eqprop.ContinualVF])
@pytest.mark.parametrize(("beta", "eta"), BETAS_ETAS)
def test_continual_ep_follows_its_closed_form_as_its_consumer_moves_theta(rule, beta, eta):
    model = eqprop.toy_model(THETA)
    parameters, moves = [model.theta.item()], []
    for step in rule(beta=beta, free_steps=T, nudged_steps=K).steps(model, X, Y):
        moves.append(-step.neurons[0].item())
        model.theta.sub_(eta * step.synapses["theta"])
        parameters.append(model.theta.item())
    moves = torch.tensor(moves, dtype=torch.float64)  # Δ_s(β, η, t)
    parameters = torch.tensor(parameters, dtype=torch.float64)
    close(moves, -THETA * powers(0.5, K) * powers(1 - 2 * beta + eta / (2 * beta), K))
    close(THETA + beta * torch.cumsum(moves, 0), continual_states(beta, eta, K)[1:])
    close(parameters, continual_parameters(beta, eta, K))


@pytest.mark.parametrize("rule", [eqprop.ContinualEP, eqprop.ContinualVF])
@pytest.mark.parametrize(("beta", "eta"), BETAS_ETAS)
def test_time_resolved_with_a_learning_rate_is_the_continual_closed_form(rule, beta, eta):
    rule = rule(beta=beta, free_steps=T, nudged_steps=K)
    process = eqprop.time_resolved(eqprop.toy_model(THETA), rule, X, Y, learning_rates=eta)
    expected = -THETA * powers(0.5, K) * powers(1 - 2 * beta + eta / (2 * beta), K)
    close(-process.neurons["s"].flatten(), expected)
    close(-process.synapses["theta"], 0.5 * expected)  # Δ_θ = ½ Δ_s


@pytest.mark.parametrize("rule", [eqprop.ContinualEP, eqprop.ContinualVF])
@pytest.mark.parametrize(("beta", "eta"), BETAS_ETAS)
def test_one_engine_step_of_a_continual_rule_ends_at_theta_K(rule, beta, eta):
    model = eqprop.toy_model(THETA)
    rule = rule(beta=beta, free_steps=T, nudged_steps=K)
    output = eqprop.make_engine(model, rule, learning_rates=eta).step(X, Y)
    close(model.theta, continual_parameters(beta, eta, K)[-1])
    close(output, torch.full_like(output, THETA))  # of the free phase, not of the nudged one


@pytest.mark.parametrize(("beta", "eta"), BETAS_ETAS)
def test_one_engine_step_with_rescaling_applies_eta_to_the_updates_of_the_tiny_rate(beta, eta):
    share = 0.01
    model = eqprop.toy_model(THETA)
    rule = eqprop.ContinualEP(beta=beta, free_steps=T, nudged_steps=K, rescale=share)
    eqprop.make_engine(model, rule, learning_rates=eta).step(X, Y)
    moved = continual_parameters(beta, share * eta, K)[-1] - THETA
    close(model.theta, THETA + moved / share)


@pytest.mark.parametrize("rule", [eqprop.EP, eqprop.VF])
@pytest.mark.parametrize(("beta", "eta"), BETAS_ETAS)
def test_one_engine_step_of_ep_moves_theta_once_by_the_whole_difference(rule, beta, eta):
    model = eqprop.toy_model(THETA)
    rule = rule(beta=beta, free_steps=T, nudged_steps=K)
    eqprop.make_engine(model, rule, learning_rates=eta).step(X, Y)
    close(model.theta, THETA + eta / (2 * beta) * (nudged_states(beta, K)[-1] - THETA))


@pytest.mark.parametrize("rule", [eqprop.BPTT, eqprop.RBP])
def test_one_engine_step_of_bptt_and_rbp_descends_the_gradient_of_half_theta_squared(rule):
    model = eqprop.toy_model(THETA)
    eqprop.make_engine(model, rule(free_steps=T), learning_rates=0.1).step(X, Y)
    close(model.theta, torch.tensor(THETA * (1 - 0.1), dtype=torch.float64))


def test_the_gradient_of_a_batch_is_the_mean_over_its_samples():
    targets = torch.tensor([[0.0], [0.6], [-2.0]], dtype=torch.float64)
    x = torch.zeros(3, 1, dtype=torch.float64)
    beta = 0.2
    rule = eqprop.EP(beta=beta, free_steps=T, nudged_steps=K)
    process = eqprop.time_resolved(eqprop.toy_model(THETA), rule, x, targets)
    decay = powers(0.5 - beta, K)
    close(process.neurons["s"][..., 0], decay[:, None] * (THETA - targets[:, 0]))
    close(process.synapses["theta"], 0.5 * decay * (THETA - targets.mean()))

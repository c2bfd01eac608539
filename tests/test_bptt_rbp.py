"""Oracle: identity. BPTT is autograd through the unrolled free phase; RBP is the implicit
function theorem, with dense Jacobians, and the gradient of the projected cost (appendix B).
"""

import functools
import weakref

import pytest
import torch

import eqprop

RTOL, ATOL = 1e-10, 1e-13  # two orders of summation of the same numbers, in float64
SETTLED = 250  # steps after which every network here stands still to 1e-15


def layered(tied, time, activation="sigmoid"):
    return eqprop.layered(
        3,
        5,
        4,
        2,
        tied=tied,
        angle=0.0 if tied else 60.0,
        time=time,
        activation=activation,
        init="fan_in",
        seed=2,
        dtype=torch.float64,
    )


NETWORKS = {
    "tied, discrete": lambda: layered(True, eqprop.Discrete()),
    "untied, discrete": lambda: layered(False, eqprop.Discrete()),
    "tied, real time": lambda: layered(True, eqprop.RealTime(dt=0.4)),
    "untied, real time": lambda: layered(False, eqprop.RealTime(dt=0.4)),
    "untied, real time, no slope": lambda: layered(False, eqprop.RealTime(dt=0.4, slope="none")),
}
on_networks = pytest.mark.parametrize("make", NETWORKS.values(), ids=NETWORKS)


def batch():
    source = torch.Generator().manual_seed(7)
    x = 2 * torch.rand(4, 3, generator=source, dtype=torch.float64) - 1
    return x, torch.rand(4, 2, generator=source, dtype=torch.float64)


def loss(output, y):
    """½‖output − y‖², summed over the batch."""
    return 0.5 * ((output - y) ** 2).sum()


def copies(net, number):
    """θ_1, θ_2, …: one differentiable copy of the parameters a time step."""
    return [
        {name: p.detach().clone().requires_grad_() for name, p in net.named_parameters()}
        for _ in range(number)
    ]


def unroll(net, x, s, thetas):
    """s_0, s_1, …, with s_t = F(x, s_{t−1}, θ_t)."""
    states = [tuple(layer.clone().requires_grad_() for layer in s)]
    for theta in thetas:
        states.append(torch.func.functional_call(net, theta, (x, states[-1])))
    return states


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


@on_networks
@pytest.mark.parametrize("steps", [1, 3, 12])
def test_bptt_is_autograd_through_the_unrolled_free_phase(make, steps):
    net, (x, y) = make(), batch()
    (gradients,) = eqprop.BPTT(free_steps=steps).gradients(net, x, y)
    net.requires_grad_(True)
    s = net.initial_state(x)
    for _ in range(steps):
        s = net(x, s)
    (loss(s[-1], y) / len(x)).backward()  # the mean over the batch
    assert_gradients_close(
        gradients,
        {
            name: torch.zeros_like(p) if p.grad is None else p.grad
            for name, p in net.named_parameters()
        },
    )


@on_networks
def test_bptt_at_each_time_is_autograd_with_a_copy_of_theta_at_each_step(make):
    net, (x, y) = make(), batch()
    steps = 7
    process = eqprop.time_resolved(net, eqprop.BPTT(free_steps=steps), x, y)
    thetas = copies(net, steps)
    states = unroll(net, x, net.initial_state(x), thetas)
    total = loss(states[-1][-1], y)
    for t in range(steps):
        theta = thetas[steps - t - 1]  # θ_{T−t}; the list starts with θ_1
        wanted = (*states[steps - t], *theta.values())
        grads = torch.autograd.grad(
            total, wanted, retain_graph=True, allow_unused=True, materialize_grads=True
        )
        for i, name in enumerate(net.layer_names):
            torch.testing.assert_close(process.neurons[name][t], grads[i], rtol=RTOL, atol=ATOL)
        expected = dict(zip(theta, (g / len(x) for g in grads[len(net.layers) :]), strict=True))
        assert_gradients_close({n: v[t] for n, v in process.synapses.items()}, expected)


@on_networks
def test_truncated_bptt_is_autograd_from_a_detached_state_on(make):
    net, (x, y) = make(), batch()
    steps, kept = 9, 4
    (gradients,) = eqprop.BPTT(free_steps=steps, backward_steps=kept).gradients(net, x, y)
    full = eqprop.time_resolved(net, eqprop.BPTT(free_steps=steps), x, y)
    assert_gradients_close(gradients, {n: v[:kept].sum(0) for n, v in full.synapses.items()})
    (theta,) = copies(net, 1)
    start = eqprop.relax(net, x, steps - kept).state
    states = unroll(net, x, start, [theta] * kept)
    loss(states[-1][-1], y).backward()
    assert_gradients_close(gradients, {name: p.grad / len(x) for name, p in theta.items()})


def flat_transition(net, x, shapes, theta=None):
    """F as a function of the whole batch's state in one vector."""

    def transition(flat):
        parts = flat.split([shape.numel() for shape in shapes])
        s = tuple(part.reshape(shape) for part, shape in zip(parts, shapes, strict=True))
        return flatten(torch.func.functional_call(net, theta or {}, (x, s)))

    return transition


def flatten(s):
    return torch.cat([layer.flatten() for layer in s])


@on_networks
def test_the_total_of_rbp_is_the_gradient_of_the_implicit_function_theorem(make):
    net, (x, y) = make(), batch()
    s = eqprop.relax(net, x, SETTLED).state
    shapes = [layer.shape for layer in s]
    J = torch.func.jacrev(flat_transition(net, x, shapes))(flatten(s))
    theta = {name: p.detach() for name, p in net.named_parameters()}
    slopes = torch.func.jacrev(lambda th: flat_transition(net, x, shapes, th)(flatten(s)))(theta)
    error = flatten((*(torch.zeros_like(layer) for layer in s[:-1]), s[-1] - y))
    adjoint = torch.linalg.solve((torch.eye(len(J), dtype=torch.float64) - J).T, error)
    expected = {n: torch.tensordot(adjoint, slope, dims=1) / len(x) for n, slope in slopes.items()}
    (gradients,) = eqprop.RBP(free_steps=SETTLED).gradients(net, x, y)
    assert_gradients_close(gradients, expected)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tied, discrete", "untied, real time"])
def test_the_total_of_rbp_is_the_finite_difference_of_the_loss_at_the_steady_state(name):
    net, (x, y) = NETWORKS[name](), batch()
    (gradients,) = eqprop.RBP(free_steps=SETTLED).gradients(net, x, y)
    source = torch.Generator().manual_seed(0)
    for name, parameter in net.named_parameters():
        direction = torch.randn(parameter.shape, generator=source, dtype=torch.float64)
        losses = []
        for h in (1e-5, -1e-5):
            parameter.add_(h * direction)
            losses.append(loss(eqprop.relax(net, x, SETTLED).state[-1], y) / len(x))
            parameter.sub_(h * direction)
        slope = (losses[0] - losses[1]) / 2e-5
        # a central difference: h² = 1e-10 from the third derivative, eps/h = 1e-11 from rounding
        assert slope.item() == pytest.approx((gradients[name] * direction).sum().item(), abs=1e-8)


@on_networks
def test_rbp_at_each_time_is_the_gradient_of_the_projected_cost(make):
    net, (x, y) = make(), batch()
    steps = 6
    process = eqprop.time_resolved(net, eqprop.RBP(free_steps=SETTLED, backward_steps=steps), x, y)
    steady = process.free.state
    for t in range(steps):
        thetas = copies(net, t + 1)
        states = unroll(net, x, steady, thetas)  # s_0 = s_*, projected t + 1 steps ahead
        by_state = torch.autograd.grad(
            loss(states[t][-1], y),
            states[0],
            retain_graph=True,
            allow_unused=True,
            materialize_grads=True,
        )  # ∂L_t/∂s_0
        for i, name in enumerate(net.layer_names):
            torch.testing.assert_close(process.neurons[name][t], by_state[i], rtol=RTOL, atol=ATOL)
        by_theta = torch.autograd.grad(
            loss(states[t + 1][-1], y),
            tuple(thetas[0].values()),
            allow_unused=True,
            materialize_grads=True,
        )  # ∂L_{t+1}/∂θ of the first step: t + 1 is the paper's index of the same gradient
        expected = dict(zip(thetas[0], (g / len(x) for g in by_theta), strict=True))
        assert_gradients_close({n: v[t] for n, v in process.synapses.items()}, expected)


def states_alive_after_the_free_phase(rule):
    net, (x, y) = NETWORKS["tied, discrete"](), batch()
    states = []
    net.register_forward_hook(lambda module, args, s: states.append(weakref.ref(s[-1])))
    stream = rule.steps(net, x, y)
    return sum(state() is not None for state in states), stream


@pytest.mark.parametrize("steps", [10, 100])
def test_rbp_keeps_the_steady_state_alone_in_memory(steps):
    alive, stream = states_alive_after_the_free_phase(eqprop.RBP(free_steps=steps))
    assert alive == 1
    assert stream.free.history == ()


@pytest.mark.parametrize(("steps", "kept"), [(10, 10), (100, 7)])
def test_bptt_keeps_the_trajectory_of_its_backward_steps_in_memory(steps, kept):
    alive, stream = states_alive_after_the_free_phase(
        eqprop.BPTT(free_steps=steps, backward_steps=kept)
    )
    assert len(stream.free.history) == kept
    assert alive == min(kept + 1, steps)  # s_T too; s_0 does not come out of the network


ENOUGH = 160  # steps after which the two models below stand still to 1e-15


def cross_entropy(output, y):
    return torch.nn.functional.cross_entropy(output, y, reduction="none")


def smooth_l1(output, y):
    return torch.nn.functional.smooth_l1_loss(output, y, beta=0.5, reduction="none").sum(-1)


def phi(x, s, theta):
    """A Φ of a user's own, not quadratic."""
    hidden, output = s
    pull = 0.1 * (hidden**2).sum(-1) + 0.05 * (output**2).sum(-1)
    pair = (torch.sin(hidden @ theta["weight"]) * output).sum(-1)
    return pull + pair + (torch.tanh(x @ theta["drive"]) * hidden).sum(-1)


def primitive():
    source = torch.Generator().manual_seed(5)
    return eqprop.Primitive(
        phi,
        parameters={
            "weight": 0.25 * torch.randn(4, 2, generator=source, dtype=torch.float64),
            "drive": torch.randn(3, 4, generator=source, dtype=torch.float64),
        },
        layers={"hidden": 4, "output": 2},
    )


def real_time():
    return layered(True, eqprop.RealTime(dt=0.5), "tanh")


@functools.cache
def with_bptt(make, cost):
    """A minibatch, and BPTT's gradient of this cost."""
    model, (x, y) = make(), batch()
    y = y.argmax(-1) if cost is cross_entropy else y
    (bptt,) = eqprop.BPTT(free_steps=ENOUGH).gradients(model, x, y, cost)
    return x, y, bptt


@pytest.mark.slow
@pytest.mark.parametrize("make", [primitive, real_time])
@pytest.mark.parametrize("cost", [cross_entropy, smooth_l1])
def test_rbp_equals_bptt_for_a_cost_of_the_users_own(make, cost):
    model, (x, y, bptt) = make(), with_bptt(make, cost)
    (rbp,) = eqprop.RBP(free_steps=ENOUGH).gradients(model, x, y, cost)
    assert_gradients_close(rbp, bptt)
    # and BPTT is autograd through that cost
    model.requires_grad_(True)
    s = model.initial_state(x)
    for _ in range(ENOUGH):
        s = model(x, s)
    cost(s[-1], y).mean().backward()
    assert_gradients_close(bptt, {name: p.grad for name, p in model.named_parameters()})


@pytest.mark.slow
@pytest.mark.parametrize("make", [primitive, real_time])
@pytest.mark.parametrize("cost", [cross_entropy, smooth_l1])
@pytest.mark.parametrize("rule", [eqprop.EP, eqprop.ContinualEP, eqprop.VF, eqprop.ContinualVF])
def test_two_phase_rules_approach_bptt_for_a_cost_of_the_users_own(make, cost, rule):
    model, (x, y, bptt) = make(), with_bptt(make, cost)
    errors = []
    for beta in (1e-3, 1e-4):
        two_phase = rule(beta=beta, free_steps=ENOUGH, nudged_steps=100)
        items = list(two_phase.gradients(model, x, y, cost))
        errors.append(
            {name: (sum(item[name] for item in items) - bptt[name]).norm() for name in bptt}
        )
    for name, large in errors[0].items():
        order = torch.log10(large / errors[1][name])
        assert abs(order - 1) < 0.05, f"{name}: order {order}"  # the next order is a few β of it

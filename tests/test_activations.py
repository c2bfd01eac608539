"""σ and σ'. Oracle: the formulas in plain floats (`math`), torch.autograd for the derivative."""

import math

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

import eqprop
from eqprop import Activation
from eqprop.activations import ACTIVATIONS, as_activation

FORMULAS = {
    "sigmoid": lambda v: 1 / (1 + math.exp(-4 * (v - 0.5))),  # Eq. (sigmoid)
    "tanh": lambda v: (math.exp(v) - math.exp(-v)) / (math.exp(v) + math.exp(-v)),
    "hard_sigmoid": lambda v: min(max(v, 0.0), 1.0),
    "identity": lambda v: v,
}
every_activation = pytest.mark.parametrize("name", FORMULAS)
values = st.lists(st.floats(-6, 6), min_size=1, max_size=6)
EPSILON = 0.3


def bump(v):
    """A user's own σ, with no derivative given. Not monotone, so no built-in one passes for it."""
    return v / (1 + v**2)


def bump_slope(v):
    return (1 - v**2) / (1 + v**2) ** 2


def autograd_slope(sigma, v):
    v = v.clone().requires_grad_()
    return torch.autograd.grad(sigma(v).sum(), v)[0]


def test_there_are_formulas_for_all_of_them():
    assert FORMULAS.keys() == ACTIVATIONS.keys()


@every_activation
@given(values)
def test_the_value_is_the_formula(name, vs):
    actual = as_activation(name)(torch.tensor(vs, dtype=torch.float64))
    # tanh by exponentials cancels near zero: 1e-16 absolute, hence no relative bound
    assert actual.tolist() == pytest.approx([FORMULAS[name](v) for v in vs], rel=1e-14, abs=1e-15)


@every_activation
@given(values)
def test_the_slope_is_autograd_of_the_value(name, vs):
    if name == "hard_sigmoid":
        assume(all(min(abs(v), abs(v - 1)) > 1e-9 for v in vs))
    sigma, v = as_activation(name), torch.tensor(vs, dtype=torch.float64)
    # 4σ(1 − σ) with σ near 1 is rounded at 1e-16 absolute
    torch.testing.assert_close(sigma.slope(v), autograd_slope(sigma, v), rtol=1e-13, atol=1e-15)


def test_the_hard_sigmoid_has_slope_one_on_the_closed_interval_as_autograd():
    v = torch.tensor([-1e-9, 0.0, 0.5, 1.0, 1 + 1e-9], dtype=torch.float64)
    sigma = as_activation("hard_sigmoid")
    assert sigma.slope(v).tolist() == [0, 1, 1, 1, 0]
    assert torch.equal(sigma.slope(v), autograd_slope(sigma, v))


@pytest.mark.slow
@given(values)
def test_a_users_function_gets_its_slope_by_differentiation(vs):
    v = torch.tensor(vs, dtype=torch.float64)
    sigma = as_activation(bump)
    torch.testing.assert_close(sigma(v), bump(v), rtol=0, atol=0)
    torch.testing.assert_close(sigma.slope(v), bump_slope(v), rtol=1e-13, atol=1e-15)


@every_activation
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_value_and_slope_keep_the_precision_of_their_argument(name, dtype):
    v = torch.linspace(-2, 2, 9, dtype=dtype)
    exact = v.double()
    sigma = as_activation(name)
    for function in (sigma, sigma.slope):
        assert function(v).dtype == dtype
        error = (function(v).double() - function(exact)).abs().max()
        assert float(error) <= 8 * torch.finfo(dtype).eps  # a few roundings of numbers below 4


@pytest.mark.parametrize("time", [eqprop.Discrete(), eqprop.RealTime(dt=EPSILON)], ids=str)
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_a_network_runs_on_a_users_function(time, tied):
    net = eqprop.layered(
        3, 4, 2, activation=bump, time=time, tied=tied, angle=0.0 if tied else 50.0,
        init="fan_in", dtype=torch.float64,
    )  # fmt: skip
    source = torch.Generator().manual_seed(0)
    x, h, o = (torch.randn(5, n, generator=source, dtype=torch.float64) for n in (3, 4, 2))
    first, second = net.synapses
    back = second.weight.T if tied else second.backward_weight
    if isinstance(time, eqprop.Discrete):
        expected = (
            bump(x @ first.weight + o @ back + first.bias),
            bump(h @ second.weight + second.bias),
        )
    else:
        drive = bump(x) @ first.weight + bump(o) @ back + first.bias
        output_drive = bump(h) @ second.weight + second.bias
        expected = (
            (1 - EPSILON) * h + EPSILON * bump_slope(h) * drive,
            (1 - EPSILON) * o + EPSILON * bump_slope(o) * output_drive,
        )
    for actual, written in zip(net(x, (h, o)), expected, strict=True):
        torch.testing.assert_close(actual, written, rtol=0, atol=1e-14)


@pytest.mark.parametrize("time", [eqprop.Discrete(), eqprop.RealTime(dt=EPSILON)], ids=str)
@pytest.mark.parametrize(
    "rule",
    [
        eqprop.ContinualEP(beta=0.2, free_steps=6, nudged_steps=3),
        eqprop.ContinualVF(beta=0.2, free_steps=6, nudged_steps=3),
        eqprop.BPTT(free_steps=6),
        eqprop.RBP(free_steps=6),
    ],
    ids=lambda rule: type(rule).__name__,
)
def test_rules_read_the_same_gradients_with_or_without_the_derivative_given(rule, time):
    """BPTT and RBP differentiate σ' once more: the derived one has to be differentiable."""
    source = torch.Generator().manual_seed(0)
    x, y = (torch.randn(5, n, generator=source, dtype=torch.float64) for n in (3, 2))
    derived, given_slope = (
        list(
            rule.gradients(
                eqprop.layered(3, 4, 2, activation=sigma, time=time, dtype=torch.float64), x, y
            )
        )
        for sigma in (bump, Activation("bump", bump, bump_slope))
    )
    for ours, exact in zip(derived, given_slope, strict=True):
        for name in exact:
            assert float(exact[name].abs().max()) > 1e-6
            torch.testing.assert_close(ours[name], exact[name], rtol=0, atol=1e-13)

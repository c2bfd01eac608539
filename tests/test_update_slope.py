"""The three readings of the vector-field update in discrete time, on the reference engine.

Oracles: torch.autograd for "full" and, with each synapse's own σ, for "own"; loops over neurons
and over time, written from the formulas, for whole minibatches.
"""

import copy
import math

import pytest
import torch

import eqprop
from eqprop.model import vjp
from eqprop.runs.recipe import UserError, load
from eqprop.update_slope import UpdateSlope
from tests.test_topologies import a_minibatch, a_network, any_topology

SIGMA = {
    "sigmoid": lambda v: 1 / (1 + math.exp(-4 * (v - 0.5))),
    "tanh": math.tanh,
    "hard_sigmoid": lambda v: min(max(v, 0.0), 1.0),
}
SLOPE = {
    "sigmoid": lambda v: 4 * SIGMA["sigmoid"](v) * (1 - SIGMA["sigmoid"](v)),
    "tanh": lambda v: 1 - math.tanh(v) ** 2,
    "hard_sigmoid": lambda v: float(0 <= v <= 1),
}
every_slope = pytest.mark.parametrize("update_slope", list(UpdateSlope))
every_sigma = pytest.mark.parametrize("sigma", SIGMA)
both_ties = pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])


def close(actual, expected, atol=1e-13):
    """Sums of some twenty products of order one round at 1e-15."""
    assert actual.keys() == expected.keys()
    for name in actual:
        torch.testing.assert_close(actual[name], expected[name], rtol=0, atol=atol, msg=name)


def largest_difference(a, b):
    return max(float((a[name] - b[name]).abs().max()) for name in a)


def a_chain(*sizes, tied, sigma="sigmoid", seed=0):
    angle = 0.0 if tied else 60.0
    net = eqprop.layered(
        *sizes, tied=tied, angle=angle, activation=sigma, seed=seed, dtype=torch.float64
    )
    source = torch.Generator().manual_seed(seed)
    for synapse in net.synapses:  # Glorot leaves them at zero
        synapse.bias.copy_(0.5 * torch.randn(synapse.bias.shape, generator=source).double())
    return net


def drawn(net, batch=3, seed=1):
    """x, s, ds and y, of both signs and with no relation to each other."""
    source = torch.Generator().manual_seed(seed)

    def draw(n):
        return torch.randn(batch, n, generator=source, dtype=torch.float64)

    state, change = (tuple(draw(n) for n in net.layer_sizes) for _ in range(2))
    return draw(net.input_size), state, change, draw(net.layer_sizes[-1])


def parameters(net):
    return {name: p.clone() for name, p in net.named_parameters()}


@any_topology
def test_full_is_the_gradient_of_the_vector_field_in_any_topology(topology):
    net = a_network(topology)
    x, _, s = a_minibatch(net)
    ds = a_minibatch(net, seed=2)[2]
    close(net.vector_field_gradient(x, s, ds, "full"), vjp(net, x, s, ds)[1])


@both_ties
@every_sigma
def test_full_is_the_gradient_of_the_vector_field_in_a_chain(sigma, tied):
    net = a_chain(5, 4, 6, 3, tied=tied, sigma=sigma)
    x, s, ds, _ = drawn(net)
    close(net.vector_field_gradient(x, s, ds, "full"), vjp(net, x, s, ds)[1])


@any_topology
def test_own_is_the_gradient_where_each_synapse_has_a_sigma_of_its_own(topology):
    """∂/∂θ of Σ ⟨σ(u), ds⟩ over the drives u of each synapse on the layers it joins."""
    net = a_network(topology)
    x, _, s = a_minibatch(net)
    ds = a_minibatch(net, seed=2)[2]
    at = {name: i for i, name in enumerate(net.layer_names)}
    separate = copy.deepcopy(net).requires_grad_()
    total = torch.zeros(())
    for synapse in separate.synapses:
        pre, post = synapse.pre, synapse.post
        on_pre, on_post = synapse.drives(x if pre == "input" else s[at[pre]], s[at[post]])
        total = total + (torch.tanh(on_post) * ds[at[post]]).sum()
        if pre not in ("input", post):
            total = total + (torch.tanh(on_pre) * ds[at[pre]]).sum()
    total.backward()
    expected = {name: p.grad / len(x) for name, p in separate.named_parameters()}
    close(net.vector_field_gradient(x, s, ds, "own"), expected)


def weights(net):
    """W [n_pre, n_post] and W_b [n_post, n_pre] of each synapse of a chain."""
    forward = [synapse.weight for synapse in net.synapses]
    return forward, [s.weight.mT if s.tied else s.backward_weight for s in net.synapses]


def one_update(net, sigma, update_slope, x, s, ds):
    """Neuron by neuron: Δ_W_ij = a_i σ′_j d_j, Δ_b_j = σ′_j d_j, Δ_W_b,ji = p_j σ′_i d_i; a mean.

    σ′_j is 1 (none), at b_j + Σ_i a_i W_ij (own; back at Σ_j p_j W_b,ji), or at both (full).
    """
    update = {name: torch.zeros_like(p) for name, p in net.named_parameters()}
    L = len(net.layers)
    forward, back = weights(net)
    for n in range(len(x)):
        layers = [x[n], *(layer[n] for layer in s)]
        for k, synapse in enumerate(net.synapses):
            for j in range(net.layer_sizes[k]):
                into = float(synapse.bias[j])
                into += sum(float(layers[k][i] * forward[k][i, j]) for i in range(len(layers[k])))
                out = 0.0
                if k + 1 < L:
                    after = layers[k + 2]
                    out = sum(float(after[i] * back[k + 1][i, j]) for i in range(len(after)))
                slope_f, slope_b = {
                    "none": (1.0, 1.0),
                    "own": (SLOPE[sigma](into), SLOPE[sigma](out)),
                    "full": (SLOPE[sigma](into + out),) * 2,
                }[update_slope]
                d = float(ds[k][n, j]) / len(x)
                update[f"synapses.{k}.bias"][j] += slope_f * d
                update[f"synapses.{k}.weight"][:, j] += layers[k] * slope_f * d
                if k + 1 < L and net.synapses[k + 1].tied:
                    update[f"synapses.{k + 1}.weight"][j, :] += after * slope_b * d
                elif k + 1 < L:
                    update[f"synapses.{k + 1}.backward_weight"][:, j] += after * slope_b * d
    return update


@every_slope
@both_ties
@every_sigma
def test_the_update_is_the_loop_over_neurons(sigma, tied, update_slope):
    net = a_chain(5, 4, 6, 3, tied=tied, sigma=sigma)
    x, s, ds, _ = drawn(net)
    expected = one_update(net, sigma, update_slope, x, s, ds)
    close(net.vector_field_gradient(x, s, ds, update_slope), expected)


def test_none_is_the_default_of_the_rules_and_of_the_model():
    net = a_chain(5, 4, 3, tied=False)
    x, s, ds, _ = drawn(net)
    plain = net.vector_field_gradient(x, s, ds)
    assert largest_difference(plain, net.vector_field_gradient(x, s, ds, "none")) == 0
    steps = {"beta": 0.1, "free_steps": 2, "nudged_steps": 1}
    for rule in (eqprop.VF(**steps), eqprop.ContinualVF(**steps)):
        assert rule.update_slope is UpdateSlope.NONE


@both_ties
def test_own_is_full_where_a_layer_has_one_drive(tied):
    """The output of a chain is driven by one synapse, the hidden layers by two."""
    net = a_chain(5, 4, 6, 3, tied=tied)
    x, s, ds, _ = drawn(net)
    no_back = (*(torch.zeros_like(d) for d in ds[:-1]), ds[-1])  # the share of the output alone
    own, full, none = (net.vector_field_gradient(x, s, no_back, u) for u in ("own", "full", "none"))
    close(own, full)
    assert largest_difference(own, none) > 1e-2
    own, full = (net.vector_field_gradient(x, s, ds, u) for u in ("own", "full"))
    assert largest_difference(own, full) > 1e-2


def layered_step(net, sigma, x, s):
    """s' = σ(drive) of a chain, from its parameters."""
    layers = [x, *s]
    forward, back = weights(net)
    moved = []
    for k, synapse in enumerate(net.synapses):
        drive = layers[k] @ forward[k] + synapse.bias
        if k + 1 < len(net.synapses):
            drive = drive + layers[k + 2] @ back[k + 1]
        moved.append(drive.clone().apply_(SIGMA[sigma]))
    return moved


@pytest.mark.parametrize("rule", [eqprop.VF, eqprop.ContinualVF], ids=["VF", "C-VF"])
@every_slope
@both_ties
def test_a_minibatch_is_the_loop_over_time(tied, update_slope, rule):
    """σ′ is taken before the nudge, at the weights of time t; a frozen bias drives, but stays."""
    beta, eta, T, K, frozen = 0.4, 0.3, 6, 4, "synapses.0.bias"
    net = a_chain(5, 4, 6, 3, tied=tied)
    x, _, _, y = drawn(net)
    loop = copy.deepcopy(net)
    s = [torch.zeros(len(x), n, dtype=torch.float64) for n in net.layer_sizes]
    for _ in range(T):
        s = layered_step(loop, "sigmoid", x, s)
    waiting = {name: torch.zeros_like(p) for name, p in loop.named_parameters()}
    for t in range(K):
        s_next = layered_step(loop, "sigmoid", x, s)
        s_next[-1] = s_next[-1] + beta * (y - s[-1])
        ds = [b - a for a, b in zip(s, s_next, strict=True)]
        for name, update in one_update(loop, "sigmoid", update_slope, x, s, ds).items():
            waiting[name] += update * eta / beta * (name != frozen)
        s = s_next
        if rule is eqprop.ContinualVF or t == K - 1:
            for name, p in loop.named_parameters():
                p += waiting[name]
                waiting[name].zero_()
    chosen = rule(beta=beta, free_steps=T, nudged_steps=K, update_slope=update_slope)
    before = net.synapses[0].bias.clone()
    eqprop.make_engine(net, chosen, eta, "reference", frozen=[frozen]).step(x, y)
    close(parameters(net), parameters(loop))
    assert torch.equal(net.synapses[0].bias, before)


@every_slope
def test_the_updates_of_c_vf_add_up_to_those_of_vf_as_eta_vanishes(update_slope):
    x, _, _, y = drawn(a_chain(5, 4, 6, 3, tied=False))
    steps = {"beta": 0.4, "free_steps": 6, "nudged_steps": 4, "update_slope": update_slope}

    def after(rule):
        net = a_chain(5, 4, 6, 3, tied=False)
        eqprop.make_engine(net, rule, 0.3, "reference").step(x, y)
        return parameters(net)

    vf = after(eqprop.VF(**steps))
    errors = [
        largest_difference(after(eqprop.ContinualVF(**steps, rescale=r)), vf) for r in (1e-3, 1e-4)
    ]
    assert errors[1] > 1e-9  # above rounding
    assert errors[0] / errors[1] == pytest.approx(10, rel=0.02)  # of first order in η


def a_primitive(x, s, theta):
    return ((x @ theta["w"]) * s[0]).sum(-1)


def a_field(x, s, theta):
    return (torch.tanh(x @ theta["w"] + s[0]),)


def users_own(kind, function):
    weight = {"w": torch.ones(2, 3, dtype=torch.float64)}
    return kind(function, parameters=weight, layers={"s": 3})


@pytest.mark.parametrize("update_slope", ["own", "full"])
@pytest.mark.parametrize("rule", [eqprop.VF, eqprop.ContinualVF], ids=["VF", "C-VF"])
@pytest.mark.parametrize(
    ("model", "why"),
    [
        (eqprop.layered(2, 3, time=eqprop.RealTime(0.2), dtype=torch.float64), "discrete time"),
        (users_own(eqprop.Primitive, a_primitive), "a Network in discrete time: a Primitive"),
        (users_own(eqprop.VectorField, a_field), "a Network in discrete time: a VectorField"),
    ],
    ids=["real time", "Primitive", "VectorField"],
)
def test_a_slope_is_refused_where_the_model_has_none_to_choose(model, why, rule, update_slope):
    chosen = rule(beta=0.1, free_steps=2, nudged_steps=1, update_slope=update_slope)
    x, y = torch.ones(1, 2, dtype=torch.float64), torch.ones(1, 3, dtype=torch.float64)
    s = (torch.ones(1, 3, dtype=torch.float64),)
    for call in (
        lambda: eqprop.make_engine(model, chosen, 0.1),
        lambda: list(chosen.gradients(model, x, y)),
        lambda: model.vector_field_gradient(x, s, s, update_slope),
    ):
        with pytest.raises(ValueError, match=f"^update_slope '{update_slope}' needs {why}") as no:
            call()
        assert len(str(no.value).splitlines()) == 1


@pytest.mark.parametrize("rule", [eqprop.VF, eqprop.ContinualVF])
def test_an_unknown_slope_is_refused(rule):
    message = r"^update_slope 'some' is unknown: choose one of none, own, full$"
    with pytest.raises(ValueError, match=message):
        rule(beta=0.1, free_steps=2, nudged_steps=1, update_slope="some")


@pytest.mark.parametrize(
    ("recipe", "fields", "message"),
    [
        ("ep-1h", {}, "rule.name ep does not use update_slope"),
        ("c-ep-1h", {}, "rule.name continual-ep does not use update_slope"),
        ("bptt-1h", {}, "rule.name bptt does not use update_slope"),
        ("rbp-1h", {}, "rule.name rbp does not use update_slope"),
        ("c-vf-1h", {"time": "real-time"}, "rule.update_slope 'own' needs discrete time"),
        ("c-vf-1h", {"update_slope": "some"}, "update_slope 'some' is unknown"),
    ],
)
def test_a_recipe_without_a_use_for_the_slope_is_refused(recipe, fields, message):
    with pytest.raises(UserError) as refused:
        load(recipe, {"update_slope": "own", **fields})
    (line,) = str(refused.value).splitlines()
    assert message in line


@every_slope
def test_a_recipe_hands_the_slope_to_its_rule(update_slope):
    for name in ("vf-1h", "c-vf-1h"):
        recipe = load(name, {"update_slope": str(update_slope)})
        assert recipe.learning_rule(recipe.members()).update_slope is update_slope

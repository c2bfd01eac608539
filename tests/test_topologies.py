"""Any topology from the same synapses: skip, lateral, within a layer, several inputs, mixed tying.

Oracle: the condensed form s' = σ(W s + W_x x + b) with the blocks of W, W_x and b put together
here from the stored parameters; torch.autograd for Φ and for the vector field.
"""

from itertools import pairwise

import pytest
import torch

import eqprop
from eqprop import Dense, Input, Layer
from eqprop.model import vjp

EPSILON, BATCH = 0.4, 3


def skip():
    layers = {"h1": 4, "h2": 3, "out": 2}
    return layers, [
        Dense("input", "h1", bias=True),
        Dense("h1", "h2", bias=True),
        Dense("h2", "out"),
        Dense("h1", "out", bias=True),
    ]


def skip_untied():
    layers = {"h1": 4, "h2": 3, "out": 2}
    return layers, [
        Dense("input", "h1", bias=True),
        Dense("h1", "h2", tied=False, angle=60.0),
        Dense("h2", "out", tied=False, angle=60.0, bias=True),
        Dense("h1", "out", tied=False, angle=60.0),
    ]


def lateral():
    """Two layers side by side, joined to each other."""
    layers = {"left": 4, "right": 3, "out": 2}
    return layers, [
        Dense("input", "left", bias=True),
        Dense("input", "right", bias=True),
        Dense("left", "right"),
        Dense("left", "out"),
        Dense("right", "out", bias=True),
    ]


def within_tied():
    layers = {"hidden": 5, "out": 3}
    return layers, [
        Dense("input", "hidden", bias=True),
        Dense("hidden", "hidden"),
        Dense("hidden", "out"),
        Dense("out", "out", bias=True),
    ]


def within_untied():
    layers = {"hidden": 5, "out": 3}
    return layers, [
        Dense("input", "hidden"),
        Dense("hidden", "hidden", tied=False, bias=True),
        Dense("hidden", "out"),
    ]


def self_loops_tied():
    layers = {"hidden": 4, "out": 2}
    return layers, [
        Dense("input", "hidden"),
        Dense("hidden", "hidden", self_loops=True),
        Dense("hidden", "out", bias=True),
    ]


def self_loops_untied():
    layers = {"hidden": 4, "out": 2}
    return layers, [
        Dense("input", "hidden"),
        Dense("hidden", "hidden", tied=False, self_loops=True),
        Dense("hidden", "out", bias=True),
    ]


def input_to_every_layer():
    layers = {"h1": 4, "h2": 3, "out": 2}
    return layers, [
        Dense("input", "h1", bias=True),
        Dense("h1", "h2"),
        Dense("h2", "out"),
        Dense("input", "h2", bias=True),
        Dense("input", "out", bias=True),
    ]


def parallel():
    """Two synapses between the same two layers, from the input too: their drives add up."""
    layers = {"hidden": 4, "out": 2}
    return layers, [
        Dense("input", "hidden", bias=True),
        Dense("input", "hidden", bias=True),
        Dense("hidden", "out"),
        Dense("out", "hidden", bias=True),
    ]


def mixed():
    """Tied, untied, skip and within, written in no order, and one synapse against the chain."""
    layers = {"h1": 4, "h2": 3, "out": 2}
    return layers, [
        Dense("h2", "out", tied=False, angle=45.0, bias=True),
        Dense("h1", "h2", bias=True),
        Dense("input", "h1"),
        Dense("h1", "h1", tied=False),
        Dense("out", "h1"),
    ]


TIED = [skip, lateral, within_tied, self_loops_tied, input_to_every_layer, parallel]
UNTIED = [skip_untied, within_untied, self_loops_untied, mixed]
DISCRETE = eqprop.Discrete()
REAL_TIME = eqprop.RealTime(dt=EPSILON)

any_topology = pytest.mark.parametrize("topology", TIED + UNTIED, ids=lambda f: f.__name__)
tied_topology = pytest.mark.parametrize("topology", TIED, ids=lambda f: f.__name__)


def close(actual, expected):
    """Sums of some twenty products of order one round at 1e-15."""
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-13)


def a_network(topology, time=DISCRETE, seed=0):
    layers, synapses = topology()
    net = eqprop.Network(
        [
            Input(3, "tanh" if time is REAL_TIME else "identity"),
            *(Layer(name, size, "tanh") for name, size in layers.items()),
        ],
        synapses,
        time=time,
        seed=seed,
        dtype=torch.float64,
    )
    source = torch.Generator().manual_seed(seed)
    for synapse in net.synapses:
        if synapse.bias is not None:  # Glorot leaves them at zero
            synapse.bias.copy_(torch.randn(synapse.bias.shape, generator=source).double())
    return net


def a_minibatch(net, seed=1):
    source = torch.Generator().manual_seed(seed)

    def draw(n):
        return torch.randn(BATCH, n, generator=source, dtype=torch.float64)

    return draw(3), draw(net.layer_sizes[-1]), tuple(draw(n) for n in net.layer_sizes)


def condensed(net):
    """W, W_x and b, block by block, from the parameters as they are stored."""
    ends = [0, *torch.tensor(net.layer_sizes).cumsum(0).tolist()]
    block = {n: slice(*span) for n, span in zip(net.layer_names, pairwise(ends), strict=True)}
    W = torch.zeros(ends[-1], ends[-1], dtype=torch.float64)
    W_x = torch.zeros(ends[-1], net.input_size, dtype=torch.float64)
    b = torch.zeros(ends[-1], dtype=torch.float64)
    for synapse in net.synapses:
        post = block[synapse.post]
        if synapse.bias is not None:
            b[post] += synapse.bias
        if synapse.pre == "input":
            W_x[post] += synapse.weight.T
            continue
        pre = block[synapse.pre]
        W[post, pre] += synapse.weight.T
        if pre != post:
            W[pre, post] += synapse.weight if synapse.tied else synapse.backward_weight.T
    return W, W_x, b


def influence(net, x):
    """∂drive/∂s as the dynamics have it: at s = 0 in discrete time, with σ' divided out."""
    sizes = list(net.layer_sizes)

    def flat_step(flat):
        return torch.cat(net(x[:1], flat[None].split(sizes, dim=-1)), dim=-1)[0]

    zero = torch.zeros(sum(sizes), dtype=torch.float64)
    slope = 1 - flat_step(zero) ** 2  # tanh
    return torch.func.jacrev(flat_step)(zero) / slope[:, None]


@any_topology
def test_discrete_step_is_the_condensed_form(topology):
    net = a_network(topology)
    x, _, s = a_minibatch(net)
    W, W_x, b = condensed(net)
    actual, s = torch.cat(net(x, s), dim=-1), torch.cat(s, dim=-1)
    for sample in range(BATCH):
        close(actual[sample], torch.tanh(W @ s[sample] + W_x @ x[sample] + b))


@any_topology
def test_real_time_step_is_the_condensed_form(topology):
    net = a_network(topology, REAL_TIME)
    x, _, s = a_minibatch(net)
    W, W_x, b = condensed(net)
    actual, s = torch.cat(net(x, s), dim=-1), torch.cat(s, dim=-1)
    for sample in range(BATCH):
        rho = torch.tanh(s[sample])
        drive = W @ rho + W_x @ torch.tanh(x[sample]) + b
        close(actual[sample], (1 - EPSILON) * s[sample] + EPSILON * (1 - rho**2) * drive)


@any_topology
def test_the_network_is_symmetric_only_if_every_synapse_is_tied(topology):
    net = a_network(topology)
    W = influence(net, a_minibatch(net)[0])
    close(W, condensed(net)[0])
    asymmetry = float((W - W.T).abs().max())
    assert asymmetry < 1e-13 if topology in TIED else asymmetry > 0.1


@any_topology
def test_no_neuron_drives_itself_unless_asked(topology):
    net = a_network(topology)
    diagonal = influence(net, a_minibatch(net)[0]).diagonal()
    if topology in (self_loops_tied, self_loops_untied):
        assert bool((diagonal[:4] != 0).all())
        assert bool((diagonal[4:] == 0).all())
    else:
        assert bool((diagonal == 0).all())


@any_topology
@pytest.mark.parametrize("time", [DISCRETE, REAL_TIME], ids=["discrete", "real time"])
def test_each_layer_has_its_own_activation(topology, time):
    layers, synapses = topology()
    names = ("sigmoid", "identity", "tanh")
    *_, last = layers
    activations = dict(zip(layers, names, strict=False)) | {last: "hard_sigmoid"}
    net = eqprop.Network(
        [Input(3), *(Layer(n, size, activations[n]) for n, size in layers.items())],
        synapses,
        time=time,
        dtype=torch.float64,
    )
    x, _, s = a_minibatch(net)
    W, W_x, b = condensed(net)
    sigma = {
        "sigmoid": lambda v: 1 / (1 + torch.exp(2 - 4 * v)),
        "identity": lambda v: v,
        "tanh": torch.tanh,
        "hard_sigmoid": lambda v: torch.minimum(torch.maximum(v, 0 * v), 0 * v + 1),
    }

    def by_layer(flat, functions):
        parts = flat.split(list(net.layer_sizes), dim=-1)
        return torch.cat(
            [functions[a](v) for a, v in zip(activations.values(), parts, strict=True)]
        )

    slope = {n: lambda v, f=f: torch.func.grad(lambda u: f(u).sum())(v) for n, f in sigma.items()}
    actual, flat = torch.cat(net(x, s), dim=-1), torch.cat(s, dim=-1)
    for sample in range(BATCH):
        v = flat[sample]
        if time is DISCRETE:
            expected = by_layer(W @ v + W_x @ x[sample] + b, sigma)
        else:
            drive = W @ by_layer(v, sigma) + W_x @ x[sample] + b
            expected = (1 - EPSILON) * v + EPSILON * by_layer(v, slope) * drive
        close(actual[sample], expected)


@tied_topology
@pytest.mark.parametrize("time", [DISCRETE, REAL_TIME], ids=["discrete", "real time"])
def test_phi_gradient_is_autograd_of_phi(topology, time):
    net = a_network(topology, time)
    x, _, s = a_minibatch(net)
    for parameter in net.parameters():
        parameter.requires_grad_()
    phi = net.phi(x, s).mean()
    expected = torch.autograd.grad(phi, list(net.parameters()))
    actual = net.phi_gradient(x, s)
    assert list(actual) == [name for name, _ in net.named_parameters()]
    for gradient, exact in zip(actual.values(), expected, strict=True):
        close(gradient, exact)


@tied_topology
def test_F_is_the_gradient_of_phi_in_real_time(topology):
    net = a_network(topology, REAL_TIME)
    x, _, s = a_minibatch(net)
    leaves = tuple(layer.clone().requires_grad_() for layer in s)
    expected = torch.autograd.grad(net.phi(x, leaves).sum(), leaves)
    for layer, gradient in zip(net(x, s), expected, strict=True):
        close(layer, gradient)


@any_topology
def test_vector_field_gradient_is_the_transposed_jacobian_in_real_time(topology):
    net = a_network(topology, REAL_TIME)
    x, _, s = a_minibatch(net)
    _, _, ds = a_minibatch(net, seed=5)
    actual, expected = net.vector_field_gradient(x, s, ds), vjp(net, x, s, ds)[1]
    assert actual.keys() == expected.keys()
    for name in expected:
        close(actual[name], expected[name])


RULES = [
    eqprop.EP(beta=0.3, free_steps=8, nudged_steps=4),
    eqprop.ContinualEP(beta=0.3, free_steps=8, nudged_steps=4),
    eqprop.VF(beta=0.3, free_steps=8, nudged_steps=4),
    eqprop.ContinualVF(beta=0.3, free_steps=8, nudged_steps=4),
    eqprop.BPTT(free_steps=8),
    eqprop.RBP(free_steps=8),
]


@pytest.mark.parametrize(
    ("topology", "rule"),
    [*((within_tied, rule) for rule in RULES), *((within_untied, rule) for rule in RULES[2:])],
    ids=lambda value: getattr(value, "__name__", type(value).__name__),
)
def test_blocks_within_a_layer_keep_their_structure_while_they_learn(topology, rule):
    """Symmetric if tied, and no diagonal: as stored, not only as read."""
    net = a_network(topology)
    block = net.synapses[1]
    start = block.weight.clone()
    engine = eqprop.make_engine(net, rule, 0.1)
    for seed in range(5):
        x, y, _ = a_minibatch(net, seed)
        engine.step(x, y)
    assert float((block.weight - start).abs().max()) > 1e-3  # it learns
    assert bool((block.weight.diagonal() == 0).all())
    # g and gᵀ are the same products, summed in one order or another: equal to rounding
    asymmetry = float((block.weight - block.weight.T).abs().max())
    assert asymmetry < 1e-15 if block.tied else asymmetry > 0.1


def loss(net, x, y, steps=30):
    output = eqprop.relax(net, x, steps).state[-1]
    return float(((output - y) ** 2).sum(-1).mean())


@pytest.mark.slow
def test_a_network_of_tied_and_untied_synapses_trains_with_continual_vf():
    net = a_network(mixed, REAL_TIME)
    x, _, _ = a_minibatch(net)
    y = torch.tensor([[0.4, -0.2], [-0.3, 0.3], [0.1, 0.2]], dtype=torch.float64)
    before = loss(net, x, y)
    rule = eqprop.ContinualVF(beta=0.2, free_steps=30, nudged_steps=10)
    engine = eqprop.make_engine(net, rule, 0.1)
    start = {name: p.clone() for name, p in net.named_parameters()}
    for _ in range(60):
        engine.step(x, y)
    assert loss(net, x, y) < 0.1 * before
    for name, parameter in net.named_parameters():  # tied and untied, all of them take part
        assert float((parameter - start[name]).abs().max()) > 1e-3, name


@pytest.mark.parametrize("rule_type", [eqprop.EP, eqprop.ContinualEP])
@pytest.mark.parametrize(
    ("topology", "culprit"),
    [(mixed, "h2→out"), (skip_untied, "h1→h2"), (within_untied, "hidden→hidden")],
)
def test_ep_on_an_untied_synapse_is_refused_by_name_and_moves_nothing(rule_type, topology, culprit):
    net = a_network(topology)
    x, y, _ = a_minibatch(net)
    start = [p.clone() for p in net.parameters()]
    engine = eqprop.make_engine(net, rule_type(beta=0.2, free_steps=5, nudged_steps=2), 0.1)
    with pytest.raises(ValueError, match=f"synapse {culprit} is untied.*ContinualVF"):
        engine.step(x, y)
    assert all(torch.equal(a, b) for a, b in zip(start, net.parameters(), strict=True))

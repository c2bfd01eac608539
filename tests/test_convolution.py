"""Convolutions with pooling: against an unrolled dense network, against `torch.func`, and as
members of a network that learns.
"""

import itertools
import math

import pytest
import torch
from torch.nn.functional import max_pool2d

import eqprop
from eqprop import Conv2d, Dense, Input, Layer

# pre, kernel, stride, padding, pool: odd sizes, strides, paddings, rows that no window covers
GEOMETRIES = (
    ((2, 5, 7), 3, 1, 1, 1),
    ((1, 6, 6), 3, 1, 1, 2),
    ((3, 7, 5), 2, 2, 0, 1),
    ((2, 9, 8), 3, 2, 2, 2),
    ((2, 7, 7), 4, 3, 1, 1),
    ((2, 8, 7), 1, 1, 0, 3),
)
any_geometry = pytest.mark.parametrize("geometry", GEOMETRIES)
OUT = 3


def post_shape(pre, kernel, stride, padding, pool):
    return OUT, *(((n + 2 * padding - kernel) // stride + 1) // pool for n in pre[1:])


def a_synapse(geometry, ensemble=(), tied=True, seed=0, pre="a"):
    shape, kernel, stride, padding, pool = geometry
    after = post_shape(*geometry)
    synapse = Conv2d(
        pre, "b", kernel, stride=stride, padding=padding, pool=pool, tied=tied, bias=True,
        angle=0.0 if tied else 60.0, init="fan_in",
    )  # fmt: skip
    members = range(seed, seed + math.prod(ensemble))
    synapse.build((shape, after), ensemble, list(members), "test", torch.float64)
    return synapse


def states(synapse, batch=3, seed=0):
    source = torch.Generator().manual_seed(seed)
    return [
        torch.randn(*synapse.ensemble, batch, *shape, generator=source, dtype=torch.float64)
        for shape in synapse.ends
    ]


def unrolled(synapse, weight):
    """The convolution as a matrix [n_pre, n_convolved], one entry after another, by its sum."""
    (C, H, W), k, stride, padding = (
        synapse.ends[0], synapse.kernel, synapse.stride, synapse.padding,
    )  # fmt: skip
    h, w = ((n + 2 * padding - k) // stride + 1 for n in (H, W))
    matrix = torch.zeros(C, H, W, OUT, h, w, dtype=torch.float64)
    for o, i, j, c, u, v in itertools.product(
        range(OUT), range(h), range(w), range(C), range(k), range(k)
    ):
        row, column = i * stride + u - padding, j * stride + v - padding
        if 0 <= row < H and 0 <= column < W:
            matrix[c, row, column, o, i, j] += weight[o, c, u, v]
    return matrix.reshape(C * H * W, OUT * h * w), (h, w)


@any_geometry
@pytest.mark.parametrize("tied", [True, False])
def test_drives_are_those_of_the_unrolled_network(geometry, tied):
    synapse = a_synapse(geometry, tied=tied)
    pre, post = states(synapse)
    matrix, (h, w) = unrolled(synapse, synapse.weight)
    drive = pre.flatten(1) @ matrix + synapse.bias.repeat_interleave(h * w)
    convolved = drive.reshape(-1, OUT, h, w)
    pool = synapse.pool
    on_post = torch.zeros_like(post)
    back = torch.zeros_like(convolved)
    for n, o, i, j in itertools.product(*(range(size) for size in post.shape)):
        window = convolved[n, o, i * pool : (i + 1) * pool, j * pool : (j + 1) * pool]
        row, column = divmod(int(window.argmax()), window.shape[1])
        on_post[n, o, i, j] = window[row, column]
        back[n, o, i * pool + row, j * pool + column] = post[n, o, i, j]
    reverse = matrix if tied else unrolled(synapse, synapse.backward_weight)[0]
    found = synapse.drives(pre, post)
    torch.testing.assert_close(found[1], on_post, rtol=0, atol=1e-13)
    expected = (back.flatten(1) @ reverse.mT).reshape(pre.shape)
    torch.testing.assert_close(found[0], expected, rtol=0, atol=1e-13)
    assert float(expected.abs().max()) > 0.1


@any_geometry
def test_drives_and_updates_are_the_derivatives_of_phi(geometry):
    synapse = a_synapse(geometry)
    pre, post = states(synapse)

    def phi(pre, post, theta):
        return torch.func.functional_call(synapse, theta, (pre, post)).sum()

    theta = dict(synapse.named_parameters())
    by_pre, by_post, by_theta = torch.func.grad(phi, argnums=(0, 1, 2))(pre, post, theta)
    on_pre, on_post = synapse.drives(pre, post)
    torch.testing.assert_close(on_pre, by_pre, rtol=0, atol=1e-13)
    torch.testing.assert_close(on_post, by_post, rtol=0, atol=1e-13)
    value = (post * on_post).flatten(1).sum(-1)
    torch.testing.assert_close(synapse.phi(pre, post), value, rtol=0, atol=1e-12)
    for name, gradient in synapse.phi_gradient(pre, post).items():
        torch.testing.assert_close(gradient, by_theta[name], rtol=0, atol=1e-12)
    base = super(Conv2d, synapse).phi_gradient(pre, post)  # what a synapse of one's own inherits
    for name, gradient in base.items():
        torch.testing.assert_close(gradient, by_theta[name], rtol=0, atol=1e-12)


@any_geometry
@pytest.mark.parametrize("tied", [True, False])
def test_vector_field_updates_are_the_derivatives_of_the_drives(geometry, tied):
    synapse = a_synapse(geometry, tied=tied)
    (pre, post), (d_pre, d_post) = states(synapse), states(synapse, seed=1)
    found = synapse.vector_field_gradient(pre, post, d_pre, d_post)
    expected = super(Conv2d, synapse).vector_field_gradient(pre, post, d_pre, d_post)
    assert found.keys() == expected.keys()
    assert ("backward_weight" in found) == (not tied)
    for name in expected:
        torch.testing.assert_close(found[name], expected[name], rtol=0, atol=1e-12)
        assert float(expected[name].abs().max()) > 0.1


@any_geometry
@pytest.mark.parametrize("tied", [True, False])
def test_members_of_an_ensemble_are_the_synapse_alone(geometry, tied):
    several = a_synapse(geometry, ensemble=(2, 2), tied=tied)
    pre, post = states(several)
    d_pre, d_post = states(several, seed=1)
    drives = several.drives(pre, post)
    updates = several.vector_field_gradient(pre, post, d_pre, d_post)
    for i, at in enumerate(itertools.product(range(2), range(2))):
        alone = a_synapse(geometry, tied=tied, seed=i)
        for whole, part in zip(drives, alone.drives(pre[at], post[at]), strict=True):
            torch.testing.assert_close(whole[at], part, rtol=0, atol=1e-13)
        own = alone.vector_field_gradient(pre[at], post[at], d_pre[at], d_post[at])
        for name in own:
            torch.testing.assert_close(updates[name][at], own[name], rtol=0, atol=1e-12)


def test_of_equal_drives_the_first_wins_the_pooling():
    synapse = a_synapse(((1, 4, 4), 1, 1, 0, 2))
    synapse.weight.fill_(1.0)
    synapse.bias.zero_()
    pre = torch.ones(1, 1, 4, 4, dtype=torch.float64)
    post = torch.ones(1, OUT, 2, 2, dtype=torch.float64)
    on_pre, _ = synapse.drives(pre, post)
    first = torch.zeros(4, 4, dtype=torch.float64)
    first[::2, ::2] = OUT
    assert torch.equal(on_pre[0, 0], first)


def test_shared_inputs_reach_every_member():
    several = a_synapse(GEOMETRIES[1], ensemble=(3,), pre="input")
    pre = states(several)[0][0]  # [batch, channels, height, width]
    on_pre, on_post = several.drives(pre, None)
    assert on_pre is None
    for i in range(3):
        alone = a_synapse(GEOMETRIES[1], seed=i, pre="input").drives(pre, None)[1]
        torch.testing.assert_close(on_post[i], alone, rtol=0, atol=1e-13)


# in a network


def a_network(tied=True, ensemble=(), activation="tanh", dtype=torch.float64, time=None):
    return eqprop.Network(
        [Input((1, 8, 8)), Layer("c1", (3, 4, 4)), Layer("c2", (4, 2, 2)), Layer("out", 3)],
        [
            Conv2d("input", "c1", kernel=3, padding=1, pool=2, bias=True),
            Conv2d("c1", "c2", kernel=3, padding=1, pool=2, bias=True, tied=tied),
            Dense("c2", "out", bias=True, tied=tied),
        ],
        time=time or eqprop.Discrete(), activation=activation, ensemble=ensemble, dtype=dtype,
    )  # fmt: skip


def a_minibatch(batch=3, seed=0):
    source = torch.Generator().manual_seed(seed)
    x = torch.rand(batch, 1, 8, 8, generator=source, dtype=torch.float64)
    y = torch.rand(batch, 3, generator=source, dtype=torch.float64)
    return x, y


def test_states_have_the_shapes_of_their_layers():
    net, (x, _) = a_network(ensemble=(2,)), a_minibatch()
    free = eqprop.relax(net, x, 5)
    assert [list(s.shape) for s in free.state] == [[2, 3, 3, 4, 4], [2, 3, 4, 2, 2], [2, 3, 3]]
    assert list(free.sample_residual.shape) == [2, 3]
    assert net.layer_sizes == (48, 16, 3)


def test_f_is_the_derivative_of_phi_in_real_time():
    net, (x, _) = a_network(time=eqprop.RealTime(0.3)), a_minibatch()
    s = eqprop.relax(net, x, 3).state
    f = torch.func.grad(lambda s: net.phi(x, s).sum())(s)
    for mine, theirs in zip(net(x, s), f, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-13)


def four_neurons_and_their_maximum(time):
    """The maximum is transmitted as a negative rate, so feedback makes the winner lose."""
    net = eqprop.Network(
        [Input(1), Layer("four", (1, 2, 2)), Layer("most", (1, 1, 1))],
        [Dense("input", "four"), Conv2d("four", "most", kernel=1, pool=2, bias=True)],
        time=time, activation="tanh", dtype=torch.float64,
    )  # fmt: skip
    with torch.no_grad():
        for name, value in (("0.weight", 0.5), ("1.weight", 1.0), ("1.bias", -1.5)):
            net.get_parameter(f"synapses.{name}").fill_(value)
    return net


@pytest.mark.parametrize("in_turn", [False, True])
def test_winners_may_alternate_for_ever_also_with_layers_in_turn(in_turn):
    net, x = four_neurons_and_their_maximum(eqprop.Discrete()), torch.ones(1, 1).double()
    moves = 2 if in_turn else 1  # steps after which the four have moved
    free, next_, after = (eqprop.relax(net, x, 1000 + k * moves, in_turn=in_turn) for k in range(3))
    losers = [int(each.state[0].flatten().argmin()) for each in (free, next_, after)]
    assert losers in ([0, 1, 0], [1, 0, 1])
    torch.testing.assert_close(free.state, after.state, rtol=0, atol=1e-14)
    high, low = math.tanh(0.5), math.tanh(0.5 + math.tanh(math.tanh(0.5) - 1.5))
    assert free.residual == pytest.approx(high - low, abs=1e-14)


@pytest.mark.slow
def test_in_real_time_the_winners_tremble_in_proportion_to_dt():
    x, residuals = torch.ones(1, 1).double(), []
    for dt in (0.02, 0.01):
        net = four_neurons_and_their_maximum(eqprop.RealTime(dt))
        residuals.append(eqprop.relax(net, x, 4000).residual)
    assert residuals[1] > 1e-3
    assert residuals[0] / residuals[1] == pytest.approx(2, rel=0.1)


def test_pooling_is_refused_where_neurons_take_complex_values():
    net, (x, y) = a_network(), a_minibatch()
    rule = eqprop.EP(nudging=eqprop.Holomorphic(0.1, 4), free_steps=5, nudged_steps=2)
    with pytest.raises(ValueError, match="Holomorphic needs analytic functions, but Conv2d"):
        rule.gradients(net, x, y)


def test_updates_follow_bptt_step_by_step():
    """Δ(t) = −∇(t) to first order in β, for every layer, kernel and bias."""
    net, (x, y) = a_network(time=eqprop.RealTime(0.5)), a_minibatch()
    with torch.no_grad():
        for p in net.parameters():
            p.mul_(0.2)  # a contraction: every sample settles
    errors = []
    for beta in (1e-3, 1e-4):
        rule = eqprop.EP(beta=beta, free_steps=400, nudged_steps=8)
        report = eqprop.gddcheck(net, rule, x, y)
        assert report.residual < 1e-12
        errors.append(max(row.relative_error for row in report.rows))
    assert errors[0] < 0.01
    assert errors[0] / errors[1] == pytest.approx(10, rel=0.05)


@pytest.mark.parametrize("rule", [eqprop.EP, eqprop.ContinualEP, eqprop.VF, eqprop.ContinualVF])
def test_an_ensemble_learns_as_its_members_do_alone(rule):
    tied = rule in (eqprop.EP, eqprop.ContinualEP)
    several, (x, y) = a_network(tied=tied, ensemble=(2,)), a_minibatch()
    settings = rule(beta=0.3, free_steps=12, nudged_steps=4)
    members = [several.member(i) for i in range(2)]
    for _ in range(3):
        eqprop.make_engine(several, settings, 0.1).step(x, y)
        for alone in members:
            eqprop.make_engine(alone, settings, 0.1).step(x, y)
    for i, alone in enumerate(members):
        for name, p in alone.named_parameters():
            whole = several.get_parameter(name)[i]
            torch.testing.assert_close(whole, p, rtol=0, atol=1e-13)


def test_an_update_sees_its_two_ends_alone():
    """Other layers may hold anything: the update of a synapse does not change."""
    net, (x, _) = a_network(), a_minibatch()
    s = eqprop.relax(net, x, 3).state
    before = net.phi_gradient(x, s)
    after = net.phi_gradient(x, (s[0], s[1], torch.rand_like(s[2])))
    for name in before:
        same = torch.equal(before[name], after[name])
        assert same == (not name.startswith("synapses.2"))


@pytest.mark.slow
def test_a_network_of_convolutions_learns_a_minibatch():
    net, x = a_network(activation="sigmoid"), a_minibatch(batch=6)[0].round() * 2 - 1
    y = torch.eye(3, dtype=torch.float64).repeat(2, 1)
    engine = eqprop.make_engine(net, eqprop.EP(beta=0.2, free_steps=30, nudged_steps=10), 0.2)
    loss = eqprop.SquaredError()
    first = float(loss(engine.step(x, y), y).mean())
    for _ in range(150):
        output = engine.step(x, y)
    assert float(loss(output, y).mean()) < 0.1 * first
    assert torch.equal(output.argmax(-1), y.argmax(-1))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"kernel": 0}, "kernel must be an integer of 1 or more, not 0"),
        ({"kernel": 3, "stride": 0}, "stride must be an integer of 1 or more"),
        ({"kernel": 3, "padding": -1}, "padding must be an integer of 0 or more"),
        ({"kernel": 3, "pool": 1.5}, "pool must be an integer of 1 or more, not 1.5"),
        (
            {"kernel": 3},
            r"from \(8, 8\) this convolution makes \(6, 6\), but layer 'b' is",
        ),
        ({"kernel": 9, "pool": 2}, "this convolution makes"),
    ],
)
def test_a_geometry_that_does_not_fit_is_refused(given, message):
    with pytest.raises(ValueError, match=message):
        eqprop.Network([Input((1, 8, 8)), Layer("b", (2, 4, 4))], [Conv2d("input", "b", **given)])


def test_a_convolution_needs_layers_with_channels():
    with pytest.raises(ValueError, match=r"joins layers of shape \(channels, height, width\)"):
        eqprop.Network([Input(64), Layer("b", (2, 4, 4))], [Conv2d("input", "b", kernel=3)])
    with pytest.raises(ValueError, match="joins two different layers"):
        Conv2d("b", "b", kernel=3)


def test_an_input_of_another_shape_is_refused():
    net = a_network()
    with pytest.raises(ValueError, match=r"x has samples \[1, 7, 8\], but they must be \(1, 8"):
        eqprop.relax(net, torch.rand(3, 1, 7, 8, dtype=torch.float64), 2)
    with pytest.raises(ValueError, match=r"x has shape \[3, 64\]"):
        eqprop.relax(net, torch.rand(3, 64, dtype=torch.float64), 2)


def test_pooling_is_that_of_torch():
    synapse = a_synapse(GEOMETRIES[3])
    pre, _ = states(synapse)
    convolved = torch.conv2d(pre, synapse.weight, synapse.bias, 2, 2)
    assert torch.equal(synapse.drives(pre, None)[1], max_pool2d(convolved, 2))


@pytest.mark.parametrize(("cosine", "rests"), [(1.0, True), (0.5, True), (-0.5, False)])
@pytest.mark.parametrize("size", [1.0, 0.1])
def test_a_winner_that_defeats_itself_alternates_with_the_next_for_ever(cosine, rests, size):
    """One window. What the winner sends back is added to its own drive, times the cosine between
    forward and backward weight. Smaller weights do not help if the two values are closer.
    """
    layers = [Input((1, 2, 2)), Layer("a", (1, 2, 2)), Layer("b", (1, 1, 1))]
    synapses = [Conv2d("input", "a", 1), Conv2d("a", "b", 1, pool=2, tied=False)]
    net = eqprop.Network(layers, synapses, activation="hard_sigmoid", dtype=torch.float64)
    with torch.no_grad():
        net.synapses[0].weight.fill_(1)
        net.synapses[1].weight.fill_(size)
        net.synapses[1].backward_weight.fill_(size * cosine)
    x = torch.tensor([[[[0.5, 0.5 - size**2 / 10], [0.1, 0.2]]]], dtype=torch.float64)
    residual = eqprop.relax(net, x, steps=400, in_turn=True).residual
    assert residual < 1e-9 if rests else residual > size**2 / 10

"""A synapse learns from its two ends, at the present moment, and from nothing else.

Oracle: perturbation. What a local update may not read can change without changing a bit of it;
what it must read cannot. In time: the rule is started afresh at s_t, without its past, and must
yield what it yielded there.
"""

from dataclasses import replace

import pytest
import torch

import eqprop
from eqprop import Dense, Input, Layer
from eqprop.dynamics import nudged_step

BETA, BATCH, K = 0.3, 3, 5


def chain(tied, time):
    return eqprop.layered(
        4, 5, 3, 3, 2, tied=tied, time=time, activation="tanh", init="fan_in", dtype=torch.float64
    )


def skip(tied, time):
    """With a skip, a second feed-in of the input, and a block within a layer."""
    ends = [("input", "a"), ("a", "b"), ("b", "c"), ("c", "out"), ("a", "c"), ("b", "b")]
    return eqprop.Network(
        [Input(4), *(Layer(n, size, "tanh") for n, size in zip("abc", (5, 3, 3), strict=True)),
         Layer("out", 2, "tanh")],
        [*(Dense(*e, tied=tied, bias=True, init="fan_in") for e in ends), Dense("input", "out")],
        time=time,
        dtype=torch.float64,
    )  # fmt: skip


CEP = eqprop.ContinualEP(beta=BETA, free_steps=6, nudged_steps=K)
CVF = eqprop.ContinualVF(beta=BETA, free_steps=6, nudged_steps=K)

on_every_network = pytest.mark.parametrize("build", [chain, skip], ids=lambda f: f.__name__)
in_every_time = pytest.mark.parametrize(
    "time", [eqprop.Discrete(), eqprop.RealTime(dt=0.4)], ids=["discrete", "real time"]
)
by_both_rules = pytest.mark.parametrize(
    ("rule", "tied"), [(CEP, True), (CVF, True), (CVF, False)], ids=["C-EP", "C-VF tied", "C-VF"]
)


def draw(seed, *shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def a_state(net, seed):
    return tuple(draw(seed + i, BATCH, n) for i, n in enumerate(net.layer_sizes))


def change_of(net, rule, x, s, s_next):
    """θ's change of Eqs. (C-EP) and (c-vf-2nd-phase), from s_t and s_{t+1} alone."""
    if isinstance(rule, eqprop.ContinualEP):
        before, after = net.phi_gradient(x, s), net.phi_gradient(x, s_next)
        return {name: after[name] - before[name] for name in after}
    return net.vector_field_gradient(x, s, tuple(b - a for a, b in zip(s, s_next, strict=True)))


def update_of(net, rule, x, s, s_next):
    """What the rule hands out for it."""
    strength = BETA * net.nudge_scale
    return {name: -v / strength for name, v in change_of(net, rule, x, s, s_next).items()}


def same(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def belongs(name, k):
    return name.startswith(f"synapses.{k}.")


@on_every_network
@in_every_time
@by_both_rules
def test_an_update_reads_the_two_ends_of_its_synapse_only(build, time, rule, tied):
    net = build(tied, time)
    x, s, s_next = draw(0, BATCH, 4), a_state(net, 10), a_state(net, 20)
    original = change_of(net, rule, x, s, s_next)
    for j, layer in enumerate(net.layer_names):
        elsewhere = [*s], [*s_next]
        for t, state in enumerate(elsewhere):
            state[j] = state[j] + draw(30 + t, *state[j].shape)
        perturbed = change_of(net, rule, x, *map(tuple, elsewhere))
        for k, synapse in enumerate(net.synapses):
            for name in (n for n in original if belongs(n, k)):
                # a bias sits on the neurons that it drives
                ends = (synapse.post,) if name.endswith("bias") else (synapse.pre, synapse.post)
                unchanged = torch.equal(perturbed[name], original[name])
                assert unchanged == (layer not in ends), f"{name} ({synapse.name}) and {layer}"


@on_every_network
@in_every_time
@by_both_rules
def test_only_synapses_from_the_input_read_the_input(build, time, rule, tied):
    net = build(tied, time)
    x, s, s_next = draw(0, BATCH, 4), a_state(net, 10), a_state(net, 20)
    original = change_of(net, rule, x, s, s_next)
    perturbed = change_of(net, rule, x + draw(30, BATCH, 4), s, s_next)
    for k, synapse in enumerate(net.synapses):
        for name in (n for n in original if belongs(n, k)):
            reads = synapse.pre == "input" and name.endswith("weight")
            assert torch.equal(perturbed[name], original[name]) == (not reads), name


@on_every_network
@in_every_time
@by_both_rules
def test_the_element_ij_of_an_update_reads_neurons_i_and_j_only(build, time, rule, tied):
    """Locality down to the single synapse: its two neurons, not the whole of their layers."""
    net = build(tied, time)
    x, s, s_next = draw(0, BATCH, 4), a_state(net, 10), a_state(net, 20)
    original = change_of(net, rule, x, s, s_next)["synapses.1.weight"]  # joins layers 0 and 1
    for layer, axis in ((0, 0), (1, 1)):
        states = [*s], [*s_next]
        for state in states:
            state[layer] = state[layer].clone()
            state[layer][:, 2] += 0.5
        perturbed = change_of(net, rule, x, *map(tuple, states))["synapses.1.weight"]
        moved = (perturbed != original).any(1 - axis)
        assert moved.tolist() == [i == 2 for i in range(original.shape[axis])]


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_a_synapse_computes_its_update_without_a_network(tied):
    """Dense sees what its two ends transmit, and how they change: the sums of outer products."""
    net = chain(tied, eqprop.Discrete())
    x, s, ds = draw(0, BATCH, 4), a_state(net, 10), a_state(net, 20)
    synapse = net.synapses[2]
    local = synapse.vector_field_gradient(s[1], s[2], ds[1], ds[2])
    whole = net.vector_field_gradient(x, s, ds)
    for field, gradient in local.items():
        torch.testing.assert_close(
            gradient / BATCH, whole[f"synapses.2.{field}"], rtol=0, atol=1e-15
        )
    forward = torch.einsum("bi,bj->ij", s[1], ds[2])
    backward = torch.einsum("bj,bi->ji", s[2], ds[1])
    expected = {"weight": forward + backward.T} if tied else {
        "weight": forward, "backward_weight": backward
    }  # fmt: skip
    for field, gradient in expected.items():
        torch.testing.assert_close(local[field], gradient, rtol=0, atol=1e-14)
    if tied:
        product = torch.einsum("bi,bj->ij", s[1], s[2])
        torch.testing.assert_close(
            synapse.phi_gradient(s[1], s[2])["weight"], product, rtol=0, atol=1e-14
        )


def record(net, rule, x, y, learning_rate):
    """The yields of a rule while θ moves at each, and the states s_0 … s_K beside them."""
    stream = rule.gradients(net, x, y)
    way, updates, thetas = [stream.free.state], [], []
    theta = dict(net.named_parameters())
    for t in range(K):
        thetas.append({name: p.clone() for name, p in theta.items()})
        way.append(nudged_step(net, x, y, way[-1], BETA, net.readout, t + 1))
        updates.append(next(stream))
        for name, gradient in updates[-1].items():
            theta[name].sub_(learning_rate * gradient)
    return stream.free, way, updates, thetas


@on_every_network
@in_every_time
@by_both_rules
def test_the_update_at_time_t_follows_from_the_states_at_t_and_t_plus_one(build, time, rule, tied):
    """From the record of states alone, while θ moves; other times' records do not enter."""
    net = build(tied, time)
    x, y = draw(0, BATCH, 4), draw(1, BATCH, 2)
    _, way, updates, _ = record(net, rule, x, y, learning_rate=0.1)
    for t, update in enumerate(updates):
        assert same(update, update_of(net, rule, x, way[t], way[t + 1]))
        for other in range(K + 1):
            disturbed = list(way)
            disturbed[other] = tuple(layer + 0.1 for layer in disturbed[other])
            again = update_of(net, rule, x, disturbed[t], disturbed[t + 1])
            assert same(update, again) == (other not in (t, t + 1))


@on_every_network
@in_every_time
@by_both_rules
def test_a_rule_started_afresh_at_any_time_yields_what_it_yielded_there(build, time, rule, tied):
    """So it carries nothing from its past but s_t and θ_t."""
    net = build(tied, time)
    x, y = draw(0, BATCH, 4), draw(1, BATCH, 2)
    free, way, updates, thetas = record(net, rule, x, y, learning_rate=0.1)
    trial = rule.present(net, x, y, net.readout, None)
    for t in range(K):
        for name, parameter in net.named_parameters():
            parameter.copy_(thetas[t][name])
        amnesiac = replace(trial, free=replace(free, state=way[t]))
        assert same(next(iter(rule.applied(amnesiac))), updates[t])


@by_both_rules
def test_a_rule_asks_the_model_about_two_moments_a_step(rule, tied, monkeypatch):
    """Between two yields the model is asked for updates at s_t and s_{t+1}, at no other state."""
    net = chain(tied, eqprop.Discrete())
    x, y = draw(0, BATCH, 4), draw(1, BATCH, 2)
    asked = []
    for name in ("phi_gradient", "vector_field_gradient"):
        whole = getattr(net, name)

        def listening(x, s, *ds_and_slope, whole=whole):
            asked.append(s)
            for ds in ds_and_slope[:1]:
                asked.append(tuple(a + d for a, d in zip(s, ds, strict=True)))
            return whole(x, s, *ds_and_slope)

        monkeypatch.setattr(net, name, listening)
    stream = rule.gradients(net, x, y)
    s = stream.free.state
    for t in range(K):
        s_next = nudged_step(net, x, y, s, BETA, net.readout, t + 1)
        asked.clear()
        next(stream)
        assert len(asked) == 2
        for state, moment in zip(asked, (s, s_next), strict=True):
            for a, b in zip(state, moment, strict=True):
                torch.testing.assert_close(a, b, rtol=0, atol=1e-15)  # s + (s' − s) is s' rounded
        s = s_next

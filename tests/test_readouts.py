"""Read-outs: against autograd at the steady state, and a read-out of one's own."""

import copy

import pytest
import torch
from torch.nn.functional import cross_entropy, one_hot

import eqprop
from eqprop import CrossEntropy, Dense, Input, Layer

SETTINGS = {"free_steps": 800, "nudged_steps": 300}


def a_network(readout, ensemble=(), shape=(2, 3)):
    return eqprop.Network(
        [Input(4), Layer("h", 6), Layer("o", shape)],
        [Dense("input", "h", bias=True), Dense("h", "o", bias=True)],
        time=eqprop.RealTime(0.5), activation="tanh", readout=readout, ensemble=ensemble,
        dtype=torch.float64,
    )  # fmt: skip


def a_minibatch(classes=3):
    source = torch.Generator().manual_seed(0)
    x = torch.rand(5, 4, generator=source, dtype=torch.float64)
    return x, torch.randint(classes, (5,), generator=source)


def unrolled_gradients(net, x, labels):
    """Autograd through 800 steps, and torch's own cross-entropy of the last layer's logits."""
    net = copy.deepcopy(net).requires_grad_()
    s = net.initial_state(x)
    for _ in range(800):
        s = net(x, s)
    logits = s[-1].flatten(1) @ net.readout.weight + net.readout.bias
    cross_entropy(logits, labels).backward()
    return {name: p.grad for name, p in net.named_parameters()}


@pytest.mark.parametrize("rule", [eqprop.RBP(free_steps=800), eqprop.BPTT(free_steps=800)])
def test_backward_gradients_are_those_of_autograd(rule):
    net, (x, labels) = a_network(CrossEntropy(3)), a_minibatch()
    (found,) = rule.gradients(net, x, labels)
    expected = unrolled_gradients(net, x, labels)
    assert found.keys() == expected.keys()
    for name in expected:
        torch.testing.assert_close(found[name], expected[name], rtol=0, atol=1e-12)


def test_a_cost_beside_a_read_out_of_its_own_is_refused():
    x, labels = a_minibatch()
    with_softmax, plain = a_network(CrossEntropy(3)), a_network(None, shape=3)
    rule = eqprop.EP(beta=0.1, free_steps=3, nudged_steps=2)
    for net, cost, message in (
        (with_softmax, eqprop.SquaredError(), "CrossEntropy, has parameters and a loss of its own"),
        (plain, CrossEntropy(3), "cost is a CrossEntropy that the model does not have"),
        (plain, with_softmax.readout, "cost is a CrossEntropy that the model does not have"),
    ):
        with pytest.raises(ValueError, match=message):
            eqprop.make_engine(net, rule, 0.1, cost=cost)
        with pytest.raises(ValueError, match=message):
            list(rule.gradients(net, x, labels, cost))
    assert eqprop.make_engine(with_softmax, rule, 0.1, cost=with_softmax.readout)


def test_ep_follows_autograd_at_the_rate_of_its_nudging():
    net, (x, labels) = a_network(CrossEntropy(3)), a_minibatch()
    expected = unrolled_gradients(net, x, labels)
    errors = []
    for beta in (0.1, 0.05):
        rule = eqprop.EP(nudging=eqprop.Centred(beta), **SETTINGS)
        (found,) = rule.gradients(net, x, labels)
        errors.append(max(float((found[n] - expected[n]).abs().max()) for n in expected))
    assert errors[0] / errors[1] == pytest.approx(4, rel=0.1)
    assert errors[1] < 5e-3


def test_the_read_out_learns_by_its_own_gradient_once_also_under_a_continual_rule():
    net, (x, labels) = a_network(CrossEntropy(3)), a_minibatch()
    expected = unrolled_gradients(net, x, labels)
    for rule in (eqprop.EP, eqprop.ContinualEP, eqprop.VF, eqprop.ContinualVF):
        items = list(rule(beta=0.1, free_steps=800, nudged_steps=5).gradients(net, x, labels))
        for name in ("readout.weight", "readout.bias"):
            total = sum(item[name] for item in items)
            torch.testing.assert_close(total, expected[name], rtol=0, atol=1e-12)


def test_answers_are_probabilities_and_losses_those_of_torch():
    net, (x, labels) = a_network(CrossEntropy(3), ensemble=(2,)), a_minibatch()
    s = eqprop.relax(net, x, 20).state
    p = net.output(s)
    torch.testing.assert_close(p.sum(-1), torch.ones(2, 5, dtype=torch.float64))
    logits = s[-1].flatten(2) @ net.readout.weight + net.readout.bias.unsqueeze(-2)
    for member in range(2):
        loss = cross_entropy(logits[member], labels, reduction="none")
        torch.testing.assert_close(net.readout.loss(s, labels)[member], loss)
    one = one_hot(labels, 3).double()
    assert torch.equal(net.readout.loss(s, labels), net.readout.loss(s, one))


def test_members_learn_with_a_read_out_of_their_own():
    several, (x, labels) = a_network(CrossEntropy(3), ensemble=(2,)), a_minibatch()
    rule = eqprop.ContinualEP(beta=0.2, free_steps=30, nudged_steps=5)
    alone = [several.member(i) for i in range(2)]
    assert not torch.equal(alone[0].readout.weight, alone[1].readout.weight)
    eqprop.make_engine(several, rule, (0.1, 0.2, 0.3)).step(x, labels)
    for i, net in enumerate(alone):
        eqprop.make_engine(net, rule, (0.1, 0.2, 0.3)).step(x, labels)
        for name, p in net.named_parameters():
            torch.testing.assert_close(several.get_parameter(name)[i], p, rtol=0, atol=1e-13)


@pytest.mark.slow
def test_a_network_with_a_softmax_learns():
    net, (x, labels) = a_network(CrossEntropy(3)), a_minibatch()
    engine = eqprop.make_engine(net, eqprop.EP(beta=0.2, free_steps=40, nudged_steps=20), 0.5)
    for _ in range(200):
        p = engine.step(x, labels)
    assert torch.equal(p.argmax(-1), labels)
    assert float(p[range(5), labels].min()) > 0.9


def test_the_list_of_rates_has_one_more_for_the_read_out():
    net = a_network(CrossEntropy(3))
    rule = eqprop.EP(beta=0.2, free_steps=4, nudged_steps=2)
    rates = eqprop.make_engine(net, rule, (0.1, 0.2, 0.3)).rates
    assert {name: rates[name] for name in ("synapses.1.bias", "readout.bias")} == {
        "synapses.1.bias": 0.2,
        "readout.bias": 0.3,
    }
    with pytest.raises(ValueError, match="2 entries, but the network has 3"):
        eqprop.make_engine(net, rule, (0.1, 0.2))


class Sum(eqprop.Readout):
    """The sum of the first layer answers."""

    @property
    def width(self):
        return 1

    def output(self, s):
        return s[0].sum(-1, keepdim=True)

    def loss(self, s, y):
        return 0.5 * ((self.output(s) - y) ** 2).sum(-1)

    def nudge(self, s, y):
        return {0: (self.output(s) - y).expand_as(s[0])}


def test_a_read_out_of_ones_own_nudges_the_layer_it_reads():
    net, (x, _) = a_network(Sum()), a_minibatch()
    y = torch.linspace(-1, 1, 5, dtype=torch.float64)[:, None]
    exact = eqprop.RBP(free_steps=800)
    (expected,) = exact.gradients(net, x, y)
    (found,) = eqprop.EP(nudging=eqprop.Centred(0.003), **SETTINGS).gradients(net, x, y)
    for name in expected:
        torch.testing.assert_close(found[name], expected[name], rtol=2e-3, atol=1e-3)
    assert float(expected["synapses.0.weight"].abs().max()) > 0.05


@pytest.mark.parametrize("classes", [1, 2.5, True])
def test_a_bad_number_of_classes_is_refused(classes):
    with pytest.raises(ValueError, match="classes must be an integer of 2 or more"):
        CrossEntropy(classes)


def test_targets_that_do_not_fit_are_refused():
    net, (x, _) = a_network(CrossEntropy(3)), a_minibatch()
    engine = eqprop.make_engine(net, eqprop.EP(beta=0.2, free_steps=4, nudged_steps=2), 0.1)
    with pytest.raises(ValueError, match="y holds class 3, but the output layer has 3"):
        engine.step(x, torch.tensor([0, 1, 2, 3, 0]))
    with pytest.raises(ValueError, match="readout must be"):
        a_network("softmax")

"""Updates: against torch.optim on the members alone, and what telescopes with which."""

import pytest
import torch
from torch.optim.lr_scheduler import StepLR

import eqprop
from eqprop import SGD, Conv2d, Dense, Input, Layer, Optimiser

RULE = eqprop.EP(beta=0.2, free_steps=10, nudged_steps=4)


def a_network(ensemble=(), **more):
    return eqprop.layered(4, 5, 3, ensemble=ensemble, dtype=torch.float64, **more)


def minibatches(n=6):
    source = torch.Generator().manual_seed(0)
    for _ in range(n):
        yield (
            torch.rand(6, 4, generator=source, dtype=torch.float64),
            torch.rand(6, 3, generator=source, dtype=torch.float64),
        )


def by_hand(net, make, rule=RULE):
    """The README's loop: whoever consumes the stream steps the optimiser."""
    optimiser = make(net.parameters())
    for x, y in minibatches():
        for gradients in rule.gradients(net, x, y):
            for name, p in net.named_parameters():
                p.grad = gradients[name].clone()
            optimiser.step()
    return [p.detach().clone() for p in net.parameters()]


UPDATES = {
    "plain": (SGD(), lambda p: torch.optim.SGD(p, 0.1)),
    "momentum": (SGD(momentum=0.9), lambda p: torch.optim.SGD(p, 0.1, momentum=0.9)),
    "decay": (SGD(weight_decay=0.03), lambda p: torch.optim.SGD(p, 0.1, weight_decay=0.03)),
    "both, Nesterov": (
        SGD(momentum=0.8, weight_decay=0.03, nesterov=True),
        lambda p: torch.optim.SGD(p, 0.1, momentum=0.8, weight_decay=0.03, nesterov=True),
    ),
    "Adam": (Optimiser(torch.optim.Adam), lambda p: torch.optim.Adam(p, 0.1)),
}
any_update = pytest.mark.parametrize("name", UPDATES)


@any_update
@pytest.mark.parametrize(
    "rule", [RULE, eqprop.ContinualEP(beta=0.2, free_steps=10, nudged_steps=4)]
)
def test_an_engine_moves_as_the_optimiser_does_by_hand(name, rule):
    update, make = UPDATES[name]
    net = a_network()
    engine = eqprop.make_engine(net, rule, 0.1, update=update)
    for x, y in minibatches():
        engine.step(x, y)
    for p, q in zip(net.parameters(), by_hand(a_network(), make, rule), strict=True):
        torch.testing.assert_close(p, q, rtol=0, atol=1e-13)


@any_update
def test_members_with_rates_of_their_own_move_as_they_do_alone(name):
    update, _ = UPDATES[name]
    several = a_network(ensemble=(2, 2))
    rates = torch.tensor([[0.1, 0.2], [0.05, 0.3]], dtype=torch.float64)
    members = {at: several.member(*at) for at in [(0, 0), (0, 1), (1, 0), (1, 1)]}
    engine = eqprop.make_engine(several, RULE, rates, "reference", update=update)
    for x, y in minibatches():
        engine.step(x, y)
    for at, net in members.items():
        alone = eqprop.make_engine(net, RULE, float(rates[at]), "reference", update=update)
        for x, y in minibatches():
            alone.step(x, y)
        for field, p in net.named_parameters():
            torch.testing.assert_close(several.get_parameter(field)[at], p, rtol=0, atol=1e-13)


@any_update
def test_nothing_moves_if_every_parameter_is_frozen(name):
    update, _ = UPDATES[name]
    net = a_network()
    before = [p.clone() for p in net.parameters()]
    frozen = [name for name, _ in net.named_parameters()]
    engine = eqprop.make_engine(net, RULE, 0.1, update=update, frozen=frozen)
    for x, y in minibatches():
        engine.step(x, y)
        engine.next_epoch()
    assert all(torch.equal(p, value) for p, value in zip(net.parameters(), before, strict=True))


def test_a_schedule_advances_once_per_epoch():
    update = SGD(schedule=lambda optimiser: StepLR(optimiser, step_size=1, gamma=0.5))
    scheduled, plain = a_network(), a_network()
    engine = eqprop.make_engine(scheduled, RULE, 0.2, update=update)
    for epoch, (x, y) in enumerate(minibatches(3)):
        engine.step(x, y)
        engine.next_epoch()
        eqprop.make_engine(plain, RULE, 0.2 * 0.5**epoch, "reference").step(x, y)
    for p, q in zip(scheduled.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=0, atol=1e-15)


class Failing(eqprop.ContinualEP):
    """It fails in the middle of a minibatch with large targets."""

    def applied(self, trial):
        for t, gradients in enumerate(super().applied(trial)):
            if t == 2 and float(trial.y.max()) > 10:
                raise eqprop.NonFiniteState("output", t, "nudged", torch.ones(()).bool())
            yield gradients


@any_update
def test_a_step_that_fails_forgets_what_it_remembered(name):
    """The way on is that of a network that never saw the bad minibatch."""
    update, _ = UPDATES[name]
    straight, disturbed = a_network(), a_network()
    rule = Failing(beta=0.2, free_steps=10, nudged_steps=4)
    for net in (straight, disturbed):
        engine = eqprop.make_engine(net, rule, 0.1, "reference", update=update)
        for m, (x, y) in enumerate(minibatches()):
            if m != 3:
                engine.step(x, y)
            elif net is disturbed:
                with pytest.raises(eqprop.NonFinite):
                    engine.step(x, y + 100)
    for p, q in zip(straight.parameters(), disturbed.parameters(), strict=True):
        assert torch.equal(p, q)


def test_what_an_update_remembers_can_be_kept_and_restored():
    update = SGD(momentum=0.9)
    whole, first, second = a_network(), a_network(), a_network()
    engine = eqprop.make_engine(whole, RULE, 0.1, update=update)
    for x, y in minibatches():
        engine.step(x, y)
    before = eqprop.make_engine(first, RULE, 0.1, update=update)
    after = eqprop.make_engine(second, RULE, 0.1, update=update)
    for m, (x, y) in enumerate(minibatches()):
        if m == 3:
            second.load_state_dict(first.state_dict())
            after.mover.restore(before.mover.state())
        (before if m < 3 else after).step(x, y)
    for p, q in zip(whole.parameters(), second.parameters(), strict=True):
        assert torch.equal(p, q)


def test_only_plain_descent_is_linear_and_fast_engines_refuse_the_rest():
    assert SGD().linear
    for update in (SGD(momentum=0.1), SGD(weight_decay=0.1), Optimiser(torch.optim.Adam)):
        assert not update.linear
        with pytest.raises(ValueError, match="'native' cannot run an update other than plain"):
            eqprop.make_engine(a_network(), RULE, 0.1, "native", update=update)
        engine = eqprop.make_engine(a_network(), RULE, 0.1, update=update)
        assert type(engine).__name__ == "ReferenceEngine"


def test_a_rescaled_rule_gives_any_update_one_gradient_per_minibatch():
    """The sum over the phase, while θ moves by η_tiny. Momentum does not change η_tiny."""
    rule = eqprop.ContinualEP(beta=0.2, free_steps=10, nudged_steps=4, rescale=0.1)
    ours, theirs = a_network(), a_network()
    engine = eqprop.make_engine(ours, rule, 0.1, update=SGD(momentum=0.9, weight_decay=0.01))
    theta = [p.requires_grad_() for p in theirs.parameters()]
    optimiser = torch.optim.SGD(theta, lr=0.1, momentum=0.9, weight_decay=0.01)
    for x, y in minibatches():
        totals = eqprop.total_update(theirs, rule, x, y, learning_rates=0.1)
        for p, gradient in zip(theta, totals.values(), strict=True):
            p.grad = gradient
        optimiser.step()
        engine.step(x, y)
    for p, q in zip(ours.parameters(), theta, strict=True):
        torch.testing.assert_close(p, q.detach(), rtol=0, atol=1e-14)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"momentum": 1.0}, "momentum must lie in"),
        ({"momentum": -0.1}, "momentum must lie in"),
        ({"weight_decay": -1.0}, "weight_decay must not be negative"),
        ({"nesterov": True}, "nesterov needs momentum"),
    ],
)
def test_a_bad_update_is_refused(given, message):
    with pytest.raises(ValueError, match=message):
        SGD(**given)
    with pytest.raises(ValueError, match="update must be SGD"):
        eqprop.make_engine(a_network(), RULE, 0.1, update=0.9)


def untied(convolution, shared_update):
    """Two layers with weights at right angles, or three, two of them joined by a convolution."""
    free = {"tied": False, "angle": 90, "shared_update": shared_update}
    if convolution:
        layers = [Layer("a", (4, 6, 6)), Layer("b", (4, 3, 3)), Layer("out", 3)]
        synapses = [
            Conv2d("input", "a", kernel=3, padding=1, bias=True),
            Conv2d("a", "b", kernel=3, padding=1, pool=2, **free),
            Dense("b", "out", bias=True, **free),
        ]
    else:
        layers = [Layer("a", 20), Layer("out", 3)]
        synapses = [Dense("input", "a", bias=True), Dense("a", "out", bias=True, **free)]
    return eqprop.Network([Input((1, 6, 6)), *layers], synapses, dtype=torch.float64, seed=3)


@pytest.mark.slow
@pytest.mark.parametrize("convolution", [False, True])
def test_decay_aligns_weights_that_share_their_updates(convolution):
    """Kolen and Pollack: what two weights with equal updates began with decays. Without decay
    they stay apart.
    """
    x = torch.rand(12, 1, 6, 6, generator=torch.Generator().manual_seed(1)).double().round()
    y = torch.arange(12) % 3
    rule = eqprop.VF(beta=0.2, free_steps=20, nudged_steps=10)
    angles = {}
    for decay in (0.0, 0.2):
        net = untied(convolution, shared_update=True)
        engine = eqprop.make_engine(net, rule, 0.2, update=SGD(weight_decay=decay))
        apart = [s.weight - s.reverse(s.backward_weight) for s in net.synapses[1:]]
        for _ in range(100):
            engine.step(x, y)
        angles[decay] = max(float(s.angle()) for s in net.synapses[1:])
        for synapse, before in zip(net.synapses[1:], apart, strict=True):
            after = synapse.weight - synapse.reverse(synapse.backward_weight)
            left = (1 - 0.2 * decay) ** 100  # the difference decays, and nothing else moves it
            torch.testing.assert_close(after, left * before, rtol=0, atol=1e-12)
    assert angles[0.2] < 20
    assert angles[0.0] > angles[0.2] + 20


@pytest.mark.parametrize("convolution", [False, True])
def test_shared_updates_are_the_sum_of_both(convolution):
    alone, shared = (untied(convolution, shared_update=each) for each in (False, True))
    x = torch.rand(3, 1, 6, 6, generator=torch.Generator().manual_seed(1)).double()
    s = eqprop.relax(alone, x, 3).state
    ds = tuple(torch.randn_like(layer) for layer in s)
    mine, theirs = (net.vector_field_gradient(x, s, ds) for net in (shared, alone))
    last = len(alone.synapses) - 1
    total = theirs[f"synapses.{last}.weight"] + theirs[f"synapses.{last}.backward_weight"].mT
    torch.testing.assert_close(mine[f"synapses.{last}.weight"], total)
    torch.testing.assert_close(mine[f"synapses.{last}.backward_weight"], total.mT)
    base = eqprop.Synapses.vector_field_gradient
    rates = [s[0], s[1]] if not convolution else [s[1], s[2]]
    found = base(shared.synapses[last], *rates, ds[last - 1], ds[last])
    torch.testing.assert_close(found["weight"], 3 * total)


def test_shared_updates_need_two_weights():
    with pytest.raises(ValueError, match="shared_update needs untied weights"):
        Dense("a", "b", shared_update=True)


def test_an_update_that_says_it_is_linear_must_be():
    class Own(SGD):
        def mover(self, model, rates):
            return Optimiser(torch.optim.Adam).mover(model, rates)

    with pytest.raises(
        ValueError, match="Own says that it is linear, so its mover must be Descent"
    ):
        eqprop.make_engine(a_network(), RULE, 0.1, update=Own())


def test_a_network_with_methods_of_its_own_is_not_run_as_another():
    class Doubled(eqprop.Network):
        def hold(self, x):
            return {i: 2 * drive for i, drive in super().hold(x).items()}

    class Named(eqprop.Network):
        def __init__(self):
            super().__init__([Input(4), Layer("o", 3)], [Dense("input", "o")])

    net = Doubled([Input(4), Layer("o", 3)], [Dense("input", "o")])
    assert type(eqprop.make_engine(net, RULE, 0.1)).__name__ == "ReferenceEngine"
    with pytest.raises(ValueError, match="cannot run a Doubled with methods of its own"):
        eqprop.make_engine(net, RULE, 0.1, "native")
    assert type(eqprop.make_engine(Named(), RULE, 0.1)).__name__ != "ReferenceEngine"

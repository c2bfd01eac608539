"""One minibatch of (model, rule, learning rates), and what many of them come to.

Oracle: the paper's algorithm boxes written out here (Alg. ep, cep, debug-cep), torch.autograd for
BPTT and RBP, and for learning a task that no constant answer can do well.
"""

import copy
import math
from dataclasses import dataclass, field, replace
from itertools import pairwise

import pytest
import torch

import eqprop
from eqprop.costs import SquaredError

BETA, T, K = 0.3, 6, 4
RULES = {
    "EP": eqprop.EP(beta=BETA, free_steps=T, nudged_steps=K),
    "C-EP": eqprop.ContinualEP(beta=BETA, free_steps=T, nudged_steps=K),
    "VF": eqprop.VF(beta=BETA, free_steps=T, nudged_steps=K),
    "C-VF": eqprop.ContinualVF(beta=BETA, free_steps=T, nudged_steps=K),
    "BPTT": eqprop.BPTT(free_steps=T, backward_steps=K),
    "RBP": eqprop.RBP(free_steps=400, backward_steps=K),
}
TWO_PHASE = ("EP", "C-EP", "VF", "C-VF")
RATES = (0.2, 0.1, 0.05)  # input to output

every_rule = pytest.mark.parametrize("name", RULES)
two_phase_rules = pytest.mark.parametrize("name", TWO_PHASE)


def close(actual, expected, atol=1e-13):
    """Some hundred float64 operations on numbers of order one, in another order."""
    torch.testing.assert_close(actual, expected, rtol=0, atol=atol)


def a_network(time=None, dtype=torch.float64, **more):
    more = {"activation": "tanh", "init": "fan_in", "seed": 1} | more
    return eqprop.layered(4, 5, 3, 2, time=time or eqprop.Discrete(), dtype=dtype, **more)


def a_minibatch(batch=6, seed=0, dtype=torch.float64):
    source = torch.Generator().manual_seed(seed)
    return tuple(
        torch.randn(batch, n, generator=source, dtype=torch.float64).to(dtype) for n in (4, 2)
    )


def parameters(net):
    return {name: p.clone() for name, p in net.named_parameters()}


def assert_equal_parameters(net, expected, atol=1e-13):
    assert parameters(net).keys() == expected.keys()
    for name, p in net.named_parameters():
        close(p, expected[name], atol)


def nudged(net, x, y, s, beta):
    *hidden, output = net(x, s)
    return (*hidden, output + beta * net.nudge_scale * (y - s[-1]))


def change(net, x, s, s_next, contrastive):
    """The bracket of Eq. (C-EP), or of Eq. (c-vf-2nd-phase)."""
    if contrastive:
        before, after = net.phi_gradient(x, s), net.phi_gradient(x, s_next)
        return {name: after[name] - before[name] for name in after}
    return net.vector_field_gradient(x, s, tuple(b - a for a, b in zip(s, s_next, strict=True)))


def free_phase(net, x, steps):
    s = tuple(torch.zeros(x.shape[0], n, dtype=x.dtype) for n in net.layer_sizes)
    for _ in range(steps):
        s = net(x, s)
    return s


def by_hand(name, net, x, y, eta, beta=BETA):
    """One minibatch of each algorithm box, on `net` itself; returns s_*."""
    theta = dict(net.named_parameters())
    scale = beta * net.nudge_scale
    contrastive = name in ("EP", "C-EP")
    if name in ("BPTT", "RBP"):
        # K steps of s ← F(x, s, θ) up to s_T, or from s_* on: there they all are s_*
        s_star = free_phase(net, x, RULES[name].free_steps)
        s = free_phase(net, x, T - K) if name == "BPTT" else s_star
        leaves = {n: p.clone().requires_grad_() for n, p in theta.items()}
        for _ in range(K):
            s = torch.func.functional_call(net, leaves, (x, s))
        loss = 0.5 * ((s[-1] - y) ** 2).sum(-1).mean()
        for n, g in zip(leaves, torch.autograd.grad(loss, leaves.values()), strict=True):
            theta[n].sub_(eta[n] * g)
        return s_star
    s = s_star = free_phase(net, x, T)
    total = {n: torch.zeros_like(p) for n, p in theta.items()}
    for _ in range(K):
        s_next = nudged(net, x, y, s, beta)
        for n, delta in change(net, x, s, s_next, contrastive).items():
            if name.startswith("C-"):
                theta[n].add_(eta[n] / scale * delta)
            else:
                total[n] += eta[n] / scale * delta
        s = s_next
    for n in theta:
        theta[n].add_(total[n])
    return s_star


def rates_of(net, rates=RATES):
    return {name: rates[int(name.split(".")[1])] for name, _ in net.named_parameters()}


@every_rule
@pytest.mark.parametrize("kind", ["reference", "auto"])
@pytest.mark.parametrize(
    "time", [eqprop.Discrete(), eqprop.RealTime(dt=0.6)], ids=["discrete", "real time"]
)
def test_three_minibatches_are_three_times_the_algorithm_box(name, kind, time):
    net = a_network(time)
    theirs = copy.deepcopy(net)
    start = parameters(net)
    engine = eqprop.make_engine(net, RULES[name], RATES, kind)
    for seed in range(3):
        x, y = a_minibatch(seed=seed)
        output = engine.step(x, y)
        s_star = by_hand(name, theirs, x, y, rates_of(net))
        close(output, s_star[-1])
        assert_equal_parameters(net, parameters(theirs), atol=1e-12)
    for parameter, p in net.named_parameters():
        assert float((p - start[parameter]).abs().max()) > 1e-4, parameter


@pytest.mark.slow
@every_rule
def test_a_users_own_phi_trains_by_the_same_boxes(name):
    """Φ is not linear in θ: both terms of Eq. (C-EP) are at θ_t, the latest there is."""

    def phi(x, s, theta):
        hidden, output = s
        pair = (torch.sin(hidden @ torch.tanh(theta["w"])) * output).sum(-1)
        pull = 0.1 * (hidden**2).sum(-1) + 0.05 * (output**2).sum(-1)
        return pull + pair + (torch.tanh(x @ torch.exp(theta["d"])) * hidden).sum(-1)

    source = torch.Generator().manual_seed(3)
    model = eqprop.Primitive(
        phi,
        parameters={
            "w": 0.25 * torch.randn(3, 2, generator=source, dtype=torch.float64),
            "d": 0.5 * torch.randn(4, 3, generator=source, dtype=torch.float64),
        },
        layers={"hidden": 3, "output": 2},
        inputs=4,
    )
    theirs = copy.deepcopy(model)
    eta = {"w": 0.3, "d": 0.2}
    engine = eqprop.make_engine(model, RULES[name], eta)
    for seed in range(3):
        x, y = a_minibatch(seed=seed)
        engine.step(x, y)
        by_hand(name, theirs, x, y, eta)
        assert_equal_parameters(model, parameters(theirs), atol=1e-12)


@pytest.mark.parametrize(("continual", "at_once"), [("C-EP", "EP"), ("C-VF", "VF")])
def test_a_continual_rule_moves_theta_within_the_phase(continual, at_once):
    """So it differs from its sum at fixed θ by the order of η, and tends to it as η → 0."""

    def gradient(name, eta):
        net, (x, y) = a_network(), a_minibatch()
        before = parameters(net)
        eqprop.make_engine(net, RULES[name], eta).step(x, y)
        return torch.cat([((before[n] - p) / eta).flatten() for n, p in net.named_parameters()])

    fixed = gradient(at_once, 1e-3)
    errors = [float((gradient(continual, eta) - fixed).norm()) for eta in (1e-1, 1e-2, 1e-3)]
    assert errors[0] > 1e-3 * float(fixed.norm())
    orders = [math.log10(a / b) for a, b in pairwise(errors)]
    assert orders == pytest.approx([1, 1], abs=0.1)  # the next order is η times as large


@every_rule
def test_the_step_returns_the_output_of_the_free_phase_and_keeps_its_report(name):
    net, (x, y) = a_network(), a_minibatch()
    before = copy.deepcopy(net)
    engine = eqprop.make_engine(net, RULES[name], 0.5)
    assert engine.relaxation is None
    output = engine.step(x, y)
    close(output, free_phase(before, x, RULES[name].free_steps)[-1])
    assert engine.relaxation.state[-1] is output
    assert engine.relaxation.steps == RULES[name].free_steps


@every_rule
def test_parameters_move_in_place(name):
    net, (x, y) = a_network(), a_minibatch()
    objects, memory = list(net.parameters()), [p.data_ptr() for p in net.parameters()]
    eqprop.make_engine(net, RULES[name], 0.1).step(x, y)
    assert all(a is b for a, b in zip(objects, net.parameters(), strict=True))
    assert memory == [p.data_ptr() for p in net.parameters()]


def moved(net, learning_rates, **options):
    """{name: the share of the gradient that θ moved down by}, for EP."""
    x, y = a_minibatch()
    (gradients,) = RULES["EP"].gradients(net, x, y)
    before = parameters(net)
    eqprop.make_engine(net, RULES["EP"], learning_rates, **options).step(x, y)
    shares = {}
    for name, p in net.named_parameters():
        rate = float(((before[name] - p) * gradients[name]).sum() / (gradients[name] ** 2).sum())
        close(p, before[name] - rate * gradients[name])
        shares[name] = rate
    return shares


def test_one_learning_rate_serves_every_parameter():
    shares = moved(a_network(), 0.07)
    assert len(shares) == 6
    assert list(shares.values()) == pytest.approx([0.07] * 6, rel=1e-9)


def test_a_list_of_learning_rates_runs_over_synapses_from_input_to_output():
    shares = moved(a_network(), [0.3, 0.2, 0.1])
    expected = {
        f"synapses.{k}.{f}": r for k, r in enumerate((0.3, 0.2, 0.1)) for f in ("weight", "bias")
    }
    assert shares == pytest.approx(expected, rel=1e-9)


def test_learning_rates_by_name_move_the_named_and_no_others():
    net = a_network()
    shares = moved(net, {"synapses.0.weight": 0.3, "synapses.2.bias": 0.1})
    expected = {name: 0.0 for name, _ in net.named_parameters()}
    expected |= {"synapses.0.weight": 0.3, "synapses.2.bias": 0.1}
    assert shares == pytest.approx(expected, rel=1e-9, abs=0)


def test_forward_and_backward_weights_share_the_rate_of_their_synapse():
    net, (x, y) = a_network(tied=False, angle=30.0), a_minibatch()
    (gradients,) = RULES["VF"].gradients(net, x, y)
    before = parameters(net)
    eqprop.make_engine(net, RULES["VF"], RATES).step(x, y)
    for k in (1, 2):
        for name in (f"synapses.{k}.weight", f"synapses.{k}.backward_weight"):
            close(net.get_parameter(name), before[name] - RATES[k] * gradients[name])


@every_rule
def test_frozen_parameters_do_not_move_and_the_others_do(name):
    net, (x, y) = a_network(), a_minibatch()
    frozen = ("synapses.0.bias", "synapses.1.weight")
    before = parameters(net)
    engine = eqprop.make_engine(net, RULES[name], 0.1, frozen=frozen)
    for _ in range(2):
        engine.step(x, y)
    for parameter, p in net.named_parameters():
        assert torch.equal(p, before[parameter]) == (parameter in frozen), parameter


def test_a_frozen_parameter_stays_while_the_others_follow_the_box():
    net, (x, y) = a_network(), a_minibatch()
    theirs = copy.deepcopy(net)
    eqprop.make_engine(net, RULES["C-EP"], 0.1, frozen=["synapses.1.weight"]).step(x, y)
    eta = dict.fromkeys(rates_of(net), 0.1) | {"synapses.1.weight": 0.0}
    by_hand("C-EP", theirs, x, y, eta)
    assert_equal_parameters(net, parameters(theirs))


def test_a_users_cost_drives_the_second_phase():
    """Cross-entropy of a softmax on whole-number labels: ∂ℓ/∂s = softmax(s) − onehot."""
    net, (x, _) = a_network(), a_minibatch()
    labels = torch.tensor([0, 1, 1, 0, 1, 0])

    def cross_entropy(output, y):
        return torch.nn.functional.cross_entropy(output, y, reduction="none")

    s = s_star = free_phase(net, x, T)
    for _ in range(K):
        *hidden, output = net(x, s)
        uphill = torch.softmax(s[-1], -1) - torch.nn.functional.one_hot(labels, 2)
        s = (*hidden, output - BETA * uphill)
    before, delta = parameters(net), change(net, x, s_star, s, contrastive=True)
    eqprop.make_engine(net, RULES["EP"], 0.1, cost=cross_entropy).step(x, labels)
    assert_equal_parameters(net, {n: before[n] + 0.1 / BETA * delta[n] for n in before})


@dataclass(frozen=True, kw_only=True)
class Listening(eqprop.EP):
    """EP that remembers which signs of β it was given."""

    heard: list = field(default_factory=list)

    def gradients(self, model, x, y, cost=SquaredError(), *, sign=None):  # noqa: B008 (frozen)
        self.heard.append(sign.clone())
        return super().gradients(model, x, y, cost, sign=sign)


def signs(minibatches, **network):
    """[minibatch, *ensemble], drawn by a fresh engine."""
    net, (x, y) = a_network(**network), a_minibatch(batch=1)
    rule = Listening(beta=BETA, free_steps=1, nudged_steps=1, random_sign=True)
    engine = eqprop.make_engine(net, rule, 0.01)
    for _ in range(minibatches):
        engine.step(x, y)
    return torch.stack(rule.heard)


@pytest.mark.slow
def test_both_signs_of_beta_come_up_half_the_time():
    n = 400
    drawn = signs(n, ensemble=3)
    assert drawn.shape == (n, 3)
    assert set(drawn.unique().tolist()) == {-1.0, 1.0}
    # four standard errors of a binomial share, 1/(2√n) each
    for share in (drawn > 0).double().mean(0).tolist():
        assert abs(share - 0.5) < 4 * 0.5 / math.sqrt(n)
    # and one minibatch tells nothing of the next, nor one member of another
    assert abs(float((drawn[1:, 0] * drawn[:-1, 0]).mean())) < 4 / math.sqrt(n)
    assert abs(float((drawn[:, 0] * drawn[:, 1]).mean())) < 4 / math.sqrt(n)


def test_the_signs_follow_from_the_seed_and_not_from_the_company():
    drawn = signs(30, seed=11, ensemble=3)
    assert torch.equal(drawn, signs(30, seed=11, ensemble=3))
    assert not torch.equal(drawn, signs(30, seed=12, ensemble=3))
    for i in range(3):
        assert torch.equal(drawn[:, i], signs(30, seed=11 + i))


def test_an_engine_leaves_the_global_random_stream_alone():
    net, (x, y) = a_network(), a_minibatch()
    engine = eqprop.make_engine(net, replace(RULES["C-EP"], random_sign=True), 0.1)
    before = torch.get_rng_state()
    engine.step(x, y)
    assert torch.equal(before, torch.get_rng_state())


@two_phase_rules
def test_a_drawn_sign_flips_beta_and_changes_nothing_else(name):
    """Each minibatch is the box with +β or −β exactly: β keeps its float64 value."""
    net, (x, y) = a_network(), a_minibatch()
    engine = eqprop.make_engine(net, replace(RULES[name], random_sign=True), 0.1)
    met = set()
    for _ in range(8):
        boxes = {}
        for sign in (1, -1):
            theirs = copy.deepcopy(net)
            by_hand(name, theirs, x, y, dict.fromkeys(rates_of(net), 0.1), sign * BETA)
            boxes[sign] = theirs.synapses[0].weight
        engine.step(x, y)
        distance = {s: float((net.synapses[0].weight - w).abs().max()) for s, w in boxes.items()}
        sign = min(distance, key=distance.get)
        met.add(sign)
        assert distance[-sign] > 1e-6
        assert distance[sign] < 1e-13
    assert met == {1, -1}


@two_phase_rules
def test_a_sign_given_to_the_step_multiplies_beta(name):
    net, (x, y) = a_network(), a_minibatch()
    theirs = copy.deepcopy(net)
    engine = eqprop.make_engine(net, replace(RULES[name], random_sign=True), RATES)
    for sign in (-1.0, 1.0, -1.0):
        engine.step(x, y, sign=torch.tensor(sign, dtype=torch.float64))
        by_hand(name, theirs, x, y, rates_of(net), sign * BETA)
    assert_equal_parameters(net, parameters(theirs), atol=1e-12)


def debug_cep(net, x, y, eta, rescale):
    """Alg. debug-cep, line by line."""
    theta = dict(net.named_parameters())
    s = free_phase(net, x, T)
    total = {n: torch.zeros_like(p) for n, p in theta.items()}  # Δθ
    for _ in range(K):
        s_next = nudged(net, x, y, s, BETA)
        for n, delta in change(net, x, s, s_next, contrastive=True).items():
            tiny = rescale * eta[n]
            theta[n].add_(tiny / BETA * delta)
            total[n] += tiny / BETA * delta
        s = s_next
    for n in theta:
        theta[n].copy_(theta[n] - total[n] + total[n] / rescale)


@pytest.mark.parametrize("rescale", [1e-5, 1e-2, 1.0])
def test_rescaled_cep_is_its_algorithm_box(rescale):
    net = a_network()
    theirs = copy.deepcopy(net)
    rule = replace(RULES["C-EP"], rescale=rescale)
    engine = eqprop.make_engine(net, rule, RATES)
    for seed in range(3):
        x, y = a_minibatch(seed=seed)
        engine.step(x, y)
        debug_cep(theirs, x, y, rates_of(net), rescale)
        # the box rounds θ + η_tiny Δ at 1e-17 and the phase divides that by β: 1e-16 a step
        assert_equal_parameters(net, parameters(theirs), atol=1e-14)


def total_update(rule, dtype=torch.float64, eta=0.1):
    net, (x, y) = a_network(dtype=dtype), a_minibatch(dtype=dtype)
    before = parameters(net)
    eqprop.make_engine(net, rule, eta).step(x, y)
    return flat({n: p - before[n] for n, p in net.named_parameters()})


def flat(tensors):
    return torch.cat([v.double().flatten() for v in tensors.values()])


def test_rescaled_cep_tends_to_ep_in_proportion_to_the_rescaling():
    ep = total_update(RULES["EP"])
    errors = [
        float((total_update(replace(RULES["C-EP"], rescale=r)) - ep).norm())
        for r in (1.0, 1e-1, 1e-2, 1e-3)
    ]
    assert errors[0] > 1e-4 * float(ep.norm())
    orders = [math.log10(a / b) for a, b in pairwise(errors)]
    assert orders[1:] == pytest.approx([1, 1], abs=0.02)  # the next order is 1e-2 · η of the first


def test_rescaled_cep_loses_no_update_to_rounding_in_float32():
    """η_tiny Δ is below half a unit in the last place of most weights: added to them one by one,
    as the box reads, it would be lost. The total must be that of float64 all the same."""
    eta, rescale = 1e-2, 1e-5
    rule = replace(RULES["C-EP"], rescale=rescale)
    net, (x, y) = a_network(dtype=torch.float32), a_minibatch(dtype=torch.float32)
    exact = a_network()
    exact.load_state_dict(net.state_dict())  # the same numbers: float32 within float64
    naive = copy.deepcopy(net)
    start = parameters(net)

    eqprop.make_engine(exact, rule, eta).step(x.double(), y.double())
    eqprop.make_engine(net, rule, eta).step(x, y)
    tiny = dict.fromkeys(rates_of(net), rescale * eta)
    by_hand("C-EP", naive, x, y, tiny)

    truth = flat({n: p - start[n].double() for n, p in exact.named_parameters()})
    ours = flat({n: p.double() - start[n].double() for n, p in net.named_parameters()})
    lossy = flat(
        {n: (p.double() - start[n].double()) / rescale for n, p in naive.named_parameters()}
    )
    # θ of order ½ is stored to 3e-8, the update is 1e-3 to 1e-2 of it: 1e-5, and some for Δ
    assert float((ours - truth).norm() / truth.norm()) < 1e-4
    assert float((lossy - truth).norm() / truth.norm()) > 0.1


def test_a_step_that_diverges_leaves_the_parameters_as_they_were():
    """θ has moved by the time the neurons overflow, and is put back."""
    net, (x, y) = a_network(activation="identity"), a_minibatch()
    before = parameters(net)
    engine = eqprop.make_engine(net, replace(RULES["C-EP"], nudged_steps=9), 1e30)
    with pytest.raises(eqprop.NonFiniteState, match="of the nudged phase") as caught:
        engine.step(x, y)
    assert caught.value.step > 1
    assert all(torch.equal(p, before[n]) for n, p in net.named_parameters())


def test_an_update_that_is_not_finite_is_refused_by_the_name_of_the_parameter():
    """η times a gradient of 1e20 is beyond float32."""
    net = a_network(activation="identity", dtype=torch.float32)
    x, y = (1e10 * v for v in a_minibatch(dtype=torch.float32))
    before = parameters(net)
    engine = eqprop.make_engine(net, RULES["EP"], {"synapses.1.weight": 1e30})
    with pytest.raises(eqprop.NonFinite, match=r"parameter synapses\.1\.weight"):
        engine.step(x, y)
    assert all(torch.equal(p, before[n]) for n, p in net.named_parameters())


XOR = torch.tensor([[0, 0], [0, 1], [1, 0], [1, 1]], dtype=torch.float64)
ONE_HOT = torch.tensor([[1, 0], [0, 1], [0, 1], [1, 0]], dtype=torch.float64)


def xor_loss(net):
    output = eqprop.relax(net, XOR, 60).state[-1]
    return float(0.5 * ((output - ONE_HOT) ** 2).sum(-1).mean())


LEARNERS = {
    "EP": eqprop.EP(beta=0.5, free_steps=16, nudged_steps=6),
    "C-EP": eqprop.ContinualEP(beta=0.5, free_steps=16, nudged_steps=6),
    "VF": eqprop.VF(beta=0.5, free_steps=16, nudged_steps=6),
    "C-VF": eqprop.ContinualVF(beta=0.5, free_steps=16, nudged_steps=6),
    "BPTT": eqprop.BPTT(free_steps=16, backward_steps=6),
    "RBP": eqprop.RBP(free_steps=16, backward_steps=6),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", LEARNERS)
def test_every_rule_learns_xor_and_its_opposite_does_not(name):
    """No linear function of x has a loss below ¼. From 0.38, these end below 0.03."""
    rule, rates = LEARNERS[name], (0.1, 0.05)
    net, opposite = (
        eqprop.layered(2, 12, 2, tied="VF" not in name, init="fan_in", dtype=torch.float64)
        for _ in range(2)
    )
    start = xor_loss(net)
    assert start > 0.3
    engine = eqprop.make_engine(net, rule, rates)
    for _ in range(200):
        engine.step(XOR, ONE_HOT)
    assert xor_loss(net) < 0.03
    theta, eta = dict(opposite.named_parameters()), rates_of(opposite, rates)
    for _ in range(100):
        for gradients in rule.gradients(opposite, XOR, ONE_HOT):
            for parameter, g in gradients.items():
                theta[parameter].add_(eta[parameter] * g)
    assert xor_loss(opposite) > start

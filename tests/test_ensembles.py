"""An ensemble is its members, computed together: nothing passes between them.

Oracle: each member alone, as `net.member(i)` and as the network of seed `seed + i`.
"""

import itertools
import math
from dataclasses import dataclass, replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import eqprop
from eqprop import RealTime
from eqprop.model import Model

TIMES = (eqprop.Discrete(), RealTime(dt=0.5), RealTime(dt=0.3, slope="hidden"))
T, K = 5, 3
RULES = {
    "EP": eqprop.EP(beta=0.4, free_steps=T, nudged_steps=K),
    "C-EP": eqprop.ContinualEP(beta=0.4, free_steps=T, nudged_steps=K),
    "VF": eqprop.VF(beta=0.4, free_steps=T, nudged_steps=K),
    "C-VF": eqprop.ContinualVF(beta=0.4, free_steps=T, nudged_steps=K),
    "BPTT": eqprop.BPTT(free_steps=T),
    "RBP": eqprop.RBP(free_steps=T),
}
TWO_PHASE = ("EP", "C-EP", "VF", "C-VF")
NEEDS_PHI = ("EP", "C-EP")
every_rule = pytest.mark.parametrize("name", RULES)


def close(together, alone):
    """A batched product sums in another order than a single one: some 1e-16 a sum of seven,
    and the division by βε and three updates of θ on top."""
    torch.testing.assert_close(together, alone, rtol=0, atol=1e-12)


@dataclass(frozen=True)
class Case:
    sizes: tuple[int, ...]
    batch: int
    ensemble: tuple[int, ...]
    tied: bool
    time: object
    own_x: bool  # data of its own for each member, or the same for all
    seed: int

    @property
    def members(self):
        return math.prod(self.ensemble)

    @property
    def indices(self):
        return itertools.product(*map(range, self.ensemble))

    def network(self, ensemble=None, seed=None):
        return eqprop.layered(
            *self.sizes,
            tied=self.tied,
            angle=0.0 if self.tied else 40.0,
            time=self.time,
            activation="tanh",
            init="fan_in",
            ensemble=self.ensemble if ensemble is None else ensemble,
            seed=self.seed if seed is None else seed,
            dtype=torch.float64,
        )

    def draw(self, key, n, own):
        source = torch.Generator().manual_seed(1000 * self.seed + key)
        shape = (*self.ensemble, self.batch, n) if own else (self.batch, n)
        return torch.randn(shape, generator=source, dtype=torch.float64)

    def minibatch(self, key=0):
        x = self.draw(2 * key, self.sizes[0], self.own_x)
        return x, self.draw(2 * key + 1, self.sizes[-1], self.own_x)

    def of_member(self, value, index):
        """A member's part of a minibatch."""
        return value[index] if self.own_x else value

    def rules(self):
        untied_pairs = not self.tied and len(self.sizes) > 2
        return [n for n in RULES if not (untied_pairs and n in NEEDS_PHI)]


size = st.integers(1, 7)
cases = st.builds(
    lambda n_in, hidden, n_out, **rest: Case((n_in, *hidden, n_out), **rest),
    size,
    st.lists(size, max_size=3),
    size,
    batch=st.integers(1, 5),
    ensemble=st.sampled_from([(), (1,), (3,), (2, 2)]),
    tied=st.booleans(),
    time=st.sampled_from(TIMES),
    own_x=st.booleans(),
    seed=st.integers(0, 1000),
)


@given(cases)
def test_a_member_is_the_network_of_its_own_seed(case):
    net = case.network()
    assert net.seeds == tuple(range(case.seed, case.seed + case.members))
    for i, index in enumerate(case.indices):
        member, alone = net.member(*index), case.network((), case.seed + i)
        assert member.seeds == alone.seeds
        assert member.ensemble == alone.ensemble == ()
        for (name, p), (other, q) in zip(
            member.named_parameters(), alone.named_parameters(), strict=True
        ):
            assert name == other
            assert torch.equal(p, q)
            assert torch.equal(p, net.get_parameter(name)[index])


def test_a_member_has_a_copy_of_its_own():
    net = eqprop.layered(3, 4, 2, ensemble=2)
    before = net.synapses[0].weight.clone()
    net.member(1).synapses[0].weight.fill_(7.0)
    assert torch.equal(net.synapses[0].weight, before)


def test_some_members_are_an_ensemble_of_their_own():
    """In the order asked for, with copies of their own, each trained as before."""
    net, (x, y) = contracting(3, 5, GAINS), a_minibatch()
    some = net.members([2, 0])
    assert (some.ensemble, some.seeds) == ((2,), (7, 5))
    rule = replace(RULES["C-EP"], random_sign=True)
    for trained in (net, some):
        engine = eqprop.make_engine(trained, rule, 0.1)
        for _ in range(3):
            engine.step(x, y)
    for name, p in some.named_parameters():
        close(p, net.get_parameter(name)[[2, 0]])


@given(cases, st.booleans())
def test_relaxing_together_is_relaxing_alone(case, in_turn):
    net, (x, _) = case.network(), case.minibatch()
    together = eqprop.relax(net, x, T, in_turn=in_turn)
    for i, index in enumerate(case.indices):
        for alone in (net.member(*index), case.network((), case.seed + i)):
            free = eqprop.relax(alone, case.of_member(x, index), T, in_turn=in_turn)
            for a, b in zip(together.state, free.state, strict=True):
                close(a[index], b)
            close(together.sample_residual[index], free.sample_residual)
            assert int(together.member_steps[index]) == T


@pytest.mark.slow
@given(cases)
def test_every_rule_reads_the_same_gradients_together_and_alone(case):
    net, (x, y) = case.network(), case.minibatch()
    for name in case.rules():
        together = list(RULES[name].gradients(net, x, y))
        assert len(together) == (K if name.startswith("C-") else 1)
        for index in case.indices:
            alone = RULES[name].gradients(
                net.member(*index), case.of_member(x, index), case.of_member(y, index)
            )
            for ours, theirs in zip(together, alone, strict=True):
                assert ours.keys() == theirs.keys()
                for parameter in ours:
                    close(ours[parameter][index], theirs[parameter])


@pytest.mark.slow
@given(cases)
def test_every_engine_trains_the_same_networks_together_and_alone(case):
    minibatches = [case.minibatch(key) for key in range(3)]
    for name in case.rules():
        net = case.network()
        engine = eqprop.make_engine(net, RULES[name], 0.1, "reference")
        outputs = [engine.step(x, y) for x, y in minibatches]
        for i, index in enumerate(case.indices):
            alone = case.network((), case.seed + i)
            start = [p.clone() for p in alone.parameters()]
            own_engine = eqprop.make_engine(alone, RULES[name], 0.1, "reference")
            for (x, y), output in zip(minibatches, outputs, strict=True):
                close(
                    output[index],
                    own_engine.step(case.of_member(x, index), case.of_member(y, index)),
                )
            for (parameter, p), before in zip(alone.named_parameters(), start, strict=True):
                close(net.get_parameter(parameter)[index], p)
                assert not torch.equal(p, before)


@pytest.mark.slow
@given(cases, st.data())
def test_beta_its_sign_and_learning_rates_may_differ_between_members(case, data):
    per_member = st.lists(st.floats(0.1, 0.5), min_size=case.members, max_size=case.members).map(
        lambda v: torch.tensor(v, dtype=torch.float64).reshape(case.ensemble)
    )
    beta, sign = data.draw(per_member), data.draw(per_member).sub(0.3).sign()
    sign = torch.where(sign == 0, 1.0, sign)
    rates = [data.draw(per_member) for _ in case.sizes[1:]]
    x, y = case.minibatch()
    for name in (n for n in case.rules() if n in TWO_PHASE):
        net = case.network()
        rule = replace(RULES[name], beta=beta)
        signed = list(rule.gradients(net, x, y, sign=sign))
        engine = eqprop.make_engine(net, rule, rates)
        engine.step(x, y)
        for i, index in enumerate(case.indices):
            alone = case.network((), case.seed + i)
            data_of_member = case.of_member(x, index), case.of_member(y, index)
            own_rule = replace(RULES[name], beta=float(beta[index] * sign[index]))
            for ours, theirs in zip(
                signed, own_rule.gradients(alone, *data_of_member), strict=True
            ):
                for parameter in ours:
                    close(ours[parameter][index], theirs[parameter])
            own_rates = [float(rate[index]) for rate in rates]
            own_rule = replace(RULES[name], beta=float(beta[index]))
            eqprop.make_engine(alone, own_rule, own_rates).step(*data_of_member)
            for parameter, p in alone.named_parameters():
                close(net.get_parameter(parameter)[index], p)


def test_one_tensor_of_learning_rates_gives_each_member_its_own_for_all_synapses():
    """Also where the ensemble has as many members as the network synapses: here, two."""
    net, listed = (contracting(2, 0, GAINS[:2]) for _ in range(2))
    x, y = a_minibatch()
    rates = torch.tensor([0.1, 0.3], dtype=torch.float64)
    eqprop.make_engine(net, RULES["EP"], rates).step(x, y)
    eqprop.make_engine(listed, RULES["EP"], [rates, rates]).step(x, y)
    for p, q in zip(net.parameters(), listed.parameters(), strict=True):
        assert torch.equal(p, q)


@pytest.mark.parametrize(
    ("name", "tied"),
    [
        *((name, True) for name in RULES),
        *((name, False) for name in RULES if name not in NEEDS_PHI),
    ],
)
def test_one_minibatch_for_all_is_that_minibatch_for_each(name, tied):
    case = Case((4, 5, 3, 2), 3, (2, 2), tied, TIMES[0], own_x=False, seed=3)
    x, y = case.minibatch()
    shared, repeated = case.network(), case.network()
    eqprop.make_engine(shared, RULES[name], 0.1).step(x, y)
    copies = (v.expand(2, 2, *v.shape).clone() for v in (x, y))
    eqprop.make_engine(repeated, RULES[name], 0.1).step(*copies)
    for p, q in zip(shared.parameters(), repeated.parameters(), strict=True):
        close(p, q)


@every_rule
def test_a_member_is_the_same_to_the_bit_in_any_company(name):
    """Member 1, with other neighbours, other data, β and learning rates beside it."""

    def trained(seeds, neighbour_beta, neighbour_rate, disturb):
        net = eqprop.layered(
            4, 5, 2, tied=True, ensemble=3, seed=seeds, activation="tanh", dtype=torch.float64
        )
        rule = RULES[name]
        if name in TWO_PHASE:
            rule = replace(rule, beta=torch.tensor([neighbour_beta, 0.4, neighbour_beta]))
        rate = torch.tensor([neighbour_rate, 0.1, neighbour_rate])
        engine = eqprop.make_engine(net, rule, [rate, rate])
        source = torch.Generator().manual_seed(0)
        for _ in range(3):
            x = torch.randn(3, 6, 4, generator=source, dtype=torch.float64)
            y = torch.randn(3, 6, 2, generator=source, dtype=torch.float64)
            x[[0, 2]] += disturb
            y[[0, 2]] -= disturb
            engine.step(x, y)
        return [p[1] for p in net.parameters()]

    here, there = trained([5, 8, 6], 0.4, 0.1, 0.0), trained([0, 8, 1], -0.2, 0.3, 1.5)
    assert all(torch.equal(a, b) for a, b in zip(here, there, strict=True))


def contracting(ensemble, seed, gains):
    """tanh networks whose weights are scaled by their gain: the larger, the slower to settle."""
    net = eqprop.layered(
        4, 5, 2, ensemble=ensemble, seed=seed, activation="tanh", init="fan_in", dtype=torch.float64
    )
    scale = torch.tensor(gains, dtype=torch.float64)
    for parameter in net.parameters():
        parameter.mul_(
            scale.reshape(*net.ensemble, *(1 for _ in parameter.shape[len(net.ensemble) :]))
        )
    return net


GAINS = [0.2, 0.6, 1.0]


def a_minibatch(batch=3):
    source = torch.Generator().manual_seed(4)
    return tuple(torch.randn(batch, n, generator=source, dtype=torch.float64) for n in (4, 2))


@pytest.mark.parametrize("in_turn", [False, True], ids=["synchronous", "in turn"])
@pytest.mark.parametrize("tolerance", [1e-2, 1e-5, 1e-8])
def test_with_a_tolerance_each_member_stops_for_itself(tolerance, in_turn):
    net, (x, _) = contracting(3, 0, GAINS), a_minibatch()
    together = eqprop.relax(net, x, 500, tolerance, in_turn=in_turn)
    steps = together.member_steps.tolist()
    assert len(set(steps)) == 3
    assert together.steps == max(steps)
    assert together.settled
    for i in range(3):
        alone = eqprop.relax(net.member(i), x, 500, tolerance, in_turn=in_turn)
        assert steps[i] == alone.steps
        for a, b in zip(together.state, alone.state, strict=True):
            close(a[i], b)
        close(together.sample_residual[i], alone.sample_residual)


def test_a_member_that_does_not_settle_does_not_keep_the_others_moving():
    net, (x, _) = contracting(3, 0, GAINS), a_minibatch()
    slow = int(eqprop.relax(net.member(2), x, 500, 1e-8).steps)
    together = eqprop.relax(net, x, slow - 1, 1e-8)
    assert not together.settled
    assert together.member_steps[2] == slow - 1
    for i in (0, 1):
        assert int(together.member_steps[i]) == eqprop.relax(net.member(i), x, 500, 1e-8).steps
        assert float(together.sample_residual[i].max()) <= 1e-8


@pytest.mark.parametrize("name", [*TWO_PHASE, "RBP"])
def test_rules_with_a_tolerance_read_the_same_gradients_together_and_alone(name):
    """With a tolerance so loose that one step more or less shows."""
    net, (x, y) = contracting(3, 0, GAINS), a_minibatch()
    rule = replace(RULES[name], free_steps=500, tolerance=1e-3)
    together = list(rule.gradients(net, x, y))
    for i in range(3):
        for ours, theirs in zip(together, rule.gradients(net.member(i), x, y), strict=True):
            for parameter in ours:
                close(ours[parameter][i], theirs[parameter])


def test_random_signs_do_not_depend_on_company():
    """The sign of β is drawn from each member's own seed, minibatch after minibatch."""
    rule = replace(RULES["C-EP"], random_sign=True)
    x, y = a_minibatch()
    net = contracting(3, 7, GAINS)
    alone = [net.member(i) for i in range(3)]
    engine = eqprop.make_engine(net, rule, 0.1)
    own_engines = [eqprop.make_engine(member, rule, 0.1) for member in alone]
    for _ in range(6):
        engine.step(x, y)
        for own_engine in own_engines:
            own_engine.step(x, y)
    for i, member in enumerate(alone):
        for parameter, p in member.named_parameters():
            close(net.get_parameter(parameter)[i], p)


def primitive(ensemble, k, b) -> Model:
    def phi(x, s, theta):
        gain, pull = theta["k"][..., None], theta["b"]
        v = s[0]
        quadratic = 0.5 * gain * (v**2).sum(-1)
        return quadratic + (torch.tanh(v) * pull[..., None, :]).sum(-1) + (x * v).sum(-1) * 0.1

    return eqprop.Primitive(
        phi, parameters={"k": k, "b": b}, layers={"s": 2}, inputs=2, ensemble=ensemble
    )


@every_rule
def test_a_users_own_phi_may_be_an_ensemble_too(name):
    source = torch.Generator().manual_seed(0)
    k = 0.5 * torch.rand(3, generator=source, dtype=torch.float64)
    b = 0.3 * torch.randn(3, 2, generator=source, dtype=torch.float64)
    x, y = (torch.randn(4, 2, generator=source, dtype=torch.float64) for _ in range(2))
    together = list(RULES[name].gradients(primitive(3, k, b), x, y))
    for i in range(3):
        alone = RULES[name].gradients(primitive((), k[i], b[i]), x, y)
        for ours, theirs in zip(together, alone, strict=True):
            for parameter in ours:
                assert float(theirs[parameter].abs().max()) > 1e-4
                close(ours[parameter][i], theirs[parameter])

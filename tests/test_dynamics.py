"""The free phase: how many steps, when it stops, in which order layers move, and when it fails.

Oracle: the loop `s = net(x, s)` written out here, and for the two interleaved sequences the
synchronous run itself: in turn, each layer shows what it showed there at its own last step.
"""

import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import eqprop
from eqprop import Dense, Input, Layer, NonFiniteState, NotSettled
from eqprop.colouring import colours

DISCRETE, REAL_TIME = eqprop.Discrete(), eqprop.RealTime(dt=0.5)
every_time = pytest.mark.parametrize("time", [DISCRETE, REAL_TIME], ids=["discrete", "real time"])
both_orders = pytest.mark.parametrize("in_turn", [False, True], ids=["synchronous", "in turn"])


def a_network(*sizes, time=DISCRETE, activation="tanh", **more):
    more = {"init": "fan_in", "seed": 2, "dtype": torch.float64} | more
    return eqprop.layered(*sizes, time=time, activation=activation, **more)


def an_input(batch=3, n=4, seed=0, dtype=torch.float64):
    return torch.randn(batch, n, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def a_target(batch=3, n=2):
    return an_input(batch, n, seed=1)


def synchronous(net, x, steps, s=None):
    """s_0, …, s_T by hand."""
    way = [net.initial_state(x) if s is None else s]
    for _ in range(steps):
        way.append(net(x, way[-1]))
    return way


def change(a, b):
    """The largest change of any neuron of each sample."""
    return torch.cat([(v - u).abs() for u, v in zip(a, b, strict=True)], dim=-1).amax(-1)


def equal(a, b):
    return len(a) == len(b) and all(torch.equal(u, v) for u, v in zip(a, b, strict=True))


@every_time
@pytest.mark.parametrize("steps", [1, 2, 7])
def test_relax_takes_exactly_the_steps_asked_for_from_zero(time, steps):
    net, x = a_network(4, 5, 3, 2, time=time), an_input()
    free = eqprop.relax(net, x, steps)
    way = synchronous(net, x, steps)
    assert all(bool((layer == 0).all()) for layer in way[0])
    assert equal(free.state, way[-1])
    assert free.steps == steps
    assert int(free.member_steps) == steps


@every_time
def test_relax_starts_from_a_given_state_and_leaves_it_alone(time):
    net, x = a_network(4, 5, 2, time=time), an_input()
    start = (an_input(n=5, seed=5), an_input(n=2, seed=6))
    kept = tuple(layer.clone() for layer in start)
    free = eqprop.relax(net, x, 4, state=start)
    assert equal(free.state, synchronous(net, x, 4, start)[-1])
    assert equal(start, kept)


def test_two_relaxations_in_a_row_are_one():
    net, x = a_network(4, 5, 3, 2), an_input()
    half = eqprop.relax(net, x, 5)
    assert equal(eqprop.relax(net, x, 3, state=half.state).state, eqprop.relax(net, x, 8).state)


def test_keep_records_the_states_before_the_last_steps():
    net, x = a_network(4, 5, 2), an_input()
    way = synchronous(net, x, 6)
    free = eqprop.relax(net, x, 6, keep=3)
    assert len(free.history) == 3
    assert all(equal(a, b) for a, b in zip(free.history, way[3:6], strict=True))
    assert eqprop.relax(net, x, 6).history == ()


@pytest.mark.parametrize(
    "rule",
    [
        eqprop.EP(beta=0.2, free_steps=5, nudged_steps=3),
        eqprop.ContinualEP(beta=0.2, free_steps=5, nudged_steps=3),
        eqprop.VF(beta=0.2, free_steps=5, nudged_steps=3),
        eqprop.ContinualVF(beta=0.2, free_steps=5, nudged_steps=3),
        eqprop.BPTT(free_steps=5),
        eqprop.RBP(free_steps=5),
    ],
    ids=lambda rule: type(rule).__name__,
)
def test_a_rule_reads_and_never_writes(rule):
    """x, y and θ are what they were, and so is the free state that the stream hands out."""
    net, x, y = a_network(4, 5, 2), an_input(), a_target()
    before = [v.clone() for v in (x, y, *net.parameters())]
    stream = rule.gradients(net, x, y)
    free = tuple(layer.clone() for layer in stream.free.state)
    assert len(list(stream)) == (3 if "Continual" in type(rule).__name__ else 1)
    assert equal((x, y, *net.parameters()), before)
    assert equal(stream.free.state, free)
    assert equal(free, synchronous(net, x, 5)[-1])


@every_time
def test_the_residual_is_the_largest_last_change(time):
    net, x = a_network(4, 5, 3, 2, time=time), an_input()
    way = synchronous(net, x, 6)
    free = eqprop.relax(net, x, 6)
    expected = change(way[-2], way[-1])
    # the same subtraction of the same float64 numbers: equal, not close
    assert free.sample_residual.tolist() == expected.tolist()
    assert free.residual == float(expected.max())
    assert free.residual > 1e-4


@every_time
@pytest.mark.parametrize("tolerance", [1e-1, 1e-3, 1e-6, 1e-9])
def test_a_tolerance_stops_at_the_first_step_that_moves_no_more_than_it(time, tolerance):
    net, x = a_network(4, 5, 3, 2, time=time), an_input()
    way = synchronous(net, x, 300)
    residuals = [float(change(a, b).max()) for a, b in pairwise(way)]
    first = next(t + 1 for t, r in enumerate(residuals) if r <= tolerance)
    assert 1 < first < 300
    free = eqprop.relax(net, x, 300, tolerance)
    assert free.steps == first
    assert equal(free.state, way[first])
    assert free.residual == pytest.approx(residuals[first - 1], rel=1e-6)
    assert free.settled
    assert free.tolerance == tolerance


def test_a_residual_of_exactly_the_tolerance_stops():
    """F(s) = s/2 from 1: the changes are 2⁻¹, 2⁻², … without rounding."""
    halve = eqprop.VectorField(
        lambda x, s, theta: (s[0] * theta["a"],),
        parameters={"a": torch.tensor(0.5, dtype=torch.float64)},
        layers={"s": 1},
    )
    x = torch.zeros(1, 1, dtype=torch.float64)
    one = (torch.ones(1, 1, dtype=torch.float64),)
    free = eqprop.relax(halve, x, 50, 2.0**-5, state=one)
    assert (free.steps, free.residual) == (5, 2.0**-5)
    assert eqprop.relax(halve, x, 50, 0.99 * 2.0**-5, state=one).steps == 6


def test_a_tolerance_below_the_range_of_float32_is_honoured_in_float64():
    halve = eqprop.VectorField(
        lambda x, s, theta: (s[0] * theta["a"],),
        parameters={"a": torch.tensor(2.0**-50, dtype=torch.float64)},
        layers={"s": 1},
    )
    x = torch.zeros(1, 1, dtype=torch.float64)
    one = (torch.ones(1, 1, dtype=torch.float64),)
    free = eqprop.relax(halve, x, 50, 1e-90, state=one)
    assert free.steps == 7  # s_6 = 2⁻³⁰⁰ = 5e-91 is the first change below, at s_7
    assert free.residual == pytest.approx(2.0**-300, rel=1e-12)


def test_unsettled_is_said():
    net, x = a_network(4, 5, 2), an_input()
    free = eqprop.relax(net, x, 3, 1e-12)
    assert free.steps == 3
    assert free.residual > 1e-12
    assert not free.settled


def test_without_a_tolerance_only_standing_still_is_settled():
    net, x = a_network(4, 5, 2), an_input()
    assert not eqprop.relax(net, x, 3).settled
    still = eqprop.relax(net, x, 400)  # a contraction in float64 comes to rest on a number
    assert still.residual == 0.0
    assert still.settled
    assert equal(net(x, still.state), still.state)


@pytest.mark.parametrize(
    "rule_type", [eqprop.EP, eqprop.ContinualEP, eqprop.VF, eqprop.ContinualVF]
)
@both_orders
def test_a_rule_with_a_tolerance_warns_where_the_free_phase_does_not_reach_it(rule_type, in_turn):
    net, x, y = a_network(4, 5, 2), an_input(), a_target()
    options = {"beta": 0.2, "nudged_steps": 2, "in_turn": in_turn}
    rule = rule_type(free_steps=4, tolerance=1e-10, **options)
    with pytest.warns(NotSettled, match=r"residual .* > tolerance 1e-10 after 4 steps"):
        rule.gradients(net, x, y)
    settled = rule_type(free_steps=400, tolerance=1e-10, **options).gradients(net, x, y)
    assert settled.free.settled  # and, warnings being errors, without one
    assert settled.free.steps < 400
    rule_type(free_steps=4, **options).gradients(net, x, y)  # nothing was asked for


def test_rbp_with_a_tolerance_warns_where_the_free_phase_does_not_reach_it():
    net, x, y = a_network(4, 5, 2), an_input(), a_target()
    rule = eqprop.RBP(free_steps=4, backward_steps=400, tolerance=1e-10)
    with pytest.warns(NotSettled, match=r"free phase .*residual .* > tolerance 1e-10"):
        list(rule.gradients(net, x, y))


def test_rbp_with_a_tolerance_warns_where_its_own_iteration_does_not_reach_it():
    net, x, y = a_network(4, 5, 2), an_input(), a_target()
    short = eqprop.RBP(free_steps=400, backward_steps=3, tolerance=1e-10)
    with pytest.warns(NotSettled, match=r"> tolerance 1e-10; raise backward_steps"):
        list(short.gradients(net, x, y))
    list(eqprop.RBP(free_steps=400, tolerance=1e-10).gradients(net, x, y))  # no warning


@pytest.mark.parametrize("sizes", [(4, 5, 2), (4, 5, 3, 2), (4, 5, 3, 3, 2)])
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("T", [2, 6, 10])
def test_in_turn_is_one_of_the_two_interleaved_sequences(sizes, tied, T):
    """Depths 1, 3, … as after synchronous step T − 1, depths 2, 4, … as after step T."""
    net, x = a_network(*sizes, tied=tied, angle=0.0 if tied else 70.0), an_input()
    way = synchronous(net, x, T)
    free = eqprop.relax(net, x, T, in_turn=True)
    expected = [way[T - 1][i] if i % 2 == 0 else way[T][i] for i in range(len(sizes) - 1)]
    assert equal(free.state, expected)
    assert free.steps == T


def test_in_turn_moves_the_first_hidden_layer_first():
    net, x = a_network(4, 5, 3, 2), an_input()
    free = eqprop.relax(net, x, 3, in_turn=True)
    way = synchronous(net, x, 3)
    assert equal(free.state, (way[3][0], way[2][1], way[3][2]))


def test_the_residual_in_turn_is_the_last_change_of_either_group():
    net, x = a_network(4, 5, 3, 2), an_input()
    before, after = (eqprop.relax(net, x, T, in_turn=True) for T in (6, 8))
    # groups moved last at steps 7 and 8, and before that at 5 and 6
    expected = change(before.state, after.state)
    assert after.residual == pytest.approx(float(expected.max()), rel=1e-6)


@every_time
@pytest.mark.parametrize("sizes", [(4, 5, 2), (4, 5, 3, 3, 2)])
def test_both_orders_reach_the_same_steady_state(sizes, time):
    net, x = a_network(*sizes, time=time), an_input()
    together = eqprop.relax(net, x, 2000, 1e-14)
    in_turn = eqprop.relax(net, x, 2000, 1e-14, in_turn=True)
    assert together.settled
    assert in_turn.settled
    for a, b in zip(together.state, in_turn.state, strict=True):
        # each is within 1e-14 / (1 − rate of convergence) of the fixed point
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)
    assert float(in_turn.state[-1].abs().max()) > 0.01  # not the trivial state


@pytest.mark.parametrize(("sizes", "synapses"), [((4, 5, 2), 1), ((4, 5, 3, 2), 2)])
def test_in_turn_sends_nothing_back_to_layers_that_stay_and_the_input_drives_once(
    sizes, synapses, monkeypatch
):
    calls = []
    whole = Dense.drives

    def counted(self, pre, post):
        calls.append((self.pre, post is not None))
        return whole(self, pre, post)

    monkeypatch.setattr(Dense, "drives", counted)
    net, x = a_network(*sizes), an_input()
    for in_turn, sent_back in ((False, 8 * synapses), (True, 4 * synapses)):
        calls.clear()
        eqprop.relax(net, x, 8, in_turn=in_turn)
        assert len([pre for pre, _ in calls if pre != "input"]) == 8 * synapses
        assert sum(back for _, back in calls) == sent_back
        assert calls.count(("input", False)) == 1  # x does not change during the phase


def bistable():
    """One hidden and one output neuron that excite each other, x = 0: h = σ(2o − ½) and back."""
    net = eqprop.layered(1, 1, 1, dtype=torch.float64)
    for name, value in {"0.weight": 0.0, "0.bias": -0.5, "1.weight": 2.0, "1.bias": -0.5}.items():
        net.get_parameter(f"synapses.{name}").fill_(value)
    return net


def fixed_point(v):
    for _ in range(200):
        v = 1 / (1 + math.exp(-4 * (2 * v - 0.5 - 0.5)))
    return v


def test_synchronous_steps_may_alternate_between_two_attractors_for_ever():
    """Started on different sides, the two sequences settle in different states (measured.md)."""
    net, x = bistable(), torch.zeros(1, 1, dtype=torch.float64)
    low, high = fixed_point(0.0), fixed_point(1.0)
    assert high - low > 0.9
    apart = (torch.zeros(1, 1).double(), torch.ones(1, 1).double())
    for steps in (200, 1000):
        free = eqprop.relax(net, x, steps, 1e-6, state=apart)
        assert free.steps == steps
        assert not free.settled
        assert free.residual == pytest.approx(high - low, rel=1e-6)
        # after an even number of steps each neuron is where its own sequence has settled
        assert [float(layer) for layer in free.state] == pytest.approx([low, high], abs=1e-12)


def test_in_turn_settles_where_synchronous_steps_alternate():
    net, x = bistable(), torch.zeros(1, 1, dtype=torch.float64)
    apart = (torch.zeros(1, 1).double(), torch.ones(1, 1).double())
    free = eqprop.relax(net, x, 200, 1e-12, state=apart, in_turn=True)
    assert free.settled
    assert free.steps < 50
    # the hidden neuron moves first, and so follows the output
    high = fixed_point(1.0)
    assert [float(layer) for layer in free.state] == pytest.approx([high, high], abs=1e-12)
    other_way = eqprop.relax(net, x, 200, 1e-12, state=apart[::-1], in_turn=True)
    low = fixed_point(0.0)
    assert [float(layer) for layer in other_way.state] == pytest.approx([low, low], abs=1e-12)


def test_a_rule_that_relaxes_in_turn_rests_on_that_state():
    net, x, y = a_network(4, 5, 2), an_input(), a_target()
    rule = eqprop.EP(beta=0.2, free_steps=6, nudged_steps=2, in_turn=True)
    expected = eqprop.relax(net, x, 6, in_turn=True).state
    assert equal(rule.gradients(net, x, y).free.state, expected)
    assert not equal(expected, eqprop.relax(net, x, 6).state)


def joined(*synapses):
    return eqprop.Network(
        [Input(4), Layer("a", 3), Layer("b", 3), Layer("out", 2)],
        [Dense("input", "a", bias=True), *(Dense(*ends) for ends in synapses)],
        dtype=torch.float64,
    )


@pytest.mark.parametrize("layer", ["b", "out"])
def test_in_turn_is_refused_where_a_layer_feeds_itself(layer):
    net = joined(("a", "b"), ("b", "out"), (layer, layer))
    with pytest.raises(ValueError, match=f"in_turn: layer '{layer}' feeds itself"):
        eqprop.relax(net, an_input(), 4, in_turn=True)


def test_an_odd_cycle_goes_in_three_turns_to_the_same_steady_state():
    net, x = joined(("a", "b"), ("b", "out"), ("a", "out")), an_input()
    assert net.split() == ((0,), (1,), (2,))
    together = eqprop.relax(net, x, 3000, 1e-14)
    in_turn = eqprop.relax(net, x, 3000, 1e-14, in_turn=True)
    assert together.settled
    assert in_turn.settled
    for a, b in zip(together.state, in_turn.state, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)
    first = eqprop.relax(net, x, 3, in_turn=True).state  # one turn each, by hand
    s = net.initial_state(x)
    for i in range(3):
        s = net(x, s, [i])
    assert equal(first, s)


@given(
    st.integers(1, 9).flatmap(
        lambda n: st.tuples(
            st.just(n),
            st.lists(st.tuples(st.integers(0, n - 1), st.integers(0, n - 1))).map(
                lambda edges: [(a, b) for a, b in edges if a != b]
            ),
        )
    )
)
def test_colours_are_proper_and_two_wherever_two_are_enough(graph):
    n, edges = graph
    groups = colours(n, edges)
    assert sorted(v for group in groups for v in group) == list(range(n))
    of = {v: c for c, group in enumerate(groups) for v in group}
    assert all(of[a] != of[b] for a, b in edges)
    assert len(groups) <= 1 + max(
        (len({u for e in edges for u in e if v in e} - {v}) for v in range(n)), default=0
    )
    bipartite = any(
        all((side >> a & 1) != (side >> b & 1) for a, b in edges) for side in range(2**n)
    )
    assert (len(groups) <= 2) == bipartite


def test_in_turn_works_on_even_cycles_and_skips_from_the_input():
    """A skip over two layers joins an odd depth to an even one: the split still exists."""
    net = eqprop.Network(
        [Input(4), *(Layer(name, 3, "tanh") for name in "abcd")],
        [
            *(Dense(pre, post) for pre, post in [("input", "a"), ("a", "b"), ("b", "c")]),
            *(Dense(pre, post) for pre, post in [("c", "d"), ("a", "d"), ("input", "c")]),
        ],
        dtype=torch.float64,
    )
    x = an_input()
    way = synchronous(net, x, 6)
    expected = (way[5][0], way[6][1], way[5][2], way[6][3])
    assert equal(eqprop.relax(net, x, 6, in_turn=True).state, expected)


TWO_PHASE = eqprop.VF(beta=0.5, free_steps=3, nudged_steps=5)


def failure(call):
    with pytest.raises(NonFiniteState) as caught:
        call()
    error = caught.value
    assert "\n" not in str(error)
    assert f"layer {error.layer!r}" in str(error)
    assert f"step {error.step} of the {error.phase} phase" in str(error)
    return error.layer, error.step, error.phase


def test_a_nan_weight_is_named_by_the_layer_it_reaches_first():
    net, x, y = a_network(4, 5, 3, 2), an_input(), a_target()
    net.synapses[1].bias[0] = torch.nan
    assert failure(lambda: eqprop.relax(net, x, 5)) == ("hidden2", 1, "free")
    assert failure(lambda: list(TWO_PHASE.gradients(net, x, y))) == ("hidden2", 1, "free")


def test_a_weight_that_turns_nan_between_two_updates_is_caught_in_the_nudged_phase():
    net, x, y = a_network(4, 5, 3, 2), an_input(), a_target()
    rule = eqprop.ContinualVF(beta=0.5, free_steps=3, nudged_steps=5)
    stream = rule.gradients(net, x, y)
    next(stream), next(stream)
    net.synapses[2].bias[0] = torch.nan
    assert failure(lambda: next(stream)) == ("output", 3, "nudged")


def test_a_diverging_real_time_network_is_caught_at_the_step_where_it_overflows():
    net = a_network(4, 5, 2, time=REAL_TIME, activation="identity", dtype=torch.float32)
    for parameter in net.parameters():
        parameter.fill_(100.0)
    x = an_input(dtype=torch.float32)
    s, overflow = net.initial_state(x), None
    for t in range(1, 60):
        s = net(x, s)
        bad = [n for n, v in zip(net.layer_names, s, strict=True) if not bool(v.isfinite().all())]
        if bad:
            overflow = (bad[0], t, "free")
            break
    assert overflow is not None
    assert overflow[1] > 5
    assert failure(lambda: eqprop.relax(net, x, 60)) == overflow


def test_a_diverging_primitive_is_caught():
    """Φ = 8s², F = 16s: 2⁴ᵗ passes 2¹²⁸, the end of float32, at t = 32."""
    model = eqprop.Primitive(
        lambda x, s, theta: theta["a"] * (s[0] ** 2).sum(-1),
        parameters={"a": torch.tensor(8.0)},
        layers={"s": 1},
    )
    x, one = torch.zeros(1, 1), (torch.ones(1, 1),)
    assert float(eqprop.relax(model, x, 31, state=one).state[0]) == 2.0**124
    assert failure(lambda: eqprop.relax(model, x, 40, state=one)) == ("s", 32, "free")


@pytest.mark.parametrize("bad", [torch.inf, -torch.inf, torch.nan])
@pytest.mark.parametrize(
    ("call", "where"),
    [
        (2, ("b", 2, "free")),
        (3, ("b", 3, "free")),
        (6, ("b", 3, "nudged")),
        (8, ("b", 5, "nudged")),
    ],
)
def test_an_infinity_of_a_single_step_is_caught_at_that_step(bad, call, where):
    """σ turns an infinite drive back into a number: looking at the end alone would miss it."""
    calls = []

    def f(x, s, theta):
        calls.append(1)
        value = bad if len(calls) == call else 0.5
        return theta["w"].expand_as(s[0]), torch.full_like(s[1], value)

    class Field(eqprop.VectorField):
        """Without the vjp, which would count as a call: this test is about the dynamics."""

        def vector_field_gradient(self, x, s, ds, update_slope="none"):
            return {"w": torch.zeros(1, dtype=torch.float64)}

    model = Field(f, parameters={"w": torch.ones(1, dtype=torch.float64)}, layers={"a": 2, "b": 1})
    x, y = torch.zeros(1, 1, dtype=torch.float64), torch.ones(1, 1, dtype=torch.float64)
    assert failure(lambda: list(TWO_PHASE.gradients(model, x, y))) == where


def test_the_members_that_fail_are_named():
    net, x, y = a_network(4, 5, 2, ensemble=(2, 3)), an_input(), a_target()
    net.synapses[0].weight[0, 2, 0, 0] = torch.nan
    net.synapses[0].weight[1, 1, 0, 0] = torch.nan
    with pytest.raises(NonFiniteState, match=r"in members \[2, 4\]") as caught:
        list(TWO_PHASE.gradients(net, x, y))
    assert caught.value.members.tolist() == [[False, False, True], [False, True, False]]

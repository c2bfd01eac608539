"""Bad input fails at once, with one line that says what was wrong and where.

Oracle: the message. It is a ValueError of this library (never torch's own RuntimeError or
TypeError), on one line, and names the argument, layer, synapse or parameter at fault.
"""

from functools import partial

import pytest
import torch

import eqprop
from eqprop import BPTT, EP, RBP, VF, ContinualEP, ContinualVF, Dense, Input, Layer, RealTime

NAN, INF = float("nan"), float("inf")
PHASES = {"free_steps": 4, "nudged_steps": 2}


def complaint(call):
    """The one line that a call fails with."""
    with pytest.raises(ValueError) as caught:  # noqa: PT011 (the message is what is tested)
        call()
    assert caught.type is ValueError  # not a subclass of it by some library
    message = str(caught.value)
    assert message
    assert "\n" not in message
    return message


def raises(table):
    """Parametrize over {what is wrong: (call, words of the message)}."""
    return pytest.mark.parametrize(
        ("call", "words"), [pytest.param(*row, id=key) for key, row in table.items()]
    )


def check(call, words):
    message = complaint(call)
    for word in words:
        assert word in message, f"{word!r} is not in: {message}"


def a_network(**more):
    return eqprop.layered(3, 4, 2, **({"dtype": torch.float64} | more))


def zeros(*shape, dtype=torch.float64):
    return torch.zeros(shape, dtype=dtype)


def ones(*shape, dtype=torch.float64):
    return torch.ones(shape, dtype=dtype)


def a_rule(rule=EP, **more):
    return rule(**({"beta": 0.2} | PHASES | more))


def a_primitive(**more):
    def phi(x, s, theta):
        return theta["a"] * (s[0] ** 2).sum(-1)

    given = {"phi": phi, "parameters": {"a": torch.tensor(0.2)}, "layers": {"s": 2}} | more
    return eqprop.Primitive(given.pop("phi"), **given)


def a_field(f, **more):
    given = {"parameters": {"a": torch.tensor(0.2)}, "layers": {"s": 2}} | more
    return eqprop.VectorField(f, **given)


BAD_X = {
    "one sample without a batch axis": (zeros(3), ["x has shape [3]", "['batch', 'n']"]),
    "a number": (torch.tensor(1.0, dtype=torch.float64), ["x has shape []"]),
    "an axis too many": (zeros(2, 5, 3), ["x has shape [2, 5, 3]"]),
    "too wide": (zeros(5, 4), ["x has width 4", "3 inputs"]),
    "too narrow": (zeros(5, 2), ["x has width 2", "3 inputs"]),
    "empty batch": (zeros(0, 3), ["x", "empty"]),
    "float32": (zeros(5, 3, dtype=torch.float32), ["x is torch.float32", "torch.float64"]),
    "whole numbers": (zeros(5, 3, dtype=torch.int64), ["x is torch.int64", "torch.float64"]),
    "NaN": (torch.full((5, 3), NAN, dtype=torch.float64), ["x", "NaN"]),
    "infinite": (torch.full((5, 3), -INF, dtype=torch.float64), ["x", "infinite"]),
    "a list": ([[0.0, 0.0, 0.0]], ["x must be a tensor", "list"]),
    "None": (None, ["x must be a tensor", "NoneType"]),
}


@pytest.mark.parametrize(("x", "words"), BAD_X.values(), ids=BAD_X)
def test_a_bad_x(x, words):
    net, y = a_network(), zeros(5, 2)
    check(lambda: eqprop.relax(net, x, 4), words)
    for rule in (a_rule(), a_rule(ContinualVF), BPTT(free_steps=4), RBP(free_steps=4)):
        check(partial(rule.gradients, net, x, y), words)
        check(partial(rule.steps, net, x, y), words)
        check(partial(eqprop.make_engine(net, rule, 0.1).step, x, y), words)


def test_one_bad_number_among_many_is_enough():
    x = zeros(5, 3)
    x[4, 2] = NAN
    check(lambda: eqprop.relax(a_network(), x, 4), ["x", "NaN"])


@pytest.mark.parametrize("shape", [(2, 5, 3), (3, 1, 5, 3), (1, 5, 3)])
def test_an_x_that_does_not_fit_the_ensemble(shape):
    net = a_network(ensemble=3)
    check(lambda: eqprop.relax(net, zeros(*shape), 4), [f"x has shape {list(shape)}", "3, 'batch'"])


BAD_Y = {
    "too wide": (zeros(5, 3), ["y has width 3", "2 neurons"]),
    "one column": (zeros(5, 1), ["y has width 1", "2 neurons"]),
    "another batch": (zeros(4, 2), ["y has 4 samples", "x has 5"]),
    "one sample for all": (zeros(1, 2), ["y has 1 samples", "x has 5"]),
    "without a batch axis": (zeros(2), ["y has shape [2]"]),
    "an axis too many": (zeros(1, 5, 2), ["y has shape [1, 5, 2]"]),
    "empty batch": (zeros(0, 2), ["y", "empty"]),
    "float32": (zeros(5, 2, dtype=torch.float32), ["y is torch.float32", "torch.float64"]),
    "NaN": (torch.full((5, 2), NAN, dtype=torch.float64), ["y", "NaN"]),
    "infinite": (torch.full((5, 2), INF, dtype=torch.float64), ["y", "infinite"]),
    "a list": ([[0.0, 0.0]] * 5, ["y must be a tensor", "list"]),
    "None": (None, ["y must be a tensor"]),
    "bool": (zeros(5, 2, dtype=torch.bool), ["y is torch.bool", "class indices"]),
    "bool labels": (zeros(5, dtype=torch.bool), ["y is torch.bool", "class indices"]),
    "a class too many": (torch.arange(5), ["y holds class 4", "2 neurons"]),
    "a class below 0": (torch.arange(5) - 4, ["y holds class -4", "2 neurons"]),
    "labels of another batch": (zeros(4, dtype=torch.int64), ["y has shape [4, 2]", "[5, 2]"]),
    "no labels": (zeros(0, dtype=torch.int64), ["y", "empty"]),
    "one label without a batch axis": (zeros(dtype=torch.int64), ["y"]),
    "whole numbers for another batch": (zeros(4, 2, dtype=torch.int64), ["y", "4", "5"]),
    "whole numbers, one sample for all": (zeros(1, 2, dtype=torch.int64), ["y", "1", "5"]),
}


@pytest.mark.parametrize(("y", "words"), BAD_Y.values(), ids=BAD_Y)
def test_a_bad_y(y, words):
    net, x = a_network(), zeros(5, 3)
    for rule in (a_rule(), a_rule(ContinualVF), BPTT(free_steps=4), RBP(free_steps=4)):
        check(partial(rule.gradients, net, x, y), words)
        check(partial(eqprop.make_engine(net, rule, 0.1).step, x, y), words)


def test_as_many_labels_as_outputs_are_still_labels():
    """[2] against an output [2, 2] would broadcast: the loss of every sample against all labels."""
    net, x, labels = a_network(), ones(2, 3), torch.tensor([0, 1])
    (ours,) = a_rule().gradients(net, x, labels)
    (theirs,) = a_rule().gradients(net, x, torch.eye(2, dtype=torch.float64))
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_a_y_that_does_not_fit_the_ensemble():
    net, x = a_network(ensemble=3), zeros(5, 3)
    check(lambda: a_rule().gradients(net, x, zeros(2, 5, 2)), ["y has shape [2, 5, 2]"])


@raises(
    {
        "a mean over the batch": (lambda out, y: ((out - y) ** 2).mean(), ["cost", "[5]", "[]"]),
        "a value a neuron": (lambda out, y: (out - y) ** 2, ["cost", "[5]", "[5, 2]"]),
        "not a tensor": (lambda out, y: 0.0, ["cost"]),
    }
)
def test_a_cost_that_does_not_give_one_value_a_sample(call, words):
    net, x, y = a_network(), zeros(5, 3), zeros(5, 2)
    for rule in (a_rule(), a_rule(ContinualVF), BPTT(free_steps=4), RBP(free_steps=4)):
        check(lambda rule=rule: list(rule.gradients(net, x, y, call)), words)


@raises(
    {
        f"{rule.__name__}: {key}": (partial(a_rule, rule, **wrong), words)
        for rule in (EP, ContinualEP, VF, ContinualVF)
        for key, wrong, words in [
            ("beta 0", {"beta": 0.0}, ["beta", "0"]),
            ("beta NaN", {"beta": NAN}, ["beta", "nan"]),
            ("beta infinite", {"beta": -INF}, ["beta", "inf"]),
            ("one member's beta 0", {"beta": torch.tensor([0.1, 0.0])}, ["beta"]),
            ("free_steps 0", {"free_steps": 0}, ["free_steps", "0"]),
            ("free_steps negative", {"free_steps": -3}, ["free_steps", "-3"]),
            ("free_steps 2.5", {"free_steps": 2.5}, ["free_steps", "2.5"]),
            ("free_steps True", {"free_steps": True}, ["free_steps", "True"]),
            ("nudged_steps 0", {"nudged_steps": 0}, ["nudged_steps", "0"]),
            ("nudged_steps 2.0", {"nudged_steps": 2.0}, ["nudged_steps", "2.0"]),
            ("tolerance negative", {"tolerance": -1e-3}, ["tolerance", "-0.001"]),
            ("tolerance NaN", {"tolerance": NAN}, ["tolerance", "nan"]),
        ]
    }
    | {
        f"{rule.__name__}: rescale {value}": (partial(a_rule, rule, rescale=value), ["rescale"])
        for rule in (ContinualEP, ContinualVF)
        for value in (0.0, -1e-5, 1.5, NAN)
    }
    | {
        "EP: beta not a number": (lambda: a_rule(beta="0.2"), ["beta", "0.2"]),
        "BPTT: free_steps 0": (lambda: BPTT(free_steps=0), ["free_steps", "0"]),
        "BPTT: backward_steps 0": (
            lambda: BPTT(free_steps=4, backward_steps=0),
            ["backward_steps", "0"],
        ),
        "BPTT: backward_steps beyond": (
            lambda: BPTT(free_steps=4, backward_steps=5),
            ["backward_steps (5)", "free_steps (4)"],
        ),
        "RBP: backward_steps negative": (
            lambda: RBP(free_steps=4, backward_steps=-1),
            ["backward_steps", "-1"],
        ),
        "RBP: tolerance negative": (
            lambda: RBP(free_steps=4, tolerance=-1.0),
            ["tolerance", "-1"],
        ),
    }
)
def test_a_bad_rule(call, words):
    check(call, words)


@raises(
    {
        "steps 0": ({"steps": 0}, ["steps", "0"]),
        "steps negative": ({"steps": -1}, ["steps", "-1"]),
        "steps 3.0": ({"steps": 3.0}, ["steps", "3.0"]),
        "tolerance negative": ({"steps": 3, "tolerance": -1.0}, ["tolerance", "-1"]),
        "tolerance NaN": ({"steps": 3, "tolerance": NAN}, ["tolerance", "nan"]),
        "one step in turn": ({"steps": 1, "in_turn": True}, ["steps", "2", "in_turn"]),
        "a state with a layer too few": (
            {"steps": 3, "state": (zeros(5, 4),)},
            ["state", "1", "2"],
        ),
        "a state of another width": (
            {"steps": 3, "state": (zeros(5, 3), zeros(5, 2))},
            ["state", "hidden"],
        ),
        "a state of another batch": (
            {"steps": 3, "state": (zeros(6, 4), zeros(6, 2))},
            ["state", "hidden"],
        ),
        "a state of another type": (
            {"steps": 3, "state": (zeros(5, 4), zeros(5, 2, dtype=torch.float32))},
            ["state", "output", "float32"],
        ),
    }
)
def test_a_bad_relaxation(call, words):
    check(lambda: eqprop.relax(a_network(), zeros(5, 3), **call), words)


@raises(
    {
        "no sizes": (lambda: eqprop.layered(), ["sizes"]),
        "one size": (lambda: eqprop.layered(3), ["sizes", "3"]),
        "negative": (lambda: eqprop.layered(3, -4, 2), ["'hidden'", "size", "-4"]),
        "zero": (lambda: eqprop.layered(3, 4, 0), ["'output'", "size", "0"]),
        "zero inputs": (lambda: eqprop.layered(0, 4, 2), ["'input'", "size", "0"]),
        "a fraction": (lambda: eqprop.layered(3, 4, 5, 2.5), ["'output'", "size", "2.5"]),
        "a text": (lambda: eqprop.layered(3, "4", 2), ["'hidden'", "size", "'4'"]),
        "True": (lambda: eqprop.layered(3, True, 2), ["'hidden'", "size", "True"]),
        "a list of sizes": (lambda: eqprop.layered([3, 4, 2]), ["sizes"]),
        "unknown activation": (
            lambda: a_network(activation="relu6"),
            ["activation 'relu6'", "sigmoid", "tanh"],
        ),
        "activation of no kind": (lambda: a_network(activation=3), ["activation", "3"]),
        "unknown init": (lambda: a_network(init="xavier"), ["init 'xavier'", "glorot", "fan_in"]),
        "time by name": (lambda: a_network(time="discrete"), ["time", "'discrete'"]),
        "angle on tied weights": (lambda: a_network(angle=45.0), ["angle", "untied"]),
        "angles on tied weights": (
            lambda: a_network(angle=[0.0, 45.0], ensemble=2),
            ["angle", "untied"],
        ),
        "angle below 0": (lambda: a_network(tied=False, angle=-1.0), ["angle", "-1", "[0, 180]"]),
        "angle above 180": (lambda: a_network(tied=False, angle=181.0), ["angle", "181"]),
        "angle NaN": (lambda: a_network(tied=False, angle=NAN), ["angle", "nan"]),
        "angles for another ensemble": (
            lambda: a_network(tied=False, angle=[0.0, 90.0], ensemble=3),
            ["angle", "2", "3"],
        ),
        "seeds for another ensemble": (
            lambda: a_network(seed=[1, 2], ensemble=3),
            ["seed has 2", "3"],
        ),
        "a fraction for a seed": (lambda: a_network(seed=1.5), ["seed", "1.5"]),
        "ensemble 0": (lambda: a_network(ensemble=0), ["ensemble", "0"]),
        "ensemble negative": (lambda: a_network(ensemble=(2, -1)), ["ensemble", "-1"]),
        "ensemble True": (lambda: a_network(ensemble=True), ["ensemble", "True"]),
        "a fraction for an ensemble": (lambda: a_network(ensemble=1.5), ["ensemble", "1.5"]),
        "integer dtype": (lambda: a_network(dtype=torch.int64), ["dtype", "torch.int64"]),
        "dtype by name": (lambda: a_network(dtype="float64"), ["dtype", "'float64'"]),
        "dt 0": (lambda: RealTime(dt=0.0), ["dt", "0.0"]),
        "dt negative": (lambda: RealTime(dt=-0.1), ["dt", "-0.1"]),
        "dt above 1": (lambda: RealTime(dt=1.1), ["dt", "1.1"]),
        "dt NaN": (lambda: RealTime(dt=NAN), ["dt", "nan"]),
        "unknown slope": (lambda: RealTime(dt=0.5, slope="some"), ["slope 'some'", "hidden"]),
    }
)
def test_a_bad_layered_network(call, words):
    check(call, words)


def network(layers, synapses):
    return lambda: eqprop.Network(layers, synapses())


GOOD = [Input(3), Layer("hidden", 4), Layer("out", 2)]


def chain():
    return [Dense("input", "hidden"), Dense("hidden", "out")]


@raises(
    {
        "no layers": (network([], chain), ["layers", "Input"]),
        "no Input": (network(GOOD[1:], chain), ["layers", "Input"]),
        "Input alone": (network(GOOD[:1], list), ["layers", "Layer"]),
        "Input twice": (network([GOOD[0], *GOOD], chain), ["layers", "Input"]),
        "a layer by name": (network([Input(3), "hidden"], chain), ["layers", "Layer"]),
        "a name twice": (network([*GOOD, Layer("out", 3)], chain), ["names", "out"]),
        "a layer called input": (lambda: Layer("input", 3), ["'input'", "reserved"]),
        "a layer without name": (lambda: Layer("", 3), ["name", "''"]),
        "a layer of size 0": (lambda: Layer("hidden", 0), ["'hidden'", "size", "0"]),
        "an unknown activation": (lambda: Layer("hidden", 3, "relu6"), ["'relu6'"]),
        "an input of size 0": (lambda: Input(0), ["'input'", "size", "0"]),
        "an unknown layer": (
            network(GOOD, lambda: [*chain(), Dense("hidden", "outt")]),
            ["hidden→outt", "'outt'", "hidden, out"],
        ),
        "a layer without synapses": (
            network([*GOOD, Layer("alone", 2)], chain),
            ["'alone'", "no synapses"],
        ),
        "no synapses": (network(GOOD, list), ["'hidden'", "no synapses"]),
        "a synapse onto the input": (lambda: Dense("hidden", "input"), ["hidden→input", "input"]),
        "a synapse that is something else": (
            network(GOOD, lambda: [*chain(), torch.nn.Linear(3, 2)]),
            ["synapses", "Linear"],
        ),
        "self-loops between two layers": (
            lambda: Dense("hidden", "out", self_loops=True),
            ["hidden→out", "self_loops"],
        ),
        "an angle on a tied synapse": (
            lambda: Dense("hidden", "out", angle=30.0),
            ["hidden→out", "angle", "untied"],
        ),
        "an angle on the input": (
            lambda: Dense("input", "out", tied=False, angle=30.0),
            ["input→out", "angle"],
        ),
        "an angle within a layer": (
            lambda: Dense("out", "out", tied=False, angle=30.0),
            ["out→out", "angle"],
        ),
        "an angle out of range": (
            lambda: Dense("hidden", "out", tied=False, angle=200.0),
            ["hidden→out", "angle", "200"],
        ),
        "an unknown init": (lambda: Dense("hidden", "out", init="he"), ["init 'he'"]),
    }
)
def test_a_bad_network(call, words):
    check(call, words)


def test_a_synapse_belongs_to_one_network_and_to_one_place_in_it():
    synapses = chain()
    eqprop.Network(GOOD, synapses)
    check(lambda: eqprop.Network(GOOD, synapses), ["input→hidden", "already"])
    twice = Dense("hidden", "out")
    check(
        lambda: eqprop.Network(GOOD, [Dense("input", "hidden"), twice, twice]),
        ["hidden→out", "already"],
    )


def test_a_member_by_the_wrong_number_of_indices():
    check(lambda: a_network(ensemble=(2, 2)).member(1), ["member", "2", "1"])
    check(lambda: a_network().member(0), ["member", "0"])


def test_a_member_that_is_not_there():
    net = a_network(ensemble=3)
    check(lambda: net.member(3), ["member", "3"])
    check(lambda: net.members([0, 7]), ["member", "7"])


@raises(
    {
        "0": (0.0, ["learning_rates", "synapses.0.weight", "0"]),
        "negative": (-0.1, ["learning_rates", "synapses.0.weight", "-0.1"]),
        "NaN": (NAN, ["learning_rates", "synapses.0.weight", "nan"]),
        "infinite": (INF, ["learning_rates", "synapses.0.weight", "inf"]),
        "too few": ([0.1], ["learning_rates has 1", "2 synapses"]),
        "too many": ([0.1, 0.1, 0.1], ["learning_rates has 3", "2 synapses"]),
        "one of them 0": ([0.1, 0.0], ["learning_rates", "synapses.1.weight", "0"]),
        "one of them None": ([0.1, None], ["learning_rates", "synapses.1", "None"]),
        "unknown parameter": (
            {"synapses.2.weight": 0.1},
            ["learning_rates", "'synapses.2.weight'", "synapses.1.weight"],
        ),
        "a named one negative": ({"synapses.1.bias": -1.0}, ["synapses.1.bias", "-1"]),
        "none at all": ({}, ["learning_rates"]),
        "None": (None, ["learning_rates", "None"]),
    }
)
def test_bad_learning_rates(call, words):
    check(lambda: eqprop.make_engine(a_network(), a_rule(), call), words)


def test_one_members_bad_learning_rate_is_shown_as_a_number():
    rates = torch.tensor([0.1, -0.25])
    words = ["synapses.0.weight", "must be positive (0 is no learning), not -0.25; use frozen"]
    check(lambda: eqprop.make_engine(a_network(ensemble=2), a_rule(), rates), words)


@raises(
    {
        "rates": (lambda net: eqprop.make_engine(net, a_rule(), [ones(2), 0.1]), "learning_rates"),
        "one tensor of rates for all": (
            lambda net: eqprop.make_engine(net, a_rule(), ones(2)),
            "learning_rates",
        ),
        "rates of two axes": (
            lambda net: eqprop.make_engine(net, a_rule(), [ones(3, 1), 0.1]),
            "learning_rates",
        ),
        "beta": (
            lambda net: a_rule(beta=ones(2)).gradients(net, zeros(5, 3), zeros(5, 2)),
            "beta",
        ),
        "beta of two axes": (
            lambda net: a_rule(beta=ones(3, 1)).gradients(net, zeros(5, 3), zeros(5, 2)),
            "beta",
        ),
        "sign": (
            lambda net: list(a_rule().gradients(net, zeros(5, 3), zeros(5, 2), sign=ones(2))),
            "sign",
        ),
    }
)
def test_values_for_another_ensemble(call, words):
    check(lambda: call(a_network(ensemble=3)), [words, "[3]"])


def test_a_sign_that_is_not_one():
    """β·0 is no second phase, and a division by zero."""
    net, x, y = a_network(), zeros(5, 3), zeros(5, 2)
    sign = torch.tensor(0.0)
    check(lambda: list(a_rule().gradients(net, x, y, sign=sign)), ["sign", "0"])


def test_a_sign_that_is_no_tensor_is_read_as_a_number():
    net, x, y = a_network(), zeros(5, 3), zeros(5, 2)
    (plain,) = a_rule(beta=-0.1).gradients(net, x, y)
    (signed,) = a_rule(beta=0.1).gradients(net, x, y, sign=-1.0)
    assert all(torch.equal(plain[name], signed[name]) for name in plain)
    check(lambda: list(a_rule().gradients(net, x, y, sign=-2.0)), ["sign", "-2.0"])


def test_per_member_values_for_a_network_that_is_no_ensemble():
    net, x, y = a_network(), zeros(5, 3), zeros(5, 2)
    check(lambda: a_rule(beta=ones(1)).gradients(net, x, y), ["beta", "[1]", "[]"])
    check(lambda: eqprop.make_engine(net, a_rule(), [ones(1), 0.1]), ["learning_rates", "[1]"])


@raises(
    {
        "unknown kind": (
            lambda: eqprop.make_engine(a_network(), a_rule(), 0.1, "fast"),
            ["kind 'fast'", "reference", "auto"],
        ),
        "unknown frozen parameter": (
            lambda: eqprop.make_engine(a_network(), a_rule(), 0.1, frozen=["bias"]),
            ["frozen", "'bias'", "synapses.0.bias"],
        ),
        "frozen as a text": (
            lambda: eqprop.make_engine(a_network(), a_rule(), 0.1, frozen="synapses.0.bias"),
            ["frozen", "synapses.0.bias"],
        ),
        "a list of rates for a Primitive": (
            lambda: eqprop.make_engine(a_primitive(), a_rule(), [0.1]),
            ["learning_rates", "Network"],
        ),
        "a module of PyTorch": (
            lambda: eqprop.make_engine(torch.nn.Linear(3, 2), a_rule(), 0.1),
            ["model must be a Network", "not Linear"],
        ),
        "a rate of True": (
            lambda: eqprop.make_engine(a_network(), a_rule(), [0.1, True]),
            ["learning_rates: synapses.1.weight", "True"],
        ),
        "a class for a rule": (lambda: eqprop.make_engine(a_network(), EP, 0.1), ["rule", "EP"]),
    }
)
def test_a_bad_engine(call, words):
    check(call, words)


@pytest.mark.parametrize("rule", [EP, ContinualEP])
def test_ep_on_untied_synapses(rule):
    net, x, y = a_network(tied=False), zeros(5, 3), zeros(5, 2)
    engine = eqprop.make_engine(net, a_rule(rule), 0.1)
    check(lambda: engine.step(x, y), ["hidden→output", "untied", "ContinualVF"])
    check(lambda: net.phi(x, net.initial_state(x)), ["hidden→output", "untied"])


@pytest.mark.parametrize("rule", [EP, ContinualEP])
def test_ep_on_a_vector_field(rule):
    field, x, y = (
        a_field(lambda x, s, theta: (theta["a"] * s[0],)),
        torch.zeros(5, 1),
        torch.zeros(5, 2),
    )
    check(lambda: list(a_rule(rule).gradients(field, x, y)), ["VectorField", "Φ", "ContinualVF"])


def test_in_turn_on_a_model_of_unknown_topology():
    x, y = torch.zeros(5, 1), torch.zeros(5, 2)
    check(lambda: eqprop.relax(a_primitive(), x, 4, in_turn=True), ["in_turn", "Network"])
    rule = a_rule(in_turn=True)
    check(lambda: rule.gradients(a_primitive(), x, y), ["in_turn", "Network"])


@raises(
    {
        "parameters of two types": (
            lambda: a_primitive(parameters={"a": torch.ones(1), "b": torch.ones(1).double()}),
            ["parameter 'b'", "torch.float64"],
        ),
        "whole-number parameters": (
            lambda: a_primitive(parameters={"a": torch.ones(1, dtype=torch.int64)}),
            ["parameter 'a'", "torch.int64"],
        ),
        "a parameter that is no tensor": (
            lambda: a_primitive(parameters={"a": 0.2}),
            ["parameter 'a'", "float"],
        ),
        "a parameter of another ensemble": (
            lambda: a_primitive(parameters={"a": torch.ones(2)}, ensemble=3),
            ["parameter 'a'", "[2]", "[3]"],
        ),
        "no parameters": (lambda: a_primitive(parameters={}), ["parameters"]),
        "no layers": (lambda: a_primitive(layers={}), ["layers"]),
        "a layer of size 0": (lambda: a_primitive(layers={"s": 0}), ["'s'", "size", "0"]),
        "a layer of size 1.5": (lambda: a_primitive(layers={"s": 1.5}), ["'s'", "size", "1.5"]),
    }
)
def test_a_bad_primitive(call, words):
    check(call, words)


@raises(
    {
        "a mean over the batch": (lambda x, s, theta: (s[0] ** 2).mean(), ["phi", "[5]", "[]"]),
        "a value a neuron": (lambda x, s, theta: s[0] ** 2, ["phi", "[5]", "[5, 2]"]),
    }
)
def test_a_phi_that_does_not_give_one_value_a_sample(call, words):
    check(lambda: eqprop.relax(a_primitive(phi=call), torch.zeros(5, 1), 3), words)


@raises(
    {
        "a tensor for a state": (lambda x, s, theta: 0.5 * s[0], ["state"]),
        "a layer too many": (lambda x, s, theta: (s[0], s[0]), ["state", "2", "1"]),
        "a layer of another shape": (lambda x, s, theta: (s[0][..., :1],), ["'s'", "[5, 1]"]),
    }
)
def test_a_vector_field_that_does_not_give_a_state(call, words):
    check(lambda: eqprop.relax(a_field(call), torch.zeros(5, 1), 3), words)


def test_input_of_another_width_for_a_users_model():
    model = a_primitive(inputs=4)
    check(lambda: eqprop.relax(model, torch.zeros(5, 3), 3), ["x has width 3", "4 inputs"])


def test_a_network_converted_to_another_precision_says_and_does_the_same():
    """`.double()` is torch's own way to convert a module: the check of x must follow it."""
    net = eqprop.layered(3, 4, 2).double()
    assert eqprop.relax(net, ones(5, 3), 4).state[-1].dtype == torch.float64
    check(
        lambda: eqprop.relax(net, ones(5, 3, dtype=torch.float32), 4),
        ["x is torch.float32", "torch.float64"],
    )

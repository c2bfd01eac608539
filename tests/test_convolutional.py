"""Oracle: parity. The convolutional engine gives the numbers of the reference engine."""

import copy
import importlib.util
import itertools
import json
import os
import subprocess
import sys
import warnings
from functools import partial
from pathlib import Path

import pytest
import torch
from torch.optim.lr_scheduler import StepLR

import eqprop
from eqprop import Conv2d, Dense, Input, Layer
from eqprop.activations import HARD_SIGMOID, as_activation
from eqprop.data import Split
from eqprop.engines import ConvolutionalEngine, graphs
from eqprop.engines.convolutional import connections, dynamics, minibatch
from eqprop.engines.convolutional.advance import Advance
from eqprop.engines.convolutional.layers import (
    Neurons,
    Placed,
    Product,
    empty_layer,
    flat,
    memory_order,
    unit,
)
from eqprop.engines.convolutional.minibatch import Minibatch
from eqprop.engines.convolutional.windows import Windows
from tests.devices import DEVICE, needs_gpu, on_device
from tests.graphs_on_cpu import captured

ROOT = Path(__file__).parent.parent
needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="needs Triton: pip install triton"
)

# The largest difference of any parameter, output or residual from the reference, after three
# minibatches in float64: other orders of summation, some 1e-15, grown by 1/β and by each minibatch.
TOLERANCE = 1e-11

# From the input on, (channels, kernel, stride, padding, pool) or a number: odd sizes, strides,
# paddings, rows that no kernel and no window covers, windows of one, two and three.
CHAINS = {
    "one convolution": ((2, 7, 6), [(3, 3, 1, 1, 2), 4]),
    "no dense layer": ((1, 6, 6), [(4, 3, 1, 1, 2), (3, 3, 1, 0, 1)]),
    "two convolutions": ((1, 9, 8), [(3, 3, 1, 1, 2), (5, 3, 1, 1, 2), 4]),
    "strides": ((2, 11, 9), [(3, 3, 2, 1, 1), (4, 2, 2, 0, 1), 3]),
    "rows left out": ((1, 15, 13), [(2, 4, 1, 2, 2), (3, 4, 3, 2, 1), 3]),
    "windows of three": ((1, 13, 12), [(2, 2, 1, 1, 1), (3, 1, 1, 0, 3), 3]),
    "three convolutions": ((1, 12, 12), [(2, 3, 1, 1, 2), (3, 3, 1, 1, 2), (4, 3, 1, 1, 1), 3]),
    "two dense layers": ((1, 6, 6), [(2, 3, 1, 1, 2), 7, 3]),
    "dense first": ((6,), [(2, 4, 6), (3, 3, 1, 1, 2), 3]),
}
any_chain = pytest.mark.parametrize("chain", CHAINS)

# Shapes from the input on, and synapses: numbers of the layers they join, 0 for the input, then
# (kernel, stride, padding, pool), or nothing for a dense one.
GRAPHS = {
    "skip over one layer": (
        [(2, 7, 6), (3, 7, 6), (3, 4, 3), (2, 4, 3), (4,)],
        [(0, 1, 3, 1, 1, 1), (1, 2, 3, 2, 1, 1), (2, 3, 3, 1, 1, 1), (3, 4), (1, 3, 1, 2, 0, 1)],
    ),
    "skip over two layers, pooled": (
        [(1, 8, 7), (2, 8, 7), (3, 8, 7), (2, 8, 7), (3, 4, 3), (4,)],
        [
            (0, 1, 3, 1, 1, 1), (1, 2, 3, 1, 1, 1), (2, 3, 3, 1, 1, 1), (3, 4, 3, 1, 1, 2),
            (1, 4, 1, 1, 0, 2), (4, 5),
        ],
    ),
    "two windows into one layer": (
        [(1, 9, 12), (2, 9, 12), (3, 3, 4), (2,)],
        [(0, 1, 3, 1, 1, 1), (1, 2, 3, 1, 1, 3), (1, 2, 2, 3, 0, 1), (0, 2, 1, 3, 0, 1), (2, 3)],
    ),
    "skips from the input": (
        [(2, 6, 6), (3, 6, 6), (2, 3, 3), (4,)],
        [
            (0, 1, 3, 1, 1, 1), (1, 2, 3, 2, 1, 1), (0, 2, 1, 1, 0, 2), (0, 2, 3, 2, 1, 1), (2, 3),
            (0, 3),
        ],
    ),
    "a triangle": (
        [(1, 6, 6), (2, 6, 6), (3, 6, 6), (2, 3, 3), (4,)],
        [
            (0, 1, 3, 1, 1, 1), (1, 2, 3, 1, 1, 1), (2, 3, 2, 1, 1, 2), (1, 3, 2, 1, 1, 2), (3, 4),
        ],
    ),
    "four that all meet": (
        [(1, 6, 6), (2, 6, 6), (3, 3, 3), (2, 3, 3), (4,)],
        [
            (0, 1, 3, 1, 1, 1), (1, 2, 3, 1, 1, 2), (2, 3, 3, 1, 1, 1), (1, 3, 3, 2, 1, 1), (3, 4),
            (1, 4), (2, 4),
        ],
    ),
    "against the order of layers": (
        [(1, 6, 6), (2, 3, 3), (3, 6, 6), (4,)],
        [(0, 2, 3, 1, 1, 1), (2, 1, 3, 1, 1, 2), (1, 3), (2, 3)],
    ),
    "a layer that nothing leads to": (
        [(1, 6, 6), (2, 3, 3), (3, 6, 6), (4,)],
        [(0, 1, 3, 1, 1, 2), (2, 1, 3, 1, 1, 2), (1, 3)],
    ),
}  # fmt: skip
any_graph = pytest.mark.parametrize("graph", GRAPHS)
# Both directions of each synapse: one weight; two at an angle; two that share their updates, as in
# Kolen-Pollack.
TYING = {
    "tied": {},
    "untied": {"tied": False, "angle": 50.0},
    "shared": {"tied": False, "angle": 50.0, "shared_update": True},
}
any_tying = pytest.mark.parametrize("tying", TYING)
RULES = (
    (eqprop.EP, "tied"),
    (eqprop.ContinualEP, "tied"),
    (eqprop.VF, "untied"),
    (eqprop.ContinualVF, "shared"),
)
any_rule = pytest.mark.parametrize(("kind", "tying"), RULES)
any_order = pytest.mark.parametrize("orders", list(itertools.product((False, True), repeat=2)))


def a_network(
    chain="two convolutions", *, activation="hard_sigmoid", bias=True, tying="tied", **more
):
    shape, parts = CHAINS[chain]
    layers, synapses, pre = [Input(shape)], [], "input"
    for k, part in enumerate(parts):
        name = f"layer{k}"
        how = {"bias": bias, "init": "fan_in"} | (TYING[tying] if k else {})
        if isinstance(part, int) or len(part) == 3:
            synapse = Dense(pre, name, **how)
            shape = (part,) if isinstance(part, int) else part
        else:
            channels, kernel, stride, padding, pool = part
            synapse = Conv2d(pre, name, kernel, stride=stride, padding=padding, pool=pool, **how)
            shape = (channels, *synapse.pooled(shape))
        layers.append(Layer(name, shape))
        synapses.append(synapse)
        pre = name
    settings = {"ensemble": (2,), "dtype": torch.float64} | more
    return eqprop.Network(layers, synapses, activation=activation, **settings)


def a_graph(graph, *, activation="hard_sigmoid", bias=True, tying="tied", **more):
    shapes, joined = GRAPHS[graph]
    names = ["input", *(f"layer{k}" for k in range(1, len(shapes)))]
    layers = [Input(shapes[0]), *map(Layer, names[1:], shapes[1:])]
    synapses = []
    for pre, post, *window in joined:
        how = {"bias": bias, "init": "fan_in"} | (TYING[tying] if pre else {})
        if window:
            kernel, stride, padding, pool = window
            how |= {"stride": stride, "padding": padding, "pool": pool}
            synapses.append(Conv2d(names[pre], names[post], kernel, **how))
        else:
            synapses.append(Dense(names[pre], names[post], **how))
    settings = {"ensemble": (2,), "dtype": torch.float64} | more
    return eqprop.Network(layers, synapses, activation=activation, **settings)


def a_rule(kind=eqprop.EP, **more):
    settings = {"nudging": eqprop.Centred(0.3), "free_steps": 7, "nudged_steps": 5} | more
    return kind(**settings)


def a_minibatch(net, seed=0, batch=3):
    source = torch.Generator().manual_seed(seed)
    leading = (*net.ensemble, batch)
    x = torch.rand(*leading, *net.input_shape, generator=source, dtype=torch.float64)
    y = torch.rand(*leading, net.readout.width, generator=source, dtype=torch.float64)
    return x.to(net.dtype), y.to(net.dtype)


def a_rate(rule):
    return 0.003 if rule.continual else 0.1  # larger, C-EP multiplies every rounding


def a_pair(net, rule, rates=None, **more):
    """The reference engine, and this one, each with a network of its own."""
    rates = rates or a_rate(rule)
    return [
        eqprop.make_engine(copy.deepcopy(net), rule, rates, kind, **more)
        for kind in ("reference", "convolutional")
    ]


def fused():
    """The module of the kernel, which needs Triton."""
    from eqprop.engines.convolutional import fused

    return fused


def lying(image):
    return image.contiguous(memory_format=torch.channels_last)


def assert_parity_on(device, slow, net, rule, minibatches=2):
    """The engine on a device gives the numbers of the reference on the CPU, in float64."""
    fast = eqprop.make_engine(net.to(device), rule, slow.rates, "convolutional")
    for m in range(minibatches):
        x, y = a_minibatch(slow.model, m)
        output = fast.step(x.to(device), y.to(device)).cpu()
        torch.testing.assert_close(output, slow.step(x, y), rtol=0, atol=TOLERANCE)
    fast.model.to("cpu")
    assert distance(slow, fast) <= TOLERANCE


def poison(engine):
    """What a buffer holds before a step must not matter."""
    for work in engine._minibatches.values():
        buffers = [work.settling.changes, *work.gradients.values()]
        for part in (work.origin, work.free, work.nudged):
            layers = [part.x, *part.s]
            buffers += [part.y, *(it.value for it in layers), *(it.operand for it in layers)]
            for connection in part.connections:
                buffers.append(connection.drive)
                for weights in (connection.weight, connection.backward):
                    buffers.append(weights.operand)
                    if weights.moving:
                        buffers += [weights.change, weights._start]
        for buffer in buffers:
            buffer.fill_(torch.nan)


def distance(slow, fast):
    pairs = zip(slow.model.parameters(), fast.model.parameters(), strict=True)
    return max(float((a.double() - b.double()).abs().max()) for a, b in pairs)


def assert_parity(slow, fast, minibatches=3, batch=3, tolerance=TOLERANCE):
    before = [p.clone() for p in slow.model.parameters()]
    for m in range(minibatches):
        x, y = a_minibatch(slow.model, m, batch)
        poison(fast)
        torch.testing.assert_close(fast.step(x, y), slow.step(x, y), rtol=0, atol=tolerance)
    assert distance(slow, fast) <= tolerance
    moved = zip(slow.model.parameters(), before, strict=True)
    assert max(float((p - value).abs().max()) for p, value in moved) > 1e-4  # it learns
    mine, theirs = fast.relaxation, slow.relaxation
    torch.testing.assert_close(mine.state, theirs.state, rtol=0, atol=tolerance)
    torch.testing.assert_close(mine.sample_residual, theirs.sample_residual, rtol=0, atol=tolerance)
    assert torch.equal(mine.member_steps, theirs.member_steps)
    assert mine.residual == pytest.approx(theirs.residual, abs=tolerance)


@any_chain
@any_order
@pytest.mark.parametrize("free_steps", [6, 7])
def test_every_chain_in_every_order(chain, orders, free_steps):
    in_turn, nudged_in_turn = orders
    rule = a_rule(free_steps=free_steps, in_turn=in_turn, nudged_in_turn=nudged_in_turn)
    assert_parity(*a_pair(a_network(chain), rule))


@pytest.mark.filterwarnings("ignore::eqprop.NotSettled")
@pytest.mark.parametrize("tolerance", [0.1, 0.03])
@pytest.mark.parametrize("nudging", [eqprop.OneSided, eqprop.Centred])
@any_rule
@any_order
def test_a_tolerance_ends_the_free_phase_of_each_member(orders, kind, tying, nudging, tolerance):
    in_turn, nudged_in_turn = orders
    settings = {"in_turn": in_turn, "nudged_in_turn": nudged_in_turn, "nudging": nudging(0.3)}
    rule = a_rule(kind, free_steps=25, tolerance=tolerance, **settings)
    slow, fast = a_pair(a_network(tying=tying, ensemble=(3,)), rule)
    assert_parity(slow, fast)
    assert len(set(fast.relaxation.member_steps.tolist())) > 1
    assert fast.relaxation.tolerance == tolerance
    x, _ = a_minibatch(fast.model, 5, batch=2)
    ours, theirs = fast.relax(x, 17), slow.relax(x, 17)
    assert torch.equal(ours.member_steps, theirs.member_steps)
    torch.testing.assert_close(ours.state, theirs.state, rtol=0, atol=TOLERANCE)


@pytest.mark.filterwarnings("ignore::eqprop.NotSettled")
@any_graph
def test_a_tolerance_on_every_graph(graph):
    rule = a_rule(free_steps=25, tolerance=0.03, in_turn=True, nudged_in_turn=True)
    assert_parity(*a_pair(a_graph(graph), rule))


def test_each_minibatch_of_a_run_that_has_not_settled_warns():
    net = a_network("two dense layers", ensemble=())
    engine = eqprop.make_engine(net, a_rule(free_steps=3, tolerance=1e-6), 0.1, "convolutional")
    split = Split(torch.randint(256, (9, 1, 6, 6), dtype=torch.uint8), torch.arange(9) % 3, 3)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        engine.run(split, torch.arange(9).reshape(3, 3))
    assert [it.category for it in said] == [eqprop.NotSettled] * 3
    assert {it.filename for it in said} == {__file__}  # they name the line of the user


def test_any_change_is_within_an_infinite_tolerance():
    slow, fast = a_pair(a_network(), a_rule(tolerance=float("inf"), in_turn=True))
    assert_parity(slow, fast)
    assert fast.relaxation.steps == 2  # each group has moved once
    assert 0 < fast.relaxation.residual < 2


def test_inference_mode_of_the_user_ends_with_a_call():
    net = a_network()
    slow, fast = a_pair(net, a_rule())
    with torch.inference_mode():
        x, _ = a_minibatch(net, 5)
        fast.relax(x, 5)
        fast.step(*a_minibatch(net, 7))
    slow.step(*a_minibatch(net, 7))
    assert_parity(slow, fast)


@pytest.mark.parametrize(("stride", "size"), [(2, (1, 1)), (3, (1, 2)), (4, (1, 2))])
def test_bfloat16_with_strides_reads_only_what_was_written(stride, size):
    """PyTorch 2.13 does not, in weight gradients on a CPU: numbers up to 10³⁶, others each time."""
    net = eqprop.Network(
        [Input((1, 3, 5)), Layer("a", (16, *size)), Layer("b", (4, 1, 1)), Layer("out", 3)],
        [
            Dense("input", "a"),
            Conv2d("a", "b", 2, stride=stride, padding=1),
            Dense("b", "out"),
        ],
    )
    x, y = a_minibatch(net)
    moves = []
    for precision in (None, *(torch.bfloat16 for _ in range(30))):
        one = copy.deepcopy(net)
        engine = eqprop.make_engine(one, a_rule(), 0.1, "convolutional", precision=precision)
        engine.step(x, y)
        moves.append(one.synapses[1].weight - net.synapses[1].weight)
    exact, *rounded = moves
    assert all(torch.equal(it, rounded[0]) for it in rounded)
    assert float((rounded[0] - exact).norm()) < 0.1 * float(exact.norm())


def test_a_number_without_room_in_float16_leaves_the_minibatch_to_the_reference():
    net = a_network(activation="identity", dtype=torch.float32)
    x, y = a_minibatch(net)
    rough = eqprop.make_engine(net, a_rule(), 1e-12, precision=torch.float16)
    with pytest.warns(eqprop.engines.SlowEngine, match="no room in float16") as said:
        rough.step(3e4 * x, y)
    assert said[0].filename == __file__


def test_a_phase_that_has_not_settled_warns():
    pair = a_pair(a_network(), a_rule(free_steps=5, tolerance=1e-6))
    for engine in pair:
        with pytest.warns(eqprop.NotSettled, match="> tolerance 1e-06 after 5 steps") as said:
            engine.step(*a_minibatch(engine.model))
    assert said[0].filename == __file__


@pytest.mark.filterwarnings("ignore::eqprop.NotSettled")
@pytest.mark.parametrize("tolerance", [None, 0.03])
@pytest.mark.parametrize("nudging", [eqprop.OneSided, eqprop.Centred])
@any_rule
@any_order
def test_captured_graphs_do_the_same(
    orders, kind, tying, nudging, tolerance, graphs_on_cpu, monkeypatch
):
    """Whenever the phase ends, and whatever free phase came in between."""
    monkeypatch.setattr(minibatch, "Graphs", captured)
    monkeypatch.setattr(graphs, "STEPS", 3)  # so that phases are cut
    in_turn, nudged_in_turn = orders
    settings = {"in_turn": in_turn, "nudged_in_turn": nudged_in_turn, "nudging": nudging(0.3)}
    rule = a_rule(kind, free_steps=25, tolerance=tolerance, **settings)
    slow, fast = a_pair(a_network(tying=tying), rule)
    for _ in range(2):
        assert_parity(slow, fast, minibatches=2)
        x, _ = a_minibatch(fast.model, 5)
        ours, theirs = fast.relax(x, 12), slow.relax(x, 12)
        torch.testing.assert_close(ours.state, theirs.state, rtol=0, atol=TOLERANCE)
    assert graphs_on_cpu


@pytest.mark.parametrize("relaxation", [0.6, 1.5])
@any_rule
@any_order
def test_relaxation_with_every_rule_and_order(orders, kind, tying, relaxation):
    in_turn, nudged_in_turn = orders
    rule = a_rule(kind, in_turn=in_turn, nudged_in_turn=nudged_in_turn)
    net = a_network(tying=tying, time=eqprop.Discrete(relaxation))
    assert_parity(*a_pair(net, rule))


@pytest.mark.parametrize("made", [a_network, partial(a_graph, "a layer that nothing leads to")])
@pytest.mark.parametrize("activation", ["sigmoid", "tanh", "identity"])
def test_relaxation_with_every_activation(activation, made):
    net = made(activation=activation, time=eqprop.Discrete(1.3))
    assert_parity(*a_pair(net, a_rule(in_turn=True, nudged_in_turn=True)))


def test_relaxation_with_a_softmax():
    net = a_network("no dense layer", readout=eqprop.CrossEntropy(5), time=eqprop.Discrete(1.5))
    assert_parity(*a_pair(net, a_rule(in_turn=True, nudged_in_turn=True)))


@any_order
@pytest.mark.parametrize("nudging", [eqprop.OneSided, eqprop.RandomSign, eqprop.Centred])
@pytest.mark.parametrize("kind", [eqprop.EP, eqprop.ContinualEP])
def test_every_rule_nudging_and_order(kind, nudging, orders):
    beta = torch.tensor([0.3, -0.2], dtype=torch.float64)
    in_turn, nudged_in_turn = orders
    rule = a_rule(kind, nudging=nudging(beta), in_turn=in_turn, nudged_in_turn=nudged_in_turn)
    assert_parity(*a_pair(a_network(), rule))


@any_chain
def test_continual_ep_on_every_chain(chain):
    rule = a_rule(eqprop.ContinualEP, in_turn=True, nudged_in_turn=True)
    assert_parity(*a_pair(a_network(chain), rule))


@pytest.mark.slow
@any_graph
@pytest.mark.parametrize(
    ("kind", "tying", "orders"),
    [
        *((eqprop.EP, "tied", orders) for orders in itertools.product((False, True), repeat=2)),
        *(
            (kind, tying, orders)
            for kind, tying in RULES[1:]
            for orders in ((False, True), (True, False))
        ),
    ],
)
def test_every_graph_in_every_order(kind, tying, graph, orders):
    in_turn, nudged_in_turn = orders
    rule = a_rule(kind, in_turn=in_turn, nudged_in_turn=nudged_in_turn)
    assert_parity(*a_pair(a_graph(graph, tying=tying), rule))


def test_the_graphs_have_two_three_and_four_groups_of_layers():
    groups = {graph: len(a_graph(graph).split()) for graph in GRAPHS}
    assert set(groups.values()) == {2, 3, 4}
    assert groups["a triangle"] == 3
    assert groups["four that all meet"] == 4


@any_graph
@pytest.mark.parametrize("nudging", [eqprop.OneSided, eqprop.RandomSign])
def test_every_graph_with_a_softmax_and_other_nudging(graph, nudging):
    net = a_graph(graph, readout=eqprop.CrossEntropy(5), activation="tanh", bias=False)
    assert_parity(*a_pair(net, a_rule(nudging=nudging(0.3), in_turn=True, nudged_in_turn=True)))


FEW = "must be at least 3 with {}, one step per group of layers, not 2"


@pytest.mark.parametrize("kind", ["auto", "convolutional", "reference"])
def test_fewer_steps_than_groups_are_refused(kind):
    net = a_graph("a triangle")
    with pytest.raises(ValueError, match="^free_steps " + FEW.format("in_turn")):
        eqprop.make_engine(net, a_rule(free_steps=2, in_turn=True), 0.1, kind)
    with pytest.raises(ValueError, match="^nudged_steps " + FEW.format("nudged_in_turn")):
        eqprop.make_engine(net, a_rule(nudged_steps=2, nudged_in_turn=True), 0.1, kind)
    engine = eqprop.make_engine(net, a_rule(free_steps=3, in_turn=True), 0.1, kind)
    x, _ = a_minibatch(net)
    assert engine.relax(x, 3).steps == 3
    with pytest.raises(ValueError, match="^free_steps " + FEW.format("in_turn")):
        engine.relax(x, 2)


@any_chain
@any_order
def test_vf_on_every_chain_in_every_order(chain, orders):
    in_turn, nudged_in_turn = orders
    rule = a_rule(eqprop.VF, in_turn=in_turn, nudged_in_turn=nudged_in_turn, nudged_steps=6)
    assert_parity(*a_pair(a_network(chain, tying="untied"), rule))


@any_chain
def test_continual_vf_on_every_chain(chain):
    rule = a_rule(eqprop.ContinualVF, in_turn=True, nudged_in_turn=True)
    assert_parity(*a_pair(a_network(chain, tying="shared"), rule))


@any_chain
@any_order
@pytest.mark.parametrize("share", [0.01, 0.9])
@pytest.mark.parametrize(
    ("kind", "tying"), [(eqprop.ContinualEP, "tied"), (eqprop.ContinualVF, "shared")]
)
def test_rescaled_rules_with_any_update(kind, tying, share, orders, chain):
    in_turn, nudged_in_turn = orders
    rule = a_rule(kind, rescale=share, in_turn=in_turn, nudged_in_turn=nudged_in_turn)
    net = a_network(chain, tying=tying, time=eqprop.Discrete(1.3))
    update = eqprop.SGD(0.5, 0.01, schedule=lambda o: StepLR(o, 1, gamma=0.5))
    pair = a_pair(net, rule, 0.02, update=update)
    assert_parity(*pair)
    for engine in pair:
        engine.next_epoch()
    assert_parity(*pair)


def test_a_rescaled_rule_with_a_softmax_and_a_frozen_parameter():
    net = a_network(readout=eqprop.CrossEntropy(5))
    rule = a_rule(eqprop.ContinualEP, rescale=0.3, nudging=eqprop.RandomSign(0.3))
    pair = a_pair(net, rule, 0.02, update=eqprop.SGD(0.5), frozen=["synapses.1.bias"])
    start = pair[1].model.synapses[1].bias.clone()
    assert_parity(*pair)
    assert torch.equal(pair[1].model.synapses[1].bias, start)


@any_order
@any_tying
@pytest.mark.parametrize("kind", [eqprop.VF, eqprop.ContinualVF])
def test_vector_field_rules_with_every_tying_and_order(kind, tying, orders):
    in_turn, nudged_in_turn = orders
    rule = a_rule(kind, in_turn=in_turn, nudged_in_turn=nudged_in_turn)
    assert_parity(*a_pair(a_network(tying=tying), rule))


@pytest.mark.parametrize("nudging", [eqprop.OneSided, eqprop.RandomSign])
@pytest.mark.parametrize("kind", [eqprop.VF, eqprop.ContinualVF])
def test_every_nudging_of_untied_networks(kind, nudging):
    beta = torch.tensor([0.3, -0.2], dtype=torch.float64)
    rule = a_rule(kind, nudging=nudging(beta), nudged_in_turn=True)
    assert_parity(*a_pair(a_network(tying="untied"), rule))


def test_kolen_pollack_with_momentum_and_weight_decay():
    """Both weights get the same updates, so what they differ by decays, all of it alike."""
    update = eqprop.SGD(0.5, 0.5, nesterov=True)
    rule = a_rule(eqprop.VF, in_turn=True, nudged_in_turn=True)
    slow, fast = a_pair(a_network(tying="shared"), rule, update=update)

    def gaps():
        inner = fast.model.synapses[1:]
        return torch.cat([(s.weight - s.reverse(s.backward_weight)).flatten() for s in inner])

    before = gaps()
    assert_parity(slow, fast, minibatches=8)
    share = float(gaps().norm() / before.norm())
    assert share < 0.8
    torch.testing.assert_close(gaps(), share * before, rtol=0, atol=1e-14)


@any_rule
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("activation", ["sigmoid", "tanh", "identity"])
def test_every_activation_with_and_without_biases(activation, bias, kind, tying):
    net = a_network("strides", activation=activation, bias=bias, tying=tying)
    assert_parity(*a_pair(net, a_rule(kind)))


def test_layers_with_activations_of_their_own_and_an_input_with_one():
    net = eqprop.Network(
        [Input((1, 6, 6), "tanh"), Layer("c", (2, 3, 3)), Layer("out", 3, "identity")],
        [Conv2d("input", "c", 3, padding=1, pool=2, bias=True), Dense("c", "out", bias=True)],
        activation="hard_sigmoid", dtype=torch.float64,
    )  # fmt: skip
    assert_parity(*a_pair(net, a_rule(nudged_in_turn=True)))


@any_rule
@pytest.mark.parametrize("chain", ["two convolutions", "no dense layer"])
def test_cross_entropy(chain, kind, tying):
    net = a_network(chain, readout=eqprop.CrossEntropy(5), activation="tanh", tying=tying)
    assert_parity(*a_pair(net, a_rule(kind, nudged_in_turn=True)))


def test_momentum_weight_decay_and_a_schedule():
    update = eqprop.SGD(0.9, 0.01, nesterov=True, schedule=lambda o: StepLR(o, 1, gamma=0.5))
    rates = [0.1, torch.tensor([0.05, 0.1]).double(), 0.2]
    pair = a_pair(a_network(), a_rule(), rates, update=update, frozen=["synapses.1.bias"])
    for _ in range(2):
        assert_parity(*pair)
        for engine in pair:
            engine.next_epoch()
    assert torch.equal(*(e.model.synapses[1].bias for e in pair))


def test_another_optimiser_moves_along_the_same_gradients():
    update = eqprop.Optimiser(torch.optim.Adam)
    assert_parity(*a_pair(a_network(), a_rule(), 0.01, update=update), tolerance=1e-9)


def test_frozen_parameters_stay_also_under_continual_ep():
    frozen = ["synapses.0.weight", "synapses.2.bias"]
    pair = a_pair(a_network(), a_rule(eqprop.ContinualEP), frozen=frozen)
    before = copy.deepcopy(pair[1].model)
    assert_parity(*pair)
    for name, p in pair[1].model.named_parameters():
        assert torch.equal(p, before.get_parameter(name)) == (name in frozen)


@any_rule
@pytest.mark.parametrize("ensemble", [(3,), (2, 2)])
@pytest.mark.parametrize("made", [a_network, partial(a_graph, "two windows into one layer")])
def test_members_learn_as_they_do_alone(made, ensemble, kind, tying):
    several = made(ensemble=ensemble, tying=tying)
    rule = a_rule(kind, nudging=eqprop.OneSided(0.3), in_turn=True)
    indices = list(itertools.product(*map(range, ensemble)))
    alone = [eqprop.make_engine(several.member(*at), rule, 0.1) for at in indices]
    together = eqprop.make_engine(several, rule, 0.1)
    assert {type(e) for e in (together, *alone)} == {ConvolutionalEngine}
    for m in range(3):
        x, y = a_minibatch(several, m)
        output = together.step(x, y)
        for at, engine in zip(indices, alone, strict=True):
            torch.testing.assert_close(output[at], engine.step(x[at], y[at]), rtol=0, atol=1e-13)
    for at, engine in zip(indices, alone, strict=True):
        for name, p in engine.model.named_parameters():
            whole = several.get_parameter(name)[at]
            torch.testing.assert_close(whole, p, rtol=0, atol=1e-13)


def test_a_minibatch_that_members_share_class_indices_and_no_ensemble_axis():
    source = torch.Generator().manual_seed(0)
    x = torch.rand(5, 1, 9, 8, generator=source, dtype=torch.float64)
    y = torch.randint(4, (5,), generator=source)
    for ensemble in ((), (3,)):
        slow, fast = a_pair(a_network(ensemble=ensemble), a_rule())
        torch.testing.assert_close(fast.step(x, y), slow.step(x, y), rtol=0, atol=TOLERANCE)
        assert distance(slow, fast) <= TOLERANCE


@pytest.mark.parametrize("size", [2, 3])
def test_of_equal_values_the_first_wins(size):
    source = torch.Generator().manual_seed(0)
    few = torch.randint(3, (2, 4, 5, 7, 8), generator=source).double()  # ties everywhere
    drive = empty_layer(2, 4, (5, 7 // size, 8 // size), few)
    windows = Windows(size, drive, (7, 8), eqprop.activations.IDENTITY, torch.float64)
    post = torch.rand(drive.shape, generator=source, dtype=torch.float64)
    for i in range(2):
        image = few[i].contiguous(memory_format=torch.channels_last)
        windows.pool(i, Product(image, axis=0), None, Neurons(post, post).member(i))
        expected = torch.zeros_like(windows.spread[i])
        for n, c, h, w in itertools.product(*map(range, post[i].shape)):
            window = few[i, n, c, size * h : size * (h + 1), size * w : size * (w + 1)]
            row, column = divmod(window.flatten().tolist().index(float(window.max())), size)
            assert drive[i, n, c, h, w] == window.max()
            expected[n, c, size * h + row, size * w + column] = post[i, n, c, h, w]
        assert torch.equal(windows.spread[i], expected)


@pytest.mark.parametrize(("kind", "tying"), [(eqprop.EP, "tied"), (eqprop.VF, "untied")])
def test_a_network_in_which_every_window_is_a_tie(kind, tying):
    """Binary fractions: no sum is rounded, in whatever order, so that equals are equal."""
    net = a_network(bias=False, tying=tying)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.copy_(parameter.sign() * 0.125)
    rule = a_rule(kind, nudging=eqprop.Centred(0.25), in_turn=True, nudged_in_turn=True)
    slow, fast = a_pair(net, rule)
    x, y = torch.full((2, 4, 1, 9, 8), 0.5).double(), torch.eye(4).double()
    assert torch.equal(fast.step(x, y), slow.step(x, y))
    assert distance(slow, fast) <= TOLERANCE


def test_layers_lie_with_their_channels_last():
    layer = empty_layer(2, 3, (4, 5, 6), torch.zeros(()))
    layer.copy_(torch.arange(2 * 3 * 120).reshape(layer.shape))
    assert layer[0].is_contiguous(memory_format=torch.channels_last)
    assert flat(layer).data_ptr() == layer.data_ptr()
    order = memory_order((4, 5, 6), layer.device)
    assert torch.equal(flat(layer), layer.reshape(2, 3, 120)[..., order])


@any_rule
@pytest.mark.parametrize("softmax", [False, True])
def test_running_a_split_of_bytes_is_stepping_through_it(softmax, kind, tying):
    source = torch.Generator().manual_seed(0)
    images = torch.randint(256, (20, 1, 9, 8), generator=source, dtype=torch.uint8)
    labels = torch.randint(4, (20,), generator=source, dtype=torch.uint8)
    split = Split(images, labels, 4)
    index = torch.randint(20, (4, 2, 5), generator=source)
    signs = 2.0 * torch.randint(2, (4, 2), generator=source) - 1
    more = {"readout": eqprop.CrossEntropy(4)} if softmax else {}
    rule = a_rule(kind, nudging=eqprop.RandomSign(0.3))
    slow, fast = a_pair(a_network(tying=tying, **more), rule)
    fast.learn = None  # all minibatches in one call
    for part in (slice(None), slice(2), slice(None)):
        expected, counts = (e.run(split, index[part], signs[part]) for e in (slow, fast))
        assert torch.equal(counts.wrong, expected.wrong)
        torch.testing.assert_close(counts.loss, expected.loss, rtol=0, atol=TOLERANCE)
    smaller = index[:2, :, :3]  # the last minibatch of an epoch
    expected, counts = (e.run(split, smaller, signs[:2]) for e in (slow, fast))
    assert torch.equal(counts.wrong, expected.wrong)
    assert distance(slow, fast) <= TOLERANCE


def test_relaxing_is_relaxing():
    for in_turn in (False, True):
        net = a_network()
        engine = eqprop.make_engine(net, a_rule(in_turn=in_turn), 0.1, "convolutional")
        for steps, batch in ((9, 4), (10, 3)):
            x, y = a_minibatch(net, batch=batch)
            found, expected = engine.relax(x, steps), eqprop.relax(net, x, steps, in_turn=in_turn)
            torch.testing.assert_close(found.state, expected.state, rtol=0, atol=1e-13)
            torch.testing.assert_close(
                found.sample_residual, expected.sample_residual, rtol=0, atol=1e-13
            )
            assert (found.steps, found.state[0].is_contiguous()) == (steps, True)
            engine.step(x, y)


def test_float32_is_as_exact_as_the_reference_in_float32():
    rough = a_network(activation="sigmoid", dtype=torch.float32)
    exact = eqprop.make_engine(copy.deepcopy(rough).double(), a_rule(), 0.1, "reference")
    slow, fast = a_pair(rough, a_rule())
    for m in range(5):
        x, y = a_minibatch(rough, m)
        exact.step(x.double(), y.double())
        slow.step(x, y)
        fast.step(x, y)
    assert distance(exact, slow) > 1e-8  # float32 does round here: the bound means something
    assert distance(exact, fast) <= 4 * distance(exact, slow) + 1e-7


def test_a_parameter_in_another_place_is_read_there():
    slow, fast = a_pair(a_network(), a_rule())
    assert_parity(slow, fast, minibatches=1)
    for engine in (slow, fast):
        synapse = engine.model.synapses[1]
        synapse.weight = torch.nn.Parameter(synapse.weight * 0.5, requires_grad=False)
    assert_parity(slow, fast)


@any_rule
def test_a_minibatch_that_fails_raises_as_in_the_reference_and_moves_nothing(kind, tying):
    slow, fast = a_pair(a_network(tying=tying), a_rule(kind), update=eqprop.SGD())
    x, y = a_minibatch(fast.model)
    for engine in (slow, fast):
        engine.step(x, y)
        engine.model.synapses[1].weight[1, 2, 1, 0, 0] = torch.nan
    before = [p.clone() for p in fast.model.parameters()]
    failures = []
    for engine in (slow, fast):
        with pytest.raises(eqprop.NonFiniteState) as caught:
            engine.step(x, y)
        failures.append(caught.value)
    assert str(failures[0]) == str(failures[1])
    for p, value in zip(fast.model.parameters(), before, strict=True):
        torch.testing.assert_close(p, value, rtol=0, atol=0, equal_nan=True)


@pytest.mark.slow
@any_rule
@pytest.mark.parametrize("in_turn", [False, True])
@pytest.mark.parametrize("made", [a_network, partial(a_graph, "a triangle")])
def test_no_operation_waits_for_a_value(made, kind, tying, in_turn):
    """On tensors without values, as a GPU captures them: `item()` and the like would raise."""
    steps = {"free_steps": 4, "nudged_steps": 3}  # in the triangle, three groups move in turn
    rule = a_rule(kind, in_turn=in_turn, nudged_in_turn=not in_turn, **steps)
    readout = eqprop.CrossEntropy(5) if in_turn else None
    net = made(readout=readout, tying=tying).to("meta")
    update = eqprop.SGD().mover(net, dict.fromkeys(dict(net.named_parameters()), 0.1))
    with torch.no_grad():
        minibatch = Minibatch(net, rule, net.readout, update, 3, torch.float64)
        minibatch.learn()
        minibatch.relax(4)
    tensors = (*minibatch.free.state, *minibatch.gradients.values(), *net.parameters())
    assert all(tensor.is_meta for tensor in tensors)
    with pytest.raises(RuntimeError, match="meta"):
        minibatch.settling.residual().max().item()


class MyConv2d(Conv2d):
    pass


class MyNetwork(eqprop.Network):
    def forward(self, x, s, layers=None, held=None):
        return super().forward(x, s, layers, held)


def another_chain(kind=eqprop.Network, synapse=Conv2d, last=None, **more):
    return kind(
        [Input((1, 4, 4)), Layer("c", (2, 2, 2)), Layer("out", 3)],
        [synapse("input", "c", 3, padding=1, pool=2), last or Dense("c", "out")],
        **more,
    )


def feeding_itself():
    return eqprop.Network(
        [Input((1, 4, 4)), Layer("c", (2, 2, 2)), Layer("out", 3)],
        [Conv2d("input", "c", 3, padding=1, pool=2), Dense("c", "out"), Dense("out", "out")],
    )


OBSTACLES = {
    "the rule BPTT": (another_chain, {"rule": eqprop.BPTT(free_steps=7)}),
    "update_slope 'own'": (another_chain, {"rule": a_rule(eqprop.VF, update_slope="own")}),
    "Holomorphic nudging": (another_chain, {"rule": a_rule(nudging=eqprop.Holomorphic(0.1, 4))}),
    "continual updates other than plain descent": (
        another_chain,
        {"rule": a_rule(eqprop.ContinualEP), "update": eqprop.SGD(0.9)},
    ),
    "a cost other than SquaredError": (
        another_chain,
        {"cost": lambda output, y: (output - y).abs().sum(-1)},
    ),
    "synapses within a layer": (feeding_itself, {}),
    "synapses other than Conv2d and Dense": (
        lambda: another_chain(synapse=MyConv2d),
        {},
    ),
    "a MyNetwork with methods of its own": (lambda: another_chain(MyNetwork), {}),
    "real time": (lambda: another_chain(time=eqprop.RealTime(0.5)), {}),
    "the rule EP on untied synapses": (
        lambda: another_chain(last=Dense("c", "out", tied=False)),
        {},
    ),
    "an activation of your own": (lambda: another_chain(activation=torch.sin), {}),
    "parameters of torch.float16": (lambda: another_chain(dtype=torch.float16), {}),
}


@pytest.mark.parametrize("obstacle", OBSTACLES)
def test_what_it_cannot_run_is_said_and_left_to_the_reference(obstacle):
    network, given = OBSTACLES[obstacle]
    given = {"rule": a_rule(), **given}
    rule = given.pop("rule")
    if "Holomorphic" in obstacle:  # which pooling refuses on its own
        network = lambda: eqprop.Network(  # noqa: E731
            [Input((1, 4, 4)), Layer("out", (2, 2, 2))], [Conv2d("input", "out", 3)],
        )  # fmt: skip
    with pytest.raises(ValueError) as caught:  # noqa: PT011 (the whole message, below)
        eqprop.make_engine(network(), rule, 0.1, "convolutional", **given)
    assert str(caught.value) == (f"kind 'convolutional' cannot run {obstacle}: use kind='auto'")
    engine = eqprop.make_engine(network(), rule, 0.1, **given)
    assert not isinstance(engine, ConvolutionalEngine)


def test_16_bits_take_a_tolerance_with_centred_nudging_alone():
    net = another_chain(dtype=torch.float32)
    rule = a_rule(tolerance=1e-3, nudging=eqprop.OneSided(0.3))
    message = "a tolerance with one nudged phase in 16 bits: leave it out"
    with pytest.raises(ValueError, match=message):
        eqprop.make_engine(net, rule, 0.1, precision=torch.bfloat16)
    assert eqprop.make_engine(net, a_rule(tolerance=1e-3), 0.1, precision=torch.bfloat16)


def test_dense_chains_are_left_to_the_engines_for_them():
    net = eqprop.layered(4, 5, 3)
    with pytest.raises(ValueError, match="a network without Conv2d synapses"):
        eqprop.make_engine(net, a_rule(), 0.1, "convolutional")


# the kernel for GPUs: without one, Triton's interpreter runs it on the CPU


def all_work(windows, convolved, bias, back, nudge, post):
    """What windows do with one member, as copies of all that they write."""
    windows.pool(0, convolved, bias, post)
    steps = [windows.drive.clone(), windows.spread.clone()]
    windows.turn(0, convolved, bias, back, nudge, post)
    steps += [post.value.clone(), post.operand.clone(), windows.spread.clone()]
    steps += [
        windows.at_winners(Placed(nudge[None], windows.winners), less, it.dtype)
        for it in (nudge, post.operand)
        for less in (None, Placed(post.value[None], windows.winners))
    ]
    for drive in (None, back):
        windows.move(0, drive, None, post)
        steps += [post.value.clone(), post.operand.clone()]
    return steps


def assert_same_work(separate, kernel):
    for expected, ours in zip(separate, kernel, strict=True):
        atol = 1e-14 if ours.dtype == torch.float64 else 1e-3
        torch.testing.assert_close(ours, expected, rtol=0, atol=atol)


@needs_triton
@on_device
@pytest.mark.parametrize("precision", [torch.float64, torch.float16])
@pytest.mark.parametrize("sigma", ["sigmoid", "tanh", "hard_sigmoid", "identity"])
@pytest.mark.parametrize(("size", "relaxation"), [(1, 1.0), (2, 1.0), (3, 1.0), (2, 1.4)])
def test_the_kernel_drives_moves_and_spreads_as_separate_operations_do(
    size, relaxation, sigma, precision
):
    source = torch.Generator().manual_seed(0)

    def draw(*shape):
        return torch.randint(-3, 5, shape, generator=source).to(DEVICE, torch.float64) / 4  # ties

    convolved = Product(lying(draw(2, 5, 7, 8)).to(precision), axis=0)
    like = torch.zeros((), dtype=torch.float64, device=DEVICE)
    shape = (5, 7 // size, 8 // size)
    activation = as_activation(sigma)
    advance = Advance(activation, relaxation, None if relaxation == 1 else activation.bounds)
    pair = [
        kind(size, empty_layer(1, 2, shape, like), (7, 8), advance, precision)
        for kind in (Windows, fused().FusedWindows)
    ]
    before, back, nudge = (lying(draw(2, *shape)) for _ in range(3))
    bias = draw(5)
    found = []
    for windows in pair:
        value = before.clone()
        operand = value if precision == value.dtype else value.to(precision)
        post = Neurons(value, operand, axis=0)
        found.append(all_work(windows, convolved, bias, Product(back, axis=0), nudge, post))
    assert_same_work(*found)


@needs_triton
@on_device
@pytest.mark.parametrize("precision", [torch.float64, torch.float16])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_the_kernel_measures_two_phases_from_an_origin(size, precision):
    source = torch.Generator().manual_seed(0)

    def draw(*shape):
        return torch.randint(-3, 5, shape, generator=source).to(DEVICE, torch.float64) / 4  # ties

    like = torch.zeros((), dtype=torch.float64, device=DEVICE)
    shape = (5, 7 // size, 8 // size)
    start, before, nudge = lying(draw(2, *shape)), lying(draw(4, *shape)), lying(draw(4, *shape))
    there, here = (lying(draw(n, 5, 7, 8)).to(precision) for n in (2, 4))
    backs = (lying(draw(n, *shape)).to(precision) for n in (4, 2))
    bias, back = draw(5), Product(*backs, unit(precision), 0)
    found = []
    for kind in (Windows, fused().FusedWindows):

        def windows(batch, origin=None, kind=kind):
            drive = empty_layer(1, batch, shape, like)
            return kind(size, drive, (7, 8), Advance(HARD_SIGMOID), precision, origin)

        origin = windows(2)
        origin.pool(0, Product(there, axis=0), bias, Neurons(start, start, axis=0))
        phases, value = windows(4, origin), before.clone()
        operand = value.to(precision, copy=True)
        post = Neurons(value, operand, start, 0)
        convolved = Product(here, there, unit(precision), 0)
        found.append(all_work(phases, convolved, bias, back, nudge, post))
    assert_same_work(*found)


@needs_triton
@on_device
@pytest.mark.parametrize("precision", [torch.float64, torch.float16])
def test_the_winner_of_the_origin_wins_a_tie_that_rounding_made(precision):
    """Where nothing is rounded, a tie is a tie, and the larger difference decides."""
    like = torch.zeros((), dtype=torch.float64, device=DEVICE)
    tie = torch.tensor([1.0, 3.0, 3.0, 2.0], device=DEVICE).reshape(1, 1, 2, 2).to(precision)
    moved = torch.tensor([[0.0, 1, 2, 0], [0, 2, 1, 0], [0, 0, 0, 9]], device=DEVICE) / 8
    moved = (moved / unit(precision)).reshape(3, 1, 2, 2).to(precision)
    value = torch.ones(3, 1, 1, 1, dtype=torch.float64, device=DEVICE)
    post = Neurons(value, value.clone(), torch.zeros_like(value[:1]), 0)
    for kind in (Windows, fused().FusedWindows):
        drives = (empty_layer(1, n, (1, 1, 1), like) for n in (1, 3))
        origin = kind(2, next(drives), (2, 2), Advance(HARD_SIGMOID), precision)
        phases = kind(2, next(drives), (2, 2), Advance(HARD_SIGMOID), precision, origin)
        origin.pool(0, Product(tie, axis=0), None, Neurons(value[:1], value[:1], axis=0))
        phases.pool(0, Product(moved, tie, unit(precision), 0), None, post)
        won = (
            phases.at_winners(Placed(value[None], phases.winners), None, value.dtype)[0]
            .flatten(1)
            .argmax(1)
            .tolist()
        )
        assert won == ([1, 1, 3] if precision == torch.float16 else [2, 1, 3])


@needs_triton
@pytest.mark.slow
def test_the_kernel_compiles_for_a_gpu(tmp_path):
    environment = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path)}
    environment.pop("TRITON_INTERPRET", None)
    command = [sys.executable, "-m", "tests.compile_kernel"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    sizes = [int(line.split()[-1]) for line in done.stdout.splitlines()]
    assert len(sizes) == 20
    assert min(sizes) > 1000


@needs_triton
@on_device
def test_the_kernel_hides_no_value_that_is_not_finite():
    like = torch.zeros((), dtype=torch.float64, device=DEVICE)
    for place in range(4):
        windows = fused().FusedWindows(
            2, empty_layer(1, 1, (1, 1, 1), like), (2, 2), Advance(HARD_SIGMOID), torch.float64
        )
        convolved = torch.ones(1, 1, 4, dtype=torch.float64, device=DEVICE)
        convolved[..., place] = torch.nan
        value = torch.zeros(1, 1, 1, 1, dtype=torch.float64, device=DEVICE)
        post = Neurons(value, value, axis=0)
        windows.turn(0, Product(convolved.reshape(1, 1, 2, 2), axis=0), None, None, None, post)
        assert value.isnan().all()


@needs_triton
@on_device
@pytest.mark.slow
@pytest.mark.parametrize("chain", ["no dense layer", "rows left out", "three convolutions"])
@pytest.mark.parametrize(("in_turn", "relaxation"), [(False, 1.0), (True, 1.0), (True, 1.5)])
def test_chains_with_the_kernel(chain, in_turn, relaxation, monkeypatch):
    monkeypatch.setattr(connections, "Windows", fused().FusedWindows)
    rule = a_rule(in_turn=in_turn, nudged_in_turn=in_turn)
    slow, fast = a_pair(a_network(chain, time=eqprop.Discrete(relaxation)), rule)
    assert_parity_on(DEVICE, slow, fast.model, rule)


@needs_triton
@on_device
@pytest.mark.slow
@pytest.mark.parametrize("graph", ["skip over two layers, pooled", "two windows into one layer"])
@pytest.mark.parametrize("in_turn", [False, True])
def test_graphs_with_the_kernel(graph, in_turn, monkeypatch):
    monkeypatch.setattr(connections, "Windows", fused().FusedWindows)
    rule = a_rule(in_turn=in_turn, nudged_in_turn=in_turn)
    slow, fast = a_pair(a_graph(graph), rule)
    assert_parity_on(DEVICE, slow, fast.model, rule, minibatches=1)


@needs_triton
@on_device
@pytest.mark.slow
@pytest.mark.parametrize("nudged_in_turn", [False, True])
@pytest.mark.parametrize("chain", ["two convolutions", "windows of three"])
def test_vf_with_the_kernel(chain, nudged_in_turn, monkeypatch):
    """The winners that the kernel keeps serve the changes, too."""
    monkeypatch.setattr(connections, "Windows", fused().FusedWindows)
    rule = a_rule(eqprop.VF, nudged_in_turn=nudged_in_turn)
    slow, fast = a_pair(a_network(chain, tying="untied"), rule)
    fast.model.to(DEVICE)
    assert_parity_on(DEVICE, slow, fast.model, rule)


@needs_triton
@on_device
@pytest.mark.slow
@any_rule
def test_cross_entropy_with_the_kernel(kind, tying, monkeypatch):
    """The read-out nudges a convolutional layer, and the kernel has to spread what is nudged."""
    monkeypatch.setattr(connections, "Windows", fused().FusedWindows)
    readout = eqprop.CrossEntropy(5)
    net = a_network("no dense layer", readout=readout, activation="tanh", tying=tying)
    rule = a_rule(kind, nudged_in_turn=True)
    slow, fast = a_pair(net, rule)
    assert_parity_on(DEVICE, slow, fast.model, rule)


# less precision


def cosines_with_float64(kind, tying, in_turn, nudging, precision):
    """Return the cosine of one update with that in float64, per parameter. Layers are pooled."""
    net = a_network("three convolutions", dtype=torch.float64, tying=tying)
    rule = kind(
        nudging=nudging,
        free_steps=40,  # until the free state moves less than the nudged one
        nudged_steps=5,
        in_turn=in_turn,
        nudged_in_turn=in_turn,
    )
    x, y = a_minibatch(net, batch=16)
    moves = []
    for dtype, it, device in (
        (torch.float64, None, "cpu"),
        (torch.float32, precision, DEVICE),
    ):
        one = copy.deepcopy(net).to(device, dtype)
        rate = 0.003 * nudging.beta if rule.continual else 0.1  # C-EP needs η ≪ β
        engine = eqprop.make_engine(one, rule, rate, "convolutional", precision=it)
        before = [p.clone() for p in one.parameters()]
        engine.step(x.to(device, dtype), y.to(device, dtype))
        pairs = zip(one.parameters(), before, strict=True)
        moves.append([(p - b).double().cpu().flatten() for p, b in pairs])
    return [float(torch.cosine_similarity(*both, 0)) for both in zip(*moves, strict=True)]


@on_device
@pytest.mark.parametrize("precision", eqprop.engines.PRECISIONS)
@pytest.mark.parametrize("in_turn", [False, True])
@any_rule
def test_a_small_nudge_survives_rounding(kind, tying, in_turn, precision):
    """β is less than the rounding of a state. Products of states instead of differences from the
    free state would leave nothing of the gradient.
    """
    found = cosines_with_float64(kind, tying, in_turn, eqprop.Centred(1e-3), precision)
    # C-EP multiplies its errors; products of states leave less than 0.1 in bfloat16
    continual = kind in (eqprop.ContinualEP, eqprop.ContinualVF)
    assert min(found) > (0.6 if continual and precision == torch.bfloat16 else 0.95)


@on_device
@pytest.mark.parametrize("in_turn", [False, True])
@any_rule
def test_one_small_nudge_survives_rounding(kind, tying, in_turn):
    """One nudged phase divides by β what the free phase leaves undone. If that multiplied states to
    its end, at most 0.93 would be left with tied weights, and 0.7 with untied ones.
    """
    found = cosines_with_float64(kind, tying, in_turn, eqprop.OneSided(1e-2), torch.bfloat16)
    assert min(found) > (0.97 if tying == "tied" else 0.9)


@pytest.mark.parametrize("nudged_in_turn", [False, True])
@pytest.mark.parametrize(
    "made",
    [
        *(partial(a_network, chain) for chain in CHAINS),
        *(pytest.param(partial(a_graph, graph), marks=pytest.mark.slow) for graph in GRAPHS),
    ],
)
@pytest.mark.parametrize(("kind", "tying"), RULES[1::2])
def test_moving_weights_measured_from_the_free_state(
    kind, tying, made, nudged_in_turn, monkeypatch
):
    """As if convolutions rounded. Without windows in which every value is zero: there a rounding
    decides who wins.
    """
    monkeypatch.setattr(minibatch, "convolutions_round", lambda *_: True)
    rule = a_rule(kind, in_turn=True, nudged_in_turn=nudged_in_turn)
    slow, fast = a_pair(made(activation="sigmoid", tying=tying), rule)
    assert_parity(slow, fast)
    assert all(work.nudged.origin is work.free for work in fast._minibatches.values())


@any_order
@pytest.mark.parametrize("nudging", [eqprop.OneSided, eqprop.Centred])
@any_rule
def test_the_end_of_the_free_phase_measured_from_before(kind, tying, nudging, orders, monkeypatch):
    """As if convolutions rounded what they return, without windows in which every value is zero."""
    monkeypatch.setattr(minibatch, "results_round", lambda *_: True)
    in_turn, nudged_in_turn = orders
    rule = a_rule(kind, nudging=nudging(0.3), in_turn=in_turn, nudged_in_turn=nudged_in_turn)
    slow, fast = a_pair(a_network(activation="sigmoid", tying=tying), rule)
    assert_parity(slow, fast)
    one = nudging is eqprop.OneSided
    assert all((work.free.origin is work.origin) == one for work in fast._minibatches.values())


@needs_triton
@on_device
@pytest.mark.slow
@pytest.mark.parametrize(("kind", "tying"), RULES[1::2])
def test_moving_weights_with_the_kernel(kind, tying, monkeypatch):
    monkeypatch.setattr(connections, "Windows", fused().FusedWindows)
    monkeypatch.setattr(minibatch, "convolutions_round", lambda *_: True)
    rule = a_rule(kind, in_turn=True, nudged_in_turn=True)
    net = a_network("no dense layer", activation="sigmoid", tying=tying)
    slow, fast = a_pair(net, rule)
    assert_parity_on(DEVICE, slow, fast.model, rule)


@pytest.mark.parametrize(("kind", "tying"), RULES[1::2])
def test_steps_of_continual_rules_below_the_rounding_of_the_weights(kind, tying):
    """Each of 60 steps is about as small as the rounding of a weight in float32."""
    net = a_network(dtype=torch.float64, activation="sigmoid", tying=tying)
    rule = a_rule(kind, nudged_steps=30)
    x, y = a_minibatch(net, batch=16)
    moves = []
    for dtype in (torch.float64, torch.float32):
        one = copy.deepcopy(net).to(dtype)
        engine = eqprop.make_engine(one, rule, 3e-5, "convolutional")
        engine.step(x.to(dtype), y.to(dtype))
        pairs = zip(one.parameters(), net.parameters(), strict=True)
        moves.append(torch.cat([(p.double() - b.to(dtype)).flatten() for p, b in pairs]))
    exact, rough = moves
    distance = float((exact - rough).norm() / exact.norm())
    assert distance < 0.003


@pytest.mark.parametrize("precision", eqprop.engines.PRECISIONS)
@pytest.mark.parametrize("orders", [(False, False), (True, True)])
@pytest.mark.parametrize(
    ("kind", "tying", "nudging"),
    [
        (eqprop.EP, "tied", eqprop.Centred),
        (eqprop.EP, "tied", eqprop.OneSided),
        (eqprop.ContinualEP, "tied", eqprop.OneSided),
        (eqprop.VF, "untied", eqprop.Centred),
    ],
)
@pytest.mark.parametrize(
    "made", [partial(a_network, "strides"), partial(a_graph, "skip over one layer")]
)
def test_less_precision_follows_the_same_gradient(made, kind, tying, nudging, orders, precision):
    """Without pooling, whose winners may change with a rounding. The bounds can fail: what is
    multiplied in bfloat16 exceeds those for float16, if C-EP does not multiply its errors.
    """
    in_turn, nudged_in_turn = orders
    net = made(dtype=torch.float32, activation="sigmoid", tying=tying)
    rule = a_rule(kind, in_turn=in_turn, nudged_in_turn=nudged_in_turn, nudging=nudging(0.5))
    exact, rough = (
        eqprop.make_engine(copy.deepcopy(net), rule, a_rate(rule), precision=it)
        for it in (None, precision)
    )
    x, y = a_minibatch(net, batch=16)
    before = [p.clone() for p in net.parameters()]
    outputs = [engine.step(x, y) for engine in (exact, rough)]
    moves = [
        torch.cat([(p - b).flatten() for p, b in zip(e.model.parameters(), before, strict=True)])
        for e in (exact, rough)
    ]
    unit = torch.finfo(precision).eps
    assert 0 < (outputs[0] - outputs[1]).abs().max() < unit / 2
    bound = unit * (32 if rule.continual else 1)
    assert (moves[0] - moves[1]).norm() < bound * moves[0].norm()


@pytest.mark.parametrize("channels", [1, 8])  # few are multiplied in float32
@pytest.mark.parametrize("change", [1e-4, 1.0])
@pytest.mark.parametrize("factor", [1e-12, 1e-6])
def test_sums_over_large_images_fit_float16(factor, change, channels):
    """2¹⁷ positions, where float16 ends at 2¹⁶; changes near its smallest numbers, sums below."""
    layers = [Input((channels, 64, 64)), Layer("c", (1, 64, 64)), Layer("out", 2)]
    synapses = [Conv2d("input", "c", 1), Dense("c", "out")]
    synapse = eqprop.Network(layers, synapses, ensemble=(1,)).synapses[0]
    connection = connections.Convolution(synapse, HARD_SIGMOID, 32, torch.float16)
    total = torch.zeros_like(synapse.weight)
    pre, post = torch.ones(1, 32, channels, 64, 64), torch.full((1, 32, 1, 64, 64), change)
    connection._add(pre, Placed(post), None, torch.full((1, 32), factor), total)
    expected = torch.full_like(total, factor * change * 2**17)
    torch.testing.assert_close(total, expected, rtol=1e-2, atol=0)


def test_less_precision_is_recorded_and_resumes_exactly(cli, tmp_path):
    """From the command line, with a network of two convolutions and few images."""
    fields = {
        "layers": "[{conv=2,kernel=3,padding=1,pool=2},{conv=3,kernel=3,padding=1,pool=2},10]",
        "train_samples": 60, "test_samples": 20, "batch": 20, "free_steps": 6, "nudged_steps": 4,
        "schedule": "none", "seeds": 1,
    }  # fmt: skip
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    how = ("--precision", "bfloat16")
    for out, epochs, more in ((whole, 2, ()), (parts, 1, ()), (parts, 2, ("--resume",))):
        words = ("train", "mnist-conv", "--epochs", epochs, "--out", out, *how, *more)
        assert cli(*words, **fields).code == 0
    runs = [eqprop.load(out) for out in (whole, parts)]
    for a, b in zip(*(run.net.parameters() for run in runs), strict=True):
        assert torch.equal(a, b)
    facts = json.loads((parts / "run.json").read_text())["sessions"]
    assert [session["machine"]["precision"] for session in facts] == ["bfloat16"] * 2
    words = ("train", "mnist-conv", "--epochs", 3, "--out", parts, "--resume")
    refused = cli(*words, **fields)
    assert refused.code == 2
    assert "was trained with precision bfloat16, so it cannot go on with that of" in refused.err
    assert refused.err.endswith(": add --precision bfloat16\n")
    plain = tmp_path / "plain"
    assert cli("train", "mnist-conv", "--epochs", 2, "--out", plain, **fields).code == 0
    refused = cli("train", "mnist-conv", "--epochs", 3, "--out", plain, "--resume", *how, **fields)
    assert refused.code == 2
    assert refused.err.endswith("cannot go on with bfloat16: leave it out\n")
    exact = eqprop.load(plain).net.state_dict()
    assert any(not torch.equal(p, exact[name]) for name, p in runs[0].net.state_dict().items())
    refused = cli("train", "ep-1h", "--out", tmp_path / "no", *how)
    assert refused.code == 2
    assert "precision torch.bfloat16 cannot run" in refused.err


def test_precision_is_refused_where_no_engine_has_it():
    with pytest.raises(ValueError, match=r"precision must be torch.float16 or torch.bfloat16"):
        eqprop.make_engine(a_network(), a_rule(), 0.1, precision=torch.int8)
    with pytest.raises(ValueError, match=r"kind 'reference' cannot run precision torch.float16"):
        eqprop.make_engine(a_network(), a_rule(), 0.1, "reference", precision=torch.float16)
    with pytest.raises(ValueError, match=r"torch.float16 cannot run the rule BPTT: leave"):
        eqprop.make_engine(a_network(), eqprop.BPTT(free_steps=7), 0.1, precision=torch.float16)


@any_rule
def test_each_step_can_begin_a_graph_and_none_is_empty(kind, tying, monkeypatch):
    """A graph that ends after the last step would be empty, of which PyTorch warns."""
    said = []

    def telling(owner, word):
        function = owner.step
        monkeypatch.setattr(owner, "step", lambda *given: [said.append(word), function(*given)][1])

    telling(graphs.Graphs, "begin")
    telling(dynamics.Dynamics, "step")
    net = a_network(tying=tying)
    rule = a_rule(kind, free_steps=7, nudged_steps=3, nudging=eqprop.Centred(0.3))
    engine = eqprop.make_engine(net, rule, 0.1, "convolutional")
    x, y = a_minibatch(net)
    engine.relax(x, 5)
    assert said == ["begin", "step"] * 5
    engine.step(x, y)
    phases = 2 if rule.continual else 1  # at fixed weights both run as one
    assert said == ["begin", "step"] * (5 + 7 + 3 * phases)


@needs_gpu
@any_order
@pytest.mark.parametrize("nudging", [eqprop.RandomSign, eqprop.Centred])
@any_rule
@pytest.mark.parametrize(
    "made",
    [a_network, partial(a_graph, "a triangle"), partial(a_network, time=eqprop.Discrete(1.5))],
)
def test_the_captured_graph_on_a_gpu(made, kind, tying, nudging, orders, monkeypatch):
    in_turn, nudged_in_turn = orders
    rule = a_rule(kind, nudging=nudging(0.3), in_turn=in_turn, nudged_in_turn=nudged_in_turn)
    assert_parity_of_graphs(made(tying=tying), rule, eqprop.SGD(), monkeypatch)


@needs_gpu
@pytest.mark.filterwarnings("ignore::eqprop.NotSettled")
@pytest.mark.parametrize("tolerance", [0.1, 0.03])
@any_rule
@any_order
def test_a_tolerance_on_a_gpu(orders, kind, tying, tolerance, monkeypatch):
    settings = {"in_turn": orders[0], "nudged_in_turn": orders[1], "tolerance": tolerance}
    rule = a_rule(kind, free_steps=25, **settings)
    assert_parity_of_graphs(a_network(tying=tying), rule, eqprop.SGD(), monkeypatch)


@needs_gpu
@pytest.mark.parametrize("nudging", [eqprop.RandomSign, eqprop.Centred])
@pytest.mark.parametrize(
    ("kind", "tying"), [(eqprop.ContinualEP, "tied"), (eqprop.ContinualVF, "shared")]
)
def test_the_captured_graph_of_rescaled_rules_on_a_gpu(kind, tying, nudging, monkeypatch):
    rule = a_rule(kind, nudging=nudging(0.3), rescale=0.3)
    assert_parity_of_graphs(a_network(tying=tying), rule, eqprop.SGD(0.5, 0.01), monkeypatch)


def assert_parity_of_graphs(net, rule, update, monkeypatch):
    """A row of graphs on a GPU gives the numbers of the reference on the CPU, in float64."""
    monkeypatch.setattr(graphs, "STEPS", 3)  # so that phases are cut
    slow, fast = a_pair(net, rule, update=update)
    sign = torch.tensor([1.0, -1.0]) if rule.nudging.draws_sign else None
    moved = fast.model.to("cuda")
    fast = eqprop.make_engine(moved, rule, slow.rates, "convolutional", update=update)
    for m in range(4):
        x, y = a_minibatch(slow.model, m)
        output = fast.step(x.to("cuda"), y.to("cuda"), sign).cpu()
        torch.testing.assert_close(output, slow.step(x, y, sign), rtol=0, atol=TOLERANCE)
    fast.model.to("cpu")
    assert distance(slow, fast) <= TOLERANCE


@needs_gpu
@pytest.mark.parametrize("precision", [None, *eqprop.engines.PRECISIONS])
def test_the_network_for_cifar10_on_a_gpu(precision):
    """One minibatch of the recipe, on random images: TF32 and less against float64.

    Outputs differ by less than one rounding of what is multiplied: 2⁻¹¹ with TF32 and float16, 2⁻⁸
    with bfloat16. So do the gradients of the two last synapses, by a few. Those of the first hardly
    exceed the noise in a new network, whose feedback is weak: the noise must not exceed the bound.
    """
    recipe = eqprop.runs.recipe.load("cifar10-conv", {"seeds": 1, "free_steps": 20})
    members = recipe.members()
    rule = recipe.learning_rule(members)
    exact = eqprop.make_engine(recipe.network.build(members, torch.float64), rule, 0.1)
    net = recipe.network.build(members)
    rough = eqprop.make_engine(net.to("cuda"), rule, 0.1, precision=precision)
    x, y = a_minibatch(exact.model, batch=8)
    before = [p.clone() for p in exact.model.parameters()]
    outputs = [exact.step(x, y), rough.step(x.float().cuda(), y.float().cuda()).double().cpu()]
    unit = torch.finfo(precision or torch.float16).eps
    assert (outputs[0] - outputs[1]).abs().max() < unit
    pairs = zip(exact.model.parameters(), net.cpu().parameters(), before, strict=True)
    far = [float((b.double() - a).norm() / (a - start).norm()) for a, b, start in pairs]
    assert max(far[-4:]) < 0.1
    assert max(far) < 4


@needs_gpu
@pytest.mark.parametrize("precision", [None, torch.float16])
def test_a_gpu_gives_the_same_bits_twice(precision):
    recipe = eqprop.runs.recipe.load("cifar10-conv", {"seeds": 1})
    members, found = recipe.members(), []
    for _ in range(2):
        net = recipe.network.build(members).to("cuda")
        rule, update = recipe.learning_rule(members), eqprop.SGD(0.9)
        engine = eqprop.make_engine(net, rule, 0.03, precision=precision, update=update)
        for m in range(10):
            x, y = a_minibatch(net, m, batch=128)
            engine.step(x.cuda(), y.cuda())
        found.append([p.clone() for p in net.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))

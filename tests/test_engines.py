"""Oracle: parity. Every fast engine gives the numbers of the reference engine."""

import copy
import os
import warnings

import numpy as np
import pytest
import torch

import eqprop
from benchmarks.baseline import Baseline
from eqprop import engines
from eqprop.data import Split
from eqprop.engines import telescoped
from eqprop.engines.native import build
from eqprop.runs.evaluation import measure
from tests.devices import needs_gpu


def has_compiler():
    try:
        build.library(torch.float64)
    except build.CannotBuild:
        return False
    return True


needs_compiler = pytest.mark.skipif(not has_compiler(), reason="needs a C compiler")
FAST = (pytest.param("native", marks=needs_compiler), "telescoped")
RULES = {
    "EP": (eqprop.EP, True, {}),
    "C-EP": (eqprop.ContinualEP, True, {}),
    "rescaled C-EP": (eqprop.ContinualEP, True, {"rescale": 1e-5}),
    "VF": (eqprop.VF, False, {}),
    "C-VF": (eqprop.ContinualVF, False, {}),
    "rescaled C-VF": (eqprop.ContinualVF, False, {"rescale": 1e-3}),
    "VF, tied": (eqprop.VF, True, {}),
    "C-VF, tied": (eqprop.ContinualVF, True, {}),
}
DISCRETE_RULES = RULES | {
    f"{name}, {slope} slope": (cls, tied, {**extra, "update_slope": slope})
    for name, (cls, tied, extra) in RULES.items()
    for slope in ("own", "full")
    if cls in (eqprop.VF, eqprop.ContinualVF)
}
# The largest difference of any parameter or output from the reference, and why it may be so.
TOLERANCES = {
    "float64, 1 minibatch": 1e-12,  # other orders of summation: some 1e-15, grown by 1/β
    "float64, 50 minibatches": 1e-9,  # each minibatch starts from the difference of the last
    "float32 over the reference's own error": 4.0,  # both round about equally often
}
# sizes, batch, members: hidden layers from one to three, sizes that fill vectors and that do not
SHAPES = (
    ((6, 5, 3), 1, 1),
    ((9, 63, 5), 7, 3),
    ((12, 512, 10), 20, 1),
    ((5, 100, 63, 7), 33, 1),
    ((8, 63, 100, 5), 7, 5),
    ((7, 5, 63, 100, 4), 20, 3),
    ((4, 3), 7, 3),
    ((6, 128, 128, 3), 20, 2),  # rows of whole kilobytes, which the compiled engine pads
    ((4, 128), 7, 3),
)


def build_pair(kind, rule, sizes, members, dtype=torch.float64, time=None, angle=30.0, **more):
    cls, tied, extra = DISCRETE_RULES[rule]
    net = eqprop.layered(
        *sizes,
        tied=tied,
        angle=0.0 if tied else angle,
        time=time or eqprop.Discrete(),
        activation="sigmoid" if time is None else "tanh",
        init="fan_in",
        ensemble=(members,),
        dtype=dtype,
    )
    other = copy.deepcopy(net)
    options = {"beta": 0.3, "free_steps": 12, "nudged_steps": 6, **extra, **more}
    rates = [0.02 * (k + 1) for k in range(len(sizes) - 1)]
    slow = eqprop.make_engine(net, cls(**options), rates, "reference")
    return slow, eqprop.make_engine(other, cls(**options), rates, kind)


def minibatch(seed, sizes, members, batch, dtype=torch.float64, share=None):
    """`share` of the inputs is not zero; by default few and most of them in turn, since engines
    may treat the two differently."""
    source = torch.Generator().manual_seed(seed)
    shares = torch.tensor([share or (0.9, 0.3)[(seed + e) % 2] for e in range(members)])
    x = torch.rand(members, batch, sizes[0], generator=source, dtype=torch.float64)
    x = x * (torch.rand(members, batch, sizes[0], generator=source) < shares[:, None, None])
    y = torch.rand(members, batch, sizes[-1], generator=source, dtype=torch.float64)
    return x.to(dtype), y.to(dtype)


def distance(slow, fast):
    pairs = zip(slow.model.parameters(), fast.model.parameters(), strict=True)
    return max(float((a.double() - b.double()).abs().max()) for a, b in pairs)


def float32_bound(exact, slow):
    """How far a fast engine in float32 may end from the reference in float64: some times as far as
    the reference in float32, and one rounding of the largest parameter."""
    largest = max(float(p.abs().max()) for p in exact.model.parameters())
    factor = TOLERANCES["float32 over the reference's own error"]
    return factor * distance(exact, slow) + torch.finfo(torch.float32).eps * largest


def poison(engine):
    """What a buffer holds before a step must not matter."""
    if isinstance(engine, engines.NativeEngine):
        engine._scratch.fill_(255)  # NaN, as floats


def assert_parity(slow, fast, sizes, members, batch, minibatches, tolerance):
    for m in range(minibatches):
        x, y = minibatch(m, sizes, members, batch)
        poison(fast)
        a, b = slow.step(x, y), fast.step(x, y)
        assert float((a - b).abs().max()) <= tolerance
    assert distance(slow, fast) <= tolerance
    for key in ("sample_residual", "member_steps"):
        mine, theirs = (getattr(e.relaxation, key).double() for e in (fast, slow))
        torch.testing.assert_close(mine, theirs, rtol=0, atol=tolerance)
    for mine, theirs in zip(fast.relaxation.state, slow.relaxation.state, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=tolerance)


@pytest.mark.parametrize(("sizes", "batch", "members"), SHAPES)
@pytest.mark.parametrize("rule", DISCRETE_RULES)
@pytest.mark.parametrize("kind", FAST)
def test_one_minibatch_in_discrete_time(kind, rule, sizes, batch, members):
    for beta, steps in ((0.3, 12), (-0.3, 11)):
        pair = build_pair(kind, rule, sizes, members, beta=beta, free_steps=steps)
        tolerance = TOLERANCES["float64, 1 minibatch"]
        assert_parity(*pair, sizes, members, batch, 1, tolerance)


@pytest.mark.parametrize("share", [0.1, 1.0])
@pytest.mark.parametrize(("sizes", "batch", "members"), [*SHAPES, ((150, 200, 10), 20, 3)])
@pytest.mark.parametrize("kind", FAST)
def test_inputs_that_are_mostly_zero_and_inputs_that_never_are(kind, sizes, batch, members, share):
    slow, fast = build_pair(kind, "C-EP", sizes, members)
    x, y = minibatch(0, sizes, members, batch, share=share)
    poison(fast)
    torch.testing.assert_close(fast.step(x, y), slow.step(x, y), rtol=0, atol=1e-12)
    assert distance(slow, fast) <= TOLERANCES["float64, 1 minibatch"]


@pytest.mark.parametrize("slope", ["all", "hidden", "none"])
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("kind", FAST)
def test_one_minibatch_in_real_time(kind, rule, slope):
    sizes = (9, 63, 20, 5)
    pair = build_pair(kind, rule, sizes, 3, time=eqprop.RealTime(0.2, slope), beta=-0.3)
    assert_parity(*pair, sizes, 3, 13, 1, TOLERANCES["float64, 1 minibatch"])


@pytest.mark.slow
@pytest.mark.parametrize("rule", DISCRETE_RULES)
@pytest.mark.parametrize("kind", FAST)
def test_fifty_minibatches_with_random_signs(kind, rule):
    sizes = (9, 63, 20, 5)
    pair = build_pair(kind, rule, sizes, 3, random_sign=True)
    assert_parity(*pair, sizes, 3, 7, 50, TOLERANCES["float64, 50 minibatches"])


@pytest.mark.parametrize("rule", DISCRETE_RULES)
@pytest.mark.parametrize("kind", FAST)
def test_layers_in_turn(kind, rule):
    for sizes, steps in (((9, 33, 5), 12), ((9, 33, 20, 5), 11)):
        pair = build_pair(kind, rule, sizes, 2, in_turn=True, free_steps=steps)
        assert_parity(*pair, sizes, 2, 13, 3, TOLERANCES["float64, 1 minibatch"])


@pytest.mark.parametrize("steps", [1, 5])
@pytest.mark.parametrize("kind", FAST)
def test_layers_in_turn_of_a_network_without_hidden_layers(kind, steps):
    """It has one group: the output layer moves at every step."""
    more = {"in_turn": True, "free_steps": steps, "time": eqprop.RealTime(0.2)}
    for rule in ("C-EP", "C-VF"):
        pair = build_pair(kind, rule, (4, 3), 2, **more)
        assert_parity(*pair, (4, 3), 2, 7, 3, TOLERANCES["float64, 1 minibatch"])


@needs_compiler
@pytest.mark.parametrize("rule", ["C-EP", "C-VF, own slope"])
@pytest.mark.parametrize("in_turn", [False, True])
def test_a_tolerance_ends_the_free_phase_of_each_member_as_in_the_reference(in_turn, rule):
    sizes = (9, 33, 20, 5)
    for tolerance in (1e-2, 1e-4):
        pair = build_pair(
            "native", rule, sizes, 4, tolerance=tolerance, free_steps=200, in_turn=in_turn
        )
        assert_parity(*pair, sizes, 4, 7, 2, TOLERANCES["float64, 1 minibatch"])
        steps = pair[1].relaxation.member_steps
        assert 2 < int(steps.min()) <= int(steps.max()) < 200
    pair = build_pair("native", rule, (4, 3), 4, tolerance=0.01, free_steps=9, in_turn=in_turn)
    assert_parity(*pair, (4, 3), 4, 7, 2, TOLERANCES["float64, 1 minibatch"])
    assert set(pair[1].relaxation.member_steps.tolist()) == {2}  # one group: the second shows it


@pytest.mark.parametrize("activation", ["sigmoid", "tanh", "hard_sigmoid", "identity"])
@pytest.mark.parametrize("kind", FAST)
def test_every_activation_in_both_times(kind, activation):
    sizes = (6, 17, 4)
    options = {"beta": 0.1, "free_steps": 9, "nudged_steps": 4}
    for time, rule in (
        (eqprop.Discrete(), eqprop.ContinualEP(**options)),
        (eqprop.RealTime(0.3), eqprop.ContinualEP(**options)),
        (eqprop.Discrete(), eqprop.ContinualVF(**options, update_slope="own")),
        (eqprop.Discrete(), eqprop.ContinualVF(**options, update_slope="full")),
    ):
        net = eqprop.layered(
            *sizes,
            activation=activation,
            time=time,
            init="fan_in",  # small enough for the linear network to settle
            ensemble=2,
            dtype=torch.float64,
        )
        slow = eqprop.make_engine(net, rule, 0.01, "reference")
        fast = eqprop.make_engine(copy.deepcopy(net), rule, 0.01, kind)
        assert_parity(slow, fast, sizes, 2, 5, 2, TOLERANCES["float64, 1 minibatch"])


@pytest.mark.parametrize("update_slope", ["own", "full"])
@pytest.mark.parametrize("kind", FAST)
def test_the_slope_of_a_hard_sigmoid_is_one_at_its_bounds(kind, update_slope):
    """Forward drives of exactly 0 and 1, where the state does not tell σ′."""
    net = eqprop.layered(
        6, 9, 4, tied=False, activation="hard_sigmoid", ensemble=1, dtype=torch.float64
    )
    odd = torch.arange(9) % 2
    net.synapses[0].bias.copy_(odd)
    net.synapses[1].bias.copy_(odd[:4])
    net.synapses[1].weight.zero_()
    net.synapses[1].backward_weight.copy_(0.05 - 0.1 * odd)  # away from the bounds
    x, y = torch.zeros(1, 5, 6, dtype=torch.float64), (1.0 - odd[:4]).double().expand(1, 5, 4)
    rule = eqprop.VF(beta=0.1, free_steps=1, nudged_steps=2, update_slope=update_slope)
    slow, fast = (eqprop.make_engine(copy.deepcopy(net), rule, 0.1, k) for k in ("reference", kind))
    for engine in (slow, fast):
        engine.step(x, y)
    assert distance(slow, fast) <= TOLERANCES["float64, 1 minibatch"]
    for before, after in zip(net.synapses, fast.model.synapses, strict=True):
        assert bool((before.bias != after.bias).all())


@pytest.mark.parametrize("update_slope", ["none", "own", "full"])
@pytest.mark.parametrize("kind", FAST)
def test_what_may_differ_between_members_and_what_is_frozen(kind, update_slope):
    sizes = (6, 17, 9, 4)
    net = eqprop.layered(
        *sizes, tied=False, angle=[0.0, 90.0, 180.0], ensemble=3, dtype=torch.float64
    )
    rule = eqprop.ContinualVF(
        beta=torch.tensor([0.1, -0.2, 0.4]).double(),
        free_steps=8,
        nudged_steps=4,
        update_slope=update_slope,
    )
    rates = [torch.tensor([0.1, 0.01, 0.05]).double(), 0.02, torch.tensor([0.0 + 0.1] * 3)]
    frozen = ["synapses.0.bias", "synapses.2.backward_weight"]
    slow = eqprop.make_engine(net, rule, rates, "reference", frozen=frozen)
    fast = eqprop.make_engine(copy.deepcopy(net), rule, rates, kind, frozen=frozen)
    before = {n: p.clone() for n, p in fast.model.named_parameters()}
    assert_parity(slow, fast, sizes, 3, 5, 3, TOLERANCES["float64, 1 minibatch"])
    for name, parameter in fast.model.named_parameters():
        assert torch.equal(parameter, before[name]) == (name in frozen)


@pytest.mark.parametrize("name", ["C-EP", "C-VF, own slope", "C-VF, full slope"])
@pytest.mark.parametrize("kind", FAST)
def test_one_network_without_an_ensemble_axis_a_shared_minibatch_and_no_biases(kind, name):
    cls, tied, extra = DISCRETE_RULES[name]
    net = eqprop.layered(6, 17, 4, tied=tied, bias=False, dtype=torch.float64)
    rule = cls(beta=0.2, free_steps=9, nudged_steps=4, **extra)
    slow = eqprop.make_engine(net, rule, 0.05, "reference")
    fast = eqprop.make_engine(copy.deepcopy(net), rule, 0.05, kind)
    x, y = torch.rand(5, 6, dtype=torch.float64), torch.rand(5, 4, dtype=torch.float64)
    torch.testing.assert_close(slow.step(x, y), fast.step(x, y), rtol=0, atol=1e-13)
    assert distance(slow, fast) <= TOLERANCES["float64, 1 minibatch"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "rule",
    ["EP", "C-EP", "rescaled C-EP", "VF", "C-VF", "C-VF, own slope", "C-VF, full slope"],
)
@pytest.mark.parametrize("kind", FAST)
def test_float32_is_as_exact_as_the_reference_in_float32(kind, rule):
    sizes = (40, 100, 63, 10)
    exact, _ = build_pair(kind, rule, sizes, 2)
    slow, fast = build_pair(kind, rule, sizes, 2, dtype=torch.float32)
    for name, p in exact.model.named_parameters():  # the same start, rounded
        p.copy_(dict(slow.model.named_parameters())[name].double())
    for m in range(5):  # few: C-VF doubles a difference with every minibatch
        x, y = minibatch(m, sizes, 2, 20, torch.float32, share=0.6)
        exact.step(x.double(), y.double())
        slow.step(x, y)
        fast.step(x, y)
    assert distance(exact, slow) > 1e-8  # float32 does round here: the bound means something
    assert distance(exact, fast) <= float32_bound(exact, slow)


@pytest.mark.parametrize("kind", FAST)
def test_a_minibatch_that_fails_raises_as_in_the_reference_and_moves_nothing(kind):
    sizes = (6, 9, 8, 4)
    slow, fast = build_pair(kind, "C-EP", sizes, 3)
    x, y = minibatch(0, sizes, 3, 5)
    for engine in (slow, fast):
        engine.model.synapses[1].weight[1, 2, 3] = float("nan")
    before = [p.clone() for p in fast.model.parameters()]
    failures = []
    for engine in (slow, fast):
        with pytest.raises(eqprop.NonFiniteState) as caught:
            engine.step(x, y)
        failures.append(caught.value)
    assert str(failures[0]) == str(failures[1])
    assert failures[1].members.tolist() == [False, True, False]
    for p, value in zip(fast.model.parameters(), before, strict=True):
        torch.testing.assert_close(p, value, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("kind", FAST)
def test_an_update_that_overflows_is_refused_and_moves_nothing(kind):
    net = eqprop.layered(6, 9, 4, ensemble=2)
    rates = torch.tensor([0.1, 1e38], dtype=torch.float64)
    rule = eqprop.EP(beta=1e-3, free_steps=5, nudged_steps=3)
    engine = eqprop.make_engine(net, rule, rates, kind)
    before = [p.clone() for p in net.parameters()]
    x, y = minibatch(0, (6, 9, 4), 2, 5, torch.float32)
    with pytest.raises(eqprop.NonFinite) as caught:
        engine.step(x, y)
    assert caught.value.members.tolist() == [False, True]
    assert all(torch.equal(p, b) for p, b in zip(net.parameters(), before, strict=True))


@needs_compiler
def test_native_results_do_not_depend_on_the_number_of_threads():
    sizes = (9, 33, 20, 5)
    results = []
    for threads in (1, 2, 7):
        net = eqprop.layered(*sizes, ensemble=5)
        rule = eqprop.ContinualEP(beta=0.2, free_steps=9, nudged_steps=4)
        engine = eqprop.make_engine(net, rule, 0.05, "native", threads=threads)
        for m in range(5):
            engine.step(*minibatch(m, sizes, 5, 23, torch.float32))
        results.append([p.clone() for p in net.parameters()])
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


@pytest.mark.parametrize("kind", FAST)
def test_a_member_is_the_same_in_any_company(kind):
    sizes = (9, 33, 20, 5)
    rule = eqprop.ContinualEP(beta=0.2, free_steps=9, nudged_steps=4, random_sign=True)
    together = eqprop.layered(*sizes, ensemble=3, dtype=torch.float64)
    alone = eqprop.layered(*sizes, ensemble=1, seed=2, dtype=torch.float64)
    crowd = eqprop.make_engine(together, rule, 0.05, kind)
    single = eqprop.make_engine(alone, rule, 0.05, kind)
    for m in range(4):
        x, y = minibatch(m, sizes, 3, 7)
        crowd.step(x, y)
        single.step(x[2:], y[2:])
    for a, b in zip(together.member(2).parameters(), alone.member(0).parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-13)


@needs_compiler
def test_auto_takes_the_compiled_engine_where_it_can_and_the_reference_elsewhere():
    net = eqprop.layered(4, 3, 2)
    ep = eqprop.EP(beta=0.1, free_steps=4, nudged_steps=2)
    own = eqprop.VF(beta=0.1, free_steps=4, nudged_steps=2, update_slope="own")
    for rule in (ep, own):
        assert type(eqprop.make_engine(net, rule, 0.1)) is engines.NativeEngine
    lateral = eqprop.Network(
        [eqprop.Input(4), eqprop.Layer("h", 3), eqprop.Layer("o", 2)],
        [eqprop.Dense("input", "h"), eqprop.Dense("h", "o"), eqprop.Dense("h", "h")],
    )
    own_cost = lambda output, y: (output - y).abs().sum(-1)  # noqa: E731
    for model, rule, cost in (
        (lateral, ep, eqprop.SquaredError()),
        (net, eqprop.BPTT(free_steps=4), eqprop.SquaredError()),
        (net, ep, own_cost),
        (eqprop.layered(4, 3, 2, activation=torch.sin), ep, eqprop.SquaredError()),
        (eqprop.layered(4, 3, 2, dtype=torch.bfloat16), ep, eqprop.SquaredError()),
    ):
        engine = eqprop.make_engine(model, rule, 0.1, cost=cost)
        assert type(engine) is engines.ReferenceEngine
        with pytest.raises(ValueError, match="kind 'native' cannot run"):
            eqprop.make_engine(model, rule, 0.1, "native", cost=cost)


def test_without_a_compiler_auto_says_so_and_goes_on(monkeypatch):
    monkeypatch.setenv("EQPROP_NATIVE", "0")
    build.library.cache_clear()
    try:
        net = eqprop.layered(4, 3, 2)
        rule = eqprop.EP(beta=0.1, free_steps=4, nudged_steps=2)
        with pytest.warns(engines.SlowEngine, match="EQPROP_NATIVE=0"):
            engine = eqprop.make_engine(net, rule, 0.1)
        assert type(engine) is engines.TelescopedEngine
        with pytest.raises(ValueError, match="EQPROP_NATIVE=0"):
            eqprop.make_engine(net, rule, 0.1, "native")
    finally:
        build.library.cache_clear()


@needs_compiler
def test_a_compiler_that_fails_is_named(monkeypatch, tmp_path):
    compiler = tmp_path / "broken"
    compiler.write_text("#!/bin/sh\necho it is broken >&2\nexit 1\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("CC", str(compiler))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    build.library.cache_clear()
    try:
        with pytest.raises(build.CannotBuild, match="it is broken"):
            build.library(torch.float32)
        assert not list((tmp_path / "cache").rglob("*.so"))
    finally:
        build.library.cache_clear()


DAMAGES = {
    "truncated": lambda content: content[: len(content) // 2],
    "zeros": lambda content: content[:4096] + bytes(len(content) - 4096),
    "empty": lambda content: b"",
    "one bit": lambda content: content[:-1] + bytes([content[-1] ^ 1]),
}


@needs_compiler
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_kernel_in_the_cache_is_built_anew(damage, monkeypatch, tmp_path):
    """Loaded as it is, half a library ends the process with a bus error at every start."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(build, "FLAGS", ("-O0",))
    build.library.cache_clear()
    try:
        build.library(torch.float32)
        (file,) = tmp_path.rglob("*.so")
        whole = file.read_bytes()
        monkeypatch.setattr(build, "_compile", lambda *_: whole)
        build.library.cache_clear()
        damaged = tmp_path / "damaged"  # another file: this process has mapped the first
        damaged.write_bytes(DAMAGES[damage](whole))
        os.replace(damaged, file)
        build.library(torch.float32)
        (again,) = tmp_path.rglob("*.so")
        assert again.read_bytes() == whole
    finally:
        build.library.cache_clear()


def test_damaged_binaries_of_the_persistent_kernel_are_not_loaded(monkeypatch, tmp_path):
    from eqprop.engines.persistent import build as persistent

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    made = []
    monkeypatch.setattr(persistent, "compile_source", lambda *_: made.append(1) or b"a binary")
    for damaged, times in ((False, 1), (False, 1), (True, 2), (False, 2)):
        if damaged:
            (file,) = tmp_path.rglob("*.cubin")
            file.write_bytes(b"a b")
        persistent._binary.cache_clear()
        assert persistent._binary("source", ("option",)) == b"a binary"
        assert len(made) == times
    persistent._binary.cache_clear()


@pytest.mark.parametrize("name", ["C-EP", "C-VF, own slope", "rescaled C-VF, full slope"])
@pytest.mark.parametrize("kind", ["reference", *FAST])
def test_running_minibatches_of_a_split_is_stepping_through_them(kind, name):
    source = torch.Generator().manual_seed(0)
    images = torch.randint(256, (40, 6), generator=source, dtype=torch.uint8)
    labels = torch.randint(4, (40,), generator=source, dtype=torch.uint8)
    split = Split(images, labels, 4)
    index = torch.randint(40, (5, 2, 7), generator=source)
    signs = 2.0 * torch.randint(2, (5, 2), generator=source) - 1
    cls, tied, extra = DISCRETE_RULES[name]
    rule = cls(beta=0.2, free_steps=9, nudged_steps=4, **extra)
    one, two = (
        eqprop.layered(6, 9, 4, tied=tied, ensemble=2, dtype=torch.float64) for _ in range(2)
    )
    counts = eqprop.make_engine(one, rule, 0.05, kind).run(split, index, signs)
    stepping = eqprop.make_engine(two, rule, 0.05, "reference")
    wrong, loss = torch.zeros(2), torch.zeros(2, dtype=torch.float64)
    for m in range(5):
        x, y = split.batch(index[m], torch.float64)
        output = stepping.step(x, y, signs[m])
        wrong += (output.argmax(-1) != labels[index[m]]).sum(-1)
        loss += 0.5 * ((output - y) ** 2).sum((-2, -1))
    assert counts.wrong.tolist() == wrong.tolist()
    torch.testing.assert_close(counts.loss, loss, rtol=1e-12, atol=0)
    for a, b in zip(one.parameters(), two.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", ["reference", *FAST])
def test_a_run_in_which_a_member_fails_leaves_the_parameters_as_they_were(kind):
    split = Split(
        torch.arange(240, dtype=torch.uint8).reshape(40, 6),
        torch.arange(40, dtype=torch.uint8) % 4,
        4,
    )
    net = eqprop.layered(6, 9, 4, ensemble=2)
    rates = torch.tensor([0.1, 1e38], dtype=torch.float64)
    rule = eqprop.EP(beta=1e-3, free_steps=5, nudged_steps=3)
    engine = eqprop.make_engine(net, rule, rates, kind)
    before = [p.clone() for p in net.parameters()]
    index = torch.arange(40).reshape(4, 1, 10).expand(4, 2, 10)
    with pytest.raises(eqprop.NonFinite) as caught:
        engine.run(split, index)
    assert caught.value.members.tolist() == [False, True]
    assert all(torch.equal(p, b) for p, b in zip(net.parameters(), before, strict=True))


@pytest.mark.parametrize("kind", ["reference", *FAST])
def test_an_index_that_is_not_in_the_split_is_an_error(kind):
    split = Split(torch.zeros(40, 6, dtype=torch.uint8), torch.zeros(40, dtype=torch.uint8), 4)
    net = eqprop.layered(6, 9, 4, ensemble=2)
    rule = eqprop.EP(beta=0.1, free_steps=5, nudged_steps=3)
    engine = eqprop.make_engine(net, rule, 0.1, kind)
    with pytest.raises(IndexError):
        engine.run(split, torch.full((2, 2, 5), 40))


@pytest.mark.parametrize("kind", FAST)
def test_a_failing_minibatch_in_real_time_is_judged_on_the_input_as_given(kind):
    """x goes through σ once, also where the reference has to repeat the minibatch."""
    net = eqprop.layered(6, 9, 4, time=eqprop.RealTime(0.2), activation="tanh", ensemble=2)
    rule = eqprop.EP(beta=1e-3, free_steps=5, nudged_steps=3)
    huge = torch.tensor([0.1, 1e33], dtype=torch.float64)  # judged, and found to be finite
    engines_ = [eqprop.make_engine(copy.deepcopy(net), rule, huge, k) for k in ("reference", kind)]
    x, y = minibatch(0, (6, 9, 4), 2, 5, torch.float32)
    outputs = [engine.step(x, y) for engine in engines_]
    torch.testing.assert_close(*outputs, rtol=0, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("kind", FAST)
def test_two_epochs_of_mnist_end_within_the_noise_between_seeds(kind, mnist):
    train, test = mnist.train.head(2000).shaped((784,)), mnist.test.head(2000)
    errors = {}
    for engine_kind in ("reference", kind):
        net = eqprop.layered(784, 64, 10, init="fan_in", ensemble=3)
        rule = eqprop.EP(beta=0.1, free_steps=20, nudged_steps=8)
        engine = eqprop.make_engine(net, rule, (0.2, 0.1), engine_kind)
        for epoch in range(2):
            order = torch.randperm(2000, generator=torch.Generator().manual_seed(epoch))
            index = order.reshape(100, 1, 20).expand(100, 3, 20)
            engine.run(train, index)
        steps = engine.rule.free_steps
        errors[engine_kind] = measure(engine.model, test, steps, engine).error
    noise = float(errors["reference"].std())
    assert float((errors["reference"] - errors[kind]).abs().max()) < noise
    assert float(errors[kind].mean()) < 30  # it learned


@pytest.mark.parametrize("rule", ["EP", "C-EP", "C-VF"])
def test_the_baseline_of_the_benchmarks_computes_the_same(rule):
    """A race against something that computes another thing would mean nothing."""
    cls, tied, _ = RULES[rule]
    net = eqprop.layered(9, 17, 8, 4, tied=tied, dtype=torch.float64)
    plain = cls(beta=0.2, free_steps=9, nudged_steps=4)
    baseline = Baseline(net, plain, (0.1, 0.2, 0.3))
    slow = eqprop.make_engine(net, plain, (0.1, 0.2, 0.3), "reference")
    for m in range(3):
        x, y = minibatch(m, (9, 4), 1, 5)
        torch.testing.assert_close(slow.step(x[0], y[0]), baseline.step(x[0], y[0]))
    for a, b in zip(net.parameters(), baseline.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", FAST)
def test_a_model_that_changed_its_precision_needs_another_engine(kind):
    net = eqprop.layered(6, 9, 4, ensemble=2)
    rule = eqprop.EP(beta=0.1, free_steps=5, nudged_steps=3)
    engine = eqprop.make_engine(net, rule, 0.1, kind)
    net.double()
    x, y = minibatch(0, (6, 4), 2, 5)
    split = Split(torch.zeros(9, 6, dtype=torch.uint8), torch.zeros(9, dtype=torch.uint8), 4)
    for call in (
        lambda: engine.step(x, y),
        lambda: engine.relax(x, 5),
        lambda: engine.run(split, torch.zeros(2, 2, 5, dtype=torch.long)),
    ):
        with pytest.raises(ValueError, match=r"made for torch.float32 .* on cpu: make another"):
            call()


@pytest.mark.parametrize("kind", FAST)
@pytest.mark.parametrize("rule", [eqprop.ContinualEP, eqprop.VF])
def test_whether_the_input_synapse_is_called_tied_does_not_matter(rule, kind):
    layers = [eqprop.Input(6), eqprop.Layer("hidden", 9), eqprop.Layer("output", 4)]
    synapses = [eqprop.Dense("input", "hidden", tied=False), eqprop.Dense("hidden", "output")]
    net = eqprop.Network(layers, synapses, dtype=torch.float64)
    options = {"beta": 0.1, "free_steps": 5, "nudged_steps": 3}
    fast = eqprop.make_engine(copy.deepcopy(net), rule(**options), 0.1, kind)
    slow = eqprop.make_engine(net, rule(**options), 0.1, "reference")
    x, y = minibatch(0, (6, 4), 1, 5)
    torch.testing.assert_close(fast.step(x[0], y[0]), slow.step(x[0], y[0]), rtol=0, atol=1e-12)
    assert distance(slow, fast) <= 1e-12


@pytest.mark.parametrize("kind", FAST)
def test_integer_targets_that_all_members_share(kind):
    net = eqprop.layered(6, 9, 4, ensemble=3, dtype=torch.float64)
    rule = eqprop.EP(beta=0.1, free_steps=5, nudged_steps=3)
    x, _ = minibatch(0, (6, 4), 3, 5)
    y = torch.eye(4, dtype=torch.long)[None, torch.arange(5) % 4]
    fast, slow = (eqprop.make_engine(copy.deepcopy(net), rule, 0.1, k) for k in (kind, "reference"))
    torch.testing.assert_close(fast.step(x, y), slow.step(x, y), rtol=0, atol=1e-12)
    assert distance(slow, fast) <= 1e-12


@pytest.mark.parametrize("kind", ["reference", *FAST])
@pytest.mark.parametrize("dtype", [torch.long, torch.uint8])
@pytest.mark.parametrize("shape", ["shared", "own"])
def test_class_indices_are_one_hot_targets(shape, dtype, kind):
    net = eqprop.layered(6, 9, 4, ensemble=3, dtype=torch.float64)
    rule = eqprop.ContinualEP(beta=0.1, free_steps=5, nudged_steps=3)
    x, _ = minibatch(0, (6, 4), 3, 5)
    labels = torch.randint(4, (3, 5), generator=torch.Generator().manual_seed(1)).to(dtype)
    labels = labels[0] if shape == "shared" else labels
    y = torch.eye(4, dtype=torch.float64)[labels.long()]
    ours, theirs = (eqprop.make_engine(copy.deepcopy(net), rule, 0.1, kind) for _ in range(2))
    assert torch.equal(ours.step(x, labels), theirs.step(x, y))
    assert distance(ours, theirs) == 0
    found = ours.relaxation.state
    assert torch.equal(ours.readout.loss(found, labels), ours.readout.loss(found, y))


def test_class_indices_serve_every_rule_and_the_check_of_the_theorem():
    net = eqprop.layered(6, 9, 4, ensemble=2, dtype=torch.float64)
    x, _ = minibatch(0, (6, 4), 2, 5)
    labels = torch.tensor([[0, 1, 2, 3, 0], [3, 3, 2, 1, 0]])
    y = torch.eye(4, dtype=torch.float64)[labels]
    phases = {"beta": 0.1, "free_steps": 9, "nudged_steps": 3}
    rules = [rule(**phases) for rule in (eqprop.EP, eqprop.ContinualEP, eqprop.VF)]
    for rule in (*rules, eqprop.BPTT(free_steps=9), eqprop.RBP(free_steps=9)):
        for ours, theirs in zip(
            rule.gradients(net, x, labels), rule.gradients(net, x, y), strict=True
        ):
            assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert str(eqprop.gddcheck(net, rules[0], x, labels)) == str(
        eqprop.gddcheck(net, rules[0], x, y)
    )


def test_numpy_learning_rates_are_those_of_lists_and_tensors():
    net = eqprop.layered(6, 9, 4, ensemble=2)
    own = np.array([[0.1, 0.2], [0.3, 0.4]])
    for given, expected in (
        (np.array([0.1, 0.3]), [0.1, 0.3]),
        (np.float32(0.5), 0.5),
        ([np.float32(0.5), np.float64(0.25)], [0.5, 0.25]),
        (own, list(torch.from_numpy(own))),
        (
            {"synapses.0.weight": np.array([0.1, 0.2])},
            {"synapses.0.weight": torch.tensor([0.1, 0.2])},
        ),
    ):
        ours, theirs = engines.resolve_rates(net, given), engines.resolve_rates(net, expected)
        assert list(ours) == list(theirs)
        for name in ours:
            torch.testing.assert_close(
                torch.as_tensor(ours[name]).double(), torch.as_tensor(theirs[name]).double()
            )


def test_what_stops_a_run_half_way_leaves_the_parameters_as_they_were(monkeypatch):
    net = eqprop.layered(6, 9, 4, ensemble=2)
    rule = eqprop.EP(beta=0.1, free_steps=5, nudged_steps=3)
    engine = eqprop.make_engine(net, rule, 0.1, "telescoped")
    split = Split(torch.arange(54, dtype=torch.uint8).reshape(9, 6), torch.zeros(9).byte(), 4)
    before, learn = [p.clone() for p in net.parameters()], telescoped._Minibatch.learn_from
    moved = []

    def stopped(self, index, beta):
        learn(self, index, beta)
        moved.append(not torch.equal(net.synapses[0].weight, before[0]))
        if len(moved) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(telescoped._Minibatch, "learn_from", stopped)
    with pytest.raises(KeyboardInterrupt):
        engine.run(split, torch.randint(9, (4, 2, 5)))
    assert moved == [True, True]
    assert all(torch.equal(p, q) for p, q in zip(net.parameters(), before, strict=True))


@needs_compiler
def test_a_compiled_run_that_is_stopped_leaves_the_parameters_as_they_were(monkeypatch):
    net = eqprop.layered(6, 9, 4, ensemble=2)
    rule = eqprop.EP(beta=0.1, free_steps=5, nudged_steps=3)
    engine = eqprop.make_engine(net, rule, 0.1, "native")
    split = Split(torch.arange(54, dtype=torch.uint8).reshape(9, 6), torch.zeros(9).byte(), 4)
    before, call = [p.clone() for p in net.parameters()], engine._call

    def stopped(*arguments):
        call(*arguments)
        assert not torch.equal(net.synapses[0].weight, before[0])
        raise KeyboardInterrupt

    monkeypatch.setattr(engine, "_call", stopped)
    with pytest.raises(KeyboardInterrupt):
        engine.run(split, torch.randint(9, (4, 2, 5)))
    assert all(torch.equal(p, q) for p, q in zip(net.parameters(), before, strict=True))


def test_a_parameter_in_another_place_is_not_looked_for_in_the_old_one():
    net = eqprop.layered(6, 9, 4, ensemble=2)
    rule = eqprop.EP(beta=0.1, free_steps=5, nudged_steps=3)
    engine = eqprop.make_engine(net, rule, 0.1, "telescoped")
    graph = engine._minibatch(5)
    assert engine._minibatch(5) is graph
    weight = net.synapses[1].weight
    net.synapses[1].weight = torch.nn.Parameter(weight.clone(), requires_grad=False)
    assert engine._minibatch(5) is not graph


@pytest.mark.parametrize("kind", ["reference", *FAST])
def test_what_a_run_is_given_is_checked_the_same_way_everywhere(kind):
    source = torch.Generator().manual_seed(0)
    images = torch.randint(256, (9, 6), generator=source).byte()
    split = Split(images, torch.arange(9).byte() % 4, 4)
    rule = eqprop.EP(beta=0.1, free_steps=5, nudged_steps=3)
    alike, each = (
        eqprop.make_engine(
            eqprop.layered(6, 8, 4, ensemble=2, dtype=torch.float64), rule, 0.1, kind
        )
        for _ in range(2)
    )
    index = torch.randint(9, (3, 5), generator=source)
    shared = alike.run(split, index)
    assert torch.equal(shared.wrong, each.run(split, index[:, None].expand(3, 2, 5)).wrong)
    assert distance(alike, each) == 0
    with pytest.raises(ValueError, match=r"index has shape \[0, 2, 5\]"):
        alike.run(split, torch.zeros(0, 2, 5, dtype=torch.long))
    with pytest.raises(ValueError, match=r"signs have shape \[2, 2\], but must be \[3, 2\]"):
        alike.run(split, index, torch.ones(2, 2))
    with pytest.raises(ValueError, match="labels hold class 7, but there are 4"):
        alike.run(Split(split.images, split.labels + 4, 4), index)
    with pytest.raises(ValueError, match="free_steps must be a positive integer"):
        alike.relax(torch.zeros(5, 6, dtype=torch.float64), 0)
    with pytest.raises(ValueError, match=r"x is on meta.*x.to\('cpu'\)"):
        alike.step(torch.zeros(5, 6, dtype=torch.float64, device="meta"), torch.eye(5, 4).double())


@pytest.mark.parametrize("kind", FAST)
def test_one_step_is_too_few_for_layers_in_turn(kind):
    rule = eqprop.EP(beta=0.1, free_steps=1, nudged_steps=1, in_turn=True)
    with pytest.raises(ValueError, match="at least 2 with in_turn"):
        eqprop.make_engine(eqprop.layered(6, 9, 4), rule, 0.1, kind)


@needs_gpu
@pytest.mark.parametrize("sizes", [(9, 33, 5), (9, 33, 20, 5)])
@pytest.mark.parametrize("rule", DISCRETE_RULES)
def test_the_captured_graph_on_a_gpu(rule, sizes):
    slow, fast = build_pair("telescoped", rule, sizes, 3, random_sign=True)
    fast.model.cuda()
    rates = [0.02, 0.04, 0.06][: len(sizes) - 1]
    fast = eqprop.make_engine(fast.model, fast.rule, rates, "telescoped")
    for m in range(20):
        x, y = minibatch(m, sizes, 3, 7)
        a, b = slow.step(x, y), fast.step(x.cuda(), y.cuda())
        torch.testing.assert_close(a, b.cpu(), rtol=0, atol=1e-9)
    fast.model.cpu()
    assert distance(slow, fast) <= TOLERANCES["float64, 50 minibatches"]


@needs_compiler
def test_engines_warn_of_nothing():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for kind in ("auto", "reference", "telescoped"):
            _, fast = build_pair(kind, "EP", (4, 3, 2), 2)
            fast.step(*minibatch(0, (4, 3, 2), 2, 3))


@pytest.mark.parametrize("kind", ["reference", *FAST])
def test_relaxing_through_an_engine_is_relaxing(kind):
    net = eqprop.layered(9, 33, 20, 5, ensemble=3, dtype=torch.float64)
    rule = eqprop.EP(beta=0.1, free_steps=4, nudged_steps=2, in_turn=True)
    x, _ = minibatch(0, (9, 5), 3, 7)
    for given in (x, x[0]):
        ours = eqprop.make_engine(net, rule, 0.1, kind).relax(given, 12)
        exact = eqprop.relax(net, given, 12, in_turn=True)
        for a, b in zip(ours.state, exact.state, strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=1e-13)
        assert abs(ours.residual - exact.residual) < 1e-13

"""Oracle: parity. The persistent kernels give the numbers of the reference engine.

On a GPU, where there is one; and anywhere, thread by thread on the CPU (cuda_on_cpu.hpp).
"""

import copy
import warnings

import pytest
import torch

import eqprop
from eqprop import engines
from eqprop.data import Split
from eqprop.engines import TelescopedEngine, persistent
from eqprop.engines.persistent import PersistentEngine
from tests.cuda_on_cpu import COMPILER, EmulatedEngine, Naive, NaiveEngine
from tests.devices import needs_gpu
from tests.test_engines import (
    DISCRETE_RULES,
    RULES,
    TOLERANCES,
    distance,
    float32_bound,
    minibatch,
)

pytestmark = pytest.mark.slow

needs_compiler = pytest.mark.skipif(COMPILER is None, reason="needs a C++ compiler")
GPU = pytest.param("cuda", marks=needs_gpu)
CPU = pytest.param("cpu", marks=needs_compiler)

# sizes, batch, members, cluster: slices that fill warps and that do not
SMALL = ((9, 63, 5), 7, 2, 2)
SHAPES = (
    ((6, 5, 3), 1, 1, 1),
    SMALL,
    ((33, 100, 7), 33, 2, 4),
    ((40, 512, 10), 20, 3, 16),
    ((40, 512, 10), 20, 5, 8),
    ((784, 128, 10), 20, 2, 4),
    ((9, 200, 16), 20, 3, 2),
    ((40, 512, 10), 20, 2, 2),
    ((9, 300, 10), 20, 1, 1),
    # few samples, many columns: a last minibatch may be as small
    ((9, 128, 5), 1, 2, 1),
    ((9, 256, 5), 2, 1, 2),
    ((9, 1022, 5), 8, 1, 1),
)
DEEP = ((9, 20, 30, 5), 7, 2, 4)
WIDE = ((9, 128, 100, 5), 20, 1, 4)  # as many warps to a multiprocessor as the paper's sizes take
ONE_HIDDEN_GPU = (*SHAPES[:7], *SHAPES[9:11])
DEEP_RULES = tuple(rule for rule in DISCRETE_RULES if "tied" not in rule)
SLOPED = tuple(rule for rule in DISCRETE_RULES if "slope" in rule)
CASES = [
    *(
        pytest.param(rule, "cuda", *shape, marks=needs_gpu)
        for rule in RULES
        for shape in ONE_HIDDEN_GPU
    ),
    *(
        pytest.param(rule, "cuda", *shape, marks=needs_gpu)
        for rule in SLOPED
        for shape in (SMALL, SHAPES[2], SHAPES[3], SHAPES[9])
    ),
    *((rule, "naive", *shape) for rule in DISCRETE_RULES for shape in (SMALL, SHAPES[2])),
    *((rule, "naive", (5, 8, 7, 6, 3), 7, 2, 1) for rule in DISCRETE_RULES),
    *(pytest.param(rule, "cpu", *SMALL, marks=needs_compiler) for rule in DISCRETE_RULES),
    *(
        pytest.param("C-VF", "cpu", *shape, marks=needs_compiler)
        for shape in (SHAPES[0], SHAPES[2], *SHAPES[6:])
    ),
    *(pytest.param(rule, "cuda", *DEEP, marks=needs_gpu) for rule in DEEP_RULES),
    *(pytest.param(rule, "cpu", *DEEP, marks=needs_compiler) for rule in DEEP_RULES),
    pytest.param("C-VF", "cpu", (5, 70, 33, 3), 9, 1, 1, marks=needs_compiler),
    pytest.param("C-VF, own slope", "cpu", (5, 70, 33, 3), 9, 1, 1, marks=needs_compiler),
    pytest.param("C-VF, full slope", "cpu", *SHAPES[2], marks=needs_compiler),
    pytest.param("C-EP", "cpu", *WIDE, marks=needs_compiler),
]


def place(device):
    return "cuda" if device == "cuda" else "cpu"


def build_pair(rule, device, sizes, members, cluster, dtype=torch.float64, **more):
    cls, tied, extra = DISCRETE_RULES[rule]
    net = eqprop.layered(
        *sizes,
        tied=tied,
        angle=0.0 if tied else 30.0,
        init="fan_in",
        ensemble=(members,),
        dtype=dtype,
        **({"activation": more.pop("activation")} if "activation" in more else {}),
    )
    options = {"beta": 0.3, "free_steps": 12, "nudged_steps": 6, **extra, **more}
    slow_down = max(1, sizes[0] / 50)  # many inputs, large steps: what rounding does would grow
    rates = [0.02 * (k + 1) / slow_down for k in range(len(sizes) - 1)]
    slow = eqprop.make_engine(copy.deepcopy(net), cls(**options), rates, "reference")
    plain = eqprop.make_engine(net.to(place(device)), cls(**options), rates, "reference")
    kinds = {"cuda": PersistentEngine, "cpu": EmulatedEngine, "naive": NaiveEngine}
    return slow, kinds[device](plain.job, cluster)


def no_reference(*_):
    """In the place of what takes over where states are not finite: it must not."""
    raise AssertionError("the kernel gave numbers that are not finite")


def assert_parity(slow, fast, sizes, members, batch, minibatches, tolerance):
    fast._learn_plainly = no_reference
    for m in range(minibatches):
        x, y = minibatch(m, sizes, members, batch)
        EmulatedEngine.backwards = not EmulatedEngine.backwards
        here = next(fast.model.parameters()).device
        a, b = slow.step(x, y), fast.step(x.to(here), y.to(here)).cpu()
        assert float((a - b).abs().max()) <= tolerance
    fast.model.cpu()
    assert distance(slow, fast) <= tolerance
    mine, theirs = fast.relaxation, slow.relaxation
    for a, b in zip(
        (*mine.state, mine.sample_residual), (*theirs.state, theirs.sample_residual), strict=True
    ):
        torch.testing.assert_close(a.cpu(), b, rtol=0, atol=tolerance)


@pytest.mark.parametrize(("rule", "device", "sizes", "batch", "members", "cluster"), CASES)
def test_one_minibatch(rule, device, sizes, batch, members, cluster):
    for beta, steps in ((0.3, 12), (-0.3, 11)):
        pair = build_pair(rule, device, sizes, members, cluster, beta=beta, free_steps=steps)
        assert_parity(*pair, sizes, members, batch, 1, TOLERANCES["float64, 1 minibatch"])


@pytest.mark.parametrize("device", [GPU, CPU, "naive"])
@pytest.mark.parametrize(("sizes", "cluster"), [((9, 63, 5), 2), ((9, 20, 30, 5), 4)])
@pytest.mark.parametrize("rule", ["C-EP", "C-VF"])
def test_layers_in_turn(rule, sizes, cluster, device):
    for steps in (12, 11):
        pair = build_pair(rule, device, sizes, 2, cluster, in_turn=True, free_steps=steps)
        assert_parity(*pair, sizes, 2, 7, 3, TOLERANCES["float64, 1 minibatch"])


@pytest.mark.parametrize("device", [GPU, CPU, "naive"])
@pytest.mark.parametrize(
    ("rule", "sizes", "cluster"),
    [
        ("C-EP", (9, 63, 5), 2),
        ("C-VF, own slope", (9, 63, 5), 2),
        ("C-VF, own slope", (9, 20, 30, 5), 4),
    ],
)
@pytest.mark.parametrize("activation", ["tanh", "hard_sigmoid"])
def test_activations(activation, rule, sizes, cluster, device):
    pair = build_pair(rule, device, sizes, 2, cluster, activation=activation)
    assert_parity(*pair, sizes, 2, 7, 3, TOLERANCES["float64, 1 minibatch"])


def bytes_of(n, pixels, classes, device="cpu"):
    source = torch.Generator().manual_seed(1)
    images = torch.randint(256, (n, pixels), generator=source, dtype=torch.uint8)
    images[torch.rand(n, pixels, generator=source) < 0.7] = 0
    labels = torch.randint(classes, (n,), generator=source, dtype=torch.uint8)
    return Split(images.to(device), labels.to(device), classes)


@pytest.mark.parametrize("device", [GPU, CPU, "naive"])
@pytest.mark.parametrize(("hidden", "cluster"), [((63,), 2), ((20, 30), 4)])
@pytest.mark.parametrize(
    ("rule", "pixels"),
    [("EP", 30), ("C-EP", 30), ("C-VF", 48), ("C-VF, own slope", 48)],  # copied as bytes, words
)
def test_many_minibatches_gathered_from_bytes_in_one_launch(rule, hidden, cluster, pixels, device):
    count = 100 if device == "cuda" else 4
    source = torch.Generator().manual_seed(2)
    index = torch.randint(200, (count, 3, 7), generator=source)
    signs = 2.0 * torch.randint(2, (count, 3), generator=source) - 1
    slow, fast = build_pair(rule, device, (pixels, *hidden, 5), 3, cluster)
    fast._learn_plainly = no_reference
    a = slow.run(bytes_of(200, pixels, 5), index, signs)
    b = fast.run(bytes_of(200, pixels, 5, place(device)), index.to(place(device)), signs)
    fast.model.cpu()
    assert distance(slow, fast) <= TOLERANCES["float64, 50 minibatches"]
    assert torch.equal(a.wrong, b.wrong.cpu())
    torch.testing.assert_close(b.loss.cpu(), a.loss, rtol=1e-9, atol=0)


def test_members_that_take_turns_get_what_they_get_together():
    source = torch.Generator().manual_seed(2)
    index = torch.randint(200, (5, 3, 7), generator=source)
    signs = 2.0 * torch.randint(2, (5, 3), generator=source) - 1
    together, apart = (build_pair("C-VF", "naive", (30, 20, 5), 3, 1)[1] for _ in range(2))
    a = together.run(bytes_of(200, 30, 5), index, signs)

    class InTurns(Naive):
        def launch(self, clusters, problem):
            for part in problem.turns(2):
                part.residual.zero_()
                super().launch(1, part)

    apart.kernel = lambda batch, relaxes=False: InTurns()
    b = apart.run(bytes_of(200, 30, 5), index, signs)
    assert distance(together, apart) <= 1e-14
    assert torch.equal(a.wrong, b.wrong)
    torch.testing.assert_close(a.loss, b.loss, rtol=1e-12, atol=0)
    one, other = together.relaxation, apart.relaxation
    for x, y in zip(
        (*one.state, one.sample_residual), (*other.state, other.sample_residual), strict=True
    ):
        torch.testing.assert_close(x, y, rtol=0, atol=1e-13)


FLOAT32 = [
    *(pytest.param(rule, "cuda", (40, 512, 10), 20, 8, marks=needs_gpu) for rule in DISCRETE_RULES),
    pytest.param("C-VF, own slope", "cuda", (784, 512, 10), 20, 2, marks=needs_gpu),
    *(
        pytest.param(rule, "cuda", (784, 512, 512, 10), 20, 16, marks=needs_gpu)
        for rule in DEEP_RULES
    ),
    *(
        pytest.param(rule, "cpu", sizes, 7, cluster, marks=needs_compiler)
        for rule in ("EP", "C-EP", "C-VF", "C-VF, own slope")
        for sizes, cluster in (((9, 63, 5), 2), ((9, 20, 30, 5), 4))
    ),
    *(
        pytest.param(rule, "cpu", sizes, batch, cluster, marks=needs_compiler)
        for rule, sizes, batch, cluster in (
            ("EP", (9, 512, 5), 7, 2),
            ("C-VF, own slope", (9, 512, 5), 7, 2),
            ("C-VF", WIDE[0], 20, 4),
        )
    ),
    pytest.param("C-VF", "cpu", (9, 512, 10), 1, 4, marks=needs_compiler),
    # inputs that reach into where rows of no sample lie in the nudged phase
    pytest.param(
        *("C-VF, own slope", "cpu", (784, 128, 100, 5), 20, 4),
        marks=needs_compiler,
        id="rows of no sample",
    ),
]


@pytest.mark.parametrize(("rule", "device", "sizes", "batch", "cluster"), FLOAT32)
def test_float32_is_as_close_as_the_reference_in_float32(rule, device, sizes, batch, cluster):
    exact, _ = build_pair(rule, "naive", sizes, 2, cluster)
    slow, fast = build_pair(rule, device, sizes, 2, cluster, dtype=torch.float32)
    fast._learn_plainly = no_reference
    for engine in (slow, fast):
        pairs = zip(engine.model.parameters(), exact.model.parameters(), strict=True)
        for p, q in pairs:
            p.data.copy_(q)
    for m in range(5 if device == "cuda" else 1 if batch == 20 else 2):
        x, y = minibatch(m, sizes, 2, batch)
        exact.step(x, y)
        slow.step(x.float(), y.float())
        fast.step(x.float().to(place(device)), y.float().to(place(device)))
    fast.model.cpu()
    assert distance(exact, fast) <= float32_bound(exact, slow)


@pytest.mark.parametrize("device", [GPU, CPU, "naive"])
@pytest.mark.parametrize(("sizes", "cluster"), [((9, 63, 5), 2), ((9, 20, 30, 5), 4)])
def test_relaxing_many_samples(sizes, cluster, device):
    slow, fast = build_pair("C-EP", device, sizes, 2, cluster)
    x = torch.rand(53, 9, dtype=torch.float64)
    a, b = slow.relax(x, 9), fast.relax(x.to(place(device)), 9)
    for mine, theirs in zip(b.state, a.state, strict=True):
        torch.testing.assert_close(mine.cpu(), theirs, rtol=0, atol=1e-12)
    torch.testing.assert_close(b.sample_residual.cpu(), a.sample_residual, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("device", "sizes", "cluster"),
    [
        pytest.param("cuda", (784, 512, 512, 10), 16, marks=needs_gpu),
        pytest.param("cuda", (40, 512, 10), 8, marks=needs_gpu),
        pytest.param("cpu", WIDE[0], 4, marks=needs_compiler),
    ],
)
def test_relaxing_in_float32_is_as_close_as_the_reference_in_float32(device, sizes, cluster):
    slow, fast = build_pair("C-VF", device, sizes, 2, cluster, dtype=torch.float32)
    exact = eqprop.make_engine(copy.deepcopy(slow.model).double(), slow.rule, 0.1, "reference")
    x = torch.rand(2, 45, sizes[0])  # a last tile that is not full
    truth, own = exact.relax(x.double(), 9).state, slow.relax(x, 9).state
    found = fast.relax(x.to(place(device)), 9).state
    for name, mine, theirs, right in zip(fast.model.layer_names, found, own, truth, strict=True):
        error = float((mine.cpu() - right).abs().max())
        bound = TOLERANCES["float32 over the reference's own error"]
        assert error <= bound * float((theirs - right).abs().max()), name


@pytest.mark.parametrize("device", [GPU, CPU, "naive"])
def test_a_member_that_fails_leaves_the_parameters_as_they_were(device):
    _, fast = build_pair("C-EP", device, (9, 63, 5), 2, 2)
    with torch.no_grad():
        fast.model.synapses[1].weight[1] = float("nan")
    before = [p.clone() for p in fast.model.parameters()]
    x, y = minibatch(0, (9, 63, 5), 2, 7)
    with pytest.raises(eqprop.dynamics.NonFinite):
        fast.step(x.to(place(device)), y.to(place(device)))
    for p, q in zip(fast.model.parameters(), before, strict=True):
        torch.testing.assert_close(p, q, rtol=0, atol=0, equal_nan=True)


@needs_gpu
@pytest.mark.parametrize("cluster", [2, 8])
def test_the_same_numbers_every_time(cluster):
    index = torch.randint(200, (50, 3, 20), generator=torch.Generator().manual_seed(3))
    split = bytes_of(200, 30, 5, "cuda")
    ends = []
    for _ in range(2):
        _, fast = build_pair("C-VF", "cuda", (30, 512, 5), 3, cluster, dtype=torch.float32)
        fast.run(split, index.cuda(), torch.ones(50, 3))
        ends.append([p.clone() for p in fast.model.parameters()])
    assert all(torch.equal(p, q) for p, q in zip(*ends, strict=True))


@pytest.mark.parametrize("device", [GPU, CPU, "naive"])
@pytest.mark.parametrize(("sizes", "cluster"), [((9, 63, 5), 2), ((9, 20, 30, 5), 4)])
@pytest.mark.parametrize("rule", ["C-EP", "C-VF"])
def test_an_ensemble_of_settings_without_biases(rule, sizes, cluster, device):
    cls, tied, _ = RULES[rule]
    net = eqprop.layered(*sizes, tied=tied, bias=False, ensemble=(2, 2), dtype=torch.float64)
    beta = torch.tensor([[0.1, 0.2], [0.3, -0.4]])
    options = {"beta": beta, "free_steps": 8, "nudged_steps": 4}
    rates = [beta.abs() * 0.1 * (k + 1) for k in range(len(sizes) - 1)]
    slow = eqprop.make_engine(copy.deepcopy(net), cls(**options), rates, "reference")
    plain = eqprop.make_engine(net.to(place(device)), cls(**options), rates, "reference")
    kinds = {"cuda": PersistentEngine, "cpu": EmulatedEngine, "naive": NaiveEngine}
    fast = kinds[device](plain.job, cluster)
    x, y = minibatch(0, sizes, 4, 7)
    x, y = x.reshape(2, 2, 7, -1), y.reshape(2, 2, 7, -1)
    a, b = slow.step(x, y), fast.step(x.to(place(device)), y.to(place(device)))
    torch.testing.assert_close(b.cpu(), a, rtol=0, atol=1e-11)
    fast.model.cpu()
    assert distance(slow, fast) <= 1e-11


@pytest.mark.parametrize("device", [GPU, CPU])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("sizes", "cluster"), [((9, 63, 5), 2), ((9, 20, 30, 5), 4)])
@pytest.mark.parametrize("rule", ["EP", "C-EP", "C-VF", "C-VF, own slope"])
def test_frozen_parameters_do_not_move_by_a_bit(rule, sizes, cluster, dtype, device):
    cls, tied, extra = DISCRETE_RULES[rule]
    net = eqprop.layered(*sizes, tied=tied, init="fan_in", ensemble=(2,), dtype=dtype)
    options = {"beta": 0.3, "free_steps": 6, "nudged_steps": 3, **extra}
    names = [name for name, _ in net.named_parameters()]
    kind = PersistentEngine if device == "cuda" else EmulatedEngine
    for frozen in (names[::2], names[1::2]):
        there = copy.deepcopy(net).to(place(device))
        plain = eqprop.make_engine(there, cls(**options), 0.1, "reference", frozen=frozen)
        fast = kind(plain.job, cluster)
        x, y = minibatch(0, sizes, 2, 7, dtype)
        fast.step(x.to(place(device)), y.to(place(device)))
        for (name, p), q in zip(fast.model.named_parameters(), net.parameters(), strict=True):
            assert torch.equal(p.cpu(), q) == (name in frozen), name


@pytest.mark.parametrize("device", [GPU, CPU])
def test_a_minibatch_that_does_not_fit_goes_to_the_captured_graph_which_is_said_once(device):
    sizes = (9, 20, 5)
    slow, fast = build_pair("C-EP", device, sizes, 2, 2, random_sign=True)
    if device == "cuda":
        auto = eqprop.make_engine(fast.model, fast.rule, [0.02, 0.04])
    else:
        slower = TelescopedEngine(fast.job)
        auto = EmulatedEngine(fast.job, 2, slower=slower)
    split = bytes_of(200, 9, 5)
    there = bytes_of(200, 9, 5, place(device))
    index = torch.randint(200, (3, 2, 41), generator=torch.Generator().manual_seed(0))
    with pytest.warns(engines.SlowEngine, match="batch of more than 40"):
        counts = auto.run(there, index.to(place(device)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for batch in (41, 7, 41):
            x, y = minibatch(batch, sizes, 2, batch)
            output = auto.step(x.to(place(device)), y.to(place(device)))
    expected = slow.run(split, index)
    for batch in (41, 7, 41):
        last = slow.step(*minibatch(batch, sizes, 2, batch))
    assert torch.equal(counts.wrong.cpu(), expected.wrong)
    torch.testing.assert_close(output.cpu(), last, rtol=0, atol=1e-11)
    torch.testing.assert_close(
        auto.relaxation.state[0].cpu(), slow.relaxation.state[0], rtol=0, atol=1e-11
    )
    fast.model.cpu()
    assert distance(slow, fast) <= 1e-11
    with pytest.raises(ValueError, match="batch of more than 40"):
        build_pair("C-EP", device, sizes, 2, 2)[1].prepare(41)


def test_a_network_it_cannot_hold_is_named():
    rule = eqprop.EP(beta=0.3, free_steps=4, nudged_steps=2)
    with pytest.raises(ValueError, match="not on a GPU"):
        eqprop.make_engine(eqprop.layered(9, 8, 5), rule, 0.1, "persistent")

    def limits(net, rule):
        return PersistentEngine.limit(eqprop.make_engine(net, rule, 0.1, "reference").job)

    assert limits(eqprop.layered(9, 8, 5), rule) is None
    assert limits(eqprop.layered(9, 512, 8, 5), rule) is None
    assert "512 neurons" in limits(eqprop.layered(9, 513, 8, 5), rule)
    assert "one or two hidden" in limits(eqprop.layered(9, 8, 8, 8, 5), rule)
    assert "real time" in limits(eqprop.layered(9, 8, 5, time=eqprop.RealTime(0.1)), rule)
    assert "16 outputs" in limits(eqprop.layered(9, 8, 17), rule)
    with pytest.raises(persistent.CannotBuild, match="no square"):
        build_pair("C-EP", "cpu", (9, 20, 30, 5), 1, 8)


def test_a_gpu_without_place_for_a_cluster_is_named(monkeypatch):
    """A stand-in for a GPU on which eight multiprocessors are the most that can work together."""

    class Stub:
        def __init__(self, cluster):
            self.cluster = cluster

        def resident(self):
            return 0 if self.cluster > 8 else 132 // self.cluster

    properties = type("Properties", (), {"multi_processor_count": 132})
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda: properties)
    monkeypatch.setattr(persistent, "compiled", lambda _, constants: Stub(constants["CLUSTER"]))

    def kernel(*sizes, members=5):
        rule = eqprop.ContinualEP(beta=0.3, free_steps=4, nudged_steps=2)
        plain = eqprop.make_engine(
            eqprop.layered(*sizes, ensemble=(members,)), rule, 0.1, "reference"
        )
        engine = PersistentEngine(plain.job)
        return engine.kernel(20)

    assert kernel(9, 512, 5).cluster == 8
    assert kernel(9, 512, 5, members=60).cluster == 2
    with pytest.raises(persistent.CannotBuild, match="no place for a cluster of 16"):
        kernel(9, 512, 512, 5)

"""Oracle: parity. The persistent kernels give the numbers of the reference engine, on a GPU."""

import copy

import pytest
import torch

import eqprop
from eqprop.data import Split
from eqprop.engines.persistent import PersistentEngine
from tests.test_engines import RULES, TOLERANCES, distance, minibatch

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

# sizes, batch, members, cluster: slices that fill warps and that do not
SHAPES = (
    ((6, 5, 3), 1, 1, 1),
    ((9, 63, 5), 7, 3, 2),
    ((33, 100, 7), 33, 2, 4),
    ((40, 512, 10), 20, 3, 16),
    ((40, 512, 10), 20, 5, 8),
    ((784, 128, 10), 20, 2, 4),
    ((9, 200, 16), 20, 3, 2),
)


def build_pair(rule, sizes, members, cluster, dtype=torch.float64, **more):
    cls, tied, extra = RULES[rule]
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
    rates = [0.02 * (k + 1) for k in range(len(sizes) - 1)]
    slow = eqprop.make_engine(copy.deepcopy(net), cls(**options), rates, "reference")
    plain = eqprop.make_engine(net.cuda(), cls(**options), rates, "reference")
    return slow, PersistentEngine(plain.model, plain.rule, plain.rates, plain.cost, cluster)


def assert_parity(slow, fast, sizes, members, batch, minibatches, tolerance):
    for m in range(minibatches):
        x, y = minibatch(m, sizes, members, batch)
        a, b = slow.step(x, y), fast.step(x.cuda(), y.cuda()).cpu()
        assert float((a - b).abs().max()) <= tolerance
    fast.model.cpu()
    assert distance(slow, fast) <= tolerance
    mine, theirs = fast.relaxation, slow.relaxation
    for a, b in zip(
        (*mine.state, mine.sample_residual), (*theirs.state, theirs.sample_residual), strict=True
    ):
        torch.testing.assert_close(a.cpu(), b, rtol=0, atol=tolerance)


@pytest.mark.parametrize(("sizes", "batch", "members", "cluster"), SHAPES)
@pytest.mark.parametrize("rule", RULES)
def test_one_minibatch(rule, sizes, batch, members, cluster):
    for beta, steps in ((0.3, 12), (-0.3, 11)):
        pair = build_pair(rule, sizes, members, cluster, beta=beta, free_steps=steps)
        assert_parity(*pair, sizes, members, batch, 1, TOLERANCES["float64, 1 minibatch"])


@pytest.mark.parametrize("rule", RULES)
def test_layers_in_turn(rule):
    for steps in (12, 11):
        sizes = (9, 100, 5)
        pair = build_pair(rule, sizes, 2, 2, in_turn=True, free_steps=steps)
        assert_parity(*pair, sizes, 2, 7, 3, TOLERANCES["float64, 1 minibatch"])


@pytest.mark.parametrize("activation", ["tanh", "hard_sigmoid"])
def test_activations(activation):
    sizes = (9, 100, 5)
    pair = build_pair("C-EP", sizes, 2, 2, activation=activation)
    assert_parity(*pair, sizes, 2, 7, 3, TOLERANCES["float64, 1 minibatch"])


@pytest.mark.parametrize("rule", RULES)
def test_a_hundred_minibatches_gathered_from_bytes_drift_no_further_than_float64_allows(rule):
    source = torch.Generator().manual_seed(1)
    bytes_ = torch.randint(256, (200, 30), generator=source, dtype=torch.uint8)
    bytes_[torch.rand(200, 30, generator=source) < 0.7] = 0
    labels = torch.randint(5, (200,), generator=source, dtype=torch.uint8)
    split = Split(bytes_, labels, 5)
    index = torch.randint(200, (100, 3, 20), generator=source)
    signs = 2.0 * torch.randint(2, (100, 3), generator=source) - 1
    slow, fast = build_pair(rule, (30, 100, 5), 3, 2)
    on_gpu = Split(bytes_.cuda(), labels.cuda(), 5)
    a, b = slow.run(split, index, signs), fast.run(on_gpu, index.cuda(), signs)
    fast.model.cpu()
    assert distance(slow, fast) <= TOLERANCES["float64, 50 minibatches"]
    assert torch.equal(a.wrong, b.wrong.cpu())
    torch.testing.assert_close(b.loss.cpu(), a.loss, rtol=1e-9, atol=0)


@pytest.mark.parametrize("rule", RULES)
def test_float32_is_as_close_as_the_reference_in_float32(rule):
    sizes = (40, 512, 10)
    exact, _ = build_pair(rule, sizes, 2, 8)
    slow, fast = build_pair(rule, sizes, 2, 8, dtype=torch.float32)
    for engine in (slow, fast):
        pairs = zip(engine.model.parameters(), exact.model.parameters(), strict=True)
        for p, q in pairs:
            p.data.copy_(q)
    for m in range(5):
        x, y = minibatch(m, sizes, 2, 20)
        exact.step(x, y)
        slow.step(x.float(), y.float())
        fast.step(x.float().cuda(), y.float().cuda())
    fast.model.cpu()
    own = distance(exact, slow)
    assert distance(exact, fast) <= TOLERANCES["float32 over the reference's own error"] * own


def test_relaxing_many_samples():
    slow, fast = build_pair("C-EP", (9, 100, 5), 3, 4)
    x = torch.rand(53, 9, dtype=torch.float64)
    a, b = slow.relax(x, 9), fast.relax(x.cuda(), 9)
    for mine, theirs in zip(b.state, a.state, strict=True):
        torch.testing.assert_close(mine.cpu(), theirs, rtol=0, atol=1e-12)
    torch.testing.assert_close(b.sample_residual.cpu(), a.sample_residual, rtol=0, atol=1e-12)


def test_a_member_that_fails_leaves_the_parameters_as_they_were():
    _, fast = build_pair("C-EP", (9, 100, 5), 3, 4)
    with torch.no_grad():
        fast.model.synapses[1].weight[1] = float("nan")
    before = [p.clone() for p in fast.model.parameters()]
    x, y = minibatch(0, (9, 100, 5), 3, 7)
    with pytest.raises(eqprop.dynamics.NonFinite):
        fast.step(x.cuda(), y.cuda())
    for p, q in zip(fast.model.parameters(), before, strict=True):
        torch.testing.assert_close(p, q, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("cluster", [2, 8])
def test_the_same_numbers_every_time(cluster):
    index = torch.randint(200, (50, 3, 20), generator=torch.Generator().manual_seed(3))
    source = torch.Generator().manual_seed(1)
    split = Split(
        torch.randint(256, (200, 30), generator=source, dtype=torch.uint8).cuda(),
        torch.randint(5, (200,), generator=source, dtype=torch.uint8).cuda(),
        5,
    )
    ends = []
    for _ in range(2):
        _, fast = build_pair("C-VF", (30, 512, 5), 3, cluster, dtype=torch.float32)
        fast.run(split, index.cuda(), torch.ones(50, 3))
        ends.append([p.clone() for p in fast.model.parameters()])
    assert all(torch.equal(p, q) for p, q in zip(*ends, strict=True))

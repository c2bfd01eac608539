"""Oracle: docs/extending.md. Its examples run as they are written, and do what the text says."""

import re
from pathlib import Path

import pytest
import torch

import eqprop
from eqprop import engines
from tests.documents import python_blocks

TEXT = (Path(__file__).parent.parent / "docs" / "extending.md").read_text()
SECTIONS = {
    part.partition("\n")[0]: part for part in re.split(r"^## ", TEXT, flags=re.MULTILINE)[1:]
}


@pytest.fixture
def example(request, monkeypatch):
    """The names that the examples of a section define."""
    monkeypatch.setattr(engines, "ENGINES", dict(engines.ENGINES))
    names: dict = {}
    for block in python_blocks(SECTIONS[request.param]):
        exec(block, names)
    return names


def of(section):
    return pytest.mark.parametrize("example", [section], indirect=True)


def a_network(**settings):
    return eqprop.layered(
        4, 6, 3, time=eqprop.RealTime(dt=0.5), activation="tanh", dtype=torch.float64, **settings
    )


def a_minibatch(seed=0):
    source = torch.Generator().manual_seed(seed)
    x = torch.rand(6, 4, generator=source, dtype=torch.float64)
    return x, torch.arange(6) % 3


def close(found, expected, atol=1e-12):
    torch.testing.assert_close(found, expected, rtol=0, atol=atol)


def test_every_section_has_an_example():
    kinds = ("rule", "synapse", "read-out", "update", "data set", "engine")
    assert [name.partition(" ")[2] for name in SECTIONS] == list(kinds)
    assert all(len(python_blocks(section)) == 1 for section in SECTIONS.values())


# a rule


@of("A rule")
def test_the_rule_yields_the_signs_of_ep(example):
    net, (x, y) = a_network(ensemble=2), a_minibatch()
    settings = {"nudging": eqprop.Centred(0.2), "free_steps": 30, "nudged_steps": 10}
    (signs,) = example["rule"].gradients(net, x, y)
    (whole,) = eqprop.EP(**settings).gradients(net, x, y)
    assert signs.keys() == whole.keys()
    for name in whole:
        assert torch.equal(signs[name], whole[name].sign())
        assert float(whole[name].abs().min()) > 1e-9  # no sign hangs on rounding


@pytest.mark.slow
@of("A rule")
def test_the_rule_learns_on_the_reference_engine_and_its_steps_pass_gddcheck(example):
    net, (x, y) = a_network(), a_minibatch()
    small = example["SignEP"](beta=1e-4, free_steps=400, nudged_steps=10)
    assert eqprop.gddcheck(net, small, x, y).passed
    engine = eqprop.make_engine(net, example["rule"], 0.01)
    assert type(engine).__name__ == "ReferenceEngine"
    loss = eqprop.SquaredError()
    first = float(loss(engine.step(x, y), y).mean())
    for _ in range(200):
        output = engine.step(x, y)
    assert float(loss(output, y).mean()) < 0.35 * first  # steps of one size end in a small circle


# a synapse


def ends(synapse, seed):
    source = torch.Generator().manual_seed(seed)
    shapes = [(*synapse.ensemble, 5, *shape) for shape in synapse.ends]
    return [torch.randn(shape, generator=source, dtype=torch.float64) for shape in shapes]


@of("A synapse")
def test_the_drives_and_updates_of_the_synapse_are_the_derivatives_of_its_phi(example):
    synapse = example["net"].synapses[1]
    pre, post = ends(synapse, 0)
    w, b = synapse.weight, synapse.bias.reshape(2, 2, 3)
    phi = torch.einsum("ebij,eij,ebij->", pre, w, post) + torch.einsum("eij,ebij->", b, post)
    close(synapse.phi(pre, post).sum(), phi)
    by_pre, by_post = torch.func.grad(
        lambda pre, post: synapse.phi(pre, post).sum(), argnums=(0, 1)
    )(pre, post)
    close(synapse.drives(pre, post), (by_pre, by_post))
    found = synapse.phi_gradient(pre, post)
    close(found["weight"], (pre * post).sum(1))
    close(found["bias"], post.sum(1).flatten(1))


@of("A synapse")
def test_untied_the_synapse_has_a_backward_weight_that_learns(example):
    synapse = example["OneToOne"]("a", "b", tied=False, angle=90.0)
    synapse.build(((5,), (5,)), (), [0], "test", torch.float64)
    (pre, post), (d_pre, d_post) = ends(synapse, 0), ends(synapse, 1)
    close(synapse.drives(pre, post)[0], post * synapse.backward_weight)
    found = synapse.vector_field_gradient(pre, post, d_pre, d_post)
    close(found["weight"], (pre * d_post).sum(0))
    close(found["backward_weight"], (post * d_pre).sum(0))


@of("A synapse")
def test_a_network_with_the_synapse_follows_bptt_and_its_members_learn_as_they_do_alone(example):
    several, (x, y) = example["net"], a_minibatch()
    report = eqprop.gddcheck(several, eqprop.EP(beta=1e-4, free_steps=400, nudged_steps=8), x, y)
    assert report.passed
    assert report.residual < 1e-10
    alone = [several.member(i) for i in range(2)]
    rule = eqprop.ContinualEP(beta=0.2, free_steps=40, nudged_steps=5)
    eqprop.make_engine(several, rule, 0.1).step(x, y)
    for i, net in enumerate(alone):
        eqprop.make_engine(net, rule, 0.1).step(x, y)
        for name, p in net.named_parameters():
            close(several.get_parameter(name)[i], p)


@of("A synapse")
def test_the_synapse_refuses_what_does_not_fit(example):
    with pytest.raises(ValueError, match=r"needs two layers alike, not \(4,\) and \(3,\)"):
        eqprop.Network([eqprop.Input(4), eqprop.Layer("a", 3)], [example["OneToOne"]("input", "a")])


def test_fast_engines_leave_a_kind_of_dense_synapses_to_the_reference():
    """It may compute anything, so a kernel for `Dense` must not take it."""

    class Doubled(eqprop.Dense):
        def drives(self, pre, post):
            on_pre, on_post = super().drives(pre, post)
            return None if on_pre is None else 2 * on_pre, 2 * on_post

    net = eqprop.Network(
        [eqprop.Input(4), eqprop.Layer("h", 5), eqprop.Layer("out", 3)],
        [eqprop.Dense("input", "h"), Doubled("h", "out")],
    )
    rule = eqprop.EP(beta=0.2, free_steps=4, nudged_steps=2)
    assert type(eqprop.make_engine(net, rule, 0.1)).__name__ == "ReferenceEngine"
    with pytest.raises(ValueError, match="'native' cannot run a model that is not a chain"):
        eqprop.make_engine(net, rule, 0.1, "native")


# a read-out


@of("A read-out")
def test_the_nudge_is_the_gradient_of_the_loss(example):
    readout = example["net"].readout
    s = (torch.zeros(6, 8).double(), torch.linspace(-1, 1, 18).double().reshape(6, 3))
    y = a_minibatch()[1]
    expected = torch.func.grad(lambda last: readout.loss((s[0], last), y).sum())(s[1])
    (nudged,) = readout.nudge(s, y).items()
    assert nudged[0] == 1
    close(nudged[1], expected)
    right = torch.where(torch.eye(3)[y].bool(), 0.5, -0.6).double()  # by the margin, or more
    assert float(readout.loss((s[0], right), y).abs().max()) == 0


@pytest.mark.slow
@of("A read-out")
def test_ep_with_the_read_out_follows_rbp_at_the_rate_of_its_nudging(example):
    net, (x, y) = example["net"], a_minibatch()
    (exact,) = eqprop.RBP(free_steps=600).gradients(net, x, y)
    errors = []
    for beta in (0.02, 0.01):
        rule = eqprop.EP(nudging=eqprop.Centred(beta), free_steps=600, nudged_steps=600)
        (found,) = rule.gradients(net, x, y)
        errors.append(max(float((found[name] - exact[name]).abs().max()) for name in exact))
    assert errors[0] / errors[1] == pytest.approx(4, rel=0.1)
    assert errors[1] < 1e-3


@pytest.mark.slow
@of("A read-out")
def test_a_network_with_the_read_out_learns(example):
    net, (x, y) = example["net"], a_minibatch()
    rule = eqprop.EP(beta=0.2, free_steps=40, nudged_steps=20)
    engine = eqprop.make_engine(net, rule, 0.3)
    for _ in range(300):
        output = engine.step(x, y)
    assert torch.equal(output.argmax(-1), y)
    assert float(net.readout.loss(engine.relaxation.state, y).max()) < 0.01


# an update


@of("An update")
def test_parameters_move_by_whole_pulses_and_nothing_is_lost(example):
    """θ − waiting is where plain descent along the same gradients would be."""
    net, size, rates = a_network(ensemble=2), 0.01, torch.tensor([0.05, 0.1]).double()
    start = {name: p.clone() for name, p in net.named_parameters()}
    rule = eqprop.EP(beta=0.2, free_steps=30, nudged_steps=10)
    engine = eqprop.make_engine(net, rule, rates, update=example["Pulses"](size))
    wanted = {name: p.clone() for name, p in start.items()}
    for seed in range(5):
        x, y = a_minibatch(seed)
        (gradients,) = rule.gradients(net, x, y)
        for name, gradient in gradients.items():
            eta = rates.reshape(2, *(1 for _ in gradient.shape[1:]))
            wanted[name] -= eta * gradient
        engine.step(x, y)
    for name, p in net.named_parameters():
        pulses = (p - start[name]) / size
        close(pulses, pulses.round(), atol=1e-9)
        assert float(pulses.abs().max()) >= 1
        waiting = engine.mover.waiting[name]
        assert float(waiting.abs().max()) < size
        close(p + waiting, wanted[name])


@of("An update")
def test_a_step_that_fails_leaves_what_waits_as_it_was(example):
    net, (x, y) = a_network(), a_minibatch()

    class Failing(eqprop.ContinualEP):
        def applied(self, trial):
            yield from super().applied(trial)
            if float(trial.x.max()) > 10:
                raise ArithmeticError

    rule = Failing(beta=0.2, free_steps=30, nudged_steps=10)
    engine = eqprop.make_engine(net, rule, 0.1, update=example["Pulses"](0.01))
    engine.step(x, y)
    waiting, theta = engine.mover.state(), [p.clone() for p in net.parameters()]
    with pytest.raises(ArithmeticError):
        engine.step(x + 20, y)
    assert all(torch.equal(engine.mover.waiting[name], waiting[name]) for name in waiting)
    assert all(torch.equal(p, q) for p, q in zip(net.parameters(), theta, strict=True))


# a data set


@of("A data set")
def test_two_moons_are_half_circles_and_come_from_their_seed(example):
    exact = example["two_moons"](400, noise=0.0)
    x, upper = exact.images.double(), exact.labels == 0
    for label, (a, b) in enumerate(((-0.5, -0.25), (0.5, 0.25))):
        centre = torch.tensor([a, b], dtype=torch.float64)
        moon = x[exact.labels == label] - centre
        close(moon.norm(dim=-1), torch.ones(200).double(), atol=1e-6)
        assert bool((moon[:, 1] * (1 - 2 * label) >= -1e-6).all())
    assert int(upper.sum()) == 200
    moons, again = example["moons"], example["two_moons"](1000)
    assert moons.train.fingerprint == again.fingerprint
    assert moons.train.fingerprint != moons.test.fingerprint


@of("A data set")
def test_a_network_learns_the_two_moons(example):
    """And a line, fitted by least squares, does not."""
    train, test = example["moons"].train, example["moons"].test
    (x, y), (x_test, _) = (split.batch(torch.arange(len(split))) for split in (train, test))
    with_bias = torch.nn.functional.pad(x, (0, 1), value=1.0)
    line = torch.linalg.lstsq(with_bias, y).solution
    answers = (torch.nn.functional.pad(x_test, (0, 1), value=1.0) @ line).argmax(-1)
    assert float((answers != test.labels).double().mean()) > 0.08
    run = eqprop.train(
        "ep-1h", data=example["moons"], epochs=30, seeds=1, progress=False,
        overrides={"layers": [2, 64, 2], "learning_rates": [0.4, 0.2]},
    )  # fmt: skip
    assert float(eqprop.evaluate(run).error) < 3


# an engine


@of("An engine")
@pytest.mark.parametrize("beta", [0.3, -0.3])
def test_the_engine_computes_the_numbers_of_the_reference(example, beta):
    rule = eqprop.EP(beta=beta, free_steps=30, nudged_steps=10)
    reference, worn = a_network(ensemble=2), a_network(ensemble=2)
    start = [p.clone() for p in worn.parameters()]
    plain = eqprop.make_engine(reference, rule, 0.1, "reference")
    engine = eqprop.make_engine(worn, rule, 0.1, "wear")
    for seed in range(5):
        assert torch.equal(engine.step(*a_minibatch(seed)), plain.step(*a_minibatch(seed)))
    for p, q in zip(worn.parameters(), reference.parameters(), strict=True):
        assert torch.equal(p, q)
    assert engine.minibatches == 5
    for before, (name, p) in zip(start, worn.named_parameters(), strict=True):
        far = (p - before).abs()
        assert bool((engine.wear[name] >= far - 1e-15).all())
        assert bool((engine.wear[name] > 0).all())


@of("An engine")
def test_the_engine_runs_many_minibatches_and_is_never_taken_by_itself(example):
    rule, index = eqprop.EP(beta=0.2, free_steps=30, nudged_steps=10), torch.arange(6).reshape(3, 2)
    x, labels = a_minibatch()
    split = eqprop.data.Split(x, labels, 3)
    nets = a_network(), a_network()
    engine = eqprop.make_engine(nets[0], rule, 0.1, "wear")
    counts = engine.run(split, index)
    expected = eqprop.make_engine(nets[1], rule, 0.1, "reference").run(split, index)
    assert torch.equal(counts.loss, expected.loss)
    assert torch.equal(counts.wrong, expected.wrong)
    assert engine.minibatches == 3
    assert type(eqprop.make_engine(a_network(), rule, 0.1)).__name__ != "WearEngine"


@of("An engine")
def test_the_engine_says_what_it_cannot_run(example):
    rule = eqprop.ContinualEP(beta=0.2, free_steps=30, nudged_steps=10)
    with pytest.raises(ValueError, match="kind 'wear' cannot run a continual rule"):
        eqprop.make_engine(a_network(), rule, 0.1, "wear")


@of("An engine")
def test_where_an_engine_gives_up_the_plain_composition_takes_its_place(example):
    class GivesUp(example["WearEngine"]):
        def learn(self, x, y, sign):
            super().learn(x, y, sign)  # and returns None

    engines.ENGINES["gives up"] = GivesUp
    rule = eqprop.EP(beta=0.2, free_steps=30, nudged_steps=10)
    nets = a_network(), a_network()
    for net, kind in zip(nets, ("gives up", "reference"), strict=True):
        eqprop.make_engine(net, rule, 0.1, kind).step(*a_minibatch())
    for p, q in zip(nets[0].parameters(), nets[1].parameters(), strict=True):
        assert torch.equal(p, q)

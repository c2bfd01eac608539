"""Oracles: energy, Young's theory of over-relaxation, identity. `Discrete(relaxation)` changes how
fast a network settles, not where.
"""

import json
import math

import pytest
import torch

import eqprop
from eqprop import Conv2d, Dense, Input, Layer
from eqprop.dynamics import nudged_step
from tests.documents import DOCUMENTS, ROOT, told

OMEGAS = (0.5, 1.3, 1.7, 1.95)
any_omega = pytest.mark.parametrize("omega", OMEGAS)


def pooled(omega=1.0, activation="hard_sigmoid", output=None):
    """Two convolutions, the first with pooling, and a dense output."""
    return eqprop.Network(
        [Input((1, 6, 6)), Layer("a", (4, 3, 3)), Layer("b", (3, 3, 3)), Layer("out", 4, output)],
        [
            Conv2d("input", "a", 3, padding=1, pool=2, init="fan_in"),
            Conv2d("a", "b", 3, padding=1, init="fan_in"),
            Dense("b", "out", init="fan_in"),
        ],
        time=eqprop.Discrete(omega),
        activation=activation,
        dtype=torch.float64,
    )


def samples(net, seed=0, batch=5):
    source = torch.Generator().manual_seed(seed)
    x = torch.rand(batch, *net.input_shape, generator=source, dtype=torch.float64)
    return x, torch.eye(net.readout.width, dtype=torch.float64)[torch.arange(batch) % 4]


def scaled(net, factor):
    for p in net.parameters():
        p.mul_(factor)
    return net


def energy(net, x, s):
    """½‖s‖² − Φ, where Φ is that of ω = 1; one value per sample."""
    squares = sum((layer**2).flatten(1).sum(1) for layer in s)
    omega = net.time.relaxation
    return 0.5 * squares - (net.phi(x, s) - 0.5 * (1 - omega) * squares) / omega


@any_omega
@pytest.mark.parametrize("factor", [1.0, 4.0])
def test_in_turn_no_step_raises_the_energy(omega, factor):
    """Each group moves towards its minimum for fixed neighbours, and less than twice as far."""
    net = scaled(pooled(omega, output="identity"), factor)
    x, _ = samples(net)
    s, groups = tuple(torch.rand_like(layer) for layer in net.initial_state(x)), net.split()
    before, fell = energy(net, x, s), 0.0
    for t in range(30):
        s = net(x, s, groups[t % len(groups)])
        after = energy(net, x, s)
        assert (after <= before + 1e-12).all()
        fell += float((before - after).sum())
        before = after
    assert fell > 1


def test_at_once_a_step_can_raise_the_energy():
    """So the order matters: the same ω diverges where all layers move together."""
    net = scaled(pooled(1.9, "identity"), 2.0)
    x, _ = samples(net)
    s = net.initial_state(x)
    energies = [float(energy(net, x, s := net(x, s)).sum()) for _ in range(20)]
    assert max(energies) > energies[0] + 1


def linear_chain(omega=1.0):
    return eqprop.Network(
        [Input(3), Layer("a", 4), Layer("b", 5), Layer("out", 2)],
        [Dense("input", "a"), Dense("a", "b"), Dense("b", "out")],
        time=eqprop.Discrete(omega),
        activation="identity",
        seed=3,
        dtype=torch.float64,
    )


def radius(net):
    """The spectral radius of a step of all layers at once with ω = 1."""
    whole = torch.zeros(11, 11, dtype=torch.float64)
    for synapse, i, k in ((net.synapses[1], 0, 4), (net.synapses[2], 4, 9)):
        rows, columns = synapse.weight.shape
        whole[i : i + rows, k : k + columns] = synapse.weight
    return float(torch.linalg.eigvalsh(whole + whole.T).abs().max())


def rate(net, sweeps):
    """The factor by which a sweep shrinks the distance to the steady state, fitted."""
    x = torch.rand(4, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    plain = linear_chain()
    plain.load_state_dict(net.state_dict())
    final = eqprop.relax(plain, x, 4000, in_turn=True).state
    s, groups, far = net.initial_state(x), net.split(), []
    for t in range(2 * sweeps):
        s = net(x, s, groups[t % 2])
        if t % 2:
            far.append(sum(float((a - b).norm()) for a, b in zip(s, final, strict=True)))
    late = torch.tensor(far, dtype=torch.float64).log()[sweeps // 3 :]
    at = torch.arange(len(late), dtype=torch.float64)
    at -= at.mean()
    return math.exp(float((at * late).sum() / (at**2).sum()))


def test_the_rate_in_turn_is_that_of_young():
    """ρ² per sweep in turn. With ω = 2 / (1 + √(1 − ρ²)) it is ω − 1; beyond that, too."""
    net = linear_chain()
    scaled(net, 0.97 / radius(net))
    assert radius(net) == pytest.approx(0.97)
    best = 2 / (1 + math.sqrt(1 - 0.97**2))
    assert rate(net, 150) == pytest.approx(0.97**2, rel=1e-3)
    for omega, tolerance in ((best, 0.06), (1.8, 0.03)):  # at the best ω, times the sweep number
        net.time = eqprop.Discrete(omega)
        assert rate(net, 60) == pytest.approx(omega - 1, rel=tolerance)
    net.time = eqprop.Discrete(1.3)
    assert best - 1 < rate(net, 100) < 0.97**2


@any_omega
@pytest.mark.parametrize("activation", ["sigmoid", "tanh", "hard_sigmoid", "identity"])
@pytest.mark.parametrize("beta", [0.0, 0.3, -0.3])
def test_the_steady_states_are_the_same(omega, activation, beta):
    """Also nudged ones, where the output may be beyond the bounds of σ."""
    plain, relaxed = (scaled(pooled(it, activation), 0.4) for it in (1.0, omega))
    x, y = samples(plain)
    s = plain.initial_state(x)
    for step in range(300):
        s = nudged_step(plain, x, y, s, beta, plain.readout, step)
    again = nudged_step(relaxed, x, y, s, beta, relaxed.readout, 0)
    torch.testing.assert_close(again, s, rtol=0, atol=1e-13)


def test_a_neuron_stays_within_the_bounds_of_its_activation():
    net = scaled(pooled(1.8), 5.0)
    x, _ = samples(net)
    s = net.initial_state(x)
    for _ in range(6):
        s = net(x, s)
        assert all(((layer >= 0) & (layer <= 1)).all() for layer in s[:-1])
    assert ((s[-1] < 0) | (s[-1] > 1)).any()  # the output, which the nudge may drive there


@pytest.mark.parametrize("kind", [eqprop.EP, eqprop.VF])
@pytest.mark.parametrize("omega", [0.5, 1.3, 1.5])
def test_gradients_at_steady_states_are_the_same(kind, omega):
    """The nudge is ω times as strong, and so is the update before it is divided by it."""

    def gradients(omega):
        net = pooled(omega)
        x, y = samples(net)
        rule = kind(
            nudging=eqprop.Centred(1e-3), free_steps=400, nudged_steps=400, in_turn=True,
            nudged_in_turn=True,
        )  # fmt: skip
        (found,) = rule.gradients(net, x, y)
        return found

    plain, relaxed = gradients(1.0), gradients(omega)
    for name, expected in plain.items():
        torch.testing.assert_close(relaxed[name], expected, rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize("update_slope", ["none", "own", "full"])
def test_one_nudged_step_goes_further_with_every_slope(update_slope):
    """The first step from the steady state moves the output alone, by −βω ∂ℓ/∂s."""
    x = torch.rand(3, 4, dtype=torch.float64)
    y = torch.eye(2, dtype=torch.float64)[[0, 1, 0]]
    found = []
    for omega in (1.0, 1.6):
        net = eqprop.layered(4, 5, 2, tied=False, time=eqprop.Discrete(omega), dtype=torch.float64)
        rule = eqprop.VF(beta=0.1, free_steps=300, nudged_steps=1, in_turn=True,
                         update_slope=update_slope)  # fmt: skip
        (gradients,) = rule.gradients(net, x, y)
        found.append(gradients["synapses.1.weight"])
    torch.testing.assert_close(found[1], 1.6 * found[0], rtol=1e-6, atol=1e-9)
    assert found[0].abs().max() > 1e-3


def test_the_theorem_holds_step_by_step():
    """A linear network has F = ∂Φ/∂s for every ω, so EP follows BPTT through the relaxed steps."""
    net = linear_chain(1.4)
    scaled(net, 0.3 / radius(net))
    x = torch.rand(4, 3, dtype=torch.float64)
    y = torch.rand(4, 2, dtype=torch.float64)
    rule = eqprop.EP(nudging=eqprop.Centred(1e-4), free_steps=400, nudged_steps=8)
    assert eqprop.gddcheck(net, rule, x, y).passed


@pytest.mark.parametrize("omega", [0, 2, -1, 2.5, math.nan])
def test_other_values_are_refused(omega):
    with pytest.raises(ValueError, match=r"relaxation must lie in \(0, 2\)"):
        eqprop.Discrete(omega)


def test_a_recipe_has_it_in_discrete_time_alone():
    recipe = eqprop.runs.recipe.load("ep-1h", {"relaxation": 1.5})
    assert recipe.network.build(recipe.members()).time == eqprop.Discrete(1.5)
    with pytest.raises(ValueError, match="time real-time does not use relaxation"):
        eqprop.runs.recipe.load("ep-1h", {"relaxation": 1.5, "time": "real-time"})


def test_holomorphic_nudging_refuses_it():
    net = eqprop.layered(4, 5, 2, time=eqprop.Discrete(1.5))
    rule = eqprop.EP(nudging=eqprop.Holomorphic(0.1, 4), free_steps=9, nudged_steps=3)
    with pytest.raises(ValueError, match="relaxation holds neurons within bounds"):
        next(rule.gradients(net, torch.rand(2, 4), torch.eye(2)))


class Everywhere(eqprop.OutputLayer):
    """Nudges the first layer, too."""

    def nudge(self, s, y):
        return super().nudge(s, y) | {0: s[0]}


def test_a_read_out_that_nudges_other_layers_is_refused():
    """Bounds would change their steady states. Without bounds there is nothing to change."""
    for activation, nudged in (("sigmoid", False), ("identity", True)):
        net = eqprop.Network(
            [Input(4), Layer("a", 5), Layer("out", 2)],
            [Dense("input", "a"), Dense("a", "out")],
            time=eqprop.Discrete(0.8),
            activation=activation,
            readout=Everywhere(),
        )
        rule = eqprop.EP(beta=0.1, free_steps=9, nudged_steps=3)
        if nudged:
            assert next(rule.gradients(net, torch.rand(2, 4), torch.eye(2)))
            continue
        with pytest.raises(ValueError, match="relaxation holds layer 'a' within bounds"):
            next(rule.gradients(net, torch.rand(2, 4), torch.eye(2)))


def test_engines_for_dense_chains_leave_it_to_the_reference():
    net = eqprop.layered(4, 5, 2, time=eqprop.Discrete(1.5))
    rule = eqprop.EP(beta=0.1, free_steps=9, nudged_steps=3)
    with pytest.raises(ValueError, match="cannot run relaxation other than 1"):
        eqprop.make_engine(net, rule, 0.1, "native")
    assert type(eqprop.make_engine(net, rule, 0.1)) is eqprop.engines.ReferenceEngine


# the documents, from benchmarks/relaxation.py

PAGE, CONVOLUTION = "docs/settling.md", "docs/convolution.md"
FILE = ROOT / "results" / "relaxation-cifar10-conv-300-epochs-gpu.json"


def number(text):
    """The value of 0.011 or 3 · 10⁻⁴."""
    plain = text.translate(str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻", "0123456789-"))
    return float(plain.replace(" · 10", "e"))


def test_the_page_has_what_was_measured():
    rows = json.loads(FILE.read_text("utf-8"))["results"]
    shown = told("How much this saves", PAGE)
    assert {int(free) for free in shown} == {row["free"] for row in rows}
    for free, cells in shown.items():
        measured = [row for row in rows if row["free"] == int(free)]
        for cell, row in zip(cells, measured, strict=True):
            values = [number(it.strip(")")) for it in cell.split(" (")]
            assert values == pytest.approx([row["residual"], row["residual_90"]], rel=0.3)
    for omega, cells in told("read the angles as rough", PAGE).items():
        (row,) = (it for it in rows if (it["omega"], it["free"]) == (float(omega), 60))
        assert cells == [
            f"{row['centred_angle']:.0f}°",
            f"{row['centred_length']:.2g}",
            f"{row['once_angle']:.0f}°",
            f"{row['once_length']:.2g}",
        ]


@pytest.mark.parametrize(
    ("name", "before"),
    [
        ("cifar10-resnet", "With initial weights this is enough"),
        ("residual-narrow", "Is the residual network settled enough"),
    ],
)
def test_the_page_has_what_was_measured_of_residual_networks(name, before):
    file = ROOT / "results" / f"relaxation-{name}.json"
    rows = json.loads(file.read_text("utf-8"))["results"]
    shown = told(before, CONVOLUTION)
    assert {tuple(map(int, it.split(" + "))) for it in shown} == {
        (row["free"], row["nudged"]) for row in rows
    }
    for sweeps, cells in shown.items():
        measured = [row for row in rows if row["free"] == int(sweeps.split(" + ")[0])]
        for cell, row in zip(cells, measured, strict=True):
            residual, *angles = cell.split(", ")
            assert number(residual) == pytest.approx(row["residual"], rel=0.35)  # one digit
            assert angles == [f"{row['centred_angle']:.1f}°", f"{row['once_angle']:.0f}°"]


def test_the_page_has_the_errors_of_the_runs():
    for recipe, folder in (
        ("cifar10-conv", "cifar10-conv-100-epochs-gpu"),
        ("cifar10-conv-relaxed", "cifar10-conv-300-epochs-gpu"),
    ):
        summary = json.loads((ROOT / "results" / folder / "summary.json").read_text("utf-8"))
        test, train, epochs, minutes, seconds = told(
            "--precision float16 --tf32\n```", CONVOLUTION
        )[f"`{recipe}`"]
        assert test == f"{summary['test_error']['mean']:.2f} %"
        assert train == f"{summary['train_error']['mean']:.2f} %"
        assert int(epochs) == summary["epochs"]
        assert minutes == f"{summary['wall_seconds'] / 60:.0f} min"
        assert seconds == f"{summary['wall_seconds'] / summary['epochs']:.1f} s"
    for (_, first, time), folder in zip(
        told("# Convolutional networks", CONVOLUTION).values(),
        ("mnist-conv-gpu", "cifar10-conv-300-epochs-gpu"),
        strict=True,
    ):
        summary = json.loads((ROOT / "results" / folder / "summary.json").read_text("utf-8"))
        assert first.startswith(f"{summary['test_error']['mean']:.2f} ")
        assert time.startswith(f"{summary['wall_seconds'] / 60:.0f} min")


def test_the_page_says_how_many_minibatches_could_stop_early():
    lines = (ROOT / "results/ladder/tasks/15-centred/metrics.jsonl").read_text().splitlines()
    late = [json.loads(line)["unsettled"][0] for line in lines]
    shares = [late[0], late[3], late[-1]]
    text = " ".join(DOCUMENTS[PAGE].read_text("utf-8").split())
    first, fourth, last = (f"{100 * it:.2f} %" for it in shares)
    assert f"{first} after the first epoch, {fourth} after the fourth and {last} after" in text
    first, fourth, last = (f"{100 * (1 - it) ** 128:.0f} %" for it in shares)
    assert f"within 60 sweeps in {first}, {fourth} and {last} of cases" in text
    lines = (ROOT / "results/ladder/tasks/02-ep-negative/metrics.jsonl").read_text().splitlines()
    late = [json.loads(line)["unsettled"][0] for line in lines]
    first, tenth, last = (f"{100 * (1 - late[k]) ** 128:.0f} %" for k in (0, 9, 29))
    assert f"in {first} of cases after the first epoch, {tenth} after the tenth and {last}" in text


def test_the_page_has_what_a_tolerance_saves():
    rows = json.loads((ROOT / "results" / "shortcuts-convolutional.json").read_text("utf-8"))
    assert told("## Stopping early", PAGE) == {
        name: [
            f"{row['milliseconds']:.1f}",
            f"{row['free_steps']:.0f}",
            f"{row['test_error']:.2f}",
            ", ".join(f"{error:.2f}" for error in row["test_errors"]),
        ]
        for name, row in rows["results"].items()
    }


def test_the_page_has_what_a_tolerance_costs_on_a_gpu():
    found = json.loads((ROOT / "results" / "ladder-gpu-tolerance.json").read_text("utf-8"))
    assert [*told("--tolerances 1e-3 1e-12", PAGE).values()] == [
        [
            f"{found['results'][name + tolerance]:.1f}"
            for tolerance in ("", ", tolerance 0.001", ", tolerance 1e-12")
        ]
        for name in ("cifar10-conv-relaxed", "centred")
    ]


SMALL = ROOT / "results" / "relaxation-mnist-cpu"


def cells_of(folder):
    """The errors of a folder of small networks, as tables show them."""
    summary = json.loads((SMALL / folder / "summary.json").read_text("utf-8"))
    error = summary["test_error"]
    each = ", ".join(f"{it['final_test_error']:.2f}" for it in summary["members"])
    return [f"{error['mean']:.2f} ± {error['std']:.2f}", each]


def test_the_page_has_the_errors_of_the_small_networks():
    shown = told("mnist-conv --epochs 4 --seeds 5 --threads 1 --set train_samples", PAGE)
    for label, cells in shown.items():
        kind, sweeps, omega = label.split(", ")
        relaxed = {"ω = 1": "", "ω = 1.5": "-relaxed"}[omega]
        name = f"{kind.replace(' ', '-')}-{2 * int(sweeps.split()[0])}{relaxed}"
        assert cells == cells_of(name)
    assert len(shown) == 8


def test_weights_grow_with_a_positive_beta_alone():
    """Norms of the second layer after the last epoch, and the errors of those that fail."""
    norms = {}
    for name in ("one-sided", "negative"):
        lines = (SMALL / f"{name}-60-relaxed" / "metrics.jsonl").read_text().splitlines()
        last = json.loads(lines[-1])
        norms[name] = last["weight_norm"]["synapses.1.weight"]
        failed = [e > 80 for e in last["test_error"]]
        assert sum(failed) == {"one-sided": 2, "negative": 1}[name]
        if name == "one-sided":
            grown = [norm for norm, fails in zip(norms[name], failed, strict=True) if fails]
            others = [norm for norm, fails in zip(norms[name], failed, strict=True) if not fails]
            assert [f"{norm:.0f}" for norm in grown] == ["72", "23"]
            assert 3 < min(others) < max(others) < 7
            second = json.loads(lines[1])["test_error"]
            assert f"{second[4]:.0f}" == "26"
    assert max(norms["negative"]) < 5


def test_the_ladder_has_the_errors_by_share():
    shown = told("--set rule.name=continual-ep --set rescale=0.001", "docs/ladder.md")
    folders = {"0 (EP)": "negative-60-relaxed"}
    for share, cells in shown.items():
        assert cells == cells_of(folders.get(share, f"negative-share-{share}"))
    assert len(shown) == 3

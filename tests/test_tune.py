"""`eqprop tune`: each step of appendix F.1, and the whole of it.

Oracle: networks whose rate of convergence is known, autograd through time, proportions and ratios
counted by hand, error curves made up beforehand; the same tuning done twice, stopped half-way, or
with other test samples.
"""

import json
import math
import re
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

import eqprop
from eqprop import runs
from eqprop.data import Dataset
from eqprop.measured import Measured
from eqprop.rules import BPTT
from eqprop.runs import Interrupted, UserError
from eqprop.runs import recipe as recipes
from eqprop.tuning import Balance, Choices, given, tune
from eqprop.tuning.adjusting import adjust_beta, choose_scale
from eqprop.tuning.choices import one_two_five, within
from eqprop.tuning.decay import choose_nudged_steps, steps_to_decay
from eqprop.tuning.processes import norms
from eqprop.tuning.ratio import choose_ratio, learning_rates, magnitude
from eqprop.tuning.settling import choose_free_steps, residuals
from eqprop.tuning.shortening import decrease, increased, shorten
from eqprop.tuning.signs import agreeing, choose_beta, equal_signs
from eqprop.tuning.trials import training_only
from tests.conftest import Outcome

ROOT = Path(__file__).parent.parent
RATE = 0.36  # by which the linear network contracts in two steps
MINIMAL = """epochs = 4
batch = 10
[network]
layers = [784, 12, 10]
tied = true
[rule]
name = "ep"
[data]
train_samples = 100
"""
SHORT = ("--epochs", 1, "--seeds", 2, "--rates", "0.05,0.2", "--beta", "0.1,0.5")


def linear() -> tuple[eqprop.Network, torch.Tensor, torch.Tensor]:
    """s_h ← x W_0 + s_o W_1ᵀ and s_o ← s_h W_1 with W_1ᵀ W_1 = RATE: two steps shrink any
    difference by RATE.
    """
    net = eqprop.layered(3, 4, 2, activation="identity", bias=False, dtype=torch.float64)
    source = torch.Generator().manual_seed(1)
    columns, _ = torch.linalg.qr(torch.randn(4, 2, generator=source, dtype=torch.float64))
    with torch.no_grad():
        net.synapses[1].weight.copy_(RATE**0.5 * columns)
    x = torch.randn(5, 3, generator=source, dtype=torch.float64)
    return net, x, torch.eye(2, dtype=torch.float64)[[0, 1, 0, 1, 0]]


# 1. T


def test_residuals_fall_at_the_known_rate_and_T_is_where_they_pass_the_tolerance():
    net, x, _ = linear()
    W0, W1 = (synapse.weight for synapse in net.synapses)
    two, three = float((x @ W0 @ W1).abs().max()), float((x @ W0 @ W1 @ W1.T).abs().max())
    curve = residuals(net, x, 1000, 1e-8)
    for t in range(2, max(curve) + 1):
        start = three if t % 2 else two
        assert curve[t] == pytest.approx(start * RATE ** ((t - 2) // 2), rel=1e-6, abs=1e-14)
    predicted = min(
        first + 2 * max(0, math.ceil(math.log(1e-8 / start) / math.log(RATE)))
        for first, start in ((2, two), (3, three))
    )
    assert max(curve) == predicted > 20
    step = choose_free_steps(net, x, False, Choices(settled=1e-8, margin=1.5))
    assert step.measured["settled_after"] == predicted
    assert step.chosen == {"rule.free_steps": math.ceil(1.5 * predicted)}


def test_layers_in_turn_settle_in_whole_rounds_at_the_same_state():
    net, x, _ = linear()
    curve = residuals(net, x, 1000, 1e-8, in_turn=True)
    assert [t % 2 for t in curve] == [0] * len(curve)
    late = [curve[t] for t in sorted(curve)[2:]]
    assert [b / a for a, b in pairwise(late)] == pytest.approx([RATE] * (len(late) - 1), rel=1e-5)


def test_a_network_that_does_not_settle_is_refused_with_what_to_do():
    net, x, _ = linear()
    with torch.no_grad():
        net.synapses[1].weight.mul_(RATE**-0.5)  # no contraction: alternates for ever
    with pytest.raises(UserError, match=r"^free_steps: .* within 50 steps .* rule\.in_turn=true"):
        choose_free_steps(net, x, False, Choices(free_steps=(10, 50)))


# 2. K


@pytest.mark.parametrize(("rate", "share", "K"), [(0.5, 0.01, 7), (0.9, 0.001, 66), (0.1, 0.5, 1)])
def test_K_of_a_geometric_decay(rate: float, share: float, K: int):
    """r^K ≤ share: the tail of a geometric series is its first term's share of the whole."""
    assert math.ceil(math.log(share) / math.log(rate)) == K
    slow = rate ** torch.arange(500, dtype=torch.float64)
    fast = (rate / 3) ** torch.arange(500, dtype=torch.float64)
    assert steps_to_decay(torch.stack([slow, fast], dim=1), share) == K
    assert steps_to_decay(torch.stack([fast, slow], dim=1), share) == K


def test_K_of_the_linear_network_is_where_its_known_decay_says():
    net, x, y = linear()
    step = choose_nudged_steps(net, x, y, 80, Choices(decayed=1e-4, margin=1.0))
    curve = norms(net, BPTT(free_steps=80, backward_steps=4), x, y)
    pairs = curve[:2].sum(0)  # of t = 0 and 1; every later pair is RATE times the one before
    assert torch.allclose(curve[2:4].sum(0), RATE * pairs, rtol=1e-9)

    def left(K: int) -> torch.Tensor:
        """Σ_{t ≥ K} ‖∇(t)‖ / Σ_t ‖∇(t)‖, in closed form."""
        first, odd = RATE ** (K // 2) * pairs / (1 - RATE), K % 2
        return (first - odd * RATE ** (K // 2) * curve[0]) * (1 - RATE) / pairs

    predicted = next(K for K in range(1, 80) if bool((left(K) <= 1e-4).all()))
    assert step.measured["decayed_after"] == predicted == step.chosen["rule.nudged_steps"] > 10


# 3. β


def theorem() -> tuple[eqprop.Network, torch.Tensor, torch.Tensor]:
    """In real time with symmetric weights, Δ(t) → −∇(t) as β → 0 (Theorem 1)."""
    time = eqprop.RealTime(dt=0.5)
    net = eqprop.layered(
        6, 7, 3, time=time, activation="tanh", ensemble=2, seed=1, dtype=torch.float64
    )
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.mul_(0.5)  # settles fast: Δ = (s_{t+1} − s_t)/β must not see the free phase
    source = torch.Generator().manual_seed(2)
    x = torch.rand(4, 6, generator=source, dtype=torch.float64)
    return net, x, torch.eye(3, dtype=torch.float64)[[0, 1, 2, 0]]


def ep_at(beta: float) -> eqprop.EP:
    return eqprop.EP(beta=beta, free_steps=200, nudged_steps=20)


def test_all_signs_are_equal_as_beta_goes_to_0_and_not_at_a_large_one():
    net, x, y = theorem()
    assert equal_signs(net, ep_at(1e-6), x, y).tolist() == [1.0, 1.0]
    assert float(equal_signs(net, ep_at(20.0), x, y).min()) < 0.95


def test_the_proportion_of_equal_signs_is_that_counted_one_by_one():
    net, x, y = theorem()
    rule = ep_at(20.0)
    (ours,) = rule.gradients(net, x, y)
    (exact,) = BPTT(free_steps=200, backward_steps=20).gradients(net, x, y)
    for group, share in zip(net.parameter_groups(), equal_signs(net, rule, x, y), strict=True):
        pairs = [
            (u, v)
            for name in group
            for u, v in zip(
                ours[name].flatten().tolist(), exact[name].flatten().tolist(), strict=True
            )
        ]
        assert float(share) == pytest.approx(sum(u * v > 0 for u, v in pairs) / len(pairs))


def test_the_largest_beta_whose_signs_are_near_the_best_in_every_layer():
    table = {0.1: [0.90, 0.99], 0.2: [0.92, 0.98], 0.5: [0.91, 0.96], 1.0: [0.92, 0.5]}
    shares = {beta: torch.tensor(row, dtype=torch.float64) for beta, row in table.items()}
    assert agreeing(shares, 0.025) == [0.1, 0.2]
    assert agreeing(shares, 0.035) == [0.1, 0.2, 0.5]
    assert agreeing(shares, 0.9) == list(table)


def test_beta_is_chosen_by_the_signs_and_one_that_diverges_has_none():
    net, x, y = theorem()
    step = choose_beta(net, ep_at, x, y, Choices(beta=(0.01, 1.0), signs=0.03))
    assert step.measured["beta"] == [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0]
    worst = list(map(min, zip(*step.measured["equal_signs"].values(), strict=True)))
    assert worst[0] == 1.0
    largest = max(i for i, share in enumerate(worst) if share >= 0.97)
    assert step.chosen == {"nudging.beta": step.measured["beta"][largest]}
    assert 0 < largest < 6
    unstable, x, y = linear()
    rule = eqprop.EP(beta=1e6, free_steps=50, nudged_steps=100)
    assert equal_signs(unstable, rule, x, y).tolist() == [0.0, 0.0]


# 4. The ratio of the learning rates


def test_the_ratio_is_inverse_to_the_gradients_of_autograd():
    net = eqprop.layered(6, 7, 3, seed=3, dtype=torch.float64)
    source = torch.Generator().manual_seed(4)
    x = torch.rand(4, 6, generator=source, dtype=torch.float64)
    y = torch.eye(3, dtype=torch.float64)[[0, 1, 2, 0]]
    W0, b0, W1, b1 = (
        getattr(synapse, field).detach().clone().requires_grad_()
        for synapse in net.synapses
        for field in ("weight", "bias")
    )
    hidden, out = torch.zeros(4, 7, dtype=torch.float64), torch.zeros(4, 3, dtype=torch.float64)
    for _ in range(30):
        hidden, out = (
            torch.sigmoid(4 * (x @ W0 + b0 + out @ W1.T - 0.5)),
            torch.sigmoid(4 * (hidden @ W1 + b1 - 0.5)),
        )
    (0.5 * ((out - y) ** 2).sum(-1)).mean().backward()
    by_hand = [
        math.sqrt(float((W.grad**2).sum() + (b.grad**2).sum())) for W, b in ((W0, b0), (W1, b1))
    ]
    step = choose_ratio(net, x, y, 30, 30, Choices())
    assert list(step.measured["magnitude"].values()) == pytest.approx(by_hand, rel=1e-4)
    top = 0.1 * min(by_hand)
    assert step.chosen["update.learning_rates"] == [float(f"{top / n:.2g}") for n in by_hand]
    rms = choose_ratio(net, x, y, 30, 30, Choices(balance=Balance.RMS))
    sizes = [by_hand[0] / math.sqrt(6 * 7 + 7), by_hand[1] / math.sqrt(7 * 3 + 3)]
    assert list(rms.measured["magnitude"].values()) == pytest.approx(sizes, rel=1e-4)


def test_synapses_to_one_layer_have_one_learning_rate():
    net = eqprop.Network(
        [eqprop.Input(5), eqprop.Layer("a", 4), eqprop.Layer("b", 6), eqprop.Layer("c", 3)],
        [eqprop.Dense(*ends) for ends in (("input", "a"), ("a", "b"), ("input", "b"), ("b", "c"))],
        dtype=torch.float64,
    )
    source = torch.Generator().manual_seed(0)
    x = torch.rand(4, 5, generator=source, dtype=torch.float64)
    y = torch.eye(3, dtype=torch.float64)[[0, 1, 2, 0]]
    total = eqprop.total_update(net, BPTT(free_steps=20, backward_steps=20), x, y)
    each = [float(total[f"synapses.{k}.weight"].norm()) for k in range(4)]
    found = choose_ratio(net, x, y, 20, 20, Choices()).measured["magnitude"]
    assert found == pytest.approx(
        {"input→a": each[0], "a→b": math.hypot(each[1], each[2]), "b→c": each[3]}, rel=1e-3
    )


def test_learning_rates_by_hand():
    assert learning_rates((0.2, 0.8), 0.1) == (0.1, 0.025)
    assert learning_rates((0.9, 0.3, 0.6), 0.02) == (0.0067, 0.02, 0.01)
    gradient = torch.tensor([[3.0, 4.0], [6.0, 8.0]])  # two networks
    assert magnitude(gradient, Balance.NORM) == 7.5
    assert magnitude(gradient, Balance.RMS) == pytest.approx(7.5 / 2**0.5)


def test_a_layer_without_a_gradient_is_named():
    net, x, y = linear()
    with torch.no_grad():
        net.synapses[1].weight.zero_()
    with pytest.raises(UserError, match=r"^learning_rates: no gradient reaches input→hidden"):
        choose_ratio(net, x, y, 30, 30, Choices())


# 5. The scale of the learning rates, 6. β


class Surface:
    """Stands for `Trials`: train errors that are known beforehand."""

    epochs = 3

    def __init__(self, error: Callable[[float, float], float]) -> None:
        self.error, self.asked = error, {}

    def errors(self, name: str, values: dict[str, Any]) -> list[Measured]:
        self.asked = values
        rates, betas = values["update.learning_rates"], values["nudging.beta"]
        found = (
            self.error(max(each), beta)
            for each in (rates if isinstance(rates[0], list) else [rates])
            for beta in (betas if isinstance(betas, list) else [betas])
        )
        return [Measured.of(()) if math.isnan(it) else Measured(it, 0.1, 3) for it in found]


PHASES = {"rule.free_steps": 30, "rule.nudged_steps": 10, "nudging.beta": 0.5}


def test_the_scale_of_the_least_train_error_is_taken():
    surface = Surface(lambda eta, beta: math.nan if eta > 0.04 else math.log(eta / 0.01) ** 2)
    step = choose_scale(surface, PHASES, [0.2, 0.8], Choices())
    assert step.chosen == {"update.learning_rates": [0.01, 0.0025]}
    assert {key: surface.asked[key] for key in PHASES} == PHASES
    errors = [trial["train_error"] for trial in step.measured["trials"]]
    assert [error is None for error in errors] == [False] * 5 + [True] * 2
    assert errors[3] == 0.0
    assert "tried" not in step.lines[0]
    falling = choose_scale(Surface(lambda eta, beta: -eta), PHASES, [1.0, 1.0], Choices())
    assert "rate of 0.1 (the largest tried: see --rates)" in falling.lines[0]


def test_the_beta_of_the_least_train_error_is_taken():
    rates = {"update.learning_rates": [0.1, 0.05]}
    step, error = adjust_beta(
        Surface(lambda eta, beta: (beta - 0.06) ** 2), rates, [0.02, 0.05, 0.1]
    )
    assert step.chosen == {"nudging.beta": 0.05}
    assert error.mean == pytest.approx(1e-4)
    step, _ = adjust_beta(Surface(lambda eta, beta: beta), rates, [0.02, 0.05])
    assert "β = 0.02 (the smallest tried: see --beta)" in step.lines[0]


def test_networks_that_all_diverge_are_answered_with_a_remedy():
    with pytest.raises(UserError, match=r"^rates: every network became non-finite: lower --rates"):
        choose_scale(Surface(lambda eta, beta: math.nan), PHASES, [1.0, 1.0], Choices())


# 7. T and K decreased


def known(edge: int) -> Callable[[int], Measured]:
    return lambda steps: Measured(1.0 if steps >= edge else 1.5, 0.1, 3)


def test_a_decrease_stops_where_the_known_error_rises():
    before = Measured(1.0, 0.1, 3)
    found = decrease(40, 2, known(8), before, Choices())
    assert list(found.tried) == [40, 30, 22, 16, 12, 9, 6]
    assert (found.kept, found.rose) == (9, True)
    whole = decrease(40, 10, known(1), before, Choices())
    assert (whole.kept, whole.rose, list(whole.tried)[-2:]) == (10, False, [12, 10])
    assert list(decrease(10, 10, known(1), before, Choices()).tried) == [10]


def test_small_losses_do_not_add_up():
    """Each step loses less than counts as a rise; together they lose more."""
    creeping = lambda steps: Measured(1.0 + 0.01 * (40 - steps), 0.1, 3)  # noqa: E731
    found = decrease(40, 2, creeping, Measured(1.0, 0.1, 3), Choices())
    limit = 2 * math.sqrt(2 * 0.1**2 / 3)
    assert (found.kept, list(found.tried), found.rose) == (30, [40, 30, 22], True)
    assert creeping(22).mean - creeping(30).mean < limit
    assert creeping(found.kept).mean <= 1.0 + limit < creeping(list(found.tried)[-1]).mean


def test_T_is_decreased_first_and_K_at_the_T_that_is_left():
    asked = []

    def error_of(T: int, K: int) -> Measured:
        asked.append((T, K))
        return Measured(1.0 if T >= 15 and K >= 5 else 9.0, 0.1, 3)

    step = shorten(40, 12, error_of, Measured(1.0, 0.1, 3), Choices())
    assert step.chosen == {"rule.free_steps": 16, "rule.nudged_steps": 6}
    assert asked == [(30, 12), (22, 12), (16, 12), (12, 12), (16, 9), (16, 6), (16, 4)]


def test_what_counts_as_a_rise():
    before = Measured(1.0, 0.3, 4)
    error = math.sqrt(0.3**2 / 4 + 0.4**2 / 4)  # 0.25
    assert not increased(Measured(1.0 + 2 * error, 0.4, 4), before, 2.0)
    assert increased(Measured(1.01 + 2 * error, 0.4, 4), before, 2.0)
    assert increased(Measured.of(()), before, 2.0)
    one = Measured(1.0, None, 1)
    assert increased(Measured(1.001, None, 1), one, 2.0)
    assert not increased(one, one, 2.0)


# What the appendix leaves open


def test_ranges_are_read_as_the_appendix_has_them():
    assert one_two_five((0.001, 0.1)) == [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1]
    assert one_two_five((0.3, 0.4)) == [0.3]
    assert [within(steps, (10, 1000)) for steps in (3, 10.2, 5000)] == [10, 11, 1000]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("free_steps", (1, 10)),
        ("nudged_steps", (5, 2)),
        ("beta", (0.0, 1.0)),
        ("rates", (0.1, math.inf)),
        ("shrink", 1.0),
        ("decayed", 0.0),
        ("settled", math.nan),
        ("margin", 0.0),
        ("rise", -1.0),
        ("epochs", 0),
        ("seeds", 0),
    ],
)
def test_a_choice_that_cannot_be_is_refused_by_name(field: str, value: Any):
    with pytest.raises(UserError, match=rf"^{field} must be "):
        Choices(**{field: value})


# The recipe to start from


def test_T_K_beta_and_learning_rates_of_the_recipe_are_ignored():
    other = {"free_steps": 7, "nudged_steps": 3, "beta": [0.3, 0.4], "learning_rates": [1.0, 2.0]}
    assert given.load("ep-1h") == given.load("ep-1h", other)
    assert given.load("ep-1h") != given.load("ep-1h", {"activation": "tanh"})


@pytest.fixture
def minimal(tmp_path: Path) -> Path:
    file = tmp_path / "minimal.toml"
    file.write_text(MINIMAL)
    return file


def test_a_minimal_recipe_is_enough(minimal: Path):
    with pytest.raises(UserError, match="missing"):
        recipes.load(str(minimal))
    recipe = given.load(str(minimal))
    assert (recipe.network.layers, recipe.rule.name) == ((784, 12, 10), "ep")
    shaped = given.load(str(minimal), {"input": [1, 28, 28], "layers": [12, 10]})
    assert len(shaped.update.learning_rates) == 2


def test_errors_are_one_line_that_names_the_field(
    cli: Callable[..., Outcome], minimal: Path, tmp_path: Path
):
    def error(*words: Any, **fields: Any) -> str:
        return cli("tune", minimal, "--out", tmp_path / "out", *words, **fields).error

    assert "rule.name bptt has no nudged phase to tune: choose one of ep," in error(rule="bptt")
    assert "network.angle must be one number" in error(rule="vf", tied="false", angle="0,90")
    assert "rule ep needs tied weights" in error(tied="false")
    assert "network.activation 'relu' is unknown" in error(activation="relu")
    assert "layers: the first must be 784" in error(layers="700,12,10")
    assert error("--beta", "0.1").startswith("--beta '0.1': write it as LOW,HIGH")
    assert error("--rates", "0.1,0.01") == (
        "rates must be a range LOW,HIGH from above 0, not 0.1,0.01"
    )
    assert error("--shrink", "1").startswith("shrink must be between 0 and 1")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "letter.txt").touch()
    assert "is not empty and holds no tuning: choose another --out" in error()
    (tmp_path / "out" / "tune.json").write_text("{")
    assert error().endswith("tune.json: damaged: choose another --out")


# The whole


def outcome(folder: Path) -> tuple[dict[str, Any], bytes]:
    """What a tuning came to, without the machine and the time."""
    record = json.loads((folder / "tune.json").read_bytes())
    return {key: record[key] for key in ("steps", "tuned")}, (folder / "tuned.toml").read_bytes()


def quick(recipe: runs.Recipe, data: Dataset, folder: Path) -> tuple[dict[str, Any], bytes]:
    choices = Choices(epochs=1, seeds=2, rates=(0.05, 0.2), beta=(0.1, 0.5))
    tune(recipe, data, folder, choices, say=lambda line: None)
    return outcome(folder)


@pytest.fixture(scope="module")
def undisturbed(mnist: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What the minimal recipe is tuned to."""
    folder = tmp_path_factory.mktemp("undisturbed")
    (folder / "minimal.toml").write_text(MINIMAL)
    return quick(given.load(str(folder / "minimal.toml")), mnist, folder / "out")


@pytest.mark.slow
def test_from_a_minimal_recipe_to_one_that_trains(
    cli: Callable[..., Outcome], minimal: Path, tmp_path: Path, undisturbed: Any
):
    first = tmp_path / "first"
    said = cli("tune", minimal, "--out", first, *SHORT)
    assert said.code == 0, said
    numbered = [line[:2] for line in said.out.splitlines() if line[1:2] == "."]
    assert numbered == [f"{n}." for n in (1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 7, 7)]
    figures = sorted(file.name for file in first.glob("*.svg"))
    assert [name[0] for name in figures] == list("1234567")
    record = json.loads((first / "tune.json").read_bytes())
    tuned = recipes.load(str(first / "tuned.toml"))
    assert tuned.rule.free_steps == record["tuned"]["rule.free_steps"]
    assert list(tuned.update.learning_rates) == record["tuned"]["update.learning_rates"]
    for number, key, chosen in (
        (4, "learning_rates", list(tuned.update.learning_rates)),
        (5, "beta", tuned.nudging.beta),
    ):
        trials = record["steps"][number]["measured"]["trials"]
        assert min(trials, key=lambda trial: trial["train_error"])[key] == chosen
    assert record["machine"]["processor"]
    assert outcome(first) == undisturbed  # a second time, in another place
    trained = cli("train", first / "tuned.toml", "--seeds", 1, "--out", tmp_path / "run")
    assert trained.code == 0, trained
    other = cli("tune", minimal, "--out", first, *SHORT, "--margin", 3).error
    assert other == f"{first}: holds a tuning with other choices: choose another --out"


def test_short_runs_hold_no_test_samples(mnist: Dataset):
    held = training_only(mnist)
    assert held.train is mnist.train
    assert torch.equal(held.test.images, mnist.train.images[:1])


@pytest.mark.slow
def test_test_samples_are_never_used(
    mnist: Dataset, minimal: Path, tmp_path: Path, undisturbed: Any
):
    recipe = given.load(str(minimal))
    noise = torch.Generator().manual_seed(0)
    images = torch.randint(256, mnist.test.images.shape, dtype=torch.uint8, generator=noise)
    other = replace(
        mnist, test=replace(mnist.test, images=images[:50], labels=torch.arange(50) % 10)
    )
    assert quick(recipe, other, tmp_path / "other") == undisturbed
    fewer = recipes.changed(recipe, {"data.train_samples": 90})
    assert quick(fewer, mnist, tmp_path / "fewer") != undisturbed


def test_a_tuning_that_was_stopped_goes_on_and_trains_nothing_twice(
    mnist: Dataset,
    minimal: Path,
    tmp_path: Path,
    undisturbed: Any,
    monkeypatch: pytest.MonkeyPatch,
):
    recipe = given.load(str(minimal))
    train, trained = runs.train, []

    def stopped(trial: runs.Recipe, *rest: Any, **how: Any) -> runs.Run:
        if len(trained) == 3:
            raise Interrupted(1, 3)
        trained.append(trial.name)
        return train(trial, *rest, **how)

    monkeypatch.setattr(runs, "train", stopped)
    with pytest.raises(Interrupted):
        quick(recipe, mnist, tmp_path / "out")
    saved = json.loads((tmp_path / "out" / "tune.json").read_bytes())
    assert (len(saved["steps"]), saved["seconds"] > 0) == (6, True)

    def going_on(trial: runs.Recipe, *rest: Any, **how: Any) -> runs.Run:
        assert trial.name not in trained
        trained.append(trial.name)
        return train(trial, *rest, **how)

    monkeypatch.setattr(runs, "train", going_on)
    assert quick(recipe, mnist, tmp_path / "out") == undisturbed
    assert not list((tmp_path / "out").rglob("*.ckpt"))
    done = json.loads((tmp_path / "out" / "tune.json").read_bytes())
    assert done["seconds"] > saved["seconds"]


@pytest.mark.parametrize(
    ("rule", "tied"), [("continual-ep", True), ("vf", False), ("continual-vf", False)]
)
def test_every_rule_with_a_nudged_phase_is_tuned(
    mnist: Dataset, minimal: Path, tmp_path: Path, rule: str, tied: bool
):
    recipe = given.load(str(minimal), {"rule": rule, "tied": tied})
    record, _ = quick(recipe, mnist, tmp_path / "out")
    trials = record["steps"][4]["measured"]["trials"]
    errors = [trial["train_error"] for trial in trials if trial["train_error"] is not None]
    assert min(errors) < max(errors)
    assert recipes.load(str(tmp_path / "out" / "tuned.toml")).rule.name == rule


# What the docs say came of it


def test_the_tables_of_the_docs_are_those_of_the_results():
    text = (ROOT / "docs" / "tune.md").read_text()
    results = ROOT / "results" / "tune-ep-1h"
    found = json.loads((results / "tune.json").read_bytes())["tuned"]
    tuned = recipes.load(str(results / "tuned.toml"))
    assert tuned == recipes.changed(tuned, found)
    for name, recipe in (
        ("`eqprop tune`", tuned),
        ("the paper, tuned by hand", recipes.load("ep-1h")),
    ):
        rates = " – ".join(f"{rate:g}" for rate in recipe.update.learning_rates)
        rule = recipe.rule
        cells = (name, rule.free_steps, rule.nudged_steps, recipe.nudging.beta, rates)
        assert f"| {' | '.join(map(str, cells))} |" in text
    rows = re.findall(r"^\| (tuned|paper), epoch (\d+) \| (.+) \| (.+) \|$", text, re.MULTILINE)
    assert len(rows) >= 2
    for name, epoch, train, test in rows:
        lines = (results / "runs" / name / "metrics.jsonl").read_text().splitlines()
        record = json.loads(lines[int(epoch) - 1])
        assert (train, test) == tuple(
            str(Measured.of(record[f"{split}_error"])) for split in ("train", "test")
        )

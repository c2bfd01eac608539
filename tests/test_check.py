"""`eqprop check`: every number it prints before training is true, and its warning is deserved.

Oracle: `eqprop.total_update`, `eqprop.gddcheck` and `eqprop.angle` called by hand on the same
network and minibatch, in float64; networks for which the answer is known beforehand.
"""

import copy
import functools
import math
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

import eqprop
from eqprop.data import Dataset
from eqprop.runs import recipe as recipes
from eqprop.runs.check import Angles, check
from eqprop.runs.parts import Member
from eqprop.runs.recipe import Recipe
from eqprop.seeds import generator

pytestmark = pytest.mark.slow

Cli = Callable[..., Any]
SMALL = {"layers": "784,24,10"}
ROUNDING = 0.051  # angles are printed with one decimal


@dataclass(frozen=True)
class Printed:
    """What `check` printed for one member."""

    text: str

    def row(self, title: str) -> list[float]:
        """The angles of a row of the decomposition: all, then each synapse."""
        (line,) = (line for line in self.text.splitlines() if line.startswith(f"{title} "))
        rest = line.removeprefix(title)
        return [float(number) for number in re.findall(r"([\d.]+)°", rest)]

    def has_row(self, title: str) -> bool:
        return any(line.startswith(f"{title} ") for line in self.text.splitlines())

    @property
    def parts(self) -> tuple[float, ...]:
        """What η, β, asymmetry and update_slope add, and what is left."""
        number = r"(-?[\d.]+)°"
        slope = rf"(?:, update_slope \w+ {number})?"
        pattern = f"η adds {number}, β {number}, asymmetry {number}{slope}; {number} is left"
        (found,) = re.findall(pattern, self.text)
        return tuple(float(part or 0.0) for part in found)

    @property
    def cause(self) -> str | None:
        """Why something is left."""
        (found,) = re.findall(r"is left(?: \((.*)\))?$", self.text, re.MULTILINE)
        return found or None

    @property
    def leaving(self) -> list[tuple[float, float] | None]:
        """For each synapse the η at which its update leaves, and how many times the recipe's."""
        found = re.findall(r"^  synapses\.\d: (.*) the recipe's", self.text, re.MULTILINE)
        pairs = [re.fullmatch(r"(\S+), (\S+) times", verdict) for verdict in found]
        return [pair and (float(pair[1]), float(pair[2])) for pair in pairs]


@dataclass(frozen=True)
class ByHand:
    """The same member and minibatch, measured without `check`."""

    recipe: Recipe
    member: Member
    x: torch.Tensor
    y: torch.Tensor

    @property
    def net(self) -> eqprop.Network:
        return self.recipe.network.build([self.member], torch.float64)

    @property
    def symmetric(self) -> eqprop.Network:
        net = copy.deepcopy(self.net)
        for synapse in net.synapses:
            if getattr(synapse, "backward_weight", None) is not None:
                synapse.backward_weight.data = synapse.weight.data.mT.clone()
        return net

    def rule(self, member: Member, update_slope: str | None = None) -> eqprop.Rule:
        """The recipe's rule, which leaves the rescaling of η to `rates`."""
        slope = update_slope or self.recipe.rule.update_slope
        plain = recipes.changed(self.recipe, {"rescale": None, "update_slope": slope})
        return plain.learning_rule([member])

    @property
    def random_sign(self) -> bool:
        return self.recipe.nudging is not None and self.recipe.nudging.kind == "random-sign"

    @property
    def moving(self) -> float:
        """The share of η by which weights move during the nudged phase."""
        rule = self.recipe.rule
        return (rule.rescale or 1.0) if rule.name.startswith("continual") else 0.0

    def rates(self, factor: float) -> dict[str, float] | None:
        """Of all parameters that training moves, times a factor."""
        each = self.member.learning_rates
        frozen = self.recipe.update.frozen
        names = [name for name, _ in self.net.named_parameters() if name not in frozen]
        return {name: factor * each[int(name.split(".")[1])] for name in names} if factor else None

    def angles(
        self,
        net: eqprop.Network | None = None,
        beta: float | None = None,
        factor: float = 0.0,
        update_slope: str | None = None,
    ) -> list[float]:
        """To BPTT's gradient: of everything, then of each synapse."""
        net = self.net if net is None else net
        member = self.member if beta is None else replace(self.member, beta=beta)
        rule = self.rule(member, update_slope)
        T, K = self.recipe.rule.free_steps, self.recipe.rule.nudged_steps
        ours = eqprop.total_update(net, rule, self.x, self.y, learning_rates=self.rates(factor))
        exact = eqprop.total_update(
            net, eqprop.BPTT(free_steps=T, backward_steps=K), self.x, self.y
        )
        groups = [
            list(ours),
            *(
                [name for name in ours if name.startswith(f"synapses.{k}.")]
                for k in range(len(self.member.learning_rates))
            ),
        ]
        return [
            float(eqprop.angle({n: ours[n] for n in names}, {n: exact[n] for n in names}))
            for names in groups
        ]


@pytest.fixture(scope="module")
def checked(cli: Cli, mnist: Dataset) -> Callable[..., tuple[Printed, ByHand]]:
    @functools.cache
    def run(name: str, **fields: Any) -> tuple[Printed, ByHand]:
        fields = SMALL | fields
        outcome = cli("check", name, **fields)
        assert (outcome.code, outcome.err) == (0, "")
        words = (f"{key}={value}" for key, value in fields.items())
        recipe = recipes.load(name, dict(map(recipes.parse_override, words)) | {"seeds": 1})
        (member,) = recipe.members()
        n = recipe.data.train_samples or len(mnist.train)
        order = torch.randperm(n, generator=generator(member.seed, "check"))
        x, y = mnist.train.shaped((784,)).batch(order[: recipe.batch], torch.float64)
        return Printed(outcome.out), ByHand(recipe, member, x, y)

    return run


def assert_close(printed: list[float], by_hand: list[float]) -> None:
    assert len(printed) == len(by_hand)
    for a, b in zip(printed, by_hand, strict=True):
        assert abs(a - b) < ROUNDING


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("ep-1h", {}),
        ("c-ep-1h", {}),
        ("c-ep-2h", {"layers": "784,16,16,10", "free_steps": 40, "train_samples": 500}),
        ("c-vf-1h", {"angle": 60, "seed": 3}),
        ("c-vf-1h", {"angle": 60, "update_slope": "own"}),
        ("c-vf-1h", {"angle": 60, "update_slope": "full"}),
        ("rescaled-c-ep-1h", {"rescale": 0.01}),
        ("vf-1h", {"angle": 30, "time": "real-time", "dt": 0.4, "activation": "tanh"}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_every_printed_angle_is_true(
    name: str, fields: dict[str, Any], checked: Callable[..., tuple[Printed, ByHand]]
) -> None:
    printed, by_hand = checked(name, **fields)
    recipe, member = by_hand.recipe, by_hand.member
    moving = by_hand.moving
    assert member.beta is not None
    assert_close(printed.row("as trained"), by_hand.angles(factor=moving))
    assert_close(printed.row("weights held still (η → 0)"), by_hand.angles())
    assert_close(printed.row("and β → 0"), by_hand.angles(beta=1e-4))
    still = by_hand.angles(by_hand.symmetric, beta=1e-4)
    assert_close(printed.row("and symmetric weights"), still)
    can_gain = name == "c-vf-1h" and recipe.rule.update_slope != "full"
    assert printed.has_row("and update_slope full") is can_gain
    if can_gain:
        full = by_hand.angles(by_hand.symmetric, beta=1e-4, update_slope="full")
        assert_close(printed.row("and update_slope full"), full)
    assert printed.has_row("as trained, −β") is by_hand.random_sign
    if by_hand.random_sign:
        opposite = by_hand.angles(beta=-member.beta, factor=moving)
        assert_close(printed.row("as trained, −β"), opposite)
    report = eqprop.gddcheck(
        by_hand.net,
        by_hand.rule(member),
        by_hand.x,
        by_hand.y,
        learning_rates=by_hand.rates(moving),
    )
    assert str(report) in printed.text
    head = f"{recipe.name}, seed {member.seed}, one minibatch of 20, before training"
    assert printed.text.startswith(head)


def test_parts_add_up_to_the_angle_as_trained(
    checked: Callable[..., tuple[Printed, ByHand]],
) -> None:
    printed, by_hand = checked("c-vf-1h", angle=60, update_slope="none")
    eta, beta, asymmetry, slope, left = printed.parts
    trained, still = by_hand.angles(factor=1)[0], by_hand.angles()[0]
    small = by_hand.angles(beta=1e-4)[0]
    symmetric = by_hand.angles(by_hand.symmetric, beta=1e-4)[0]
    assert abs(eta - (trained - still)) < ROUNDING
    assert abs(beta - (still - small)) < ROUNDING
    assert abs(asymmetry - (small - symmetric)) < ROUNDING
    full = by_hand.angles(by_hand.symmetric, beta=1e-4, update_slope="full")[0]
    assert abs(slope - (symmetric - full)) < ROUNDING
    assert abs(left - full) < ROUNDING
    assert abs(eta + beta + asymmetry + slope + left - trained) < 5 * ROUNDING
    assert min(eta, asymmetry, abs(slope), left) > 4  # each of them is there to be seen


def test_asymmetry_is_blamed_where_there_is_some_and_only_there(
    checked: Callable[..., tuple[Printed, ByHand]],
) -> None:
    for name, fields in (("c-ep-1h", {}), ("c-vf-1h", {"angle": 0})):
        assert checked(name, **fields)[0].parts[2] == 0.0
    blamed = [checked("vf-1h", angle=angle)[0].parts[2] for angle in (45, 90, 135)]
    assert blamed == sorted(blamed)
    assert blamed[0] > 3
    assert blamed[2] > 60


def test_eta_and_beta_are_blamed_only_where_they_act(
    checked: Callable[..., tuple[Printed, ByHand]],
) -> None:
    eta, beta, asymmetry, *_ = checked("ep-1h")[0].parts
    assert (eta, asymmetry) == (0.0, 0.0)  # one update, after the phase
    assert abs(beta) < abs(checked("ep-1h", beta=1.0)[0].parts[1])
    tiny = checked("c-ep-1h", learning_rates="1e-9,1e-9", beta=1e-4)[0].parts
    assert tiny[:3] == (0.0, 0.0, 0.0)


def test_nothing_is_blamed_on_bptt(checked: Callable[..., tuple[Printed, ByHand]]) -> None:
    printed, _ = checked("bptt-1h")
    assert printed.row("as trained") == [0.0, 0.0, 0.0]
    assert printed.parts == (0.0, 0.0, 0.0, 0.0, 0.0)
    assert printed.cause is None
    assert "PASSED" in printed.text
    assert "below 90°, as the paper advises: 0.0°" in printed.text


def test_what_is_left_is_the_slope_that_discrete_time_drops(
    checked: Callable[..., tuple[Printed, ByHand]],
) -> None:
    """In real time with σ' everywhere F = ∂Φ/∂s, Theorem 1 holds, and nothing is left."""
    discrete = checked("ep-1h")[0].parts[-1]
    fields = {"time": "real-time", "dt": 0.5, "activation": "tanh", "free_steps": 200}
    assert discrete > 5
    assert checked("ep-1h", **fields)[0].parts[-1] < 0.1


PHI = "the σ′ that Φ leaves out in discrete time"
JACOBIAN = "symmetric weights do not make the Jacobian σ′·W symmetric"
UNSETTLED = "a free phase that has not settled"
REAL_TIME = {"time": "real-time", "dt": 0.5, "activation": "tanh", "free_steps": 200}


@pytest.mark.parametrize(
    ("name", "fields", "cause"),
    [
        ("ep-1h", {}, PHI),
        ("ep-1h", {"free_steps": 15}, f"{PHI}, and {UNSETTLED}"),
        ("vf-1h", {}, JACOBIAN),
        ("vf-1h", {"update_slope": "own"}, JACOBIAN),
        ("vf-1h", {"update_slope": "full"}, JACOBIAN),
        ("vf-1h", {"activation": "identity", "layers": "784,100,10", "free_steps": 100}, None),
        ("vf-1h", REAL_TIME, None),
        ("vf-1h", REAL_TIME | {"free_steps": 20}, UNSETTLED),
        (
            "vf-1h",
            REAL_TIME | {"slope": "hidden"},
            "the σ′ that slope hidden leaves out of the dynamics",
        ),
        ("rbp-1h", {"free_steps": 30}, None),
        ("rbp-1h", {"free_steps": 8, "nudged_steps": 8}, UNSETTLED),
    ],
    ids=str,
)
def test_the_cause_of_what_is_left_is_true(
    name: str,
    fields: dict[str, Any],
    cause: str | None,
    checked: Callable[..., tuple[Printed, ByHand]],
) -> None:
    printed, _ = checked(name, **fields)
    assert printed.cause == cause
    assert (printed.parts[-1] > 0) is (cause is not None)


# The warning


@pytest.mark.parametrize(
    ("name", "fields", "warns"),
    [
        ("ep-1h", {}, False),
        ("c-ep-1h-fixed-beta", {}, False),
        ("c-vf-1h", {"angle": 0, "learning_rates": "0.001,0.001"}, False),
        ("c-vf-1h", {"angle": 180, "learning_rates": "0.001,0.001"}, True),
        ("vf-1h", {"angle": 180}, True),
    ],
)
def test_warning_is_given_above_90_degrees_and_not_below(
    name: str,
    fields: dict[str, Any],
    warns: bool,
    checked: Callable[..., tuple[Printed, ByHand]],
) -> None:
    printed, by_hand = checked(name, **fields)
    moving = by_hand.moving
    worst = by_hand.angles(factor=moving)[0]
    if by_hand.random_sign and by_hand.member.beta is not None:
        worst = max(worst, by_hand.angles(beta=-by_hand.member.beta, factor=moving)[0])
    assert (worst > 90) is warns
    last = printed.text.strip().splitlines()[-1]
    if warns:
        assert last.startswith(f"WARNING: the update is {worst:.0f}° from the gradient")
        assert "lower the learning rates or the weight angle" in last
    else:
        assert last == f"below 90°, as the paper advises: {worst:.1f}°"
        assert "WARNING" not in printed.text


def test_the_worse_sign_of_beta_decides(checked: Callable[..., tuple[Printed, ByHand]]) -> None:
    """With rates this large one sign of β is below 90° and the other above."""
    fields = {"learning_rates": "0.0076,0.0038", "layers": "784,32,10", "update_slope": "none"}
    printed, by_hand = checked("c-vf-1h", **fields)
    plus, minus = printed.row("as trained")[0], printed.row("as trained, −β")[0]
    assert plus < 90 < minus
    assert f"WARNING: the update is {minus:.0f}° from the gradient" in printed.text
    assert abs(by_hand.angles(beta=-0.2, factor=1)[0] - minus) < ROUNDING


def test_an_angle_that_is_not_a_number_is_not_below_90_degrees(
    checked: Callable[..., tuple[Printed, ByHand]],
) -> None:
    _, by_hand = checked("vf-1h")
    found = check(by_hand.recipe, by_hand.member, by_hand.x, by_hand.y)
    assert not found.warning
    lost = replace(found, trained=Angles(math.nan, found.trained.synapses))
    assert lost.warning
    assert "WARNING" in str(lost)


# The η at which it goes wrong


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("c-ep-1h-fixed-beta", {}),
        ("c-ep-1h-fixed-beta", {"learning_rates": "1e-5,5e-6"}),
        ("c-ep-1h-fixed-beta", {"learning_rates": "10,5"}),
        ("c-vf-1h", {"angle": 30}),
    ],
    ids=str,
)
def test_leaving_rate_is_where_the_update_has_turned_by_ten_degrees(
    name: str, fields: dict[str, Any], checked: Callable[..., tuple[Printed, ByHand]]
) -> None:
    """Printed with two digits, and found to 2^(1/16) = 4.4 %."""
    printed, by_hand = checked(name, **fields)
    still = by_hand.angles()
    assert len(printed.leaving) == 2
    for k, found in enumerate(printed.leaving):
        assert found is not None
        eta, times = found
        recipes_own = by_hand.member.learning_rates[k]
        assert abs(eta / recipes_own / times - 1) < 0.1
        factor = eta / recipes_own

        def turned(at: float, k: int = k) -> float:
            return by_hand.angles(factor=at)[1 + k] - still[1 + k]

        assert turned(1.05 * factor) >= 10
        assert turned(0.9 * factor) < 10
        assert turned(0.5 * factor) < 8


def test_leaving_rate_does_not_depend_on_the_rates_of_the_recipe(
    checked: Callable[..., tuple[Printed, ByHand]],
) -> None:
    found = [
        checked("c-ep-1h-fixed-beta", learning_rates=rates)[0].leaving
        for rates in ("5.6e-6,2.8e-6", "5.6e8,2.8e8")
    ]
    for k in range(2):
        low, high = (pair[k][0] for pair in found)
        assert abs(low / high - 1) < 0.1


def test_leaving_rate_that_is_far_away_is_called_so(
    checked: Callable[..., tuple[Printed, ByHand]],
) -> None:
    printed, by_hand = checked("c-ep-1h-fixed-beta", learning_rates="1e-9,1e-9")
    assert printed.leaving == [None, None]
    assert "synapses.0: far above the recipe's 1e-09" in printed.text
    assert by_hand.angles(factor=1024)[1] < by_hand.angles()[1] + 10


def test_leaving_rate_of_a_rescaled_rule_counts_what_moves_within_the_phase(
    checked: Callable[..., tuple[Printed, ByHand]],
) -> None:
    """A hundredth of η moves the weights, so η leaves a hundred times later."""
    plain = checked("c-ep-1h-fixed-beta")[0].leaving
    rescaled = checked("c-ep-1h-fixed-beta", rescale=0.01)[0].leaving
    for a, b in zip(plain, rescaled, strict=True):
        assert a is not None
        assert b is not None
        assert abs(0.01 * b[0] / a[0] - 1) < 0.1


def test_only_continual_rules_have_a_leaving_rate(
    checked: Callable[..., tuple[Printed, ByHand]],
) -> None:
    for name in ("ep-1h", "vf-1h", "bptt-1h", "rbp-1h"):
        assert "η at which" not in checked(name)[0].text


def test_every_synapse_to_a_layer_has_its_rate() -> None:
    skip = {"conv": 3, "kernel": 3, "padding": 1, "skip": {"back": 2, "kernel": 1}}
    layers = [{"conv": 2, "kernel": 3, "padding": 1}, skip, 4]
    recipe = recipes.load(
        "c-ep-1h",
        {"input": [1, 5, 5], "layers": layers, "learning_rates": [0.03, 0.02, 0.01], "seeds": 1}
        | {"free_steps": 20, "nudged_steps": 5, "random_sign": False},
    )
    x, y = torch.rand(3, 1, 5, 5, dtype=torch.float64), torch.eye(4, dtype=torch.float64)[:3]
    found = check(recipe, recipe.members()[0], x, y)
    assert (len(found.trained.synapses), len(found.leaving)) == (4, 4)
    rates = re.findall(r"synapses\.(\d): .* the recipe's (\S+)", str(found))
    assert rates == [("0", "0.03"), ("1", "0.02"), ("2", "0.02"), ("3", "0.01")]


def test_each_member_of_a_sweep_is_checked(cli: Cli) -> None:
    outcome = cli("check", "c-vf-1h", "--seeds", 2, **SMALL, angle="0,90")
    assert outcome.code == 0
    heads = re.findall(r"^c-vf-1h, seed (\d), one minibatch", outcome.out, re.MULTILINE)
    assert heads == ["0", "1", "0", "1"]
    blamed = [Printed(text).parts[2] for text in outcome.out.split("c-vf-1h, seed")[1:]]
    assert blamed[:2] == [0.0, 0.0]
    assert min(blamed[2:]) > 10

"""Recipes: the shipped ones are the paper's, and a wrong one is refused in one line.

Oracle: the tables of the paper, written out here.
"""

import hashlib
import json
import tomllib
from dataclasses import fields
from pathlib import Path

import msgspec
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from eqprop import (
    BPTT,
    EP,
    RBP,
    VF,
    Centred,
    ContinualEP,
    ContinualVF,
    Holomorphic,
    OneSided,
    RandomSign,
    make_engine,
)
from eqprop.activations import ACTIVATIONS
from eqprop.papers.continual_ep.training import RUNS
from eqprop.runs import recipe as recipes
from eqprop.runs.parts import NUDGINGS, READOUTS, SCHEDULES, TIMES, DataPart, Member
from eqprop.runs.parts import RULES as RULE_NAMES
from eqprop.runs.recipe import FIELDS, UserError, changed, load, names, parse_override
from eqprop.splits import Dataset, Split
from eqprop.synapses import INITS
from eqprop.timesteps import Discrete
from eqprop.update_slope import UpdateSlope

# Table table-hyp-training of the paper: T, K, β, random β, epochs, learning rates input → output.
TABLE = {
    "ep-1h": (30, 10, 0.1, False, 30, (0.08, 0.04)),
    "ep-2h": (100, 20, 0.5, False, 50, (0.2, 0.05, 0.005)),
    "c-ep-1h-fixed-beta": (40, 15, 0.2, False, 100, (0.0056, 0.0028)),
    "c-ep-1h": (40, 15, 0.2, True, 100, (0.0056, 0.0028)),
    "c-ep-2h": (100, 20, 0.5, False, 150, (0.01, 0.0018, 0.00018)),
    "c-vf-1h": (40, 15, 0.2, True, 100, (0.0076, 0.0038)),
    "c-vf-2h": (100, 20, 0.35, True, 150, (0.009, 0.0016, 0.00016)),
}
CONVOLUTIONAL = ("mnist-conv", "cifar10-conv", "cifar10-conv-relaxed", "cifar10-resnet")
# Appendix "Why C-EP does not perform as well as standard EP?": T, K and β are its own, the rest
# is EP's, to which it claims to be equal.
RESCALED = {
    "rescaled-c-ep-1h": (30, 10, 0.1, False, 30, (0.08, 0.04)),
    "rescaled-c-ep-2h": (100, 20, 0.5, False, 50, (0.2, 0.05, 0.005)),
}
# Not in the paper: the rules to compare with, with the numbers of EP-1h.
COMPARED = {
    "vf-1h": (30, 10, 0.1, False, 30, (0.08, 0.04)),
    "bptt-1h": (30, 10, None, False, 30, (0.08, 0.04)),
    "rbp-1h": (30, 10, None, False, 30, (0.08, 0.04)),
}
EVERY = TABLE | RESCALED | COMPARED
# variants of the paper's recipes, run as such
RECOMMENDED = ("c-vf-1h-in-turn", "c-vf-2h-in-turn")
# The full table of results: test error, its deviation, train error.
PUBLISHED = {
    "ep-1h": ("2.00 ± 0.13", "0.20"),
    "ep-2h": ("1.95 ± 0.10", "0.14"),
    "c-ep-1h-fixed-beta": ("2.85 ± 0.18", "0.83"),
    "c-ep-1h": ("2.28 ± 0.16", "0.41"),
    "c-ep-2h": ("2.44 ± 0.14", "0.31"),
    "c-vf-1h": ("2.43 ± 0.08", "0.77"),
    "c-vf-2h": ("2.97 ± 0.19", "1.58"),
    "rescaled-c-ep-1h": ("2.06 ± 0.13", "0.18 ± 0.01"),
    "rescaled-c-ep-2h": ("1.89 ± 0.22", "0.02 ± 0.02"),
}
RULES = {
    "ep": EP,
    "c-ep": ContinualEP,
    "rescaled-c-ep": ContinualEP,
    "vf": VF,
    "c-vf": ContinualVF,
    "bptt": BPTT,
    "rbp": RBP,
}

MINIMAL = """
epochs = 2
[network]
layers = [4, 3, 2]
tied = true
[rule]
name = "ep"
free_steps = 5
nudged_steps = 3
[nudging]
beta = 0.5
[update]
learning_rates = [0.1, 0.2]
"""
# The same as recipes were written before they had tables.
FLAT = """
layers = [4, 3, 2]
tied = true
rule = "ep"
free_steps = 5
nudged_steps = 3
beta = 0.5
learning_rates = [0.1, 0.2]
epochs = 2
"""


def text_of(name: str) -> str:
    return (Path(recipes.__file__).parents[1] / "recipes" / f"{name}.toml").read_text("utf-8")


def refused(source: str, overrides: dict[str, object] | None = None) -> str:
    with pytest.raises(UserError) as caught:
        load(source, overrides)
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.fixture
def minimal(tmp_path: Path) -> Path:
    file = tmp_path / "mine.toml"
    file.write_text(MINIMAL)
    return file


# What is shipped


def test_exactly_these_recipes_are_shipped() -> None:
    assert names() == sorted((*EVERY, *RECOMMENDED, *CONVOLUTIONAL))


def skipping(skip: dict[str, int]) -> dict[str, object]:
    """Two convolutional layers, of which the second halves its image, with a skip to it."""
    first = {"conv": 3, "kernel": 3, "padding": 1}
    second = {"conv": 4, "kernel": 3, "padding": 1, "stride": 2, "skip": skip}
    rates = {"learning_rates": [0.1, 0.1, 0.1]}
    return {"input": [1, 8, 8], "layers": [first, second, 10], **rates}


@pytest.mark.parametrize("name", RECOMMENDED)
def test_a_recommended_recipe_is_the_one_whose_results_are_shown(name: str) -> None:
    run = RUNS[name].resolved(quick=False)
    assert load(name, {"angle": list(run.network.angle)}).differences(run) == []


@pytest.mark.parametrize("name", EVERY)
def test_recipe_has_the_hyperparameters_of_the_paper(name: str) -> None:
    recipe = load(name)
    T, K, beta, random_sign, epochs, rates = EVERY[name]
    assert recipe.name == name
    assert (recipe.rule.free_steps, recipe.rule.nudged_steps) == (T, K)
    assert (recipe.nudging and recipe.nudging.beta) == beta
    nudging = recipe.learning_rule(recipe.members()).nudging
    assert type(nudging) is (type(None) if beta is None else (OneSided, RandomSign)[random_sign])
    assert recipe.epochs == epochs
    assert recipe.update.learning_rates == rates
    assert recipe.update.build(epochs).linear
    assert (recipe.seeds, recipe.batch, recipe.data.name) == (5, 20, "mnist")
    assert (recipe.data.train_samples, recipe.data.test_samples) == (None, None)
    assert recipe.rule.rescale == (1e-5 if name in RESCALED else None)


@pytest.mark.parametrize("name", EVERY)
def test_recipe_has_the_network_and_the_rule_of_its_name(name: str) -> None:
    recipe = load(name)
    kind, hidden = name.removesuffix("-fixed-beta").rsplit("-", 1)
    assert recipe.network.layers == (784, *[512] * int(hidden[0]), 10)
    assert recipe.network.tied is ("vf" not in kind)
    assert (recipe.network.time, recipe.network.activation) == ("discrete", "sigmoid")
    rule = recipe.learning_rule(recipe.members())
    assert type(rule) is RULES[kind]
    assert (rule.free_steps, rule.horizon) == EVERY[name][:2]


@pytest.mark.parametrize("name", EVERY)
def test_recipe_file_names_its_command_and_the_published_error(name: str) -> None:
    head = text_of(name).partition("\ndescription")[0]
    assert f"# Run it: eqprop train {name}" in head.splitlines()
    if name in PUBLISHED:
        test, train = PUBLISHED[name]
        assert f"test error {test} %, train {train} %" in head
    else:
        assert "not in the paper" in head


@pytest.mark.parametrize("name", [*EVERY, *CONVOLUTIONAL])
def test_recipe_survives_being_written_and_read(name: str, tmp_path: Path) -> None:
    recipe = load(name)
    (tmp_path / "recipe.toml").write_text(recipe.to_toml())
    assert load(str(tmp_path / "recipe.toml")) == recipe


@given(
    rates=st.lists(
        st.lists(st.floats(1e-30, 1e30), min_size=2, max_size=2),
        min_size=1,
        max_size=3,
        unique_by=tuple,
    ),
    betas=st.lists(st.floats(-1e3, 1e3).filter(bool), min_size=1, max_size=3, unique=True),
    angles=st.lists(st.floats(0, 180), min_size=1, max_size=3, unique=True),
)
def test_any_sweep_survives_being_written_and_read(
    rates: list[list[float]], betas: list[float], angles: list[float]
) -> None:
    overrides = {"learning_rates": rates, "beta": betas, "angle": angles}
    recipe = load("c-vf-1h", overrides)
    again = recipes.from_toml(recipe.to_toml().encode(), "again")
    assert again == recipe
    assert again.members() == recipe.members()


def test_a_recipe_of_the_users_own_is_named_after_its_file(minimal: Path) -> None:
    recipe = load(str(minimal), {"beta": 0.25})
    assert (recipe.name, recipe.nudging.beta, recipe.network.layers) == ("mine", 0.25, (4, 3, 2))


@pytest.mark.parametrize("name", ["3", "ep-1h.v2", ".a", "a b", "β"])
def test_a_name_may_be_anything_that_a_folder_can_be_called(name: str) -> None:
    assert load("ep-1h", dict([parse_override(f"name={name}")])).name == name


def test_every_field_and_every_choice_is_documented() -> None:
    text = (Path(__file__).parents[1] / "docs" / "runs.md").read_text("utf-8")
    table = text.partition("| table | field | meaning |")[2].partition("\n\n")[0]
    named = (RULE_NAMES, NUDGINGS, TIMES, READOUTS, SCHEDULES, ACTIVATIONS, INITS, UpdateSlope)
    for choice in (choice for choices in named for choice in choices):
        assert f'`"{choice}"`' in table
    rows = [[cell.strip() for cell in row.split("|")[1:3]] for row in table.splitlines()[2:]]
    documented = {
        f"{within.strip('`[]')}.{field.strip('` ')}".removeprefix(".")
        for within, listed in rows
        for field in listed.split(",")
    }
    assert documented == set(FIELDS)


@pytest.mark.parametrize("name", ["../x", "a/b", "..", "", "\x1b[31mred"])
@pytest.mark.parametrize("field", ["name", "data"])
def test_a_name_that_leads_elsewhere_is_refused(field: str, name: str) -> None:
    with pytest.raises(UserError) as caught:
        load("ep-1h", {field: name})
    path = recipes.PATHS[field]
    assert str(caught.value) == (
        f"ep-1h: {path} needs a letter or digit, and no / or \\, not {name!r}"
    )


@pytest.mark.parametrize("depth", [600, 5_000, 100_000])
def test_a_file_that_is_nested_too_deeply_is_refused(depth: int, tmp_path: Path) -> None:
    file = tmp_path / "deep.toml"
    file.write_text(f"beta = {'[' * depth}{']' * depth}")
    with pytest.raises(UserError) as caught:
        load(str(file))
    message = str(caught.value)
    assert message.startswith(f"{file}: ")
    assert "\n" not in message
    key, value = parse_override(f"beta={'[' * depth}")
    with pytest.raises(UserError, match=r"ep-1h: nudging\.beta must be"):
        load("ep-1h", {key: value})


@pytest.mark.parametrize("field", ["seed", "batch", "test_samples", "beta"])
@pytest.mark.parametrize("value", [str(2**63), "9" * 5000, "0x" + "f" * 6000, "-0x1" + "0" * 16])
def test_numbers_beyond_64_bits_are_refused(field: str, value: str) -> None:
    with pytest.raises(UserError) as caught:
        load("ep-1h", dict([parse_override(f"{field}={value}")]))
    assert str(caught.value).startswith(f"ep-1h: {recipes.PATHS[field]} must ")


# Sweeps


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("beta=0.1,0.1", "beta names 0.1 twice"),
        ("beta=0.1,0.2,0.10", "beta names 0.1 twice"),
        ("angle=0,90,0.0", "angle names 0.0 twice"),
        ("learning_rates=0.1,0.2;0.1,0.2", "learning_rates names (0.1, 0.2) twice"),
    ],
)
def test_two_equal_settings_are_refused(word: str, said: str) -> None:
    with pytest.raises(UserError) as caught:
        load("c-vf-1h", dict([parse_override(word)]))
    field = recipes.PATHS[said.split()[0]].removesuffix(said.split()[0])
    assert str(caught.value).startswith(
        f"c-vf-1h: {field}{said}: equal settings train the same networks"
    )


def test_one_rate_for_both_synapses_is_no_sweep() -> None:
    assert load("ep-1h", {"learning_rates": [0.1, 0.1]}).update.settings == ((0.1, 0.1),)


def test_sweeps_make_every_combination_with_seeds_fastest() -> None:
    recipe = load(
        "c-vf-1h",
        dict(
            map(
                parse_override,
                ("angle=0,90", "beta=0.1,0.2", "learning_rates=0.1,0.2;0.3,0.4", "seed=7"),
            )
        )
        | {"seeds": 3},
    )
    expected = [
        Member(seed, beta, angle, rates)
        for rates in ((0.1, 0.2), (0.3, 0.4))
        for beta in (0.1, 0.2)
        for angle in (0.0, 90.0)
        for seed in (7, 8, 9)
    ]
    assert list(recipe.members()) == expected


def test_each_member_of_a_sweep_gets_its_own_beta_and_rates() -> None:
    recipe = load("ep-1h", {"beta": [0.1, 0.3], "learning_rates": [[1, 2], [3, 4]], "seeds": 1})
    members = recipe.members()
    rule = recipe.learning_rule(members)
    assert rule.beta.tolist() == [0.1, 0.3, 0.1, 0.3]
    first, second = recipe.rates(members)
    assert (first.tolist(), second.tolist()) == ([1, 1, 3, 3], [2, 2, 4, 4])


def test_members_of_a_sweep_over_angles_share_their_forward_weights() -> None:
    recipe = load("c-vf-1h", {"angle": [0, 60, 180], "seeds": 1, "layers": [784, 64, 10]})
    net = recipe.network.build(recipe.members())
    synapse = net.synapses[1]
    assert torch.equal(synapse.weight[0], synapse.weight[1])
    measured = synapse.angle().tolist()
    assert measured[0] < 0.1
    assert 50 < measured[1] < 70
    assert measured[2] > 179.9


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("beta=0.3", ("beta", 0.3)),
        ("beta=-0.3", ("beta", -0.3)),
        ("epochs=3", ("epochs", 3)),
        ("tied=false", ("tied", False)),
        ("rule=vf", ("rule", "vf")),
        ("rule = vf", ("rule", "vf")),
        ("name=3", ("name", "3")),
        ("description= a, b; c=d ", ("description", "a, b; c=d")),
        ('description="a, b"', ("description", '"a, b"')),
        ("description=none", ("description", "none")),
        ("description=", ("description", "")),
        ("beta=none", ("beta", None)),
        ("nudging.beta=none", ("nudging.beta", None)),
        ("rule.free_steps=30", ("rule.free_steps", 30)),
        ("rule.name=vf", ("rule.name", "vf")),
        ("nudging=centred", ("nudging", "centred")),
        ("schedule=none", ("schedule", None)),
        ("schedule=cosine", ("schedule", "cosine")),
        ("input=1,28,28", ("input", [1, 28, 28])),
        (
            "layers=[{conv = 3, kernel = 5}, 10]",
            ("layers", [{"conv": 3, "kernel": 5}, 10]),
        ),
        ("tolerance= none", ("tolerance", None)),
        ("rescale=none", ("rescale", None)),
        ("train_samples=none", ("train_samples", None)),
        ("epochs=none", ("epochs", "none")),
        ("angle=0,22.5,45", ("angle", [0, 22.5, 45])),
        ("layers=784, 32,10", ("layers", [784, 32, 10])),
        ("layers=[784,32,10]", ("layers", [784, 32, 10])),
        ("learning_rates=0.1", ("learning_rates", [0.1])),
        ("learning_rates=0.1,0.2;0.3,0.4", ("learning_rates", [[0.1, 0.2], [0.3, 0.4]])),
        ("frozen=synapses.0.bias", ("frozen", ["synapses.0.bias"])),
        ("frozen=", ("frozen", [])),
        ("frozen=[]", ("frozen", [])),
    ],
)
def test_override_is_read_as_a_typed_value(text: str, expected: tuple[str, object]) -> None:
    assert parse_override(text) == expected


def test_every_field_has_a_short_name_of_its_own() -> None:
    assert {recipes.PATHS[recipes.SHORT[path]] for path in FIELDS} == set(FIELDS)


@pytest.mark.parametrize(
    ("word", "path", "value"),
    [
        ("free_steps=7", "rule.free_steps", 7),
        ("beta=0.7", "nudging.beta", 0.7),
        ("nudging=centred", "nudging.kind", "centred"),
        ("random_sign=false", "nudging.kind", "one-sided"),
        ("rule=vf", "rule.name", "vf"),
        ("data=fashion-mnist", "data.name", "fashion-mnist"),
        ("name=mine", "name", "mine"),
        ("layers=784,30,10", "network.layers", (784, 30, 10)),
        ("momentum=0.5", "update.momentum", 0.5),
    ],
)
def test_a_field_may_be_named_without_its_table(word: str, path: str, value: object) -> None:
    recipe = load("c-vf-1h", dict([parse_override(word)]))
    assert recipe == load("c-vf-1h", {path: value})
    assert recipe.values()[path] == value


def test_override_unsets_an_optional_field() -> None:
    assert load("rescaled-c-ep-1h").rule.rescale == 1e-5
    assert load("rescaled-c-ep-1h", dict([parse_override("rescale=none")])).rule.rescale is None
    assert load("rescaled-c-ep-1h", {"rescale": "none"}).rule.rescale is None  # as in a file


@pytest.mark.parametrize("text", ["beta", "=3", "", "beta:3"])
def test_malformed_override_is_refused(text: str) -> None:
    with pytest.raises(UserError, match=r"--set .*: write it as field=value, for example"):
        parse_override(text)


# Mistakes


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ({"betta": 1}, "unknown field 'betta': did you mean beta?"),
        ({"learning_rate": [1, 2]}, "unknown field 'learning_rate': did you mean learning_rates?"),
        (
            {"rule": {"free_step": 1}},
            "unknown field 'rule.free_step': did you mean rule.free_steps?",
        ),
        ({"rule": {"momentum": 1}}, "unknown field 'rule.momentum': did you mean update.momentum?"),
        ({"rule.freesteps": 1}, "unknown field 'rule.freesteps': did you mean rule.free_steps?"),
        ({"xyzzy": 1}, "unknown field 'xyzzy': the fields are name, description, epochs, "),
        ({"epochs": 2.5}, "epochs must be an integer, not 2.5"),
        ({"epochs": True}, "epochs must be an integer, not True"),
        ({"tied": 1}, "network.tied must be true or false, not 1"),
        ({"random_sign": "True"}, "random_sign must be true or false, not 'True'"),
        ({"bias": "no"}, "network.bias must be true or false, not 'no'"),
        ({"extra": {"a": 1}}, "unknown field 'extra': the fields are name, description, epochs, "),
        ({"rule": 3}, "rule.name must be text, not 3"),
        ({"schedule": 3}, "update.schedule must be text, not 3"),
        ({"beta": "big"}, "nudging.beta must be a number or a list, not 'big'"),
        ({"beta": []}, "nudging.beta must be a list of length >= 1, not []"),
        ({"beta": float("nan")}, "nudging.beta must be finite, not nan"),
        ({"beta": [0.1, float("nan")]}, "nudging.beta must be finite, not nan"),
        ({"tolerance": float("inf")}, "rule.tolerance must be finite, not inf"),
        ({"epochs": float("inf")}, "epochs must be finite, not inf"),
        ({"layers": 784}, "network.layers must be a list, not 784"),
        ({"layers": [784, "x", 10]}, "network.layers[1] must be an integer or a table, not 'x'"),
        ({"learning_rates": 0.1}, "update.learning_rates must be a list, not 0.1"),
        ({"rule": "ept"}, "rule.name 'ept' is unknown: choose one of ep, continual-ep, vf"),
        (
            {"time": "continuous"},
            "network.time 'continuous' is unknown: choose one of discrete, real-time",
        ),
        (
            {"activation": "relu"},
            "network.activation 'relu' is unknown: choose one of sigmoid, tanh",
        ),
        ({"gains": [1.0]}, "network.gains must hold 2 numbers, one per learning rate, not 1"),
        ({"std": 0.0, "normalise": True}, "data.std must be above 0, not 0.0"),
        ({"std": 0.5}, "data.std has no effect without normalise = true"),
        ({"edge": True}, "data.edge has no effect without shift"),
        ({"init": "he"}, "network.init 'he' is unknown: choose one of glorot, fan_in"),
        *(
            ({"name": name}, f"name needs a letter or digit, and no / or \\, not {name!r}")
            for name in ("", " ", ".", "..", "-", "a/b", "../a", "/a", "a\\b")
        ),
        ({"epochs": 0}, "epochs must be an integer >= 1, not 0"),
        ({"batch": 0}, "batch must be an integer >= 1, not 0"),
        ({"seeds": -1}, "seeds must be an integer >= 1, not -1"),
        ({"train_samples": 0}, "data.train_samples must be an integer >= 1, not 0"),
        ({"test_samples": 0}, "data.test_samples must be an integer >= 1, not 0"),
        ({"beta": 0}, "nudging.beta must not be 0: there would be no second phase"),
        ({"beta": [0.1, 0]}, "nudging.beta must not be 0: there would be no second phase"),
        ({"free_steps": 0}, "rule.free_steps must be a positive integer, not 0"),
        ({"nudged_steps": -2}, "rule.nudged_steps must be a positive integer, not -2"),
        ({"free_steps": 1, "in_turn": True}, "rule.free_steps must be at least 2 with in_turn"),
        ({"tolerance": -1e-3}, "rule.tolerance must not be negative, not -0.001"),
        (
            {"learning_rates": [0.1]},
            "update.learning_rates needs 2 entries, input to output, not 1",
        ),
        ({"learning_rates": [[0.1, 0.2], [0.1]]}, "update.learning_rates needs 2 entries"),
        (
            {"learning_rates": [-0.1, 0.2]},
            "update.learning_rates: synapses.0.weight must be positive (0 is no learning), not",
        ),
        ({"learning_rates": [0.1, 0]}, "update.learning_rates: synapses.1.weight must be positive"),
        ({"layers": [784]}, "network.layers must name an input and an output"),
        ({"layers": [784, 0, 10]}, "network.layers[1] must be an integer >= 1, not 0"),
        ({"angle": 45}, "network.angle needs untied weights: set tied=false"),
        ({"tied": False}, "rule ep needs tied weights: use vf or continual-vf"),
        (
            {"rescale": 0.1},
            "rule.name ep does not use rescale: go without (rescale=none), "
            "or choose name continual-ep or continual-vf",
        ),
        (
            {"dt": 0.2},
            "network.time discrete does not use dt: go without (dt=0.08), or choose time real-time",
        ),
        ({"slope": "hidden"}, "network.time discrete does not use slope: go without (slope=all)"),
        ({"dt": 0.0}, "network.dt must lie in (0, 1], not 0.0"),
        ({"slope": "some"}, "network.slope 'some' is unknown: choose one of all, hidden, none"),
        (
            {"rule": "bptt", "random_sign": True},
            "rule bptt does not use nudging: leave it out (beta=none)",
        ),
        (
            {"rule": "continual-ep", "rescale": 2},
            "rule.rescale (η_tiny/η) must lie in (0, 1], not 2",
        ),
        ({"time": "real-time", "dt": 2}, "network.dt must lie in (0, 1], not 2"),
        (
            {"time": "real-time", "slope": "some"},
            "network.slope 'some' is unknown: choose one of all",
        ),
        ({"rule": "vf", "tied": False, "angle": 181}, "angle must lie in [0, 180] degrees"),
        ({"frozen": ["synapses.9.bias"]}, "update.frozen: there is no parameter 'synapses.9.bias'"),
        ({"nudging": "middle"}, "nudging.kind 'middle' is unknown: choose one of one-sided, "),
        ({"points": 4}, "nudging.kind one-sided does not use points: go without (points=none), or"),
        ({"nudging": "holomorphic", "points": 1}, "nudging.points must be an integer of 2 or more"),
        ({"nudging": "holomorphic"}, "nudging.points must be an integer of 2 or more, not None"),
        (
            {"nudging": "holomorphic", "points": 4, "activation": "hard_sigmoid"},
            "Holomorphic needs analytic activations",
        ),
        ({"momentum": 1.0}, "update.momentum must lie in [0, 1), not 1.0"),
        ({"weight_decay": -1.0}, "update.weight_decay must not be negative, not -1.0"),
        ({"nesterov": True}, "update.nesterov needs momentum"),
        ({"schedule": "linear"}, "update.schedule 'linear' is unknown: choose one of cosine"),
        (
            {"learning_rates": [0.1, [0.2]]},
            "update.learning_rates must be a list of numbers, or of",
        ),
        (
            {"readout": "argmax"},
            "network.readout 'argmax' is unknown: choose one of output-layer, ",
        ),
        (
            {"readout": "cross-entropy", "layers": [784, 10], "learning_rates": [0.1]},
            "network.layers must name an input, a hidden layer and an output, not [784, 10]",
        ),
        ({"shared_update": True}, "network.shared_update needs untied weights: set tied=false"),
        ({"layers": [784, {"conv": 3, "kernel": 5}]}, "network.layers must end with a number"),
        (
            {"layers": [{"conv": 3, "kernel": 5}, 10]},
            "network.layers must start with a number, or input = [1, 28, 28] give a shape",
        ),
        (
            {"layers": [784, {"conv": 3, "kernel": 5}, 10]},
            "network.layers: a convolution needs (channels, height, width) before it, not (784,)",
        ),
        (
            {"layers": [784, {"conv": 3}, 10]},
            "field 'network.layers[1].kernel' is missing",
        ),
        (
            {"layers": [784, {"conv": 3, "kernl": 5}, 10]},
            "unknown field 'network.layers[1].kernl': ",
        ),
        (
            {"input": [1, 4, 4], "layers": [{"conv": 3, "kernel": 9}, 10]},
            "network.layers: hidden has no room: from (4, 4) its kernel, stride and padding make "
            "(-4, -4), and pool (-4, -4): choose smaller ones",
        ),
        (
            {"input": [1, 4, 4], "layers": [{"conv": 3, "kernel": 3, "pool": 3}, 10]},
            "network.layers: hidden has no room: from (4, 4) its kernel, stride and padding make "
            "(2, 2), and pool (0, 0): choose smaller ones",
        ),
        (
            skipping({"back": 3, "kernel": 1}),
            "network.layers: the skip to hidden2 comes from 3 layers back, but the input is 2 "
            "back: choose a nearer layer, or leave the skip out",
        ),
        (
            skipping({"back": 2, "kernel": 1}),
            "network.layers: the skip from input to hidden2 makes (8, 8), but the layer is (4, 4): "
            "change kernel, stride, padding or pool of the skip",
        ),
        (
            skipping({"back": 1, "kernel": 1, "stride": 2}),
            "network.layers[1].skip.back must be an integer >= 2, not 1",
        ),
        (
            skipping({"back": 2}),
            "field 'network.layers[1].skip.kernel' is missing",
        ),
        (
            skipping({"back": 2, "kernel": 1, "strid": 2}),
            "unknown field 'network.layers[1].skip.strid': ",
        ),
        (
            skipping({"back": 2, "kernel": 1, "stride": 2}) | {"learning_rates": [0.1] * 4},
            "update.learning_rates needs 3 entries, input to output, not 4",
        ),
    ],
    ids=str,
)
def test_mistake_in_a_field_is_named_in_one_line(
    overrides: dict[str, object], expected: str
) -> None:
    message = refused("ep-1h", overrides)
    assert message.startswith("ep-1h: ")
    assert expected in message
    assert "pass a function" not in message  # a recipe holds none


def test_a_rule_without_beta_is_refused_but_not_a_gradient(minimal: Path) -> None:
    minimal.write_text(MINIMAL.replace("beta = 0.5", ""))
    assert refused(str(minimal)) == f"{minimal}: rule ep needs nudging.beta"
    assert load(str(minimal), {"rule": "bptt"}).nudging is None


@pytest.mark.parametrize("kind", RULES)
def test_a_field_is_refused_exactly_where_the_rule_has_none_of_that_name(kind: str) -> None:
    name = f"{kind}-1h"
    has = {field.name for field in fields(RULES[kind])}
    for key, value in {
        "beta": [0.1, 0.2],
        "random_sign": True,
        "in_turn": True,
        "nudged_in_turn": True,
        "tolerance": 0.25,
        "rescale": 0.5,
        "update_slope": "own",
    }.items():
        if key not in has:
            message = refused(name, {key: value} | ({"beta": 0.1} if key == "random_sign" else {}))
            unused = "nudging" if key in ("beta", "random_sign") else key
            assert f"{load(name).rule.name} does not use {unused}: " in message
            continue
        recipe = load(name, {key: value, "seeds": 1})
        given = getattr(recipe.learning_rule(recipe.members()), key)
        assert (given.tolist() if key == "beta" else given) == value


def test_rule_is_changed_by_leaving_out_what_the_new_one_does_not_use() -> None:
    words = ("rule=bptt", "beta=none")
    recipe = load("c-ep-1h", dict(map(parse_override, words)))
    assert type(recipe.learning_rule(recipe.members())) is BPTT


def test_truncated_bptt_longer_than_the_free_phase_is_refused() -> None:
    message = refused("bptt-1h", {"nudged_steps": 31})
    assert message == "bptt-1h: backward_steps (31) must not exceed free_steps (30)"


@pytest.mark.parametrize(
    "field", ["layers", "tied", "rule", "free_steps", "nudged_steps", "learning_rates", "epochs"]
)
def test_missing_field_is_named(field: str, minimal: Path) -> None:
    path = recipes.PATHS[field]
    for text, start in ((MINIMAL, path.rpartition(".")[2]), (FLAT, field)):
        lines = [line for line in text.splitlines() if not line.startswith(start)]
        minimal.write_text("\n".join(lines))
        assert refused(str(minimal)) == f"{minimal}: field {path!r} is missing"


@pytest.mark.parametrize(
    "content", [b"epochs = \n", b"epochs = 1\nepochs = 2\n", b"no equals sign", b"# \xff\n"]
)
def test_invalid_toml_names_the_file(content: bytes, minimal: Path) -> None:
    minimal.write_bytes(content)
    assert refused(str(minimal)).startswith(f"{minimal}: not valid TOML: ")


@pytest.mark.parametrize(
    ("source", "hint"),
    [
        ("c-ep-1", "did you mean c-ep-1h?"),
        ("ep1h", "did you mean ep-1h?"),
        ("zzz", "see `eqprop recipes`"),
        ("no/such/file.toml", "see `eqprop recipes`"),
        ("", "see `eqprop recipes`"),
    ],
)
def test_unknown_recipe_is_answered_with_a_hint(source: str, hint: str) -> None:
    expected = f"recipe {source!r} is neither a known name nor a .toml file: {hint}"
    assert refused(source) == expected


# Which recipe may go on with which run


def test_recipes_differ_in_what_changes_the_numbers_and_in_nothing_else() -> None:
    recipe = load("ep-1h")
    renamed = load("ep-1h", {"name": "other", "description": "other", "epochs": 99})
    assert recipe.differences(renamed) == []
    other = {"beta": 0.2, "seed": 1, "batch": 10, "train_samples": 100, "in_turn": True}
    paths = {recipes.PATHS[field] for field in other}
    assert set(recipe.differences(load("ep-1h", other))) == paths


def test_a_schedule_is_made_for_a_number_of_epochs() -> None:
    recipe = load("ep-1h", {"schedule": "cosine"})
    assert recipe.differences(changed(recipe, {"epochs": 99})) == ["epochs"]


def test_toml_of_a_recipe_has_its_tables_and_every_field_that_is_set() -> None:
    written = tomllib.loads(load("c-vf-1h").to_toml())
    assert {key for key, value in written.items() if isinstance(value, dict)} == {*recipes.TABLES}
    assert written["update"]["learning_rates"] == [0.0076, 0.0038]
    assert written["rule"]["update_slope"] == "own"
    unset = {
        "network.input",
        "network.gains",
        "network.output_activation",
        "rule.tolerance",
        "rule.rescale",
        "nudging.points",
    }
    unset |= {"update.schedule", "data.train_samples", "data.test_samples", "data.validation"}
    there = {f"{t}.{f}" for t in recipes.TABLES for f in written[t]} | {*written} - {
        *recipes.TABLES
    }
    assert there == set(FIELDS) - unset


# Flat files, as they were before there were tables


def test_a_flat_file_is_the_same_recipe(tmp_path: Path) -> None:
    for name, text in (("flat", FLAT), ("tables", MINIMAL)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "mine.toml").write_text(text)
    flat, tables = (load(str(tmp_path / name / "mine.toml")) for name in ("flat", "tables"))
    assert flat == tables
    assert load(str(tmp_path / "flat" / "mine.toml"), {"random_sign": True}) == load(
        str(tmp_path / "tables" / "mine.toml"), {"nudging.kind": "random-sign"}
    )


def test_every_run_of_before_is_read() -> None:
    files = sorted((Path(__file__).parents[1] / "results").rglob("recipe.toml"))
    read = [(file, tomllib.loads(file.read_text("utf-8"))) for file in files]
    before = [(file, flat) for file, flat in read if "layers" in flat]  # flat, without tables
    assert len(before) > 30
    for file, flat in before:
        recipe = load(str(file))
        assert recipe.network.layers == tuple(flat["layers"])
        assert recipe.rule.name == flat["rule"]
        assert recipe.update.learning_rates == tuple(flat["learning_rates"])
        drawn = flat["random_sign"] if "beta" in flat else False
        assert (recipe.nudging is not None and recipe.nudging.kind == "random-sign") is drawn


# What the flat recipes of before hashed to.
HASHES = {
    "c-ep-1h": "1ee14e3bccd79d56",
    "c-vf-1h": "ae571a63e6bcd126",
    "bptt-1h": "728d0dc17b42ee8c",
}


@pytest.mark.parametrize("name", HASHES)
def test_what_a_run_folder_hashes_is_as_it_was(name: str) -> None:
    told = json.dumps(load(name).determining(), sort_keys=True)
    assert hashlib.sha256(told.encode()).hexdigest()[:16] == HASHES[name]


@pytest.mark.parametrize(
    "overrides",
    [{"nudging": "centred"}, {"momentum": 0.9}, {"readout": "cross-entropy"}, {"normalise": True}],
    ids=str,
)
def test_every_new_field_counts(overrides: dict[str, object]) -> None:
    assert load("ep-1h", overrides).determining() == load("ep-1h").determining() | overrides


# Parts


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({"kind": "one-sided"}, OneSided),
        ({"kind": "random-sign"}, RandomSign),
        ({"kind": "centred"}, Centred),
        ({"kind": "holomorphic", "points": 4}, Holomorphic),
    ],
)
def test_nudging_is_what_its_kind_says(fields: dict[str, object], kind: type) -> None:
    recipe = load("ep-1h", {"nudging": fields | {"beta": [0.1, 0.3]}, "seeds": 1})
    nudging = recipe.learning_rule(recipe.members()).nudging
    assert type(nudging) is kind
    assert nudging.beta.tolist() == [0.1, 0.3]
    assert getattr(nudging, "points", None) == fields.get("points")


def test_with_cross_entropy_the_last_number_is_the_softmax() -> None:
    recipe = load("ep-1h", {"readout": "cross-entropy", "layers": [784, 16, 10], "seeds": 2})
    net = recipe.network.build(recipe.members())
    assert (net.layer_names, net.layer_shapes) == (("hidden",), ((16,),))
    assert net.readout.weight.shape == (2, 16, 10)
    sizes = sum(p.numel() for p in net.parameters())
    assert abs(sizes / 2 - recipe.network.size) <= 10  # but for the bias of the read-out


def test_update_of_a_recipe_moves_as_it_says() -> None:
    given = {"momentum": 0.9, "weight_decay": 0.01, "nesterov": True, "schedule": "cosine"}
    update = load("ep-1h", given).update.build(epochs=10)
    assert (update.momentum, update.weight_decay, update.nesterov) == (0.9, 0.01, True)
    optimiser = torch.optim.SGD([torch.zeros(1)], lr=1.0)
    schedule = update.schedule(optimiser)
    for _ in range(10):
        optimiser.step()
        schedule.step()
    assert abs(optimiser.param_groups[0]["lr"]) < 1e-12


def test_the_convolutional_recipe_builds_and_learns_from_a_minibatch() -> None:
    small = [0.02, 0.01, 0.005]  # for three samples that come again and again
    recipe = load("mnist-conv", {"seeds": 2, "learning_rates": small})
    members = recipe.members()
    net = recipe.network.build(members)
    assert net.layer_shapes == ((32, 14, 14), (64, 7, 7), (10,))
    assert [tuple(s.weight.shape[1:]) for s in net.synapses] == [
        (32, 1, 5, 5),
        (64, 32, 5, 5),
        (64 * 7 * 7, 10),
    ]
    assert sum(p.numel() for p in net.parameters()) == 2 * recipe.network.size
    rule, update = recipe.learning_rule(members), recipe.update.build(recipe.epochs)
    assert (type(rule), type(rule.nudging), rule.in_turn) == (EP, Centred, True)
    engine = make_engine(net, rule, recipe.rates(members), update=update)
    x = torch.rand(3, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    y = torch.tensor([3, 1, 4])
    before = net.readout.loss(engine.relax(x, 40).state, y).mean()
    for _ in range(4):
        engine.step(x, y)
    assert net.readout.loss(engine.relax(x, 40).state, y).mean() < 0.9 * before


def test_the_relaxed_recipe_for_cifar_differs_in_relaxation_and_steps_alone() -> None:
    changes = {"relaxation": 1.5, "free_steps": 40, "nudged_steps": 12}
    expected, relaxed = load("cifar10-conv", changes), load("cifar10-conv-relaxed")
    assert relaxed.determining() == expected.determining()


def test_the_recipe_for_cifar_builds_the_network_of_its_peers() -> None:
    recipe = load("cifar10-conv")
    members = recipe.members()
    net = recipe.network.build(members)
    assert net.layer_shapes == ((128, 16, 16), (256, 8, 8), (512, 4, 4), (512, 2, 2), (10,))
    assert [s.name for s in net.activations] == ["hard_sigmoid"] * 4 + ["identity"]
    assert recipe.network.size == sum(p.numel() for p in net.parameters()) == 3_859_210
    rule = recipe.learning_rule(members)
    assert (type(rule), type(rule.nudging), float(rule.nudging.beta)) == (EP, Centred, 0.1)
    assert rule.in_turn
    assert rule.nudged_in_turn
    assert (rule.free_steps, rule.nudged_steps) == (2 * 60, 2 * 20)  # two groups of layers
    data = recipe.data
    assert (data.name, data.normalise, data.shift, data.flip) == ("cifar-10", True, 4, True)
    update = recipe.update.build(recipe.epochs)
    engine = make_engine(net, rule, recipe.rates(members), update=update)
    assert type(engine).__name__ == "ConvolutionalEngine"


def test_the_synapses_of_a_layer_share_its_learning_rate_and_its_gain() -> None:
    given = skipping({"back": 2, "kernel": 1, "stride": 2}) | {
        "seeds": 2,
        "learning_rates": [[0.3, 0.2, 0.1], [0.6, 0.5, 0.4]],
        "combine": "product",
    }
    plain, recipe = (load("ep-1h", given | {"gains": gains}) for gains in (None, [1, 2, 4]))
    members = recipe.members()
    net = recipe.network.build(members)
    assert [s.name for s in net.synapses] == [
        "input→hidden1",
        "hidden1→hidden2",
        "input→hidden2",
        "hidden2→output",
    ]
    assert [s.has_bias for s in net.synapses] == [True, True, False, True]  # one bias per layer
    assert recipe.network.size * len(members) == sum(p.numel() for p in net.parameters())
    expected = [[0.3, 0.3, 0.6, 0.6], *2 * [[0.2, 0.2, 0.5, 0.5]], [0.1, 0.1, 0.4, 0.4]]
    assert [rate.tolist() for rate in recipe.rates(members)] == expected
    for synapse, before, gain in zip(
        net.synapses, plain.network.build(members).synapses, (1, 2, 2, 4), strict=True
    ):
        assert torch.equal(synapse.weight, gain * before.weight)


def test_a_skip_with_untied_weights_has_the_angle_of_its_network() -> None:
    chain = [{"conv": 3, "kernel": 3, "padding": 1}] * 2
    skip = {"conv": 4, "kernel": 3, "padding": 1, "skip": {"back": 2, "kernel": 1}}
    recipe = load(
        "c-vf-1h",
        {"input": [1, 6, 6], "layers": [*chain, skip, 10], "learning_rates": [0.1] * 4, "seeds": 1}
        | {"angle": 180.0},
    )
    net = recipe.network.build(recipe.members())
    assert [s.name for s in net.synapses if s.untied] == [
        "hidden1→hidden2",
        "hidden2→hidden3",
        "hidden1→hidden3",
        "hidden3→output",
    ]
    assert all(float(s.angle()) == pytest.approx(180, abs=0.1) for s in net.synapses if s.untied)


def test_the_residual_recipe_builds_its_network() -> None:
    recipe = load("cifar10-resnet")
    members = recipe.members()
    net = recipe.network.build(members)
    halves = [(128, 32), (128, 16), (256, 16), (256, 8), (512, 8), (512, 4), (512, 4), (512, 2)]
    assert net.layer_shapes == (*((c, n, n) for c, n in halves), (10,))
    assert len(net.synapses) == 13
    skips = [s for s in net.synapses if not s.has_bias]
    assert [(s.pre, s.post, s.kernel, s.stride) for s in skips] == [
        ("input", "hidden2", 1, 2),
        ("hidden2", "hidden4", 1, 2),
        ("hidden4", "hidden6", 1, 2),
        ("hidden6", "hidden8", 1, 2),
    ]
    assert recipe.network.size == sum(p.numel() for p in net.parameters())
    rule = recipe.learning_rule(members)
    assert (type(rule), type(rule.nudging), float(rule.nudging.beta)) == (EP, Centred, 0.1)
    assert len(net.split()) == 3
    assert (rule.free_steps, rule.nudged_steps) == (3 * 30, 3 * 10)  # three groups of layers
    assert net.time == Discrete(1.5)


@pytest.mark.parametrize(
    ("field", "setting"), [("free_steps", "in_turn"), ("nudged_steps", "nudged_in_turn")]
)
def test_each_group_of_layers_needs_a_step(field: str, setting: str) -> None:
    assert refused("cifar10-resnet", {field: 2}).endswith(
        f"rule.{field} must be at least 3 with {setting}, one step per group of layers, not 2"
    )


def test_the_residual_recipe_learns_on_a_cpu_with_few_channels() -> None:
    layers = msgspec.to_builtins(load("cifar10-resnet").network)["layers"]
    few = [*({**layer, "conv": 8} for layer in layers[:-1]), layers[-1]]
    recipe = load("cifar10-resnet", {"layers": few})
    members = recipe.members()
    net = recipe.network.build(members)
    rule, update = recipe.learning_rule(members), recipe.update.build(recipe.epochs)
    engine = make_engine(net, rule, recipe.rates(members), update=update)
    assert type(engine).__name__ == "ConvolutionalEngine"
    x = torch.rand(4, 3, 32, 32, generator=torch.Generator().manual_seed(0)) - 0.5
    y = torch.tensor([3, 1, 4, 1])
    before = net.readout.loss(engine.relax(x, 90).state, y).mean()
    start = [p.clone() for p in net.parameters()]
    for _ in range(4):
        engine.step(x, y)
    assert all(not torch.equal(p, q) for p, q in zip(net.parameters(), start, strict=True))
    settled = engine.relax(x, 90)
    assert settled.residual < 1e-5
    assert net.readout.loss(settled.state, y).mean() < 0.75 * before


def test_the_output_may_have_an_activation_of_its_own() -> None:
    recipe = load("ep-2h", {"output_activation": "tanh"})
    net = recipe.network.build(recipe.members())
    assert [s.name for s in net.activations] == ["sigmoid", "sigmoid", "tanh"]
    message = refused("ep-2h", {"output_activation": "relu"})
    assert "network.output_activation 'relu' is unknown: choose one of sigmoid" in message


def test_a_part_cannot_be_changed_in_place() -> None:
    with pytest.raises(AttributeError):
        load("ep-1h").rule.free_steps = 3
    assert issubclass(recipes.Recipe, msgspec.Struct)


def test_gains_multiply_what_is_drawn() -> None:
    plain, scaled = (
        load("mnist-conv", {"seeds": 2} | more).network for more in ({}, {"gains": [0.5, 2, 0.25]})
    )
    members = load("mnist-conv", {"seeds": 2}).members()
    pair = [network.build(members, torch.float64) for network in (plain, scaled)]
    for a, b, gain in zip(*(net.synapses for net in pair), (0.5, 2, 0.25), strict=True):
        assert torch.equal(gain * a.weight, b.weight)
        assert torch.equal(gain * a.bias, b.bias)
    softmax = {"readout": "cross-entropy", "gains": [1, 1, 0.5]}
    one, half = (
        load("mnist-conv", {"readout": "cross-entropy"} | more).network.build(members[:1])
        for more in ({}, softmax)
    )
    assert torch.equal(0.5 * one.readout.weight, half.readout.weight)


def test_normalised_inputs_have_the_standard_deviation_asked_for() -> None:
    source = torch.Generator().manual_seed(0)
    images = torch.randint(256, (50, 2, 4, 4), generator=source, dtype=torch.uint8)
    split = Split(images, torch.zeros(50).long(), 1)
    data = DataPart(normalise=True, std=0.4).choose(Dataset("mine", split, split))
    x, _ = data.train.batch(torch.arange(50), torch.float64)
    spread, mean = torch.std_mean(x, dim=(0, 2, 3), correction=0)
    torch.testing.assert_close(mean, torch.zeros(2).double(), rtol=0, atol=1e-8)
    torch.testing.assert_close(spread, torch.full((2,), 0.4).double(), rtol=0, atol=1e-8)

"""Hyperparameter search: what is proposed, trained, pruned, chosen and tested.

Oracle: each setting trained alone; the same search, never interrupted; sums done by hand. Data are
small pictures in which each class lights pixels of its own.
"""

import json
import re
import shlex
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import optuna
import pytest
import torch
from torch import Tensor

import eqprop
from eqprop.data import Dataset, Split
from eqprop.runs import Recipe, UserError
from eqprop.runs import recipe as recipes
from eqprop.runs.figures import pyplot
from eqprop.runs.folder import RunFolder
from eqprop.runs.training import fitting
from eqprop.search import space as spaces
from eqprop.search.commands import _command
from eqprop.search.folder import SearchFolder
from eqprop.search.objective import Objective
from eqprop.search.plan import Group, Plan
from eqprop.search.study import Trials
from tests.commands import Command
from tests.faults import write_idx

Cli = Callable[..., Any]
CLASSES, SIDE, TRAIN, TEST, HELD_OUT = 4, 6, 300, 80, 60
RECIPE = f"""
epochs = 3
batch = 10
seeds = 2
[network]
layers = [{SIDE * SIDE}, 12, {CLASSES}]
tied = true
[rule]
name = "continual-ep"
free_steps = 8
nudged_steps = 4
[nudging]
kind = "random-sign"
beta = 0.3
[update]
learning_rates = [0.05, 0.05]
[data]
name = "blobs"
validation = {HELD_OUT}
"""
SPACE = """
nudging.beta = {low = 0.1, high = 1.0, log = true}
"rule.free_steps" = {low = 6, high = 8, step = 2}
"update.learning_rates" = [
    {low = 0.01, high = 0.3, log = true},
    {low = 0.01, high = 0.3, log = true},
]
"""
SETTINGS = {"beta": [0.2, 0.5, 0.2], "learning_rates": [[0.05, 0.02], [0.02, 0.05], [0.1, 0.1]]}


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with data, a recipe and a space."""
    folder = tmp_path_factory.mktemp("search")
    stream = torch.Generator().manual_seed(0)
    for stem, n in (("train", TRAIN), ("t10k", TEST)):
        labels = torch.randint(CLASSES, (n,), generator=stream)
        labels[:CLASSES] = torch.arange(CLASSES)
        images = torch.randint(120, (n, SIDE * SIDE), generator=stream)
        for k, label in enumerate(labels.tolist()):
            images[k, 5 * label : 5 * label + 5] += 60
        content = bytes(images.flatten().tolist())
        write_idx(folder / f"{stem}-images-idx3-ubyte", (n, SIDE, SIDE), content)
        write_idx(folder / f"{stem}-labels-idx1-ubyte", (n,), bytes(labels.tolist()))
    (folder / "mine.toml").write_text(RECIPE)
    (folder / "space.toml").write_text(SPACE)
    return folder


@pytest.fixture(scope="session")
def data(place: Path) -> Dataset:
    return eqprop.data.load("blobs", place)


@pytest.fixture(scope="session")
def recipe(place: Path) -> Recipe:
    return recipes.load(str(place / "mine.toml"))


def train(recipe: Recipe, data: Dataset, *words: Any, **more: Any) -> eqprop.Run:
    return eqprop.train(recipe, data, *words, progress=False, **more)


def of_members(record: dict[str, Any], members: list[int]) -> dict[str, Any]:
    """An epoch of some members, without what says who has left."""
    chosen: dict[str, Any] = {}
    for key, value in record.items():
        if isinstance(value, dict):
            chosen[key] = {name: [v[i] for i in members] for name, v in value.items()}
        elif key not in ("epoch", "frozen", "pruned"):
            chosen[key] = [value[i] for i in members]
    return chosen


def assert_same(ours: dict[str, Any], theirs: dict[str, Any], engine: str) -> None:
    """Compiled networks do not notice their neighbours. PyTorch's products, which the reference
    engine and momentum use, round by how many there are.
    """
    if engine == "native":
        assert ours == theirs
        return
    assert ours.keys() == theirs.keys()
    for key, value in ours.items():
        for name, numbers in value.items() if isinstance(value, dict) else [("", value)]:
            expected = theirs[key][name] if name else theirs[key]
            slack = {"rel": 1e-5, "abs": 2.6 if key.endswith("error") else 1e-6}  # one sample of 40
            assert numbers == pytest.approx(expected, **slack), (key, name)


# Settings that go together


def test_zip_pairs_the_values_and_shares_single_ones(recipe: Recipe) -> None:
    paired = recipes.changed(recipe, SETTINGS | {"combine": "zip", "seeds": 2, "seed": 7})
    expected = [
        (seed, beta, tuple(rates))
        for beta, rates in zip(*SETTINGS.values(), strict=True)
        for seed in (7, 8)
    ]
    assert [(m.seed, m.beta, m.learning_rates) for m in paired.members()] == expected
    assert [*paired.settings().values()] == [[0, 1], [2, 3], [4, 5]]
    shared = recipes.changed(recipe, {"beta": [0.2, 0.5], "combine": "zip"})
    assert [m.beta for m in shared.members()] == [0.2, 0.2, 0.5, 0.5]
    assert recipes.from_toml(paired.to_toml().encode(), "mine") == paired


def test_product_stays_the_default_and_out_of_the_hashes(recipe: Recipe) -> None:
    lists = SETTINGS | {"beta": [0.2, 0.5]}
    assert len(recipes.changed(recipe, lists).members()) == 12
    assert "combine" not in recipes.changed(recipe, lists).determining()
    assert recipes.changed(recipe, SETTINGS | {"combine": "zip"}).determining()["combine"] == "zip"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"beta": [0.1, 0.2]}, "combine zip needs lists of one length, but learning_rates has 3"),
        ({"beta": [0.2] * 3, "learning_rates": [[0.1, 0.1]] * 3}, "combine zip names .* twice"),
        ({"combine": "both"}, "combine 'both' is unknown: choose one of product, zip"),
    ],
)
def test_settings_that_do_not_fit_are_refused(
    recipe: Recipe, fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        recipes.changed(recipe, SETTINGS | {"combine": "zip"} | fields)


@pytest.mark.parametrize("engine", ["reference", "native"])
def test_each_network_of_a_zip_ensemble_is_what_it_is_alone(
    recipe: Recipe, data: Dataset, engine: str
) -> None:
    recipe = recipes.changed(recipe, {"train_samples": 100})
    together = train(recipes.changed(recipe, SETTINGS | {"combine": "zip"}), data, engine=engine)
    for i, (beta, rates) in enumerate(zip(*SETTINGS.values(), strict=True)):
        setting = recipes.changed(recipe, {"beta": beta, "learning_rates": rates})
        alone = train(setting, data, engine=engine)
        for ours, theirs in zip(together.metrics, alone.metrics, strict=True):
            pair = of_members(ours, [2 * i, 2 * i + 1])
            assert_same(pair, of_members(theirs, [0, 1]), engine)


# Validation


def test_held_out_samples_are_the_last_and_no_longer_trained_on(
    recipe: Recipe, data: Dataset
) -> None:
    chosen = fitting(data, recipe)
    assert chosen.validation is not None
    assert len(chosen.train) == TRAIN - HELD_OUT
    flat = data.train.images.reshape(TRAIN, -1)
    assert torch.equal(chosen.train.images, flat[:-HELD_OUT])
    assert torch.equal(chosen.validation.images, flat[-HELD_OUT:])
    assert torch.equal(chosen.validation.labels, data.train.labels[-HELD_OUT:])
    assert fitting(chosen, recipe).fingerprint == chosen.fingerprint  # once is enough
    fewer = fitting(data, recipes.changed(recipe, {"train_samples": 100}))
    assert fewer.validation is not None
    assert torch.equal(fewer.validation.images, flat[100 - HELD_OUT : 100])


def test_normalisation_does_not_see_the_held_out_samples(recipe: Recipe, data: Dataset) -> None:
    chosen = fitting(data, recipes.changed(recipe, {"normalise": True}))
    assert chosen.validation is not None
    by = eqprop.data.Normalisation.of(data.train.head(TRAIN - HELD_OUT))
    assert chosen.train.normalisation == chosen.validation.normalisation == by


class Poisoned(Split):
    """Samples that must not be looked at."""

    def batch(self, index: Tensor, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
        raise AssertionError("the test set was touched")


def test_a_run_with_validation_does_not_touch_the_test_set(recipe: Recipe, data: Dataset) -> None:
    clean = train(recipe, data)
    poison = Poisoned(data.test.images.flip(0), data.test.labels, data.test.classes)
    poisoned = train(recipe, replace(data, test=poison))
    assert poisoned.metrics == clean.metrics
    with pytest.raises(AssertionError, match="the test set was touched"):
        eqprop.evaluate(poisoned)  # so the poison works


def test_each_epoch_measures_the_held_out_samples(recipe: Recipe, data: Dataset) -> None:
    run = train(recipe, data)
    assert run.net is not None
    x = data.train.images[-HELD_OUT:].reshape(HELD_OUT, -1) / 255
    answers = eqprop.relax(run.net, x, recipe.rule.free_steps).state[-1].argmax(-1)
    wrong = (answers != data.train.labels[-HELD_OUT:].long()).double().mean(-1)
    assert run.metrics[-1]["validation_error"] == pytest.approx((100 * wrong).tolist(), abs=1e-9)
    assert not [key for key in run.metrics[-1] if key.startswith("test")]
    assert not [key for key in {**run.summary, **run.summary["members"][0]} if "test" in key]
    assert run.summary["validation_error"]["mean"] == pytest.approx(100 * float(wrong.mean()))
    assert "validation error" in repr(run)
    test = eqprop.evaluate(run).error.tolist()
    whole = eqprop.evaluate(run.net, data, free_steps=recipe.rule.free_steps)
    assert test == whole.error.tolist() != run.metrics[-1]["validation_error"]
    held = eqprop.evaluate(run, split="validation").error.tolist()
    assert held == pytest.approx(run.metrics[-1]["validation_error"])


@pytest.mark.slow
def test_validation_error_is_never_called_test_error(cli: Cli, place: Path, tmp_path: Path) -> None:
    out, plain = tmp_path / "run", tmp_path / "plain"
    trained = cli("train", place / "mine.toml", "--data", place, "--out", out)
    assert trained.code == 0
    assert "validation error" in trained.out
    shown = cli("show", out)
    assert shown.code == 0
    for text in (trained.out, shown.out):
        assert "test" not in text.replace(str(tmp_path), "")
    assert "test error" in cli("evaluate", out).out
    assert "validation error" in cli("evaluate", out, "--split", "validation").out
    words = ("train", place / "mine.toml", "--data", place, "--out", plain)
    assert "test error" in cli(*words, validation="none").out
    error = cli("evaluate", plain, "--split", "validation").error
    assert error == "split validation: no samples are held out: choose test or train"
    picture = tmp_path / "both.png"
    heading, *_ = cli("compare", out, "--out", picture).out.splitlines()
    assert "validation error" in heading
    heading, *rows = cli("compare", out, plain, "--out", picture).out.splitlines()
    assert "test" not in heading
    assert [re.findall(r"\((\w+)\)", row) for row in rows[:2]] == [["validation"], ["test"]]


def test_a_run_with_validation_resumes_and_refuses_another_split(
    cli: Cli, place: Path, tmp_path: Path
) -> None:
    half, whole = tmp_path / "half", tmp_path / "whole"
    words = ("train", place / "mine.toml", "--data", place)
    assert cli(*words, "--out", half, "--epochs", 2).code == 0
    assert "data.validation" in cli(*words, "--out", half, "--resume", validation=50).error
    assert cli(*words, "--out", half, "--resume").code == 0
    assert cli(*words, "--out", whole).code == 0
    logs = [(folder / "metrics.jsonl").read_bytes() for folder in (half, whole)]
    assert logs[0] == logs[1]
    origin = json.loads((whole / "run.json").read_text())
    assert origin["data"]["validation"]["images"] == [HELD_OUT, SIDE * SIDE]


def test_holding_out_everything_is_refused(recipe: Recipe, data: Dataset) -> None:
    greedy = recipes.changed(recipe, {"validation": TRAIN})
    with pytest.raises(UserError, match="validation: 300 of 300 training samples leave none"):
        train(greedy, data)
    other = recipes.changed(recipe, {"validation": 10})
    with pytest.raises(UserError, match="validation: 10 asked for, but blobs holds out 60"):
        train(other, fitting(data, recipe))


# Members that leave


@pytest.mark.parametrize(
    ("engine", "update"),
    [
        ("native", {}),
        ("reference", {}),
        ("reference", {"momentum": 0.9, "schedule": "cosine"}),
    ],
)
def test_the_others_go_on_with_the_same_numbers(
    recipe: Recipe, data: Dataset, tmp_path: Path, engine: str, update: dict[str, Any]
) -> None:
    fields = SETTINGS | {"combine": "zip", "train_samples": 100}
    paired = recipes.changed(recipe, fields | update)
    whole = train(paired, data, engine=engine)

    def prune(record: dict[str, Any]) -> list[int]:
        return [[1, 4], [5]][record["epoch"] - 1] if record["epoch"] < 3 else []

    pruned = train(paired, data, tmp_path / "run", engine=engine, prune=prune)
    assert pruned.living == [0, 2, 3]
    for ours, theirs, gone in zip(
        pruned.metrics, whole.metrics, ([], [1, 4], [1, 4, 5]), strict=True
    ):
        left = [i for i in range(6) if i not in gone]
        assert_same(of_members(ours, left), of_members(theirs, left), engine)
        assert [ours["validation_error"][i] for i in gone] == [None] * len(gone)
    assert [record.get("pruned") for record in pruned.metrics] == [[1, 4], [5], None]
    members = eqprop.load(tmp_path / "run").summary["members"]
    assert [m["pruned"] for m in members] == [False, True, False, False, True, True]
    assert not any(m["frozen"] for m in members)
    assert pruned.summary["complete"]


def test_a_run_that_everyone_leaves_is_complete(
    recipe: Recipe, data: Dataset, tmp_path: Path
) -> None:
    run = train(recipe, data, tmp_path / "run", prune=lambda record: [0, 1])
    assert len(run.metrics) == 1
    assert RunFolder(tmp_path / "run").summary()["complete"]
    with pytest.raises(UserError, match="every member was frozen or pruned"):
        eqprop.evaluate(run)


# Spaces


def test_a_space_says_what_may_be_proposed() -> None:
    space = spaces.parse(
        SPACE + '"network.activation" = ["sigmoid", "tanh"]\n'
        '"network.layers" = [[36, 12, 4], [36, 20, 4]]\n',
        "mine",
    )
    rate = optuna.distributions.FloatDistribution(0.01, 0.3, log=True)
    assert space.parameters() == {
        "nudging.beta": optuna.distributions.FloatDistribution(0.1, 1.0, log=True),
        "rule.free_steps": optuna.distributions.IntDistribution(6, 8, step=2),
        "update.learning_rates[0]": rate,
        "update.learning_rates[1]": rate,
        "network.activation": optuna.distributions.CategoricalDistribution(("sigmoid", "tanh")),
        "network.layers": optuna.distributions.CategoricalDistribution(
            ("[36, 12, 4]", "[36, 20, 4]")
        ),
    }
    proposed = {
        "nudging.beta": 0.4,
        "rule.free_steps": 8,
        "update.learning_rates[0]": 0.02,
        "update.learning_rates[1]": 0.03,
        "network.activation": "tanh",
        "network.layers": "[36, 20, 4]",
    }
    assert space.overrides(proposed) == {
        "nudging.beta": 0.4,
        "rule.free_steps": 8,
        "update.learning_rates": [0.02, 0.03],
        "network.activation": "tanh",
        "network.layers": [36, 20, 4],
    }


def test_a_number_in_a_list_of_ranges_stays() -> None:
    space = spaces.parse("learning_rates = [0.5, {low = 1, high = 3}]", "mine")
    assert [*space.parameters()] == ["update.learning_rates[1]"]
    assert space.overrides({"update.learning_rates[1]": 2}) == {"update.learning_rates": [0.5, 2]}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "names no field"),
        ("beta = ", "not valid TOML"),
        ("betta = [1, 2]", "unknown field 'betta': did you mean beta?"),
        ("rule.free = [1, 2]", "unknown field 'rule.free'"),
        ("beta = 0.3", "nudging.beta: give a range .* or a list of choices; .* use --set"),
        ("beta = {low = 0.1}", "nudging.beta: a range has low and high"),
        ("beta = {low = 0.1, high = 1, base = 2}", "nudging.beta: a range has low and high"),
        ("beta = {low = 1.0, high = 0.1}", "nudging.beta: low must be below high"),
        ("beta = {low = 0.0, high = 1.0, log = true}", "nudging.beta: log needs low above 0"),
        ("beta = {low = 'a', high = 1}", "nudging.beta: low must be a number, not 'a'"),
        ("beta = {low = 0.1, high = 1.0, log = 1}", "log must be true or false, not 1"),
        ("free_steps = {low = 5, high = 9, step = 3}", "free_steps: step 3 must divide .*, 4"),
        ("beta = [0.1]", "nudging.beta: choices must be two or more, and differ"),
        ("beta = [0.1, 0.1]", "nudging.beta: choices must be two or more, and differ"),
        ("epochs = [1, 2]", "epochs cannot be searched: set it with --set"),
        ("data.validation = [1, 2]", "data.validation cannot be searched"),
        ("rule.free_steps = [5, 6.5]", "rule.free_steps = 6.5: rule.free_steps must be an integer"),
        ("nudging.kind = ['centred', 'odd']", "nudging.kind = odd: nudging.kind 'odd' is unknown"),
        ("learning_rates = [{low = 0.1, high = 0.2}]", "learning_rates needs 2 entries"),
    ],
)
def test_a_space_that_makes_no_sense_is_refused_in_one_line(
    recipe: Recipe, text: str, message: str
) -> None:
    with pytest.raises(UserError, match=message) as raised:
        spaces.parse(text, "mine").check(recipe)
    assert str(raised.value).startswith("mine: ")
    assert len(str(raised.value).splitlines()) == 1


def test_a_step_of_a_fraction_divides_what_it_divides() -> None:
    spaces.parse("beta = {low = 0.1, high = 0.7, step = 0.1}", "mine")


def test_the_spaces_of_the_package_fit_their_recipes() -> None:
    assert "c-ep-1h" in spaces.names()
    for name in spaces.names():
        spaces.load(name).check(recipes.load(name))
    with pytest.raises(UserError, match="did you mean c-ep-1h"):
        spaces.load("c-ep-1")


def test_the_space_of_the_documentation_fits() -> None:
    text = (Path(__file__).parent.parent / "docs" / "search.md").read_text()
    (example,) = re.findall(r"```toml\n(.*?)```", text, re.DOTALL)
    space = spaces.parse(example, "docs")
    space.check(recipes.load("c-ep-1h"))
    assert len(space.parameters()) == 6


# The objective


def test_the_objective_by_hand() -> None:
    errors = [[50, 9, 40, 1], [30, 5, 20, None], [10, 4, 30, None], [20, 6, 10, None]]
    metrics = [{"epoch": i + 1, "validation_error": of} for i, of in enumerate(errors)]
    means = [(10 + 20) / 2, (4 + 6) / 2, (30 + 10) / 2]
    assert Objective("mean", 2)(metrics, [0, 1, 2]) == pytest.approx(statistics.mean(means))
    assert Objective("median", 2)(metrics, [0, 1, 2]) == pytest.approx(15)
    assert Objective("mean", 9)(metrics, [1]) == pytest.approx((9 + 5 + 4 + 6) / 4)
    # One that became non-finite has no answers; after the last one, there are no errors at all.
    assert Objective("mean", 4)(metrics, [1, 3]) == pytest.approx((6 + 100) / 2)
    assert Objective("mean", 4)(metrics[:1], [1, 3]) == pytest.approx((9 + 1) / 2)
    assert Objective("mean", 1)([*metrics, {"epoch": 5, "frozen": []}], [0, 1]) == 100


# Groups


def frozen_trial(number: int, plan: Plan, **proposed: Any) -> optuna.trial.FrozenTrial:
    trial = optuna.trial.create_trial(
        params={k.replace("__", "."): v for k, v in proposed.items()},
        distributions=plan.space.parameters(),
        value=0.0,
    )
    trial.number = number
    return trial


def test_a_group_is_one_recipe_and_equal_proposals_share_their_members(recipe: Recipe) -> None:
    space = spaces.parse("beta = {low = 0.1, high = 1.0}\nfree_steps = [6, 8]", "mine")
    plan = Plan(recipe, space, Objective(), "none", 0)
    betas = (0.2, 0.5, 0.2)
    trials = [
        frozen_trial(3 + i, plan, nudging__beta=beta, rule__free_steps=6)
        for i, beta in enumerate(betas)
    ]
    group = Group("trials-3", trials, plan)
    assert [m.beta for m in group.recipe.members()] == [0.2, 0.2, 0.5, 0.5]
    assert group.members == {3: range(2), 4: range(2, 4), 5: range(2)}
    assert group.recipe.rule.free_steps == 6
    other = frozen_trial(9, plan, nudging__beta=0.2, rule__free_steps=8)
    assert plan.shape(trials[0]) == plan.shape(trials[1]) != plan.shape(other)


# Searches


def words(place: Path, out: Path, trials: int = 8, batch: int = 4) -> list[Any]:
    return [
        *("search", place / "mine.toml", "--space", place / "space.toml", "--data", place),
        *("--out", out, "--trials", trials, "--batch", batch),
    ]


def trials_of(out: Path) -> list[optuna.trial.FrozenTrial]:
    return Trials(SearchFolder(out)).all()


def described(out: Path) -> list[tuple[Any, ...]]:
    """Everything about the trials but the times."""
    return [(t.number, t.state, t.params, t.values, t.intermediate_values) for t in trials_of(out)]


@pytest.fixture(scope="module")
def searched(cli: Cli, place: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A search that nothing happens to, and what it printed."""
    out = tmp_path_factory.mktemp("searched") / "a search"
    outcome = cli(*words(place, out, trials=16))
    assert outcome.code == 0, outcome
    return out, outcome.out


def test_every_value_is_that_of_the_proposal_alone(
    searched: tuple[Path, str], place: Path, data: Dataset
) -> None:
    """Also of the trials whose neighbours were pruned."""
    trials = trials_of(searched[0])
    states = [trial.state.name for trial in trials]
    assert len(trials) == 16
    assert {*states} == {"COMPLETE", "PRUNED"}
    plan = Trials(SearchFolder(searched[0])).plan
    for trial in trials:
        alone = train(plan.proposed(trial), data)
        values = {e: plan.objective(alone.metrics[:e], [0, 1]) for e in (1, 2, 3)}
        assert trial.intermediate_values == {
            e: v for e, v in values.items() if e <= (trial.last_step or 0)
        }
        if trial.state.name == "COMPLETE":
            assert trial.value == values[3]
        else:
            assert trial.last_step < 3


def test_proposals_of_one_shape_train_as_one_ensemble(searched: tuple[Path, str]) -> None:
    groups: dict[str, list[optuna.trial.FrozenTrial]] = {}
    for trial in trials_of(searched[0]):
        groups.setdefault(trial.user_attrs["group"], []).append(trial)
    assert {folder.name for folder in (searched[0] / "runs").iterdir()} == {*groups}
    assert max(map(len, groups.values())) > 1
    for name, trials in groups.items():
        assert len({trial.params["rule.free_steps"] for trial in trials}) == 1
        run = eqprop.load(searched[0] / "runs" / name)
        assert run.recipe.combine == "zip"
        assert [m.beta for m in run.members[::2]] == [t.params["nudging.beta"] for t in trials]
        assert run.summary["complete"]


def test_the_best_setting_is_trained_on_everything_and_tested_once(
    searched: tuple[Path, str], cli: Cli, place: Path, data: Dataset
) -> None:
    out, printed = searched
    complete = [t for t in trials_of(out) if t.state.name == "COMPLETE"]
    best = min(complete, key=lambda trial: trial.value)
    recipe = recipes.load(str(out / "best.toml"))
    assert recipe.data.validation is None
    assert recipe.nudging is not None
    assert recipe.nudging.beta == best.params["nudging.beta"]
    alone = train(recipe, data)
    assert len(alone.data.train) == TRAIN  # type: ignore[union-attr]
    mean = alone.summary["test_error"]["mean"]
    (line,) = [line for line in printed.splitlines() if "test error" in line]
    assert re.match(rf"test error {mean:.2f} ± [\d.]+ % over 2 network\(s\), in ", line)
    before = described(out)
    again = cli(*words(place, out, trials=16))
    assert again.code == 0
    assert line in again.out.splitlines()
    assert described(out) == before


@pytest.mark.slow
def test_a_search_is_reproducible(
    searched: tuple[Path, str], cli: Cli, place: Path, tmp_path: Path
) -> None:
    assert cli(*words(place, tmp_path / "again")).code == 0
    assert described(tmp_path / "again") == described(searched[0])[:8]
    assert cli(*words(place, tmp_path / "other", trials=1), "--sampler-seed", 1).code == 0
    assert described(tmp_path / "other")[0][2] != described(searched[0])[0][2]


def test_final_seeds_and_epochs(cli: Cli, place: Path, tmp_path: Path) -> None:
    more = ("--final-seeds", 3, "--final-epochs", 4, "--objective", "median", "--last", 1)
    outcome = cli(*words(place, tmp_path / "out", trials=2, batch=2), *more, seeds=1)
    assert outcome.code == 0
    (final,) = (tmp_path / "out").glob("final-*")
    run = eqprop.load(final)
    assert (len(run.members), run.epoch) == (3, 4)
    assert "over 3 network(s)" in outcome.out


@pytest.mark.slow
@pytest.mark.parametrize("pruner", ["halving", "hyperband", "none"])
def test_every_pruner_prunes_or_not(cli: Cli, place: Path, tmp_path: Path, pruner: str) -> None:
    out = tmp_path / "out"
    outcome = cli(*words(place, out, trials=8, batch=8), "--pruner", pruner, seeds=1)
    assert outcome.code == 0, outcome
    states = [trial.state.name for trial in trials_of(out)]
    assert len(states) == 8
    assert ("PRUNED" in states) == (pruner != "none")


@pytest.mark.slow
def test_show_prints_the_best_and_draws(searched: tuple[Path, str], cli: Cli) -> None:
    out, _ = searched
    style = dict(pyplot().rcParams)
    shown = cli("show", out)
    assert shown.code == 0, shown
    assert dict(pyplot().rcParams) == style  # that of the user's other figures
    complete = [t for t in trials_of(out) if t.state.name == "COMPLETE"]
    ranked = [t.number for t in sorted(complete, key=lambda trial: trial.value)][:10]
    printed = re.findall(r"^ +(\d+) +[\d.]+ %", shown.out, re.MULTILINE)
    assert [*map(int, printed)] == ranked
    assert f"{len(trials_of(out))} trials: {len(complete)} complete" in shown.out
    assert f"trial {ranked[0]} on the whole training set: test error" in shown.out
    for name in ("history", "importances"):
        assert (out / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    try:
        import scipy  # noqa: F401
    except ImportError:
        assert "no contour: it needs SciPy" in shown.out
    else:
        assert (out / "contour.png").read_bytes().startswith(b"\x89PNG")


def test_a_setting_that_diverges_counts_as_all_wrong(cli: Cli, place: Path, tmp_path: Path) -> None:
    space, out = tmp_path / "space.toml", tmp_path / "out"
    space.write_text("learning_rates = [[0.05, 0.05], [1e38, 1e38]]")
    line = ["search", place / "mine.toml", "--space", space, "--data", place]
    assert cli(*line, "--out", out, "--trials", 6, "--batch", 6).code == 0
    values = {t.params["update.learning_rates"]: t.value for t in trials_of(out)}
    assert values["[1e+38, 1e+38]"] == 100
    assert values["[0.05, 0.05]"] < 80


def test_settings_that_do_not_go_together_fail_and_count(
    cli: Cli, place: Path, tmp_path: Path
) -> None:
    space, out = tmp_path / "space.toml", tmp_path / "out"
    space.write_text('time = ["discrete", "real-time"]\nrelaxation = [1.0, 1.2]')
    line = ["search", place / "mine.toml", "--space", space, "--data", place]
    outcome = cli(*line, "--out", out, "--trials", 6, "--batch", 3)
    assert outcome.code == 0, outcome
    failed = {t.state.name == "FAIL" for t in trials_of(out)}
    assert failed == {True, False}
    for trial in trials_of(out):
        time, omega = (trial.params[f"network.{name}"] for name in ("time", "relaxation"))
        apart = time == "real-time" and omega != 1
        assert trial.state.name == ("FAIL" if apart else "COMPLETE")
    assert len(trials_of(out)) == 6
    said = r"trial \d could not be trained: .*real-time does not use relaxation"
    assert re.search(said, outcome.out)


@pytest.mark.parametrize(
    ("more", "fields", "message"),
    [
        ((), {"validation": "none"}, "data.validation is missing"),
        ((), {"beta": "0.1,0.2"}, "mine: nudging.beta has several values"),
        (("--trials", 0), {}, "--trials must be 1 or more, not 0"),
        (("--batch", 0), {}, "--batch must be 1 or more, not 0"),
        (("--last", 0), {}, "--last must be 1 or more, not 0"),
        (("--sampler-seed", -1), {}, "--sampler-seed must lie in 0 to"),
        (("--final-seeds", 0), {}, "seeds must be"),
        (("--space", "nowhere"), {}, "space 'nowhere' is neither a known name nor a .toml file"),
    ],
)
def test_mistakes_are_answered_in_one_line(
    cli: Cli, place: Path, tmp_path: Path, more: tuple[Any], fields: dict[str, Any], message: str
) -> None:
    assert message in cli(*words(place, tmp_path / "out"), *more, **fields).error
    assert not (tmp_path / "out").exists()


def test_another_search_is_refused_in_its_folder(
    searched: tuple[Path, str], cli: Cli, place: Path, tmp_path: Path
) -> None:
    line = words(place, searched[0], trials=16)
    before = described(searched[0])
    assert "(it differs in rule.nudged_steps)" in cli(*line, nudged_steps=5).error
    assert "(it differs in epochs)" in cli(*line, epochs=5).error
    assert "(it differs in objective, pruner)" in cli(*line, "--last", 1, "--pruner", "none").error
    (tmp_path / "space.toml").write_text("beta = [0.1, 0.2]")
    assert "(it differs in space)" in cli(*line, "--space", tmp_path / "space.toml").error
    assert described(searched[0]) == before
    assert "is not empty and not a search" in cli(*words(place, place)).error
    assert "not the folder of a run" in cli("show", place).error


def test_without_optuna_both_commands_say_what_to_install(
    searched: tuple[Path, str], cli: Cli, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    needs = "a search needs Optuna: pip install 'eqprop[search]'"
    assert cli(*words(place, searched[0])).error == needs
    assert cli("show", searched[0]).error == needs


@pytest.mark.slow
def test_the_command_line_does_not_import_optuna() -> None:
    script = "import sys, eqprop.cli; eqprop.cli._parser(); sys.exit('optuna' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], timeout=60).returncode == 0


# Killed, stopped, shared

LONGER = {"epochs": 6, "free_steps": 60, "layers": f"{SIDE * SIDE},64,{CLASSES}", "seeds": 4}


@pytest.fixture(scope="module")
def straight(cli: Cli, place: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A longer search that nothing happens to."""
    out = tmp_path_factory.mktemp("straight") / "search"
    assert cli(*words(place, out), "--threads", 1, **LONGER).code == 0
    return out


def wait_for(done: Callable[[], bool], process: Command) -> None:
    for _ in range(6000):
        if done():
            return
        assert process.poll() is None, process.communicate()
        time.sleep(0.005)
    raise AssertionError("nothing happens")


def epochs_done(out: Path) -> int:
    return sum(len(log.read_bytes().splitlines()) for log in out.glob("runs/*/metrics.jsonl"))


def assert_same_runs(out: Path, straight: Path) -> None:
    logs = {log.parent.name: log.read_bytes() for log in out.glob("runs/*/metrics.jsonl")}
    assert logs == {
        log.parent.name: log.read_bytes() for log in straight.glob("runs/*/metrics.jsonl")
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "moments"), [(signal.SIGKILL, (2, 9)), (signal.SIGINT, (3,))], ids=["kill", "Ctrl-C"]
)
def test_a_search_that_is_killed_or_stopped_goes_on_as_if_it_had_not_been(
    cli: Cli,
    fork: Callable[..., Command],
    place: Path,
    straight: Path,
    tmp_path: Path,
    number: signal.Signals,
    moments: tuple[int, ...],
) -> None:
    """At moments that are counted in epochs."""
    out = tmp_path / "a search"
    line, fields = [*words(place, out), "--threads", 1], LONGER
    for epochs in moments:
        process = fork(*line, **fields)
        wait_for(lambda epochs=epochs: epochs_done(out) >= epochs, process)
        process.send_signal(number)
        printed, complaints = process.communicate(timeout=60)
        assert process.returncode == (130 if number == signal.SIGINT else -number), complaints
        if number == signal.SIGINT:
            assert "stopped; what is done is kept. To go on: eqprop search" in printed
            line, fields = shlex.split(printed.partition("To go on: eqprop ")[2]), {}
    assert [trial for trial in trials_of(out) if not trial.state.is_finished()]
    assert cli(*line, **fields).code == 0
    assert described(out) == described(straight)
    assert_same_runs(out, straight)
    assert (out / "best.toml").read_bytes() == (straight / "best.toml").read_bytes()


@pytest.mark.slow
def test_two_processes_share_one_journal(
    fork: Callable[..., Command], place: Path, tmp_path: Path
) -> None:
    out = tmp_path / "search"
    line = [*words(place, out, trials=12, batch=3), "--threads", 1, "--pruner", "none"]
    processes = [fork(*line, **LONGER | {"epochs": 15}) for _ in range(2)]
    printed = [process.communicate(timeout=120) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], printed
    trials = trials_of(out)
    assert [trial.number for trial in trials] == [*range(12)]
    assert all(trial.state.is_finished() for trial in trials)
    assert not [trial for trial in trials if "invalid" in trial.user_attrs]
    # Each group was trained in one session of one process, and both had some.
    workers = [(folder / ".lock").read_text() for folder in out.glob("runs/*")]
    assert len({*workers}) == 2
    for folder in out.glob("runs/*"):
        assert len(json.loads((folder / "run.json").read_text())["sessions"]) == 1
    assert len([*out.glob("final-*")]) == 1
    assert sum(text.count("test error") for text, _ in printed) >= 1


def test_a_trial_that_was_half_proposed_is_replaced(cli: Cli, place: Path, tmp_path: Path) -> None:
    """As a process leaves it that is killed while it asks Optuna."""
    out = tmp_path / "search"
    assert cli(*words(place, out, trials=2, batch=2), seeds=1).code == 0
    study = Trials(SearchFolder(out)).study
    study.ask({"nudging.beta": optuna.distributions.FloatDistribution(0.1, 1.0, log=True)})
    assert cli(*words(place, out, trials=4, batch=2), seeds=1).code == 0
    states = [trial.state.name for trial in study.get_trials()]
    assert states[2] == "FAIL"
    assert len(states) == 5
    assert len([state for state in states if state in ("COMPLETE", "PRUNED")]) == 4


def test_a_line_that_was_cut_off_is_dropped_and_a_damaged_journal_named(
    cli: Cli, place: Path, tmp_path: Path
) -> None:
    out = tmp_path / "search"
    line = [*words(place, out, trials=2, batch=2)]
    assert cli(*line, seeds=1).code == 0
    journal, before = out / "journal.log", described(out)
    whole = journal.read_bytes()
    journal.write_bytes(whole + whole.splitlines()[-1][:20])
    assert cli(*line, seeds=1).code == 0
    assert described(out) == before
    assert journal.read_bytes().startswith(whole)
    journal.write_bytes(whole[:200] + b"\n" + whole[200:])
    error = cli("show", out).error
    assert error.startswith(f"{journal}: damaged (")
    assert error.endswith("put it back, or choose another --out")


def test_a_folder_without_a_plan_has_not_begun(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "journal.log").touch()
    assert cli("show", tmp_path).error == f"{tmp_path}: the search has not begun yet"


def test_the_command_to_go_on_is_complete() -> None:
    from eqprop.cli import _parser

    line = [
        *("search", "c-ep-1h", "--space", "my space.toml", "--trials", "9", "--set", "epochs=2"),
        *("--set", "data.validation=10", "--final-seeds", "3", "--device", "cuda"),
    ]
    options = _parser().parse_args(line)
    command = shlex.split(_command(options, SearchFolder("runs/x")))
    again = _parser().parse_args(command[1:])
    assert vars(again) == vars(options) | {"out": "runs/x"}

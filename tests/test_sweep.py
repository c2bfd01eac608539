"""Sweeps: what a file asks for, who trains it, what survives, and the table.

Oracle: the same recipes, each trained alone and undisturbed.
"""

import io
import json
import os
import random
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import eqprop
from eqprop.cli import main
from eqprop.measured import Measured
from eqprop.runs import Recipe
from eqprop.runs import recipe as recipes
from eqprop.runs.folder import RunFolder
from eqprop.runs.lock import held
from eqprop.sweeps import cluster, estimate, plan, worker
from eqprop.sweeps.board import Board
from eqprop.sweeps.file import read
from eqprop.sweeps.table import RESULTS, Table, collect
from eqprop.sweeps.tasks import pack
from eqprop.sweeps.worker import Ended, Job, State
from tests.commands import Command
from tests.faults import make_workplace

ROOT = Path(__file__).parent.parent
Cli = Callable[..., Any]
Sweep = Callable[..., Command]
GRID = """
recipe = "digits.toml"
seeds = 2

[set]
epochs = 2

[grid]
nudging.beta = [0.3, 0.5]
network.layers = [[49, 8, 10], [49, 6, 10]]
"""
LONG = """
recipe = "digits.toml"

[[run]]
epochs = 2

[[run]]
rule.free_steps = 2000
epochs = 20
"""
QUICK, SLOW = "1-digits", "2-digits"  # the tasks of LONG; the second takes seconds


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small data set and a recipe for it."""
    folder = tmp_path_factory.mktemp("sweep") / "work"
    make_workplace(folder, random.Random(0))
    (folder / "recipe.toml").rename(folder / "digits.toml")
    return folder


@pytest.fixture
def place(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the recipe, from which every process finds the data."""
    monkeypatch.setenv("EQPROP_DATA", str(data / "data"))
    shutil.copy(data / "digits.toml", tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(place: Path, content: str, name: str = "sweep.toml") -> Path:
    file = place / name
    file.write_text(content)
    return file


def parameters(folder: Path) -> dict[str, bytes]:
    """The trained networks, to the byte."""
    net = RunFolder(folder).checkpoint().net
    return {name: p.detach().numpy().tobytes() for name, p in net.state_dict().items()}


def assert_same_run(ours: Path, theirs: Path) -> None:
    assert (ours / "metrics.jsonl").read_bytes() == (theirs / "metrics.jsonl").read_bytes()
    assert parameters(ours) == parameters(theirs)


def sessions(folder: Path) -> list[dict[str, Any]]:
    return list(json.loads((folder / "run.json").read_text())["sessions"])


# The file


def test_a_grid_is_every_combination_and_lists_stay_in_the_recipe(place: Path) -> None:
    found = read(write(place, GRID))
    assert [recipe.network.layers for recipe in found] == [(49, 8, 10), (49, 6, 10)]
    assert [recipe.nudging.beta for recipe in found] == [(0.3, 0.5)] * 2
    assert {(recipe.epochs, recipe.seeds) for recipe in found} == {(2, 2)}


def test_fields_may_be_flat_quoted_or_in_tables(place: Path) -> None:
    forms = (
        "[grid]\nrule.free_steps = [6, 7]",
        '[grid]\n"rule.free_steps" = [6, 7]',
        "[grid.rule]\nfree_steps = [6, 7]",
        "[grid]\nfree_steps = [6, 7]",
    )
    for form in forms:
        found = read(write(place, f'recipe = "digits.toml"\n{form}\n'))
        assert [recipe.rule.free_steps for recipe in found] == [6, 7]


def test_a_list_replaces_fields_of_each_run(place: Path) -> None:
    text = """
    recipe = "digits.toml"
    seeds = 3
    [[run]]
    beta = 0.2
    [[run]]
    recipe = "c-vf-1h"
    network.angle = [0, 45]
    seeds = 1
    """
    first, second = read(write(place, text))
    assert (first.name, first.nudging.beta, first.seeds) == ("digits", 0.2, 3)
    assert (second.name, second.network.angle, second.seeds) == ("c-vf-1h", (0.0, 45.0), 1)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("recipe = 3\n[grid]\nbeta=[1]", 'grid: needs recipe = "NAME"'),
        ("recipe = 'c-ep-1g'\n[grid]\nbeta=[1]", "did you mean c-ep-1h?"),
        ("recipe = 'ep-1h'", "give either a [grid] or [[run]] tables"),
        ("recipe = 'ep-1h'\n[grid]\n[[run]]", "give either a [grid] or [[run]] tables"),
        ("recipe = 'ep-1h'\nepochs = 3\n[grid]", "unknown field 'epochs': a sweep has recipe"),
        ("recipe = 'ep-1h'\ngrid = 3", "grid must be a table: write [grid]"),
        ("run = 3", "run must be a list of tables: write [[run]] above each"),
        ("recipe = 'ep-1h'\n[grid]\nbeta=0.1", "nudging.beta must be a list of values, not 0.1"),
        ("recipe = 'ep-1h'\n[grid]\nbeta=[]", "nudging.beta must be a list of values, not []"),
        ("recipe = 'ep-1h'\n[grid]\nbeta=[1, 1]", "nudging.beta names 1 twice: leave one out"),
        ("recipe = 'ep-1h'\n[grid]\nbetta=[1]", "unknown field 'betta': did you mean beta?"),
        ("recipe = 'ep-1h'\n[grid]\nlearning_rates=[1, 2]", "must be a list of lists"),
        ("recipe = 'ep-1h'\n[grid]\nfree_steps=[5, 'x']", "rule.free_steps must be an integer"),
        ("recipe = 'ep-1h'\n[set]\nbeta=1\n[grid]\nbeta=[1]", "keep one of both"),
        ("recipe = 'ep-1h'\nseeds=2\n[set]\nseeds=3\n[grid]", "seeds is given twice"),
        ("recipe = 'ep-1h'\nseeds=0\n[grid]", "seeds"),
        ("recipe = 'ep-1h'\n[[run]]\n[[run]]", "asks twice for learning_rates"),
        ("recipe = [", "not valid TOML"),
    ],
)
def test_a_mistake_in_the_file_is_one_line(content: str, said: str, place: Path, cli: Cli) -> None:
    assert said in cli("sweep", write(place, content), "--dry-run").error


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "FILE is missing"),
        (("nothing.toml",), "nothing.toml: no such file"),
        (("sweep.toml", "--jobs", 0), "--jobs must be 1 or more, not 0"),
        (("sweep.toml", "--pack", 0), "--pack must be 1 or more, not 0"),
        (("sweep.toml", "--retries", -1), "--retries must be 0 or more"),
        (("sweep.toml", "--task", 9), "--task must be 1 to 2"),
        (("sweep.toml", "--address", "x"), "--address is of a Ray cluster: add --on ray"),
        (("sweep.toml", "--on", "ray", "--jobs", 2), "--jobs is for --on local"),
        (("sweep.toml", "--table", "x"), "--table needs no FILE"),
        (("--table", "nowhere"), "nowhere: no such folder"),
        (("--table", "."), ".: no run folder below it has a complete epoch yet"),
        (("sweep.toml", "--out", "sweep.toml"), "sweep.toml: is a file: choose another --out"),
    ],
)
def test_a_mistake_on_the_command_line_is_one_line(
    words: tuple[Any, ...], said: str, place: Path, cli: Cli
) -> None:
    write(place, GRID)
    assert said in cli("sweep", *words).error


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_said(place: Path, cli: Cli) -> None:
    said = cli("sweep", write(place, GRID), "--device", "cuda").error
    assert "PyTorch sees no GPU here" in said


# Packing


def networks(asked: list[Recipe]) -> list[tuple[Any, ...]]:
    """What tells each network of some recipes from all others, in order."""
    alike = ("nudging.beta", "network.angle", "update.learning_rates", "seed", "seeds")
    return sorted(
        (repr({k: v for k, v in recipe.values().items() if k not in alike}), repr(member))
        for recipe in asked
        for member in recipe.members()
    )


@pytest.mark.parametrize("limit", [None, 1, 2, 3, 4, 5, 7, 12, 100])
def test_packing_keeps_every_network_once(limit: int | None, place: Path) -> None:
    text = GRID.replace("[grid]", "[grid]\nlearning_rates = [[0.1, 0.2], [0.3, 0.4], [0.5, 0.6]]")
    asked = read(write(place, text))
    tasks = pack(asked, limit)
    assert networks([task.recipe for task in tasks]) == networks(asked)
    assert len({task.name for task in tasks}) == len(tasks)
    if limit is None:
        assert [task.networks for task in tasks] == [12, 12]  # one ensemble per shape
    else:
        assert max(task.networks for task in tasks) <= limit
    if limit in (1, 2, 4, 12):  # which divide it, so that parts are full
        assert {task.networks for task in tasks} == {limit}


POINTS = st.tuples(
    st.sampled_from([0.1, 0.2, 0.3]), st.sampled_from([0.0, 45.0]), st.integers(0, 4)
)


@given(st.lists(POINTS, min_size=1, max_size=12, unique=True), st.sampled_from([None, 1, 3]))
def test_any_list_of_runs_is_packed_into_products_that_cover_it(
    points: list[tuple[float, float, int]], limit: int | None
) -> None:
    base = {"seeds": 1, "layers": [9, 4, 10], "epochs": 1}
    asked = [
        recipes.load("c-vf-1h", {**base, "beta": beta, "angle": angle, "seed": seed})
        for beta, angle, seed in points
    ]
    tasks = pack(asked, limit)
    assert networks([task.recipe for task in tasks]) == networks(asked)
    assert len(tasks) <= len(asked)


def test_runs_that_differ_in_values_of_members_alone_are_one_task(place: Path) -> None:
    text = 'recipe = "digits.toml"\n' + "".join(
        f"[[run]]\nbeta = {beta}\nseed = {seed}\nseeds = 2\n"
        for beta in (0.1, 0.2)
        for seed in (0, 2)
    )
    (task,) = pack(read(write(place, text)))
    assert (task.recipe.nudging.beta, task.recipe.seed, task.recipe.seeds) == ((0.1, 0.2), 0, 4)


def test_none_in_a_file_unsets_an_optional_field(place: Path) -> None:
    text = 'recipe = "mnist-conv"\n[[run]]\nupdate.schedule = "none"\n'
    (recipe,) = read(write(place, text))
    assert recipe.update.schedule is None
    assert recipes.load("mnist-conv").update.schedule == "cosine"


def test_seeds_that_are_not_consecutive_are_tasks_of_their_own(place: Path) -> None:
    text = 'recipe = "digits.toml"\nseeds = 2\n[grid]\nseed = [0, 2, 7]\n'
    tasks = pack(read(write(place, text)))
    assert [(task.recipe.seed, task.recipe.seeds) for task in tasks] == [(0, 4), (7, 2)]


def test_labels_say_what_tells_tasks_apart(place: Path) -> None:
    tasks = pack(read(write(place, GRID)), 2)
    assert [task.label for task in tasks] == [
        f"layers [49, {n}, 10], beta {beta}" for n in (8, 6) for beta in (0.3, 0.5)
    ]


def test_the_full_table_is_a_task_per_row() -> None:
    """As docs/sweeps.md counts it."""
    tasks = pack(read(ROOT / "examples" / "full-table.toml"), 100)
    assert [task.networks for task in tasks] == [100] * 23
    assert sum("-1h" in task.name for task in tasks) == 12
    assert sum("-2h" in task.name for task in tasks) == 11


@pytest.mark.parametrize("number", [0, 1])
def test_the_examples_of_the_document_are_sweeps(number: int, place: Path) -> None:
    blocks = re.findall(r"```toml\n(.*?)```", (ROOT / "docs" / "sweeps.md").read_text(), re.DOTALL)
    tasks = pack(read(write(place, blocks[number])))
    assert [task.networks for task in tasks] == [[6, 6], [5, 15]][number]


# The table


@pytest.fixture(scope="module")
def swept(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished sweep: GRID, four networks per task."""
    folder = tmp_path_factory.mktemp("swept")
    shutil.copy(data / "digits.toml", folder)
    file = write(folder, GRID)
    words = ["sweep", file, "--out", folder / "out", "--data", data / "data"]
    command = [sys.executable, "-m", "eqprop", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done
    assert done.stderr == ""
    (folder / "said.txt").write_text(done.stdout)
    return folder / "out"


@pytest.mark.slow
def test_packed_networks_are_those_trained_alone(swept: Path, place: Path) -> None:
    """To the byte: whatever their neighbours, tasks and processes were."""
    table = collect(swept)
    assert len(table.rows) == 8
    for row in table.rows:
        overrides = {
            "epochs": 2,
            "seeds": 1,
            "seed": row["seed"],
            "nudging.beta": row["nudging.beta"],
            "network.layers": row["network.layers"],
        }
        alone = eqprop.train("digits.toml", overrides=overrides)
        run = eqprop.load(swept / row["folder"])
        (member,) = [
            i
            for i, it in enumerate(run.members)
            if (it.seed, it.beta) == (row["seed"], row["nudging.beta"])
        ]
        for name, ours in run.net.state_dict().items():
            assert torch.equal(ours[member], alone.net.state_dict()[name][0])
        (theirs,) = alone.summary["members"]
        for key in ("final_train_error", "final_test_error", "best_test_error", "best_epoch"):
            assert row[key] == theirs[key]
        assert row["best_train_error"] == min(it["train_error"][0] for it in alone.metrics)
        assert row["last_ten_test_error"] == theirs["last_ten_test_error"]


def test_a_row_says_where_its_numbers_are_from(swept: Path) -> None:
    for row in collect(swept).rows:
        run = RunFolder(swept / row["folder"])
        facts = sessions(run.path)[-1]
        assert row["task"] == run.path.name
        assert row["folder"] == f"tasks/{row['task']}"
        assert row["seconds"] == facts["wall_seconds"]
        assert row["machine"] == facts["machine"]["processor"]
        assert (row["device"], row["engine"]) == ("cpu", facts["engine"])
        assert row["commit"] == facts["commit"]
        assert (row["epochs"], row["complete"], row["non_finite"]) == (2, True, False)
        assert row["update.learning_rates"] == [0.02, 0.01]


def test_the_file_holds_the_derived_rows_once(swept: Path) -> None:
    written = Table.read(swept / "table.parquet").rows
    assert written == collect(swept).rows
    settings = [(json.dumps(r["network.layers"]), r["nudging.beta"], r["seed"]) for r in written]
    assert len(set(settings)) == len(settings) == 8


def test_the_table_of_any_collection_of_runs(swept: Path, place: Path, cli: Cli) -> None:
    """Also of those that no sweep has made."""
    first = sorted((swept / "tasks").iterdir())[0]
    shutil.copytree(first, place / "mine" / "of sweep")
    done = cli("train", "digits.toml", "--epochs", 1, "--out", place / "mine/deep/run", beta=0.1)
    assert done.code == 0
    assert cli("sweep", "--table", place / "mine").out.strip() == f"{place}/mine/table.parquet"
    rows = Table.read(place / "mine" / "table.parquet").rows
    assert {row["folder"] for row in rows} == {"of sweep", "deep/run"}
    assert [row["epochs"] for row in rows] == [1, 1, 2, 2, 2, 2]
    assert {row["nudging.beta"] for row in rows} == {0.1, 0.3, 0.5}


def test_layers_of_several_kinds_are_text(place: Path, tmp_path: Path) -> None:
    layers = [[49, 8, 10], [{"conv": 2, "kernel": 3}, 10]]
    row = dict.fromkeys(RESULTS) | {"seed": 0}
    table = Table([row | {"network.layers": it} for it in layers], tmp_path)
    read_back = Table.read(table.write(tmp_path / "t.parquet")).rows
    assert [json.loads(it["network.layers"]) for it in read_back] == layers


@pytest.mark.slow
def test_a_network_that_became_non_finite_is_marked(place: Path, cli: Cli) -> None:
    text = """
    recipe = "digits.toml"
    seeds = 1
    [set]
    epochs = 1
    network.activation = "identity"
    [[run]]
    learning_rates = [0.02, 0.01]
    [[run]]
    learning_rates = [1e30, 1e30]
    [[run]]
    learning_rates = [1e30, 1e30]
    rule.free_steps = 7
    """
    done = cli("sweep", write(place, text), "--out", "out")
    assert done.code == 3
    rows = Table.read(place / "out" / "table.parquet").rows
    assert [row["non_finite"] for row in rows] == [False, True, True]
    assert [row["final_test_error"] is None for row in rows] == [False, True, True]
    assert all(row["complete"] for row in rows)
    assert "unknown" in done.out


def test_the_summary_is_mean_and_deviation_over_the_seeds(swept: Path, cli: Cli) -> None:
    rows = collect(swept).rows
    out = cli("show", swept)
    assert out.code == 0
    lines = out.out.splitlines()
    assert len(lines) == 1 + 4 + 1
    for i, layers in enumerate(([49, 8, 10], [49, 6, 10])):
        for j, beta in enumerate((0.3, 0.5)):
            chosen = [
                row["final_test_error"]
                for row in rows
                if (row["network.layers"], row["nudging.beta"]) == (layers, beta)
            ]
            line = lines[1 + 2 * i + j]
            assert line.startswith(f"layers ({', '.join(map(str, layers))}), beta {beta} ")
            assert f" {Measured.of(chosen)} %" in line
    assert lines[-1] == f"{swept}/errors.png"
    assert (swept / "errors.png").read_bytes().startswith(b"\x89PNG")


def test_compare_reads_sweeps_and_tables(swept: Path, place: Path, cli: Cli) -> None:
    one = next((swept / "tasks").iterdir())
    out = cli("compare", swept, swept / "table.parquet", one, "--out", place / "c.png")
    assert out.code == 0
    lines = out.out.splitlines()
    assert len(lines) == 1 + 4 + 4 + 2 + 1
    for of_folder, of_file in zip(lines[1:5], lines[5:9], strict=True):
        assert of_folder.split("beta")[1].split() == of_file.split("beta")[1].split()
    assert (place / "c.png").is_file()
    shutil.copy(swept / "table.parquet", place)  # without its run folders
    out = cli("compare", place / "table.parquet", "--out", place / "d.png")
    assert out.code == 0
    assert out.out.splitlines()[-1] == "no picture: the run folders of the table are not there"


def test_show_and_compare_leave_out_what_is_not_finished(
    swept: Path, place: Path, cli: Cli
) -> None:
    copy = shutil.copytree(swept, place / "copy")
    longer = copy / "tasks" / "1-digits" / "recipe.toml"
    longer.write_text(longer.read_text().replace("epochs = 2", "epochs = 3"))
    shown, compared = cli("show", copy), cli("compare", copy, "--out", place / "c.png")
    assert "not finished, left out: tasks/1-digits" in shown.out
    assert len(shown.out.splitlines()) == 1 + 1 + 2 + 1
    assert f"{copy}, tasks/1-digits" in compared.out
    assert "not finished" in compared.out


@pytest.mark.slow
def test_a_damaged_run_folder_is_left_out_and_mended(swept: Path, place: Path, cli: Cli) -> None:
    """As a worker leaves it that is killed while it writes."""
    copy = shutil.copytree(swept, place / "copy")
    with (copy / "tasks" / "1-digits" / "metrics.jsonl").open("ab") as file:
        file.write(b'{"epoch": 3, "tr')
    for words in (("sweep", "--table"), ("show",)):
        done = cli(*words, copy)
        assert done.code == 0
        assert f"left out: {copy}/tasks/1-digits/metrics.jsonl: damaged or edited" in done.out
    assert {row["task"] for row in Table.read(copy / "table.parquet").rows} == {"2-digits"}
    assert cli("sweep", write(place, GRID), "--out", copy).code == 0
    for name in ("1-digits", "2-digits"):
        assert_same_run(copy / "tasks" / name, swept / "tasks" / name)
    assert len(Table.read(copy / "table.parquet").rows) == 8


@pytest.mark.parametrize("content", [b"PAR1", b""])
def test_a_damaged_table_is_named(content: bytes, place: Path, cli: Cli) -> None:
    file = place / "table.parquet"
    file.write_bytes(content)
    assert cli("compare", file).error.startswith(f"{file}: not a Parquet file")


def test_a_foreign_table_is_refused(place: Path, cli: Cli) -> None:
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.table({"x": [1]}), place / "t.parquet")
    assert "t.parquet: has no column seed: make it with" in cli("show", place / "t.parquet").error


# Without the extras


def test_without_pyarrow_the_tasks_are_trained_and_shown(
    swept: Path, place: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = shutil.copytree(swept, place / "copy")
    (copy / "table.parquet").rename(place / "t.parquet")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    need = "tables as Parquet need pyarrow: pip install 'eqprop[ray]'"
    done = cli("sweep", write(place, GRID), "--out", copy)
    assert (done.code, done.out.splitlines()[-1]) == (0, f"no table: {need}")
    assert cli("show", copy).code == 0
    assert cli("compare", place / "t.parquet").error == need
    assert cli("sweep", "--table", copy).error == need


def test_without_ray_it_is_said(place: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    said = cli("sweep", write(place, GRID), "--on", "ray").error
    assert said == "--on ray needs Ray: pip install 'eqprop[ray]'"


@pytest.mark.slow
def test_the_command_line_loads_neither_ray_nor_pyarrow() -> None:
    code = "import sys, eqprop.cli; print({'ray', 'pyarrow'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


# Arithmetic

CONV = """
recipe = "digits.toml"
seeds = 1
[set]
epochs = 1
network.input = [1, 7, 7]
network.layers = [{conv = 2, kernel = 3, padding = 1, pool = 2}, 10]
nudging.kind = "centred"
[[run]]
rule.free_steps = 7
"""
HOW = ("--precision", "bfloat16", "--tf32")


@pytest.fixture
def in_bfloat16(place: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The task of CONV as `eqprop train` trains it; what that sets in this process is undone."""
    before = torch.get_float32_matmul_precision()
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    (task,) = pack(read(write(place, CONV)))
    (place / "conv.toml").write_text(task.recipe.to_toml())
    assert cli("train", "conv.toml", "--out", "alone", *HOW).code == 0
    torch.set_float32_matmul_precision(before)
    torch.backends.cudnn.allow_tf32 = True
    yield place / "alone"
    torch.set_float32_matmul_precision(before)


def assert_in_bfloat16(out: Path, alone: Path) -> None:
    (folder,) = (out / "tasks").iterdir()
    assert [session["machine"]["precision"] for session in sessions(folder)] == ["bfloat16"]
    assert_same_run(folder, alone)


def test_one_task_has_the_arithmetic_of_train(place: Path, cli: Cli, in_bfloat16: Path) -> None:
    words = ("sweep", write(place, CONV), "--task", 1)
    assert cli(*words, "--out", "plain").code == 0
    assert torch.get_float32_matmul_precision() == "highest"
    assert torch.backends.cudnn.allow_tf32
    assert cli(*words, "--out", "out", *HOW).code == 0
    assert torch.get_float32_matmul_precision() == "high"
    assert not torch.backends.cudnn.allow_tf32
    assert_in_bfloat16(place / "out", in_bfloat16)
    assert parameters(place / "plain" / "tasks" / "1-digits") != parameters(in_bfloat16)


@pytest.mark.slow
def test_processes_have_the_arithmetic_of_train(place: Path, cli: Cli, in_bfloat16: Path) -> None:
    assert cli("sweep", write(place, CONV), "--out", "out", *HOW).code == 0
    assert_in_bfloat16(place / "out", in_bfloat16)


def test_a_plan_measures_with_the_same_arithmetic(
    place: Path, cli: Cli, in_bfloat16: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    used = []
    measured = plan.estimate
    monkeypatch.setattr(plan, "estimate", lambda *it: used.append(it[-1]) or measured(*it))
    assert cli("sweep", write(place, CONV), "--dry-run", *HOW).code == 0
    assert used == [torch.bfloat16]
    assert torch.get_float32_matmul_precision() == "high"


def test_precision_that_no_engine_has_is_one_line(place: Path, cli: Cli) -> None:
    said = cli("sweep", write(place, GRID), "--task", 1, "--precision", "float16").error
    assert said.startswith("1-digits: ")
    assert "precision torch.float16 cannot run" in said


# The plan


def test_the_plan_counts_and_measures(place: Path, cli: Cli) -> None:
    file = write(place, GRID.replace("epochs = 2", "epochs = 50"))
    out = cli("sweep", file, "--dry-run", "--threads", 1)
    assert out.code == 0
    head, *rows = (re.split(r"\s{2,}", line) for line in out.out.splitlines()[:3])
    assert head == ["task", "networks", "parameters", "time", "memory"]
    for row, hidden in zip(rows, (8, 6), strict=True):
        size = 49 * hidden + hidden + hidden * 10 + 10
        assert row[1:3] == ["4", f"{4 * size:,}"]
        assert row[5] == f"layers [49, {hidden}, 10]"
    assert "2 task(s), 8 networks" in out.out
    assert "measured on" in out.out
    assert not (place / "runs").exists()


def test_the_estimate_is_near_what_a_run_takes(place: Path) -> None:
    """Within a factor of three: the machine has other things to do. It has no start-up or files."""
    recipe = recipes.load("digits.toml", {"epochs": 20, "free_steps": 1000})
    data = eqprop.data.load("digits")
    found = plan.estimate(recipe, data, "cpu", 1)
    run = eqprop.train(recipe, threads=1)
    assert run.summary["wall_seconds"] / 3 < found.seconds < 3 * run.summary["wall_seconds"]
    images = sum(s.images.nbytes + s.labels.nbytes for s in (data.train, data.test))
    assert found.bytes > images + 4 * 2 * recipe.network.size


def test_a_slow_recipe_is_measured_by_few_samples(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The memory is that of a whole minibatch; the time is near it."""
    recipe = recipes.load(
        "digits.toml",
        {
            "input": [1, 7, 7],
            "layers": [{"conv": 32, "kernel": 3, "padding": 1, "pool": 2}, 10],
            "free_steps": 100,
            "batch": 100,
            "seeds": 1,
        },
    )
    data = eqprop.data.load("digits")
    whole = plan.estimate(recipe, data, "cpu", 1)
    monkeypatch.setattr(estimate, "SLOW", 0.0)
    few = plan.estimate(recipe, data, "cpu", 1)
    assert few.minibatches == 1 < whole.minibatches
    assert few.bytes == pytest.approx(whole.bytes, rel=0.25)  # at other moments of a step
    # 2 of 100 samples: more time per sample, because small tensors are slow
    assert whole.seconds / 3 < few.seconds < 60 * whole.seconds


def test_tasks_with_other_names_share_an_estimate(
    place: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, measured = [], plan.estimate
    monkeypatch.setattr(plan, "estimate", lambda *it: asked.append(it) or measured(*it))
    text = 'recipe = "digits.toml"\n[[run]]\nname = "a"\n[[run]]\nname = "b"\nbeta = 0.2\n'
    out = cli("sweep", write(place, text), "--dry-run")
    assert out.code == 0
    assert [line.split()[0] for line in out.out.splitlines()[1:3]] == ["1-a", "2-b"]
    assert len(asked) == 1


def test_memory_grows_with_the_networks(place: Path) -> None:
    data = eqprop.data.load("digits")
    few, many = (
        plan.estimate(recipes.load("digits.toml", {"seeds": n}), data, "cpu", 1) for n in (2, 40)
    )
    size = recipes.load("digits.toml").network.size
    assert many.bytes - few.bytes >= 4 * 38 * size


def test_a_plan_survives_rates_that_explode(place: Path, cli: Cli) -> None:
    text = 'recipe="digits.toml"\n' + "".join(
        f'[[run]]\nname="{name}"\nactivation="identity"\nlearning_rates=[{rate}, {rate}]\n'
        for name, rate in (("too-large", 1e30), ("small", 0.01))
    )
    out = cli("sweep", write(place, text), "--dry-run")
    assert out.code == 0
    exploding, other = out.out.splitlines()[1:3]
    assert exploding.endswith("becomes non-finite in its first minibatches")
    assert "non-finite" not in other


def test_tasks_side_by_side_take_as_long_as_the_fullest_place() -> None:
    assert plan._together([4.0, 3.0, 2.0, 1.0], 2) == 5.0
    assert plan._together([4.0, 3.0], 1) == 7.0


# One folder


def test_two_drivers_do_not_share_a_folder(place: Path, cli: Cli) -> None:
    with held(place / "out", "running a sweep in this folder"):
        said = cli("sweep", write(place, GRID), "--out", "out").error
        assert f"another process (pid {os.getpid()}) is running a sweep in this folder" in said
        assert not (place / "out" / "tasks").exists()


def test_the_folder_of_another_sweep_is_refused(swept: Path, place: Path, cli: Cli) -> None:
    copy = shutil.copytree(swept, place / "copy")
    before = (copy / "sweep.toml").read_text()
    other = write(place, GRID.replace("[0.3, 0.5]", "[0.3, 0.6]"))
    said = cli("sweep", other, "--out", copy).error
    assert "tasks/1-digits: holds a run with another recipe (it differs in nudging.beta)" in said
    fewer = write(place, GRID.replace(", [49, 6, 10]", ""))
    assert (
        "holds another sweep (its task 2-digits is not one"
        in cli("sweep", fewer, "--out", copy).error
    )
    assert (copy / "sweep.toml").read_text() == before
    said = cli("sweep", write(place, GRID), "--out", copy / "tasks" / "1-digits").error
    assert "is the folder of a run: choose another --out" in said


@pytest.mark.slow
def test_more_epochs_go_on_from_what_is_there(swept: Path, place: Path, cli: Cli) -> None:
    copy = shutil.copytree(swept, place / "copy")
    longer = write(place, GRID.replace("epochs = 2", "epochs = 3"))
    assert cli("sweep", longer, "--out", copy).code == 0
    for name in ("1-digits", "2-digits"):
        short, long = (it / "tasks" / name / "metrics.jsonl" for it in (swept, copy))
        assert long.read_bytes().startswith(short.read_bytes())
        assert len(long.read_text().splitlines()) == 3


def test_one_task_of_a_job_array(swept: Path, place: Path, cli: Cli) -> None:
    file = write(place, GRID)
    for number in (1, 2):
        done = cli("sweep", file, "--out", "out", "--task", number)
        assert done.code == 0
        assert done.out.splitlines()[-1] == f"{number}-digits: done"
        name = f"tasks/{number}-digits"
        assert_same_run(place / "out" / name, swept / name)
    assert cli("sweep", "--table", "out").code == 0
    ours, theirs = (Table.read(it / "table.parquet").rows for it in (place / "out", swept))
    changing = ("seconds", "commit")
    assert [{k: v for k, v in row.items() if k not in changing} for row in ours] == [
        {k: v for k, v in row.items() if k not in changing} for row in theirs
    ]


@pytest.mark.slow
def test_a_task_that_cannot_run_does_not_stop_the_others(place: Path, cli: Cli) -> None:
    text = 'recipe = "digits.toml"\nseeds = 1\n[grid]\ndata.name = ["nothing", "digits"]\n'
    # EQPROP_DATA names the folder of the files: any name will do but one with files of its own
    (Path(os.environ["EQPROP_DATA"]) / "nothing").mkdir(exist_ok=True)
    done = cli("sweep", write(place, text), "--out", "out")
    assert done.code == 2
    assert re.search(r"^1-digits failed: .*/nothing: .*put them there", done.out, re.MULTILINE)
    (row,) = Table.read(place / "out" / "table.parquet").rows
    assert row["task"] == "2-digits"


def test_a_task_goes_on_where_the_data_lies_elsewhere(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on another machine. That the images are the same is checked by their hashes."""
    first = shutil.copytree(os.environ["EQPROP_DATA"], place / "first")
    recipe = recipes.load("digits.toml", {"epochs": 1})
    job = Job(recipe.to_toml(), str(place / "run"), threads=1)
    monkeypatch.setenv("EQPROP_DATA", str(first))
    assert worker.run(job) == Ended(State.DONE)
    monkeypatch.setenv("EQPROP_DATA", str(first.rename(place / "second")))
    longer = recipes.changed(recipe, {"epochs": 2}).to_toml()
    assert worker.run(replace(job, recipe=longer)) == Ended(State.DONE)
    assert RunFolder(place / "run").glimpse()["epoch"] == 2
    gone = worker.run(replace(job, recipe=longer.replace("epochs = 2", "epochs = 3"), data="gone"))
    assert gone.state is State.FAILED
    assert "gone: no such folder" in gone.message


# Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_the_table_is_written_over(
    swept: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks = pack(read(write(place, GRID)))
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("COLUMNS", "200")
    board = Board(tasks, {t.name: RunFolder(swept / "tasks" / t.name) for t in tasks})
    board.running({"1-digits"})
    first = screen.getvalue()
    assert [line.split()[:3] for line in first.splitlines()[:3]] == [
        ["task", "networks", "state"],
        ["1-digits", "4", "running"],
        ["2-digits", "4", "waiting"],
    ]
    assert "2/2" in first  # the epoch, from the folder
    board.ended("1-digits", Ended(State.FAILED, "no \x1b[31mluck"))
    board.running({"2-digits"})
    second = screen.getvalue().removeprefix(first)
    assert second.startswith(f"\x1b[{len(first.splitlines())}F\x1b[J")
    assert "no \\x1b[31mluck" in second
    assert second.splitlines()[-1] == "1 failed, 1 running"


def test_a_table_longer_than_the_screen_is_cut(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks = pack(read(write(place, GRID)), 1)
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("LINES", "8")
    monkeypatch.setenv("COLUMNS", "40")
    board = Board(tasks, {task.name: RunFolder(place / task.name) for task in tasks})
    board.already("1-digits")
    board.running({"8-digits"})
    lines = screen.getvalue().splitlines()
    assert len(lines) == 6
    assert max(map(len, lines)) <= 39
    assert lines[1].split()[0] == "8-digits"  # what runs comes first
    assert lines[-1] == "1 done, 6 waiting, 1 running"


# Killed and stopped, on this machine


@pytest.fixture(scope="module")
def undisturbed(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tasks of LONG, which nothing happens to."""
    folder = tmp_path_factory.mktemp("undisturbed")
    shutil.copy(data / "digits.toml", folder)
    for task in pack(read(write(folder, LONG))):
        samples = eqprop.data.load("digits", data / "data")
        eqprop.train(task.recipe, samples, folder / task.name, progress=False)
    return folder


def until(happens: Callable[[], object], seconds: float = 150) -> None:
    deadline = time.monotonic() + seconds
    while not happens():
        assert time.monotonic() < deadline, "it does not happen"
        time.sleep(0.02)


def in_the_middle(folder: Path) -> bool:
    """Whether a run has some epochs behind it, some of them saved, and more to come."""
    record = RunFolder(folder).glimpse()
    return bool(record and record["epoch"] >= 3 and (folder / "checkpoints/last.ckpt").is_file())


def holder(folder: Path) -> int:
    """The process that trains in a folder."""
    return int((folder / ".lock").read_text().removeprefix("pid "))


def is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    status = Path(f"/proc/{process}/status")  # where there is one: a zombie does not live
    return not status.exists() or "State:\tZ" not in status.read_text()


def ends(process: Command, code: int) -> str:
    """Wait for a sweep to end with this code. Returns what it said."""
    out, err = process.communicate(timeout=120)
    assert process.returncode == code, (out, err)
    assert err == ""
    return out


def assert_finished(out: Path, undisturbed: Path) -> None:
    """Every task came to what it comes to undisturbed, and its networks are in the table once."""
    for name in (QUICK, SLOW):
        assert_same_run(out / "tasks" / name, undisturbed / name)
    rows = Table.read(out / "table.parquet").rows
    assert [(row["task"], row["seed"]) for row in rows] == [
        (name, seed) for name in (QUICK, SLOW) for seed in (0, 1)
    ]


@pytest.mark.slow
def test_a_killed_worker_is_replaced_by_one_that_goes_on(
    place: Path, undisturbed: Path, fork: Sweep
) -> None:
    out = place / "out"
    sweep = fork("sweep", write(place, LONG), "--out", out)
    until(lambda: in_the_middle(out / "tasks" / SLOW))
    os.kill(holder(out / "tasks" / SLOW), signal.SIGKILL)
    ends(sweep, 0)
    assert_finished(out, undisturbed)
    log = (out / "logs" / f"{SLOW}.txt").read_text()
    assert log.count("epoch 1/20") == 1  # it did not start anew
    assert log.count("epoch 20/20") == 1
    assert len(sessions(out / "tasks" / SLOW)) == 2


@pytest.mark.slow
def test_a_task_whose_workers_are_killed_too_often_fails_alone(
    place: Path, undisturbed: Path, fork: Sweep
) -> None:
    out = place / "out"
    sweep = fork("sweep", write(place, LONG), "--out", out, "--retries", 0)
    until(lambda: in_the_middle(out / "tasks" / SLOW))
    os.kill(holder(out / "tasks" / SLOW), signal.SIGKILL)
    said = ends(sweep, 2)
    assert f"{SLOW} failed: its process was ended by SIGKILL 1 times" in said
    assert_same_run(out / "tasks" / QUICK, undisturbed / QUICK)
    rows = Table.read(out / "table.parquet").rows
    assert {row["task"]: row["complete"] for row in rows} == {QUICK: True, SLOW: False}
    ends(fork("sweep", place / "sweep.toml", "--out", out), 0)
    assert_finished(out, undisturbed)


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_one_task_that_is_stopped_goes_on_with_the_same_command(
    place: Path, undisturbed: Path, fork: Sweep, how: signal.Signals
) -> None:
    words = ("sweep", write(place, LONG), "--out", place / "out", "--task", 2)
    folder = place / "out" / "tasks" / SLOW
    task = fork(*words)
    until(lambda: in_the_middle(folder))
    task.send_signal(how)
    said = ends(task, 130)
    (command,) = re.findall(
        rf"{SLOW}: stopped in epoch \d+ after \d+ minibatches, saved\. To go on: eqprop (.*)", said
    )
    assert shlex.split(command) == [str(word) for word in words]
    assert not RunFolder(folder).finished
    ends(fork(*shlex.split(command)), 0)
    assert len(sessions(folder)) == 2
    assert_same_run(folder, undisturbed / SLOW)


def kill_driver(place: Path, sweep: Command) -> tuple[bytes, int]:
    """Kill a driver while the long task runs. Returns run.json of the other, and the worker."""
    out = place / "out" / "tasks"
    until(lambda: RunFolder(out / QUICK).finished and in_the_middle(out / SLOW))
    sweep.kill()
    sweep.communicate()
    return (out / QUICK / "run.json").read_bytes(), holder(out / SLOW)


@pytest.mark.slow
def test_a_killed_driver_leaves_no_worker_and_is_followed_by_one_that_goes_on(
    place: Path, undisturbed: Path, fork: Sweep
) -> None:
    words = ("sweep", write(place, LONG), "--out", place / "out")
    done, process = kill_driver(place, fork(*words))
    said = ends(fork(*words), 0)  # at once: it waits for what the worker still saves
    assert not is_alive(process)
    assert "1 of 2 tasks are done already" in said
    assert (place / "out" / "tasks" / QUICK / "run.json").read_bytes() == done
    assert_finished(place / "out", undisturbed)


def interrupted(place: Path, sweep: Command) -> list[str]:
    """Press Ctrl-C while the long task runs. Returns the command that goes on."""
    quick, slow = (place / "out" / "tasks" / name for name in (QUICK, SLOW))
    until(lambda: RunFolder(quick).finished and in_the_middle(slow))
    process = holder(slow)
    sweep.send_signal(signal.SIGINT)
    said = ends(sweep, 130)
    assert "stopping after this minibatch; once more to stop at once" in said
    assert RunFolder(slow).checkpoint().epoch >= 3  # saved
    assert not RunFolder(slow).finished
    until(lambda: not is_alive(process), 10)
    (last,) = re.findall(r"stopped, 1 of 2 tasks done. To go on: eqprop (.*)", said)
    assert {row["task"] for row in Table.read(place / "out" / "table.parquet").rows} == {
        QUICK,
        SLOW,
    }
    return shlex.split(last)


@pytest.mark.slow
def test_ctrl_c_saves_and_says_how_to_go_on(place: Path, undisturbed: Path, fork: Sweep) -> None:
    how = ["--precision", "float32", "--tf32"]
    sweep = fork("sweep", write(place, LONG), "--out", place / "out", *how)
    command = interrupted(place, sweep)
    assert command[-3:] == how
    ends(fork(*command), 0)
    assert_finished(place / "out", undisturbed)
    log = (place / "out" / "logs" / f"{SLOW}.txt").read_text()
    assert log.count("epoch 1/20") == 1


@pytest.mark.slow
def test_a_second_ctrl_c_stops_at_once(place: Path, fork: Sweep) -> None:
    sweep = fork("sweep", write(place, LONG.replace("2000", "200000")), "--out", place / "out")
    slow = place / "out" / "tasks" / SLOW
    until(lambda: (slow / "recipe.toml").is_file())
    process = holder(slow)
    for _ in range(2):
        sweep.send_signal(signal.SIGINT)
        time.sleep(0.5)
    said = ends(sweep, 130)
    assert "stopped at once. To go on: eqprop sweep" in said
    assert not is_alive(process)


# On Ray


@pytest.fixture(scope="module")
def ray_settings(data: Path) -> Iterator[Path]:
    """Ray's own files in a folder with a short name, which its sockets need; the data known."""
    if sys.platform != "linux":
        pytest.skip("processes are looked up in /proc")
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory(prefix="r") as own:
        folder = Path(own)
        (folder / "ray").mkdir()
        (folder / "tmp").mkdir()
        patch.setenv("RAY_TMPDIR", own)
        patch.setenv("TMPDIR", str(folder / "tmp"))
        patch.setenv("EQPROP_DATA", str(data / "data"))
        patch.setenv("RAY_worker_niceness", "0")  # its default yields to the other tests
        for name, value in cluster.SETTINGS.items():
            patch.setenv(name, value)
        for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN"):  # a user has none
            patch.delenv(name, raising=False)
        yield folder
        until(lambda: not ray_processes(folder), 30)


def ray_processes(settings: Path) -> list[int]:
    """The processes of Ray that have these settings."""
    marks = (f"RAY_TMPDIR={settings}".encode(), b"raylet", b"gcs_server", b"ray::")
    found = []
    for process in Path("/proc").iterdir():
        try:
            named = (process / "cmdline").read_bytes()
            with_settings = marks[0] in (process / "environ").read_bytes().split(b"\0")
        except (OSError, ValueError):
            continue
        if with_settings and any(mark in named for mark in marks[1:]):
            found.append(int(process.name))
    return found


@pytest.fixture(scope="module")
def ray_cluster(ray_settings: Path) -> Iterator[str]:
    """The address of a real cluster of two nodes with a CPU each."""
    from ray.cluster_utils import Cluster as Nodes

    size = {"num_cpus": 1, "object_store_memory": 80 * 2**20}
    nodes = Nodes(initialize_head=True, head_node_args={**size, "include_dashboard": False})
    try:
        nodes.add_node(**size)
        yield nodes.address
    finally:
        nodes.shutdown()


def on(address: str, place: Path, content: str = LONG) -> tuple[Any, ...]:
    words = ("sweep", write(place, content), "--on", "ray", "--address", address)
    return (*words, "--out", place / "out")


@pytest.mark.slow
def test_ray_replaces_a_killed_worker_by_one_that_goes_on(
    place: Path, undisturbed: Path, ray_cluster: str, spawn: Sweep
) -> None:
    out = place / "out"
    sweep = spawn(*on(ray_cluster, place))
    until(lambda: in_the_middle(out / "tasks" / SLOW))
    process, saved = holder(out / "tasks" / SLOW), RunFolder(out / "tasks" / SLOW).checkpoint()
    os.kill(process, signal.SIGKILL)
    ends(sweep, 0)
    assert_finished(out, undisturbed)
    first, second = sessions(out / "tasks" / SLOW)
    assert saved.epoch >= 1
    assert second["wall_seconds"] > first["wall_seconds"] > 0  # time counts on: it went on


@pytest.mark.slow
def test_ray_stops_at_ctrl_c_and_goes_on(
    place: Path, undisturbed: Path, ray_cluster: str, spawn: Sweep
) -> None:
    command = interrupted(place, spawn(*on(ray_cluster, place)))
    assert command[command.index("--address") + 1] == ray_cluster
    ends(spawn(*command), 0)
    assert_finished(place / "out", undisturbed)
    assert len(sessions(place / "out" / "tasks" / SLOW)) == 2


@pytest.mark.slow
def test_ray_has_the_arithmetic_of_train(
    place: Path, ray_cluster: str, spawn: Sweep, in_bfloat16: Path
) -> None:
    ends(spawn(*on(ray_cluster, place, CONV), *HOW), 0)
    assert_in_bfloat16(place / "out", in_bfloat16)


@pytest.mark.slow
def test_tasks_wait_for_a_gpu_that_ray_does_not_have_yet(
    place: Path, ray_cluster: str, spawn: Sweep
) -> None:
    sweep = spawn(*on(ray_cluster, place), "--device", "cuda")
    line = sweep.stdout.readline()
    assert line == "no machine has 1 CPU(s) and 1 GPU(s): tasks wait until one does\n"
    sweep.send_signal(signal.SIGINT)
    assert "stopped, 0 of 2 tasks done. To go on: eqprop sweep" in ends(sweep, 130)
    assert list((place / "out" / "tasks").iterdir()) == []


@pytest.mark.slow
def test_a_ray_worker_that_does_not_see_the_folder_sends_it(
    place: Path, undisturbed: Path, ray_cluster: str, ray_settings: Path, spawn: Sweep
) -> None:
    """The path leads elsewhere in every process, as on a machine that shares no storage. A killed
    worker's task begins anew, and the folder arrives whole, once.
    """
    words = on(ray_cluster, place)
    sweep = spawn(*words[:-1], Path("/proc/self/cwd/out"))
    slow: list[Path] = []

    def is_half_done() -> bool:
        folders = [it.parent for it in (ray_settings / "tmp").glob("*/run/recipe.toml")]
        try:
            slow[:] = [it for it in folders if RunFolder(it).recipe().epochs == 20]
        except recipes.UserError:  # the quick task is done, and its folder has gone since
            return False
        return bool(slow) and in_the_middle(slow[0])

    until(is_half_done)
    assert not (place / "out" / "tasks" / SLOW).exists()
    os.kill(holder(slow[0]), signal.SIGKILL)
    ends(sweep, 0)
    assert_finished(place / "out", undisturbed)
    assert len(sessions(place / "out" / "tasks" / SLOW)) == 1
    assert list((place / "out" / ".arriving").iterdir()) == []


@pytest.mark.slow
def test_a_killed_driver_takes_its_own_ray_along_and_is_followed_by_one_that_goes_on(
    place: Path, undisturbed: Path, ray_settings: Path, spawn: Sweep
) -> None:
    """Without an address the cluster is the driver's own."""
    before = set(ray_processes(ray_settings))
    words = ("sweep", write(place, LONG), "--on", "ray", "--out", place / "out")
    done, process = kill_driver(place, spawn(*words))
    until(lambda: not set(ray_processes(ray_settings)) - before, 30)
    until(lambda: not is_alive(process), 10)  # one that ends has lost its name already
    said = ends(spawn(*words), 0)
    assert "1 of 2 tasks are done already" in said
    assert (place / "out" / "tasks" / QUICK / "run.json").read_bytes() == done
    assert_finished(place / "out", undisturbed)
    until(lambda: not set(ray_processes(ray_settings)) - before, 30)


@pytest.mark.parametrize("address", ["127.0.0.1:1", "ray://localhost:1", "nowhere.invalid:6379"])
def test_an_address_where_no_cluster_is(address: str, place: Path, cli: Cli) -> None:
    said = cli(*on(address, place)).error
    assert said.startswith(f"--address {address}: no Ray cluster answers (")
    assert said.endswith("start one with `ray start --head`, or leave out --address")


def test_held_out_samples_are_never_called_test_samples(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A table of runs with and without validation keeps the two errors apart."""
    for name, fields in (("tested", {}), ("held", {"data.validation": 10})):
        eqprop.train("digits.toml", None, place / name, 1, 2, progress=False, overrides=fields)
    table = collect(place)
    assert table.measured == {"test", "validation"}
    by_task = {row["task"]: row for row in table.rows}
    assert by_task["held"]["final_test_error"] is None
    assert by_task["tested"]["final_validation_error"] is None
    summary = RunFolder(place / "held").summary()
    known = [row for row in table.rows if row["task"] == "held"]
    wanted = [member["final_validation_error"] for member in summary["members"]]
    assert [row["final_validation_error"] for row in known] == wanted
    file = table.write(place / "table.parquet")
    assert Table.read(file).rows == table.rows
    assert main(["compare", str(file), "--out", str(place / "x.png")]) == 0
    printed = capsys.readouterr().out
    assert "(validation)" in printed
    assert "test error" not in printed

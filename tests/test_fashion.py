"""Oracle: the metrics of the runs. The table of docs/fashion.md, and what it refuses."""

import json
import re
import runpy
import shutil
import statistics
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import eqprop
from eqprop.data import Dataset
from eqprop.papers.continual_ep.published import FULL_TABLE, RESCALED
from eqprop.runs import recipe as recipes
from eqprop.runs.folder import RunFolder
from eqprop.sweeps.file import read
from tests.documents import DOCUMENTS, ROOT
from tests.known_sets import known_set

STORED = ROOT / "results" / "fashion"
RUNS = sorted(file.parent for file in STORED.rglob("recipe.toml"))
DASHES = ["–", "–"]


@pytest.fixture(autouse=True)
def beside(monkeypatch) -> None:
    """Scripts import what lies beside them."""
    monkeypatch.syspath_prepend(ROOT / "examples")


@pytest.fixture
def example() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "examples" / "fashion.py"))


def rows(text: str) -> dict[str, list[str]]:
    """The only table of a text: {name of a row: its other cells}."""
    lines = [line.split("|")[1:-1] for line in text.splitlines() if line.startswith("|")]
    return {name.strip(): [cell.strip() for cell in cells] for name, *cells in lines[2:]}


def stored_copy(folder: Path, name: str = "ep-1h") -> Path:
    return Path(shutil.copytree(STORED / name, folder / name))


def test_the_sweep_has_every_row_of_the_paper_and_changes_only_the_data() -> None:
    networks = {}
    for recipe in read(ROOT / "examples" / "fashion.toml"):
        paper = recipes.load(recipe.name)
        assert set(recipe.differences(paper)) - {"network.angle"} == {"data.name"}
        assert recipe.data.name == "fashion-mnist"
        assert recipe.epochs == paper.epochs
        for member in recipe.members():
            networks.setdefault((recipe.name, member.angle), []).append(member.seed)
    wanted = {(row.recipe, row.angle or 0.0) for row in (*FULL_TABLE, *RESCALED)}
    assert networks == {row: [0, 1, 2, 3, 4] for row in wanted}
    assert len(wanted) == 25


def test_the_table_of_the_page_is_what_the_script_prints(capsys, monkeypatch) -> None:
    monkeypatch.setattr(sys, "argv", ["fashion.py"])
    runpy.run_path(str(ROOT / "examples" / "fashion.py"), run_name="__main__")
    page = DOCUMENTS["docs/fashion.md"].read_text("utf-8")
    marked = page.partition("<!-- python examples/fashion.py -->")[2].partition("<!-- end -->")[0]
    assert marked == f"\n\n{capsys.readouterr().out}\n"


def test_rows_have_the_numbers_of_the_metrics_and_the_others_a_dash(example, tmp_path) -> None:
    folder = stored_copy(tmp_path)
    found = rows(example["table"](tmp_path))
    epochs = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    test, train = epochs[-1]["test_error"], epochs[-1]["train_error"]
    by_network = zip(*(epoch["test_error"] for epoch in epochs[-10:]), strict=True)
    last_ten = [statistics.mean(errors) for errors in by_network]

    def spread(errors: list[float]) -> str:
        return f"{statistics.mean(errors):.2f} ± {statistics.stdev(errors):.2f}"

    final = f"{spread(test)} ({statistics.mean(train):.2f})"
    assert found.pop("EP-1h")[1:] == [final, spread(last_ten)]
    assert len(found) == 24
    assert all(cells[1:] == DASHES for cells in found.values())


def test_the_column_of_mnist_is_that_of_the_results(example, tmp_path) -> None:
    stored_copy(tmp_path)
    page = rows(DOCUMENTS["docs/results.md"].read_text("utf-8"))
    found = rows(example["table"](tmp_path))
    for result in FULL_TABLE:
        assert found[result.name][0] == page[result.name][1]


def network(seed: int, error: float | None) -> dict[str, Any]:
    columns = ("final_test_error", "final_train_error", "last_ten_test_error")
    return {
        "seed": seed,
        "non_finite": error is None,
        "folder": "runs/some",
        **dict.fromkeys(columns, error),
    }


def test_networks_that_became_non_finite_count_as_guessing(example) -> None:
    networks = [network(seed, 10.0 if seed else None) for seed in range(5)]
    cells = example["cells"](example["PAGE"].recipes["ep-1h"], networks)
    assert cells == ("26.00 ± 35.78 (26.00), 1 non-finite", "26.00 ± 35.78")


def test_row_without_all_its_networks_has_a_dash(example) -> None:
    networks = [network(seed, 10.0) for seed in range(4)]
    assert list(example["cells"](example["PAGE"].recipes["ep-1h"], networks)) == DASHES


def test_networks_are_not_counted_twice(example, tmp_path) -> None:
    stored_copy(tmp_path / "a")
    stored_copy(tmp_path / "b")
    with pytest.raises(SystemExit, match=r"a/ep-1h and b/ep-1h hold the same networks: move"):
        example["table"](tmp_path)


def test_run_with_other_settings_is_refused(example, tmp_path) -> None:
    shutil.copytree(ROOT / "results" / "paper" / "runs" / "c-ep-1h", tmp_path / "c-ep-1h")
    said = r"c-ep-1h: its data.name differ from examples/fashion.toml: move it away"
    with pytest.raises(SystemExit, match=said):
        example["table"](tmp_path)


def test_the_page_is_filled_in_on_request(example, tmp_path, monkeypatch, capsys) -> None:
    page = tmp_path / "docs" / "fashion.md"
    page.parent.mkdir()
    start, end = "<!-- python examples/fashion.py -->\n", "<!-- end -->"
    page.write_text(f"before\n{start}| old |\n{end}\nafter\n", "utf-8")
    monkeypatch.setitem(
        example["main"].__globals__, "PAGE", replace(example["PAGE"], root=tmp_path)
    )
    for name in ("examples", "results"):
        (tmp_path / name).symlink_to(ROOT / name)
    monkeypatch.setattr(sys, "argv", ["fashion.py", str(STORED), "--update-docs"])
    example["main"]()
    assert page.read_text("utf-8") == f"before\n{start}\n{capsys.readouterr().out}\n{end}\nafter\n"


@pytest.mark.parametrize("path", RUNS, ids=lambda path: path.name)
def test_stored_runs_are_complete_and_of_the_whole_set(path: Path) -> None:
    assert RunFolder(path).summary()["complete"]  # this verifies the hashes of the metrics
    facts = json.loads((path / "run.json").read_text("utf-8"))
    assert (facts["data"]["name"], facts["data"]["folder"]) == ("fashion-mnist", None)
    assert [facts["data"][split]["images"][0] for split in ("train", "test")] == [60_000, 10_000]
    assert re.fullmatch("[0-9a-f]{40}", facts["sessions"][-1]["commit"])


def section() -> str:
    page = DOCUMENTS["docs/fashion.md"].read_text("utf-8")
    return page.partition("## Brighter images")[2].partition("\n## ")[0]


def test_the_errors_of_smaller_rates_are_those_of_the_run() -> None:
    folder = RunFolder(ROOT / "results" / "fashion-rates-cpu")
    (epoch,), members = folder.metrics(), folder.summary()["members"]
    written = rows(section().partition("In C-EP")[0])
    assert len(written) == 4
    for name, cells in written.items():
        rates = [float(rate) for rate in name.partition(" (")[0].split(", ")]
        chosen = [i for i, member in enumerate(members) if member["learning_rates"] == rates]
        assert len(chosen) == 5
        errors = ([epoch[key][i] for i in chosen] for key in ("test_error", "train_error"))
        assert cells == [f"{statistics.mean(it):.2f} ± {statistics.stdev(it):.2f}" for it in errors]


@pytest.fixture(params=["MNIST", "Fashion-MNIST"])
def images(request) -> tuple[str, Dataset]:
    return request.param, known_set(request.param.lower())


@pytest.mark.slow
def test_the_feedback_through_moving_weights_is_that_of_the_page(images) -> None:
    name, dataset = images
    largest = []
    for k in range(500):
        x, _ = dataset.train.shaped((784,)).batch(torch.arange(20 * k, 20 * k + 20), torch.float64)
        largest.append(float(torch.linalg.eigvalsh((x @ x.T + 1) / 20)[-1]))
    eigenvalue = statistics.mean(largest)
    gains = []
    for recipe in map(recipes.load, ("c-ep-1h", "c-ep-2h")):
        gains.append(recipe.update.learning_rates[0] / recipe.nudging.beta * eigenvalue)
    written = rows(section().partition("In C-EP")[2])[name]
    assert written == [f"{eigenvalue:.1f}", *(f"{gain:.2f}" for gain in gains)]


@pytest.mark.slow
def test_rounding_grows_only_on_fashion_mnist(images) -> None:
    name, dataset = images
    train, found = dataset.train.shaped((784,)), {}
    for dtype in (torch.float64, torch.float32):
        torch.manual_seed(0)
        net = eqprop.layered(784, 512, 10, init="fan_in", dtype=torch.float64).to(dtype)
        rule = eqprop.ContinualEP(beta=0.2, free_steps=40, nudged_steps=15)
        engine = eqprop.make_engine(net, rule, (0.0056, 0.0028))
        for k in range(51):
            engine.step(*train.batch(torch.arange(20 * k, 20 * k + 20), dtype))
        found[dtype] = torch.cat([p.double().flatten() for p in net.parameters()])
    exact = found[torch.float64]
    difference = float((found[torch.float32] - exact).norm() / exact.norm())
    if name == "MNIST":
        assert difference < 1e-6
    else:
        assert 1e-2 < difference < 1

"""The paper's items that come from training: read from run folders, run small, stopped, resumed.

Oracles: run folders written by hand, whose means and spreads are known; for what is trained, the
same run never stopped; for angles, `eqprop check` and the updates of each time step.
"""

import copy
import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from eqprop.analysis import angle, time_resolved
from eqprop.data import Dataset
from eqprop.engines import resolve_rates
from eqprop.measured import Measured
from eqprop.papers.continual_ep import (
    angles,
    curves,
    psi,
    sources,
    speed,
    tables,
    training,
    updates,
)
from eqprop.papers.continual_ep.catalogue import CATALOGUE
from eqprop.papers.continual_ep.psi import BESIDE
from eqprop.papers.continual_ep.published import ANGLES, FIGURE_ANGLES, FULL_TABLE
from eqprop.papers.continual_ep.training import BY_NAME, RUNS
from eqprop.report.blocks import Chart, Table, Text
from eqprop.report.item import Item, Order, Row
from eqprop.report.results import Results
from eqprop.report.verdict import passes
from eqprop.rules import BPTT
from eqprop.runs import recipe as recipes
from eqprop.runs import run as run_module
from eqprop.runs.check import check
from eqprop.runs.folder import RunFolder
from eqprop.runs.progress import Progress
from eqprop.runs.recipe import UserError
from eqprop.runs.training import Interrupted

pytestmark = pytest.mark.slow

MACHINE = {"processor": "a processor", "cores": 2, "device": "cpu"}
RESULTS_TABLE, FULL, RESCALED = tables.ITEMS
C_EP, C_VF_1H, C_VF_2H = curves.ITEMS
(PSI,), (EP_TO_CVF,), (SPEED,) = psi.ITEMS, angles.ITEMS, speed.ITEMS
(UPDATES,) = updates.ITEMS

Test = Callable[[int, Any], float | None]  # error of a member after an epoch


def write(
    results: Results,
    name: str,
    test: Test,
    *,
    quick: bool = False,
    epochs: int | None = None,
    finished: bool = True,
    **fields: Any,
) -> RunFolder:
    """A run folder by hand: train errors are half the test errors, None is a frozen member."""
    recipe = recipes.changed(BY_NAME[name].resolved(quick), fields)
    folder = results.run_folder(name, quick)
    folder.path.mkdir(parents=True)
    folder.recipe_file.write_text(recipe.to_toml())
    members, last, lines = recipe.members(), [], []
    for epoch in range(1, (epochs or recipe.epochs) + 1):
        last = [test(epoch, member) for member in members]
        half = [None if error is None else error / 2 for error in last]
        lines.append(json.dumps({"epoch": epoch, "train_error": half, "test_error": last}))
    (folder.path / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    if finished:
        summary = summary_of(epochs or recipe.epochs, last)
        (folder.path / "summary.json").write_text(json.dumps(summary))
    return folder


def summary_of(epochs: int, last: list[float | None]) -> dict[str, Any]:
    """What a run says at its end, given the errors of its last epoch."""
    keys = ("final_test_error", "final_train_error", "last_ten_test_error")
    gone = [i for i, error in enumerate(last) if error is None]
    return {
        "epochs": epochs,
        "members": [dict.fromkeys(keys, error) for error in last],
        "frozen": [{"member": i, "epoch": 1, "place": "a layer"} for i in gone],
        "wall_seconds": 90.0,
        "machine": MACHINE,
    }


def around(mean: float, spread: float = 0.1) -> Test:
    """Five networks in steps of `spread`, always the same; two are the first of the five."""
    return lambda epoch, member: mean + spread * (member.seed - 2)


def as_published(name: str) -> Test:
    means = {r.angle or 0.0: r.test.mean for r in FULL_TABLE if r.recipe == name}
    return lambda epoch, member: means[member.angle] + 0.01 * (member.seed - 2)


def rows(item: Item, results: Results) -> dict[str, Row]:
    return {row.name: row for row in item.rows(results)}


def only(kind: type, blocks: Iterable[object]) -> list[Any]:
    return [block for block in blocks if isinstance(block, kind)]


@pytest.fixture
def results(tmp_path: Path) -> Results:
    return Results(tmp_path / "results")


# What is run


def test_the_real_runs_are_those_of_the_released_recipes() -> None:
    real = Results(Path(__file__).parents[1] / "results")
    for name in ("ep-1h", "c-ep-1h"):
        folder = real.run_folder(name, quick=False)
        assert folder.recipe() == RUNS[name].resolved(quick=False)
        outcome = training.outcome(RUNS[name], real, quick=False)
        errors, summary = outcome.errors(), folder.summary()
        for found, key in (
            (errors.test, "test_error"),
            (errors.last_ten, "last_ten_test_error"),
            (errors.train, "train_error"),
        ):
            assert found.mean == pytest.approx(summary[key]["mean"])
            assert found.std == pytest.approx(summary[key]["std"])
            assert found.n == 5
        assert rows(FULL, real)[{"ep-1h": "EP-1h", "c-ep-1h": "C-EP-1h"}[name]].passed


@pytest.mark.parametrize("run", RUNS.values(), ids=lambda run: run.name)
def test_a_run_is_its_recipe_but_for_what_its_name_says(run: training.TrainingRun) -> None:
    full, quick = run.resolved(quick=False), run.resolved(quick=True)
    assert full.name == run.name
    recipe = RUNS[run.recipe].resolved(quick=False)
    paths = recipes.PATHS | {"random_sign": "nudging.kind"}
    varied = {paths[field] for field in run.overrides}
    assert set(full.differences(recipe)) <= varied - {"network.angle"}
    assert bool(full.differences(recipe)) == bool(run.label) == (run.name != run.recipe)
    assert run.reading
    assert run.label or run.source is not None  # what is judged has a source
    assert len(full.members()) == (5 if full.network.tied else 45)
    assert len(quick.members()) == (2 if full.network.tied else 6)
    assert (quick.epochs, set(quick.differences(full))) == (
        2,
        {"seeds", "data.train_samples", "data.test_samples"}
        | (set() if full.network.tied else {"network.angle"}),
    )


def test_what_was_found_by_trial_has_no_source() -> None:
    trial = {run.label for run in RUNS.values() if run.source is None}
    assert trial == {"in turn", "random sign", "hard sigmoid"}
    for recipe in ("c-vf-1h", "c-vf-2h"):
        assert RUNS[recipe].source is sources.OWN_SLOPE
        slopes = {
            run.label: run.resolved(quick=False).rule.update_slope
            for run in (RUNS[recipe], *training.variants(recipe))
        }
        assert slopes.pop("") == "own"
        assert slopes.pop("full") == "full"
        assert slopes.pop("older command", "own") == "own"
        assert {"as released", "in turn"} <= set(slopes)
        assert set(slopes.values()) == {"none"}


def test_the_stored_runs_of_the_released_update_are_read(tmp_path: Path) -> None:
    """They were made before recipes had an update_slope."""
    real = Results(Path(__file__).parents[1] / "results")
    for name in ("c-vf-1h-as-released", "c-vf-2h-as-released", "c-vf-1h-in-turn"):
        outcome = training.outcome(RUNS[name], real, quick=False)
        assert outcome is not None
        assert len(outcome.recipe.members()) == 45
        assert outcome.recipe.rule.update_slope == "none"
    stored = real.run_folder("c-vf-1h-as-released", quick=False).recipe_file.read_text()
    assert "update_slope" not in stored


def test_every_published_result_has_a_run_and_every_item_a_name_of_its_own() -> None:
    assert {result.recipe for result in FULL_TABLE} <= set(RUNS)
    names = [item.name for item in CATALOGUE.items]
    assert len(set(names) | set(RUNS)) == len(names) + len(RUNS)
    assert CATALOGUE.find("full-table") is FULL
    assert CATALOGUE.find("c-vf-1h-in-turn") is RUNS["c-vf-1h-in-turn"]
    with pytest.raises(UserError, match=r"'full-tabel' is neither .* did you mean full-table"):
        CATALOGUE.find("full-tabel")
    with pytest.raises(UserError, match="see `eqprop paper list`"):
        CATALOGUE.find("xyz")


# What is read


def test_errors_are_counted_from_the_members_with_that_angle(results: Results) -> None:
    def test(epoch: int, member: Any) -> float:
        return 2 + member.angle + 0.1 * member.seed + (5 if epoch % 2 else 0)

    write(results, "c-vf-1h", test)
    found = training.best(RUNS["c-vf-1h"], results).errors(22.5)
    spread = 0.1 * math.sqrt(2.5)  # of 0, 1, 2, 3, 4
    for errors, mean in ((found.test, 24.7), (found.last_ten, 27.2)):
        assert (errors.mean, errors.std) == (pytest.approx(mean), pytest.approx(spread))
    assert (found.train.mean, found.train.std) == (pytest.approx(12.35), pytest.approx(spread / 2))
    assert (found.test.n, found.non_finite) == (5, 0)
    assert str(found) == "24.70 ± 0.16 (12.35)"
    assert training.best(RUNS["c-vf-1h"], results).errors(33.0) is None


def test_a_frozen_network_counts_as_guessing_and_is_named(results: Results) -> None:
    def test(epoch: int, member: Any) -> float | None:
        return None if member.seed == 3 and epoch > 95 else 2.0

    write(results, "c-ep-1h", test)
    found = training.best(RUNS["c-ep-1h"], results).errors()
    assert found.non_finite == 1
    assert found.test.mean == pytest.approx((4 * 2 + 90) / 5)
    assert found.last_ten.mean == pytest.approx((4 * 2 + (5 * 2 + 5 * 90) / 10) / 5)
    row = rows(FULL, results)["C-EP-1h"]
    assert row.passed is False
    assert "1 of 5 networks became non-finite" in row.note
    assert "counts as guessing" in only(Text, FULL.blocks(results))[0].text


def test_a_run_whose_epochs_are_not_all_there_is_not_complete(results: Results) -> None:
    """Whatever its summary says: else the epochs that are gone would count as guessing."""
    folder = write(results, "c-ep-1h", around(2.0))
    lines = (folder.path / "metrics.jsonl").read_text().splitlines(keepends=True)
    (folder.path / "metrics.jsonl").write_text("".join(lines[:99]))
    assert training.best(RUNS["c-ep-1h"], results) is None
    assert RUNS["c-ep-1h"].progress(results) == (99, 100)


def test_a_run_in_which_all_froze_is_complete_and_guesses_to_its_end(results: Results) -> None:
    write(results, "ep-1h", lambda epoch, m: 3.0 if epoch < 8 else None, epochs=8)
    outcome = training.best(RUNS["ep-1h"], results)
    curve = outcome.curves("test_error")
    assert curve.shape == (30, 5)
    assert curve[:7].unique().tolist() == [3.0]
    assert curve[7:].unique().tolist() == [90.0]
    assert outcome.errors().non_finite == 5


@pytest.mark.parametrize(
    "fields",
    [{"finished": False, "epochs": 20}, {"epochs": 29}, {"beta": 0.2}, {"epochs": 31}],
    ids=["not finished", "short", "another recipe", "long"],
)
def test_what_is_not_the_complete_run_does_not_count(
    fields: dict[str, Any], results: Results
) -> None:
    if fields == {"epochs": 31}:
        fields = {"epochs": None}
        folder = write(results, "ep-1h", around(2.0))
        text = folder.recipe_file.read_text().replace("epochs = 30", "epochs = 31")
        folder.recipe_file.write_text(text)
    else:
        write(results, "ep-1h", around(2.0), **fields)
    assert training.best(RUNS["ep-1h"], results) is None
    row = rows(FULL, results)["EP-1h"]
    assert (row.ours, row.passed) == (None, None)
    if fields.get("finished") is False:
        assert row.note == "at epoch 20 of 30"


# Items


def test_state_is_that_of_the_weakest_run(results: Results) -> None:
    def states() -> tuple[str, bool | None]:
        return C_EP.completeness(results), C_EP.passed(results)

    assert states() == ("missing", None)
    assert C_EP.blocks(results) == ()
    for name in C_EP.runs:
        write(results, name, around(20.0), quick=True)
    assert states() == ("quick", None)
    write(results, "c-ep-1h", as_published("c-ep-1h"))
    write(results, "c-ep-2h", as_published("c-ep-2h"))
    assert states() == ("quick", None)
    write(results, "c-ep-1h-fixed-beta", as_published("c-ep-1h-fixed-beta"))
    assert states() == ("full", True)


def test_a_part_is_shown_while_the_rest_is_missing(results: Results) -> None:
    write(results, "ep-1h", as_published("ep-1h"))
    write(results, "ep-2h", around(9.0), quick=True)
    assert (RESULTS_TABLE.completeness(results), RESULTS_TABLE.passed(results)) == ("missing", None)
    found = rows(RESULTS_TABLE, results)
    known = {"reading": "as released", "source": sources.COMMANDS}
    assert found["EP-1h"] == Row("EP-1h", "2.00 ± 0.13 (0.20)", "2.00 ± 0.02 (1.00)", True, **known)
    assert found["EP-2h"].ours == "8.85 ± 0.07 (4.43)"
    assert found["EP-2h"].passed is None
    assert found["EP-2h"].note == "quick: 2 networks, 2 epochs of 1000 samples"
    assert found["C-EP-1h"] == Row(
        "C-EP-1h",
        "2.28 ± 0.16 (0.41)",
        None,
        None,
        reading="random sign of β, the rest as released",
        source=sources.RANDOM_SIGN,
    )
    (table,) = only(Table, RESULTS_TABLE.blocks(results))
    assert [row[0] for row in table.rows] == ["EP-1h", "EP-2h"]
    assert table.rows[1][2].endswith(" (quick)")


def test_a_run_in_parts_is_read_as_one_and_shown_as_far_as_it_is_there(results: Results) -> None:
    def published(epoch: int, member: Any) -> float | None:
        return (
            None if member.angle == 180.0 and epoch > 3 else as_published("c-vf-2h")(epoch, member)
        )

    run = RUNS["c-vf-2h"]
    first, *others = run.pieces
    write(results, first.name, published)
    assert run.progress(results) == (150, 450)
    assert (RUNS["c-vf-2h"].completeness(results), C_VF_2H.passed(results)) == ("missing", None)
    assert rows(FULL, results)["C-VF-2h, Ψ = 45°"].passed
    assert rows(FULL, results)["C-VF-2h, Ψ = 90°"].ours is None
    assert rows(FULL, results)["C-VF-2h, Ψ = 90°"].note == ""  # its part is not under way
    for name in ("ep-1h", "ep-2h", "c-ep-1h", "c-ep-2h", "c-vf-1h"):
        write(results, name, as_published(name))
    # the main table has Ψ = 0° only
    assert (RESULTS_TABLE.completeness(results), FULL.completeness(results)) == ("full", "missing")
    for piece in others:
        write(results, piece.name, published)
    assert run.progress(results) == (450, 450)
    assert RUNS["c-vf-2h"].completeness(results) == "full"
    joined = training.outcome(run, results, quick=False)
    assert joined is not None
    assert joined.recipe.members() == run.resolved(quick=False).members()
    assert joined.summary["wall_seconds"] == 270.0
    assert [it["member"] for it in joined.summary["frozen"]] == [40, 41, 42, 43, 44]
    gone = joined.errors(180.0)
    assert gone is not None
    assert (gone.non_finite, gone.test.mean) == (5, 90.0)
    assert rows(FULL, results)["C-VF-2h, Ψ = 90°"].passed
    assert joined.curves("test_error", 90.0).shape == (150, 5)
    assert rows(SPEED, results)["C-VF-2h"].note.startswith("networks: 45, 15 at a time, in 4 min")


def test_the_parts_of_a_run_are_trained_one_after_the_other(
    results: Results, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[str] = []

    def train(recipe: Any, *_: Any, **__: Any) -> Any:
        begun.append(recipe.name)
        return SimpleNamespace(summary={"frozen": []})

    monkeypatch.setattr(training.runs, "train", train)
    first, *others = RUNS["c-vf-2h"].pieces
    write(results, first.name, as_published("c-vf-2h"))
    RUNS["c-vf-2h"].run(Order(results, say=lambda line: None))
    assert begun == [piece.name for piece in others]
    begun.clear()
    piece = CATALOGUE.find("c-vf-2h-part-3")
    assert isinstance(piece, training.TrainingRun)
    piece.run(Order(results, say=lambda line: None))
    assert begun == ["c-vf-2h-part-3"]


def test_a_row_that_does_not_pass_notes_every_variant_and_none_makes_it_pass(
    results: Results,
) -> None:
    write(results, "c-vf-1h", around(60.0))
    missed = "the means differ by 57.57, 0.16 allowed (726.5 standard errors)"
    assert rows(FULL, results)["C-VF-1h, Ψ = 0°"].note == missed
    write(results, "c-vf-1h-in-turn", around(2.5))
    write(results, "c-vf-1h-no-bias", around(2.7, spread=0.01))
    found = rows(FULL, results)
    straight, right, reverse = (found[f"C-VF-1h, Ψ = {a}°"] for a in ("0", "90", "180"))
    assert (straight.passed, right.passed, reverse.passed) == (False, False, False)
    assert straight.ours == "60.00 ± 0.16 (30.00)"
    assert straight.note == (
        f"{missed}; in turn: 2.50 ± 0.16 (1.25), agrees; no bias: 2.70 ± 0.02 (1.35), differs"
    )
    assert reverse.note.endswith(
        "in turn: 2.50 ± 0.16 (1.25), differs; no bias: 2.70 ± 0.02 (1.35), differs"
    )
    assert (straight.reading, straight.source) == (RUNS["c-vf-1h"].reading, sources.OWN_SLOPE)
    assert FULL.passed(results) is False
    table, text = FULL.blocks(results)
    assert table.header == ("", "paper", "eqprop", "last ten epochs", "in turn", "no bias")
    assert table.rows[0][2:] == (
        "60.00 ± 0.16 (30.00) ✗",
        "60.00 ± 0.16",
        "2.50 ± 0.16 (1.25), agrees",
        "2.70 ± 0.02 (1.35), differs",
    )
    for words in (
        f"C-VF-1h: {RUNS['c-vf-1h'].reading} ({sources.OWN_SLOPE}).",
        f"`in turn`: {RUNS['c-vf-1h-in-turn'].reading} (found by trial, no source).",
        f"`no bias`: {RUNS['c-vf-1h-no-bias'].reading} ({sources.EQUATIONS}).",
    ):
        assert words in text.text
    assert FULL.completeness(results) == "missing"  # variants do not count


def test_a_last_epoch_that_misses_where_the_last_ten_do_not_is_noted(results: Results) -> None:
    write(results, "ep-1h", lambda epoch, m: 3.0 if epoch == 30 else 1.9 + 0.01 * m.seed)
    row = rows(FULL, results)["EP-1h"]
    assert row.passed is False
    assert row.note == (
        "the means differ by 1.00, 0.15 allowed; "
        "the mean of the last ten epochs passes: 2.03 ± 0.01"
    )


def test_the_full_table_passes_with_the_published_means(results: Results) -> None:
    for name in FULL.runs:
        write(results, name, as_published(name))
    assert (FULL.completeness(results), FULL.passed(results)) == ("full", True)
    assert len(FULL.rows(results)) == 23
    assert [len(table.rows) for table in only(Table, FULL.blocks(results))] == [5, 9, 9]
    assert (RESULTS_TABLE.passed(results), PSI.passed(results), C_EP.passed(results)) == (True,) * 3
    assert len(PSI.rows(results)) == 18


def test_curves_are_means_with_a_band_and_end_at_the_papers_point(results: Results) -> None:
    write(results, "c-vf-1h", lambda epoch, m: 100 / epoch + 0.1 * (m.seed - 2))
    write(results, "c-vf-1h-in-turn", around(3.0), quick=True)
    chart, deviation = only(Chart, C_VF_1H.blocks(results))
    assert [panel.title for panel in chart.panels] == [f"C-VF-1h, Ψ = {a:g}°" for a in ANGLES]
    test, train, paper = chart.panels[3].lines
    assert test.x == tuple(range(1, 101))
    assert test.y == pytest.approx([100 / epoch for epoch in test.x])
    assert train.y == pytest.approx([50 / epoch for epoch in test.x])
    std = 0.1 * math.sqrt(2.5)
    assert test.high == pytest.approx([y + std for y in test.y])
    assert test.low == pytest.approx([y - std for y in test.y])
    assert (paper.x, paper.y, paper.high) == ((100,), (2.48,), (pytest.approx(2.63),))
    assert deviation.name == "curves-c-vf-1h-in-turn"
    assert RUNS["c-vf-1h-in-turn"].reading in deviation.caption
    assert [p.title for p in deviation.panels] == [
        f"C-VF-1h, Ψ = {a}°, quick" for a in ("0", "90", "180")
    ]
    assert all(len(panel.lines) == 2 for panel in deviation.panels)
    assert C_VF_2H.blocks(results) == ()


def test_error_against_psi_draws_every_reading_beside_the_paper(results: Results) -> None:
    write(results, "c-vf-1h", lambda epoch, member: member.angle)
    write(results, "c-vf-1h-in-turn", around(2.5), quick=True)
    (chart,) = only(Chart, PSI.blocks(results))
    (panel,) = chart.panels
    paper, ours, in_turn = panel.lines
    assert [line.label for line in panel.lines] == ["paper", "eqprop", "in turn, quick"]
    assert paper.x == ours.y == ANGLES
    assert ours.x == tuple(angle + BESIDE for angle in ANGLES)
    assert paper.y == tuple(r.test.mean for r in FULL_TABLE if r.recipe == "c-vf-1h")
    assert paper.high[6] == pytest.approx(86.61 + 4.27)
    assert in_turn.x == tuple(angle + 2 * BESIDE for angle in (0.0, 90.0, 180.0))


def test_speed_divides_the_wall_time_by_the_networks(results: Results) -> None:
    write(results, "c-ep-1h", around(2.0))
    write(results, "c-ep-2h", around(2.0), quick=True)
    found = rows(SPEED, results)
    assert found["C-EP-1h"] == Row(
        "C-EP-1h",
        "2 h 39 min a network",
        "18 s a network",
        None,
        "networks: 5, in 1 min 30 s, 2 cores, a processor",
    )
    assert found["C-EP-2h"].paper == "10 h 49 min a network"
    assert found["C-EP-2h"].note.startswith("quick: 2 epochs of 1000 samples; networks: 2, in")
    (table,) = SPEED.blocks(results)
    ratio = f"{(2 * 60 + 39) * 60 / 18:.0f}×"
    assert table.rows == (("C-EP-1h", "5", "1 min 30 s", "18 s", ratio, "2 cores, a processor"),)
    assert speed.clock(0.25) == "0.25 s"


# Which update


def test_updates_are_shown_against_psi_with_c_ep_as_the_line_to_beat(results: Results) -> None:
    assert UPDATES.blocks(results) == ()
    write(results, "c-ep-1h", around(2.3))
    write(results, "c-ep-2h", around(2.4))
    assert UPDATES.blocks(results) == ()  # nothing to beat it with
    write(results, "c-vf-1h", lambda epoch, m: 2.5 if m.angle < 130 else m.angle / 2)
    write(results, "c-vf-1h-in-turn", around(2.6))
    write(results, "c-vf-1h-full", around(20.0), quick=True)
    found = rows(UPDATES, results)
    own = found["C-VF-1h, own: test error (%), best to worst Ψ"]
    assert own.ours == "2.50 to 90.00"
    assert own.note == "worst at Ψ = 180°; C-EP: 2.30 ± 0.16"
    full = found["C-VF-1h, full: test error (%), best to worst Ψ"]
    assert (full.ours, full.note[:15]) == ("19.85 to 19.85", "quick: 3 angles")
    assert found["C-VF-2h, full: test error (%), best to worst Ψ"].ours is None
    assert UPDATES.passed(results) is None
    table, chart = UPDATES.blocks(results)
    assert table.caption.endswith("; C-EP-1h: 2.30 ± 0.16 (1.15)")
    assert table.header == ("Ψ", "none, in turn", "own", "full")
    assert table.rows[8] == (
        "180°",
        "2.60 ± 0.16 (1.30)",
        "90.00 ± 0.00 (45.00)",
        "19.85 ± 0.07 (9.93) (quick)",
    )
    assert table.rows[1][3] == "–"
    (panel,) = chart.panels
    assert [line.label for line in panel.lines] == [
        *("none, in turn", "own", "full, quick", "C-EP, tied")
    ]
    assert panel.lines[1].y == (*[2.5] * 6, 67.5, 78.75, 90.0)
    level = panel.lines[3]
    assert (level.x, level.y) == ((0.0, 180.0), (pytest.approx(2.3), pytest.approx(2.3)))
    assert level.high[0] == pytest.approx(2.3 + 0.1 * math.sqrt(2.5))
    write(results, RUNS["c-vf-2h-full"].pieces[0].name, around(3.0))
    table = UPDATES.blocks(results)[1]
    shown = {row[0]: row[3] for row in table.rows if row[3] != "–"}
    assert shown == dict.fromkeys(("0°", "90°", "180°"), "3.00 ± 0.16 (1.50)")


# Angles before training


@pytest.mark.parametrize("name", ["ep-1h", "c-ep-1h", "c-vf-1h"])
def test_angles_are_those_of_the_check_and_of_the_single_steps(name: str, mnist: Dataset) -> None:
    small = {"layers": (784, 32, 10), "free_steps": 20, "nudged_steps": 6}
    recipe = recipes.changed(RUNS[name].resolved(quick=True), small)
    members = [m for m in recipe.members() if m.angle == (90.0 if name == "c-vf-1h" else 0.0)]
    flat, seen = mnist.shaped((784,)), {}
    train = flat.train

    class Watched(type(train)):  # type: ignore[misc]
        def batch(self, index: torch.Tensor, dtype: torch.dtype) -> Any:
            seen["batch"] = train.batch(index, dtype)
            return seen["batch"]

    watched = Watched(*(getattr(train, field) for field in train.__dataclass_fields__))
    found = angles.before_training(recipe, members, replace(flat, train=watched))
    x, y = seen["batch"]
    for i, member in enumerate(members):
        whole = check(recipe, member, x[i], y[i]).trained.whole
        assert found["text"][i] == pytest.approx(whole, abs=2e-3)
    net = recipe.network.build(members, torch.float64)
    rates = resolve_rates(net, recipe.rates(members), recipe.update.frozen)
    rule = recipe.learning_rule(members)
    ours = time_resolved(net, rule, x, y, learning_rates=rates).synapses
    exact = time_resolved(net, BPTT(free_steps=20, backward_steps=6), x, y).synapses
    moved = copy.deepcopy(net)
    for name, rate in rates.items() if rule.continual else ():
        value = moved.get_parameter(name)
        value.data -= rate.reshape(-1, *[1] * (value.dim() - 1)) * ours[name].sum(0)
    after = time_resolved(moved, BPTT(free_steps=20, backward_steps=6), x, y).synapses
    for key, gradient in (("later", exact), ("code", after)):
        weights = [
            {n: steps[1:].sum(0) for n, steps in process.items() if "bias" not in n}
            for process in (ours, gradient)
        ]
        assert found[key] == pytest.approx(angle(*weights, net.ensemble).tolist(), abs=2e-3)
    assert (found["later"] != found["code"]) == rule.continual


def write_angles(results: Results, of: Mapping[str, Mapping[str, float]], quick: bool) -> None:
    """The same angle for every total, but 10° more after the second phase."""
    stored = {
        run: {
            psi: {t: [a + 10 * (t == "code")] * 2 for t in angles.TOTALS} for psi, a in by.items()
        }
        for run, by in of.items()
    }
    folder = results.folder(quick)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "ep-to-cvf-a.json").write_text(json.dumps({"machine": {}, "angles": stored}))


def test_angles_are_held_against_the_figure_where_the_text_speaks_of_it(results: Results) -> None:
    by_psi = {f"{a:g}": 65 + a / 5 for a in ANGLES}
    measured = {name: {"0": 7.0} for name in EP_TO_CVF.runs} | {"ep-2h": {"0": 12.0}}
    measured |= {"c-ep-2h": {"0": 61.0}, "c-vf-1h": by_psi, "c-vf-2h": by_psi}
    write_angles(results, measured, quick=True)
    assert [row.passed for row in EP_TO_CVF.rows(results)] == [None] * 3
    write_angles(results, measured, quick=False)
    leftmost, deep, rightmost = EP_TO_CVF.rows(results)
    assert (leftmost.name, leftmost.paper) == ("EP-1h", "16.8 ± 2.4°")
    assert (leftmost.ours, leftmost.passed) == ("17.0 ± 0.0°", True)
    assert leftmost.note == (
        "the text: the leftmost point, ∼20°; t = 0 … K−1, all parameters: 7.0 ± 0.0°; "
        "t = 1 … K−1, weights only: 7.0 ± 0.0°"
    )
    assert (deep.name, deep.paper, deep.ours) == ("C-EP-2h", "52.9 ± 6.0°", "71.0 ± 0.0°")
    assert deep.passed is False
    assert (rightmost.name, rightmost.paper) == ("C-VF-1h, Ψ = 180°", "114.3 ± 12.2°")
    assert (rightmost.ours, rightmost.passed) == ("111.0 ± 0.0°", True)
    assert {row.source for row in (leftmost, deep, rightmost)} == {sources.ANGLE_CODE}
    assert EP_TO_CVF.completeness(results) == "missing"  # nothing is trained
    assert EP_TO_CVF.blocks(results) == ()
    for name in EP_TO_CVF.runs:
        write(results, name, as_published(name))
    assert EP_TO_CVF.completeness(results) == "full"
    chart, text, table = EP_TO_CVF.blocks(results)
    near = sum(
        passes(paper, Measured(75 + (psi or 0) / 5 if recipe[:4] == "c-vf" else at[recipe], 0.0, 2))
        for (recipe, psi), paper in FIGURE_ANGLES.items()
        for at in [{"ep-1h": 17.0, "ep-2h": 22.0, "c-ep-1h": 17.0, "c-ep-2h": 71.0}]
    )
    assert text.text.endswith(f"by its rule: the recipes {near} of 22.")
    everything, inset = chart.panels
    paper, *ours = everything.lines
    assert [line.label for line in ours] == [
        *("EP-1h", "EP-2h", "C-EP-1h", "C-EP-2h", "C-VF-1h", "C-VF-2h")
    ]
    assert ours[4].x == pytest.approx([75 + a / 5 for a in ANGLES])
    assert paper.x[4:13] == tuple(FIGURE_ANGLES["c-vf-1h", a].mean for a in ANGLES)
    assert ours[4].y == pytest.approx([r.test.mean for r in FULL_TABLE if r.recipe == "c-vf-1h"])
    assert len(paper.x) == 22
    assert len(inset.lines[5].x) == 5
    assert len(table.rows) == 22
    assert table.rows[0][1:5] == ("16.8 ± 2.4°", "7.0 ± 0.0°", "7.0 ± 0.0°", "17.0 ± 0.0°")


# Running


def contents(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != ".lock")
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


@pytest.mark.usefixtures("small_quick_runs")
def test_every_item_runs_quick_and_a_second_time_changes_nothing(
    mnist: Dataset, results: Results, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(EP_TO_CVF, "runs", ("ep-1h", "c-vf-1h"))  # the others take longer
    said: list[str] = []
    order = Order(results, quick=True, say=said.append)
    trained = (RESULTS_TABLE, FULL, RESCALED, *curves.ITEMS, PSI, UPDATES, EP_TO_CVF, SPEED)
    for item in trained:
        assert item.completeness(results) in ("missing", "quick")
        item.run(order)
        assert (item.completeness(results), item.passed(results)) == ("quick", None)
        assert item.blocks(results) or item is SPEED
    assert len([line for line in said if " networks, 2 epochs, in " in line]) == 13
    for run in RUNS.values():
        there = training.best(run, results) is not None
        assert there == (not run.label or run.name in UPDATES.runs)
    before = contents(results.root)
    said.clear()
    for item in trained:
        item.run(order)
    assert said == []
    assert contents(results.root) == before


@pytest.mark.usefixtures("small_quick_runs")
def test_a_run_that_was_stopped_goes_on_to_the_same_bytes(
    mnist: Dataset, results: Results, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    straight = Results(tmp_path / "straight")
    RUNS["c-vf-1h"].run(Order(straight, quick=True, say=lambda line: None))

    class Stopping(Progress):
        def minibatch(self, at: int, done: int, of: int, train_error: float) -> None:
            self.stop_requested |= (at, done) == (2, of)

    monkeypatch.setattr(run_module, "Progress", Stopping)
    said: list[str] = []
    order = Order(results, quick=True, say=said.append)
    with pytest.raises(Interrupted):
        RUNS["c-vf-1h"].run(order)
    assert said[-1] == "c-vf-1h: stopped in epoch 2, 6 minibatches, saved"
    assert RUNS["c-vf-1h"].completeness(results) == "missing"
    monkeypatch.setattr(run_module, "Progress", Progress)
    RUNS["c-vf-1h"].run(order)
    metrics = [
        r.run_folder("c-vf-1h", quick=True).path / "metrics.jsonl" for r in (results, straight)
    ]
    assert metrics[0].read_bytes() == metrics[1].read_bytes()
    assert RUNS["c-vf-1h"].completeness(results) == "quick"


def test_a_folder_with_another_recipe_is_refused_and_left_alone(results: Results) -> None:
    folder = write(results, "c-ep-1h", around(2.0), beta=0.5, batch=10)
    before = contents(folder.path)
    with pytest.raises(UserError) as caught:
        RUNS["c-ep-1h"].run(Order(results))
    assert str(caught.value) == (
        f"{folder.path}: holds a run with another recipe (it differs in batch, nudging.beta): "
        "move it away, or choose another --results"
    )
    assert contents(folder.path) == before


def test_a_complete_run_is_kept(results: Results) -> None:
    folder = write(results, "c-ep-1h", around(2.0))
    before = contents(folder.path)
    RUNS["c-ep-1h"].run(Order(results))
    assert contents(folder.path) == before

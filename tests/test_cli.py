"""The command line: it teaches, prints what the folder holds, and lets no mistake pass.

Every mistake of a user ends in exit code 2 and one line on stderr that names what is wrong.
"""

import argparse
import gzip
import itertools
import json
import re
import shutil
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib.image
import pytest
import torch

import eqprop.cli
from eqprop import data
from eqprop.data import Dataset
from eqprop.runs import recipe as recipes
from eqprop.runs.folder import RunFolder
from eqprop.runs.progress import Progress

Cli = Callable[..., Any]
COMMANDS = ("recipes", "train", "evaluate", "show", "compare", "check", "tune")
SMALL = {
    "layers": "784,16,10",
    "free_steps": 8,
    "nudged_steps": 4,
    "train_samples": 200,
    "test_samples": 120,
    "seeds": 2,
}


SETTINGS = {"Ψ = 0°": slice(0, 2), "Ψ = 90°": slice(2, 4)}  # those of `run`, and their members
SHIPPED = Path(__file__).parents[1] / "results/paper/runs"


@pytest.fixture(scope="module")
def run(cli: Cli, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of untied networks, so that everything there is to show is shown."""
    out = tmp_path_factory.mktemp("cli") / "run"
    words = ("train", "c-vf-1h", "--engine", "reference", "--epochs", 3, "--out", out)
    assert cli(*words, **SMALL, angle="0,90").code == 0
    return out


@pytest.fixture(scope="module")
def other(cli: Cli, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("cli") / "other"
    assert cli("train", "bptt-1h", "--epochs", 2, "--out", out, **SMALL).code == 0
    return out


def summary_of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "summary.json").read_text())


def metrics_of(folder: Path) -> list[dict[str, Any]]:
    """Without the hashes that chain them."""
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if k != "hash"} for line in lines]


def over_seeds(values: list[float]) -> str:
    return f"{statistics.mean(values):.2f} ± {statistics.stdev(values):.2f} %"


def mean_std(of: dict[str, Any]) -> str:
    return f"{of['mean']:.2f} ± {of['std']:.2f} %"


def assert_drawn(file: Path) -> None:
    pixels = matplotlib.image.imread(file)
    assert min(pixels.shape[:2]) > 300
    assert (pixels[..., :3].max(-1) - pixels[..., :3].min(-1) > 0.1).mean() > 0.001  # in colour


# End to end


@pytest.mark.slow
def test_a_user_trains_on_mnist_from_a_shell(spawn: Cli, tmp_path: Path) -> None:
    """Nothing is patched, nothing is small but the budget: a process of its own, full defaults."""
    out = tmp_path / "run"
    words = ("train", "ep-1h", "--epochs", 1, "--seeds", 1, "--out", out)
    process = spawn(*words, train_samples=2000, learning_rates="0.2,0.1")
    printed, complained = process.communicate(timeout=120)
    assert (process.returncode, complained) == (0, "")
    epoch, result, curves = printed.splitlines()
    assert epoch.startswith("epoch 1/1: train error ")
    (record,) = metrics_of(out)
    assert f"test error {record['test_error'][0]:.2f} %" in epoch
    assert result.startswith(f"test error {record['test_error'][0]:.2f} % over 1 network(s)")
    assert curves == f"curves: {out}/curves.png"
    assert record["test_error"][0] < 33  # 25.5 of all 10 000, after 100 minibatches


@pytest.mark.slow
def test_who_reads_no_further_ends_the_output_without_a_word(spawn: Cli) -> None:
    process = spawn("recipes")
    process.stdout.close()
    assert process.wait(60) == 0
    assert process.stderr.read() == ""
    process.stdout = None


@pytest.mark.slow
def test_a_users_mistake_shows_no_traceback(spawn: Cli, tmp_path: Path) -> None:
    process = spawn("train", "c-ep-1h", "--out", tmp_path / "run", betta=1)
    printed, complained = process.communicate(timeout=60)
    assert process.returncode == 2
    assert printed == ""
    assert complained == ("eqprop: error: c-ep-1h: unknown field 'betta': did you mean beta?\n")
    assert not (tmp_path / "run").exists()


# Help


def test_help_names_every_command_and_where_to_start(cli: Cli) -> None:
    outcome = cli("--help")
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out.startswith("usage: eqprop ")
    for command in COMMANDS:
        assert re.search(rf"^    {command} +\S", outcome.out, re.MULTILINE)
    assert "Start with: eqprop recipes" in outcome.out


def actions(command: str) -> list[argparse.Action]:
    parser = eqprop.cli._parser()
    (choices,) = (a.choices for a in parser._actions if isinstance(a, argparse._SubParsersAction))
    return choices[command]._actions


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_a_command_describes_it_and_every_option(command: str, cli: Cli) -> None:
    outcome = cli(command, "--help")
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out.startswith(f"usage: eqprop {command} ")
    words = " ".join(outcome.out.split())
    for action in actions(command):
        assert action.help
        name = action.option_strings[-1] if action.option_strings else action.metavar
        assert isinstance(name, str)
        assert name in words
        assert " ".join((action.help % {"prog": "eqprop"}).split()) in words


def test_help_of_train_explains_ensembles_and_exit_codes(cli: Cli) -> None:
    words = " ".join(cli("train", "--help").out.split())
    assert "--set angle=0,22.5,45 --seeds 5 trains 15 networks" in words
    for code in (
        "0 done",
        "2 invalid input",
        "3 done but a member became non-finite",
        "130 stopped",
    ):
        assert code in words


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "the following arguments are required: COMMAND"),
        (("learn",), "invalid choice: 'learn'"),
        (("train",), "the following arguments are required: RECIPE"),
        (("train", "ep-1h", "--epochs", "many"), "--epochs: invalid int value: 'many'"),
        (("train", "ep-1h", "--device", "tpu"), "--device: invalid choice: 'tpu'"),
        (("train", "ep-1h", "--engine", "fast"), "--engine: invalid choice: 'fast'"),
        (("train", "ep-1h", "--beta", "3"), "unrecognized arguments: --beta 3"),
        (("compare",), "the following arguments are required: RUN"),
    ],
    ids=str,
)
def test_words_that_make_no_command_are_answered_with_the_usage(
    words: tuple[str, ...], said: str, cli: Cli
) -> None:
    outcome = cli(*words)
    assert outcome.code == 2
    assert outcome.err.startswith("usage: eqprop")
    assert said in outcome.err.splitlines()[-1]


def test_recipes_are_listed_one_a_line(cli: Cli) -> None:
    outcome = cli("recipes")
    assert (outcome.code, outcome.err) == (0, "")
    listed = dict(line.split(maxsplit=1) for line in outcome.out.splitlines())
    assert list(listed) == recipes.names()
    for name, description in listed.items():
        assert description == recipes.load(name).description
        assert len(description) > 5
    assert max(map(len, outcome.out.splitlines())) <= 100


# What is printed and drawn


def test_evaluate_prints_the_errors_of_the_summary(run: Path, cli: Cli) -> None:
    outcome = cli("evaluate", run)
    assert (outcome.code, outcome.err) == (0, "")
    *members, straight, right, weights = outcome.out.splitlines()
    summary, last = summary_of(run), metrics_of(run)[-1]
    for line, (label, chosen) in zip((straight, right), SETTINGS.items(), strict=True):
        assert line == f"{label}: test error {over_seeds(last['test_error'][chosen])}"
    assert weights == "after epoch 3"
    for i, (line, member) in enumerate(zip(members, summary["members"], strict=True)):
        assert line == (
            f"member {i} (seed {member['seed']}, angle {member['angle']:g}): "
            f"test error {member['final_test_error']:.2f} %, loss {last['test_loss'][i]:.5f}, "
            f"unsettled {100 * last['unsettled'][i]:.1f} %"
        )


@pytest.mark.slow
def test_evaluate_tests_the_other_split_and_other_lengths(run: Path, cli: Cli) -> None:
    usual = cli("evaluate", run).out
    train = cli("evaluate", run, "--split", "train").out
    assert train.splitlines()[-2].startswith("Ψ = 90°: train error ")
    assert cli("evaluate", run, "--free-steps", 8).out == usual  # the recipe's own
    losses = {}
    for steps in (1, 8, 40, 41):
        printed = cli("evaluate", run, "--free-steps", steps).out
        losses[steps] = re.findall(r"loss ([\d.]+)", printed)
    assert losses[1] != losses[8]
    assert losses[40] == losses[41]  # settled


@pytest.mark.slow
def test_show_prints_the_epochs_and_draws_three_pictures(run: Path, cli: Cli) -> None:
    for name in ("curves", "health", "confusion"):
        (run / f"{name}.png").unlink(missing_ok=True)
    outcome = cli("show", run)
    assert (outcome.code, outcome.err) == (0, "")
    printed = outcome.out.splitlines()
    assert printed[0] == f"c-vf-1h: {recipes.load('c-vf-1h').description}"
    assert printed[1].split() == ["epoch", "train", "error", "test", "error", "unsettled"]
    metrics, finals = metrics_of(run), []
    for block, (label, chosen) in zip((printed[2:7], printed[7:12]), SETTINGS.items(), strict=True):
        assert block[0] == label
        for record, line in zip(metrics, block[1:4], strict=True):
            train, test = (over_seeds(record[key][chosen]) for key in ("train_error", "test_error"))
            unsettled = f"{100 * statistics.mean(record['unsettled'][chosen]):.1f} %"
            assert line.split() == f"{record['epoch']} {train} {test} {unsettled}".split()
        angles = [sum(record["weight_angle"]["synapses.1"][chosen]) / 2 for record in metrics[::2]]
        assert block[4] == f"weight angle of synapses.1: {angles[0]:.1f}° → {angles[1]:.1f}°"
        finals.append(f"{label}: last epoch {over_seeds(metrics[-1]['test_error'][chosen])}")
    assert abs(angles[0] - 90) < 15
    assert printed[12:14] == finals
    summary = summary_of(run)
    place = summary["machine"]["processor"]
    assert printed[14] == f"{summary['wall_seconds']:.0f} s on {place}"
    pictures = [run / f"{name}.png" for name in ("curves", "health", "confusion")]
    assert printed[15:] == [str(path) for path in pictures]
    for path in pictures:
        assert_drawn(path)


@pytest.mark.slow
def test_show_of_a_run_without_checkpoint_leaves_out_the_confusion_matrix_alone(
    cli: Cli, tmp_path: Path
) -> None:
    """A run as it comes with the project: trained on a GPU, of one setting, without checkpoint."""
    folder = tmp_path / "c-ep-1h"
    shutil.copytree(SHIPPED / "c-ep-1h", folder)
    outcome = cli("show", folder)
    assert (outcome.code, outcome.err) == (0, "")
    *_, last, result, curves, health, confusion = outcome.out.splitlines()
    assert last.split()[0] == "100"
    assert result == (
        "last epoch 2.29 ± 0.13 %, mean of the last ten 2.33 ± 0.10 %, 29 s on NVIDIA H200"
    )
    assert (curves, health) == (f"{folder}/curves.png", f"{folder}/health.png")
    assert_drawn(folder / "curves.png")
    assert_drawn(folder / "health.png")
    why = "there is no checkpoint, so no network can be tested"
    assert confusion == f"no confusion matrix: {folder}: {why}"


def test_train_ends_with_a_line_a_setting(cli: Cli, tmp_path: Path) -> None:
    words = ("train", "c-vf-1h", "--epochs", 1, "--out", tmp_path / "run")
    rates = "0.01,0.005;0.02,0.005"
    outcome = cli(*words, **SMALL, angle="0,45.5", learning_rates=rates)
    assert outcome.code == 0
    *lines, shared, _ = outcome.out.splitlines()[1:]
    errors = metrics_of(tmp_path / "run")[0]["test_error"]
    assert lines == [
        f"Ψ = {angle}°, η = ({rate}, 0.005): test error {over_seeds(errors[i : i + 2])} "
        "over 2 network(s)"
        for i, (rate, angle) in zip(
            (0, 2, 4, 6), itertools.product((0.01, 0.02), (0, 45.5)), strict=True
        )
    ]
    assert re.fullmatch(r"1 epochs, \d+ s", shared)


@pytest.mark.slow
def test_without_matplotlib_show_and_compare_print_and_say_what_is_missing(
    run: Path, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = cli("show", run).out.splitlines()
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    remedy = "figures need matplotlib: pip install 'eqprop[train]'"
    outcome = cli("show", run)
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out.splitlines() == [*drawn[:-3], f"no pictures: {remedy}"]
    outcome = cli("compare", run, "--out", tmp_path / "picture.png")
    assert (outcome.code, outcome.err) == (0, "")
    _, *rows, last = outcome.out.splitlines()
    assert (len(rows), last) == (2, f"no picture: {remedy}")
    assert not (tmp_path / "picture.png").exists()


def test_show_of_a_long_run_shows_ten_epochs_with_the_first_and_the_last() -> None:
    assert eqprop.cli._milestones(100) == {1, 12, 23, 34, 45, 56, 67, 78, 89, 100}
    assert eqprop.cli._milestones(1) == {1}
    assert eqprop.cli._milestones(4) == {1, 2, 3, 4}


def test_compare_prints_a_line_a_setting_and_draws_them(
    run: Path, other: Path, cli: Cli, tmp_path: Path
) -> None:
    picture = tmp_path / "all.png"
    shipped = SHIPPED / "c-ep-1h"
    outcome = cli("compare", run, other, shipped, "--out", picture)
    assert (outcome.code, outcome.err) == (0, "")
    head, *rows, drawn = outcome.out.splitlines()
    assert re.split(r"  +", head) == [
        "run",
        "epochs",
        "train error",
        "test error",
        "last ten",
        "time",
    ]
    cells = [re.split(r"  +", row)[:-1] for row in rows]
    last = metrics_of(run)[-1]
    for found, (label, chosen) in zip(cells[:2], SETTINGS.items(), strict=True):
        train, test = (over_seeds(last[key][chosen]) for key in ("train_error", "test_error"))
        assert found == [f"{run}, {label}", "3", train, test, "-"]
    for found, folder in zip(cells[2:], (other, shipped), strict=True):
        summary = summary_of(folder)
        train, test = mean_std(summary["train_error"]), mean_std(summary["test_error"])
        ten = "-" if folder == other else mean_std(summary["last_ten_test_error"])
        assert found == [str(folder), str(summary["epochs"]), train, test, ten]
    assert drawn == str(picture)
    assert_drawn(picture)


def test_compare_says_which_run_is_not_finished(run: Path, cli: Cli, tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    begun.mkdir()
    (begun / "recipe.toml").write_bytes((run / "recipe.toml").read_bytes())
    outcome = cli("compare", run, begun, "--out", tmp_path / "both.png")
    assert outcome.code == 0
    assert outcome.out.splitlines()[3].split()[1:] == ["0", "not", "finished"]
    message = cli("compare", begun, "--out", tmp_path / "one.png").error
    assert message == "no run has a complete epoch yet, so there is nothing to draw"
    assert not (tmp_path / "one.png").exists()
    assert cli("show", begun).error == f"{begun}: no epoch is complete yet"
    expected = f"{begun}: there is no checkpoint, so no network can be tested"
    assert cli("evaluate", begun).error == expected


def test_progress_is_a_bar_on_a_terminal_and_a_line_an_epoch_elsewhere(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    record = {"epoch": 1, "train_error": [10.0, None], "test_error": [20.0, None]}
    for terminal in (False, True):
        monkeypatch.setattr(sys.stderr, "isatty", lambda answer=terminal: answer)
        (tmp_path / str(terminal)).mkdir()
        progress = Progress(RunFolder(tmp_path / str(terminal)), epochs=4, first_epoch=0)
        for done in (1, 2):
            time.sleep(0.11 * terminal)  # tqdm draws ten times a second
            progress.minibatch(1, done, 2, 12.5)
        progress.epoch(record, 1.0)
        progress.close()
        out, err = capsys.readouterr()
        said, silent = (err, out) if terminal else (out, err)
        assert "epoch 1/4: train error 10.00 %, test error 20.00 %" in said
        assert " left" in said
        assert silent == ""
        assert ("train error 12.50 %" in said) is terminal
        assert ("2/2" in said) is terminal


# Mistakes


@pytest.mark.parametrize("command", ["train", "check"])
@pytest.mark.parametrize(
    ("words", "fields", "said"),
    [
        (("c-ep-1",), {}, "recipe 'c-ep-1' is neither a known name nor a .toml file: did you mean"),
        (("ep-1h",), {"betta": 1}, "ep-1h: unknown field 'betta': did you mean beta?"),
        (("ep-1h", "--set", "beta"), {}, "--set 'beta': write it as field=value"),
        (("ep-1h", "--seeds", 0), {}, "ep-1h: seeds must be an integer >= 1, not 0"),
        (("ep-1h", "--threads", 0), {}, "--threads must be 1 to 256, not 0"),
        (("ep-1h",), {"beta": 0}, "ep-1h: nudging.beta must not be 0"),
        (("ep-1h",), {"beta": "nan"}, "ep-1h: nudging.beta must be finite, not nan"),
        (("ep-1h",), {"angle": 45}, "ep-1h: network.angle needs untied weights"),
        (
            ("ep-1h",),
            {"learning_rates": "0.1,-0.1"},
            "ep-1h: update.learning_rates: synapses.1.weight",
        ),
        (
            ("ep-1h",),
            {"learning_rates": "inf,1"},
            "ep-1h: update.learning_rates must be finite, not",
        ),
        (("ep-1h",), {"learning_rates": "0.1"}, "ep-1h: update.learning_rates needs 2 entries"),
        (("ep-1h",), {"layers": "783,8,10"}, "layers: the first must be 784, the pixels of mnist"),
        (("ep-1h",), {"layers": "784,8,9"}, "layers: the last must be 10, the classes of mnist"),
        (("ep-1h",), {"layers": "784"}, "ep-1h: network.layers must name an input and an output"),
        (
            ("ep-1h",),
            {"train_samples": 60001},
            "train_samples: 60001 asked for, but mnist has 60000",
        ),
        (("ep-1h",), {"test_samples": 10001}, "test_samples: 10001 asked for, but mnist has 10000"),
        (
            ("ep-1h",),
            {"frozen": "bias"},
            "ep-1h: update.frozen: there is no parameter 'bias' among",
        ),
        (
            ("ep-1h",),
            {"data": "cifar"},
            "unknown data set 'cifar': choose from cifar-10, fashion-mnist",
        ),
        (("ep-1h", "--data", "/no/such/folder"), {}, "/no/such/folder: no such folder: "),
    ],
    ids=str,
)
def test_mistake_is_answered_in_one_line(
    command: str,
    words: tuple[Any, ...],
    fields: dict[str, Any],
    said: str,
    cli: Cli,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    outcome = cli(command, *words, **fields)
    assert outcome.error.startswith(said)
    assert outcome.out == ""
    assert list(tmp_path.iterdir()) == []  # not even a folder for a run that cannot be


@pytest.mark.parametrize(
    ("words", "fields", "said"),
    [
        (("--epochs", 0), {}, "ep-1h: epochs must be an integer >= 1, not 0"),
        (("--epochs", -3), {}, "ep-1h: epochs must be an integer >= 1, not -3"),
        (("--angles-every", 0), {}, "angles_every must be 1 or more, not 0"),
        (
            ("--angles-every", 1),
            {"nudged_steps": 31},
            "nudged_steps (31) must not exceed free_steps",
        ),
        (("--resume",), {}, "runs/ep-1h: there is no run to resume: leave out --resume"),
    ],
    ids=str,
)
def test_mistake_in_training_is_answered_in_one_line(
    words: tuple[Any, ...],
    fields: dict[str, Any],
    said: str,
    cli: Cli,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli("train", "ep-1h", *words, **fields).error.startswith(said)
    assert list(tmp_path.iterdir()) == []


def test_check_cannot_compare_more_steps_than_there_are(cli: Cli) -> None:
    message = cli("check", "ep-1h", nudged_steps=31).error
    assert message.startswith("ep-1h: nudged_steps (31) must not exceed free_steps (30)")


def test_check_refuses_an_order_that_bptt_does_not_have(cli: Cli) -> None:
    message = cli("check", "ep-1h", nudged_in_turn="true").error
    assert message.startswith("ep-1h: BPTT goes back through steps of all layers: ")
    assert "--set nudged_in_turn=false" in message


def test_gpu_that_is_not_there_is_named(
    run: Path, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for words in (("train", "ep-1h", "--out", tmp_path / "run"), ("evaluate", run), ("show", run)):
        outcome = cli(*words, "--device", "cuda")
        expected = "device cuda: PyTorch sees no GPU here: use cpu"
        assert outcome.error == expected
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("command", ["evaluate", "show", "compare"])
def test_folder_that_is_no_run_is_named(command: str, cli: Cli, tmp_path: Path) -> None:
    for place in (tmp_path, tmp_path / "missing"):
        message = cli(command, place).error
        assert message == f"{place}: not the folder of a run (it has no recipe.toml)"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("recipe.toml", "evaluate"),
        ("recipe.toml", "show"),
        ("metrics.jsonl", "show"),
        ("metrics.jsonl", "compare"),
        ("run.json", "show"),
        ("run.json", "compare"),
    ],
)
def test_damaged_file_of_a_run_is_named(
    name: str, command: str, run: Path, cli: Cli, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(run, folder)
    (folder / name).write_bytes(b"\xff{ damaged")
    assert cli(command, folder).error.startswith(f"{folder / name}: ")


@pytest.mark.parametrize("command", ["show", "compare"])
@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("run.json", "{}"),
        ("run.json", "3"),
        ("run.json", '{"format": 1, "data": [], "sessions": []}'),
        ("metrics.jsonl", "3"),
        ("metrics.jsonl", '{"epoch": 1}'),
        ("metrics.jsonl", '{"train_error": [1, 1, 1, 1]}'),
        ("metrics.jsonl", '{"epoch": 1, "train_error": [1, 1]}'),  # of two members, not four
        ("metrics.jsonl", '{"epoch": 1, "train_error": [1, 1, 1, 1], "test_error": {"a": 1}}'),
        ("metrics.jsonl", '{"epoch": 1, "train_error": [1, 1, 1, 1], "weight_norm": {"a": 1}}'),
    ],
)
def test_incomplete_file_of_a_run_is_named(
    name: str, content: str, command: str, run: Path, cli: Cli, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(run, folder)
    (folder / name).write_text(content + "\n")
    assert cli(command, folder).error.startswith(f"{folder / name}: damaged")


@pytest.mark.slow
def test_summary_is_never_read(
    run: Path, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("matplotlib.figure.Figure.savefig", lambda *_, **__: None)  # slow
    folder = tmp_path / "run"
    shutil.copytree(run, folder)
    commands = (("show", folder), ("compare", folder, "--out", tmp_path / "a.png"))
    before = [cli(*words) for words in commands]
    assert all(outcome.code == 0 for outcome in before)
    words = ("train", folder / "recipe.toml", "--out", folder, "--resume", "--engine", "reference")
    wrong = b'{"epochs": 100, "test_error": {"mean": 0}}'
    for content in (None, b"", b"\xff{ damaged", b"3", wrong):
        (folder / "summary.json").unlink()
        if content is not None:
            (folder / "summary.json").write_bytes(content)
        assert [cli(*words) for words in commands] == before
        assert cli(*words).code == 0
        assert summary_of(folder) == summary_of(run)


@pytest.mark.parametrize("steps", [0, -1])
def test_free_steps_that_cannot_be_are_refused(steps: int, run: Path, cli: Cli) -> None:
    message = cli("evaluate", run, "--free-steps", steps).error
    assert message == f"free_steps must be 1 or more, not {steps}"


@pytest.mark.parametrize(
    ("name", "said"),
    [("picture.xyz", "Format 'xyz' is not supported"), ("no/where.png", "No such")],
)
def test_picture_that_cannot_be_written_is_named(
    name: str, said: str, run: Path, cli: Cli, tmp_path: Path
) -> None:
    message = cli("compare", run, "--out", tmp_path / name).error
    assert message.startswith(f"{tmp_path / name}: {said}")


# Data of one's own


def idx_folder(mnist: Dataset, folder: Path, rows: int = 28) -> Path:
    """The first images of MNIST, some rows of each, as a set of the user's own."""
    folder.mkdir()
    for prefix, split, n in (("train", mnist.train, 200), ("t10k", mnist.test, 120)):
        pixels = bytes(split.images[:n, :, :rows].flatten().tolist())
        head = b"".join(i.to_bytes(4, "big") for i in (2051, n, rows, 28))
        (folder / f"{prefix}-images-idx3-ubyte.gz").write_bytes(gzip.compress(head + pixels))
        head = b"".join(i.to_bytes(4, "big") for i in (2049, n))
        labels = head + bytes(split.labels[:n].tolist())
        (folder / f"{prefix}-labels-idx1-ubyte").write_bytes(labels)
    return folder


def test_set_of_ones_own_gives_the_same_numbers_as_the_same_images_of_mnist(
    other: Path, mnist: Dataset, cli: Cli, tmp_path: Path
) -> None:
    folder = idx_folder(mnist, tmp_path / "mine")
    own = {key: value for key, value in SMALL.items() if not key.endswith("_samples")}
    words = ("train", "bptt-1h", "--epochs", 2, "--data", folder, "--out", tmp_path / "run")
    assert cli(*words, **own, data="mine").code == 0
    for ours, theirs in zip(metrics_of(tmp_path / "run"), metrics_of(other), strict=True):
        assert ours == theirs
    told = cli("evaluate", tmp_path / "run")  # the run knows where its data lies
    assert told.code == 0
    assert cli("evaluate", tmp_path / "run", "--data", folder) == told
    folder.rename(tmp_path / "moved")
    assert cli("evaluate", tmp_path / "run").error.startswith(f"{folder}: no such folder")
    assert cli("evaluate", tmp_path / "run", "--data", tmp_path / "moved") == told


def test_set_of_another_shape_does_not_fit_a_trained_network(
    run: Path, mnist: Dataset, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = idx_folder(mnist, tmp_path / "half", rows=14)
    monkeypatch.delitem(data.KNOWN_SETS, "mnist")
    for command in ("evaluate", "show"):
        message = cli(command, run, "--data", folder).error
        assert message == "layers: the first must be 392, the pixels of mnist, not 784"


@pytest.mark.parametrize("damage", ["missing", "truncated", "changed"])
def test_damaged_data_file_is_named(damage: str, mnist: Dataset, cli: Cli, tmp_path: Path) -> None:
    folder = idx_folder(mnist, tmp_path / "set")
    file = folder / "t10k-labels-idx1-ubyte"
    if damage == "missing":
        file.unlink()
    else:
        file.write_bytes(file.read_bytes()[:-1] if damage == "truncated" else b"not idx at all")
    out = tmp_path / "run"
    message = cli("train", "ep-1h", "--data", folder, "--out", out, data="set").error
    assert message.startswith(f"{folder}: ")
    assert "t10k-labels-idx1-ubyte" in message
    assert not out.exists()

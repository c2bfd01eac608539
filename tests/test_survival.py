"""Runs survive Ctrl-C, kill -9, a full disk and damaged files, and nothing is ever lost.

Oracle: the same run, never interrupted. What goes on after an interruption must end with the
same bytes; what is refused must leave every byte of the folder as it was.
"""

import errno
import hashlib
import io
import json
import os
import shlex
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.tensorboard import SummaryWriter

import eqprop
from eqprop.runs import run as run_module
from eqprop.runs import training
from eqprop.runs.folder import RunFolder
from eqprop.runs.progress import Progress
from eqprop.runs.recipe import SHORT
from eqprop.runs.signals import MOMENT, stopping
from eqprop.runs.training import Watcher
from tests.commands import Command

pytestmark = pytest.mark.slow

RECIPE = {
    "layers": "784,24,10",
    "learning_rates": "0.01,0.005",
    "free_steps": 8,
    "nudged_steps": 4,
    "train_samples": 230,
    "test_samples": 100,
    "seeds": 2,
}
ONE_SAMPLE = 101 / RECIPE["train_samples"]  # in percent, rounded up
NAME, EPOCHS, MINIBATCHES = "c-ep-1h", 3, 12
EXPLODES = 5  # the minibatch of the second epoch in which `Exploding` loses a member
TRAIN = ("train", NAME, "--engine", "reference")
Cli = Callable[..., Any]


def contents(folder: Path) -> dict[str, bytes]:
    """Every file of a folder but the lock, which says who used it last."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != ".lock")
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def summary_of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "summary.json").read_text())


@pytest.fixture(scope="module")
def straight(cli: Cli, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run that nothing happens to."""
    out = tmp_path_factory.mktemp("straight") / "run"
    outcome = cli(*TRAIN, "--epochs", EPOCHS, "--angles-every", 5, "--out", out, **RECIPE)
    assert outcome.code == 0
    return out


@pytest.fixture(scope="module")
def half_done(cli: Cli, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The folder of the same run after two epochs, last.ckpt and previous.ckpt in it."""
    out = tmp_path_factory.mktemp("half") / "run"
    assert cli(*TRAIN, "--epochs", 2, "--out", out, **RECIPE).code == 0
    return contents(out)


@pytest.fixture
def out(half_done: dict[str, bytes], tmp_path: Path) -> Path:
    """A copy of it, in a folder with a space in its name."""
    folder = tmp_path / "a run"
    for name, content in half_done.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
    return folder


def resumed(cli: Cli, out: Path, epochs: int = EPOCHS, **more: Any) -> Any:
    return cli(*TRAIN, "--epochs", epochs, "--out", out, "--resume", **RECIPE | more)


def assert_equals(out: Path, straight: Path, *, angles: bool = False) -> None:
    for name in ("metrics.jsonl", *(["angles.jsonl"] if angles else [])):
        assert (out / name).read_bytes() == (straight / name).read_bytes()
    ours, theirs = summary_of(out), summary_of(straight)
    for key in ("members", "test_error", "train_error", "last_ten_test_error", "epochs", "frozen"):
        assert ours[key] == theirs[key]


# Stopped on request


@pytest.fixture
def stop_at(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, int], None]:
    """Ask the next run to stop after a minibatch of an epoch, as Ctrl-C does."""

    def request(epoch: int, minibatch: int) -> None:
        class Stopping(Progress):
            def minibatch(self, at: int, done: int, of: int, train_error: float) -> None:
                super().minibatch(at, done, of, train_error)
                self.stop_requested |= (at, done) == (epoch, minibatch)

        monkeypatch.setattr(run_module, "Progress", Stopping)

    return request


def go_on(cli: Cli, outcome: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Run the command that a stopped run has printed."""
    monkeypatch.setattr(run_module, "Progress", Progress)
    command = outcome.out.splitlines()[-1].partition("To go on: ")[2]
    program, *words = shlex.split(command)
    assert program == "eqprop"
    return cli(*words)


@pytest.mark.parametrize(
    ("epoch", "minibatch"), [(1, 1), (1, MINIBATCHES), (2, 7), (EPOCHS, MINIBATCHES - 1)]
)
def test_run_stopped_at_any_minibatch_goes_on_to_the_same_bytes(
    epoch: int,
    minibatch: int,
    cli: Cli,
    stop_at: Callable[[int, int], None],
    straight: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    out = tmp_path / "a run"
    stop_at(epoch, minibatch)
    words = (*TRAIN, "--epochs", EPOCHS, "--angles-every", 5, "--out", out)
    outcome = cli(*words, **RECIPE)
    assert outcome.code == 130
    assert f"stopped in epoch {epoch} after {minibatch} minibatches, saved." in outcome.out
    assert len(lines(out / "metrics.jsonl")) if epoch > 1 else not (out / "metrics.jsonl").exists()
    assert not (out / "summary.json").exists()
    saved = RunFolder(out).checkpoint()
    assert (saved.epoch, saved.minibatch) == (epoch - 1, minibatch)
    assert go_on(cli, outcome, monkeypatch).code == 0
    assert_equals(out, straight, angles=True)


MOMENTUM = RECIPE | {
    "rule": "ep",
    "nudging": "centred",
    "learning_rates": "0.02,0.01",
    "momentum": 0.9,
    "weight_decay": 1e-3,
    "schedule": "cosine",
}


@pytest.fixture(scope="module")
def with_momentum(cli: Cli, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("momentum") / "run"
    assert cli(*TRAIN, "--epochs", EPOCHS, "--out", out, **MOMENTUM).code == 0
    return out


@pytest.mark.parametrize(("epoch", "minibatch"), [(1, 3), (1, MINIBATCHES), (2, 7)])
def test_momentum_and_schedule_survive_a_stop(
    epoch: int,
    minibatch: int,
    cli: Cli,
    stop_at: Callable[[int, int], None],
    with_momentum: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    out = tmp_path / "run"
    stop_at(epoch, minibatch)
    outcome = cli(*TRAIN, "--epochs", EPOCHS, "--out", out, **MOMENTUM)
    assert outcome.code == 130
    remembered = RunFolder(out).checkpoint().update["optimiser"]["state"]
    assert all(bool(it["momentum_buffer"].any()) for it in remembered.values())
    assert go_on(cli, outcome, monkeypatch).code == 0
    assert_equals(out, with_momentum)


def test_momentum_changes_what_is_learned(with_momentum: Path, cli: Cli, tmp_path: Path) -> None:
    """So that the tests above can fail; each update of a recipe reaches the engine."""
    curves = set()
    for field, plain in (("momentum", 0.0), ("weight_decay", 0.0), ("schedule", "none")):
        out = tmp_path / field
        assert cli(*TRAIN, "--epochs", EPOCHS, "--out", out, **MOMENTUM | {field: plain}).code == 0
        curves.add(json.dumps([line["train_loss"] for line in lines(out / "metrics.jsonl")]))
    curves.add(json.dumps([line["train_loss"] for line in lines(with_momentum / "metrics.jsonl")]))
    assert len(curves) == 4


def test_a_checkpoint_without_momentum_is_refused(
    cli: Cli, tmp_path: Path, stop_at: Callable[[int, int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "run"
    stop_at(1, 3)
    outcome = cli(*TRAIN, "--epochs", EPOCHS, "--out", out, **MOMENTUM)
    rewrite(out / "checkpoints" / "last.ckpt", update={})
    message = go_on(cli, outcome, monkeypatch).error
    assert "last.ckpt: does not hold what the update has to remember" in message


def rewrite(file: Path, **fields: Any) -> None:
    """A checkpoint with some of its fields replaced, and the checksum of what it is now."""
    header, _, body = file.read_bytes().partition(b"\n")
    content, buffer = torch.load(io.BytesIO(body), weights_only=True), io.BytesIO()
    torch.save(content | fields, buffer)
    now = json.loads(header) | {"sha256": hashlib.sha256(buffer.getvalue()).hexdigest()}
    file.write_bytes(json.dumps(now).encode() + b"\n" + buffer.getvalue())


def test_a_folder_with_a_flat_recipe_goes_on(cli: Cli, out: Path, straight: Path) -> None:
    """As runs were written before recipes had tables, and updates something to remember."""
    recipe = RunFolder(out).recipe()
    new = ("nudging.kind", "update.momentum", "update.weight_decay", "update.nesterov")
    new += ("network.readout", "network.shared_update", "data.normalise")
    flat = [f"random_sign = {json.dumps(recipe.nudging.kind == 'random-sign')}"]
    for path, value in recipe.values().items():
        if path not in new:
            flat.append(f"{SHORT[path]} = {json.dumps(value)}")
    text = "\n".join(flat) + "\n"
    (out / "recipe.toml").write_text(text)
    file = out / "checkpoints" / "last.ckpt"
    rewrite(file, recipe=text)
    assert b"[rule]" not in file.read_bytes()
    assert resumed(cli, out).code == 0
    assert_equals(out, straight)
    assert "[rule]" in (out / "recipe.toml").read_text()


def test_run_stopped_again_and_again_ends_with_the_same_bytes(
    cli: Cli,
    stop_at: Callable[[int, int], None],
    straight: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    out, words = tmp_path / "run", (*TRAIN, "--epochs", EPOCHS, "--out", tmp_path / "run")
    for i, place in enumerate([(1, 4), (1, 5), (2, 1), (EPOCHS, MINIBATCHES - 1)]):
        stop_at(*place)
        assert cli(*words, *["--resume"] * (i > 0), **RECIPE).code == 130
    monkeypatch.setattr(run_module, "Progress", Progress)
    assert resumed(cli, out).code == 0
    assert_equals(out, straight)


def test_stop_in_the_last_minibatch_of_all_still_saves(
    cli: Cli, stop_at: Callable[[int, int], None], straight: Path, tmp_path: Path
) -> None:
    stop_at(EPOCHS, MINIBATCHES)
    words = (*TRAIN, "--epochs", EPOCHS, "--out", tmp_path / "run")
    assert cli(*words, **RECIPE).code == 130
    assert resumed(cli, tmp_path / "run").code == 0
    assert_equals(tmp_path / "run", straight)


# Real signals to real processes


def wait_for(process: Command, text: str) -> str:
    """Read what a process prints up to a line that holds the text."""
    assert process.stdout is not None
    for line in process.stdout:
        if text in line:
            return line
    raise AssertionError(f"no {text!r}: {process.communicate()}")


LONG = RECIPE | {"train_samples": 3000, "seeds": 1}
LONG_WORDS = (*TRAIN, "--epochs", 2, "--angles-every", 10)


def wait_until(happened: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not happened():
        assert time.monotonic() < deadline, "not within a minute"
        time.sleep(0.01)


def wait_for_epoch_two(out: Path) -> None:
    """Until the first of the 150 minibatches of the second epoch is done."""
    angles, text = out / "angles.jsonl", b'{"epoch": 2, "minibatch": 150'
    wait_until(lambda: angles.is_file() and text in angles.read_bytes())


@pytest.fixture(scope="module")
def long_straight(cli: Cli, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("long") / "run"
    assert cli(*LONG_WORDS, "--out", out, **LONG).code == 0
    return out


def test_ctrl_c_saves_and_says_how_to_go_on(
    fork: Cli, cli: Cli, long_straight: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    process = fork(*LONG_WORDS, "--out", out, **LONG)
    wait_for_epoch_two(out)
    process.send_signal(signal.SIGINT)
    printed, complained = process.communicate(timeout=60)
    assert process.returncode == 130
    assert complained == ""
    _, asked, stopped = printed.splitlines()
    assert asked == "stopping after this minibatch; once more to stop at once"
    start, _, command = stopped.partition(" minibatches, saved. To go on: ")
    assert 0 < int(start.removeprefix("stopped in epoch 2 after ")) < 150
    file = out / "recipe.toml"
    assert (
        command == f"eqprop train {file} --out {out} --resume --engine reference --angles-every 10"
    )
    assert cli(*shlex.split(command)[1:]).code == 0
    assert_equals(out, long_straight, angles=True)


def test_ctrl_c_twice_stops_at_once_and_the_run_can_go_on(
    fork: Cli, cli: Cli, tmp_path: Path
) -> None:
    """One minibatch an epoch, which takes a second or two: the second signal comes within it."""
    out = tmp_path / "run"
    slow = RECIPE | {"free_steps": 9000, "train_samples": 20, "test_samples": 20, "seeds": 1}
    words = (*TRAIN, "--epochs", 2, "--out", out)
    process = fork(*words, **slow)
    wait_for(process, "epoch 1/2")
    wait_until((out / "checkpoints" / "last.ckpt").is_file)  # it saves after it has printed
    before = contents(out / "checkpoints")
    process.send_signal(signal.SIGINT)
    wait_for(process, "once more to stop at once")
    time.sleep(1.5 * MOMENT)
    process.send_signal(signal.SIGINT)
    printed, complained = process.communicate(timeout=60)
    assert process.returncode == 130
    assert (printed, complained) == ("", "")
    assert contents(out / "checkpoints") == before  # at once: nothing was saved any more
    (first,) = lines(out / "metrics.jsonl")
    assert cli(*words, "--resume", **slow).code == 0
    assert lines(out / "metrics.jsonl")[0] == first
    assert [record["epoch"] for record in lines(out / "metrics.jsonl")] == [1, 2]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_that_comes_twice_at_once_is_one(number: signal.Signals) -> None:
    """`timeout` sends its signal twice, the second perhaps before the first has been answered."""
    said: list[str] = []

    class Told(Watcher):
        def say(self, line: str) -> None:
            signal.raise_signal(number)
            said.append(line)

    watcher = Told()
    with stopping(watcher):
        signal.raise_signal(number)
        signal.raise_signal(number)
        assert watcher.stop_requested
        assert said == ["stopping after this minibatch; once more to stop at once"]
        time.sleep(1.5 * MOMENT)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(number)


def test_killed_run_goes_on_to_the_same_bytes(
    fork: Cli, cli: Cli, long_straight: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    process = fork(*LONG_WORDS, "--out", out, **LONG)
    wait_for_epoch_two(out)
    process.kill()
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert len(lines(out / "metrics.jsonl")) == 1
    assert cli(*LONG_WORDS, "--out", out, "--resume", **LONG).code == 0
    assert_equals(out, long_straight, angles=True)


def test_second_process_is_refused_and_the_first_goes_on(
    fork: Cli, cli: Cli, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    process = fork(*TRAIN, "--epochs", 100_000, "--out", out, **RECIPE)
    wait_for(process, "epoch 1/")
    message = resumed(cli, out, epochs=100_000).error
    assert message == (
        f"{out}: another process (pid {process.pid}) is training in this folder: "
        "wait for it, or choose another --out"
    )
    assert "holds this run already" in cli(*TRAIN, "--out", out, **RECIPE).error
    done = len(lines(out / "metrics.jsonl"))
    wait_for(process, f"epoch {done + 1}/")
    assert process.poll() is None
    process.kill()
    process.communicate()
    done = len((out / "metrics.jsonl").read_bytes().splitlines())
    assert resumed(cli, out, epochs=done + 1).code == 0  # a dead process holds no lock


# A disk that is full


def test_full_disk_ends_the_run_in_one_line_and_loses_nothing(
    spawn: Cli, cli: Cli, out: Path, half_done: dict[str, bytes], straight: Path
) -> None:
    blocks = len(half_done["checkpoints/last.ckpt"]) // 2048  # of 512 or 1024 bytes: too few
    words = (*TRAIN, "--epochs", EPOCHS, "--out", out, "--resume")
    process = spawn(*words, blocks=blocks, **RECIPE)
    _, complained = process.communicate(timeout=60)
    assert process.returncode == 2
    assert complained == f"eqprop: error: {out}/checkpoints/last.ckpt.new: File too large\n"
    now = contents(out)
    for name in ("checkpoints/last.ckpt", "checkpoints/previous.ckpt"):
        assert now[name] == half_done[name]
    assert "summary.json" not in now  # it was that of two epochs
    assert now["metrics.jsonl"].startswith(half_done["metrics.jsonl"])
    assert {name for name in now if "ckpt" in name} == {
        "checkpoints/last.ckpt",
        "checkpoints/previous.ckpt",
    }
    assert resumed(cli, out).code == 0
    assert_equals(out, straight)


def test_torn_line_of_metrics_is_named_and_mended_by_a_resume(
    cli: Cli, out: Path, straight: Path
) -> None:
    """What a process leaves that dies while it appends: a torn line. A resume mends it."""
    with open(out / "metrics.jsonl", "ab") as file:
        file.write(b'{"epoch": 3, "train_er')
    for command in (("show", out), ("compare", out)):
        message = cli(*command).error
        assert message == (
            f"{out}/metrics.jsonl: damaged or edited from epoch 3 on: "
            "resume the run to train them again"
        )
    assert resumed(cli, out).code == 0
    assert_equals(out, straight)


@pytest.mark.parametrize("kept", [0, 1])
def test_lines_of_metrics_that_are_gone_are_not_gone_on_without(
    kept: int, cli: Cli, out: Path
) -> None:
    file = out / "metrics.jsonl"
    file.write_bytes(b"".join(file.read_bytes().splitlines(keepends=True)[2 - kept :]))
    before = contents(out)
    assert "metrics.jsonl: lacks lines of the 2 epochs" in resumed(cli, out).error
    assert contents(out) == before


def test_a_run_without_its_checkpoints_is_not_begun_anew(cli: Cli, out: Path) -> None:
    for file in (out / "checkpoints").iterdir():
        file.unlink()
    before = contents(out)
    assert "has no checkpoint to go on from" in resumed(cli, out).error
    assert contents(out) == before


def test_fewer_epochs_than_there_are_is_refused(cli: Cli, out: Path) -> None:
    before = contents(out)
    refused = cli(*TRAIN, "--epochs", 1, "--out", out, "--resume", **RECIPE)
    assert refused.error.startswith("epochs: 1 are fewer than the 2 that")
    assert contents(out) == before


def test_a_run_goes_on_where_its_recipe_file_lies(cli: Cli, out: Path, straight: Path) -> None:
    outcome = cli(
        "train",
        out / "recipe.toml",
        "--epochs",
        EPOCHS,
        "--resume",
        "--engine",
        "reference",
        "--angles-every",
        5,
    )
    assert outcome.code == 0
    assert lines(out / "metrics.jsonl") == lines(straight / "metrics.jsonl")


def test_of_several_runs_the_one_with_this_recipe_goes_on(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    small = {**RECIPE, "train_samples": 40}
    for seeds in (2, 1):
        began = cli(*TRAIN, "--epochs", 1, **{**small, "seeds": seeds})
        assert began.code == 0
    assert "in runs/c-ep-1h-2" in began.out
    assert cli(*TRAIN, "--epochs", 2, "--resume", **small).code == 0
    assert [len(lines(tmp_path / f"runs/{n}/metrics.jsonl")) for n in (NAME, f"{NAME}-2")] == [2, 1]


def test_nobody_has_to_read_what_a_run_prints(spawn: Cli, out: Path) -> None:
    """`eqprop train ... | head -1`: the run ends as it would have."""
    run = spawn("train", out / "recipe.toml", "--epochs", 6, "--resume")
    assert run.stdout is not None
    run.stdout.close()
    assert run.wait(timeout=120) == 0
    assert summary_of(out)["epochs"] == 6


def test_picture_that_cannot_be_drawn_does_not_fail_the_run(
    cli: Cli, out: Path, straight: Path
) -> None:
    (out / "curves.png").unlink()
    (out / "curves.png").mkdir()
    outcome = resumed(cli, out)
    assert outcome.code == 0
    assert "no curves: " in outcome.out
    assert_equals(out, straight)


def test_log_that_cannot_be_written_does_not_fail_the_run(
    cli: Cli, out: Path, straight: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(SummaryWriter, "flush", full)
    outcome = resumed(cli, out)
    assert outcome.code == 0
    assert outcome.out.count("no more TensorBoard logs: [Errno 28] No space left") == 1
    assert_equals(out, straight)


# Folders that must not be written to


@pytest.mark.parametrize("place", ["a file/run", "a file", "/proc/run", "/sys/run"])
def test_place_that_cannot_be_written_is_named(place: str, cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "a file").write_text("mine")
    out = tmp_path / place
    message = cli(*TRAIN, "--out", out, **RECIPE).error
    assert message.startswith(f"{out}: ")
    assert (tmp_path / "a file").read_text() == "mine"
    assert list(tmp_path.iterdir()) == [tmp_path / "a file"]


@pytest.mark.parametrize("resume", [True, False])
def test_folder_of_another_run_is_refused_untouched(
    resume: bool, cli: Cli, out: Path, half_done: dict[str, bytes]
) -> None:
    words = (*TRAIN, "--epochs", EPOCHS, "--out", out, *["--resume"] * resume)
    message = cli(*words, **RECIPE | {"beta": 0.3, "free_steps": 9}).error
    assert message == (
        f"{out}: holds a run with another recipe (it differs in rule.free_steps, nudging.beta): "
        "choose another --out"
    )
    assert contents(out) == half_done


def test_folder_that_is_no_run_is_refused_untouched(cli: Cli, tmp_path: Path) -> None:
    out = tmp_path / "photos"
    out.mkdir()
    (out / "cat.jpg").write_bytes(b"miaow")
    for resume in ([], ["--resume"]):
        message = cli(*TRAIN, "--out", out, *resume, **RECIPE).error
        assert message == f"{out}: is not empty and not the folder of a run: choose another --out"
    assert [path.name for path in out.iterdir()] == ["cat.jpg"]


def test_existing_run_is_not_started_anew(cli: Cli, out: Path, half_done: dict[str, bytes]) -> None:
    message = cli(*TRAIN, "--epochs", EPOCHS, "--out", out, **RECIPE).error
    assert message == (
        f"{out}: holds this run already, at epoch 2: add --resume to go on, or choose another --out"
    )
    assert contents(out) == half_done


def test_nothing_to_resume_is_refused(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for out in (tmp_path / "none", tmp_path / "empty"):
        assert resumed(cli, out).error == f"{out}: there is no run to resume: leave out --resume"
    assert not (tmp_path / "none").exists()
    assert list((tmp_path / "empty").iterdir()) == []


def test_run_without_out_never_takes_the_folder_of_another(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    short = RECIPE | {"train_samples": 20}
    for expected in ("c-ep-1h", "c-ep-1h-2"):
        assert cli(*TRAIN, "--epochs", 1, **short).code == 0
        assert (tmp_path / "runs" / expected / "summary.json").is_file()
    assert cli(*TRAIN, "--epochs", 2, "--resume", **short).code == 0
    counts = [len(lines(tmp_path / "runs" / n / "metrics.jsonl")) for n in ("c-ep-1h", "c-ep-1h-2")]
    assert counts == [1, 2]


# Damaged and edited files


def flip_byte(content: bytes) -> bytes:
    changed = bytearray(content)
    changed[len(changed) // 2] ^= 1
    return bytes(changed)


DAMAGES = {
    "truncated": lambda content: content[:-100],
    "cut in half": lambda content: content[: len(content) // 2],
    "one bit flipped": flip_byte,
    "empty": lambda content: b"",
    "another file": lambda content: b"\x80\x02 something else",
    "header is a list": lambda content: b"[1]\n" + content.partition(b"\n")[2],
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_checkpoint_is_refused_and_the_previous_one_takes_over(
    damage: str, cli: Cli, out: Path, straight: Path
) -> None:
    last = out / "checkpoints" / "last.ckpt"
    last.write_bytes(DAMAGES[damage](last.read_bytes()))
    before = contents(out)
    commands = (
        (*TRAIN, "--epochs", EPOCHS, "--out", out, "--resume"),
        ("evaluate", out),
        ("show", out),
    )
    for words in commands:
        message = cli(*words, **RECIPE if words[0] == "train" else {}).error
        assert message == (
            f"{last}: truncated or edited (its checksum does not match): "
            "delete it to go on from previous.ckpt"
        )
        assert contents(out) == before
    if damage == "truncated":
        last.unlink()
        assert resumed(cli, out).code == 0
        assert_equals(out, straight)


def test_both_checkpoints_damaged_says_to_start_anew(cli: Cli, out: Path) -> None:
    (out / "checkpoints" / "last.ckpt").unlink()
    previous = out / "checkpoints" / "previous.ckpt"
    previous.write_bytes(flip_byte(previous.read_bytes()))
    message = resumed(cli, out).error
    assert message.startswith(f"{previous}: truncated or edited")
    assert message.endswith("start the run anew in another folder")


def test_checkpoint_of_a_later_format_is_refused(cli: Cli, out: Path) -> None:
    last = out / "checkpoints" / "last.ckpt"
    header, _, body = last.read_bytes().partition(b"\n")
    header = json.dumps(json.loads(header) | {"format": 99}).encode()
    last.write_bytes(header + b"\n" + body)
    assert resumed(cli, out).error == f"{last}: written in format 99, not known here"


def test_run_that_died_before_its_first_checkpoint_starts_from_the_beginning(
    cli: Cli, out: Path, straight: Path
) -> None:
    for name in ("checkpoints/last.ckpt", "checkpoints/previous.ckpt", "summary.json"):
        (out / name).unlink()
    metrics = out / "metrics.jsonl"
    metrics.write_bytes(metrics.read_bytes().splitlines(keepends=True)[0])
    assert resumed(cli, out).code == 0
    assert_equals(out, straight)


@pytest.mark.parametrize(
    ("field", "before", "after"),
    [
        ("nudging.beta", "beta = 0.2", "beta = 0.3"),
        ("network.layers", "[784, 24, 10]", "[784, 25, 10]"),
        ("seeds", "seeds = 2", "seeds = 1"),
    ],
)
def test_recipe_edited_in_the_folder_does_not_match_the_checkpoint(
    field: str, before: str, after: str, cli: Cli, out: Path
) -> None:
    text = (out / "recipe.toml").read_text()
    assert before in text
    (out / "recipe.toml").write_text(text.replace(before, after))
    now = contents(out)
    for words in (("train", out / "recipe.toml", "--out", out, "--resume"), ("evaluate", out)):
        message = cli(*words).error
        assert f"was saved with another recipe (it differs in {field})" in message
        assert contents(out) == now


# Longer than planned


def test_more_epochs_on_resume_equal_a_longer_run(cli: Cli, out: Path, straight: Path) -> None:
    assert resumed(cli, out).code == 0
    assert_equals(out, straight)
    assert "epochs = 3" in (out / "recipe.toml").read_text()
    at_the_end = contents(out)
    assert resumed(cli, out).code == 0  # nothing is left to do
    for name in ("metrics.jsonl", "recipe.toml", "checkpoints/last.ckpt"):
        assert contents(out)[name] == at_the_end[name]


# Members that become non-finite


def test_member_that_diverges_is_frozen_and_the_others_do_not_notice(
    cli: Cli, straight: Path, tmp_path: Path
) -> None:
    """Two healthy members between and after two that η = 10³⁸ throws out at once."""
    out = tmp_path / "run"
    sweep = RECIPE | {"learning_rates": "1e38,1e38;0.01,0.005"}
    outcome = cli(*TRAIN, "--epochs", EPOCHS, "--out", out, **sweep)
    assert outcome.code == 3
    assert outcome.err == ""
    assert "2 member(s) became non-finite and were frozen" in outcome.out
    summary = summary_of(out)
    assert [entry["member"] for entry in summary["frozen"]] == [0, 1]
    for entry in summary["frozen"]:
        assert entry["epoch"] == 1
        assert entry["minibatch"] <= 2
        assert entry["place"].startswith(("parameter synapses.", "layer '"))
        assert entry["place"] in entry["reason"]
        assert f"member {entry['member']} (seed {entry['seed']}) is frozen" in outcome.out
    for i, member in enumerate(summary["members"]):
        assert member["frozen"] is (i < 2)
        assert (member["final_test_error"] is None) is (i < 2)
    assert summary["test_error"]["members"] == 2
    # float32, and products of other sizes after the freezing: rounding
    for record, alone in zip(
        lines(out / "metrics.jsonl"), lines(straight / "metrics.jsonl"), strict=True
    ):
        assert record["test_error"][:2] == [None, None]
        for i in range(2):
            assert abs(record["test_error"][2 + i] - alone["test_error"][i]) < 1.01
            assert abs(record["train_error"][2 + i] - alone["train_error"][i]) < ONE_SAMPLE
            assert abs(record["test_loss"][2 + i] / alone["test_loss"][i] - 1) < 1e-5


def test_the_momentum_of_the_others_survives_a_member_that_diverges(
    cli: Cli, with_momentum: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    sweep = MOMENTUM | {"learning_rates": "0.02,0.01;1e38,1e38", "seeds": 2}
    assert cli(*TRAIN, "--epochs", EPOCHS, "--out", out, **sweep).code == 3
    assert [entry["member"] for entry in summary_of(out)["frozen"]] == [2, 3]
    for record, alone in zip(
        lines(out / "metrics.jsonl"), lines(with_momentum / "metrics.jsonl"), strict=True
    ):
        for i in range(2):
            assert abs(record["train_loss"][i] / alone["train_loss"][i] - 1) < 1e-5


def test_momentum_of_a_member_frozen_late(
    cli: Cli, with_momentum: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first of two goes, in the second epoch: the other keeps its own momentum and rates."""
    exploding = Exploding(training.make_engine, 0, at=MINIBATCHES + EXPLODES)
    monkeypatch.setattr(training, "make_engine", exploding)
    out = tmp_path / "run"
    assert cli(*TRAIN, "--epochs", EPOCHS, "--out", out, **MOMENTUM).code == 3
    for record, alone in zip(
        lines(out / "metrics.jsonl"), lines(with_momentum / "metrics.jsonl"), strict=True
    ):
        assert abs(record["train_loss"][1] / alone["train_loss"][1] - 1) < 1e-5
    assert record["train_loss"][0] is None


class Exploding:
    """An engine whose member of a given seed is not finite at its n-th minibatch."""

    def __init__(self, make: Callable[..., Any], seed: int, at: int) -> None:
        self.make, self.seed, self.at, self.steps = make, seed, at, 0

    def __call__(self, net: Any, *arguments: Any, **more: Any) -> Any:
        engine = self.make(net, *arguments, **more)
        step = engine._step

        def counted(x: Any, y: Any, sign: Any) -> Any:
            if self.steps == self.at and self.seed in net.seeds:
                members = torch.tensor([seed == self.seed for seed in net.seeds])
                raise eqprop.NonFiniteState("hidden", 3, "nudged", members)
            self.steps += 1
            return step(x, y, sign)

        engine._step = counted
        return engine


def test_member_frozen_late_keeps_its_past_and_resumes_frozen(
    cli: Cli,
    straight: Path,
    tmp_path: Path,
    stop_at: Callable[[int, int], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    out, seed = tmp_path / "run", 0
    exploding = Exploding(training.make_engine, seed, at=MINIBATCHES + EXPLODES)
    monkeypatch.setattr(training, "make_engine", exploding)
    stop_at(2, EXPLODES + 4)
    words = (*TRAIN, "--epochs", EPOCHS, "--angles-every", 1, "--out", out)
    assert cli(*words, **RECIPE).code == 130
    monkeypatch.setattr(run_module, "Progress", Progress)
    assert cli(*words, "--resume", **RECIPE).code == 3
    (entry,) = summary_of(out)["frozen"]
    assert entry == {
        "member": seed,
        "seed": seed,
        "epoch": 2,
        "minibatch": EXPLODES,
        "place": "layer 'hidden'",
        "reason": entry["reason"],
    }
    assert "step 3 of the nudged phase" in entry["reason"]
    records, alone = lines(out / "metrics.jsonl"), lines(straight / "metrics.jsonl")
    assert records[0] == alone[0]
    other = 1 - seed
    for record, expected in zip(records[1:], alone[1:], strict=True):
        assert record["test_error"][seed] is None
        assert abs(record["test_loss"][other] / expected["test_loss"][other] - 1) < 1e-5
        assert abs(record["train_error"][other] - expected["train_error"][other]) < ONE_SAMPLE
    frozen, living = summary_of(out)["members"][seed], summary_of(out)["members"][other]
    assert frozen["best_test_error"] == alone[0]["test_error"][seed]
    assert (frozen["best_epoch"], frozen["final_test_error"]) == (1, None)
    assert living["final_test_error"] is not None
    # one line a minibatch, although one minibatch was begun twice
    angles = lines(out / "angles.jsonl")
    assert [record["minibatch"] for record in angles] == list(range(EPOCHS * MINIBATCHES))
    missing = [record["minibatch"] for record in angles if record["angle"][seed] is None]
    assert missing == list(range(MINIBATCHES + EXPLODES, EPOCHS * MINIBATCHES))


def test_run_whose_members_are_all_frozen_ends_cleanly(cli: Cli, tmp_path: Path) -> None:
    out = tmp_path / "run"
    words = (*TRAIN, "--epochs", EPOCHS, "--out", out)
    outcome = cli(*words, **RECIPE | {"learning_rates": "1e38,1e38"})
    assert outcome.code == 3
    assert outcome.err == ""
    summary = summary_of(out)
    assert sorted(entry["member"] for entry in summary["frozen"]) == [0, 1]
    assert summary["test_error"] == {"mean": None, "std": None, "members": 0}
    assert len(lines(out / "metrics.jsonl")) == 1
    assert (out / "curves.png").stat().st_size > 5000
    again = resumed(cli, out, learning_rates="1e38,1e38")
    assert again.code == 3
    message = cli("evaluate", out).error
    assert message == f"{out}: every member was frozen, so no network can be tested"
    shown = cli("show", out)
    assert (shown.code, shown.err) == (0, "")
    assert "last epoch unknown, " in shown.out
    assert shown.out.endswith(f"health.png\nno confusion matrix: {message}\n")


def test_member_that_diverges_only_when_tested_is_frozen_too(cli: Cli, tmp_path: Path) -> None:
    """Without a bounded σ the first update makes the free phase of the test blow up."""
    out = tmp_path / "run"
    settings = RECIPE | {"train_samples": 20, "activation": "identity", "free_steps": 60}
    sweep = settings | {"learning_rates": "1e3,1e3;1e-6,1e-6"}
    outcome = cli("train", "ep-1h", "--engine", "reference", "--epochs", 1, "--out", out, **sweep)
    assert outcome.code == 3
    summary = summary_of(out)
    assert sorted(entry["member"] for entry in summary["frozen"]) == [0, 1]
    assert {entry["minibatch"] for entry in summary["frozen"]} == {1}
    assert all("of the free phase" in entry["reason"] for entry in summary["frozen"])
    (record,) = lines(out / "metrics.jsonl")
    for key in ("train_error", "test_error", "residual"):
        assert [value is None for value in record[key]] == [True, True, False, False]
    assert os.listdir(out / "checkpoints") == ["last.ckpt"]

"""The run folder: what was edited, mixed up, half written or linked elsewhere is found out.

Oracle: the folder itself. A change of any byte that the run rests on is named with its file and
epoch, and nothing is written; what can be derived is derived anew, whatever a file claims.
"""

import hashlib
import json
import os
import pty
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from eqprop.runs import UserError, figures, load, training
from eqprop.runs import recipe as recipes
from eqprop.runs import run as run_module
from eqprop.runs.files import write_whole
from eqprop.runs.folder import RunFolder
from eqprop.runs.log import Log
from eqprop.runs.progress import Progress

Cli = Callable[..., Any]
pytestmark = pytest.mark.slow  # most of these train

RECIPE = {
    "layers": "784,12,10",
    "learning_rates": "0.01,0.005",
    "free_steps": 6,
    "nudged_steps": 3,
    "train_samples": 100,
    "test_samples": 40,
    "seeds": 2,
}
TRAIN = ("train", "c-ep-1h", "--engine", "reference")
SHIPPED = Path(__file__).parents[1] / "results/paper/runs"


def contents(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != ".lock")
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


@pytest.fixture(scope="module")
def finished(cli: Cli, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Saved after every epoch: last.ckpt is of the third, previous.ckpt of the second."""
    out = tmp_path_factory.mktemp("folder") / "run"
    words = (*TRAIN, "--epochs", 3, "--angles-every", 2, "--out", out)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training, "SAVE_SHARE", 0)
        assert cli(*words, **RECIPE).code == 0
    return out


@pytest.fixture
def out(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "run"))


def resumed(cli: Cli, out: Path, epochs: int = 4, **more: Any) -> Any:
    return cli(*TRAIN, "--epochs", epochs, "--out", out, "--resume", **RECIPE | more)


@pytest.fixture
def stopped(cli: Cli, out: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[int, int], None]:
    """Resume with five epochs, and stop at a minibatch."""

    def stop(epoch: int, minibatch: int) -> None:
        class Stopping(Progress):
            def minibatch(self, at: int, done: int, of: int, train_error: float) -> None:
                self.stop_requested |= (at, done) == (epoch, minibatch)

        with monkeypatch.context() as patch:
            patch.setattr(run_module, "Progress", Stopping)
            assert resumed(cli, out, epochs=5).code == 130

    return stop


# The chain


def edited(line: bytes) -> bytes:
    """A better test error."""
    record = json.loads(line)
    record["test_error"][0] = 0.0
    return json.dumps(record).encode()


EDITS: dict[str, tuple[Callable[[list[bytes]], list[bytes]], int]] = {
    "a number of the first": (lambda it: [edited(it[0]), *it[1:]], 1),
    "a number of the second": (lambda it: [it[0], edited(it[1]), it[2]], 2),
    "a space": (lambda it: [*it[:2], it[2].replace(b": ", b":  ", 1)], 3),
    "two lines swapped": (lambda it: [it[1], it[0], it[2]], 1),
    "a line twice": (lambda it: [it[0], it[0], it[1], it[2]], 2),
    "the first line gone": (lambda it: it[1:], 1),
    "a line of JSON that is none": (lambda it: [*it[:2], b"[" * 100_000], 3),
    "a line without its hash": (lambda it: [*it[:2], it[2].partition(b', "hash"')[0] + b"}"], 3),
    "a line more": (lambda it: [*it, it[2].replace(b'"epoch": 3', b'"epoch": 4')], 4),
}


@pytest.mark.parametrize("edit", EDITS)
def test_edited_metrics_are_found_out_with_the_epoch(edit: str, cli: Cli, out: Path) -> None:
    change, epoch = EDITS[edit]
    file = out / "metrics.jsonl"
    file.write_bytes(b"\n".join(change(file.read_bytes().splitlines())) + b"\n")
    before = contents(out)
    said = f"{file}: damaged or edited from epoch {epoch} on: "
    for words in (("show", out), ("compare", out)):
        assert cli(*words).error.startswith(said)
    if epoch <= 3:  # the weights are of three epochs: they do not rest on a fourth
        for outcome in (cli("evaluate", out), resumed(cli, out)):
            assert f"damaged or edited from epoch {epoch} on: " in outcome.error
    assert contents(out) == before


def test_what_the_message_advises_works(
    cli: Cli, out: Path, finished: Path, tmp_path: Path
) -> None:
    """The third line is edited; previous.ckpt is of the second epoch."""
    file = out / "metrics.jsonl"
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join([*lines[:2], edited(lines[2]) + b"\n"]))
    message = cli("show", out).error
    assert message.endswith("delete checkpoints/last.ckpt and resume the run to train them again")
    (out / "checkpoints" / "last.ckpt").unlink()
    assert cli("show", out).error.endswith("3 on: resume the run to train them again")
    assert resumed(cli, out, epochs=3).code == 0
    assert file.read_bytes() == (finished / "metrics.jsonl").read_bytes()
    file.write_bytes(b"".join([edited(lines[0]) + b"\n", *lines[1:]]))
    message = cli("show", out).error
    assert message.endswith("1 on: put the file back, or start the run anew in another folder")


@pytest.mark.parametrize(
    "name", ["metrics.jsonl", "run.json", "checkpoints/last.ckpt", "angles.jsonl"]
)
def test_files_of_another_run_do_not_fit(name: str, cli: Cli, out: Path, tmp_path: Path) -> None:
    """Of the same recipe but for its seed, and of as many epochs."""
    words = (*TRAIN, "--epochs", 3, "--angles-every", 2, "--out", tmp_path / "other")
    fields = RECIPE | ({"test_samples": 41} if name == "run.json" else {"seed": 7})
    assert cli(*words, **fields).code == 0
    shutil.copy(tmp_path / "other" / name, out / name)
    before = contents(out)
    assert str(out) in resumed(cli, out).error
    if name != "angles.jsonl":
        assert str(out) in cli("evaluate", out).error
    assert contents(out) == before


def test_a_checkpoint_of_a_run_with_other_data_does_not_fit(
    cli: Cli, out: Path, tmp_path: Path
) -> None:
    """The recipe in it is the same, the metrics that it goes back to are not."""
    last = out / "checkpoints" / "last.ckpt"
    content = read_checkpoint(last)
    write_checkpoint(last, content | {"log": "0" * 16})
    message = cli("evaluate", out).error
    assert message.startswith(f"{last}: does not belong to metrics.jsonl up to epoch 3: ")


def test_a_log_is_chained_to_its_root_and_to_itself(tmp_path: Path) -> None:
    log = Log(tmp_path / "log", "root")
    for epoch in (1, 2):
        log.append({"epoch": epoch})
    first = hashlib.sha256(b'root{"epoch": 1').hexdigest()[:16]
    second = hashlib.sha256(first.encode() + b'{"epoch": 2').hexdigest()[:16]
    assert (tmp_path / "log").read_text() == (
        f'{{"epoch": 1, "hash": "{first}"}}\n{{"epoch": 2, "hash": "{second}"}}\n'
    )
    again = Log(tmp_path / "log", "root")
    assert (again.records, again.head, again.whole) == ([{"epoch": 1}, {"epoch": 2}], second, True)
    assert (again.after("root"), again.after(first), again.after("other")) == (0, 1, None)
    other = Log(tmp_path / "log", "another root")
    assert (other.records, other.whole) == ([], False)


def test_the_root_does_not_depend_on_what_may_change_or_on_fields_to_come() -> None:
    recipe = recipes.load("c-ep-1h")
    longer = recipes.changed(recipe, {"epochs": 999, "name": "x", "description": "y"})
    assert longer.determining() == recipe.determining()
    assert "dt" not in recipe.determining()  # it has its default: a new field is no new run
    assert recipes.changed(recipe, {"beta": 0.3}).determining() != recipe.determining()


# Checkpoints with a valid hash and bad content


def read_checkpoint(file: Path) -> dict[str, Any]:
    from io import BytesIO

    return torch.load(BytesIO(file.read_bytes().partition(b"\n")[2]), weights_only=True)


def write_checkpoint(file: Path, content: Any) -> None:
    from io import BytesIO

    buffer = BytesIO()
    torch.save(content, buffer)
    body = buffer.getvalue() if not isinstance(content, bytes) else content
    header = {"format": 2, "sha256": hashlib.sha256(body).hexdigest()}
    file.write_bytes(json.dumps(header).encode() + b"\n" + body)


BAD_CONTENT: dict[str, Callable[[dict[str, Any]], Any]] = {
    "no archive": lambda it: b"nonsense",
    "a list": lambda it: [1, 2],
    "nothing": lambda it: {},
    "an epoch that is none": lambda it: it | {"epoch": "three"},
    "an epoch that is True": lambda it: it | {"epoch": True},
    "an epoch below 0": lambda it: it | {"epoch": -1},
    "a minibatch below 0": lambda it: it | {"minibatch": -1},
    "a member too many": lambda it: it | {"living": [0, 1, 2]},
    "a member twice": lambda it: it | {"living": [0, 0]},
    "counts of one member": lambda it: it | {"wrong": torch.zeros(1)},
    "no parameters": lambda it: it | {"parameters": {}},
    "parameters of another shape": lambda it: (
        it | {"parameters": {n: p[..., :1] for n, p in it["parameters"].items()}}
    ),
    "parameters that are none": lambda it: (
        it | {"parameters": dict.fromkeys(it["parameters"], "x")}
    ),
    "no hash of the metrics": lambda it: {k: v for k, v in it.items() if k != "log"},
    "a frozen member without place": lambda it: it | {"frozen": [{"member": 0}]},
}


@pytest.mark.parametrize("fault", BAD_CONTENT)
def test_checkpoint_with_a_valid_hash_and_bad_content_is_named(
    fault: str, cli: Cli, out: Path
) -> None:
    last = out / "checkpoints" / "last.ckpt"
    write_checkpoint(last, BAD_CONTENT[fault](read_checkpoint(last)))
    before = contents(out)
    for outcome in (cli("evaluate", out), resumed(cli, out)):
        assert outcome.error == (
            f"{last}: not a checkpoint of this run, in spite of its hash: "
            "delete it to go on from previous.ckpt"
        )
    assert contents(out) == before


# The summary is derived


def test_summary_goes_when_a_finished_run_goes_on(
    cli: Cli, out: Path, stopped: Callable[[int, int], None]
) -> None:
    """It was that of three epochs; a run that is stopped in its fifth has no other."""
    stopped(5, 2)
    assert not (out / "summary.json").exists()
    compared = cli("compare", out, "--out", out / "compared.png").out.splitlines()[1]
    assert compared.split()[-3:] == ["4", "not", "finished"]
    shown = cli("show", out).out
    assert "not finished: 4 of 5 epochs" in shown
    assert load(out).summary["epochs"] == 4
    assert load(out).summary["complete"] is False


@pytest.mark.parametrize(
    "name", sorted(p.name for p in SHIPPED.iterdir() if not (p / "run.json").exists())
)
def test_summary_of_an_earlier_run_is_what_its_metrics_say(name: str) -> None:
    """Every run that comes with the project: what was believed is now derived, to the digit."""
    told = json.loads((SHIPPED / name / "summary.json").read_text())
    derived = RunFolder(SHIPPED / name).summary()
    for key in ("epochs", "frozen", "wall_seconds", "machine", "versions", "commit"):
        assert derived[key] == told[key]
    for key in ("test_error", "train_error", "last_ten_test_error"):
        assert derived[key]["members"] == told[key]["members"]
        assert derived[key]["mean"] == pytest.approx(told[key]["mean"], rel=1e-11)
        assert derived[key]["std"] == pytest.approx(told[key]["std"], rel=1e-9)
    for ours, theirs in zip(derived["members"], told["members"], strict=True):
        assert ours.pop("learning_rates") == theirs.pop("learning_rates")
        assert {key: ours[key] for key in theirs} == pytest.approx(theirs, rel=1e-11)


def test_run_without_hashes_is_read_but_not_resumed(cli: Cli, tmp_path: Path) -> None:
    out = Path(shutil.copytree(SHIPPED / "c-ep-1h", tmp_path / "run"))
    before = contents(out)
    message = cli("train", out / "recipe.toml", "--epochs", 101, "--out", out, "--resume").error
    assert message == (
        f"{out}: has no run.json to verify it with, so it can be read but not resumed: "
        "choose another --out"
    )
    assert contents(out) == before
    assert cli("show", out).out.splitlines()[1].startswith("unverified: ")
    compared = cli("compare", out, "--out", tmp_path / "a.png").out
    assert compared.splitlines()[1].endswith(" 29 s (unverified)")


def test_run_that_lost_its_hashes_is_read_unverified(cli: Cli, out: Path) -> None:
    before = cli("evaluate", out)
    (out / "run.json").unlink()
    assert cli("show", out).out.splitlines()[1].startswith("unverified: ")
    assert cli("evaluate", out) == before
    assert "has no run.json to verify it with" in resumed(cli, out).error


def test_sessions_are_recorded_with_their_facts(cli: Cli, out: Path, finished: Path) -> None:
    assert resumed(cli, out).code == 0
    before = (out / "run.json").read_bytes()
    run = json.loads(before)
    first, second = run["sessions"]
    assert first == json.loads((finished / "run.json").read_text())["sessions"][0]
    for session in (first, second):
        assert set(session) == {
            "started",
            "engine",
            "machine",
            "versions",
            "commit",
            "wall_seconds",
        }
        assert session["engine"] == "ReferenceEngine"
    assert 0 < first["wall_seconds"] < second["wall_seconds"]  # of the run up to its end
    assert load(out).summary["wall_seconds"] == second["wall_seconds"]
    assert resumed(cli, out).code == 0  # nothing was left to do: no session
    assert (out / "run.json").read_bytes() == before
    assert run["data"]["train"]["images"] == [100, 784]
    assert run["data"]["folder"] is None


# Of which epoch the weights are


def test_weights_older_than_the_metrics_are_said_to_be(cli: Cli, out: Path) -> None:
    assert cli("evaluate", out).out.splitlines()[-1].endswith(", after epoch 3")
    (out / "checkpoints" / "last.ckpt").unlink()
    older = "after epoch 2 of 3: later weights are not there (resume the run to get them)"
    assert cli("evaluate", out).out.splitlines()[-1].endswith(f", {older}")
    assert cli("show", out).out.splitlines()[-1] == f"{out}/confusion.png ({older})"
    assert load(out).place == "epoch 2"


def test_weights_in_the_middle_of_an_epoch_are_said_to_be(
    cli: Cli, out: Path, stopped: Callable[[int, int], None]
) -> None:
    stopped(4, 2)
    told = cli("evaluate", out).out.splitlines()[-1]
    assert told.endswith(", after epoch 3 and 2 minibatches")
    assert "(after epoch 3 and 2 minibatches)" in cli("show", out).out


def test_fewer_epochs_than_were_begun_are_refused(
    cli: Cli, out: Path, stopped: Callable[[int, int], None]
) -> None:
    """Three epochs and two minibatches: three would leave weights that are further."""
    stopped(4, 2)
    before = contents(out)
    assert resumed(cli, out, epochs=3).error.startswith("epochs: 3 are fewer than the 4 that")
    assert contents(out) == before
    assert resumed(cli, out, epochs=4).code == 0


# Data


def test_other_images_are_noticed(
    cli: Cli, out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from eqprop import data

    whole = data.load("mnist")
    images = whole.train.images.clone()
    images[3, 0, 10, 20] ^= 1
    other = data.Dataset("mnist", data.Split(images, whole.train.labels, 10), whole.test)
    monkeypatch.setattr(data, "load", lambda *_, **__: other)
    before = contents(out)
    message = resumed(cli, out).error
    assert message.startswith(f"{out}: was trained on other images (SHA-256 of those to train was ")
    assert message.endswith("give the folder that it used with --data, or choose another --out")
    assert contents(out) == before
    told = cli("evaluate", out)
    assert told.code == 0
    assert told.out.startswith("these are other images than the run had: those to train differ\n")


def test_images_that_the_run_does_not_use_do_not_matter(
    cli: Cli, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from eqprop import data

    whole = data.load("mnist")
    images = whole.train.images.clone()
    images[100:] = 0  # the run has the first hundred
    other = data.Dataset("mnist", data.Split(images, whole.train.labels, 10), whole.test)
    monkeypatch.setattr(data, "load", lambda *_, **__: other)
    assert resumed(cli, out).code == 0


# The beginning


@pytest.mark.parametrize(
    "left", [["recipe.toml.new"], ["run.json"], ["run.json", "recipe.toml.new"], ["run.json.new"]]
)
def test_run_killed_before_it_had_begun_can_begin(
    left: list[str], cli: Cli, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    out.mkdir()
    for name in (*left, ".lock"):
        (out / name).write_bytes(b"{ half of it")
    assert resumed(cli, out).error == f"{out}: there is no run to resume: leave out --resume"
    assert cli(*TRAIN, "--epochs", 1, "--out", out, **RECIPE).code == 0
    assert not list(out.glob("*.new"))
    assert load(out).summary["complete"]


@pytest.mark.parametrize("nth", range(1, 5))
def test_run_killed_at_any_write_can_begin_or_go_on(
    nth: int, cli: Cli, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process dies at its n-th replacement of a file, before or after which it is whole."""

    class Died(BaseException):
        pass

    count, replace = 0, os.replace

    def dying(*arguments: Any) -> None:
        nonlocal count
        count += 1
        if count == nth:
            raise Died
        replace(*arguments)

    out = tmp_path / "run"
    words = (*TRAIN, "--epochs", 3, "--angles-every", 2, "--out", out)
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", dying)
        with pytest.raises(Died):
            cli(*words, **RECIPE)
    begun = (out / "recipe.toml").exists()
    assert cli(*words, *["--resume"] * begun, **RECIPE).code == 0
    for name in ("metrics.jsonl", "angles.jsonl"):
        assert (out / name).read_bytes() == (finished / name).read_bytes()


# One writer


def test_a_deleted_lock_lets_no_second_writer_in(cli: Cli, out: Path) -> None:
    folder = RunFolder(out)
    with folder._held():
        (out / ".lock").unlink()
        message = resumed(cli, out).error
        assert "is training in this folder: wait for it, or choose another --out" in message
    assert resumed(cli, out).code == 0


def test_where_folders_cannot_be_locked_a_file_is(
    cli: Cli, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on NFS, where a lock needs a file that is open for writing."""
    import fcntl
    import stat

    flock = fcntl.flock

    def without_folders(descriptor: int, operation: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(9, "Bad file descriptor")
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", without_folders)
    with RunFolder(out)._held():
        assert f"(pid {os.getpid()}) is training" in resumed(cli, out).error
    assert resumed(cli, out).code == 0


# Links


@pytest.mark.parametrize(
    "name",
    [
        "metrics.jsonl",
        "angles.jsonl",
        "run.json",
        "recipe.toml",
        "summary.json",
        "tensorboard",
        "checkpoints",
        "checkpoints/last.ckpt",
        "checkpoints/last.ckpt.new",
        ".lock",
    ],
)
def test_links_in_a_run_folder_are_refused(name: str, cli: Cli, out: Path, tmp_path: Path) -> None:
    elsewhere, file = tmp_path / "elsewhere", out / name
    if file.exists():
        file.rename(elsewhere)
    else:
        elsewhere.write_text("mine")
    file.symlink_to(elsewhere)
    before = contents(out), elsewhere.read_bytes() if elsewhere.is_file() else None
    assert resumed(cli, out).error == (
        f"{file}: is a symbolic link: a run writes to its own folder only; replace it by a file"
    )
    assert (contents(out), elsewhere.read_bytes() if elsewhere.is_file() else None) == before


def test_writing_follows_no_link(tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.write_text("mine")
    for name in ("log", "whole.new"):
        (tmp_path / name).symlink_to(mine)
    with pytest.raises(UserError, match="log: is a symbolic link"):
        Log(tmp_path / "log", "root").append({"epoch": 1})
    with pytest.raises(UserError, match=r"whole.new: is a symbolic link"):
        write_whole(tmp_path / "whole", b"theirs")
    (tmp_path / "whole.new").unlink()
    (tmp_path / "whole").symlink_to(mine)
    write_whole(tmp_path / "whole", b"theirs")
    assert not (tmp_path / "whole").is_symlink()
    assert mine.read_text() == "mine"


def test_pictures_follow_no_link(out: Path, tmp_path: Path) -> None:
    mine = tmp_path / "mine.png"
    mine.write_text("mine")
    (out / "curves.png").unlink()
    (out / "curves.png").symlink_to(mine)
    figures.curves(RunFolder(out))
    assert mine.read_text() == "mine"
    assert not (out / "curves.png").is_symlink()


# Names


def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The axes of the pictures that are drawn from here on."""
    figures_drawn: list[Any] = []
    save = figures.save
    monkeypatch.setattr(
        figures,
        "save",
        lambda plt, figure, *rest: figures_drawn.append(figure) or save(plt, figure, *rest),
    )
    return figures_drawn


def test_a_folder_whose_name_starts_with_an_underscore_is_in_the_legend(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ["_hidden", "$x_1$ and $", "plain"]
    folders = [RunFolder(shutil.copytree(finished, tmp_path / name)) for name in names]
    pictures = drawn(monkeypatch)
    figures.comparison(folders, tmp_path / "a.png")
    (axis,) = pictures[0].axes
    texts = axis.get_legend().get_texts()
    assert [text.get_text().strip() for text in texts] == names
    assert not any(text.get_parse_math() for text in texts)


def test_a_dollar_in_a_name_is_no_formula(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pictures = drawn(monkeypatch)
    words = (*TRAIN, "--epochs", 1, "--out", tmp_path / "run")
    assert cli(*words, **RECIPE, name="$x_{1$ for 5 $").code == 0
    (axis,) = pictures[0].axes
    assert axis.title.get_text().startswith("$x_{1$ for 5 $: mean")
    assert not axis.title.get_parse_math()


def test_escape_sequences_are_not_printed_raw(cli: Cli, out: Path, finished: Path) -> None:
    text = (out / "recipe.toml").read_text()
    red = 'description = "\\u001b[31mred\\u001b]0;title\\u0007\\nmore"'
    lines = [red if line.startswith("description") else line for line in text.splitlines()]
    (out / "recipe.toml").write_text("\n".join(lines) + "\n")
    shown = cli("show", out)
    assert shown.code == 0
    assert "\x1b" not in shown.out
    assert shown.out.splitlines()[0] == r"c-ep-1h: \x1b[31mred\x1b]0;title\x07\nmore"
    complained = cli("show", "\x1b[31mnowhere\n").err
    assert complained == (
        r"eqprop: error: \x1b[31mnowhere\n: not the folder of a run (it has no recipe.toml)" + "\n"
    )


# Signals


LONG = RECIPE | {"train_samples": 3000, "seeds": 1}
LONG_WORDS = (*TRAIN, "--epochs", 2, "--angles-every", 10)


def wait_for_epoch_two(out: Path) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        angles = out / "angles.jsonl"
        if angles.is_file() and b'{"epoch": 2, "minibatch": 150' in angles.read_bytes():
            return
        time.sleep(0.01)
    raise AssertionError("no second epoch within a minute")


def test_hangup_saves(fork: Cli, cli: Cli, tmp_path: Path) -> None:
    process = fork(*LONG_WORDS, "--out", tmp_path / "run", **LONG)
    wait_for_epoch_two(tmp_path / "run")
    process.send_signal(signal.SIGHUP)
    printed, complained = process.communicate(timeout=60)
    assert (process.returncode, complained) == (130, "")
    assert "saved. To go on: eqprop train " in printed
    assert load(tmp_path / "run").place.startswith("epoch 1 and ")


def test_closed_terminal_saves(tmp_path: Path) -> None:
    """A terminal that is gone takes no more output, not even the word that all is saved."""
    out = tmp_path / "run"
    words = [*map(str, LONG_WORDS), "--out", str(out)]
    words += [word for key, value in LONG.items() for word in ("--set", f"{key}={value}")]
    child, terminal = pty.fork()
    if child == 0:
        os.execv(sys.executable, [sys.executable, "-m", "eqprop", *words])
    wait_for_epoch_two(out)
    os.close(terminal)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 130
    assert load(out).place.startswith("epoch 1 and ")


def test_nohup_is_respected(spawn: Cli, tmp_path: Path) -> None:
    out = tmp_path / "run"
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        process = spawn(*LONG_WORDS, "--out", out, **LONG)
    finally:
        signal.signal(signal.SIGHUP, before)
    wait_for_epoch_two(out)
    process.send_signal(signal.SIGHUP)
    process.communicate(timeout=60)
    assert process.returncode == 0
    assert load(out).summary["complete"]


@pytest.mark.parametrize("start", ["module", "script"])
def test_ctrl_c_during_the_imports_ends_without_a_traceback(start: str, tmp_path: Path) -> None:
    """A torch that sends the signal to whoever imports it."""
    package = tmp_path / "torch"
    package.mkdir()
    (package / "__init__.py").write_text(
        "import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(20)\n"
    )
    script = tmp_path / "eqprop"
    script.write_text("import sys\nfrom eqprop.cli import main\nsys.exit(main())\n")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    command = ["-m", "eqprop"] if start == "module" else [str(script)]
    process = subprocess.run(
        [sys.executable, *command, "recipes"],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=15,
    )
    assert (process.returncode, process.stdout, process.stderr) == (130, "", "")


def test_importing_the_library_leaves_ctrl_c_alone(tmp_path: Path) -> None:
    code = (
        "import signal\nimport eqprop\n"
        "assert signal.getsignal(signal.SIGINT) is signal.default_int_handler\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)

"""Oracle: a stand-in for NVIDIA's control program, which writes down what it is told."""

import sys
from pathlib import Path

import pytest

from eqprop.cli import main
from eqprop.runs.arithmetic import Arithmetic
from eqprop.sweeps import commands, local, sharing
from eqprop.sweeps.local import Local
from eqprop.sweeps.sharing import FOLDERS, shared_gpu
from eqprop.sweeps.worker import Job, State

WORKS, FAILS = ([sys.executable, "-c", code] for code in ("", "raise SystemExit(1)"))
SAYS = "import os; print(*(os.environ.get(name) for name in {}))"
# A worker that prints what it was given, once it has its job
WORKER = [sys.executable, "-c", f"input(); {SAYS.format(FOLDERS)}"]


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What the control program was told: its arguments, its folder, and its input."""
    for name in FOLDERS:
        monkeypatch.delenv(name, raising=False)
    log = tmp_path / "told"
    program = tmp_path / "bin" / sharing.CONTROL
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\necho "$@" "${FOLDERS[0]}" "$(cat)" >> {log}\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=":")
    monkeypatch.setattr(sharing, "PROBE", WORKS)
    return log


def test_the_service_starts_and_ends(told: Path) -> None:
    with shared_gpu() as added:
        assert added is not None
        folder = added[FOLDERS[0]]
        assert added == dict.fromkeys(FOLDERS, folder)
        assert Path(folder).is_dir()
        assert told.read_text() == f"-d {folder} \n"
    assert told.read_text().splitlines()[1:] == [f"{folder} quit"]
    assert not Path(folder).exists()


def test_a_service_that_does_not_work_ends_at_once(
    told: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sharing, "PROBE", FAILS)
    with shared_gpu() as added:
        assert added is None
    assert told.read_text().endswith("quit\n")


def test_a_probe_that_hangs_is_one_that_fails(told: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharing, "PROBE", [sys.executable, "-c", "import time; time.sleep(60)"])
    monkeypatch.setattr(sharing, "SECONDS", 1.0)
    with shared_gpu() as added:
        assert added is None


def test_a_service_of_the_user_is_left_alone(told: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FOLDERS[0], "/of/the/user")
    with shared_gpu() as added:
        assert added == {}
    assert not told.exists()


def test_there_may_be_none(told: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(told.parent / "nowhere"))
    with shared_gpu() as added:
        assert added is None


def ended(place: Local) -> State:
    """Run one task there; return how it ended."""
    with place:
        place.submit("a", Job("", "", "cpu", 1, None, Arithmetic()))
        while place.busy:
            for _, it in place.wait(1.0):
                return it.state
    raise AssertionError("the task has gone")


@pytest.mark.parametrize("share_gpu", [True, False])
def test_processes_are_told_where_it_is(
    share_gpu: bool, told: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "WORKER", WORKER)
    place = Local(1, 0, told.parent / "logs", share_gpu)
    assert ended(place) is State.DONE
    said = (place.logs / "a.txt").read_text().split()
    if share_gpu:
        _, folder, _, quit = told.read_text().split()
        assert said == [folder, folder]
        assert quit == "quit"
    else:
        assert said == ["None", "None"]
        assert not told.exists()


@pytest.mark.parametrize(
    ("words", "shares"),
    [
        (("--device", "cuda", "--jobs", "2"), True),
        (("--device", "cuda"), False),
        (("--jobs", "2"), False),
    ],
)
def test_only_several_processes_on_a_gpu_share_one(
    words: tuple[str, ...], shares: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Asked(Exception):
        pass

    def asked(jobs: int, retries: int, logs: Path, share_gpu: bool) -> None:
        raise Asked(share_gpu)

    monkeypatch.setattr(commands, "check_device", lambda device: None)
    monkeypatch.setattr(commands, "Local", asked)
    file = tmp_path / "sweep.toml"
    file.write_text('[[run]]\nrecipe = "c-ep-1h"\n')
    with pytest.raises(Asked, match=str(shares)):
        main(["sweep", str(file), "--out", str(tmp_path / "out"), *words])


def test_processes_that_take_turns_say_so(
    told: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(local, "WORKER", WORKER)
    monkeypatch.setattr(sharing, "PROBE", FAILS)
    assert ended(Local(2, 0, told.parent / "logs", True)) is State.DONE
    assert "processes take turns" in capsys.readouterr().out

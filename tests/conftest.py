"""One thread, the same hypothesis examples every time, real MNIST, a browser, the command line."""

import gc
import io
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import settings

from eqprop import data
from eqprop.cli import main
from eqprop.data import Dataset, load
from eqprop.data.sources import cache_folder
from eqprop.papers.continual_ep import training
from tests.commands import Command
from tests.devices import HAS_GPU
from tests.graphs_on_cpu import graphs_on_cpu  # noqa: F401 (a fixture)

torch.set_num_threads(1)
if not HAS_GPU:
    os.environ["TRITON_INTERPRET"] = "1"  # Triton reads it when it is imported
settings.register_profile("eqprop", deadline=None, derandomize=True, max_examples=25, database=None)
settings.load_profile("eqprop")

# What nohup or a shell's background ignores is inherited: tests of signals need them as they are.
for number, usual in (
    (signal.SIGINT, signal.default_int_handler),
    (signal.SIGHUP, signal.SIG_DFL),
):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, usual)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sweeps first: they wait for processes while others compute, and share one Ray cluster.

    Last, they would be what is left at the end, taken over by processes with a cluster each.
    """
    items.sort(key=lambda item: item.path.name != "test_sweep.py")
    for item in items:
        uses = item.get_closest_marker("gpu")
        if uses is not None and not HAS_GPU and not uses.kwargs.get("or_cpu"):
            item.add_marker(pytest.mark.skip(reason="needs a GPU"))


def pytest_collection_finish() -> None:
    """Spare each garbage collection of a test the libraries and the tests: they stay."""
    gc.freeze()


@pytest.fixture(scope="session")
def mnist() -> Dataset:
    """From wherever this machine has or reaches it; the user's own cache keeps it."""
    return load("mnist")


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    program = shutil.which("chromium")
    if program is None:
        pytest.skip("no chromium here: apt-get install chromium, or make browser as root")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture(scope="session")
def fresh_venv(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment for tests to copy: creating one takes seconds."""
    folder = tmp_path_factory.mktemp("venv") / "fresh"
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    return folder


@pytest.fixture
def small_quick_runs(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Quick runs of the paper take a second, whichever recipes earlier tests have resolved."""
    monkeypatch.setattr(training, "QUICK_SAMPLES", {1: (120, 60), 2: (60, 40)})
    training.TrainingRun.resolved.cache_clear()
    yield
    training.TrainingRun.resolved.cache_clear()


@dataclass(frozen=True)
class Outcome:
    """What a command came to: its exit code, what it printed, and what it complained about."""

    code: int
    out: str
    err: str

    @property
    def error(self) -> str:
        """The one line that a user's mistake is answered with, on stderr, and nothing else."""
        assert self.code == 2, self
        (line,) = self.err.splitlines()
        start = "eqprop: error: "
        assert line.startswith(start)
        return line.removeprefix(start)


def command_words(words: tuple[Any, ...], fields: dict[str, Any]) -> list[str]:
    """The words of a command; each field becomes --set field=value."""
    pairs = (("--set", f"{key}={value}") for key, value in fields.items())
    return [*map(str, words), *(word for pair in pairs for word in pair)]


@pytest.fixture(scope="session")
def cli(mnist: Dataset) -> Callable[..., Outcome]:
    """The command line in this process: cli("train", "ep-1h", "--epochs", 2, beta=0.3).

    It does not read and verify MNIST again, unless a test changes where it is.
    """
    place = cache_folder("mnist")

    def known(name: str, folder: str | None = None) -> Dataset:
        elsewhere = folder or "EQPROP_DATA" in os.environ or cache_folder(name) != place
        return load(name, folder) if elsewhere else mnist

    def run(*words: Any, **fields: Any) -> Outcome:
        out, err = io.StringIO(), io.StringIO()
        with (
            redirect_stdout(out),
            redirect_stderr(err),
            pytest.MonkeyPatch.context() as patch,
        ):
            if data.load is load:  # not replaced by the test
                patch.setattr(data, "load", known)
            try:
                code = main(command_words(words, fields))
            except SystemExit as stop:  # argparse
                code = int(stop.code or 0)
        return Outcome(code, out.getvalue(), err.getvalue())

    return run


@pytest.fixture
def fork(mnist: Dataset) -> Iterator[Callable[..., Command]]:
    """The command line in a process of its own, its output in pipes, gone when the test is."""
    started: list[Command] = []

    def start(*words: Any, **fields: Any) -> Command:
        started.append(Command(command_words(words, fields)))
        return started[-1]

    yield start
    for process in started:
        process.kill()


@pytest.fixture
def spawn(mnist: Dataset) -> Iterator[Callable[..., "subprocess.Popen[str]"]]:
    """As `fork`, in an interpreter of its own, as a user starts it.

    `blocks` is the size of the largest file that it may write, in the unit of `ulimit -f`.
    """
    started: list[subprocess.Popen[str]] = []

    def start(*words: Any, blocks: int | None = None, **fields: Any) -> "subprocess.Popen[str]":
        command = [sys.executable, "-m", "eqprop", *command_words(words, fields)]
        if blocks is not None:
            command = ["sh", "-c", 'ulimit -f "$0"; exec "$@"', str(blocks), *command]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        started.append(subprocess.Popen(command, **pipes, text=True))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()

"""The benchmark of other code: what it times, what it records and what it refuses."""

import json
import subprocess
import sys

import pytest
import torch

from benchmarks import convolution_peers
from benchmarks.convolution_peers import Loader, Peer, Training
from eqprop.exits import OK, USER_ERROR
from eqprop.runs import UserError

MADE_UP = """
import time

def train(loader, parameters, free, nudged):
    for x, y in loader:
        time.sleep(1e-3 * (free + nudged))
        for parameter in parameters:
            parameter -= 0.1 * x.mean()
"""


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """The checkout of a made-up peer that takes one millisecond per iteration."""

    def training(loader, free, nudged):
        from made_up_peer import train

        parameters = [torch.ones(2), torch.zeros(3)]
        return Training(lambda: train(loader, parameters, free, nudged), parameters)

    folder = tmp_path / "checkout"
    folder.mkdir()
    (folder / "made_up_peer.py").write_text(MADE_UP)
    peer = Peer("https://example.org/made-up", "made_up_peer.py", (20, 10), training)
    monkeypatch.setitem(convolution_peers.PEERS, "made-up", peer)
    monkeypatch.setattr(sys, "path", list(sys.path))  # this and the next: restored after the test
    monkeypatch.setattr(sys, "dont_write_bytecode", sys.dont_write_bytecode)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", torch.backends.cudnn.allow_tf32)
    monkeypatch.delitem(sys.modules, "made_up_peer", raising=False)
    return folder


def test_the_record_has_one_entry_per_peer_settings_and_machine(checkout, tmp_path, capsys):
    def run(*more):
        told = ["made-up", str(checkout), "--commit", "abc", "--device", "cpu", "--rounds", "3"]
        assert convolution_peers.main([*told, "--out", str(tmp_path), *more]) == OK
        return json.loads((tmp_path / "convolution-peers.json").read_text("utf-8"))["results"]

    (entry,) = run()
    assert (entry["peer"], entry["peer_commit"], entry["rounds"]) == ("made-up", "abc", 3)
    assert entry["settings"] == {
        "batch": 128,
        "free_iterations": 20,
        "nudged_iterations": 10,
        "tf32": False,
        "cudnn_benchmark": False,
    }
    spent = entry["milliseconds_per_minibatch"]
    assert 30 <= spent["min"] <= spent["median"] <= spent["max"]
    assert entry["minibatches_per_epoch"] == 391
    assert entry["seconds_per_epoch"] == pytest.approx(0.391 * spent["median"])
    assert entry["machine"]["device"] == "cpu"
    assert f"{spent['median']:.1f} ms per minibatch" in capsys.readouterr().out
    assert len(run("--iterations", "2", "1")) == 2
    again = run()
    assert [e["settings"]["free_iterations"] for e in again] == [2, 20]


def test_a_minibatch_lasts_from_one_request_to_the_next(monkeypatch):
    clock = iter([0.0, 5.0, 6.0, 6.25, 7.0])
    monkeypatch.setattr(convolution_peers.time, "perf_counter", lambda: next(clock))
    loader = Loader(batch=4, rounds=2, device="cpu")
    with pytest.raises(convolution_peers.Enough):
        list(loader)
    assert loader.milliseconds() == [250.0, 750.0]  # the warm-up took 5 s and 1 s


@pytest.mark.parametrize("step", [0.0, float("nan")])
def test_a_peer_that_does_not_train_is_refused(step):
    def training(loader, free, nudged):
        parameter = torch.ones(2)
        return Training(lambda: [parameter.add_(step) for _ in loader], [parameter])

    peer = Peer("https://example.org/made-up", "made_up_peer.py", (1, 1), training)
    with pytest.raises(RuntimeError, match="did not move or is not finite"):
        convolution_peers.measure(peer, Loader(2, 1, "cpu"), (1, 1))


@pytest.mark.parametrize(
    ("arguments", "remedy"),
    [
        (["rain"], "git clone https://github.com/rain-neuromorphics/energy-based-learning"),
        (["made-up", "--device", "cpu"], "name its commit with --commit"),
        (["made-up", "--commit", "abc"], "take --device cpu"),
    ],
)
def test_an_error_is_one_line_with_its_remedy(checkout, arguments, remedy, monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert convolution_peers.main([*arguments, str(checkout)]) == USER_ERROR
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    assert remedy in line


def test_the_commit_is_that_of_the_checkout_itself(checkout):
    def git(*arguments):
        who = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
        command = ["git", "-C", str(checkout), *who, *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    git("init")
    git("add", ".")
    git("commit", "-m", "one")
    git("tag", "v1")
    head = git("rev-parse", "HEAD")
    (checkout / "untracked").mkdir()
    assert convolution_peers.commit(checkout) == head
    with pytest.raises(UserError, match=r"no \.git"):
        convolution_peers.commit(checkout / "untracked")
    (checkout / "made_up_peer.py").write_text("changed")
    assert convolution_peers.commit(checkout) == f"{head}+changes"

"""Train, evaluate and load from Python: what the command line does, as functions.

Oracle: the command line, byte for byte; plain sums; and that nothing else happens.
"""

import os
import re
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import eqprop
from eqprop.data import DataError, Dataset, Normalisation, Split
from eqprop.runs import UserError
from eqprop.runs import recipe as recipes

Cli = Callable[..., Any]
FIELDS: dict[str, Any] = {
    "layers": [784, 12, 10],
    "learning_rates": [0.01, 0.005],
    "free_steps": 6,
    "nudged_steps": 3,
    "train_samples": 200,
    "test_samples": 100,
}
SETTINGS: dict[str, Any] = {"epochs": 2, "seeds": 2, "overrides": FIELDS}


@pytest.fixture(scope="module")
def run() -> eqprop.Run:
    return eqprop.train("c-ep-1h", **SETTINGS)


def test_run_in_memory_is_the_run_of_the_command_line(
    run: eqprop.Run, cli: Cli, tmp_path: Path
) -> None:
    words = ("train", "c-ep-1h", "--epochs", 2, "--seeds", 2, "--out", tmp_path / "run")
    fields = {key: str(value).strip("[]") for key, value in FIELDS.items()}
    assert cli(*words, **fields).code == 0
    kept = eqprop.load(tmp_path / "run")
    assert kept.recipe == run.recipe
    assert kept.metrics == run.metrics
    assert kept.members == run.members
    assert kept.place == run.place == "epoch 2"
    times = ("started", "wall_seconds")
    assert {k: v for k, v in kept.summary.items() if k not in times} == {
        k: v for k, v in run.summary.items() if k not in times
    }
    for ours, theirs in zip(run.net.parameters(), kept.net.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    printed = cli("evaluate", tmp_path / "run").out
    for run_of in (run, kept):
        found = eqprop.evaluate(run_of)
        assert found.error.tolist() == pytest.approx(run.metrics[-1]["test_error"])
        for error in found.error:
            assert f"test error {error:.2f} %" in printed


def test_nothing_is_printed_written_locked_or_caught_without_a_folder(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    caught: list[Any] = []
    monkeypatch.setattr(signal, "signal", lambda *arguments: caught.append(arguments))
    threads = torch.get_num_threads()
    eqprop.evaluate(eqprop.train("c-ep-1h", **SETTINGS))
    assert capfd.readouterr() == ("", "")
    assert os.listdir(tmp_path) == []
    assert caught == []
    assert torch.get_num_threads() == threads


def test_runs_in_threads_are_the_same_with_and_without_a_folder(
    run: eqprop.Run, tmp_path: Path
) -> None:
    found: dict[int, eqprop.Run] = {}

    def train(i: int) -> None:
        folder = tmp_path / "run" if i else None
        found[i] = eqprop.train("c-ep-1h", folder=folder, progress=False, **SETTINGS)

    workers = [threading.Thread(target=train, args=(i,)) for i in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert found[0].metrics == found[1].metrics == run.metrics
    assert eqprop.load(tmp_path / "run").metrics == run.metrics


def test_run_in_a_folder_is_kept_and_resumed(run: eqprop.Run, tmp_path: Path) -> None:
    short = eqprop.train("c-ep-1h", folder=tmp_path / "run", **SETTINGS | {"epochs": 1})
    assert short.folder == tmp_path / "run"
    longer = eqprop.train("c-ep-1h", folder=tmp_path / "run", resume=True, **SETTINGS)
    assert longer.metrics == eqprop.load(tmp_path / "run").metrics == run.metrics
    with pytest.raises(UserError, match="holds this run already, at epoch 2"):
        eqprop.train("c-ep-1h", folder=tmp_path / "run", **SETTINGS)
    with pytest.raises(UserError, match="resume needs a folder"):
        eqprop.train("c-ep-1h", resume=True)


def test_callback_is_given_each_epoch_and_can_end_the_run(tmp_path: Path) -> None:
    seen: list[int] = []

    def enough(record: dict[str, Any]) -> bool:
        seen.append(record["epoch"])
        assert len(record["test_error"]) == 2
        return record["epoch"] == 2

    settings = SETTINGS | {"epochs": 5, "callback": enough, "progress": False}
    run = eqprop.train("c-ep-1h", folder=tmp_path / "run", **settings)
    assert seen == [1, 2]
    assert len(run.metrics) == 2
    assert run.summary["complete"] is False
    kept = eqprop.load(tmp_path / "run")
    assert (kept.place, kept.summary["complete"]) == ("epoch 2", False)
    assert not (tmp_path / "run" / "summary.json").exists()


def test_single_network_an_ensemble_and_a_sweep_read_the_same() -> None:
    shapes = {"one": (1, {}), "seeds": (3, {}), "sweep": (2, {"beta": [0.1, 0.2, 0.4]})}
    found = {}
    for name, (seeds, fields) in shapes.items():
        settings = SETTINGS | {"seeds": seeds, "epochs": 1, "overrides": FIELDS | fields}
        found[name] = eqprop.train("c-ep-1h", **settings)
    for run, n, settings in zip(found.values(), (1, 3, 6), (1, 1, 3), strict=True):
        assert len(run.members) == len(run.living) == len(run.summary["members"]) == n
        assert run.net.ensemble == (n,)
        assert len(run.metrics[0]["test_error"]) == n
        assert len(run.summary["settings"]) == settings
        assert eqprop.evaluate(run).error.shape == (n,)
        for setting in run.summary["settings"]:
            assert set(setting) == {
                "label",
                "members",
                "train_error",
                "test_error",
                "last_ten_test_error",
            }
            errors = [run.metrics[0]["test_error"][i] for i in setting["members"]]
            assert setting["test_error"]["mean"] == pytest.approx(sum(errors) / len(errors))
        assert repr(run).startswith(f"Run(c-ep-1h, {n} network(s), epoch 1, test error ")
    assert [s["label"] for s in found["sweep"].summary["settings"]] == [
        "β = 0.1",
        "β = 0.2",
        "β = 0.4",
    ]


# Data


class Pairs(torch.utils.data.Dataset):  # type: ignore[type-arg]
    def __init__(self, split: Split, scale: bool) -> None:
        self.split, self.scale = split, scale

    def __len__(self) -> int:
        return len(self.split)

    def __getitem__(self, i: int) -> Any:
        image = self.split.images[i].reshape(1, 28, 28)
        return image / 255 if self.scale else image, int(self.split.labels[i])


OWN = {key: value for key, value in FIELDS.items() if not key.endswith("_samples")}


@pytest.mark.parametrize("form", ["bytes", "floats", "numpy", "dataset", "floats of a dataset"])
def test_the_same_images_in_any_form_give_the_same_run(
    form: str, run: eqprop.Run, mnist: Dataset
) -> None:
    train, test = mnist.train.head(200), mnist.test.head(100)
    forms: dict[str, Callable[[Split], Any]] = {
        "bytes": lambda s: (s.images.reshape(-1, 28, 28), s.labels),
        "floats": lambda s: (s.images.float() / 255, s.labels.long()),
        "numpy": lambda s: (s.images.numpy(), s.labels.numpy()),
        "dataset": lambda s: Pairs(s, scale=False),
        "floats of a dataset": lambda s: Pairs(s, scale=True),
    }
    make = forms[form]
    ours = eqprop.train("c-ep-1h", (make(train), make(test)), **SETTINGS | {"overrides": OWN})
    for record, expected in zip(ours.metrics, run.metrics, strict=True):
        for key in ("train_error", "test_error"):
            assert record[key] == pytest.approx(expected[key], abs=1.01)  # one sample on an edge
        for key in ("train_loss", "test_loss"):
            assert record[key] == pytest.approx(expected[key], rel=1e-5)
    if "floats" not in form:
        assert ours.metrics == run.metrics
    assert ours.recipe.data.name == ("Pairs" if "dataset" in form else "tensors")
    assert eqprop.evaluate(ours).error.tolist() == pytest.approx(ours.metrics[-1]["test_error"])


def test_one_pair_serves_to_train_and_to_test(mnist: Dataset) -> None:
    x, y = mnist.train.images[:100], mnist.train.labels[:100]
    run = eqprop.train("c-ep-1h", (x, y), **SETTINGS | {"overrides": OWN})
    errors = [eqprop.evaluate(run, split=split).error.tolist() for split in ("train", "test")]
    assert errors[0] == errors[1] == pytest.approx(run.metrics[-1]["test_error"])


def test_a_folder_of_idx_files_is_data(mnist: Dataset, run: eqprop.Run, tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    for prefix, split, n in (("train", mnist.train, 200), ("t10k", mnist.test, 100)):
        head = b"".join(i.to_bytes(4, "big") for i in (2051, n, 28, 28))
        content = head + bytes(split.images[:n].flatten().tolist())
        (folder / f"{prefix}-images-idx3-ubyte").write_bytes(content)
        head = b"".join(i.to_bytes(4, "big") for i in (2049, n))
        (folder / f"{prefix}-labels-idx1-ubyte").write_bytes(
            head + bytes(split.labels[:n].tolist())
        )
    for data in (folder, str(folder)):
        ours = eqprop.train("c-ep-1h", data, folder=None, **SETTINGS | {"overrides": OWN})
        assert ours.metrics == run.metrics
        assert ours.recipe.data.name == "mine"
    assert eqprop.train("c-ep-1h", "mnist", **SETTINGS).metrics == run.metrics
    kept = eqprop.train("c-ep-1h", folder, tmp_path / "run", **SETTINGS | {"overrides": OWN})
    again = eqprop.load(kept.folder)
    assert eqprop.evaluate(again).error.tolist() == eqprop.evaluate(kept).error.tolist()


def test_tensors_in_a_folder_are_recognised_on_resume(mnist: Dataset, tmp_path: Path) -> None:
    x, y = mnist.train.images[:100], mnist.train.labels[:100]
    settings = SETTINGS | {"overrides": OWN, "progress": False}
    eqprop.train("c-ep-1h", (x, y), tmp_path / "run", **settings)
    longer = settings | {"epochs": 3, "resume": True}
    with pytest.raises(UserError, match="was trained on other images"):
        eqprop.train("c-ep-1h", (x.flip(0), y), tmp_path / "run", **longer)
    run = eqprop.train("c-ep-1h", (x, y), tmp_path / "run", **longer)
    assert len(run.metrics) == 3


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ("nothing-of-this-name", "unknown data set 'nothing-of-this-name'"),
        ("../x", "data '../x' must be the name of a set"),
        (3, "data must be a name, a folder, a Dataset"),
        ((torch.zeros(5, 3), torch.zeros(5).long()), "layers: the first must be 3, the pixels of"),
        ((torch.zeros(5, 784), torch.full((5,), 10)), "labels hold class 10, but there are 10"),
        ((torch.zeros(5, 784), torch.zeros(4).long()), "must have the shapes"),
        ((torch.zeros(5, 784), torch.zeros(5)), "labels must be integers"),
    ],
    ids=str,
)
def test_bad_data_is_answered_in_one_line(data: Any, said: str, tmp_path: Path) -> None:
    with pytest.raises((DataError, UserError)) as caught:
        eqprop.train("c-ep-1h", data, tmp_path / "run", epochs=1, seeds=1)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


# Recipes


def test_recipe_may_be_a_name_a_file_or_an_object(run: eqprop.Run, tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(run.recipe.to_toml())
    for recipe in (run.recipe, file, str(file)):
        assert eqprop.train(recipe).metrics == run.metrics
    one = eqprop.train(run.recipe, epochs=1, seeds=1)
    assert (one.recipe.epochs, one.recipe.seeds) == (1, 1)
    with pytest.raises(UserError, match="c-ep-1h: epochs must be an integer >= 1, not 0"):
        eqprop.train(run.recipe, epochs=0)
    with pytest.raises(UserError, match="device cuda: PyTorch sees no GPU here"):
        eqprop.train(run.recipe, device="cuda")
    with pytest.raises(UserError, match="angles_every must be 1 or more, not 0"):
        eqprop.train(run.recipe, angles_every=0)


# Evaluation


def test_a_normalisation_is_part_of_the_data(mnist: Dataset, tmp_path: Path) -> None:
    few = Dataset("mnist", mnist.train.head(100), mnist.test.head(50))
    by = few.normalised(Normalisation.of(few.train))
    settings = SETTINGS | {"overrides": OWN, "progress": False}
    run = eqprop.train("c-ep-1h", by, tmp_path / "run", **settings)
    train, test = (
        (x - by.train.normalisation.mean[0]) / by.train.normalisation.std[0]
        for x in (few.train.images / 255, few.test.images / 255)
    )
    same = eqprop.train("c-ep-1h", ((train, few.train.labels), (test, few.test.labels)), **settings)
    assert run.metrics[-1]["test_loss"] == pytest.approx(same.metrics[-1]["test_loss"], rel=1e-4)
    assert eqprop.evaluate(run).error.tolist() == run.metrics[-1]["test_error"]
    longer = settings | {"epochs": 3, "resume": True}
    with pytest.raises(UserError, match="was trained on other images"):
        eqprop.train("c-ep-1h", few, tmp_path / "run", **longer)
    assert len(eqprop.train("c-ep-1h", by, tmp_path / "run", **longer).metrics) == 3


def test_a_recipe_can_ask_for_normalised_data(mnist: Dataset, tmp_path: Path) -> None:
    out, normalised = tmp_path / "run", FIELDS | {"normalise": True}
    ours = eqprop.train("c-ep-1h", None, out, 2, 1, progress=False, overrides=normalised)
    x = mnist.train.images[:200].double() / 255
    (by,) = {ours.data.train.normalisation, ours.data.test.normalisation}
    assert by.mean[0] == pytest.approx(float(x.mean()), rel=1e-6)
    assert by.std[0] == pytest.approx(float(x.std(correction=0)), rel=1e-6)
    expected = ours.metrics[-1]["test_error"]
    plain = eqprop.train("c-ep-1h", epochs=2, seeds=1, overrides=FIELDS)
    assert plain.metrics[-1]["test_loss"] != ours.metrics[-1]["test_loss"]
    raw = (mnist.test.images[:100], mnist.test.labels[:100])
    for run in (ours, eqprop.load(out)):
        assert eqprop.evaluate(run).error.tolist() == pytest.approx(expected)
        assert eqprop.evaluate(run, raw).error.tolist() == pytest.approx(expected)


def test_a_convolution_is_trained_kept_and_tested(tmp_path: Path) -> None:
    small = {
        "input": [1, 28, 28],
        "layers": [{"conv": 4, "kernel": 5, "stride": 2, "pool": 2}, 10],
        "readout": "cross-entropy",
        "rule": "ep",
        "nudging": "centred",
        "momentum": 0.9,
        "learning_rates": [0.05, 0.1],
    }
    fields = FIELDS | small
    ours = eqprop.train("c-ep-1h", None, tmp_path / "run", 3, 2, overrides=fields, progress=False)
    assert ours.net.layer_shapes == ((4, 6, 6),)
    assert ours.metrics[-1]["train_error"][0] < 60 < ours.metrics[0]["train_error"][0]
    kept = eqprop.load(tmp_path / "run")
    assert kept.recipe == ours.recipe
    assert eqprop.evaluate(kept).error.tolist() == pytest.approx(ours.metrics[-1]["test_error"])


def test_images_that_the_network_does_not_take_are_refused_in_one_line(mnist: Dataset) -> None:
    net = eqprop.layered(100, 12, 10)
    with pytest.raises(DataError, match=r"images \[1, 28, 28\] hold 784 numbers, .* takes \[100\]"):
        eqprop.evaluate(net, mnist, free_steps=5)


@pytest.mark.parametrize("ensemble", [(), 3, (2, 2)])
def test_networks_of_any_ensemble_are_evaluated(ensemble: Any, mnist: Dataset) -> None:
    net = eqprop.layered(784, 12, 10, ensemble=ensemble, dtype=torch.float64)
    x, labels = mnist.test.images[:50].double().flatten(1) / 255, mnist.test.labels[:50].long()
    found = eqprop.evaluate(net, (x, labels), free_steps=5)
    answers = net.output(eqprop.relax(net, x, 5).state).argmax(-1)
    expected = 100 * (answers != labels).double().mean(-1)
    assert found.error.tolist() == pytest.approx(expected.flatten().tolist())
    networks = max(1, answers[..., 0].numel())
    assert found.error.shape == found.loss.shape == (networks,)
    assert found.confusion.shape == (networks, 10, 10)
    assert found.confusion.sum((1, 2)).tolist() == [50] * networks
    split = Split(mnist.test.images[:50], mnist.test.labels[:50], 10)
    assert eqprop.evaluate(net, split, free_steps=5).error.tolist() == found.error.tolist()


def test_a_network_alone_needs_data_and_steps(run: eqprop.Run, mnist: Dataset) -> None:
    with pytest.raises(UserError, match="a network needs data and free_steps"):
        eqprop.evaluate(run.net, mnist)
    with pytest.raises(UserError, match="a network needs data and free_steps"):
        eqprop.evaluate(run.net, free_steps=3)
    with pytest.raises(UserError, match="split must be one of test, train, validation, not 'all'"):
        eqprop.evaluate(run, split="all")
    with pytest.raises(UserError, match="free_steps must be 1 or more, not 0"):
        eqprop.evaluate(run, free_steps=0)
    with pytest.raises(UserError, match="in_turn is for a network: a run has"):
        eqprop.evaluate(run, in_turn=True)


def test_an_over_relaxed_network_alone_is_tested_as_its_run_is() -> None:
    small = {"layers": [784, 12, 10], "relaxation": 1.5, "free_steps": 20, "nudged_steps": 4}
    few = {"train_samples": 200, "test_samples": 100, "in_turn": True}
    run = eqprop.train("ep-1h", epochs=1, seeds=1, overrides={**small, **few})
    assert run.data is not None
    ours = eqprop.evaluate(run)
    assert ours.confusion.equal(eqprop.evaluate(run.net, run.data, free_steps=20).confusion)
    at_once = eqprop.evaluate(run.net, run.data, free_steps=20, in_turn=False)
    assert float(at_once.residual) > 100 * float(ours.residual)


def test_a_run_on_tensors_says_that_its_folder_does_not_hold_them(tmp_path: Path) -> None:
    x, y = torch.rand(40, 784), torch.arange(40) % 10
    few = {"layers": [784, 5, 10], "free_steps": 4, "nudged_steps": 2, "train_samples": None}
    eqprop.train("ep-1h", (x, y), tmp_path / "run", 1, 1, progress=False, overrides=few)
    with pytest.raises(UserError, match=r"was trained on tensors, .*: call evaluate\(run, data\)"):
        eqprop.evaluate(eqprop.load(tmp_path / "run"))
    assert eqprop.evaluate(eqprop.load(tmp_path / "run"), (x, y)).error.shape == (1,)


def test_a_schedule_says_why_a_run_cannot_have_more_epochs(tmp_path: Path) -> None:
    more = {**FIELDS, "schedule": "cosine", "rule.name": "ep"}
    settings = {"folder": tmp_path / "run", "seeds": 1, "overrides": more, "progress": False}
    eqprop.train("c-ep-1h", epochs=1, **settings)
    with pytest.raises(UserError, match=r"differs in epochs, because the schedule depends on them"):
        eqprop.train("c-ep-1h", epochs=2, resume=True, **settings)


def test_each_group_of_layers_needs_a_step() -> None:
    wide = {"conv": 2, "kernel": 3, "padding": 1}
    triangle = [wide | {"stride": 4}, wide, wide | {"skip": {"back": 2, "kernel": 1}}, 10]
    more = {"layers": triangle, "learning_rates": [0.1] * 4, "train_samples": 20, "batch": 10}
    run = eqprop.train("mnist-conv", epochs=1, seeds=1, overrides=FIELDS | more)
    assert len(run.net.split()) == 3
    assert eqprop.evaluate(run, free_steps=3).error.shape == (1,)
    with pytest.raises(UserError, match="free_steps must be 3 or more, not 2"):
        eqprop.evaluate(run, free_steps=2)


def test_run_is_evaluated_on_other_data_as_it_is(run: eqprop.Run, mnist: Dataset) -> None:
    """Fewer samples than the recipe asks for are no mistake here."""
    few = mnist.test.images[200:230], mnist.test.labels[200:230]
    ours = eqprop.evaluate(run, few)
    net_alone = eqprop.evaluate(run.net, few, free_steps=6)
    assert ours.error.tolist() == pytest.approx(net_alone.error.tolist(), abs=3.4)
    assert ours.confusion.sum().item() == 60


def test_importing_eqprop_brings_the_runs() -> None:
    assert eqprop.runs.load is eqprop.load
    assert eqprop.runs.Recipe is recipes.Recipe


def test_the_example_of_the_documentation_runs(
    mnist: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the first images of MNIST."""
    few = Dataset("mnist", mnist.train.head(500), mnist.test.head(200))
    monkeypatch.setattr(eqprop.data, "load", lambda *_: few)
    text = (Path(__file__).parents[1] / "docs" / "runs.md").read_text("utf-8")
    (example,) = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(example, names)
    assert (names["run"].epoch, names["run"].net.ensemble) == (3, (5,))
    assert os.listdir(tmp_path) == ["runs"]
